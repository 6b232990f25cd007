"""The boxes of random crops, drawn as torchvision's RandomResizedCrop draws them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from packer.packing.image_sizes import SizeCounts

Numbers = npt.NDArray[np.float64]

_TRIES = 10


def drawn_boxes(
    counts: SizeCounts, count: int, scale: tuple[float, float], ratio: tuple[float, float], *, seed: int
) -> tuple[Numbers, Numbers]:
    """Draw images and a random box in each: float64[count, 2] width, height and float64[count, 4] x0, y0, width, height.

    Images are taken evenly over all sizes; boxes are those of torchvision's RandomResizedCrop: ten tries, then the central one.
    """
    draw = np.random.default_rng(seed)
    sizes = sorted(counts)
    weights = np.array([counts[size] for size in sizes]) / counts.total()
    sources = np.array([(width, height) for height, width in sizes], dtype=np.float64)
    sources = sources[draw.choice(len(sizes), size=count, p=weights)]
    return sources, boxes_in(sources, scale, ratio, draw)


def boxes_in(
    sources: Numbers, scale: tuple[float, float], ratio: tuple[float, float], draw: np.random.Generator
) -> Numbers:
    """Draw a random box in each image of float64[B, 2] (width, height): float64[B, 4] x0, y0, width, height, integers."""
    width, height = sources.T
    # a box too large for a number is one that does not fit
    with np.errstate(over="ignore"):
        areas = draw.uniform(*scale, (_TRIES, len(sources))) * width * height
        ratios = np.exp(draw.uniform(math.log(ratio[0]), math.log(ratio[1]), (_TRIES, len(sources))))
        across, down = np.round(np.sqrt(areas * ratios)), np.round(np.sqrt(areas / ratios))
        fits = (across > 0) & (across <= width) & (down > 0) & (down <= height)
        # behind the last try the central box, which always fits
        first = np.concatenate([fits, np.ones((1, len(sources)), bool)]).argmax(0)
        narrow, wide = width / height < ratio[0], width / height > ratio[1]
        across = np.concatenate([across, [np.where(wide, np.round(height * ratio[1]), width)]])
        down = np.concatenate([down, [np.where(narrow, np.round(width / ratio[0]), height)]])
    each = np.arange(len(sources))
    across, down = across[first, each], down[first, each]
    is_central = first == _TRIES
    left, top = (
        np.where(is_central, (side - used) // 2, np.floor(draw.uniform(size=len(sources)) * (side - used + 1)))
        for side, used in ((width, across), (height, down))
    )
    return np.stack([left, top, across, down], axis=1)
