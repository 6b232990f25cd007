"""Rows in a device's memory: a whole store, or windows of blocks that follow each other; batches are gathered there.

Knows no order but what it is given, and nothing of CUDA but that the caller's thread, on its own stream, does all work on the
device: so nothing here can race, and all of it runs on a CPU as well.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.profiler import record_function

from reader.copying import as_words
from reader.order import BlockOrder, Rows, Steps
from reader.store import ImageBatch
from reader.transfer import DeviceBatch

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
        """Return all rows, on the device."""
        return self._store

    def later(self, rows: Rows) -> Later:
        """Return the batch of these rows, to be gathered by who calls it."""
        return Later([(self, rows)])


class Window:
    """Slices of a store, sent to a device one by one and there laid side by side."""

    def __init__(self, slices: list[tuple[int, int]]) -> None:
        bounds = np.array(sorted(slices))
        self._starts, counts = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
        self._offsets = np.cumsum(counts) - counts
        # in file order: what reads them ahead then reads forwards
        self.slices = [(int(start), int(stop)) for start, stop in bounds]
        self.sent: list[Sent] = []
        self._rows: ImageBatch | None = None

    def rows(self) -> ImageBatch:
        """Return the slices as one; for the caller's thread."""
        if self._rows is None:
            self._rows = _joined([sent() if isinstance(sent, DeviceBatch) else sent for sent in self.sent])
            self.sent.clear()
        return self._rows

    @property
    def missing(self) -> int:
        """Slices that were not sent yet."""
        return 0 if self._rows is not None else len(self.slices) - len(self.sent)

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

    pieces: list[tuple[Resident | Window, Rows]]

    def __call__(self) -> ImageBatch:
        """Return the batch: memory of its own."""
        with record_function("pixpack.gather"):
            made = [gathered(holder.rows(), slots) for holder, slots in self.pieces]
            return made[0] if len(made) == 1 else _joined(made)


def gathered(store: ImageBatch, slots: Rows) -> ImageBatch:
    """Gather rows of what lies on a device there."""
    # not pinned: a few kB are staged at once, and then the host's memory is free again
    index = torch.from_numpy(slots).to(store.pixels.device, non_blocking=True)
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


def in_windows(
    plan: Iterator[Steps], order: BlockOrder, position: int, send: Callable[[Iterator[Steps]], Iterator[Sent]]
) -> Iterator[list[tuple[Later, int]]]:
    """Yield groups of the plan's batches, each with the position after it; the next window's slices travel meanwhile.

    order: the block order that the plan follows from a position on. send: reads slices, given as steps, and sends them.
    """
    windows = deque(_windows(order, position))
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


def nbytes(store: ImageBatch) -> int:
    """Return the bytes that a whole store takes on a device, row numbers included."""
    return sum(tensor.nbytes for tensor in _leaves(store)) + 8 * len(store)


def _windows(order: BlockOrder, position: int) -> Iterator[tuple[int, Window]]:
    """Yield the windows from the one that holds a position on, each with the position behind it."""
    while position < order.count:
        slices, position = order.slices(position), order.window_end(position)
        yield position, Window(slices)


def _slices(windows: list[Window]) -> Iterator[Steps]:
    for window in windows:
        for start, stop in window.slices:
            yield Steps([np.arange(start, stop)], [0], [0])


def _joined(batches: list[Any]) -> Any:
    return torch.cat(batches)


def _empty_like(store: ImageBatch, device: torch.device) -> ImageBatch:
    """Allocate what a store needs on a device, and number its rows."""

    def empty(tensor: Any) -> Any:
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
