"""Normalize, and jitter of colors: batched, on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from reader import compiled
from reader.format.manifest import Manifest
from reader.store import Batch, ImageBatch, RaggedBatch, replaced
from reader.transforms.detection.view import changed_images
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.kernels.pixel_ops import (
    blended,
    check_channels,
    gray,
    hue,
    in_parts,
    interleaved,
    levels_of,
    mean_gray,
    planes,
)
from reader.transforms.random import COLOR_JITTER, COLOR_ORDER, check_batch, draw, numbers, two_numbers

# The orders of brightness, contrast and saturation, by these numbers; hue has one of the 4 positions around them.
_ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
_SATURATION, _HUE = 2, 3
_STEPS = ("brightness", "contrast", "saturation", "hue")


class Normalize(torch.nn.Module):
    """uint8[..., C, H, W] -> dtype[..., C, H, W]: (x / 255 - mean) / std, one multiply and one add a pixel.

    An nn.Module, so that it can be the model's first layer, move with it and be exported with it.

    Args:
        mean, std: per channel, of pixels in [0, 1]; or pass a store's manifest to `Normalize.of`.
        dtype: of the result; float16 and bfloat16 compute in float32.

    Raises:
        ValueError: mean and std have different lengths, std is not above 0, or dtype is none.

    Example:
        >>> Normalize([0.5], [0.25])(torch.tensor([[[0, 255]]], dtype=torch.uint8)).flatten().round(decimals=4).tolist()
        [-2.0, 2.0]
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        mean, std = numbers("mean", mean), numbers("std", std)
        if len(mean) != len(std) or not all(
            0 < s < math.inf and math.isfinite(m) for m, s in zip(mean, std, strict=True)
        ):
            raise ValueError(f"mean {mean} and std {std}: expected one finite number of each a channel, std above 0.")
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"dtype is {dtype!r}, expected one such as torch.float32: there is no inplace here.")
        scale = torch.tensor([1 / (255 * value) for value in std], dtype=torch.float32)
        shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32)
        self.register_buffer("scale", scale.view(-1, 1, 1))
        self.register_buffer("shift", shift.view(-1, 1, 1))
        self.dtype = dtype

    def extra_repr(self) -> str:
        """Return what a print of the model shows of it."""
        std = 1 / (255 * self.get_buffer("scale").double())
        mean = -self.get_buffer("shift").double() * std
        rounded = (", ".join(f"{value:.4g}" for value in values.flatten().tolist()) for values in (mean, std))
        return "mean=[{}], std=[{}], dtype={}".format(*rounded, self.dtype)

    @classmethod
    def of(cls, manifest: Manifest, dtype: torch.dtype = torch.float32) -> Normalize:
        """Use the mean and std that `pack` measured; a channel that never varies gets std 1.

        Raises:
            TypeError: manifest is something else, such as the dataset that has it.
        """
        given: object = manifest
        if not isinstance(given, Manifest):
            raise TypeError(
                f"manifest is a {type(given).__name__}, expected the manifest of a store. Write Normalize.of(dataset.manifest)."
            )
        return cls(manifest.mean, [value or 1.0 for value in manifest.std], dtype)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalize a batch or one image.

        Raises:
            TypeError: not a tensor: a list of images of different sizes, a batch with its targets.
        """
        given: object = images
        if isinstance(given, list):
            raise TypeError(
                "images is a list: rows with sizes of their own come as a list."
                " Give the loader a transform that makes them one size, such as RandomResizedCrop(224)."
            )
        is_batch = isinstance(given, Batch)
        # by this check: the stand-in for a tensor during tracing is not a tensor
        if is_batch or not hasattr(given, "float"):
            instead = "normalize(batch.images)" if is_batch else "images, targets = batch; normalize(images)"
            raise TypeError(
                f"Normalize takes images uint8[..., C, H, W], and was given a {type(given).__name__}. Write {instead}."
            )
        scale, shift = self.get_buffer("scale"), self.get_buffer("shift")
        return torch.addcmul(shift, images.float(), scale).to(self.dtype)


class ColorJitter(compiled.CompiledTransform):
    """Change brightness, contrast, saturation and hue of each image by random factors in a random order, as torchvision does.

    Args:
        brightness, contrast, saturation: v draws the factor from max(0, 1 - v) to 1 + v, (low, high) from low to high;
            None or 0 leaves it out.
        hue: v draws from -v to v, (low, high) from low to high, within -0.5..0.5 of a full turn of colors.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: a factor is below 0, hue is outside its limits, or the first of two is the larger one.

    Example:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> int(ColorJitter(brightness=(0, 0))(batch).pixels.max())
        0
    """

    # images of different sizes stay so
    keeps_sizes = True

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.brightness = _limits("brightness", brightness)
        self.contrast = _limits("contrast", contrast)
        self.saturation = _limits("saturation", saturation)
        self.hue = _hue_limits(hue)
        self.seed = seed

    def __call__(self, batch: ImageBatch | RaggedBatch) -> ImageBatch | RaggedBatch:
        """Return uint8 pixels of the same shape. Padding, where rows have content, takes part as any pixel.

        Raises:
            ValueError: the images have neither 1 nor 3 channels.
        """
        check_batch(self, batch, takes_ragged=True)
        if isinstance(batch, RaggedBatch):
            return changed_images(self, batch)
        check_channels(self, batch.pixels)
        result = compiled.augmented(batch.pixels, *self.steps(batch)) if compiled.take_steps(batch.pixels) else None
        if result is None:
            result = self._by_torch(batch)
        return replaced(batch, pixels=result, content=batch.content, extras=batch.extras)

    def _by_torch(self, batch: ImageBatch) -> torch.Tensor:
        factors, orders = self.drawn(batch)
        if batch.pixels.device.type == "cpu" and not torch.compiler.is_compiling():
            result = torch.empty_like(batch.pixels)
            # one image at a time stays in a CPU's cache
            for n, order in enumerate(orders.tolist()):
                image = self._in_order(planes(batch.pixels[n : n + 1]), factors[:, n : n + 1], order)
                result[n] = interleaved(image)[0]
            return result
        return in_parts(self._in_any_order, batch.pixels.movedim(-1, 1), factors.T, orders).movedim(1, -1)

    def drawn(self, batch: ImageBatch | RaggedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw what a call would use: float32[4, B] brightness, contrast, saturation and hue, and int64[B, 4] their order."""
        shares = torch.cat([draw(batch, self.seed, COLOR_JITTER), draw(batch, self.seed, COLOR_ORDER)]).float()
        limits = tensor_on(shares.device, self._all_limits())
        factors = limits[:, :1] + shares[:4] * (limits[:, 1:] - limits[:, :1])
        number = (shares[4] * 24).long()
        three = tensor_on(shares.device, _ORDERS)[number // 4]
        # [1, 2, 0] and position 2 -> [1, 2, 3, 0]
        position, step = (number % 4)[:, None], torch.arange(4, device=shares.device)
        order = three.gather(1, (step - (step > position).long()).clamp(max=2))
        return factors, torch.where(step == position, _HUE, order)

    def steps(self, batch: ImageBatch | RaggedBatch) -> compiled.StepArrays:
        """Draw what a call would do as `compiled.augmented` takes it."""
        factors, orders = self.drawn(batch)
        none = (1, 1), (1, 1), (1, 1), (0, 0)
        kinds = [
            compiled.STEPS[step] if limits != at_rest else 0
            for step, limits, at_rest in zip(_STEPS, self._all_limits(), none, strict=True)
        ]
        return torch.tensor(kinds, device="cpu")[orders], factors.T.gather(1, orders)[..., None]

    def _all_limits(self) -> tuple[tuple[float, float], ...]:
        return self.brightness, self.contrast, self.saturation, self.hue

    def _in_order(self, pixels: torch.Tensor, factors: torch.Tensor, order: list[int]) -> torch.Tensor:
        """Jitter one image, uint8[1, C, H, W] by float32[4, 1]."""
        result, limits = pixels.float(), self._all_limits()
        for step in order:
            if step == _HUE and self.hue != (0, 0):
                result = hue(levels_of(result), factors[step]).float()
            elif step != _HUE and limits[step] != (1, 1) and not (step == _SATURATION and result.shape[1] == 1):
                result = blended(result, (_black, mean_gray, gray)[step](result), factors[step])
        return levels_of(result)

    def _in_any_order(self, pixels: torch.Tensor, factors: torch.Tensor, orders: torch.Tensor) -> torch.Tensor:
        """Jitter images, uint8[B, C, H, W] by float32[B, 4], without asking the device for their orders."""
        result, has_hue = pixels.contiguous().float(), self.hue != (0, 0)
        position = (orders == _HUE).byte().argmax(1)
        # the three around hue, each before it or after it
        three = orders.gather(
            1, (torch.arange(3, device=orders.device) + (torch.arange(3, device=orders.device) >= position[:, None]))
        )
        if self._all_limits()[:3] != ((1, 1),) * 3:
            for n in range(3):
                result = _one_of_three(result, factors, three[:, n], n < position if has_hue else None)
        if not has_hue:
            return result.to(torch.uint8)
        result = hue(result.to(torch.uint8), factors[:, _HUE]).float()
        for n in range(3):
            result = _one_of_three(result, factors, three[:, n], n >= position)
        return result.to(torch.uint8)


def _one_of_three(
    pixels: torch.Tensor, factors: torch.Tensor, which: torch.Tensor, is_now: torch.Tensor | None
) -> torch.Tensor:
    """Change each image's brightness (0), contrast (1) or saturation (2), or nothing where it is not its turn."""
    factor = factors.gather(1, which[:, None])[:, 0]
    if is_now is not None:
        factor = torch.where(is_now, factor, 1.0)
    if pixels.shape[1] == 1:
        # a single channel is its own gray
        factor = torch.where(which == _SATURATION, 1.0, factor)
    kind, of_gray = which.view(-1, 1, 1, 1), gray(pixels)
    other = torch.where(kind == 1, of_gray.mean((1, 2, 3), keepdim=True), torch.where(kind == 2, of_gray, 0.0))
    return blended(pixels, other, factor)


def _black(pixels: torch.Tensor) -> torch.Tensor:
    """Give float32[1, 1, 1, 1]."""
    return pixels.new_zeros(1, 1, 1, 1)


def _limits(name: str, value: float | Sequence[float] | None) -> tuple[float, float]:
    value = 0 if value is None else value
    given = two_numbers(name, value)
    low, high = given if isinstance(given, tuple) else (max(0, 1 - given), 1 + given)
    is_negative = not isinstance(given, tuple) and given < 0
    if is_negative or not 0 <= low <= high < math.inf:
        raise ValueError(f"{name} is {value!r}, expected 0 or more, or two such factors, the smaller one first.")
    return low, high


def _hue_limits(value: float | Sequence[float] | None) -> tuple[float, float]:
    value = 0 if value is None else value
    given = two_numbers("hue", value)
    low, high = given if isinstance(given, tuple) else (-given, given)
    if not -0.5 <= low <= high <= 0.5:
        raise ValueError(
            f"hue is {value!r}, expected 0 to 0.5, or two numbers from -0.5 to 0.5, the smaller one first."
        )
    return low, high
