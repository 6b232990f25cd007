"""The way to a CUDA device: no slot and no batch is overwritten while it is read, memory stays constant, errors are sentences.

The same invariants twice: on streams simulated on the CPU, and marked cuda. Taking out any guard makes both fail.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Tune
from late_streams import Event, Stream, World
from tensordict import TensorDict

from reader import ImageBatch, MemmapDataset, MemmapLoader, RaggedBatch
from reader.device import transfer
from reader.device.transfer import CudaCopier

# Each guard is needed under one of them at least.
SCHEDULES: dict[str, dict[str, Any]] = {
    "all late": {},
    "copies late": {"eager": ("kernels",)},
    "reads late": {"eager": ("copies",)},
    "by chance": {"seed": 0},
    "by chance again": {"seed": 1},
}


@pytest.fixture
def train(shared_store: Path, tune: Tune) -> MemmapDataset:
    # so small a batch would share its slot with others
    tune(transformed_group_bytes=1)
    return MemmapDataset(shared_store, as_tuple=False)


def expected(train: MemmapDataset, epochs: int) -> list[int]:
    loader = MemmapLoader(train, 10, shuffle="full", seed=0, as_tuple=False)
    return [zlib.crc32(batch.pixels.numpy()) for _ in range(epochs) for batch in loader]


def read_late(world: World, train: MemmapDataset, epochs: int, prefetch: int = 0) -> list[int]:
    """Have a kernel on the caller's stream take the checksum of each batch."""
    seen: list[int] = []
    loader = MemmapLoader(
        train, 10, shuffle="full", seed=0, device="cuda", prefetch=prefetch, residency="cache", as_tuple=False
    )
    for _ in range(epochs):
        for batch in loader:
            world.launch(batch.pixels, lambda memory: seen.append(zlib.crc32(memory)))
    world.finish()
    loader.close()
    return seen


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_batch_is_right_however_late_copies_and_reads_are(
    train: MemmapDataset, schedule: str, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(**SCHEDULES[schedule])
    world.install(monkeypatch)
    assert read_late(world, train, 30, prefetch) == expected(train, 30)
    # slots: as many as are ever in use at once, for all epochs
    assert len(world.pinned) <= prefetch + 2


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_batches_that_share_a_slot_are_right_however_late_copies_and_reads_are(
    train: MemmapDataset, schedule: str, prefetch: int, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = expected(train, 10)
    tune(transformed_group_bytes=3 * 10 * train.manifest.row_bytes)
    world = World(**SCHEDULES[schedule])
    world.install(monkeypatch)
    assert read_late(world, train, 10, prefetch) == right
    assert len(world.pinned) <= prefetch + 2
    [slot_bytes] = {memory.nbytes for memory in world.pinned.values()}
    assert 1 <= slot_bytes / (3 * 10 * train.manifest.row_bytes) <= 1.25


def _lease_is_dropped(patch: pytest.MonkeyPatch) -> None:
    send = CudaCopier.send

    def forgetful(self: CudaCopier, batch: Any) -> Any:
        sent = send(self, batch)
        self._in_flight[-1] = (self._in_flight[-1][0], None)
        return sent

    patch.setattr(CudaCopier, "send", forgetful)


def _no_wait_for_copies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Event, "query", lambda self: True)
    patch.setattr(Event, "synchronize", lambda self: None)
    patch.setattr(torch.cuda.Event, "query", lambda self: True)
    patch.setattr(torch.cuda.Event, "synchronize", lambda self: None)


def _no_wait_of_the_caller(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stream, "wait_event", lambda self, event: None)
    patch.setattr(torch.cuda.Stream, "wait_event", lambda self, event: None)


GUARDS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "a slot is leased until its copy has ended": _lease_is_dropped,
    "the copier waits for the copy": _no_wait_for_copies,
    "copies end before the slots go to the next epoch": lambda patch: patch.setattr(
        CudaCopier, "drain", lambda self: None
    ),
    "the caller's stream waits for the copy": _no_wait_of_the_caller,
    "the caller's stream is recorded": lambda patch: patch.setattr(transfer, "recorded", lambda batch: batch),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_any_guard_batches_are_wrong(train: MemmapDataset, guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = expected(train, 5), []
    for schedule in SCHEDULES.values():
        with monkeypatch.context() as patch:
            world = World(**schedule)
            world.install(patch)
            GUARDS[guard](patch)
            wrong += [schedule] * (read_late(world, train, 5) != right)
    assert wrong


@pytest.mark.parametrize("prefetch", [0, 2])
def test_device_memory_is_constant_though_the_caller_launches_faster_than_the_device_works(
    train: MemmapDataset, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(eager=("copies",))
    world.install(monkeypatch)
    read_late(world, train, 100, prefetch)
    # used by the device, queued, being made, in the caller's hands
    assert world.allocated <= transfer.MOST_LAUNCHED + prefetch + 4
    assert len(world.streams) == 2


@pytest.mark.parametrize(
    "name, broken",
    [("MOST_LAUNCHED", lambda: 1 << 30), ("side_stream", lambda: transfer.side_stream.__wrapped__)],
    ids=["no limit of what is launched", "a stream and a limit an epoch"],
)
def test_device_memory_grows_without_either_guard(
    train: MemmapDataset, name: str, broken: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(eager=("copies",))
    world.install(monkeypatch)
    monkeypatch.setattr(transfer, name, broken())
    read_late(world, train, 100)
    assert world.allocated > 100


def test_every_tensor_of_a_batch_is_sent_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = list[torch.Tensor]()
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: recorded.append(self))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    zeros, further = torch.zeros(4, 1), TensorDict({"a": torch.zeros(4), "b": {"c": torch.ones(4)}}, batch_size=[4])
    batches = [
        ImageBatch(zeros, zeros, zeros.clone(), further, zeros.clone(), batch_size=[4]),
        RaggedBatch(zeros, zeros, zeros, zeros, further, zeros, zeros, batch_size=[]),
    ]
    for batch in batches:
        sent = transfer.send_batch(batch, torch.device("meta"))
        recorded.clear()
        assert transfer.recorded(sent) is sent
        assert {tensor.device.type for tensor in recorded} == {"meta"}
        assert len(recorded) == len(list(sent.values(True, True))) == len(list(batch.values(True, True)))
        assert sent.extras["b", "c"].device.type == sent.device.type == "meta"


def test_a_slot_is_held_while_its_copy_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    World().install(monkeypatch)
    slot, found = torch.zeros(1), list[bool]()
    slot_left = weakref.ref(slot)

    class End:
        """The end of copies that are still in progress."""

        def record(self, stream: object) -> None:
            """Stand behind them."""

        def synchronize(self) -> None:
            found.append(slot_left() is not None)

    copier = CudaCopier(torch.device("cuda", 0), depth=0)
    copier._in_flight.append((End(), slot))  # type: ignore[arg-type]
    del slot
    monkeypatch.setattr(transfer, "sleeping_event", End)
    copier.drain()
    assert found == [True]
    assert slot_left() is None


# -- errors


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_of_cuda_in_the_background_comes_behind_the_batches_before_it(
    train: MemmapDataset, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.install(monkeypatch)
    sent, count = transfer.send_batch, iter(range(100))

    def broken(batch: Any, device: torch.device) -> Any:
        if next(count) == 3:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be\n")
        return sent(batch, device)

    monkeypatch.setattr(transfer, "send_batch", broken)
    loader = MemmapLoader(train, 10, device="cuda", prefetch=prefetch, as_tuple=False)
    taken = 0
    with pytest.raises(RuntimeError, match="an illegal memory access"):  # noqa: PT012
        for _ in loader:
            taken += 1
    assert taken == 3
    loader.close()


# -- on a device

# Of the device's clock, which no GPU turns faster than 3 GHz: a millisecond and more, longer than the host takes for a batch
# of 30 kB, so that work piles up on the device.
_CYCLES = 4_000_000


@contextlib.contextmanager
def late_on_device(patch: pytest.MonkeyPatch, schedule: str) -> Iterator[Callable[[], None]]:
    """Make copies late; yields what makes a read late."""
    sent = transfer.send_batch

    def slowly(batch: Any, device: torch.device) -> Any:
        torch.cuda._sleep(_CYCLES)
        return sent(batch, device)

    if schedule == "copies late":
        patch.setattr(transfer, "send_batch", slowly)
    yield (lambda: torch.cuda._sleep(_CYCLES)) if schedule == "reads late" else lambda: None
    torch.cuda.synchronize()


def read_on_device(train: MemmapDataset, epochs: int, sleep: Callable[[], None]) -> list[list[int]]:
    """Return the weighted sum of each batch's bytes, taken on the caller's stream."""
    weight = torch.arange(10 * 3072, device="cuda").remainder_(8191)
    sums = []
    loader = MemmapLoader(train, 10, shuffle="full", seed=0, device="cuda", residency="cache", as_tuple=False)
    for _ in range(epochs):
        for batch in loader:
            sleep()
            sums.append((batch.pixels.view(-1).long() * weight[: batch.pixels.numel()]).sum())
    return torch.stack(sums).tolist()


def expected_sums(train: MemmapDataset, epochs: int) -> list[int]:
    weight = torch.arange(10 * 3072).remainder_(8191)
    loader = MemmapLoader(train, 10, shuffle="full", seed=0, as_tuple=False)
    return [int((b.pixels.view(-1).long() * weight[: b.pixels.numel()]).sum()) for _ in range(epochs) for b in loader]


@pytest.mark.cuda
@pytest.mark.parametrize("schedule", ["copies late", "reads late"])
def test_thousands_of_batches_are_right_on_a_device(
    train: MemmapDataset, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with late_on_device(monkeypatch, schedule) as sleep:
        assert read_on_device(train, 300, sleep) == expected_sums(train, 300)


@pytest.mark.cuda
@pytest.mark.parametrize("guard", GUARDS)
def test_without_any_guard_batches_are_wrong_on_a_device(
    train: MemmapDataset, guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = expected_sums(train, 20), []
    for schedule in ("copies late", "reads late"):
        with monkeypatch.context() as patch, late_on_device(patch, schedule) as sleep:
            GUARDS[guard](patch)
            wrong += [schedule] * (read_on_device(train, 20, sleep) != right)
    assert wrong


@pytest.mark.cuda
def test_device_and_pinned_memory_are_constant_over_a_hundred_epochs(train: MemmapDataset) -> None:
    loader = MemmapLoader(train, 10, shuffle="full", seed=0, device="cuda", residency="cache", as_tuple=False)
    reserved, pinned = [], []
    for _ in range(100):
        for batch in loader:
            batch.pixels.float().sum()
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
        pinned.append(torch.cuda.host_memory_stats()["num_host_alloc"])
    assert reserved[-1] == reserved[10]
    # of targets and row numbers, a few blocks more when copies happen to be late for once
    assert pinned[-1] <= pinned[10] + 4


_ON_THE_SECOND = """
import sys, torch
from reader import MemmapDataset, MemmapLoader
data = MemmapDataset(sys.argv[1])
residency, prefetch = sys.argv[2], int(sys.argv[3])
loader = MemmapLoader(data, 10, shuffle="full", seed=0, device="cuda:1", residency=residency, prefetch=prefetch, as_tuple=False)
for _ in range(3):
    for batch in loader:
        assert batch.pixels.device == torch.device("cuda", 1)
        batch.pixels.float().sum()
# one that is abandoned, and one that is closed
next(iter(loader))
batches = iter(loader)
next(batches)
loader.close()
del batches, batch, loader
print(torch._C._cuda_hasPrimaryContext(0), torch._C._cuda_hasPrimaryContext(1))
"""


@pytest.mark.cuda
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("residency", ["cache", "disk", "gpu"])
def test_a_loader_for_the_second_device_leaves_no_context_on_the_first(
    shared_store: Path, residency: str, prefetch: int
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    words = [sys.executable, "-c", _ON_THE_SECOND, str(shared_store), residency, str(prefetch)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.cuda
def test_without_a_thread_the_device_of_the_caller_stays_the_current_one(shared_store: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    for batch in MemmapLoader(MemmapDataset(shared_store), 10, device="cuda:1", prefetch=0, as_tuple=False):
        assert batch.pixels.device == torch.device("cuda", 1)
        assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("prefetch", [0, 2])
def test_only_a_thread_of_its_own_is_given_the_device(
    train: MemmapDataset, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    world = World(eager=("copies", "kernels"))
    world.install(monkeypatch)
    monkeypatch.setattr(transfer.cuda, "set_device", lambda device: threads.append(threading.current_thread().name))
    loader = MemmapLoader(train, 10, device="cuda", prefetch=prefetch, residency="cache", as_tuple=False)
    assert len(list(loader)) == 9
    assert threads == ["pixpack-feeder"] * (prefetch > 0)
