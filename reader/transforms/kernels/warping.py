"""Moves pixels by torch: one matrix per image, rounded as torchvision's v2 rounds for uint8."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reader.transforms.kernels.pixel_ops import levels_of, tensor_on


def warped(images: torch.Tensor, lines: torch.Tensor, interpolation: str, fill: Sequence[float] | None) -> torch.Tensor:
    """Sample uint8[B, C, H, W] at old positions by float32[B, 2, 3] of the new positions, -1..1 from edge to edge.

    Args:
        images: uint8[B, C, H, W].
        lines: weights of the new x, y and 1 for the old x and y, in pixels from the middle.
        interpolation: "nearest" or "bilinear".
        fill: level outside, or one for each channel; None: 0, without a blend at bilinear edges.
    """
    levels = None if fill is None else tensor_on(images.device, fill, torch.float32).view(1, -1, 1, 1)
    kernel = _nearest if interpolation == "nearest" else _bilinear
    return kernel(images, _grid(images, lines), levels)


def _grid(images: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
    """Return grid_sample's float32[B, H, W, 2], rounded as in torchvision."""
    count, (height, width) = len(images), images.shape[2:]
    x = torch.linspace((1 - width) * 0.5, (width - 1) * 0.5, width, device=images.device, dtype=torch.float32)
    y = torch.linspace((1 - height) * 0.5, (height - 1) * 0.5, height, device=images.device, dtype=torch.float32)
    # for each image and axis, the weights of x and y, and the constant: float32[B, 2, 1, 1]
    of_x, of_y, start = lines[..., None, None].unbind(2)
    # rounded as torchvision's product of matrices rounds, so that halves of pixels fall to the same side
    sums = torch.addcmul(of_x * x, of_y, y[:, None])
    grid = images.new_empty(count, height, width, 2, dtype=torch.float32)
    grid.movedim(-1, 1).copy_(sums.add_(start))
    return grid


def _nearest(images: torch.Tensor, grid: torch.Tensor, fill: torch.Tensor | None) -> torch.Tensor:
    """Take the pixels of grid_sample, and the fill outside."""
    # outside is 0: so levels are counted from the fill's
    beyond = 0.0 if fill is None else fill.round()
    return levels_of(_sampled(images.float() - beyond, grid, "nearest") + beyond)


def _bilinear(images: torch.Tensor, grid: torch.Tensor, fill: torch.Tensor | None) -> torch.Tensor:
    """Sample with grid_sample, and blend a fill in as torchvision does.

    torchvision weights edge pixels twice by their share of image: once in grid_sample, and once with the fill.
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
