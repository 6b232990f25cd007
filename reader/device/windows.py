"""Windows of blocks that follow each other in a device's memory: slices are sent there one by one, batches gathered there.

Knows no order but what it is given; `on_any_stream` is for callers who change their stream.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from reader.device.gather import Holder, Later, gathered, gathered_images, joined
from reader.device.transfer import DeviceBatch, on_any_stream
from reader.format.manifest import PAGE_BYTES
from reader.memory.pages import extents, pages_of
from reader.order import BlockOrder
from reader.rows import Rows, Steps
from reader.store import Batch, RaggedBatch

# A slice on its way: a batch that is on the device already, or one whose copy may still run.
Sent = Batch | DeviceBatch


class DeviceWindow:
    """Slices of a store, sent to a device one by one and there laid side by side.

    images: the store on the host, where its rows have sizes of their own: it says where they will be.
    """

    def __init__(self, slices: list[tuple[int, int]], images: RaggedBatch | None = None) -> None:
        bounds = np.array(sorted(slices))
        self._starts, counts = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
        self._offsets = np.cumsum(counts) - counts
        # in file order: what reads them ahead then reads forwards
        self.slices = [(int(start), int(stop)) for start, stop in bounds]
        self.sent: list[Sent] = []
        self._joined: Callable[[], Batch] | None = None
        self._images = images

    def rows(self) -> Batch:
        """Return the slices as one; for the caller's thread, which may be on another stream each time."""
        if self._joined is None:
            self._joined = on_any_stream(joined([s() if isinstance(s, DeviceBatch) else s for s in self.sent]))
            self.sent.clear()
        return self._joined()

    def gather(self, slots: Rows) -> Batch:
        """Gather rows by where they are in it; for the caller's thread."""
        rows = self.rows()
        if not isinstance(rows, RaggedBatch):
            return gathered(rows, slots)
        offsets, sizes = self._offsets_and_sizes
        return gathered_images(rows, slots, offsets[slots], sizes[slots])

    @functools.cached_property
    def _offsets_and_sizes(self) -> tuple[Rows, Rows]:
        """Where rows begin once the slices, each gathered by its pages, are side by side, and their bytes."""
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
        """Return where rows of the store are in it: of the slices [4, 8) and [20, 24), row 21 is at 5."""
        found = np.searchsorted(self._starts, rows, side="right") - 1
        return self._offsets[found] + rows - self._starts[found]


def in_windows(
    plan: Iterator[Steps],
    order: BlockOrder,
    position: int,
    send: Callable[[Iterator[Steps]], Iterator[Sent]],
    images: RaggedBatch | None = None,
) -> Iterator[list[tuple[Later, int, int]]]:
    """Yield groups of the plan's batches, each with the positions of its first row and after it.

    The next window's slices travel meanwhile.

    order: the block order that the plan follows from a position on. send: reads slices, given as steps, and sends them.
    images: as of `DeviceWindow`.
    """
    windows = deque(_windows(order, position, images))
    sent = send(_slices([window for _, window in windows]))
    for steps in plan:
        group = []
        for rows, start, after in zip(steps.batches, steps.starts, steps.positions, strict=True):
            pieces: list[tuple[Holder, Rows]] = []
            first = start
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
            group.append((Later(pieces), first, after))
        yield group


def _windows(order: BlockOrder, position: int, images: RaggedBatch | None) -> Iterator[tuple[int, DeviceWindow]]:
    """Yield the windows from the one that holds a position on, each with the position behind it."""
    while position < order.count:
        slices, position = order.slices(position), order.window_end(position)
        yield position, DeviceWindow(slices, images)


def _slices(windows: list[DeviceWindow]) -> Iterator[Steps]:
    for window in windows:
        for start, stop in window.slices:
            yield Steps([np.arange(start, stop)], [0], [0])
