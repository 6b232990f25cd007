"""Random numbers that are a function of (seed, epoch, row): neither ranks, workers nor batch size change what a row becomes.

Knows which epoch it is, in this thread. Never touches torch's generators, so a transform leaves the model's randomness alone.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator

import torch

from reader.store import ImageBatch, RaggedBatch

# Which random numbers are whose: no two transforms share a stream, so two with one seed do not draw alike. To change one is to
# change everybody's augmentation.
FLIP = range(1)
CROP = range(1, 3)
RESIZED_CROP = range(3, 25)
COLOR_JITTER = range(25, 28)

_epoch: contextvars.ContextVar[int] = contextvars.ContextVar("epoch", default=0)


@contextlib.contextmanager
def in_epoch(epoch: int) -> Iterator[None]:
    """Let every random transform that runs inside, however deeply nested, draw for this epoch. MemmapLoader does this."""
    token = _epoch.set(epoch)
    try:
        yield
    finally:
        _epoch.reset(token)


def draw(batch: ImageBatch | RaggedBatch, seed: int, streams: range, *, takes_ragged: bool = False) -> torch.Tensor:
    """Draw float64[len(streams), B] in [0, 1) for the rows of a batch, on its device.

    Raises:
        ValueError: one row instead of a batch, a batch that does not know its rows, or images of different sizes unless the
            transform takes them.
    """
    if isinstance(batch, RaggedBatch):
        if not takes_ragged:
            raise ValueError("the images have sizes of their own: let RandomResizedCrop or CenterCrop come first.")
    elif batch.pixels.ndim != 4:
        raise ValueError(
            f"pixels have the shape {list(batch.pixels.shape)}, expected [B, H, W, C]: give a batch, not a row."
        )
    if batch.rows is None:
        raise ValueError("the batch has no rows, from which the randomness is drawn. Take batches from a MemmapLoader.")
    return _uniform(batch.rows, _wrapped(seed), streams.start, len(streams))


# An op of its own, since torch.compile must neither trace the epoch, which would become a constant of the graph, nor record
# it in a CUDA graph, which would replay one epoch for ever.
@torch.library.custom_op(
    "pixpack::uniform",
    mutates_args=(),
    schema="(Tensor rows, int seed, int first, int count) -> Tensor",
    tags=(torch.Tag.cudagraph_unsafe,),
)
def _uniform(rows: torch.Tensor, seed: int, first: int, count: int) -> torch.Tensor:
    """Hash (seed, epoch, stream, row): splitmix64's finaliser, in wrapping int64."""
    streams = torch.arange(first, first + count, device=rows.device)[:, None] * _wrapped(0x8CB92BA72F3D8DD7)
    key = _wrapped((seed * 0x9E3779B97F4A7C15) ^ (_epoch.get() * 0xD1B54A32D192ED03))
    value = rows + (streams ^ key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ _shifted(value, shift)) * _wrapped(factor)
    value = value ^ _shifted(value, 31)
    return _shifted(value, 11).double() * math.ldexp(1, -53)


@_uniform.register_fake
def _(rows: torch.Tensor, seed: int, first: int, count: int) -> torch.Tensor:
    return rows.new_empty((count, *rows.shape), dtype=torch.float64)


def _shifted(value: torch.Tensor, count: int) -> torch.Tensor:
    """Shift right without the sign: torch's >> on int64 keeps it."""
    return (value >> count) & ((1 << (64 - count)) - 1)


def _wrapped(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
