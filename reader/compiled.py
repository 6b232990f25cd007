"""Boxes of images by the compiled part, where it is built: torch's bytes, a whole batch in one call without the interpreter.

The one module of the reader that imports it. Knows its table of rows; draws nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch

from reader.epoch import transform_threads

# as crops.c has them
_IS_CUBIC, _IS_MIRRORED = 1, 2
# those for which torch's uint8 kernel has the same arithmetic
_CHANNELS = (1, 3, 4)


def crops(
    pixels: torch.Tensor,
    images: torch.Tensor,
    channels: int,
    boxes: torch.Tensor,
    height: int,
    width: int,
    grids: torch.Tensor | None = None,
    is_cubic: torch.Tensor | None = None,
    is_mirrored: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Crop, resize and mirror a box of each image to uint8[B, height, width, channels]; None where there is no memory for it.

    On as many threads as the loader has, or torch.

    Args:
        pixels: of all images; `are_served`.
        images: int64[B, 3] of each the offset in pixels, height and width.
        boxes, grids, is_cubic: as of `reader.transforms.resample.resized`.
        is_mirrored: bool[B], whose crops are mirrored left to right.

    Raises:
        ValueError: a row's box is empty or outside of its image, an image outside of pixels, or a crop outside of its grid.
    """
    if grids is None:
        grids = torch.tensor([[0, 0, height, width]], device="cpu").expand(len(images), 4)
    # said, as the caller may have made another device the default one
    flags = torch.zeros(len(images), 1, dtype=torch.int64, device="cpu")
    for value, is_chosen in ((_IS_CUBIC, is_cubic), (_IS_MIRRORED, is_mirrored)):
        if is_chosen is not None:
            flags[:, 0] += value * is_chosen.long()
    table = torch.cat([images, boxes, grids, flags], 1).numpy()
    # numpy's memory asks for huge pages
    made = np.empty((len(images), height, width, channels), np.uint8)
    function, threads = _function(), transform_threads.get() or torch.get_num_threads()
    assert function is not None
    return torch.from_numpy(made) if function(pixels.numpy(), table, made, (height, width), channels, threads) else None


def are_served(pixels: torch.Tensor, channels: int) -> bool:
    """Say whether `crops` takes images in these pixels: uint8 on the CPU, contiguous, 1, 3 or 4 channels; no torch.compile."""
    return (
        not torch.compiler.is_compiling()
        and pixels.dtype == torch.uint8
        and pixels.device.type == "cpu"
        and pixels.numel() > 0
        and pixels.is_contiguous()
        and channels in _CHANNELS
        and is_built()
    )


def is_built() -> bool:
    """Say whether the compiled part is there."""
    return _function() is not None


@functools.cache
def _function() -> Callable[..., bool] | None:
    try:
        from pixpack_native import functions

        return functions().crops
    except ImportError:
        return None
