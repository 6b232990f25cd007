"""Normalize, and jitter of colors: batched, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from reader import compiled
from reader.format.manifest import Manifest
from reader.store import Batch, ImageBatch, RaggedBatch, replaced
from reader.transforms.kernels.regions import floats
from reader.transforms.program import STEPS, LevelTransform, Program
from reader.transforms.random import (
    COLOR_JITTER,
    COLOR_ORDER,
    FACTOR,
    FINITE,
    POSITIVE,
    TURN,
    check_batch,
    draw,
    numbers,
    span,
)

# The orders of brightness, contrast and saturation, by number; hue takes one of the 4 positions around them.
_ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
_HUE = 3
_STEPS = ("brightness", "contrast", "saturation", "hue")


class Normalize(torch.nn.Module):
    """uint8[..., C, H, W] -> dtype[..., C, H, W]: (x / 255 - mean) / std, one multiply and one add a pixel.

    An nn.Module, so that it can be the model's first layer, move with it and be exported with it. As a transform it takes a
    batch and must be last; on the CPU the images are then contiguous float[B, C, H, W], like a DataLoader's, no longer
    channels_last.

    Args:
        mean, std: per channel or for all, of pixels in [0, 1]; or pass a store's manifest to `Normalize.from_manifest`.
        dtype: dtype of the result; float16 and bfloat16 compute in float32.

    Raises:
        ValueError: mean and std have different lengths, std is not above 0, or dtype is invalid.

    Examples:
        >>> Normalize([0.5], [0.25])(torch.tensor([[[0, 255]]], dtype=torch.uint8)).flatten().round(decimals=4).tolist()
        [-2.0, 2.0]
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        mean, std = numbers("mean", mean, FINITE), numbers("std", std, POSITIVE)
        if len(mean) != len(std):
            raise ValueError(f"mean is {mean} and std {std}, expected one number of each a channel.")
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"dtype is {dtype!r}, expected one such as torch.float32: there is no inplace here.")
        scale = torch.tensor([1 / (255 * value) for value in std], dtype=torch.float32)
        shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32)
        self.register_buffer("scale", scale.view(-1, 1, 1))
        self.register_buffer("shift", shift.view(-1, 1, 1))
        self.dtype = dtype

    def extra_repr(self) -> str:
        """Return the settings for the repr of a model."""
        std = 1 / (255 * self.get_buffer("scale").double())
        mean = -self.get_buffer("shift").double() * std
        rounded = (", ".join(f"{value:.4g}" for value in values.flatten().tolist()) for values in (mean, std))
        return "mean=[{}], std=[{}], dtype={}".format(*rounded, self.dtype)

    @classmethod
    def from_manifest(cls, manifest: Manifest, dtype: torch.dtype = torch.float32) -> Normalize:
        """Use the mean and std that `pack` measured; a constant channel gets std 1.

        Raises:
            TypeError: manifest is of another type, such as its dataset.
        """
        given: object = manifest
        if not isinstance(given, Manifest):
            raise TypeError(
                f"manifest is a {type(given).__name__}, expected the manifest of a store. Write"
                " Normalize.from_manifest(dataset.manifest)."
            )
        return cls(manifest.mean, [value or 1.0 for value in manifest.std], dtype)

    def forward(self, images: Any) -> Any:
        """Normalize images, one image, or the pixels of a batch.

        Raises:
            TypeError: its pixels are floats already; or it is of another type, such as a list, or a batch with its targets.
        """
        if isinstance(images, Batch):
            return self._normalized(images)
        # not by its type: during tracing, the stand-in for a tensor is not a tensor
        if not hasattr(images, "float"):
            instead = (
                "Give the loader a transform that makes them one size, such as RandomResizedCrop(224)."
                if isinstance(images, list)
                else "Write images, targets = batch; normalize(images)."
            )
            raise TypeError(
                f"Normalize takes images uint8[..., C, H, W], and was given a {type(images).__name__}. {instead}"
            )
        if isinstance(images, torch.Tensor) and images.dtype != torch.uint8:
            raise TypeError(
                f"Normalize takes uint8 images and divides them by 255, and these are {images.dtype}. Leave out what made them"
                " floats, or the second Normalize."
            )
        return self._floats(images)

    def _floats(self, images: torch.Tensor) -> torch.Tensor:
        scale, shift = (self.get_buffer(name).to(images.device) for name in ("scale", "shift"))
        return torch.addcmul(shift, images.float(), scale).to(self.dtype)

    def _normalized(self, batch: ImageBatch | RaggedBatch) -> ImageBatch | RaggedBatch:
        check_batch(self, batch)
        if isinstance(batch, RaggedBatch):
            return floats(batch, self._floats)
        pixels = compiled.floats_of(batch.pixels, self._floats)
        if pixels is None:
            images = batch.pixels.movedim(-1, 1)
            # a network's first layers on the CPU take half the time for planes
            pixels = self._floats(images.contiguous() if images.device.type == "cpu" else images).movedim(1, -1)
        return replaced(batch, pixels=pixels, content=batch.content, extras=batch.extras)


class ColorJitter(LevelTransform):
    """Change brightness, contrast, saturation and hue of each image by random factors in a random order, as torchvision does.

    Args:
        brightness, contrast, saturation: v draws the factor from max(0, 1 - v) to 1 + v, (low, high) from low to high;
            None or 0 leaves it out.
        hue: v draws from -v to v, (low, high) from low to high, within -0.5..0.5 of a full turn of colors.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: a factor is below 0, hue is outside its limits, or the first of two is the larger one.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> int(ColorJitter(brightness=(0, 0))(batch).pixels.max())
        0
    """

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.brightness = span("brightness", brightness or 0, FACTOR, 1)
        self.contrast = span("contrast", contrast or 0, FACTOR, 1)
        self.saturation = span("saturation", saturation or 0, FACTOR, 1)
        self.hue, self.seed = span("hue", hue or 0, TURN, 0), seed

    def drawn(self, batch: ImageBatch | RaggedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the values of a call: float32[4, B] brightness, contrast, saturation and hue, and int64[B, 4] their order."""
        shares = torch.cat([draw(batch, self.seed, COLOR_JITTER), draw(batch, self.seed, COLOR_ORDER)]).float()
        limits = torch.tensor(self._all_limits(), device="cpu")
        factors = limits[:, :1] + shares[:4] * (limits[:, 1:] - limits[:, :1])
        number = (shares[4] * 24).long()
        three = torch.tensor(_ORDERS, device="cpu")[number // 4]
        # [1, 2, 0] and position 2 -> [1, 2, 3, 0]
        position, step = (number % 4)[:, None], torch.arange(4, device="cpu")
        order = three.gather(1, (step - (step > position).long()).clamp(max=2))
        return factors, torch.where(step == position, _HUE, order)

    def _steps(self, batch: ImageBatch | RaggedBatch) -> Program:
        """Draw the steps in their orders; those without an effect are left out."""
        factors, orders = self.drawn(batch)
        none = (1, 1), (1, 1), (1, 1), (0, 0)
        kinds = [
            STEPS[step] if limits != at_rest else STEPS["unchanged"]
            for step, limits, at_rest in zip(_STEPS, self._all_limits(), none, strict=True)
        ]
        return Program.from_kinds(torch.tensor(kinds, device="cpu")[orders], factors.T.gather(1, orders))

    def _all_limits(self) -> tuple[tuple[float, float], ...]:
        return self.brightness, self.contrast, self.saturation, self.hue
