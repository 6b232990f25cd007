"""Rows in a device's memory, of a whole store or of those that loaders read; batches are gathered there.

Knows no order. All of it runs on a CPU as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from reader.device.gather import gathered, held, numbers_on, recorded_if_cuda
from reader.format.manifest import PAGE_BYTES
from reader.memory.gather import as_words
from reader.memory.pages import extents, pages_of
from reader.memory.positions import Positions
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
        self._positions, start = Positions(rows, len(store)), 0
        self._rows = _empty_like(store, self._positions.count, device)
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
        return gathered(held(self._rows), self._positions.of(rows))


class ResidentImages:
    """Rows of a store on a device, each with a size of its own; held and gathered by the pages that they are in."""

    def __init__(self, store: RaggedBatch, pages: Rows | None, device: torch.device) -> None:
        """Bring pages there, from the store's mapping, and all that the store has beside its pixels.

        Args:
            store: all of it, on the host.
            pages: int64[n], sorted and each once; None: all.

        Raises:
            torch.OutOfMemoryError: the device has no room for it.
        """
        mapped = store.pixels.view(-1, PAGE_BYTES)
        self._host, self._device, self._positions = store, device, Positions(pages, len(mapped))
        rest: dict[str, Any] = {name: getattr(store, name) for name in _BESIDE_PIXELS}
        moved: dict[str, Any] = {n: value if value is None else value.to(device) for n, value in rest.items()}
        self._store = RaggedBatch(pixels=store.pixels.new_empty(0, device=device), **moved, batch_size=[])
        self._pages = torch.empty((self._positions.count, PAGE_BYTES), dtype=torch.uint8, device=device)
        most = max(1, tuning().device_copy_bytes // PAGE_BYTES)
        for start in range(0, len(self._pages), most):
            stop = min(start + most, len(self._pages))
            some = mapped[start:stop] if pages is None else mapped[torch.from_numpy(pages[start:stop])]
            self._pages[start:stop].copy_(some)
        _wait_for(device)

    def gather(self, rows: Rows) -> RaggedBatch:
        """Gather rows; where they are is asked of the host, which knows it too."""
        pages, begins = pages_of(*extents(self._host, rows))
        pixels = self._pages.new_empty((len(pages), PAGE_BYTES))
        words, into = as_words(recorded_if_cuda(self._pages), pixels)
        torch.index_select(words, 0, numbers_on(self._device, self._positions.of(pages)), out=into)
        return held(self._store).chosen(rows, pixels.view(-1), numbers_on(self._device, begins))


def bytes_there(store: ImageBatch | RaggedBatch, units: Rows | None) -> int:
    """Return what units of a store take on a device, rows or pages, with what it has beside them; None: all."""
    if units is None:
        return _nbytes(store)
    if isinstance(store, RaggedBatch):
        return len(units) * PAGE_BYTES + _nbytes(store) - store.pixels.nbytes
    return len(units) * (_nbytes(store) // max(1, len(store)))


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
