"""One pass over a loader's batches, in the caller's thread: takes what the feeder made, and finishes what it left to the caller.

Knows where the pass is and who runs the transform; never which rows come, nor where they are read from.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, NamedTuple

from reader.dataset.dataset import MemmapDataset
from reader.dataset.samples import Transform
from reader.epoch import in_epoch, inside, loop_runs, on_threads_of, row_source, stamped
from reader.format.errors import WouldDraw
from reader.loading.frameworks import AccelerateState
from reader.loading.prefetch import Claim, Feed, without_thread
from reader.loading.producer import Group, Unfinished
from reader.loading.sample_transform import SampleTransform
from reader.loading.schedule import Schedule
from reader.loading.state import PassState
from reader.loading.torch_modes import Draws, Modes
from reader.memory.parts import in_parts
from reader.profiling import stage
from reader.rows import rows_named
from reader.store import Batch, ImageBatch, RaggedBatch, plain
from reader.transforms.composition import flat, in_turn


class Pass(NamedTuple):
    """What a pass begins with.

    progress: where it begins; kept up to date.
    source: makes the groups, in a thread of its own where prefetch is not 0.
    finish: what is left to do with each batch.
    schedule: its steps, whatever other passes have.
    """

    progress: PassState
    source: Callable[[Claim], Iterator[Group]]
    finish: Finish
    schedule: Schedule


class Iteration:
    """One pass: gives what the feeder made, in order. Dropped, it ends its thread.

    Args:
        begun: the pass.
        again: begins that of another epoch in its place, where that was set before a batch was taken.
        feeds: has the thread's feed in it while it runs, for who closes the loader.
    """

    def __init__(
        self,
        begun: Pass,
        again: Callable[[int], Pass],
        *,
        prefetch: int,
        feeds: set[Feed[Group]],
    ) -> None:
        self._again, self._prefetch, self._feeds = again, prefetch, feeds
        self._accelerate = AccelerateState()
        self._open(begun)

    def _open(self, begun: Pass) -> None:
        self._progress, source, self._finish, self._schedule = begun
        self._begin = self._progress.position
        self._ready: deque[tuple[object, int]] = deque()
        self._failed = False
        self._feed: Feed[Group] | None = None
        self._source: Iterator[Group] = iter(())
        if not self._prefetch:
            self._finish.asked.put(None)
            self._source = source(without_thread)
        else:
            self._feed = Feed(source, self._prefetch, self._finish.asked, self._feeds)
            # an abandoned iterator is collected and ends its thread
            self._feed.end_with(self)

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        if self._progress.moved_to is not None:
            self._end()
            self._open(self._again(self._progress.moved_to))
        self._accelerate.begin()
        if not self._ready or (self._feed is not None and not self._feed.is_open):
            try:
                group = self._feed.take() if self._feed else next(self._source, None)
            except BaseException as e:
                # Ctrl-C while it waits for the thread does not end the epoch
                self._failed = isinstance(e, Exception) or self._feed is None or not self._feed.is_alive
                raise
            if group is None:
                # after an error the epoch is not done: its state stays at the batch that could not be made
                self._progress.finished = not self._failed
                self._accelerate.end()
                raise StopIteration
            self._ready.extend(group)
        item, position = self._ready[0]
        if isinstance(item, Unfinished):
            try:
                item = self._finish(item.make(), item.start)
            except Exception:
                self._end()
                raise
        is_over = self._schedule.is_over(position)
        if is_over:
            self._accelerate.last(self._schedule.shared_rows(self._progress.position))
        # only now: what Ctrl-C keeps from being made is made again
        self._ready.popleft()
        self._progress.position, self._progress.is_taken, self._progress.is_over = position, True, is_over
        return item

    def __len__(self) -> int:
        return self._schedule.steps_left(self._begin)

    @property
    def is_empty(self) -> bool:
        """Say whether it began at the beginning of an epoch and gave no batch."""
        return not self._begin and not self._progress.is_taken

    @property
    def ready(self) -> int:
        """Batches left of the current group: so many steps need nothing from the thread."""
        return len(self._ready)

    @property
    def is_filled(self) -> bool:
        """Say whether all that may be gathered ahead is; while it stays so, the loop is slower than the loader."""
        return self._feed is None or self._feed.is_idle

    def _end(self) -> None:
        """Give nothing more, as after an error in the thread."""
        self._failed = True
        self._ready.clear()
        if self._feed:
            self._feed.stop()
        self._feed, self._source = None, iter(())


class Finish:
    """Runs the transform of an epoch's batches, and gives the caller the form that it wants.

    On the CPU the first one runs in the feeder thread while the caller waits for it, as if it ran there. If it drew from a
    generator of the process, which the training uses too, the others run in the caller's thread: in the feeder's they would
    draw whenever they come to it. All of them run under torch's modes of the thread that began the epoch.

    Batches for a CUDA device are sent as they are, and finished there in the caller's thread. Where their rows are read from
    levels, their crops are made before they are sent, on the host.
    """

    def __init__(
        self,
        dataset: MemmapDataset,
        transform: Transform | None,
        *,
        epoch: int,
        seed: int,
        as_tuple: bool,
        as_dict: tuple[str, str] | None,
        threads: int,
        on_device: bool = False,
        source: object = None,
    ) -> None:
        if source is not None and not begins_with_crop(transform):
            raise ValueError(
                "this loader reads levels, for a transform that begins with RandomResizedCrop or ResizeCenterCrop. Make"
                f" another loader for {transform!r}."
            )
        # what crops read their rows from; None: from the batch
        self._source, self._on_device = source, on_device
        self._chain = [] if transform is None else flat([transform])
        if on_device and source is not None:
            rest = self._chain[1:]
            transform = functools.partial(in_turn, rest) if rest else None
        self._dataset, self._transform, self._threads = dataset, transform, threads
        self._epoch, self._seed, self._as_tuple, self._as_dict = epoch, seed, as_tuple, as_dict
        self._modes, self._caller = Modes.here(), threading.get_ident()
        # holds an item once the caller waits for the first batch, or has stopped waiting
        self.asked: SimpleQueue[object] = SimpleQueue()
        self._is_first, self._draws = True, False

    def __call__(self, batch: Batch, start: int) -> object:
        """Finish a batch; start: position of its first row in the order of the epoch."""
        made: object = batch
        self._dataset.opened_store.with_texts(batch)
        if self._transform is not None or not self._as_tuple:
            stamped(batch, epoch=self._epoch, position=start, seed=self._seed)
        if self._transform is not None:
            made = self._run(self._transform, batch)
        if self._as_tuple and isinstance(made, ImageBatch | RaggedBatch):
            made = plain(made, by_name=self._dataset.names_targets)
        if self._as_dict is not None and isinstance(made, tuple) and len(made) == 2:
            return dict(zip(self._as_dict, made, strict=True))
        return made

    def _run(self, transform: Transform, batch: Batch) -> object:
        """Call a transform in what it is to run in."""
        # which row it was, the transform of samples says itself
        named = rows_named(self._dataset.path, None if isinstance(transform, SampleTransform) else batch.rows)
        with (
            named,
            stage("transform"),
            in_epoch(self._epoch),
            inside(row_source, self._source),
            on_threads_of(self._threads),
            self._modes.entered(),
        ):
            return self._transformed(transform, batch)

    def _transformed(self, transform: Transform, batch: Batch) -> object:
        """Call the transform; what it does to each row by itself, on the CPU, on several threads."""
        if self._threads == 1 or batch.pixels.device.type != "cpu":
            return _called(transform, batch)

        def in_modes(chain: list[Transform], part: object) -> object:
            with self._modes.entered():
                return in_turn(chain, part)

        made: object = batch
        # what the compiled part makes of a whole batch; it does not move masks
        is_full_batch = not _has_masks(batch)
        for is_in_parts, run in itertools.groupby(flat([transform]), functools.partial(_is_in_parts, is_full_batch)):
            chain = list(run)
            call = functools.partial(in_modes, chain)
            # parts are joined to images of one size
            is_one_size = isinstance(made, ImageBatch) or not getattr(chain[0], "keeps_sizes", False)
            is_cut = is_in_parts and isinstance(made, ImageBatch | RaggedBatch) and is_one_size
            made = _called(functools.partial(in_parts, call, threads=self._threads) if is_cut else call, made)
        return made

    def ahead(self, batch: Batch, start: int) -> object:
        """Finish a batch ahead of the caller, or leave it to the caller's thread; for a device, finish what is sent."""
        if self._on_device:
            if self._source is None:
                return batch
            return self._run(self._chain[0], stamped(batch, epoch=self._epoch, position=start, seed=self._seed))
        if self._transform is None:
            return self(batch, start)
        if self._draws:
            return Unfinished(lambda: batch, start)
        if not self._is_first:
            with inside(loop_runs, threading.get_ident() != self._caller):
                return self._watched(batch, start)
        self.asked.get()
        self._is_first = False
        with Draws() as draws:
            made = self(batch, start)
        self._draws = draws.are_any or _seeds_process(self._transform)
        return made

    def _watched(self, batch: Batch, start: int) -> object:
        """Finish a batch; if the transform draws for the first time, leave it and later ones to the caller's thread."""
        if _is_ours(self._transform):
            return self(batch, start)
        if threading.get_ident() == self._caller:
            # with prefetch=0: between the draws of the loop, as with any other
            return Unfinished(lambda: batch, start)
        version = batch.pixels._version
        try:
            with Draws(are_stopped=True):
                return self(batch, start)
        except WouldDraw:
            self._draws = True
        if batch.pixels._version != version:
            raise RuntimeError(
                "the transform changes its batch in place, and then draws from torch's generator for the first time in this"
                " epoch: give it a torch.Generator of its own, or the loader prefetch=0."
            )
        return Unfinished(lambda: batch, start)


def begins_with_crop(transform: object) -> bool:
    """Say whether all that a transform needs of a row is the box that its first step crops."""
    first = None if transform is None else first_step(transform)
    return _is_of_reader(first) and getattr(first, "reads_levels", False)


def first_step(transform: object) -> Transform:
    """Return the transform that is called first."""
    return flat([transform])[0]


def _is_ours(transform: object) -> bool:
    """Say whether a transform is of this package, and all that it calls: those draw nothing from torch's generator."""
    within = getattr(transform, "transforms", [])
    return _is_of_reader(transform) and all(map(_is_ours, within))


def _seeds_process(transform: object) -> bool:
    """Say whether a transform of this package, or one that it calls, seeds generators of the process for each image."""
    within = getattr(transform, "transforms", [])
    return _is_of_reader(transform) and (
        getattr(transform, "needs_one_thread", False) or any(map(_seeds_process, within))
    )


def _is_by_row(transform: object) -> bool:
    """Say whether a transform, and all that it calls, is of this package and makes of a row the same in any batch."""
    is_called_once = getattr(transform, "needs_full_batch", False) or getattr(transform, "has_own_threads", False)
    return (
        _is_of_reader(transform) and not is_called_once and all(map(_is_by_row, getattr(transform, "transforms", [])))
    )


def _is_in_parts(is_full_batch: bool, transform: object) -> bool:
    """Say whether a transform is called with some rows at a time; is_full_batch: not where the compiled part takes a batch."""
    return _is_by_row(transform) and not (is_full_batch and getattr(transform, "is_compiled", False))


def _has_masks(batch: Batch) -> bool:
    is_beside = isinstance(batch, RaggedBatch) and batch.mask_offsets is not None
    return is_beside or (batch.extras is not None and batch.extras.get("masks", None) is not None)


def _is_of_reader(transform: object) -> bool:
    return type(transform).__module__.startswith(("reader.transforms.", "reader.loading."))


def _called(transform: Transform, batch: object) -> object:
    try:
        return transform(batch)
    except StopIteration as e:
        raise RuntimeError("the transform raised StopIteration, which would end the loop as if all were read.") from e
