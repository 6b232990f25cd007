"""Rows in a device's memory, of a whole store or of those that loaders read; batches are gathered there.

Knows no order. All of it runs on a CPU as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch

from reader.device.gather import gathered, held, numbers_on, recorded_if_cuda
from reader.format.manifest import PAGE_BYTES
from reader.memory.gather import as_words
from reader.memory.pages import extents, pages_of
from reader.memory.slots import Slots, count_of
from reader.rows import Rows
from reader.store import ImageBatch, RaggedBatch
from reader.tuning import tuning

_Piece = TypeVar("_Piece")

# What a store with rows of sizes of their own has beside its pixels.
BESIDE_PIXELS = ("targets", "offsets", "shapes", "extras", "mask_offsets")


class Resident:
    """Rows of a store on a device, each once; those that are added later are in memory of their own."""

    def __init__(self, store: ImageBatch, device: torch.device) -> None:
        """store: all of it, on the host; nothing is on the device yet."""
        self._host, self._device = store, device
        self.slots = Slots(len(store))
        self._pieces = _Pieces[ImageBatch]()

    def missing_bytes(self, rows: Rows | None) -> int:
        """Return what adding these rows, sorted and each once, would take; None: all."""
        return count_of(self.slots.missing(rows), self.slots.count) * (nbytes(self._host) // max(1, self.slots.count))

    def add(self, missing: Rows | None, batches: Iterable[ImageBatch]) -> None:
        """Add rows that `slots.missing` returned; batches are all of them in order, on the device.

        Raises:
            torch.OutOfMemoryError: the device has no room for them.
        """
        part, start = _empty_like(self._host, count_of(missing, self.slots.count), self._device), 0
        for batch in batches:
            for there, come in zip(_leaves(part), _leaves(batch), strict=True):
                there[start : start + len(come)].copy_(come)
            start += len(batch)
        if missing is not None:
            assert part.rows is not None
            numbers = torch.from_numpy(missing)
            part.rows.copy_(numbers if self._host.rows is None else self._host.rows[numbers])
        _wait_for(self._device)
        self._pieces.add(part, self.slots.filled)
        self.slots.add(missing)

    def rows(self) -> ImageBatch:
        """Return all rows that are there, in the order of their slots, for the caller's thread."""
        parts = [held(part) for part in self._pieces.all]
        return parts[0] if len(parts) == 1 else _joined(parts)

    def gather(self, rows: Rows) -> ImageBatch:
        """Gather rows; for the caller's thread."""
        slots = self.slots.of(rows)
        found = [(gathered(held(part), slots[at] - first), at) for part, first, at in self._pieces.of(slots)]
        if len(found) == 1:
            return found[0][0]
        # [3, 0, 2, 1]: row 0 of the batch is at 3 of what was joined
        return gathered(_joined([batch for batch, _ in found]), np.argsort(np.concatenate([at for _, at in found])))


class ResidentImages:
    """Rows of a store on a device, each with a size of its own; held and gathered by the pages that they are in."""

    def __init__(self, store: RaggedBatch, device: torch.device) -> None:
        """store: all of it, on the host; nothing is on the device yet."""
        self._host, self._device = store, device
        self._pages = store.pixels.view(-1, PAGE_BYTES)
        self.slots = Slots(len(self._pages))
        self._pieces = _Pieces[torch.Tensor]()
        self._store: RaggedBatch | None = None

    def missing_bytes(self, pages: Rows | None) -> int:
        """Return what adding these pages, sorted and each once, would take; None: all."""
        beside = nbytes(self._host) - self._host.pixels.nbytes if self._store is None else 0
        return count_of(self.slots.missing(pages), self.slots.count) * PAGE_BYTES + beside

    def add(self, pages: Rows | None) -> None:
        """Add those of these pages, sorted and each once, that are not there yet, from the store's mapping; None: all.

        Raises:
            torch.OutOfMemoryError: the device has no room for it.
        """
        missing = self.slots.missing(pages)
        if missing is not None and not len(missing):
            return
        if self._store is None:
            rest: dict[str, Any] = {name: getattr(self._host, name) for name in BESIDE_PIXELS}
            moved: dict[str, Any] = {n: value if value is None else value.to(self._device) for n, value in rest.items()}
            self._store = RaggedBatch(
                pixels=self._host.pixels.new_empty(0, device=self._device), **moved, batch_size=[]
            )
        part = torch.empty((count_of(missing, self.slots.count), PAGE_BYTES), dtype=torch.uint8, device=self._device)
        most = max(1, tuning().device_copy_bytes // PAGE_BYTES)
        for start in range(0, len(part), most):
            stop = min(start + most, len(part))
            some = self._pages[start:stop] if missing is None else self._pages[torch.from_numpy(missing[start:stop])]
            part[start:stop].copy_(some)
        _wait_for(self._device)
        self._pieces.add(part, self.slots.filled)
        self.slots.add(missing)

    def gather(self, rows: Rows) -> RaggedBatch:
        """Gather rows; where they are is asked of the host, which knows it too."""
        assert self._store is not None
        pages, begins = pages_of(*extents(self._host, rows))
        slots = self.slots.of(pages)
        pixels = self._pages.new_empty((len(pages), PAGE_BYTES), device=self._device)
        for part, first, at in self._pieces.of(slots):
            is_all = len(at) == len(pages)
            into = pixels if is_all else pixels.new_empty((len(at), PAGE_BYTES))
            words, found = as_words(recorded_if_cuda(part), into)
            torch.index_select(words, 0, numbers_on(self._device, slots[at] - first), out=found)
            if not is_all:
                pixels[numbers_on(self._device, at)] = into
        return held(self._store).chosen(rows, pixels.view(-1), numbers_on(self._device, begins))


class _Pieces(Generic[_Piece]):
    """What was added to a copy, one thing after the other, each with its first slot."""

    def __init__(self) -> None:
        self.all: list[_Piece] = []
        self._firsts: list[int] = []

    def add(self, piece: _Piece, first: int) -> None:
        """Append a piece that begins at slot first."""
        self.all.append(piece)
        self._firsts.append(first)

    def of(self, slots: Rows) -> Iterator[tuple[_Piece, int, Rows]]:
        """Yield each piece that holds some of the slots, its first slot, and which of the slots those are."""
        which = np.searchsorted(self._firsts, slots, side="right") - 1
        for n in np.unique(which).tolist() or [0]:
            yield self.all[n], self._firsts[n], np.flatnonzero(which == n)


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a CUDA device; None for the CPU. What torch keeps for later tensors does not count as free."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def total_bytes(device: torch.device) -> int:
    """Return the memory that a CUDA device has, free or not."""
    return torch.cuda.mem_get_info(device)[1]


def nbytes(store: ImageBatch | RaggedBatch) -> int:
    """Return the bytes that a whole store takes on a device, row numbers included."""
    if isinstance(store, RaggedBatch):
        return sum(tensor.nbytes for tensor in store.values(True, True))
    return sum(tensor.nbytes for tensor in _leaves(store)) + 8 * len(store)


def _joined(batches: list[ImageBatch]) -> ImageBatch:
    return cast(ImageBatch, torch.cat(batches))  # type: ignore[arg-type]


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
