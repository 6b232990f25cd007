"""Resizes and center crops, without random numbers, of images of one size or many: CenterCrop, Resize, and both in one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reader.transforms.kernels.regions import Numbers
from reader.transforms.random import POSITIVE, SMOOTH, checked_size, integer, number, one_of, sides
from reader.transforms.view import View, ViewTransform


class CenterCrop(ViewTransform):
    """Crop the central size x size pixels (or (height, width)) of each row, with zeros around a smaller one, as torchvision does.

    It does not resize; directly after Resize, both are one pass over the pixels, see `ResizeCenterCrop`. Boxes, masks and content
    move with the pixels. Images of different sizes, a RaggedBatch, become an ImageBatch.

    Args:
        size: pixels, or (height, width).

    Raises:
        ValueError: size is not 1 or more pixels.

    Examples:
        >>> import torch
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> torch.equal(CenterCrop(28)(batch).images, batch.images[..., 2:30, 2:30])
        True
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.height, self.width = checked_size(size)

    def apply(self, view: View) -> View:
        """Crop the images of a view."""
        return _center(view, self.height, self.width)


class ResizeCenterCrop(ViewTransform):
    """Resize each image, antialiased, until it covers size / fraction, and crop its central size x size pixels.

    The same as torchvision's Resize(size / fraction) and CenterCrop(size), rounding included; `pack --crop-fraction` does it
    offline. In rows with content, the image is the content, so the result has none. Boxes and masks move with the pixels.
    Images of different sizes, a RaggedBatch, become an ImageBatch.

    Args:
        size: pixels, or (height, width).
        fraction: share of the resized image to keep; 0.875 gives the usual 224 of 256.

    Raises:
        ValueError: size is not 1 or more pixels, or fraction is not above 0 and at most 1.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> ResizeCenterCrop(28, fraction=0.875)(batch).images.shape
        torch.Size([2, 3, 28, 28])
    """

    def __init__(self, size: int | tuple[int, int], fraction: float = 1.0) -> None:
        self.height, self.width = checked_size(size)
        self.fraction = number("fraction", fraction, (POSITIVE[0], 1, " above 0, and at most 1"))

    def apply(self, view: View) -> View:
        """Resize and crop the images of a view."""
        view = view.of_content()
        return _center(view.resized(self._covering(*view.sizes.T), None), self.height, self.width)

    def _covering(self, width: Numbers, height: Numbers) -> Numbers:
        """Return int64[B, 2], the resized width and height of images with widths and heights int64[B]."""
        # a size / fraction of 400 may be 399.99999999999994
        cover_height, cover_width = (math.floor(side / self.fraction + 1e-9) for side in (self.height, self.width))
        # the side that is shorter against the crop decides; for a square crop that is the short side
        is_narrow = cover_width * height >= cover_height * width
        by_width = (cover_width * height // width).clip(min=cover_height)
        by_height = (cover_height * width // height).clip(min=cover_width)
        return np.where(
            is_narrow, [np.full_like(width, cover_width), by_width], [by_height, np.full_like(width, cover_height)]
        ).T


class Resize(ViewTransform):
    """Resize each image, bilinear or bicubic, antialiased: to a height and a width, or its shorter side to a length.

    With a height and a width, the image of rows with content is the content, so the result has none; images of different
    sizes, a RaggedBatch, become an ImageBatch. With a shorter side, the whole row is resized, and images of different sizes
    keep their own sizes. Boxes and masks move along.

    Args:
        size: (height, width), or pixels of the shorter side.
        interpolation: "bilinear" or "bicubic".
        max_size: limit of the longer side, pixels, if size is the shorter one; or None.

    Raises:
        ValueError: size is not 1 or more pixels, interpolation is unknown, or max_size is not above size.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> Resize((24, 30), "bicubic")(batch).images.shape
        torch.Size([2, 3, 24, 30])
    """

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: str = "bilinear",
        max_size: int | None = None,
    ) -> None:
        self.size, self.interpolation = sides("size", size), one_of("interpolation", interpolation, SMOOTH)
        if len(self.size) not in (1, 2) or (max_size is not None and len(self.size) == 2):
            raise ValueError(
                f"size is {size!r}, expected (height, width), or pixels of the shorter side, as for max_size."
            )
        self.max_size = None if max_size is None else integer("max_size", max_size, self.size[0] + 1)

    def apply(self, view: View) -> View:
        """Resize the images of a view."""
        view = view.of_content() if len(self.size) == 2 else view
        new = [self._new_size(height, width)[::-1] for width, height in view.sizes.tolist()]
        # with a shorter side, images of one size keep one size
        is_one_size = len(self.size) == 2 or view.size is not None
        size = self._new_size(*(view.size or (0, 0))) if is_one_size else None
        return view.resized(np.array(new, np.int64).reshape(-1, 2), size, self.interpolation)

    def _new_size(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) of the result, rounded as torchvision does."""
        if len(self.size) == 2:
            return self.size[0], self.size[1]
        short, long = self.size[0], int(self.size[0] * max(height, width) / min(height, width))
        if self.max_size is not None and long > self.max_size:
            short, long = int(self.max_size * short / long), self.max_size
        return (long, short) if width <= height else (short, long)


def _center(view: View, height: int, width: int) -> View:
    """Crop the central pixels, with zeros around smaller images."""
    size = np.array([width, height])
    slack = view.sizes - size
    half = slack // 2
    # a half is rounded to even, as by Python's round; of the zeros, the half that is rounded down comes first
    start = np.where(slack < 0, -(-slack // 2), half + (slack & half & 1))
    return view.cut(np.concatenate([start, start + size], 1), (height, width), (0.0,))
