"""Makes batches of transforms of single samples, in worker processes of a torch DataLoader that gets the loader's order.

A worker reads the rows of a step itself, from the store's files, and makes the batch that the loop gets.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data._utils import signal_handling

from reader.buffers import FittingPool
from reader.dataset.dataset import MemmapDataset
from reader.loading.finish import Finish
from reader.loading.prefetch import Claim, Group, paced
from reader.planning.plan import PlannedBatch

_log = logging.getLogger("pixpack")

# Tensors of up to this size are copied out of shared memory, where each holds an open file: a process may have few of these.
_COPIED_BYTES = 4 << 20


class StepBatches(Dataset[bytes]):
    """Makes the batch of a step in a worker."""

    def __init__(self, dataset: MemmapDataset, finish: Finish) -> None:
        self._dataset, self._finish = dataset, finish
        self._pool: FittingPool | None = None

    def __repr__(self) -> str:
        return f"{self._dataset.path}: {self._finish.transform!r}"

    def reason_against(self, method: str | BaseContext) -> str:
        """Say why workers that are started so cannot make batches, or not the same ones; "": they can."""
        if multiprocessing.current_process().daemon:
            return "this is a worker itself, which cannot start others"
        if (method if isinstance(method, str) else method.get_start_method()) == "fork":
            return ""
        main = sys.modules["__main__"]
        source = Path(getattr(main, "__file__", None) or os.devnull)
        if source.suffix == ".py" and "__main__" not in source.read_text(errors="replace"):
            return f'{source} has no `if __name__ == "__main__":`, and would run again in each worker'
        try:
            pickled = bytes(ForkingPickler.dumps(self))
        except Exception as e:
            return f"a worker that is not forked cannot get it ({e}). Define it at the top of a module"
        if not source.suffix and b"__main__" in pickled:
            return (
                "it is defined in this session, and workers that are not forked cannot find it: define it in a module"
            )
        return ""

    def __getitem__(self, step: PlannedBatch) -> bytes:
        """Return what the loop gets at a step, pickled: what cannot be sent is an error here, and nothing waits for it."""
        if self._pool is None:
            # samples are copies: the rows' memory is used again
            self._pool = FittingPool(keep=1)
        rows = self._dataset.store_rows(step.positions)
        batch = self._finish(self._dataset.opened_store.gather(rows, self._pool.lease), step.start)
        return bytes(ForkingPickler.dumps(batch))


class Workers:
    """Makes the batches of a pass in worker processes; a call gives its groups, each of one batch.

    Args:
        steps: of the pass.
        batches: what each worker gets.
        count: of workers, 1 or more.
        options: of the DataLoader, such as prefetch_factor, what the program gave; None is as left out.
    """

    def __init__(
        self, steps: Iterator[PlannedBatch], batches: StepBatches, count: int, options: Mapping[str, Any]
    ) -> None:
        self._sent: deque[PlannedBatch] = deque()
        given = {name: value for name, value in options.items() if value is not None}
        given["worker_init_fn"] = _WithoutInterrupts(given.get("worker_init_fn"))
        loader = DataLoader(
            batches,
            batch_size=None,
            sampler=_Sent(steps, self._sent),
            num_workers=count,
            collate_fn=_unchanged,
            # one of its own: the program's gives the same numbers with and without workers
            generator=torch.Generator(),
            **{"multiprocessing_context": start_method()} | given,
        )
        self._process = os.getpid()
        # whatever the program's default device is
        with _interrupts_blocked(), torch.device("cpu"):
            self._batches: Any = iter(loader)

    def __call__(self, claim: Claim) -> Iterator[Group]:
        """Give the groups, each when there is room for it."""
        return paced(self._groups(), claim)

    def stop(self) -> None:
        """End the workers, also in the middle of a transform; whoever waits for a batch then gets an error, in 5 s at most."""
        if os.getpid() != self._process:
            return
        if self._batches._worker_pids_set:
            # torch's handler of SIGCHLD would raise in the main thread for a worker that dies before it handles SIGTERM
            signal_handling._remove_worker_pids(id(self._batches))
            self._batches._worker_pids_set = False
        for worker in self._batches._workers:
            worker.terminate()

    def _groups(self) -> Iterator[Group]:
        try:
            for pickled in self._batches:
                batch = pytree.tree_map_only(torch.Tensor, _own, ForkingPickler.loads(pickled))
                yield [(batch, self._sent.popleft().after)]
                del batch
        except Exception as e:
            if re.search(r"shared memory|Bus error", str(e)):
                e.add_note(
                    "Workers pass batches through /dev/shm. Give it more room (docker run --shm-size=2g), or the loader"
                    " num_workers=0."
                )
            raise
        finally:
            # as when it is collected; a process that is forked later must not find it running
            if os.getpid() == self._process:
                self._batches._shutdown_workers()


def workers_for(
    steps: Iterator[PlannedBatch], batches: StepBatches, count: int, options: Mapping[str, Any]
) -> Workers | None:
    """Start `Workers`; None: they cannot be started, or would not draw as the caller's thread does; the log says why."""
    if reason := batches.reason_against(options.get("multiprocessing_context") or start_method()):
        _log.warning("%r runs in this process, one sample after the other: %s.", batches, reason)
        return None
    return Workers(steps, batches, count, options)


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


class _Sent(Sampler[PlannedBatch]):
    """Gives the steps of a pass to the DataLoader, which sends them to workers; `sent` has those that are with workers."""

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
    is_small = tensor.layout == torch.strided and tensor.nbytes <= _COPIED_BYTES
    return tensor.clone() if is_small else tensor


def _unchanged(batch: object) -> object:
    return batch
