"""A transform gives the same whatever prefetch is: random numbers, autocast, gradients, inference mode, default device."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune
from torch.utils._python_dispatch import BaseTorchDispatchMode

from reader import Compose, MemmapDataset, MemmapLoader, RandomResizedCrop
from reader.loading.torch_modes import Draws, Modes

FEEDER = "pixpack-feeder"


def noisy(batch: Any) -> torch.Tensor:
    return batch.images.float() + torch.rand(3)[:, None, None] * float(np.random.rand()) * random.random()


def run(train: MemmapDataset, prefetch: int, transform: Callable[[Any], Any], batch_size: int) -> list[torch.Tensor]:
    """Return what two epochs give a loop that draws as much itself, as dropout does."""
    torch.manual_seed(4)
    np.random.seed(4)
    random.seed(4)
    found = []
    loader = MemmapLoader(train, batch_size, shuffle="full", prefetch=prefetch, transform=transform)
    for _ in range(2):
        for made in loader:
            found += [made, torch.rand(2)]
    loader.close()
    return found


@pytest.mark.parametrize("batch_size", [1, 7, 30])
def test_a_transform_that_draws_from_the_process_gives_the_same_for_any_prefetch(
    train: MemmapDataset, batch_size: int
) -> None:
    expected = run(train, 0, noisy, batch_size)
    assert len({float(made.sum()) for made in expected}) == len(expected)
    for prefetch in (0, 1, 2, 5):
        found = run(train, prefetch, noisy, batch_size)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_only_transforms_that_draw_from_the_process_leave_the_background_thread(train: MemmapDataset) -> None:
    def threads(transform: Callable[[Any], Any]) -> list[str]:
        names = []

        def named(batch: Any) -> Any:
            names.append(threading.current_thread().name)
            return transform(batch)

        for _ in MemmapLoader(train, 15, transform=named):
            torch.rand(1)
        return names

    ours = threads(RandomResizedCrop(8))
    assert ours == [FEEDER] * 6
    assert threads(noisy) == [FEEDER] + [threading.current_thread().name] * 5


def test_a_transform_that_puts_the_generators_state_back_leaves_the_background_thread_too(train: MemmapDataset) -> None:
    # in the background thread it would seed, and rewind, what the training draws from
    names = []

    def forked(batch: Any) -> torch.Tensor:
        names.append(threading.current_thread().name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(batch.rows[0]))
            return batch.images.float() + torch.randn(3)[:, None, None]

    def seeded(batch: Any) -> torch.Tensor:
        names.append(threading.current_thread().name)
        return batch.images.float() + torch.rand(3, generator=torch.Generator().manual_seed(1))[:, None, None]

    expected = run(train, 0, forked, 15)
    names.clear()
    assert all(torch.equal(a, b) for a, b in zip(run(train, 2, forked, 15), expected, strict=True))
    assert names == 2 * ([FEEDER] + [threading.current_thread().name] * 5)
    names.clear()
    list(MemmapLoader(train, 15, transform=seeded))
    assert names == [FEEDER] * 6


@pytest.mark.parametrize("in_place", [False, True])
def test_a_transform_that_begins_to_draw_at_a_later_batch(train: MemmapDataset, in_place: bool) -> None:
    def late(batch: Any) -> Any:
        if batch.rows[0] < 6:
            return batch.pixels.float()
        pixels = batch.pixels.add_(1).float() if in_place else batch.pixels.float()
        return pixels + torch.rand(len(batch))[:, None, None, None]

    def epoch(prefetch: int, transform: Any = late) -> list[Any]:
        torch.manual_seed(3)
        found = []
        for batch in MemmapLoader(train, batch_size=2, transform=transform, prefetch=prefetch):
            found.append(batch)
            torch.rand(5)  # as the training does
        return found

    expected = epoch(0)
    for prefetch in (1, 4):
        if not in_place:
            # a program's own function is watched within one of ours, too
            assert all(a.equal(b) for a, b in zip(epoch(prefetch, Compose([late])), expected, strict=True))
        if in_place:
            with pytest.raises(
                RuntimeError, match=r"draws from torch's generator for the first time in this epoch: give it"
            ):
                epoch(prefetch)
        else:
            assert all(a.equal(b) for a, b in zip(epoch(prefetch), expected, strict=True))


def test_a_compiled_transform_stays_compiled(train: MemmapDataset) -> None:
    calls = []

    def backend(graph: Any, inputs: Any) -> Any:
        def compiled(*given: Any) -> Any:
            calls.append(threading.current_thread().name)
            return graph(*given)

        return compiled

    torch.compiler.reset()
    change = torch.compile(lambda images: images.float() * 2, backend=backend, fullgraph=True)
    made = list(MemmapLoader(train, 15, transform=lambda batch: change(batch.images)))
    assert len(made) == len(calls) == 6


MODES: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "default device": lambda: torch.device("meta"),
    "all": lambda: nested(torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.device("meta")),
    "none": contextlib.nullcontext,
}


@contextlib.contextmanager
def nested(*contexts: Any) -> Any:
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_transform_runs_under_the_modes_of_the_thread_that_began_the_epoch(
    train: MemmapDataset, mode: str, prefetch: int
) -> None:
    weight = torch.ones(3, 3, requires_grad=True)
    seen: list[tuple[Any, ...]] = []

    def transform(batch: Any) -> torch.Tensor:
        made = batch.images.float().mean((-1, -2)) @ weight
        seen.append((made.dtype, made.requires_grad, made.is_inference(), torch.empty(0).device.type, Modes.here()))
        return made

    with MODES[mode]():
        iterator = iter(MemmapLoader(train, 30, transform=transform, prefetch=prefetch))
        expected = Modes.here()
        plain = torch.zeros(2, 3, device="cpu") @ weight
        here = (plain.dtype, plain.requires_grad, plain.is_inference(), torch.empty(0).device.type, expected)
    # those of the epoch's begin, not of the step
    assert len(list(iterator)) == 3
    assert seen == [here] * 3


def test_modes_are_left_as_they_were() -> None:
    before = Modes.here()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        other = Modes.here()
    with other.entered():
        assert Modes.here() == other
    assert Modes.here() == before


def test_an_iterator_that_is_dropped_before_its_first_batch_ends_its_thread(train: MemmapDataset) -> None:
    loader = MemmapLoader(train, 15, transform=noisy)
    iterators = [iter(loader) for _ in range(3)]
    loader.close()
    del iterators
    assert not [thread for thread in threading.enumerate() if thread.name == FEEDER]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("error", [RuntimeError, StopIteration])
def test_a_failing_transform_names_its_rows(train: MemmapDataset, prefetch: int, error: type[Exception]) -> None:
    def fail(batch: Any) -> Any:
        if 4 in batch.rows.tolist():
            raise error("of the transform")
        return batch

    with pytest.raises(RuntimeError) as caught:
        list(MemmapLoader(train, 3, transform=fail, prefetch=prefetch))
    assert caught.value.__notes__ == [f"The transform failed on these rows of {train.path}: [3, 4, 5]"]


def test_draws_noticed_in_one_thread_do_not_make_torch_compile_begin_again(train: MemmapDataset, tune: Tune) -> None:
    tune(transformed_group_bytes=1)  # no two batches in one go
    # one thread enters and leaves a mode, as torch.compile does, and the feeder's draws are watched from within to beyond
    is_watched, is_left = threading.Event(), threading.Event()

    def held(batch: Any) -> Any:
        if batch.rows[0]:
            is_watched.set()
            assert is_left.wait(60)
        return batch

    batches = iter(MemmapLoader(train, 45, transform=held, prefetch=1))
    with BaseTorchDispatchMode():
        next(batches)
        assert is_watched.wait(60)
    is_left.set()
    next(batches)

    compiled = torch.compile(lambda images: images + 1, backend="eager")
    compiled(torch.ones(2))
    with torch._dynamo.config.patch(error_on_recompile=True), Draws():
        compiled(torch.ones(2))
