"""Gathers rows of what is on a device, there: on the stream of the caller's thread, without waiting for the device.

Knows nothing of CUDA but that the caller's thread, on its own stream, does all work on the device. All of it runs on a CPU as
well.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from reader.device.transfer import recorded
from reader.host_values import sent
from reader.rows import Rows
from reader.store import Batch, ImageBatch

_B = TypeVar("_B", bound=Batch)

# Wider words make index_select faster: over uint8[B, C, H, W] the same call was up to 5 times slower than over int64 rows.
_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16))


def gathered(store: ImageBatch, slots: Rows) -> ImageBatch:
    """Gather rows of what is on a device there."""
    index = sent(torch.from_numpy(slots), store.pixels.device)
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


def recorded_if_cuda(tensor: torch.Tensor) -> torch.Tensor:
    """Keep a tensor's memory from being used again before the current stream has done what was launched; returns it."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor


def held(store: _B) -> _B:
    """Return a whole store: its memory outlives what the current stream does with it, though its loader may not."""
    return recorded(store) if store.pixels.device.type == "cuda" else store


def as_words(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """View each any[N, ...] as [N, K] of the widest integers that divide a row of all and that all are aligned to."""
    flat = [tensor.reshape(tensor.shape[0], -1).view(torch.uint8) for tensor in tensors]
    for size, dtype in _WORDS:
        if all(t.shape[1] % size == 0 and t.data_ptr() % size == 0 for t in flat):
            return [t.view(dtype) for t in flat]
    return flat
