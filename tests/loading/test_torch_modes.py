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

from reader import ColorJitter, Compose, MemmapDataset, MemmapLoader, RandomHorizontalFlip, RandomResizedCrop
from reader.loading.finish import Modes

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


def test_functions_of_the_program_run_in_the_thread_of_the_loop_and_ours_before_them_ahead(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, list[str]] = {"crop": [], "of the program": [], "flip": []}

    def watch(kind: type, name: str) -> None:
        call = kind.__call__

        def watched(self: Any, batch: Any) -> Any:
            names[name].append(threading.current_thread().name)
            return call(self, batch)

        monkeypatch.setattr(kind, "__call__", watched)

    def of_the_program(batch: Any) -> Any:
        names["of the program"].append(threading.current_thread().name)
        return batch

    watch(RandomResizedCrop, "crop")
    watch(RandomHorizontalFlip, "flip")
    here = threading.current_thread().name
    for prefetch, ahead in ((2, FEEDER), (0, here)):
        transform = Compose([RandomResizedCrop(8), of_the_program, RandomHorizontalFlip()])
        list(MemmapLoader(train, 15, transform=transform, prefetch=prefetch, threads=1))
        assert names == {"crop": [ahead] * 6, "of the program": [here] * 6, "flip": [here] * 6}
        names.update((name, []) for name in names)


def test_a_transform_that_puts_the_generators_state_back_gives_the_same_for_any_prefetch(train: MemmapDataset) -> None:
    # in a background thread it would seed, and rewind, what the training draws from
    def forked(batch: Any) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(batch.rows[0]))
            return batch.images.float() + torch.randn(3)[:, None, None]

    expected = run(train, 0, forked, 15)
    assert all(torch.equal(a, b) for a, b in zip(run(train, 2, forked, 15), expected, strict=True))


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
        assert all(a.equal(b) for a, b in zip(epoch(prefetch, Compose([late])), expected, strict=True))
        assert all(a.equal(b) for a, b in zip(epoch(prefetch), expected, strict=True))


def test_an_error_behind_steps_that_leave_no_batch_names_its_rows(train: MemmapDataset) -> None:
    def fail(made: Any) -> Any:
        raise RuntimeError("of the program")

    with pytest.raises(RuntimeError) as caught:
        list(MemmapLoader(train, 3, transform=Compose([ColorJitter(0.1), lambda batch: batch.images, fail])))
    assert caught.value.__notes__ == [f"The transform failed on these rows of {train.path}: [0, 1, 2]"]


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
    others = {*threading.enumerate()}  # of tests whose iterators are not collected yet
    loader = MemmapLoader(train, 15, transform=noisy)
    iterators = [iter(loader) for _ in range(3)]
    loader.close()
    del iterators
    assert not [thread for thread in threading.enumerate() if thread.name == FEEDER and thread not in others]


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
