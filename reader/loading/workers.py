"""Batches of transforms of single samples, made in the worker processes of a torch DataLoader that gets the loader's order.

A worker reads the rows of a step itself, from the mapped file, and makes of them what the loop gets.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, Sampler

from reader.buffers import FittingPool
from reader.dataset.dataset import MemmapDataset
from reader.loading.finish import Finish
from reader.loading.prefetch import Claim, paced
from reader.loading.producer import Group
from reader.loading.schedule import PlannedBatch

_log = logging.getLogger("reader")

# Tensors of up to this size are copied out of shared memory, where each holds an open file: a process may have few of these.
_COPIED_BYTES = 4 << 20


class StepBatches(Dataset[object]):
    """What a worker has: it makes the batch of a step."""

    def __init__(self, dataset: MemmapDataset, finish: Finish) -> None:
        self._dataset, self._finish = dataset, finish
        self._pool: FittingPool | None = None

    def __repr__(self) -> str:
        return f"{self._dataset.path}: {self._finish.transform!r}"

    def __getitem__(self, step: PlannedBatch) -> object:
        """Return what the loop gets at a step."""
        if self._pool is None:
            # samples are copies: the rows' memory is used again
            self._pool = FittingPool(keep=1, has_room=self._dataset.manifest.has_own_sizes)
        rows = self._dataset.store_rows(step.positions)
        return self._finish(self._dataset.opened_store.gather(rows, self._pool.lease), step.start)


def start_workers(
    steps: Iterator[PlannedBatch], batches: StepBatches, count: int, options: Mapping[str, Any]
) -> Callable[[Claim], Iterator[Group]] | None:
    """Start workers for the steps of a pass; returns what gives their groups, each of one batch.

    None: they cannot be started; the log says why.

    Args:
        batches: what each worker gets.
        count: of workers, 1 or more.
        options: of the DataLoader, such as prefetch_factor, what the program gave; None is as left out.
    """
    if reason := _reason_against(batches, options.get("multiprocessing_context") or start_method()):
        _log.warning("%r runs in this process, one sample after the other: %s.", batches, reason)
        return None
    sent: deque[PlannedBatch] = deque()
    given = {name: value for name, value in options.items() if value is not None}
    given["worker_init_fn"] = _WithoutInterrupts(given.get("worker_init_fn"))
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=_Sent(steps, sent),
        num_workers=count,
        collate_fn=_unchanged,
        # one of its own: the program's gives the same numbers with and without workers
        generator=torch.Generator(),
        **{"multiprocessing_context": start_method()} | given,
    )
    with _interrupts_blocked():
        made = [iter(loader)]
    return lambda claim: paced(_groups(made.pop(), sent), claim)


def start_method() -> str:
    """Return how workers are started: by fork where that is safe, unless multiprocessing.set_start_method says otherwise.

    A process that uses CUDA is not forked.
    """
    chosen: str | None = multiprocessing.get_start_method(allow_none=True)
    if chosen not in (None, "fork"):
        return chosen
    if not sys.platform.startswith("linux"):
        return chosen or "spawn"
    return "forkserver" if torch.cuda.is_initialized() else "fork"


def _reason_against(batches: StepBatches, method: str | BaseContext) -> str:
    """Say why no workers can be started; "": they can."""
    if multiprocessing.current_process().daemon:
        return "this is a worker itself, which cannot start others"
    if (method if isinstance(method, str) else method.get_start_method()) == "fork":
        return ""
    try:
        ForkingPickler.dumps(batches)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        return f"a worker that is not forked cannot get it ({e}). Define it at the top of a module"
    return ""


def _groups(made: Iterator[object], sent: deque[PlannedBatch]) -> Iterator[Group]:
    error: Exception | None = None
    try:
        for batch in made:
            yield [(pytree.tree_map_only(torch.Tensor, _own, batch), sent.popleft().after)]
            del batch
    except Exception as e:
        # its traceback, beside that of the worker in its text, would keep the workers until it is collected itself
        error = e.with_traceback(None)
    if error is not None:
        del made
        try:
            raise error
        finally:
            del error


class _Sent(Sampler[PlannedBatch]):
    """The steps of a pass, as the DataLoader sends them to workers; `sent` has those that did not come back."""

    def __init__(self, steps: Iterator[PlannedBatch], sent: deque[PlannedBatch]) -> None:
        self._steps, self._sent = steps, sent

    def __iter__(self) -> Iterator[PlannedBatch]:
        for step in self._steps:
            self._sent.append(step)
            yield step


class _WithoutInterrupts:
    """Prepares a worker: Ctrl-C is for the loop, which may go on."""

    def __init__(self, further: Callable[[int], object] | None) -> None:
        self._further = further

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self._further is not None:
            self._further(worker)


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let processes that are started inside begin with Ctrl-C blocked."""
    if os.name != "posix":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if tensor.nbytes <= _COPIED_BYTES else tensor


def _unchanged(batch: object) -> object:
    return batch
