"""Gathers rows of what is on a device, there: on the stream of the caller's thread, without waiting for the device.

Knows nothing of CUDA but that the caller's thread, on its own stream, does all work on the device. All of it runs on a CPU as
well.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import torch

from reader.device.transfer import recorded
from reader.format.manifest import PAGE_BYTES
from reader.memory.gather import as_words
from reader.memory.pages import pages_of
from reader.profiling import stage
from reader.rows import Rows
from reader.store import Batch, ImageBatch, RaggedBatch

_B = TypeVar("_B", bound=Batch)

# What a store with rows of sizes of their own has beside its pixels.
BESIDE_PIXELS = ("targets", "offsets", "shapes", "extras", "mask_offsets")
# Of numbers of rows or pages, so many are copied without waiting as they are; for more, CUDA may wait for all that was launched
# (CUDA Programming Guide, "Concurrent Execution between Host and Device").
_UNPINNED_BYTES = 64 << 10


class Holder(Protocol):
    """What has rows on a device."""

    def gather(self, slots: Rows, /) -> Batch:
        """Gather rows; for the caller's thread."""
        ...


@dataclass(frozen=True)
class Later:
    """A batch that is gathered when the caller asks for it, on its stream: rows of one holder, or of two windows."""

    pieces: Sequence[tuple[Holder, Rows]]

    def __call__(self) -> Batch:
        """Return the batch: memory of its own."""
        with stage("gather"):
            made = [holder.gather(slots) for holder, slots in self.pieces]
            return made[0] if len(made) == 1 else joined(made)


def gathered(store: ImageBatch, slots: Rows) -> ImageBatch:
    """Gather rows of what is on a device there."""
    index = numbers_on(store.pixels.device, slots)
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
    """Gather rows with sizes of their own on the device where they are.

    offsets, sizes: int64[B] of the rows' bytes, which the host knows too: so no device is waited for.
    """
    device = store.pixels.device
    pages, begins = pages_of(offsets, sizes)
    index, new_offsets = numbers_on(device, pages), numbers_on(device, begins)
    pixels = store.pixels.new_empty(len(pages), PAGE_BYTES)
    words, into = as_words(store.pixels.view(-1, PAGE_BYTES), pixels)
    torch.index_select(words, 0, index, out=into)
    return store.chosen(rows, pixels.view(-1), new_offsets)


def numbers_on(device: torch.device, numbers: Rows) -> torch.Tensor:
    """Send numbers of rows or pages to a device, without waiting for it."""
    tensor = torch.from_numpy(numbers)
    if device.type == "cuda" and tensor.nbytes > _UNPINNED_BYTES:
        with torch.cuda.device(device):  # to pin makes a context on the device that is current
            tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def recorded_if_cuda(tensor: torch.Tensor) -> torch.Tensor:
    """Keep a tensor's memory from being used again before the current stream has done what was launched; returns it."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor


def held(store: _B) -> _B:
    """Return a whole store: its memory outlives what the current stream does with it, though its loader may not."""
    return recorded(store) if store.pixels.device.type == "cuda" else store


def joined(batches: Sequence[_B]) -> _B:
    """Return batches on a device as one, side by side."""
    if not isinstance(batches[0], RaggedBatch):
        return cast(_B, torch.cat(list(batches)))  # type: ignore[arg-type]
    starts = list(itertools.accumulate((len(batch.pixels) for batch in batches), initial=0))[:-1]

    def column(name: str) -> Any:
        """Join one field of all batches; offsets count on from the batch before."""
        found = [getattr(batch, name) for batch in batches]
        if found[0] is None:
            return None
        if name in ("offsets", "mask_offsets"):
            found = [offsets + start for offsets, start in zip(found, starts, strict=True)]
        return torch.cat(found)

    made = RaggedBatch(**{name: column(name) for name in ("pixels", "rows", *BESIDE_PIXELS)}, batch_size=[])
    return cast(_B, made)
