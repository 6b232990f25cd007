"""Batched operations on the device that change pixels where they are: normalise, and jitter of colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from reader.format.manifest import Manifest
from reader.store import ImageBatch, RaggedBatch, replaced
from reader.transforms.random import COLOR_JITTER, check_batch, draw

# How much red, green and blue count in gray: torchvision's numbers (ITU-R 601).
_GRAY = (0.2989, 0.587, 0.114)


class Normalize(torch.nn.Module):
    """uint8[..., C, H, W] -> dtype[..., C, H, W]: (x / 255 - mean) / std, one multiply and one add a pixel.

    An nn.Module, so that it can be the model's first layer, move with it and be exported with it.

    Args:
        mean, std: per channel, of pixels in [0, 1]; or pass a store's manifest to `Normalize.of`.
        dtype: of the result; float16 and bfloat16 compute in float32.

    Raises:
        ValueError: mean and std have different lengths, or std is not above 0.

    Example:
        >>> Normalize([0.5], [0.25])(torch.tensor([[[0, 255]]], dtype=torch.uint8)).flatten().round(decimals=4).tolist()
        [-2.0, 2.0]
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if len(mean) != len(std) or not all(
            0 < s < math.inf and math.isfinite(m) for m, s in zip(mean, std, strict=True)
        ):
            raise ValueError(
                f"mean {list(mean)} and std {list(std)}: expected one finite number of each a channel, std above 0."
            )
        scale = torch.tensor([1 / (255 * value) for value in std], dtype=torch.float32)
        shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32)
        self.register_buffer("scale", scale.view(-1, 1, 1))
        self.register_buffer("shift", shift.view(-1, 1, 1))
        self.dtype = dtype

    @classmethod
    def of(cls, manifest: Manifest, dtype: torch.dtype = torch.float32) -> Normalize:
        """Use the mean and std that `pack` measured; a channel that never varies gets std 1."""
        return cls(manifest.mean, [value or 1.0 for value in manifest.std], dtype)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalise a batch or one image.

        Raises:
            TypeError: what is no tensor: a list of images of different sizes, a batch with its targets.
        """
        given: Any = images
        if isinstance(given, list):
            raise TypeError(
                "images is a list: rows with sizes of their own come as a list."
                " Give the loader a transform that makes them one size, such as RandomResizedCrop(224)."
            )
        is_batch = isinstance(given, ImageBatch | RaggedBatch)
        # asked so: what stands in for a tensor while a model is traced is none
        if is_batch or not hasattr(given, "float"):
            instead = "normalize(batch.images)" if is_batch else "images, targets = batch; normalize(images)"
            raise TypeError(
                f"Normalize takes images uint8[..., C, H, W], and was given a {type(given).__name__}. Write {instead}."
            )
        scale, shift = self.get_buffer("scale"), self.get_buffer("shift")
        return torch.addcmul(shift, images.float(), scale).to(self.dtype)


class ColorJitter:
    """Change brightness, then contrast, then saturation of each image by random factors, as torchvision defines them.

    torchvision draws the order anew each time; here it is always this one. There is no hue.

    Args:
        brightness, contrast, saturation: v draws the factor from max(0, 1 - v) to 1 + v, (low, high) from low to high;
            0 leaves it out.
        seed: with the loader's seed, the epoch and the position in its order, fixes what is drawn for a row.

    Raises:
        ValueError: a factor is below 0, or of two the first is the larger one.

    Example:
        >>> from reader import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> int(ColorJitter(brightness=(0, 0))(batch).pixels.max())
        0
    """

    def __init__(
        self,
        brightness: float | tuple[float, float] = 0,
        contrast: float | tuple[float, float] = 0,
        saturation: float | tuple[float, float] = 0,
        *,
        seed: int = 0,
    ) -> None:
        self.brightness = _limits("brightness", brightness)
        self.contrast = _limits("contrast", contrast)
        self.saturation = _limits("saturation", saturation)
        self.seed = seed

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return uint8 pixels of the same shape. Padding, where rows have content, takes part as any pixel.

        Raises:
            ValueError: the images have neither 1 nor 3 channels.
        """
        check_batch(self, batch)
        drawn = draw(batch, self.seed, COLOR_JITTER).float()
        if batch.pixels.shape[-1] not in (1, 3):
            raise ValueError(f"ColorJitter takes 1 or 3 channels, the rows have {batch.pixels.shape[-1]}.")
        # one image at a time stays in a CPU's cache; a GPU, or the fused loop of torch.compile, wants them all
        is_loop = batch.pixels.device.type == "cpu" and not torch.compiler.is_compiling()
        step = 1 if is_loop else len(batch.pixels)
        parts = zip(batch.pixels.split(step), drawn.split(step, dim=1), strict=True)
        made = [self._jittered(part, part_drawn) for part, part_drawn in parts]
        return replaced(batch, pixels=torch.cat(made), content=batch.content, extras=batch.extras)

    def _jittered(self, pixels: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Jitter uint8[B, H, W, C] by float32[3, B]."""
        made = pixels.float()
        for drawn_factor, limits, other in (
            (drawn[0], self.brightness, _black),
            (drawn[1], self.contrast, _mean_gray),
            (drawn[2], self.saturation, _gray),
        ):
            if limits != (1, 1):
                factor = limits[0] + drawn_factor * (limits[1] - limits[0])
                made = _blended(made, other(made), factor.view(-1, 1, 1, 1))
        return made.to(torch.uint8)


def _blended(pixels: torch.Tensor, other: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Mix, and cut to whole levels, as torchvision does after each step."""
    return torch.addcmul(other * (1 - factor), pixels, factor).clamp_(0, 255).floor_()


def _black(pixels: torch.Tensor) -> torch.Tensor:
    """Give float32[1, 1, 1, 1]."""
    return pixels.new_zeros(1, 1, 1, 1)


def _gray(pixels: torch.Tensor) -> torch.Tensor:
    """Give float32[B, H, W, 1] whole levels."""
    if pixels.shape[-1] == 1:
        return pixels
    red, green, blue = pixels.split(1, dim=-1)
    return (red * _GRAY[0] + green * _GRAY[1] + blue * _GRAY[2]).floor()


def _mean_gray(pixels: torch.Tensor) -> torch.Tensor:
    """Give float32[B, 1, 1, 1]."""
    return _gray(pixels).mean((1, 2, 3), keepdim=True)


def _limits(name: str, value: float | tuple[float, float]) -> tuple[float, float]:
    low, high = (max(0, 1 - value), 1 + value) if isinstance(value, int | float) else value
    if not 0 <= low <= high < math.inf:
        raise ValueError(f"{name} is {value!r}, expected 0 or more, or two such factors, the smaller one first.")
    return low, high
