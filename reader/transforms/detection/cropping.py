"""torchvision's random cuts of images with boxes: RandomIoUCrop, RandomZoomOut, and its references' FixedSizeCrop."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from tensordict import TensorDict

from reader.transforms.annotations import check_boxes, kept_boxes
from reader.transforms.detection.view import OwnSizeTransform, View
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.random import (
    FIXED_SIZE_CROP,
    IOU_CROP,
    ZOOM_OUT,
    checked_p,
    checked_size,
    draw,
    integer,
    number,
    numbers,
)

# How often overlaps are drawn before an image stays as it is; torchvision draws until it is done. One in seven stays at each draw
# by default: what is beyond is 1 image in 5 million.
_MOST_ROUNDS = 100
# Least overlaps of crops: SSD's.
_OPTIONS: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
# Numbers of a try: height, width, left, top.
_DRAWS = 4


class RandomZoomOut(OwnSizeTransform):
    """Place each image at random on a canvas larger by a random factor, with probability p: torchvision's, of SSD.

    Images have sizes of their own afterwards, a RaggedBatch. Boxes move along.

    Args:
        fill: level of the canvas, or one for each channel.
        side_range: lowest and highest factor of the sides, 1 or more.
        p: probability, 0 to 1.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: side_range are not two factors of 1 or more, the smaller one first, or p is not a probability.

    Example:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> RandomZoomOut(side_range=(2, 2), p=1)(batch).images[0].shape
        torch.Size([3, 64, 64])
    """

    def __init__(
        self,
        fill: float | Sequence[float] = 0,
        side_range: Sequence[float] = (1.0, 4.0),
        p: float = 0.5,
        *,
        seed: int = 0,
    ) -> None:
        limits = numbers("side_range", side_range)
        if len(limits) != 2 or not 1 <= limits[0] <= limits[1] < math.inf:
            raise ValueError(f"side_range is {side_range!r}, expected two factors of 1 or more, the smaller one first.")
        self.fill, self.side_range, self.p, self.seed = _levels(fill), (limits[0], limits[1]), checked_p(p), seed

    def on(self, view: View) -> View:
        """Place the images of a view."""
        chance, side, across, down = draw(view.source, self.seed, ZOOM_OUT)
        low, high = self.side_range
        height, width = view.sizes.unbind(-1)
        factor = torch.where(chance < self.p, low + side * (high - low), 1.0)
        canvas_width, canvas_height = (width * factor).long(), (height * factor).long()
        left, top = ((canvas_width - width) * across).long(), ((canvas_height - height) * down).long()
        return view.cut(torch.stack([-left, -top, canvas_width - left, canvas_height - top], -1), self.fill)


class FixedSizeCrop(OwnSizeTransform):
    """Cut size x size pixels at a random place of larger images, and fill smaller ones to the right and below.

    What torchvision's references/detection has of that name for large scale jitter, behind ScaleJitter. Boxes are clipped; those
    without area left are dropped. Images of one size, but still a RaggedBatch.

    Args:
        size: pixels, or (height, width).
        fill: level of what is filled, or one for each channel.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: size is not 1 or more pixels.

    Example:
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
        drawn = draw(view.source, self.seed, FIXED_SIZE_CROP)[0]
        height, width = view.sizes.unbind(-1)
        # one number for both, as there
        top, left = (
            ((height - self.height).clamp(min=0) * drawn).long(),
            ((width - self.width).clamp(min=0) * drawn).long(),
        )
        return view.cut(torch.stack([left, top, left + self.width, top + self.height], -1), self.fill)


class RandomIoUCrop(OwnSizeTransform):
    """Cut a random box of each image that overlaps one of its boxes by a drawn share at least: torchvision's, of SSD.

    Boxes whose center is not in the crop are dropped, the others clipped. An image may stay as it is: where a share of 1 or more
    is drawn, and where a hundred draws find no crop, as in images without boxes. Images have sizes of their own afterwards,
    a RaggedBatch.

    Args:
        min_scale, max_scale: lowest and highest side of the crop, as a share of the image's.
        min_aspect_ratio, max_aspect_ratio: lowest and highest width / height of the crop.
        sampler_options: the shares that are drawn from; None: 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: how many crops are tried for a share before another one is drawn.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: scales or aspect ratios are not above 0 with the smaller one first, there is no option, or no trial.
    """

    def __init__(
        self,
        min_scale: float = 0.3,
        max_scale: float = 1.0,
        min_aspect_ratio: float = 0.5,
        max_aspect_ratio: float = 2.0,
        sampler_options: Sequence[float] | None = None,
        trials: int = 40,
        *,
        seed: int = 0,
    ) -> None:
        scales = number("min_scale", min_scale), number("max_scale", max_scale)
        ratios = number("min_aspect_ratio", min_aspect_ratio), number("max_aspect_ratio", max_aspect_ratio)
        if not 0 < scales[0] <= scales[1] <= 1:
            raise ValueError(f"scales are {scales}, expected two shares above 0, up to 1, the smaller one first.")
        if not 0 < ratios[0] <= ratios[1]:
            raise ValueError(f"aspect ratios are {ratios}, expected two above 0, the smaller one first.")
        options, trials = _OPTIONS, integer("trials", trials)
        if sampler_options is not None:
            options = tuple(numbers("sampler_options", sampler_options))
        if not options or trials < 1:
            raise ValueError(
                f"sampler_options are {sampler_options!r} and trials {trials!r}, expected one or more of each."
            )
        self.scale, self.ratio, self.options, self.trials, self.seed = scales, ratios, options, trials, seed

    def on(self, view: View) -> View:
        """Cut the images of a view."""
        windows, is_left = self.windows(view)
        if view.extras is not None and is_left is not None:
            view = View(view.source, view.regions, kept_boxes(view.extras, is_left))
        return view.cut(windows)

    def windows(self, view: View) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draw the crops, int64[B, 4] x0, y0, x1, y1, and which boxes have their center there, bool[B, K]; None: no boxes."""
        windows = torch.nn.functional.pad(view.sizes.flip(-1), (2, 0))
        boxes, is_there = _boxes_of(view.extras)
        if boxes is None or is_there is None:
            return windows, None
        is_left, left = is_there.clone(), torch.arange(len(windows), device=windows.device)
        for attempt in range(_MOST_ROUNDS):
            if not len(left):
                break
            found, window, is_within, is_done = self._round(view, attempt, left, boxes[left], is_there[left])
            windows[left[found]], is_left[left[found]] = window[found], is_within[found]
            left = left[~is_done]
        return windows, is_left

    def _round(
        self, view: View, attempt: int, rows: torch.Tensor, boxes: torch.Tensor, is_there: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw a share for some rows, and try crops: where one was found, bool[R], which, its boxes, and who needs no other."""
        count = 1 + _DRAWS * self.trials
        first = IOU_CROP + attempt * count
        drawn = draw(view.source, self.seed, range(first, first + count), rows)
        options = tensor_on(drawn.device, self.options, torch.float64)
        share = options[(drawn[0] * len(options)).long()]
        tries = self._tries(view.sizes[rows], drawn[1:].view(self.trials, _DRAWS, len(rows)))
        windows, is_shaped = tries
        x0, y0, x1, y1 = windows[..., None].unbind(2)
        center_x, center_y = 0.5 * (boxes[..., 0] + boxes[..., 2]), 0.5 * (boxes[..., 1] + boxes[..., 3])
        is_within = (x0 < center_x) & (center_x < x1) & (y0 < center_y) & (center_y < y1) & is_there
        overlap = torch.where(is_within, _overlaps(boxes, windows), -1.0).amax(-1)
        # torchvision compares in float32 too: 7 pixels of 10 are a share of 0.7
        is_right = is_shaped & is_within.any(-1) & (overlap >= share.to(overlap.dtype))
        which = is_right.byte().argmax(0)
        found = is_right.any(0) & (share < 1)
        row = torch.arange(len(rows), device=rows.device)
        return found, windows[which, row], is_within[which, row], found | (share >= 1)

    def _tries(self, sizes: torch.Tensor, drawn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give the crops of float64[T, 4, R], int64[T, R, 4], and whether their shape is allowed, bool[T, R]."""
        height, width = sizes.unbind(-1)
        low, high = self.scale
        across, down = (low + (high - low) * drawn[:, :2]).unbind(1)
        new_width, new_height = (width * across).long(), (height * down).long()
        left, top = ((width - new_width) * drawn[:, 2]).long(), ((height - new_height) * drawn[:, 3]).long()
        ratio = new_width / new_height
        is_shaped = (ratio >= self.ratio[0]) & (ratio <= self.ratio[1]) & (new_width > 0) & (new_height > 0)
        return torch.stack([left, top, left + new_width, top + new_height], -1), is_shaped


def _boxes_of(extras: TensorDict | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return float32[B, K, 4] and bool[B, K], which of them are there; None: there are none."""
    if extras is None or extras.get("boxes", None) is None or not extras["boxes"].shape[1]:
        return None, None
    check_boxes(extras)
    slot = torch.arange(extras["boxes"].shape[1], device=extras["boxes"].device)
    return extras["boxes"], slot < extras["box_count"][:, None]


def _overlaps(boxes: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    """Give intersection over union of float32[R, K, 4] and int64[T, R, 4]: float32[T, R, K]."""
    windows = windows[:, :, None].to(boxes.dtype)
    sides = torch.minimum(boxes[..., 2:], windows[..., 2:]) - torch.maximum(boxes[..., :2], windows[..., :2])
    shared = sides.clamp(min=0).prod(-1)
    areas = [(each[..., 2:] - each[..., :2]).prod(-1) for each in (boxes, windows)]
    return shared / (areas[0] + areas[1] - shared)


def _levels(fill: float | Sequence[float]) -> tuple[float, ...]:
    """Return levels as given, as a tuple; raises ValueError where one is not 0 to 255."""
    levels = tuple(float(level) for level in numbers("fill", fill))
    if not levels or not all(0 <= level <= 255 for level in levels):
        raise ValueError(f"fill is {fill!r}, expected a level from 0 to 255, or one for each channel.")
    return levels
