"""torchvision's RandomPhotometricDistort, of images of one size and of many."""

from __future__ import annotations

import itertools

import torch

from reader import compiled
from reader.store import ImageBatch, RaggedBatch, replaced
from reader.transforms.color import ColorJitter
from reader.transforms.detection.view import changed_by_row, refuse_masks
from reader.transforms.kernels import pixel_ops
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.kernels.regions import channels_of, stepped
from reader.transforms.random import PHOTOMETRIC, check_batch, checked_p, draw, numbers

# In the order of torchvision, of `compiled.STEPS` and `pixel_ops`; contrast changes before the two behind it, or after them.
_STEPS = ("brightness", "contrast", "saturation", "hue", "contrast")
# All orders of three channels; the first changes nothing.
_ORDERS = tuple(itertools.permutations(range(3)))

FactorRange = tuple[float, float]


class RandomPhotometricDistort(compiled.CompiledTransform):
    """Change brightness, contrast, saturation and hue, each with probability p, and the order of channels: torchvision's, of SSD.

    Images of different sizes, a RaggedBatch, keep them.

    Args:
        brightness, contrast, saturation: lowest and highest factor.
        hue: lowest and highest turn, within -0.5..0.5 of a full turn of colors.
        p: probability of each of these, and of another order of channels, 0 to 1.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: a factor is below 0, hue is outside its limits, the first of two is the larger one, or p is not a probability.

    Example:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> RandomPhotometricDistort()(batch).images.shape
        torch.Size([2, 3, 32, 32])
    """

    # images of different sizes stay so
    keeps_sizes = True

    def __init__(
        self,
        brightness: FactorRange = (0.875, 1.125),
        contrast: FactorRange = (0.5, 1.5),
        saturation: FactorRange = (0.5, 1.5),
        hue: FactorRange = (-0.05, 0.05),
        p: float = 0.5,
        *,
        seed: int = 0,
    ) -> None:
        given = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
        for name, value in given.items():
            if len(numbers(name, value)) != 2:
                raise ValueError(f"{name} is {value!r}, expected two numbers, the smaller one first.")
        # checks the limits
        jitter = ColorJitter(tuple(brightness), tuple(contrast), tuple(saturation), tuple(hue))
        self.brightness, self.contrast, self.saturation, self.hue = (
            jitter.brightness,
            jitter.contrast,
            jitter.saturation,
            jitter.hue,
        )
        self.p, self.seed = checked_p(p), seed

    def __call__(self, batch: ImageBatch | RaggedBatch) -> ImageBatch | RaggedBatch:
        """Return uint8 pixels of the same shapes. Padding, where rows have content, takes part as any pixel.

        Raises:
            ValueError: the images have neither 1 nor 3 channels, or are floats, or images of different sizes have masks.
        """
        check_batch(self, batch, takes_ragged=True)
        if isinstance(batch, RaggedBatch):
            refuse_masks(self, batch)
            result = stepped(batch, self._steps)
            return changed_by_row(self, batch) if result is None else self._with_ordered_channels(result)
        pixel_ops.check_channels(self, batch.pixels)
        pixels = compiled.augmented(batch.pixels, *self._steps(batch)) if compiled.take_steps(batch.pixels) else None
        pixels = self._by_torch(batch) if pixels is None else pixels
        if pixels.shape[-1] == 3:
            pixels = _ordered(pixels, self.drawn(batch)[2])
        return replaced(batch, pixels=pixels, content=batch.content, extras=batch.extras)

    def drawn(self, batch: ImageBatch | RaggedBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw which steps are done, bool[B, 5], their factors, float32[B, 5], and int64[B, 3], which channel each becomes."""
        shares = draw(batch, self.seed, PHOTOMETRIC).T
        limits = self.brightness, self.contrast, self.saturation, self.hue
        low, high = tensor_on(shares.device, limits, torch.float64).T
        factors = (low + shares[:, 4:8] * (high - low)).float()
        is_done, is_before = shares[:, :4] < self.p, shares[:, 8:9] < 0.5
        contrast = is_done[:, 1:2]
        is_done = torch.cat([is_done[:, :1], contrast & is_before, is_done[:, 2:], contrast & ~is_before], 1)
        number = torch.where(shares[:, 9] < self.p, (shares[:, 10] * len(_ORDERS)).long(), 0)
        return is_done, torch.cat([factors, factors[:, 1:2]], 1), tensor_on(shares.device, _ORDERS)[number]

    def _steps(self, batch: ImageBatch | RaggedBatch) -> compiled.StepArrays:
        is_done, factors, _ = self.drawn(batch)
        kinds = torch.tensor([compiled.STEPS[name] for name in _STEPS], device="cpu")
        return is_done * kinds, factors[..., None]

    def _by_torch(self, batch: ImageBatch) -> torch.Tensor:
        is_done, factors, _ = self.drawn(batch)
        images = batch.pixels.movedim(-1, 1)
        for n, name in enumerate(_STEPS):
            result = getattr(pixel_ops, name)(images, factors[:, n])
            images = torch.where(is_done[:, n].view(-1, 1, 1, 1), result, images)
        return images.movedim(1, -1)

    def _with_ordered_channels(self, batch: RaggedBatch) -> RaggedBatch:
        """Order the channels of images whose memory is nobody else's."""
        if channels_of(batch) == 3:
            for n, order in enumerate(self.drawn(batch)[2].tolist()):
                if order != [0, 1, 2]:
                    image = batch.image(n).numpy()
                    # channel by channel: an array of indices takes ten times as long
                    for channel, values in enumerate([image[..., source].copy() for source in order]):
                        image[..., channel] = values
        return batch


def _ordered(pixels: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Make uint8[B, H, W, 3] whose channel c is channel order[:, c] of each, int64[B, 3]."""
    first, second, third = pixels.unbind(-1)
    which = order[:, :, None, None].unbind(1)
    return torch.stack([torch.where(n == 0, first, torch.where(n == 1, second, third)) for n in which], -1)
