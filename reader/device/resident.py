"""Rows in a device's memory, of a whole store or of those that loaders read; batches are gathered there.

Knows no order. All of it runs on a CPU as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from reader.device.gather import as_words, gathered, held, recorded_if_cuda
from reader.format.manifest import PAGE_BYTES
from reader.host_values import remember, sent
from reader.memory.places import Place
from reader.memory.spans import Runs, Spans, laid_out
from reader.rows import Rows
from reader.store import Batch, ImageBatch, RaggedBatch
from reader.tuning import tuning


class Resident:
    """Rows of a store on a device, each once."""

    def __init__(
        self, none: ImageBatch, count: int, rows: Rows | None, batches: Iterable[ImageBatch], device: torch.device
    ) -> None:
        """Bring rows there.

        Args:
            none: a batch of no row.
            count: of the store's rows.
            rows: int64[n], sorted and each once; None: all.
            batches: all of the rows in order, on the device.

        Raises:
            torch.OutOfMemoryError: the device has no room for them.
        """
        # sorted
        self._held, start = rows, 0
        self._rows = _empty_like(none, count if rows is None else len(rows), device)
        for batch in batches:
            for there, come in zip(_leaves(self._rows), _leaves(batch), strict=True):
                there[start : start + len(come)].copy_(come)
            start += len(batch)
        if rows is not None:
            assert self._rows.rows is not None
            self._rows.rows.copy_(torch.from_numpy(rows))
        _wait_for(device)

    def rows(self) -> ImageBatch:
        """Return all rows that are there, in the store's order, for the caller's thread."""
        return held(self._rows)

    def gather(self, rows: Rows) -> ImageBatch:
        """Gather rows; for the caller's thread."""
        batch = gathered(held(self._rows), rows if self._held is None else np.searchsorted(self._held, rows))
        assert batch.rows is not None
        remember(batch.rows, torch.from_numpy(rows))
        return batch


class ResidentImages:
    """Rows of a store on a device, each with a size of its own; held and gathered by the pages that they are in."""

    def __init__(
        self, columns: RaggedBatch, spans_of: Callable[[Rows], Spans], place: Place, rows: Rows, device: torch.device
    ) -> None:
        """Bring the pages of rows there, and all that the store has beside its pixels.

        Args:
            columns: all rows of the store, without their pixels, on the host.
            spans_of: where rows are in the file of pixels.
            place: where that is.
            rows: int64[n], those that are brought.

        Raises:
            torch.OutOfMemoryError: the device has no room for it.
        """
        self._spans_of, self._shapes, self._device = spans_of, columns.shapes, device
        self._columns = columns.apply(lambda column: column.to(device), device=device)
        self._runs = _pages_holding(spans_of(rows))
        pages = _pages_of(Spans(self._runs.starts, self._runs.stops - self._runs.starts))
        self._pages = torch.empty((len(pages), PAGE_BYTES), dtype=torch.uint8, device=device)
        most = max(1, tuning().device_copy_bytes // PAGE_BYTES)
        for start in range(0, len(pages), most):
            some = pages[start : start + most]
            spans = Spans(some * PAGE_BYTES, np.full(len(some), PAGE_BYTES))
            memory = torch.empty(len(some) * PAGE_BYTES, dtype=torch.uint8, device="cpu")
            if (copies := place.read(spans, memory, laid_out(spans.sizes))) is not None:
                copies.wait()
            self._pages[start : start + len(some)].copy_(memory.view(-1, PAGE_BYTES))
        _wait_for(device)

    def gather(self, rows: Rows) -> RaggedBatch:
        """Gather rows; where they are is asked of the host, which knows it too."""
        spans = self._spans_of(rows)
        begins = self._runs.find(spans)
        assert begins is not None
        pages = _pages_of(Spans(begins, spans.sizes))
        counts = -(-(begins % PAGE_BYTES + spans.sizes) // PAGE_BYTES)
        pixels = self._pages.new_empty((len(pages), PAGE_BYTES))
        words, into = as_words(recorded_if_cuda(self._pages), pixels)
        torch.index_select(words, 0, sent(torch.from_numpy(pages), self._device), out=into)
        offsets = laid_out(counts) * PAGE_BYTES + begins % PAGE_BYTES
        batch = held(self._columns).chosen(rows, pixels.view(-1), sent(torch.from_numpy(offsets), self._device))
        remember(batch.shapes, self._shapes[torch.from_numpy(rows)])
        return batch


def bytes_there(none: Batch, count: int, rows: int, spans: Spans) -> int:
    """Return what rows of a store take on a device, with what it has beside their pixels.

    Args:
        none: a batch of no row.
        count: of the store's rows.
        rows: how many are brought.
        spans: where they are in the file of pixels.
    """
    if isinstance(none, RaggedBatch):
        columns = [column for name, column in none.items(True, True) if name != "pixels"]
        return _pages_holding(spans).size_bytes + count * sum(map(_row_bytes, columns))
    return rows * (sum(map(_row_bytes, _leaves(none))) + 8)


def _row_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a row of any[N, ...]."""
    return tensor.element_size() * tensor.shape[1:].numel()


def _pages_holding(spans: Spans) -> Runs:
    """Return the runs of whole pages that hold spans, each page once."""
    first = spans.begins // PAGE_BYTES * PAGE_BYTES
    return Runs.holding(Spans(first, -(-spans.ends // PAGE_BYTES) * PAGE_BYTES - first))


def _pages_of(spans: Spans) -> Rows:
    """Return the pages that hold spans, one span after the other.

    Example:
        >>> _pages_of(Spans(np.array([4000, 100]), np.array([200, 50]))).tolist()
        [0, 1, 0]
    """
    first = spans.begins // PAGE_BYTES
    counts = -(-spans.ends // PAGE_BYTES) - first
    return np.arange(counts.sum()) + np.repeat(first - laid_out(counts), counts)


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a CUDA device; None for the CPU. What torch keeps for later tensors does not count as free."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def total_bytes(device: torch.device) -> int:
    """Return the memory that a CUDA device has, free or not."""
    return torch.cuda.mem_get_info(device)[1]


def _wait_for(device: torch.device) -> None:
    """Wait until what was copied to a device is there, whatever stream a loop is on later."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _empty_like(none: ImageBatch, count: int, device: torch.device) -> ImageBatch:
    """Allocate what so many rows need on a device, and number them; none: a batch of no row."""

    def empty(tensor: torch.Tensor) -> torch.Tensor:
        """Allocate what the tensor's rows need on the device, contiguous."""
        return torch.empty((count, *tensor.shape[1:]), dtype=tensor.dtype, device=device)

    return ImageBatch(
        pixels=empty(none.pixels),
        targets=empty(none.targets),
        content=None if none.content is None else empty(none.content),
        extras=None if none.extras is None else none.extras.apply(empty, device=device, batch_size=[count]),
        rows=torch.arange(count, device=device),
        batch_size=[count],
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
