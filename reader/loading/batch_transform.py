"""Calls the transform of a batch, converts the result to the loop's form, and chooses the thread for that.

Knows neither the order of rows, nor their place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from reader.dataset.dataset import Transform
from reader.device.transfer import DeviceBatch
from reader.epoch import in_epoch, on_threads_of, with_origin
from reader.planning.plan import EpochPlan
from reader.rows import rows_named
from reader.store import Batch, as_tuple
from reader.transforms.composition import apply_in_turn, flattened


class PendingBatch(NamedTuple):
    """A batch for the caller's thread to finish: the feeder's result, or the copy that it has started.

    start: position of its first row in the epoch. rows: int64[B], its rows in the store, for errors.
    """

    made: object
    start: int
    rows: torch.Tensor | None


class BatchTransform:
    """Runs the transform of an epoch's batches, partly in the feeder, and converts the result to the caller's form.

    `in_feeder` runs in the thread that gathers batches, `in_caller` in the caller's. On the CPU, leading steps of this
    package run in the feeder; a program's own steps may share generators with its training. The steps of a batch for a CUDA
    device run in the caller's thread, on its stream.

    Args:
        plan: plan of the epoch.
        transform: transform of the epoch.
        threads: threads for steps on the CPU.
        on_device: batches are sent to a CUDA device between `in_feeder` and `in_caller`.
    """

    def __init__(
        self,
        plan: EpochPlan,
        transform: Transform | None,
        *,
        as_tuple: bool,
        threads: int,
        on_device: bool = False,
    ) -> None:
        steps = [] if transform is None else flattened([transform])
        count = 0 if on_device else len(list(itertools.takewhile(_may_run_in_feeder, steps)))
        self._first, self._rest = steps[:count], steps[count:]
        # whether some work is left for the caller's thread
        self.is_left = on_device or bool(self._rest)
        self._dataset, self._epoch, self._seed = plan.dataset, plan.number, plan.seed
        # whether a transform or the caller may read the batch's origin
        self._is_seen = transform is not None or not as_tuple
        self._is_marked_last = self._is_seen and (on_device or not self._first)
        self._threads, self._as_tuple = threads, as_tuple
        self._by_name = plan.dataset._by_name

    def in_feeder(self, batch: Batch, start: int) -> Any:
        """Run the feeder's steps; their result goes to `in_caller`, or to a device first."""
        return self._run(self._first, self._with_origin(batch, start), batch.rows) if self._first else batch

    def in_caller(self, item: PendingBatch) -> object:
        """Run the other steps on the batch's device, and convert the result."""
        result, start, rows = item
        if isinstance(result, DeviceBatch):
            result = result()
        if self._is_marked_last and isinstance(result, Batch):
            result = self._with_origin(result, start)
        if self._rest:
            result = self._run(self._rest, result, rows)
        if self._as_tuple and isinstance(result, Batch):
            result = as_tuple(result, by_name=self._by_name)
        return result

    def _with_origin(self, batch: Batch, start: int) -> Batch:
        """Set the batch's origin, if a transform or the caller may read it."""
        return with_origin(batch, epoch=self._epoch, position=start, seed=self._seed) if self._is_seen else batch

    def _run(self, steps: list[Transform], result: object, rows: torch.Tensor | None) -> object:
        """Call steps of the transform with the epoch, threads and row names of the batch."""
        named = rows_named(self._dataset.path, rows)
        with named, in_epoch(self._epoch), on_threads_of(self._threads):
            try:
                return apply_in_turn(steps, result)
            except StopIteration as e:
                raise RuntimeError(
                    "the transform raised StopIteration, which would end the loop as if all were read."
                ) from e


def _may_run_in_feeder(transform: object) -> bool:
    """Return whether a transform and all that it calls are from this package: those use no generator of the process."""
    return all(map(_is_of_reader, _with_inner(transform)))


def _with_inner(transform: object) -> Iterator[object]:
    """Yield a transform and, if it is from this package, all transforms that it calls."""
    yield transform
    if _is_of_reader(transform):
        for each in getattr(transform, "transforms", []):
            yield from _with_inner(each)


def _is_of_reader(transform: object) -> bool:
    return type(transform).__module__.startswith(("reader.transforms.", "reader.loading."))
