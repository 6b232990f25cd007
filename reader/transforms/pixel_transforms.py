"""torchvision's transforms that do not move pixels, each image separately: gray, blur, solarize, equalize and others.

Their arguments and defaults are those of torchvision's v2; `pixel_ops` has the computations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from reader.described import Described
from reader.store import ImageBatch, RaggedBatch, replaced
from reader.transforms.kernels import pixel_ops
from reader.transforms.kernels.regions import by_image
from reader.transforms.program import STEPS, LevelTransform, Program
from reader.transforms.random import (
    AUTOCONTRAST,
    BLUR,
    EQUALIZE,
    FACTOR,
    GRAYSCALE,
    INVERT,
    LEVEL,
    POSITIVE,
    POSTERIZE,
    SHARE,
    SHARPNESS,
    SOLARIZE,
    check_batch,
    draw,
    integer,
    number,
    numbers,
    sides,
    span,
)
from reader.transforms.view import View


class _WithProbability(LevelTransform):
    """Changes the pixels of each image with probability p, by one step."""

    _streams: range
    # a name in `program.STEPS`
    _step: str

    def __init__(self, p: float = 0.5, *, seed: int = 0) -> None:
        self.p, self.seed = number("p", p, SHARE), seed

    @property
    def _number(self) -> float:
        return 0.0

    def _steps(self, batch: ImageBatch | RaggedBatch) -> Program:
        is_chosen = draw(batch, self.seed, self._streams)[0] < self.p
        kinds = is_chosen[:, None] * STEPS[self._step]
        return Program.from_kinds(kinds, torch.full(kinds.shape, float(self._number), device="cpu"))


class Grayscale(Described):
    """Make each image gray, with 1 or 3 equal channels. Not random.

    Args:
        num_output_channels: 1 or 3.

    Raises:
        ValueError: it is another number.
    """

    def __init__(self, num_output_channels: int = 1) -> None:
        if num_output_channels not in (1, 3):
            raise ValueError(f"num_output_channels is {num_output_channels!r}, expected 1 or 3.")
        self.num_output_channels = num_output_channels

    def __call__(self, batch: ImageBatch | RaggedBatch) -> Any:
        """Return uint8 pixels of num_output_channels.

        Raises:
            ValueError: the images have neither 1 nor 3 channels.
        """
        check_batch(self, batch)
        pixel_ops.check_channels(self, batch)
        if isinstance(batch, RaggedBatch):
            return by_image(batch, lambda _, image: self._changed(image[None])[0])
        pixels = pixel_ops.in_parts(self._changed, batch.pixels)
        return replaced(batch, pixels=pixels, content=batch.content, extras=batch.extras)

    def _changed(self, pixels: torch.Tensor) -> torch.Tensor:
        """Convert uint8[B, H, W, C] to uint8[B, H, W, num_output_channels]."""
        gray = pixel_ops.grayscale(pixels.movedim(-1, 1))[:, 0, :, :, None]
        # models and `cut` need each channel contiguous
        return gray.repeat(1, 1, 1, self.num_output_channels)


class RandomGrayscale(_WithProbability):
    """Make each image gray with probability p; it keeps its number of channels.

    Args:
        p: probability, 0 to 1.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: p is not a probability.
    """

    _streams, _step = GRAYSCALE, "grayscale"

    def __init__(self, p: float = 0.1, *, seed: int = 0) -> None:
        super().__init__(p, seed=seed)


class RandomInvert(_WithProbability):
    """Turn light into dark in each image with probability p.

    Args:
        p: probability, 0 to 1.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: p is not a probability.
    """

    _streams, _step = INVERT, "invert"
    _takes_any_channels = True


class RandomSolarize(_WithProbability):
    """Invert all levels from a threshold on, in each image with probability p.

    Args:
        threshold: 0..255; levels from it on are inverted.
        p: probability, 0 to 1.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: threshold is above 255, or p is not a probability.
    """

    _streams, _step = SOLARIZE, "solarize"
    _takes_any_channels = True
    _number = property(lambda self: float(self.threshold))

    def __init__(self, threshold: float, p: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(p, seed=seed)
        self.threshold = number("threshold", threshold, LEVEL)


class RandomPosterize(_WithProbability):
    """Keep only the highest bits of each level, in each image with probability p.

    Args:
        bits: number of bits to keep, 0..8.
        p: probability, 0 to 1.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: bits are not 0 to 8, or p is not a probability.
    """

    _streams, _step = POSTERIZE, "posterize"
    _takes_any_channels = True
    _number = property(lambda self: self.bits)

    def __init__(self, bits: int, p: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(p, seed=seed)
        self.bits = integer("bits", bits, 0, 8)


class RandomEqualize(_WithProbability):
    """Spread the levels of each channel evenly, in each image with probability p.

    Args:
        p: probability, 0 to 1.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: p is not a probability.
    """

    _streams, _step = EQUALIZE, "equalize"
    _takes_any_channels = True


class RandomAutocontrast(_WithProbability):
    """Stretch each channel to 0..255, in each image with probability p.

    Args:
        p: probability, 0 to 1.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: p is not a probability.
    """

    _streams, _step = AUTOCONTRAST, "autocontrast"


class RandomAdjustSharpness(_WithProbability):
    """Sharpen or smooth each image with probability p.

    Args:
        sharpness_factor: 0 smooths, 1 changes nothing, 2 sharpens as much as 0 smooths.
        p: probability, 0 to 1.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: sharpness_factor is negative, or p is not a probability.
    """

    _streams, _step = SHARPNESS, "sharpness"
    _number = property(lambda self: float(self.sharpness_factor))

    def __init__(self, sharpness_factor: float, p: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(p, seed=seed)
        self.sharpness_factor = number("sharpness_factor", sharpness_factor, FACTOR)


class GaussianBlur(LevelTransform):
    """Blur each image with a Gaussian kernel of random width; the image is reflected at its edges.

    Args:
        kernel_size: odd pixels: one number, or (width, height), as in torchvision's kernels.
        sigma: standard deviation in pixels, or lowest and highest.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: kernel_size is not odd and positive, or sigma is not above 0 in ascending order.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> GaussianBlur(3)(batch).images.shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0), *, seed: int = 0
    ) -> None:
        sizes, widths = sides("kernel_size", kernel_size), numbers("sigma", sigma)
        if len(sizes) not in (1, 2) or not all(size % 2 for size in sizes):
            raise ValueError(f"kernel_size is {kernel_size!r}, expected an odd number of pixels, or two.")
        self.kernel_size, self.seed = (sizes[0], sizes[-1]), seed
        self.sigma = span("sigma", widths * 2 if len(widths) == 1 else widths, POSITIVE)

    _takes_any_channels = True

    def _steps(self, batch: ImageBatch | RaggedBatch) -> Program:
        sizes = View.from_batch(self, batch).sizes
        if (sizes <= np.array(self.kernel_size) // 2).any():
            width, height = sizes.min(0).tolist()
            raise ValueError(
                f"GaussianBlur's kernel_size is {self.kernel_size}, too large to reflect images of {width} x {height}. Take less."
            )
        numbers = torch.zeros(len(batch), 1, 6, dtype=torch.float32, device="cpu")
        numbers[:, 0, 0] = self.sigmas(batch)
        numbers[:, 0, 1:3] = torch.tensor(self.kernel_size, device="cpu")
        return Program(torch.full((len(batch), 1), STEPS["blur"], device="cpu"), numbers)

    def sigmas(self, batch: ImageBatch | RaggedBatch) -> torch.Tensor:
        """Draw the standard deviations of a call: float32[B] pixels."""
        low, high = self.sigma
        return (low + draw(batch, self.seed, BLUR)[0] * (high - low)).float()
