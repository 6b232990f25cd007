"""Random sizes of images that keep sizes of their own, as torchvision's detectors are trained: ScaleJitter and others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reader.transforms.kernels.regions import Numbers
from reader.transforms.random import FIXED_SIZE_CROP, SCALE_JITTER, SHORTEST_SIZE, checked_size, draw, number, numbers
from reader.transforms.view import View, ViewTransform


class ScaleJitter(ViewTransform):
    """Resize each image to fit target_size, by a random factor larger or smaller: torchvision's large scale jitter.

    Images have sizes of their own afterwards, a RaggedBatch; FixedSizeCrop gives them one canvas. Boxes move along.

    Args:
        target_size: the two sides, pixels, as torchvision reads them.
        scale_range: lowest and highest factor.
        interpolation: "bilinear".
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: target_size are not two sides of 1 or more pixels, scale_range not two factors above 0, the smaller one first,
            or the interpolation is another.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> ScaleJitter((32, 32), (0.5, 0.5))(batch).images[0].shape
        torch.Size([3, 16, 16])
    """

    def __init__(
        self,
        target_size: Sequence[int],
        scale_range: Sequence[float] = (0.1, 2.0),
        interpolation: str = "bilinear",
        *,
        seed: int = 0,
    ) -> None:
        sides, limits = numbers("target_size", target_size), numbers("scale_range", scale_range)
        if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
            raise ValueError(f"target_size is {target_size!r}, expected two sides of 1 or more pixels.")
        if len(limits) != 2 or not 0 < limits[0] <= limits[1] < math.inf:
            raise ValueError(f"scale_range is {scale_range!r}, expected two factors above 0, the smaller one first.")
        _check_bilinear(interpolation)
        self.target_size, self.scale_range, self.seed = (int(sides[0]), int(sides[1])), (limits[0], limits[1]), seed

    def on(self, view: View) -> View:
        """Resize the images of a view."""
        low, high = self.scale_range
        view = view.of_content()
        scale = low + draw(view.host, self.seed, SCALE_JITTER).numpy()[0] * (high - low)
        # height by the second one, as there
        factor = (np.array(self.target_size) / view.sizes).min(1) * scale
        return view.resized(_scaled(view.sizes, factor), None)


class RandomShortestSize(ViewTransform):
    """Resize each image until its shorter side is one of min_size, drawn, or its longer one max_size: torchvision's.

    Images have sizes of their own afterwards, a RaggedBatch. Boxes move along.

    Args:
        min_size: lengths of the shorter side, pixels.
        max_size: limit of the longer side, pixels; None: none.
        interpolation: "bilinear".
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: a length is not 1 or more pixels, there are none, or the interpolation is another.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> RandomShortestSize(48, max_size=40)(batch).images[0].shape
        torch.Size([3, 40, 40])
    """

    def __init__(
        self,
        min_size: int | Sequence[int],
        max_size: int | None = None,
        interpolation: str = "bilinear",
        *,
        seed: int = 0,
    ) -> None:
        lengths = numbers("min_size", min_size)
        limits = [] if max_size is None else [number("max_size", max_size)]
        for length in lengths + limits:
            if not isinstance(length, int) or length < 1:
                raise ValueError(f"min_size is {min_size!r} and max_size {max_size!r}, expected 1 or more pixels.")
        if not lengths:
            raise ValueError("min_size is empty, expected one length or more.")
        _check_bilinear(interpolation)
        self.min_size, self.max_size, self.seed = tuple(lengths), limits[0] if limits else None, seed

    def on(self, view: View) -> View:
        """Resize the images of a view."""
        view = view.of_content()
        drawn = draw(view.host, self.seed, SHORTEST_SIZE).numpy()[0]
        lengths = np.array(self.min_size)[(drawn * len(self.min_size)).astype(np.int64)]
        factor = lengths / view.sizes.min(1)
        if self.max_size is not None:
            factor = np.minimum(factor, self.max_size / view.sizes.max(1))
        return view.resized(_scaled(view.sizes, factor), None)


class FixedSizeCrop(ViewTransform):
    """Cut size x size pixels at a random place of larger images, and fill smaller ones to the right and below.

    What torchvision's references/detection has of that name for large scale jitter, behind ScaleJitter. Boxes are clipped; those
    without area left are dropped. Images of one size, but still a RaggedBatch.

    Args:
        size: pixels, or (height, width).
        fill: level of what is filled, or one for each channel.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: size is not 1 or more pixels.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> FixedSizeCrop((24, 40))(batch).images[0].shape
        torch.Size([3, 24, 40])
    """

    def __init__(self, size: int | tuple[int, int], fill: float | Sequence[float] = 0, *, seed: int = 0) -> None:
        self.height, self.width = checked_size(size)
        self.fill, self.seed = _levels(fill), seed

    def on(self, view: View) -> View:
        """Cut the images of a view."""
        view = view.of_content()
        drawn = draw(view.host, self.seed, FIXED_SIZE_CROP).numpy()[0]
        size = np.array([self.width, self.height])
        # one number for both, as there
        start = ((view.sizes - size).clip(min=0) * drawn[:, None]).astype(np.int64)
        return view.cut(np.concatenate([start, start + size], 1), None, self.fill)


def _scaled(sizes: Numbers, factor: npt.NDArray[np.float64]) -> Numbers:
    """Multiply int64[B, 2] and round down, as torchvision does; a side of no pixels gets one."""
    return (sizes * factor[:, None]).astype(np.int64).clip(min=1)


def _check_bilinear(interpolation: object) -> None:
    if getattr(interpolation, "value", interpolation) != "bilinear":
        raise ValueError(f'interpolation is {interpolation!r}, expected "bilinear": others of own sizes are not made.')


def _levels(fill: float | Sequence[float]) -> tuple[float, ...]:
    """Return levels as given, as a tuple; raises ValueError where one is not 0 to 255."""
    levels = tuple(float(level) for level in numbers("fill", fill))
    if not levels or not all(0 <= level <= 255 for level in levels):
        raise ValueError(f"fill is {fill!r}, expected a level from 0 to 255, or one for each channel.")
    return levels
