"""Rows in a device's memory: a whole store, or windows of blocks that follow each other; batches are gathered there.

Knows no order but what it is given, and nothing of CUDA but that the caller's thread, on its own stream, does all work on the
device; `on_any_stream` is for callers who change that stream. All of it runs on a CPU as well.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from reader.copying import as_words
from reader.manifest import PAGE_BYTES
from reader.order import BlockOrder, Rows, Steps
from reader.ragged import extents, pages_of
from reader.stages import stage
from reader.store import ImageBatch, RaggedBatch
from reader.transfer import DeviceBatch, on_any_stream, recorded

# What a store with rows of sizes of their own has beside its pixels.
_BESIDE_PIXELS = ("targets", "offsets", "shapes", "extras", "mask_offsets")
# Mapped memory is copied to a device so much at a time: page faults and copies then take turns.
_PIECE_BYTES = 64 << 20

# Of numbers of rows or pages, so many are copied without waiting as they are; for more, CUDA may wait for all that was launched
# (CUDA Programming Guide, "Concurrent Execution between Host and Device").
_UNPINNED_BYTES = 64 << 10

# A slice on its way: a batch that is on the device already, or one whose copy may still run.
Sent = ImageBatch | DeviceBatch


class Resident:
    """All rows of a store on a device."""

    def __init__(self, store: ImageBatch, batches: Iterable[ImageBatch], device: torch.device) -> None:
        """Fill it: store tells shapes, batches are all of its rows in order, on the device.

        Raises:
            torch.OutOfMemoryError: the device has no room for them.
        """
        self._store, start = _empty_like(store, device), 0
        for batch in batches:
            for there, come in zip(_leaves(self._store), _leaves(batch), strict=True):
                there[start : start + len(come)].copy_(come)
            start += len(batch)
        if device.type == "cuda":
            # whatever stream a loop is on later, the rows are there
            torch.cuda.synchronize(device)

    def rows(self) -> ImageBatch:
        """Return all rows, on the device, for the caller's thread."""
        return _held(self._store)

    def gather(self, rows: Rows) -> ImageBatch:
        """Gather rows; for the caller's thread."""
        return gathered(self.rows(), rows)

    def later(self, rows: Rows) -> Later:
        """Return the batch of these rows, to be gathered by who calls it."""
        return Later([(self, rows)])


class ResidentImages:
    """All rows of a store on a device, each with a size of its own; gathered by the pages that hold them."""

    def __init__(self, store: RaggedBatch, device: torch.device) -> None:
        """Fill it from a store's mapping, in its order.

        Raises:
            torch.OutOfMemoryError: the device has no room for it.
        """
        self._host, pixels = store, torch.empty_like(store.pixels, device=device)
        for there, come in zip(pixels.split(_PIECE_BYTES), store.pixels.split(_PIECE_BYTES), strict=True):
            there.copy_(come)
        rest: dict[str, Any] = {name: getattr(store, name) for name in _BESIDE_PIXELS}
        moved: dict[str, Any] = {name: value if value is None else value.to(device) for name, value in rest.items()}
        self._store = RaggedBatch(pixels=pixels, **moved, batch_size=[])
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def later(self, rows: Rows) -> Later:
        """Return the batch of these rows, to be gathered by who calls it."""
        return Later([(self, rows)])

    def gather(self, rows: Rows) -> RaggedBatch:
        """Gather rows; where they lie is asked of the host, which knows it too."""
        return gathered_images(_held(self._store), rows, *extents(self._host, rows))


class Window:
    """Slices of a store, sent to a device one by one and there laid side by side.

    images: the store on the host, where its rows have sizes of their own: it tells where they will lie.
    """

    def __init__(self, slices: list[tuple[int, int]], images: RaggedBatch | None = None) -> None:
        bounds = np.array(sorted(slices))
        self._starts, counts = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
        self._offsets = np.cumsum(counts) - counts
        # in file order: what reads them ahead then reads forwards
        self.slices = [(int(start), int(stop)) for start, stop in bounds]
        self.sent: list[Sent] = []
        self._joined: Callable[[], Any] | None = None
        self._images = images

    def rows(self) -> Any:
        """Return the slices as one; for the caller's thread, which may be on another stream each time."""
        if self._joined is None:
            self._joined = on_any_stream(_joined([s() if isinstance(s, DeviceBatch) else s for s in self.sent]))
            self.sent.clear()
        return self._joined()

    def gather(self, slots: Rows) -> Any:
        """Gather rows by where they lie in it; for the caller's thread."""
        if self._images is None:
            return gathered(self.rows(), slots)
        offsets, sizes = self._places
        return gathered_images(self.rows(), slots, offsets[slots], sizes[slots])

    @functools.cached_property
    def _places(self) -> tuple[Rows, Rows]:
        """Where rows begin once the slices, each gathered by its pages, lie side by side, and their bytes."""
        begins, sizes, before = [], [], 0
        for start, stop in self.slices:
            assert self._images is not None
            offsets, size = extents(self._images, np.arange(start, stop))
            pages, begin = pages_of(offsets, size)
            begins.append(before + begin)
            sizes.append(size)
            before += len(pages) * PAGE_BYTES
        return np.concatenate(begins), np.concatenate(sizes)

    @property
    def missing(self) -> int:
        """Slices that were not sent yet."""
        return 0 if self._joined is not None else len(self.slices) - len(self.sent)

    def take(self, sent: Iterator[Sent], count: int) -> None:
        """Take so many slices of what is sent."""
        self.sent.extend(itertools.islice(sent, count))

    def slots(self, rows: Rows) -> Rows:
        """Return where rows of the store lie in it: of the slices [4, 8) and [20, 24), row 21 is at 5."""
        found = np.searchsorted(self._starts, rows, side="right") - 1
        return self._offsets[found] + rows - self._starts[found]


@dataclass(frozen=True)
class Later:
    """A batch that is gathered when the caller asks for it, on its stream: slots of one window, or of two that meet in it."""

    pieces: Sequence[tuple[Resident | ResidentImages | Window, Rows]]

    def __call__(self) -> Any:
        """Return the batch: memory of its own."""
        with stage("gather"):
            made = [holder.gather(slots) for holder, slots in self.pieces]
            return made[0] if len(made) == 1 else _joined(made)


def gathered(store: ImageBatch, slots: Rows) -> ImageBatch:
    """Gather rows of what lies on a device there."""
    index = _on(store.pixels.device, slots)
    pixels = store.pixels.new_empty((len(index), *store.pixels.shape[1:]))
    words, into = as_words(store.pixels, pixels)
    torch.index_select(words, 0, index, out=into)
    return ImageBatch(
        pixels=pixels,
        targets=store.targets.index_select(0, index),
        content=None if store.content is None else store.content.index_select(0, index),
        extras=None if store.extras is None else store.extras[index],
        rows=None if store.rows is None else store.rows.index_select(0, index),
        batch_size=[len(index)],
        device=store.pixels.device,
    )


def gathered_images(store: RaggedBatch, rows: Rows, offsets: Rows, sizes: Rows) -> RaggedBatch:
    """Gather rows with sizes of their own on the device where they lie.

    offsets, sizes: int64[B] of the rows' bytes, which the host knows too: so no device is waited for.
    """
    device = store.pixels.device
    pages, begins = pages_of(offsets, sizes)
    index, new_offsets = _on(device, pages), _on(device, begins)
    pixels = store.pixels.new_empty(len(pages), PAGE_BYTES)
    words, into = as_words(store.pixels.view(-1, PAGE_BYTES), pixels)
    torch.index_select(words, 0, index, out=into)
    return store.chosen(rows, pixels.view(-1), new_offsets)


def in_windows(
    plan: Iterator[Steps],
    order: BlockOrder,
    position: int,
    send: Callable[[Iterator[Steps]], Iterator[Sent]],
    images: RaggedBatch | None = None,
) -> Iterator[list[tuple[Later, int]]]:
    """Yield groups of the plan's batches, each with the position after it; the next window's slices travel meanwhile.

    order: the block order that the plan follows from a position on. send: reads slices, given as steps, and sends them.
    images: as of `Window`.
    """
    windows = deque(_windows(order, position, images))
    sent = send(_slices([window for _, window in windows]))
    for steps in plan:
        group = []
        for rows, start, after in zip(steps.batches, steps.starts, steps.positions, strict=True):
            pieces: list[tuple[Resident | Window, Rows]] = []
            end, window = windows[0]
            window.take(sent, window.missing)
            if len(windows) > 1:
                # evenly over this window's steps: each then waits for few slices, and the next window's first for none
                coming, steps_left = windows[1][1], -(-(end - start) // len(rows))
                coming.take(sent, -(-coming.missing // steps_left))
            while len(rows):
                end, window = windows[0]
                window.take(sent, window.missing)
                pieces.append((window, window.slots(rows[: end - start])))
                rows, start = rows[end - start :], min(end, start + len(rows))
                if start == end:
                    windows.popleft()
            group.append((Later(pieces), after))
        yield group


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a CUDA device; None for the CPU. What torch keeps for later tensors does not count as free."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def nbytes(store: ImageBatch | RaggedBatch) -> int:
    """Return the bytes that a whole store takes on a device, row numbers included."""
    if isinstance(store, RaggedBatch):
        return sum(tensor.nbytes for tensor in store.values(True, True))
    return sum(tensor.nbytes for tensor in _leaves(store)) + 8 * len(store)


def _on(device: torch.device, numbers: Rows) -> torch.Tensor:
    """Send numbers of rows or pages to a device, without waiting for it."""
    tensor = torch.from_numpy(numbers)
    if device.type == "cuda" and tensor.nbytes > _UNPINNED_BYTES:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _windows(order: BlockOrder, position: int, images: RaggedBatch | None) -> Iterator[tuple[int, Window]]:
    """Yield the windows from the one that holds a position on, each with the position behind it."""
    while position < order.count:
        slices, position = order.slices(position), order.window_end(position)
        yield position, Window(slices, images)


def _slices(windows: list[Window]) -> Iterator[Steps]:
    for window in windows:
        for start, stop in window.slices:
            yield Steps([np.arange(start, stop)], [0], [0])


def _held(store: Any) -> Any:
    """Return a whole store: its memory outlives what the current stream does with it, though its loader may not."""
    return recorded(store) if store.pixels.device.type == "cuda" else store


def _joined(batches: list[Any]) -> Any:
    if not isinstance(batches[0], RaggedBatch):
        return torch.cat(batches)
    starts = list(itertools.accumulate((len(batch.pixels) for batch in batches), initial=0))[:-1]

    def column(name: str) -> Any:
        """Join one field of all batches; offsets count on from the batch before."""
        found = [getattr(batch, name) for batch in batches]
        if found[0] is None:
            return None
        if name in ("offsets", "mask_offsets"):
            found = [offsets + start for offsets, start in zip(found, starts, strict=True)]
        return torch.cat(found)

    return RaggedBatch(**{name: column(name) for name in ("pixels", "rows", *_BESIDE_PIXELS)}, batch_size=[])


def _empty_like(store: ImageBatch, device: torch.device) -> ImageBatch:
    """Allocate what a store needs on a device, and number its rows."""

    def empty(tensor: Any) -> Any:
        """Allocate what the tensor needs on the device, contiguous."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

    return ImageBatch(
        pixels=empty(store.pixels),
        targets=empty(store.targets),
        content=None if store.content is None else empty(store.content),
        extras=None if store.extras is None else store.extras.apply(empty, device=device),
        rows=torch.arange(len(store), device=device),
        batch_size=store.batch_size,
        device=device,
    )


def _leaves(batch: ImageBatch) -> list[torch.Tensor]:
    """List a batch's tensors, but for its row numbers."""
    found = [tensor for tensor in (batch.pixels, batch.targets, batch.content) if tensor is not None]
    return (
        found
        if batch.extras is None
        else found + [batch.extras[key] for key in sorted(batch.extras.keys(True, True), key=str)]
    )
