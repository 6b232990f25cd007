"""Overwrites parts of images, by a level or by another image of the batch, and mixes images: RandomErasing, CutMix, MixUp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from reader import compiled
from reader.described import Described
from reader.host_values import on_host
from reader.store import ImageBatch, replaced
from reader.transforms.kernels.pixel_ops import in_parts, tensor_on
from reader.transforms.labels import refuse_labels
from reader.transforms.program import RowTransform
from reader.transforms.random import (
    CUTMIX,
    ERASING,
    LEVEL,
    MIXUP,
    POSITIVE,
    SHARE,
    check_batch,
    draw,
    gammas,
    host_batch,
    integer,
    noise,
    number,
    numbers,
    rectangles,
    span,
)

# Attempts that torchvision makes to draw a rectangle before it leaves an image unchanged.
_TRIES = 10
# Mean and standard deviation of ImageNet's photographs, over all channels, in levels. timm draws its noise after Normalize;
# this is the same noise before it.
_NOISE = (0.449 * 255, 0.226 * 255)


class RandomErasing(RowTransform):
    """Overwrite a random rectangle of each image with probability p, as torchvision does; boxes and masks stay.

    Args:
        p: 0..1.
        scale: lowest and highest area of the rectangle, as a share of the image's, 0..1.
        ratio: lowest and highest height / width of the rectangle.
        value: level, 0..255, one for each channel, or "random": noise with the mean and deviation of photographs.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: an argument is not one of these.

    Examples:
        >>> from pixpack import MemmapDataset
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
        self.p, self.seed = number("p", p, SHARE), seed
        self.scale, self.ratio = span("scale", scale, SHARE), span("ratio", ratio, POSITIVE)
        # None: noise
        self.value = None if value == "random" else numbers("value", value, LEVEL)

    def _changed(self, batch: ImageBatch) -> ImageBatch:
        pixels = compiled.copied(batch.pixels)
        for n, (x0, y0, x1, y1) in enumerate(self.boxes(host_batch(batch)).tolist()):
            if x0 < x1:
                pixels[n, y0:y1, x0:x1] = self._levels(batch, n, (x0, y0, x1, y1))
        return replaced(batch, pixels=pixels, content=batch.content, extras=batch.extras)

    def boxes(self, batch: ImageBatch) -> torch.Tensor:
        """Draw the rectangles that a call would overwrite: int64[B, 4] x0, y0, x1, y1; an empty one overwrites nothing."""
        height, width = batch.pixels.shape[1:3]
        drawn = draw(batch, self.seed, ERASING)
        chance, areas, ratios, (down, across) = drawn.split([1, _TRIES, _TRIES, 2])
        tall, wide = rectangles(areas, ratios, height * width, self.scale, self.ratio)
        fits = (tall < height) & (wide < width)
        first = fits.byte().argmax(0, keepdim=True)
        is_erased = fits.any(0) & (chance[0] < self.p)
        tall, wide = (torch.where(is_erased, side.gather(0, first)[0], 0) for side in (tall, wide))
        y0, x0 = (down * (height - tall + 1)).long(), (across * (width - wide + 1)).long()
        return torch.stack([x0, y0, x0 + wide, y0 + tall], -1)

    def _levels(self, batch: ImageBatch, n: int, box: tuple[int, int, int, int]) -> torch.Tensor:
        """Return uint8 levels for a rectangle of image n, or one for each channel."""
        _, _, width, channels = batch.pixels.shape
        if self.value is None:
            x0, y0, x1, y1 = box
            places = np.arange(y0, y1)[:, None] * width * channels + np.arange(x0 * channels, x1 * channels)
            levels = np.clip(np.round(_NOISE[0] + noise(host_batch(batch), n, self.seed, places) * _NOISE[1]), 0, 255)
            noisy = torch.from_numpy(levels.astype(np.uint8)).view(y1 - y0, x1 - x0, channels)
            return noisy.to(batch.pixels.device)
        if len(self.value) not in (1, channels):
            raise ValueError(f"value is {self.value!r}, expected one level, or one for each of {channels} channels.")
        return tensor_on(batch.pixels.device, self.value).to(torch.uint8)


class _PairMix(Described):
    """Mixes each image with the previous one in the batch, and their targets by the same share: the batch should be shuffled."""

    # read by RandomApply and RandomChoice: one draw for a batch
    needs_full_batch = True

    def __init__(
        self, *, alpha: float = 1.0, num_classes: int | None = None, label_smoothing: float = 0.0, seed: int = 0
    ) -> None:
        self.alpha, self.label_smoothing = (
            number("alpha", alpha, POSITIVE),
            number("label_smoothing", label_smoothing, SHARE),
        )
        self.num_classes = None if num_classes is None else integer("num_classes", num_classes, 1)
        self.seed = seed

    def _check(self, batch: ImageBatch) -> None:
        """Refuse everything except a batch of images and classes."""
        check_batch(self, batch)
        if not isinstance(batch, ImageBatch):
            raise ValueError(
                "the images have sizes of their own: let RandomResizedCrop or ResizeCenterCrop come first."
            )
        refuse_labels(self, batch)

    def _share(self, batch: ImageBatch, first_stream: int) -> torch.Tensor:
        """Draw the weight of an image's own pixels, beta distributed: float64[1, 1], by the first row; 1 without rows."""
        if not len(batch):
            return torch.ones(1, 1, dtype=torch.float64, device=batch.pixels.device)
        both = gammas(batch[:1], self.seed, first_stream, 2, self.alpha)
        return both[:1] / both.sum(0)

    def _targets(self, targets: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """Mix targets to float32[B, classes], from int64[B] (-1 gives zeros) or from [B, classes]."""
        if targets.ndim == 1 and not targets.dtype.is_floating_point:
            if self.num_classes is None:
                raise ValueError(f"{type(self).__name__} needs num_classes=, since targets are numbers of classes.")
            self._check_labels(targets, self.num_classes)
            classes = torch.arange(self.num_classes, device=targets.device)
            result = (targets[:, None] == classes).float()
            result = (
                result * (1 - self.label_smoothing) + self.label_smoothing / self.num_classes * (targets >= 0)[:, None]
            )
        elif targets.ndim == 2:
            result = targets.float()
            result = result * (1 - self.label_smoothing) + self.label_smoothing / result.shape[1]
        else:
            raise ValueError(
                f"{type(self).__name__} mixes classes, and targets are {targets.dtype}{list(targets.shape)}."
            )
        share = share.float()
        return result * share + result.roll(1, 0) * (1 - share)

    def _check_labels(self, targets: torch.Tensor, num_classes: int) -> None:
        """Refuse labels outside the classes; values that only a device knows are not read, since that waits for it."""
        here = on_host(targets)
        if here is not None and (here >= num_classes).any():
            raise ValueError(
                f"{type(self).__name__} has num_classes={num_classes}, and a target is {int(here.max())}, expected less. Give"
                " the number of all classes."
            )


class MixUp(_PairMix):
    """Mix each image of a batch with the previous one, by one share for the batch, as torchvision does.

    The share is drawn from Beta(alpha, alpha), by the first row of the batch.

    Args:
        alpha: above 0, finite.
        num_classes: the number of classes; not needed if targets have a column for each class.
        label_smoothing: share of each target that is spread evenly over all classes.
        seed: with the loader's seed, the epoch and the position, determines the random numbers of a batch.

    Raises:
        ValueError: alpha, num_classes or label_smoothing is out of range.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 80]]
        >>> MixUp(num_classes=3)(batch).targets.sum(1).tolist()
        [1.0, 1.0]
    """

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return uint8 pixels of the same shape, rounded, and targets float32[B, classes].

        Raises:
            ValueError: num_classes is missing, a target is not below it, or the rows have boxes or masks.
        """
        self._check(batch)
        share = self.share(batch)

        def mixed(pixels: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
            """Mix pixels with those of the previous rows."""
            return others.float().lerp(pixels.float(), share[0, 0].float()).round().to(torch.uint8)

        result = replaced(
            batch, pixels=in_parts(mixed, batch.pixels, batch.pixels.roll(1, 0)), content=None, extras=batch.extras
        )
        result.targets = self._targets(batch.targets, share)
        return result

    def share(self, batch: ImageBatch) -> torch.Tensor:
        """Draw the weight of each image's own pixels: float64[1, 1]."""
        return self._share(batch, MIXUP)


class CutMix(_PairMix):
    """Paste a rectangle of the previous image into each image of a batch, the same for all, as torchvision does.

    Its area is one minus a share drawn from Beta(alpha, alpha), by the first row of the batch; targets use the part inside
    the image.

    Args:
        alpha: above 0, finite.
        num_classes: the number of classes; not needed if targets have a column for each class.
        label_smoothing: share of each target that is spread evenly over all classes.
        seed: with the loader's seed, the epoch and the position, determines the random numbers of a batch.

    Raises:
        ValueError: alpha, num_classes or label_smoothing is out of range.
    """

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return uint8 pixels of the same shape, and targets float32[B, classes].

        Raises:
            ValueError: num_classes is missing, a target is not below it, or the rows have boxes or masks.
        """
        self._check(batch)
        x0, y0, x1, y1 = self.box(host_batch(batch)).tolist()
        height, width = batch.pixels.shape[1:3]
        pixels = compiled.copied(batch.pixels)
        if len(batch):
            pixels[1:, y0:y1, x0:x1] = batch.pixels[:-1, y0:y1, x0:x1]
            pixels[0, y0:y1, x0:x1] = batch.pixels[-1, y0:y1, x0:x1]
        share = 1 - tensor_on(batch.pixels.device, [[(x1 - x0) * (y1 - y0)]]) / (height * width)
        result = replaced(batch, pixels=pixels, content=None, extras=batch.extras)
        result.targets = self._targets(batch.targets, share)
        return result

    def box(self, batch: ImageBatch) -> torch.Tensor:
        """Draw the rectangle of a call: int64[4] x0, y0, x1, y1."""
        share, (height, width) = self._share(batch, CUTMIX)[0, 0], batch.pixels.shape[1:3]
        if not len(batch):
            return torch.zeros(4, dtype=torch.int64, device=share.device)
        across, down = draw(batch[:1], self.seed, range(CUTMIX + 34, CUTMIX + 36))[:, 0]
        x, y = (across * width).long(), (down * height).long()
        half = 0.5 * (1 - share).sqrt()
        wide, tall = (half * width).long(), (half * height).long()
        limits = torch.stack([x - wide, y - tall, x + wide, y + tall])
        sides = tensor_on(limits.device, [width, height, width, height])
        return torch.minimum(limits.clamp(min=0), sides)
