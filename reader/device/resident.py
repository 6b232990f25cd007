"""Rows in a device's memory, of a whole store or of those that loaders read; batches are gathered there.

Knows no order. All of it runs on a CPU as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from reader.device.gather import as_words, gathered, held, numbers_on, recorded_if_cuda
from reader.format.manifest import PAGE_BYTES
from reader.memory.spans import Runs, Spans, laid_out
from reader.rows import Rows
from reader.store import ImageBatch, RaggedBatch
from reader.tuning import tuning

# What a store with rows of sizes of their own has beside its pixels.
_BESIDE_PIXELS = ("targets", "offsets", "shapes", "extras", "mask_offsets")


class Resident:
    """Rows of a store on a device, each once."""

    def __init__(
        self, store: ImageBatch, rows: Rows | None, batches: Iterable[ImageBatch], device: torch.device
    ) -> None:
        """Bring rows there.

        Args:
            store: all of it, on the host.
            rows: int64[n], sorted and each once; None: all.
            batches: all of the rows in order, on the device.

        Raises:
            torch.OutOfMemoryError: the device has no room for them.
        """
        # sorted
        self._held, start = rows, 0
        self._rows = _empty_like(store, len(store) if rows is None else len(rows), device)
        for batch in batches:
            for there, come in zip(_leaves(self._rows), _leaves(batch), strict=True):
                there[start : start + len(come)].copy_(come)
            start += len(batch)
        if rows is not None:
            assert self._rows.rows is not None
            numbers = torch.from_numpy(rows)
            self._rows.rows.copy_(numbers if store.rows is None else store.rows[numbers])
        _wait_for(device)

    def rows(self) -> ImageBatch:
        """Return all rows that are there, in the store's order, for the caller's thread."""
        return held(self._rows)

    def gather(self, rows: Rows) -> ImageBatch:
        """Gather rows; for the caller's thread."""
        return gathered(held(self._rows), rows if self._held is None else np.searchsorted(self._held, rows))


class ResidentImages:
    """Rows of a store on a device, each with a size of its own; held and gathered by the pages that they are in."""

    def __init__(
        self, store: RaggedBatch, spans_of: Callable[[Rows], Spans], rows: Rows | None, device: torch.device
    ) -> None:
        """Bring the pages of rows there, from the store's mapping, and all that the store has beside its pixels.

        Args:
            store: all of it, on the host.
            spans_of: where rows are in its pixels.
            rows: int64[n], sorted and each once; None: all.

        Raises:
            torch.OutOfMemoryError: the device has no room for it.
        """
        mapped = store.pixels.view(-1, PAGE_BYTES)
        self._spans_of, self._device = spans_of, device
        self._runs = None if rows is None else _pages_holding(spans_of(rows))
        pages = (
            None if self._runs is None else _pages_of(Spans(self._runs.starts, self._runs.stops - self._runs.starts))
        )
        rest: dict[str, Any] = {name: getattr(store, name) for name in _BESIDE_PIXELS}
        moved: dict[str, Any] = {n: value if value is None else value.to(device) for n, value in rest.items()}
        self._store = RaggedBatch(pixels=store.pixels.new_empty(0, device=device), **moved, batch_size=[])
        count = len(mapped) if pages is None else len(pages)
        self._pages = torch.empty((count, PAGE_BYTES), dtype=torch.uint8, device=device)
        most = max(1, tuning().device_copy_bytes // PAGE_BYTES)
        for start in range(0, count, most):
            stop = min(start + most, count)
            some = mapped[start:stop] if pages is None else mapped[torch.from_numpy(pages[start:stop])]
            self._pages[start:stop].copy_(some)
        _wait_for(device)

    def gather(self, rows: Rows) -> RaggedBatch:
        """Gather rows; where they are is asked of the host, which knows it too."""
        spans = self._spans_of(rows)
        begins = spans.begins if self._runs is None else self._runs.find(spans)
        assert begins is not None
        pages = _pages_of(Spans(begins, spans.sizes))
        counts = -(-(begins % PAGE_BYTES + spans.sizes) // PAGE_BYTES)
        pixels = self._pages.new_empty((len(pages), PAGE_BYTES))
        words, into = as_words(recorded_if_cuda(self._pages), pixels)
        torch.index_select(words, 0, numbers_on(self._device, pages), out=into)
        offsets = laid_out(counts) * PAGE_BYTES + begins % PAGE_BYTES
        return held(self._store).chosen(rows, pixels.view(-1), numbers_on(self._device, offsets))


def bytes_there(store: ImageBatch | RaggedBatch, rows: Rows | None, spans: Spans | None) -> int:
    """Return what rows of a store take on a device, with what it has beside their pixels; None: all.

    spans: where they are in its pixels, where they have sizes of their own.
    """
    if rows is None:
        return _nbytes(store)
    if isinstance(store, RaggedBatch):
        assert spans is not None
        return _pages_holding(spans).size_bytes + _nbytes(store) - store.pixels.nbytes
    return len(rows) * (_nbytes(store) // max(1, len(store)))


def _pages_holding(spans: Spans) -> Runs:
    """Return the runs of whole pages that hold spans."""
    return Runs.holding(spans, align=PAGE_BYTES)


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


def _nbytes(store: ImageBatch | RaggedBatch) -> int:
    """Return the bytes that a whole store takes on a device, row numbers included."""
    if isinstance(store, RaggedBatch):
        return sum(tensor.nbytes for tensor in store.values(True, True))
    return sum(tensor.nbytes for tensor in _leaves(store)) + 8 * len(store)


def _wait_for(device: torch.device) -> None:
    """Wait until what was copied to a device is there, whatever stream a loop is on later."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _empty_like(store: ImageBatch, count: int, device: torch.device) -> ImageBatch:
    """Allocate what so many rows of a store need on a device, and number them."""

    def empty(tensor: torch.Tensor) -> torch.Tensor:
        """Allocate what the tensor's rows need on the device, contiguous."""
        return torch.empty((count, *tensor.shape[1:]), dtype=tensor.dtype, device=device)

    return ImageBatch(
        pixels=empty(store.pixels),
        targets=empty(store.targets),
        content=None if store.content is None else empty(store.content),
        extras=None if store.extras is None else store.extras.apply(empty, device=device, batch_size=[count]),
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
