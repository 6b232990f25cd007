"""Batched operations on the device: normalise, flip, crop, and moving nests of tensors.

Randomness is drawn from (seed, epoch, row), so neither ranks, workers nor batch size change what a row becomes.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from reader.manifest import Manifest
from reader.store import ImageBatch

_epoch: contextvars.ContextVar[int] = contextvars.ContextVar("epoch", default=0)


@contextlib.contextmanager
def in_epoch(epoch: int) -> Iterator[None]:
    """Let every random transform that runs inside, however deeply nested, draw for this epoch. MemmapLoader does this."""
    token = _epoch.set(epoch)
    try:
        yield
    finally:
        _epoch.reset(token)


class Normalize(torch.nn.Module):
    """uint8[..., C, H, W] -> dtype[..., C, H, W]: (x / 255 - mean) / std, one multiply and one add a pixel.

    An nn.Module, so that it can be the model's first layer, move with it and be exported with it.

    Args:
        mean, std: per channel, of pixels in [0, 1]; or pass a store's manifest to `Normalize.of`.
        dtype: of the result; float16 and bfloat16 compute in float32.

    Example:
        >>> Normalize([0.5], [0.25])(torch.tensor([[[0, 255]]], dtype=torch.uint8)).flatten().round(decimals=4).tolist()
        [-2.0, 2.0]
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise ValueError(f"mean {list(mean)} and std {list(std)}: expected one of each a channel, std above 0.")
        scale = torch.tensor([1 / (255 * value) for value in std])
        self.register_buffer("scale", scale.view(-1, 1, 1))
        self.register_buffer("shift", torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).view(-1, 1, 1))
        self.dtype = dtype

    @classmethod
    def of(cls, manifest: Manifest, dtype: torch.dtype = torch.float32) -> Normalize:
        """Use the mean and std that `pack` measured; a channel that never varies gets std 1."""
        return cls(manifest.mean, [value or 1.0 for value in manifest.std], dtype)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalise a batch or one image."""
        scale, shift = self.get_buffer("scale"), self.get_buffer("shift")
        return torch.addcmul(shift, images.float(), scale).to(self.dtype)


class RandomHorizontalFlip:
    """Mirror each image of an ImageBatch left to right with probability p. A loader tells the epoch.

    Extras of one number a row stay as they are. Boxes and masks are not moved yet: a batch that may have some is refused.
    """

    def __init__(self, p: float = 0.5, *, seed: int = 0) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p is {p}, expected a probability from 0 to 1.")
        self.p, self.seed = p, seed

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return a batch of the same shapes; the given one is not changed."""
        flip = _uniform(_rows(batch), self.seed, _epoch.get(), 0) < self.p
        pixels = torch.where(flip.view(-1, 1, 1, 1), batch.pixels.flip(-2), batch.pixels)
        content = batch.content
        if content is not None:
            y0, x0, y1, x1 = content.unbind(-1)
            width = batch.pixels.shape[-2]
            mirrored = torch.stack([y0, width - x1, y1, width - x0], dim=-1)
            content = torch.where(flip.view(-1, 1), mirrored, content)
        return _changed(batch, pixels, content)


class RandomCrop:
    """Cut size x size pixels (or (height, width)) at a random place of each image, after zero padding on every side.

    Extras of one number a row stay as they are. Boxes and masks are not moved yet: a batch that may have some, or that has
    content, is refused.
    """

    def __init__(self, size: int | tuple[int, int], *, padding: int = 0, seed: int = 0) -> None:
        self.size = (size, size) if isinstance(size, int) else size
        self.padding, self.seed = padding, seed

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return uint8[B, size, size, C]; the given batch is not changed.

        Raises:
            ValueError: the padded images are smaller than size.
        """
        rows = _rows(batch)
        if batch.content is not None:
            raise ValueError(
                "RandomCrop does not know rows with padding (content) yet. Pack with --fit crop or squash."
            )
        p = self.padding
        pixels = torch.nn.functional.pad(batch.pixels, (0, 0, p, p, p, p)) if p else batch.pixels
        slack = [have - want for have, want in zip(pixels.shape[1:3], self.size, strict=True)]
        if min(slack) < 0:
            raise ValueError(f"RandomCrop wants {self.size}, the padded rows are {tuple(pixels.shape[1:3])}.")
        start = [(_uniform(rows, self.seed, _epoch.get(), n) * (s + 1)).long() for n, s in enumerate(slack, start=1)]
        y = start[0][:, None] + torch.arange(self.size[0], device=pixels.device)
        x = start[1][:, None] + torch.arange(self.size[1], device=pixels.device)
        index = torch.arange(len(pixels), device=pixels.device)[:, None, None]
        return _changed(batch, pixels[index, y[:, :, None], x[:, None, :]], None)


def to_device(nested: Any, device: str | torch.device) -> Any:
    """Move every tensor in a nest of dicts, lists, tuples and tensordicts: pinned and non-blocking to CUDA.

    Walks with torch's own pytree; what is not a tensor passes through.
    """
    target = torch.device(device)

    def move(leaf: Any) -> Any:
        if not hasattr(leaf, "to"):
            return leaf
        if target.type == "cuda" and torch.is_tensor(leaf) and leaf.device.type == "cpu" and not leaf.is_pinned():
            leaf = leaf.pin_memory()
        return leaf.to(target, non_blocking=target.type == "cuda")

    return pytree.tree_map(move, nested)


def _rows(batch: ImageBatch) -> torch.Tensor:
    """Return the rows that randomness is drawn from; refuse what a transform would leave behind."""
    if batch.rows is None:
        raise ValueError("the batch has no rows, from which the randomness is drawn. Take batches from a MemmapLoader.")
    wide = [] if batch.extras is None else [name for name, value in batch.extras.items() if value.ndim > 1]
    if wide:
        raise ValueError(f"this transform does not move boxes and masks yet, which the extra {wide[0]!r} may hold.")
    return batch.rows


def _changed(batch: ImageBatch, pixels: torch.Tensor, content: torch.Tensor | None) -> ImageBatch:
    return ImageBatch(
        pixels=pixels,
        targets=batch.targets,
        content=content,
        extras=batch.extras,
        rows=batch.rows,
        batch_size=batch.batch_size,
        device=pixels.device,
    )


def _uniform(rows: torch.Tensor, seed: int, epoch: int, stream: int) -> torch.Tensor:
    """Hash (seed, epoch, stream, row) to float64[B] in [0, 1); splitmix64's finaliser, in wrapping int64."""
    value = rows + _wrapped((seed * 0x9E3779B97F4A7C15) ^ (epoch * 0xD1B54A32D192ED03) ^ (stream * 0x8CB92BA72F3D8DD7))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ _shifted(value, shift)) * _wrapped(factor)
    value = value ^ _shifted(value, 31)
    return _shifted(value, 11).double() * math.ldexp(1, -53)


def _shifted(value: torch.Tensor, count: int) -> torch.Tensor:
    """Shift right without the sign: torch's >> on int64 keeps it."""
    return (value >> count) & ((1 << (64 - count)) - 1)


def _wrapped(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
