"""What becomes of a batch: its transform is called, and it takes the form that the loop wants; and which thread does so.

Knows neither which rows come, nor where they are read from.
"""

from __future__ import annotations

import functools
import itertools
import threading
from queue import SimpleQueue

from reader.dataset.dataset import MemmapDataset
from reader.dataset.samples import Transform
from reader.epoch import in_epoch, inside, on_threads_of, row_source, stamped
from reader.format.errors import WouldDraw
from reader.loading.producer import Unfinished
from reader.loading.sample_transform import SampleTransform
from reader.loading.torch_modes import Draws, Modes
from reader.memory.parts import in_parts
from reader.profiling import stage
from reader.rows import rows_named
from reader.store import Batch, ImageBatch, RaggedBatch, plain
from reader.transforms.composition import flat, in_turn


class Finish:
    """Runs the transform of an epoch's batches, and gives the caller the form that it wants; may be sent to another process.

    The transform runs under torch's modes of the thread that began the epoch. Where rows are read from levels, and batches are
    for a CUDA device, `crop` makes the crops before they are sent, on the host.
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
        self._source, self.on_device = source, on_device
        chain = [] if transform is None else flat([transform])
        self.has_crop = on_device and source is not None
        if self.has_crop:
            self._crop, rest = chain[0], chain[1:]
            transform = functools.partial(in_turn, rest) if rest else None
        self._dataset, self.transform, self._threads = dataset, transform, threads
        self._epoch, self._seed, self._as_tuple, self._as_dict = epoch, seed, as_tuple, as_dict
        self._modes = Modes.here()

    def __call__(self, batch: Batch, start: int) -> object:
        """Finish a batch; start: position of its first row in the order of the epoch."""
        made: object = batch
        self._dataset.opened_store.with_texts(batch)
        if self.transform is not None or not self._as_tuple:
            stamped(batch, epoch=self._epoch, position=start, seed=self._seed)
        if self.transform is not None:
            made = self._run(self.transform, batch)
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

    def crop(self, batch: Batch, start: int) -> object:
        """Make the crops of a batch that is sent to a device next."""
        return self._run(self._crop, stamped(batch, epoch=self._epoch, position=start, seed=self._seed))


class FinishAhead:
    """Finishes batches ahead of the caller, in the feeder thread, or leaves them to the caller's thread.

    On the CPU the first one is finished while the caller waits for it, as if it ran there. If its transform drew from a generator
    of the process, which the training uses too, the others are left to the caller's thread: in the feeder's they would draw
    whenever they come to it. So are transforms of single samples, which seed those generators. Batches for a CUDA device are sent
    as they are, and finished there in the caller's thread.
    """

    def __init__(self, finish: Finish) -> None:
        self._finish, self._caller = finish, threading.get_ident()
        # holds an item once the caller waits for the first batch, or has stopped waiting
        self.asked: SimpleQueue[object] = SimpleQueue()
        self._is_first, self._is_left = True, takes_samples(finish.transform)

    def __call__(self, batch: Batch, start: int) -> object:
        """Finish a batch, or return what finishes it; of one for a device, what is sent."""
        finish = self._finish
        if finish.on_device:
            return finish.crop(batch, start) if finish.has_crop else batch
        if finish.transform is None:
            return finish(batch, start)
        if self._is_left:
            return Unfinished(lambda: batch, start)
        if not self._is_first:
            return self._watched(batch, start)
        self.asked.get()
        self._is_first = False
        with Draws() as draws:
            made = finish(batch, start)
        self._is_left = draws.are_any
        return made

    def _watched(self, batch: Batch, start: int) -> object:
        """Finish a batch; if the transform draws for the first time, leave it and later ones to the caller's thread."""
        if _is_ours(self._finish.transform):
            return self._finish(batch, start)
        if threading.get_ident() == self._caller:
            # with prefetch=0: between the draws of the loop, as with any other
            return Unfinished(lambda: batch, start)
        version = batch.pixels._version
        try:
            with Draws(are_stopped=True):
                return self._finish(batch, start)
        except WouldDraw:
            self._is_left = True
        if batch.pixels._version != version:
            raise RuntimeError(
                "the transform changes its batch in place, and then draws from torch's generator for the first time in this"
                " epoch: give it a torch.Generator of its own, or the loader prefetch=0."
            )
        return Unfinished(lambda: batch, start)


def takes_samples(transform: object) -> bool:
    """Say whether a transform, or one that it calls, calls another one for each sample of a batch."""
    within = getattr(transform, "transforms", [])
    return _is_of_reader(transform) and (getattr(transform, "takes_samples", False) or any(map(takes_samples, within)))


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


def _is_by_row(transform: object) -> bool:
    """Say whether a transform, and all that it calls, is of this package and makes of a row the same in any batch."""
    needs = ("needs_full_batch", "has_own_threads", "takes_samples")
    is_called_once = any(getattr(transform, name, False) for name in needs)
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
