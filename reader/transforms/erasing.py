"""RandomErasing: a rectangle of each image is overwritten."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from reader.store import ImageBatch, replaced
from reader.transforms.pixel_ops import in_parts
from reader.transforms.random import ERASING, check_batch, checked_p, draw, noise

# As often torchvision draws a rectangle before it leaves an image as it is.
_TRIES = 10
# Mean and standard deviation of photographs of ImageNet, all channels alike, in levels: so timm's noise, which is drawn after
# Normalize, looks before it.
_NOISE = (0.449 * 255, 0.226 * 255)


class RandomErasing:
    """Overwrite a random rectangle of each image with probability p, as torchvision does; boxes and masks stay.

    Args:
        p: 0..1.
        scale: lowest and highest area of the rectangle, as a share of the image's, 0..1.
        ratio: lowest and highest height / width of it.
        value: level, 0..255, one for each channel, or "random": noise, with the mean and deviation of photographs.
        seed: with the loader's seed, the epoch and the position in its order, fixes what is drawn for a row.

    Raises:
        ValueError: an argument is none of that.

    Example:
        >>> from reader import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> int((RandomErasing(1, scale=(0.5, 0.5), ratio=(1, 1))(batch).pixels == 0).all(-1).sum(1).sum(1).min()) >= 500
        True
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | str = 0,
        *,
        seed: int = 0,
    ) -> None:
        if len(scale) != 2 or not 0 <= scale[0] <= scale[1] <= 1:
            raise ValueError(f"scale is {scale!r}, expected two shares from 0 to 1, the smaller one first.")
        if len(ratio) != 2 or not 0 < ratio[0] <= ratio[1] < math.inf:
            raise ValueError(f"ratio is {ratio!r}, expected two numbers above 0, the smaller one first.")
        if isinstance(value, str) and value != "random":
            raise ValueError(f'value is {value!r}, expected a level, one for each channel, or "random".')
        self.p, self.scale, self.ratio, self.value, self.seed = checked_p(p), scale, ratio, value, seed

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return uint8 pixels of the same shape.

        Raises:
            ValueError: value has another number of channels.
        """
        check_batch(self, batch)
        boxes, sample = self.boxes(batch), torch.arange(len(batch), device=batch.pixels.device)

        def erased(pixels: torch.Tensor, boxes: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
            """Overwrite a rectangle of each."""
            height, width = pixels.shape[1:3]
            x0, y0, x1, y1 = boxes[..., None].unbind(1)
            y, x = torch.arange(height, device=pixels.device), torch.arange(width, device=pixels.device)
            is_down, is_across = (y >= y0) & (y < y1), (x >= x0) & (x < x1)
            is_erased = is_down[:, :, None] & is_across[:, None, :]
            return torch.where(is_erased[..., None], self._levels(batch, pixels, sample), pixels)

        pixels = in_parts(erased, batch.pixels, boxes, sample)
        return replaced(batch, pixels=pixels, content=batch.content, extras=batch.extras)

    def boxes(self, batch: ImageBatch) -> torch.Tensor:
        """Draw the rectangles that a call would overwrite: int64[B, 4] x0, y0, x1, y1; of no area where it overwrites none."""
        height, width = batch.pixels.shape[1:3]
        drawn = draw(batch, self.seed, ERASING)
        areas, ratios, (down, across) = (
            drawn[1 : 1 + _TRIES],
            drawn[1 + _TRIES : 1 + 2 * _TRIES],
            drawn[1 + 2 * _TRIES :],
        )
        area = height * width * (self.scale[0] + areas * (self.scale[1] - self.scale[0]))
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratio = (low + ratios * (high - low)).exp()
        tall, wide = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
        fits = (tall < height) & (wide < width)
        first = fits.byte().argmax(0, keepdim=True)
        is_erased = fits.any(0) & (drawn[0] < self.p)
        tall, wide = (torch.where(is_erased, side.gather(0, first)[0], 0) for side in (tall, wide))
        y0, x0 = (down * (height - tall + 1)).long(), (across * (width - wide + 1)).long()
        return torch.stack([x0, y0, x0 + wide, y0 + tall], -1)

    def _levels(self, batch: ImageBatch, pixels: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """Give uint8 levels that broadcast to the pixels of these samples."""
        channels = pixels.shape[-1]
        if isinstance(self.value, str):
            numbers = noise(batch, sample, self.seed, pixels[0].numel()).view(pixels.shape)
            return (_NOISE[0] + numbers * _NOISE[1]).round().clamp(0, 255).to(torch.uint8)
        given = [self.value] if isinstance(self.value, int | float) else list(self.value)
        if len(given) not in (1, channels):
            raise ValueError(f"value is {self.value!r}, expected one level, or one for each of {channels} channels.")
        return torch.tensor(given, device=pixels.device).to(torch.uint8)
