"""Random crops and flips of batches, as torchvision draws them.

Each sample has its own parameters, drawn from (seed, epoch, position, row). Boxes and masks in extras move with the pixels.
The given batch is never changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from reader.epoch import on_one_torch_thread
from reader.store import ImageBatch, RaggedBatch
from reader.transforms.fills import Fill
from reader.transforms.kernels.regions import Bools, Numbers
from reader.transforms.padding import Padding
from reader.transforms.random import (
    CROP,
    FLIP,
    POSITIVE,
    RESIZED_CROP,
    SHARE,
    SMOOTH,
    VERTICAL_FLIP,
    checked_size,
    draw,
    number,
    one_of,
    rectangles,
    span,
)
from reader.transforms.view import View, ViewTransform

# Boxes that torchvision's RandomResizedCrop draws before it takes the central one.
_TRIES = 10


class _RandomFlip(ViewTransform):
    """Flips each image with probability p."""

    # the streams of its random numbers
    _stream: range

    def __init__(self, p: float = 0.5, *, seed: int = 0) -> None:
        self.p, self.seed = number("p", p, SHARE), seed

    def chosen(self, batch: ImageBatch | RaggedBatch) -> torch.Tensor:
        """Draw which images a call flips: bool[B], on the host."""
        return torch.from_numpy(self._drawn(View.from_batch(self, batch)))

    def _drawn(self, view: View) -> Bools:
        return draw(view.host, self.seed, self._stream).numpy()[0] < self.p


class RandomHorizontalFlip(_RandomFlip):
    """Mirror each image left to right with probability p; boxes, masks and content with it.

    Images of different sizes, a RaggedBatch, keep their sizes.

    Args:
        p: 0..1.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: p is not a probability.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> torch.equal(RandomHorizontalFlip(1)(batch).images, batch.images.flip(-1))
        True
    """

    _stream = FLIP

    def apply(self, view: View) -> View:
        """Mirror the images of a view."""
        return view.mirrored(self._drawn(view))


class RandomVerticalFlip(_RandomFlip):
    """Turn each image upside down with probability p; boxes, masks and content with it.

    Images of different sizes, a RaggedBatch, keep their sizes.

    Args:
        p: 0..1.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: p is not a probability.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> torch.equal(RandomVerticalFlip(1)(batch).images, batch.images.flip(-2))
        True
    """

    _stream = VERTICAL_FLIP

    def apply(self, view: View) -> View:
        """Turn the images of a view."""
        return view.turned(self._drawn(view))


class RandomCrop(ViewTransform):
    """Crop size x size pixels (or (height, width)) at a random place of each image, after padding, as torchvision does.

    In rows with content, the place is drawn inside the content and its padding. If that is smaller than the crop, the crop
    holds all of it, at a random place. Boxes are clipped to the crop; empty ones are dropped. Images of different sizes, a
    RaggedBatch, become an ImageBatch.

    Args:
        size: pixels, or (height, width).
        padding: pixels on every side, two of them for left and right, and top and bottom, or four: left, top, right, bottom.
        pad_if_needed: pad images that are smaller than size until they are not.
        fill: level of constant padding, one for each channel, or a dict as in torchvision; masks get 255.
        padding_mode: "constant", "edge", "reflect" or "symmetric", see Pad.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: size is not 1 or more pixels, or padding is negative.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> RandomCrop(32, padding=4)(batch).images.shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        padding: int | Sequence[int] | None = 0,
        pad_if_needed: bool = False,
        fill: Fill = 0,
        padding_mode: str = "constant",
        *,
        seed: int = 0,
    ) -> None:
        self.height, self.width = checked_size(size)
        self.padding = Padding(0 if padding is None else padding, fill, padding_mode)
        self.pad_if_needed, self.seed = pad_if_needed, seed

    def apply(self, view: View) -> View:
        """Pad and crop the images of a view.

        Raises:
            ValueError: the padded images are smaller than size; or the mode repeats images that have boxes or their own sizes.
        """
        size, sides = (self.width, self.height), np.array([self.padding.sides])
        if self.pad_if_needed:
            more = size - view.sizes - sides[:, :2] - sides[:, 2:]
            sides = sides + np.tile(more.clip(min=0), 2)
        padded = self.padding.applied(view, sides)
        room = padded.sizes - size
        if (room < 0).any():
            row_width, row_height = view.sizes[(room < 0).any(1)][0].tolist()
            raise ValueError(
                f"RandomCrop cuts {self.height} x {self.width} pixels, but the rows have {row_height} x {row_width} and"
                f" padding of {self.padding.sides}. Take a smaller size or more padding."
            )
        # inside the content and its padding, or around a smaller one
        low, high = view.corners[:, :2], view.corners[:, 2:] + sides[:, :2] + sides[:, 2:] - size
        first = np.minimum(np.minimum(low, high).clip(min=0), room)
        last = np.minimum(np.maximum(low, high).clip(min=0), room)
        down_across = draw(view.host, self.seed, CROP).numpy()
        start = first + (down_across[::-1].T * (last - first + 1)).astype(np.int64)
        return padded.cut(np.concatenate([start, start + size], 1), (self.height, self.width))


class RandomResizedCrop(ViewTransform):
    """Crop a random box of each image and resize it to size x size (or (height, width)), antialiased.

    The box is drawn as in torchvision: an area of scale times the image's, an aspect ratio (width / height) within ratio;
    after ten tries, the closest central box. In rows with content, the image is the content, so the result has none. Boxes
    are clipped to the crop; empty ones are dropped. Masks take the nearest pixel. Images of different sizes, a RaggedBatch,
    become an ImageBatch.

    Args:
        size: pixels, or (height, width).
        scale: lowest and highest area of the box, as a share of the image's.
        ratio: lowest and highest width / height of the box.
        interpolation: "bilinear" or "bicubic".
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: size is not 1 or more pixels, scale or ratio are not two numbers above 0 in ascending order, or the
            interpolation is unknown.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> RandomResizedCrop(24)(batch).images.shape
        torch.Size([2, 3, 24, 24])
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: str = "bilinear",
        *,
        seed: int = 0,
    ) -> None:
        self.height, self.width = checked_size(size)
        self.scale, self.ratio = span("scale", scale, POSITIVE), span("ratio", ratio, POSITIVE)
        self.interpolation, self.seed = one_of("interpolation", interpolation, SMOOTH), seed

    def apply(self, view: View) -> View:
        """Crop and resize the images of a view."""
        view = view.of_content()
        sizes = np.full_like(view.sizes, [self.width, self.height])
        return view.cut(self._boxes(view)).resized(sizes, (self.height, self.width), self.interpolation)

    def boxes(self, batch: ImageBatch | RaggedBatch) -> torch.Tensor:
        """Draw the boxes of a call: int64[B, 4] x0, y0, x1, y1 in row pixels, on the host."""
        view = View.from_batch(self, batch)
        return torch.from_numpy(self._boxes(view.of_content()) + np.tile(view.corners[:, :2], 2))

    @on_one_torch_thread()
    def _boxes(self, view: View) -> Numbers:
        """Draw the boxes in images of a view."""
        width, height = torch.from_numpy(view.sizes).unbind(-1)
        drawn = draw(view.host, self.seed, RESIZED_CROP)
        areas, ratios, (down, across) = drawn[:_TRIES], drawn[_TRIES : 2 * _TRIES], drawn[2 * _TRIES :]
        box_width, box_height = rectangles(areas, ratios, height * width, self.scale, self.ratio)
        fits = (box_width > 0) & (box_width <= width) & (box_height > 0) & (box_height <= height)
        # the first try that fits; the central box comes last and always fits
        first = torch.cat([fits, torch.ones_like(fits[:1])]).byte().argmax(0, keepdim=True)
        central_height, central_width = self._central(height, width)
        box_height = torch.cat([box_height, central_height[None]]).gather(0, first)[0]
        box_width = torch.cat([box_width, central_width[None]]).gather(0, first)[0]
        is_central = first[0] == _TRIES
        y0 = _offset(down, height - box_height, is_central)
        x0 = _offset(across, width - box_width, is_central)
        return torch.stack([x0, y0, x0 + box_width, y0 + box_height], dim=-1).numpy()

    def _central(self, height: torch.Tensor, width: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return height and width of the largest box of an allowed ratio, rounded as torchvision does."""
        ratio = width.double() / height
        low, high = self.ratio
        return (
            torch.where(ratio < low, (width.double() / low).round().long().clamp(min=1), height),
            torch.where(ratio > high, (height.double() * high).round().long().clamp(min=1), width),
        )


def _offset(drawn: torch.Tensor, slack: torch.Tensor, is_central: torch.Tensor) -> torch.Tensor:
    return torch.where(is_central, slack // 2, (drawn * (slack + 1)).long())
