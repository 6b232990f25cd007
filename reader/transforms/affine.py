"""Rotation, shear, translation and scale of batches, each image by a matrix of its own; boxes and masks move along.

`warped` is the one kernel. Pixels are computed as torchvision's v2 computes them for uint8, its float32 rounding included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from reader import compiled
from reader.described import Described
from reader.store import ImageBatch, replaced
from reader.transforms.annotations import AffineMotion, moved_content, moved_extras
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.kernels.pixel_ops import Kernel, in_parts, interleaved, levels_of
from reader.transforms.random import AFFINE, ROTATION, check_batch, draw, number, numbers, pair

# What is filled in beyond the image: one level, or one a channel. None: 0, without torchvision's second weighting (`_bilinear`).
Fill = float | Sequence[float] | None


class RandomAffine(Described):
    """Rotate, shift, scale and shear each image at random, keeping its center where it is, as torchvision does.

    Args:
        degrees: v draws the angle from -v to v, (low, high) from low to high; clockwise.
        translate: largest shift as a share of the width and of the height, each 0..1; in whole pixels. None: none.
        scale: lowest and highest factor, above 0. None: 1.
        shear: degrees; v along x from -v to v, (low, high) along x, or four numbers, the last two along y. None: none.
        interpolation: "nearest" or "bilinear".
        fill: level beyond the image, or one for each channel.
        center: (x, y) in pixels from the upper left corner; None: the middle.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: an argument is not one of these.

    Example:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> RandomAffine(15, translate=(0.1, 0.1), scale=(0.9, 1.1))(batch).images.shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: str = "nearest",
        fill: Fill = 0,
        center: Sequence[float] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.degrees = _angles("degrees", degrees, (2,))
        self.translate = None if translate is None else pair("translate", translate, "two shares from 0 to 1")
        if self.translate is not None and not all(0 <= share <= 1 for share in self.translate):
            raise ValueError(f"translate is {translate!r}, expected two shares from 0 to 1.")
        self.scale = None if scale is None else pair("scale", scale, "two factors above 0, the smaller one first")
        if self.scale is not None and not 0 < self.scale[0] <= self.scale[1] < math.inf:
            raise ValueError(f"scale is {scale!r}, expected two factors above 0, the smaller one first.")
        self.shear = None if shear is None else _angles("shear", shear, (2, 4))
        self.interpolation, self.fill, self.center = checked_interpolation(interpolation), fill, _checked_center(center)
        self.seed = seed

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return a batch of the same shapes."""
        check_batch(self, batch)
        angle, shift, scale, shear = self.drawn(batch)
        matrices = inverse_matrices(batch, angle, shift, scale, shear, self.center)
        return moved(batch, matrices, self.interpolation, self.fill)

    def drawn(self, batch: ImageBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw what a call would use, float64: angles [B], shifts [B, 2] in x and y, factors [B] and shears [B, 2]."""
        height, width = batch.pixels.shape[1:3]
        angle, x, y, scale, shear_x, shear_y = draw(batch, self.seed, AFFINE)
        across, down = (0.0, 0.0) if self.translate is None else self.translate
        shift = torch.stack(
            [_between(x, -across * width, across * width), _between(y, -down * height, down * height)], 1
        )
        low, high = (1.0, 1.0) if self.scale is None else self.scale
        shears = (0.0, 0.0, 0.0, 0.0) if self.shear is None else (*self.shear, 0.0, 0.0)[:4]
        shear = torch.stack([_between(shear_x, *shears[:2]), _between(shear_y, *shears[2:])], 1)
        return _between(angle, *self.degrees), shift.round(), _between(scale, low, high), shear


class RandomRotation(Described):
    """Rotate each image by a random angle, as torchvision does; the result has the same size.

    Args:
        degrees: v draws from -v to v, (low, high) from low to high; counterclockwise.
        interpolation: "nearest" or "bilinear".
        expand: False alone: True would give every image of a batch another size.
        center: (x, y) in pixels from the upper left corner; None: the middle.
        fill: level beyond the image, or one for each channel.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: an argument is not one of these.
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: str = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Fill = 0,
        *,
        seed: int = 0,
    ) -> None:
        if expand:
            raise ValueError(
                "expand=True would give every image of a batch another size. Leave it out, or run torchvision's for each image:"
                " PerSample(v2.Compose([v2.RandomRotation(30, expand=True), v2.Resize((224, 224))]))."
            )
        self.degrees = _angles("degrees", degrees, (2,))
        self.interpolation, self.fill, self.center = checked_interpolation(interpolation), fill, _checked_center(center)
        self.seed = seed

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return a batch of the same shapes."""
        check_batch(self, batch)
        return moved(batch, rotations(batch, self.angles(batch), self.center), self.interpolation, self.fill)

    def angles(self, batch: ImageBatch) -> torch.Tensor:
        """Draw the angles that a call would use: float64[B] degrees, counterclockwise."""
        return _between(draw(batch, self.seed, ROTATION)[0], *self.degrees)


def moved(batch: ImageBatch, matrices: torch.Tensor, interpolation: str, fill: Fill) -> ImageBatch:
    """Move pixels, content, boxes and masks by matrices from `inverse_matrices`, float64[B, 2, 3]."""
    batch = moved_labels(batch, matrices)
    pixels = warped(batch.pixels, matrices, interpolation, fill)
    return replaced(batch, pixels=pixels, content=batch.content, extras=batch.extras)


def moved_labels(batch: ImageBatch, matrices: torch.Tensor) -> ImageBatch:
    """Move content, boxes and masks alone."""
    content, extras = batch.content, batch.extras
    if content is None and extras is None:
        return batch
    height, width = batch.pixels.shape[1:3]
    motion = AffineMotion(_forward(matrices, height, width), width, height)
    content = None if content is None else moved_content(content, motion)
    extras = moved_extras(extras, motion, lambda masks: warped(masks[..., None], matrices, "nearest", None)[..., 0])
    return replaced(batch, pixels=batch.pixels, content=content, extras=extras)


def rotations(batch: ImageBatch, angle: torch.Tensor, center: Sequence[float] | None = None) -> torch.Tensor:
    """Give the matrices that rotate by float64[B] degrees, counterclockwise."""
    none = torch.zeros(len(angle), 2, dtype=angle.dtype, device=angle.device)
    return inverse_matrices(batch, -angle, none, torch.ones_like(angle), none, center)


def inverse_matrices(
    batch: ImageBatch,
    angle: torch.Tensor,
    shift: torch.Tensor,
    scale: torch.Tensor,
    shear: torch.Tensor,
    center: Sequence[float] | None = None,
) -> torch.Tensor:
    """Give float64[B, 2, 3], where each new pixel comes from; both are positions relative to the middle of the image.

    angle [B] in degrees, clockwise; shift [B, 2] in pixels; scale [B]; shear [B, 2] in degrees; center as of RandomAffine.
    """
    height, width = batch.pixels.shape[1:3]
    x, y = (0.0, 0.0) if center is None else (center[0] - width * 0.5, center[1] - height * 0.5)
    turn, (shear_x, shear_y) = angle.deg2rad(), shear.deg2rad().unbind(1)
    # rotation after scale after shear along y after shear along x, as torchvision composes them
    a = (turn - shear_y).cos() / shear_y.cos()
    b = -(a * shear_x.tan() + turn.sin())
    c = (turn - shear_y).sin() / shear_y.cos()
    d = turn.cos() - c * shear_x.tan()
    inverse = torch.stack([d, -b, -c, a], 1).view(-1, 2, 2) / scale.view(-1, 1, 1)
    around = tensor_on(inverse.device, [x, y], inverse.dtype)
    start = around - (inverse @ (around + shift)[..., None])[..., 0]
    return torch.cat([inverse, start[..., None]], 2)


def warped(pixels: torch.Tensor, matrices: torch.Tensor, interpolation: str, fill: Fill) -> torch.Tensor:
    """Make uint8[B, H, W, C] of pixels at float64[B, 2, 3] of the new positions, by "nearest" or "bilinear"."""
    kernel = warping(interpolation, fill, pixels.movedim(-1, 1))
    if compiled.take_steps(pixels):
        kinds = torch.full((len(pixels), 1), compiled.STEPS[interpolation], device="cpu")
        result = compiled.augmented(
            pixels, kinds, grid_lines(matrices, *pixels.shape[1:3])[:, None], levels_beyond(fill)
        )
        if result is not None:
            return result

    def of_pixels(part: torch.Tensor, part_matrices: torch.Tensor) -> torch.Tensor:
        """Call the kernel with pixels that are interleaved in memory."""
        return interleaved(kernel(part.movedim(-1, 1), part_matrices))

    return in_parts(of_pixels, pixels, matrices)


def warping(interpolation: str, fill: Fill, images: torch.Tensor) -> Kernel:
    """Make the kernel of `warped` for images like these, uint8[B, C, H, W]."""
    levels, given = None, levels_beyond(fill)
    if given is not None:
        if len(given) not in (1, images.shape[1]):
            raise ValueError(f"fill is {fill!r}, expected one level, or one for each of {images.shape[1]} channels.")
        levels = tensor_on(images.device, given, torch.float32).view(1, -1, 1, 1)
    kernel = _nearest if interpolation == "nearest" else _bilinear
    return lambda part, matrices: kernel(part, _grid(part, matrices), levels)


def grid_lines(matrices: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Make float32[B, 2, 3] of float64[B, 2, 3]: from places around the middle to -1..1 from edge to edge."""
    half = tensor_on(matrices.device, [0.5 * width, 0.5 * height], torch.float32)
    return matrices.float() / half[:, None]


def levels_beyond(fill: object) -> list[float] | None:
    """Return one level, or one per channel; None without a fill."""
    given = fill.tolist() if isinstance(fill, torch.Tensor | np.ndarray) else fill
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return [number("fill", level) for level in given]
    return None if given is None else [number("fill", given)]


def _grid(images: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Give float32[B, H, W, 2] as grid_sample takes it, -1..1 from edge to edge; rounded as torchvision's is."""
    count, (height, width) = len(images), images.shape[2:]
    x = torch.linspace((1 - width) * 0.5, (width - 1) * 0.5, width, device=images.device, dtype=torch.float32)
    y = torch.linspace((1 - height) * 0.5, (height - 1) * 0.5, height, device=images.device, dtype=torch.float32)
    # of each image and axis, what x and y count and the rest: float32[B, 2, 1, 1]
    of_x, of_y, start = grid_lines(matrices, height, width)[..., None, None].unbind(2)
    # rounded as torchvision's product of matrices rounds, so that halves of pixels fall to the same side
    sums = torch.addcmul(of_x * x, of_y, y[:, None])
    grid = images.new_empty(count, height, width, 2, dtype=torch.float32)
    grid.movedim(-1, 1).copy_(sums.add_(start))
    return grid


def _nearest(images: torch.Tensor, grid: torch.Tensor, fill: torch.Tensor | None) -> torch.Tensor:
    """Take the pixels that grid_sample takes, and the fill beyond."""
    # beyond is 0: so levels are counted from the fill's
    beyond = 0.0 if fill is None else fill.round()
    return levels_of(_sampled(images.float() - beyond, grid, "nearest") + beyond)


def _bilinear(images: torch.Tensor, grid: torch.Tensor, fill: torch.Tensor | None) -> torch.Tensor:
    """Sample with grid_sample, and blend a fill in as torchvision does.

    torchvision weights what is at the edge twice, by what share of it is image: once in grid_sample, and once with the fill.
    """
    result = images.float()
    if fill is not None:
        result = torch.cat([result, torch.ones_like(result[:, :1])], 1)
    result = _sampled(result, grid, "bilinear")
    if fill is not None:
        result, share = result[:, :-1], result[:, -1:]
        result = (result - fill) * share + fill
    return levels_of(result.round_())


def _sampled(images: torch.Tensor, grid: torch.Tensor, mode: str) -> torch.Tensor:
    with torch.autocast(images.device.type, enabled=False):
        return torch.nn.functional.grid_sample(images, grid, mode=mode, padding_mode="zeros", align_corners=False)


def _forward(matrices: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Give float64[B, 2, 3] from old to new positions, both from the upper left corner."""
    inverse = matrices[:, :, :2]
    a, b, c, d = inverse.reshape(-1, 4).unbind(1)
    forward = torch.stack([d, -b, -c, a], 1).view(-1, 2, 2) / (a * d - b * c).view(-1, 1, 1)
    middle = tensor_on(matrices.device, [width * 0.5, height * 0.5], matrices.dtype)
    # new = forward @ (old - middle - start) + middle
    start = middle - (forward @ (middle + matrices[:, :, 2])[..., None])[..., 0]
    return torch.cat([forward, start[..., None]], 2)


def checked_interpolation(interpolation: str) -> str:
    """Return "nearest" or "bilinear", also of torchvision's InterpolationMode; raises ValueError."""
    name = getattr(interpolation, "value", interpolation)
    if name not in ("nearest", "bilinear"):
        raise ValueError(f'interpolation is {interpolation!r}, expected "nearest" or "bilinear".')
    return str(name)


def _checked_center(center: Sequence[float] | None) -> Sequence[float] | None:
    return None if center is None else pair("center", center, "x and y in pixels")


def _angles(name: str, value: float | Sequence[float], lengths: tuple[int, ...]) -> tuple[float, ...]:
    """Return low and high, or two such pairs; raises ValueError."""
    found = numbers(name, value)
    if len(found) == 1 and not isinstance(value, Sequence):
        if found[0] < 0:
            raise ValueError(f"{name} is {value!r}, expected 0 or more degrees, or low and high.")
        return -found[0], found[0]
    if len(found) not in lengths or not all(map(math.isfinite, found)):
        raise ValueError(f"{name} is {value!r}, expected degrees: one number, or low and high.")
    return tuple(found)


def _between(drawn: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return low + drawn * (high - low)
