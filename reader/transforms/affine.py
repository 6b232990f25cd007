"""Rotation, shear, translation and scale of batches, by one matrix per image. Rows with boxes or masks are refused.

Pixels equal those of torchvision's v2 for uint8, within a level.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reader.store import ImageBatch, replaced
from reader.transforms.fills import Fill
from reader.transforms.labels import refuse_labels
from reader.transforms.program import STEPS, Program, RowTransform
from reader.transforms.random import (
    AFFINE,
    FINITE,
    POSITIVE,
    ROTATION,
    SHARE,
    draw,
    host_batch,
    numbers,
    one_of,
    pair,
    span,
)

# Interpolations.
POINTWISE = ("nearest", "bilinear")


class RandomAffine(RowTransform):
    """Rotate, shift, scale and shear each image at random around its fixed center, as torchvision does.

    Args:
        degrees: v draws the angle from -v to v, (low, high) from low to high; clockwise.
        translate: largest shift as a share of the width and of the height, each 0..1; in whole pixels. None: no shift.
        scale: lowest and highest factor, above 0. None: 1.
        shear: degrees; v along x from -v to v, (low, high) along x, or four numbers, the last two along y. None: no shear.
        interpolation: "nearest" or "bilinear".
        fill: level outside the image, one for each channel, or a dict as in torchvision.
        center: (x, y) in pixels from the upper left corner; None: the middle.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: an argument is not one of these.

    Examples:
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
        self.degrees = span("degrees", degrees, FINITE, 0)
        self.translate = pair("translate", (0, 0) if translate is None else translate, SHARE)
        self.scale = span("scale", (1, 1) if scale is None else scale, POSITIVE)
        of_axes = [0] if shear is None else numbers("shear", shear)
        self.shear = span("shear", of_axes[:2], FINITE, 0), span("shear", of_axes[2:] or (0, 0), FINITE)
        self.interpolation, self.fill = one_of("interpolation", interpolation, POINTWISE), fill
        self.center, self.seed = None if center is None else pair("center", center, FINITE), seed

    def _changed(self, batch: ImageBatch) -> ImageBatch:
        angle, shift, scale, shear = self.drawn(host_batch(batch))
        matrices = inverse_matrices(batch, angle, shift, scale, shear, self.center)
        return moved(self, batch, matrices)

    def drawn(self, batch: ImageBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw what a call would use, float64: angles [B], shifts [B, 2] in x and y, factors [B] and shears [B, 2]."""
        height, width = batch.pixels.shape[1:3]
        angle, x, y, scale, shear_x, shear_y = draw(batch, self.seed, AFFINE)
        across, down = self.translate
        shift = torch.stack(
            [_between(x, -across * width, across * width), _between(y, -down * height, down * height)], 1
        )
        shear = torch.stack([_between(shear_x, *self.shear[0]), _between(shear_y, *self.shear[1])], 1)
        return _between(angle, *self.degrees), shift.round(), _between(scale, *self.scale), shear


class RandomRotation(RowTransform):
    """Rotate each image by a random angle, as torchvision does; the result has the same size.

    Args:
        degrees: v draws from -v to v, (low, high) from low to high; counterclockwise.
        interpolation: "nearest" or "bilinear".
        expand: only False: True would give each image of a batch another size.
        center: (x, y) in pixels from the upper left corner; None: the middle.
        fill: level outside the image, one for each channel, or a dict as in torchvision.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

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
            raise ValueError("expand is True, expected False: it would give each image another size.")
        self.degrees, self.fill = span("degrees", degrees, FINITE, 0), fill
        self.interpolation = one_of("interpolation", interpolation, POINTWISE)
        self.center, self.seed = None if center is None else pair("center", center, FINITE), seed

    def _changed(self, batch: ImageBatch) -> ImageBatch:
        angle = self.angles(host_batch(batch))
        none = torch.zeros(len(angle), 2, dtype=angle.dtype, device="cpu")
        matrices = inverse_matrices(batch, -angle, none, torch.ones_like(angle), none, self.center)
        return moved(self, batch, matrices)

    def angles(self, batch: ImageBatch) -> torch.Tensor:
        """Draw the angles that a call would use: float64[B] degrees, counterclockwise."""
        return _between(draw(batch, self.seed, ROTATION)[0], *self.degrees)


def moved(transform: RandomAffine | RandomRotation, batch: ImageBatch, matrices: torch.Tensor) -> ImageBatch:
    """Move pixels by matrices from `inverse_matrices`, float64[B, 2, 3] on the host.

    Raises:
        ValueError: the rows have boxes or masks.
    """
    refuse_labels(transform, batch)
    kinds = torch.full((len(batch), 1), STEPS[transform.interpolation], device="cpu")
    program = Program.from_kinds(kinds, grid_lines(matrices, *batch.pixels.shape[1:3])[:, None], transform.fill)
    return replaced(batch, pixels=program.run(batch.pixels), content=None, extras=batch.extras)


def inverse_matrices(
    batch: ImageBatch,
    angle: torch.Tensor,
    shift: torch.Tensor,
    scale: torch.Tensor,
    shear: torch.Tensor,
    center: Sequence[float] | None = None,
) -> torch.Tensor:
    """Return float64[B, 2, 3] from new to old pixel positions, both relative to the middle of the image.

    angle [B] in degrees, clockwise; shift [B, 2] in pixels; scale [B]; shear [B, 2] in degrees; center as in RandomAffine.
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
    around = torch.tensor([x, y], dtype=inverse.dtype, device="cpu")
    start = around - (inverse @ (around + shift)[..., None])[..., 0]
    return torch.cat([inverse, start[..., None]], 2)


def grid_lines(matrices: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Convert matrices float64[B, 2, 3] to float32[B, 2, 3]: from pixels around the middle to -1..1 from edge to edge."""
    return matrices.float() / torch.tensor([0.5 * width, 0.5 * height], dtype=torch.float32, device="cpu")[:, None]


def _between(drawn: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return low + drawn * (high - low)
