"""What happens in the feeder thread: the steps of an epoch become batches for the loop, on the CPU or on their way to a device.

A generator that waits at a yield keeps its locals alive: none of them may hold a batch there, or one more buffer than
needed is in use.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch

from reader.device.resident import Resident, ResidentImages
from reader.device.transfer import CudaCopier
from reader.loading.host_batches import Gathering, HostBatches
from reader.loading.prefetch import Begun, Claim, overlapped, paced
from reader.loading.schedule import Schedule
from reader.profiling import stage
from reader.rows import Rows, Steps
from reader.store import Batch

# What the loop gets, with the global position after it.
Made = tuple[object, int]
Group = list[Made]


class FinishBatch(Protocol):
    """What is done with each batch, as `finish.Finish`."""

    is_left: bool

    def ahead(self, batch: Batch, start: int) -> Any:
        """Do what is done here; of a batch for a device return the batch to send."""
        ...

    def here(self, made: object, start: int, rows: torch.Tensor | None) -> object:
        """Do the rest."""
        ...


class Unfinished(NamedTuple):
    """A batch that the caller's thread makes and finishes; start: position of its first row in the epoch. rows: int64[B]."""

    make: Callable[[], object]
    start: int
    rows: torch.Tensor | None = None


class Producer:
    """Makes the batches of a schedule's steps.

    Args:
        device: where they are put.
        prefetch: batches made ahead.
        resident: the store on the device, where it is there.
    """

    def __init__(
        self,
        schedule: Schedule,
        gathering: Gathering,
        device: torch.device,
        *,
        prefetch: int,
        resident: Resident | ResidentImages | None,
    ) -> None:
        self._schedule, self._gathering, self._device = schedule, gathering, device
        self._prefetch, self._resident = prefetch, resident

    def groups(self, epoch: int, steps: Iterator[Steps], finish: FinishBatch, claim: Claim) -> Iterator[Group]:
        """Yield groups of (what the loop gets, global position after it).

        What is still to be finished, in the caller's thread, comes as Unfinished.
        """
        if self._resident is not None:
            yield from paced(_later(self._resident, steps, finish), claim)
            return
        # slots in all: of the copies in progress, depth + 1, of the batch that is sent next, and of the one begun behind it
        depth = max(0, self._prefetch - 1)
        copier = CudaCopier(self._device, depth=depth) if self._device.type == "cuda" else None
        try:
            yield from overlapped(self._begun(epoch, steps, finish, copier), claim)
        finally:
            if copier is not None:
                copier.drain()

    def _begun(
        self, epoch: int, steps: Iterator[Steps], finish: FinishBatch, copier: CudaCopier | None
    ) -> Iterator[Begun[Group]]:
        place, steps = self._gathering.begin_pass(self._schedule, epoch, steps)
        try:
            for group in steps:
                with contextlib.nullcontext() if copier is None else copier.on_side_stream():
                    batches = self._gathering.begin(group.batches, place)
                is_complete = batches.is_complete
                groups = _finished(batches, group, finish, copier)
                del batches
                yield Begun(groups, is_complete)
                del groups
        finally:
            place.close()


def _later(resident: Resident | ResidentImages, steps: Iterator[Steps], finish: FinishBatch) -> Iterator[Group]:
    for group in steps:
        rows = zip(group.batches, group.starts, group.positions, strict=True)
        yield [
            (Unfinished(functools.partial(_gathered, resident, r, finish, start), start, torch.from_numpy(r)), after)
            for r, start, after in rows
        ]


def _gathered(resident: Resident | ResidentImages, rows: Rows, finish: FinishBatch, start: int) -> object:
    with stage("gather"):
        batch = resident.gather(rows)
    return finish.ahead(batch, start)


def _finished(begun: HostBatches, steps: Steps, finish: FinishBatch, copier: CudaCopier | None) -> Iterator[Group]:
    """Wait for a group's pixels and give it, ready for the caller or on its way to the device."""
    made: list[object] = []
    try:
        for batch, start in zip(begun, steps.starts, strict=True):
            item = finish.ahead(batch, start)
            if copier is not None:
                made.append(Unfinished(copier.send(item), start, batch.rows))
            elif finish.is_left:
                made.append(Unfinished(functools.partial(_same, item), start, batch.rows))
            else:
                made.append(finish.here(item, start, batch.rows))
    except Exception:
        # a transform that raises does not take the batches before it along
        if made:
            yield _emptied(made, steps.positions)
        raise
    del batch, item
    yield _emptied(made, steps.positions)


def _same(made: object) -> object:
    return made


def _emptied(made: list[object], positions: list[int]) -> Group:
    pairs = list(zip(made, positions, strict=False))
    made.clear()
    return pairs
