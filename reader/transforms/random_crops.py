"""Batched operations on the device that move pixels: flips and random crops.

Each sample has parameters of its own, drawn from (seed, epoch, position, row). Boxes and masks in extras move with the pixels.
The given batch is never changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from reader.compiled import Crops
from reader.described import Described
from reader.epoch import on_one_torch_thread
from reader.store import ImageBatch, RaggedBatch, replaced
from reader.transforms.annotations import Motion, content_of, moved_content, moved_extras
from reader.transforms.detection.view import View
from reader.transforms.fills import Fill
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.kernels.resample import mirrored
from reader.transforms.padding import Padding
from reader.transforms.random import (
    CROP,
    FLIP,
    RESIZED_CROP,
    VERTICAL_FLIP,
    check_batch,
    checked_p,
    checked_size,
    draw,
    host_batch,
    on_the_host,
)
from reader.transforms.resize import cropped_extras, cut_at, resized_boxes

# As often torchvision's RandomResizedCrop draws a box before it takes the central one.
_TRIES = 10


class _RandomFlip(Described):
    """Flips each image with probability p."""

    # of the random numbers
    _stream: range

    def __init__(self, p: float = 0.5, *, seed: int = 0) -> None:
        self.p, self.seed = checked_p(p), seed

    def __call__(self, batch: ImageBatch | RaggedBatch) -> ImageBatch | RaggedBatch:
        """Return a batch of the same shapes.

        Raises:
            ValueError: images of different sizes have masks, or it is one row.
        """
        if isinstance(batch, RaggedBatch):
            result: RaggedBatch = self.on(View.of(self, batch)).batch()
            return result
        check_batch(self, batch)
        return self._flipped(batch, self.chosen(batch))

    def on(self, view: View) -> View:
        """Flip the images of a view."""
        raise NotImplementedError

    def chosen(self, batch: ImageBatch | RaggedBatch) -> torch.Tensor:
        """Draw which images a call would flip: bool[B]."""
        return on_the_host(lambda rows: draw(rows, self.seed, self._stream)[0] < self.p, batch)

    def _flipped(self, batch: ImageBatch, is_flipped: torch.Tensor) -> ImageBatch:
        raise NotImplementedError


class RandomHorizontalFlip(_RandomFlip):
    """Mirror each image left to right with probability p; boxes, masks and content with it.

    Images of different sizes, a RaggedBatch, keep them; of these boxes move along, and masks are refused.

    Args:
        p: 0..1.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: p is not a probability.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> torch.equal(RandomHorizontalFlip(1)(batch).images, batch.images.flip(-1))
        True
    """

    _stream = FLIP

    def on(self, view: View) -> View:
        """Mirror the images of a view."""
        return view.mirrored(self.chosen(view.source))

    def _flipped(self, batch: ImageBatch, is_flipped: torch.Tensor) -> ImageBatch:
        return _with_mirrored_labels(batch, mirrored(batch.pixels, is_flipped), is_flipped)


class RandomVerticalFlip(_RandomFlip):
    """Turn each image upside down with probability p; boxes, masks and content with it.

    Images of different sizes, a RaggedBatch, keep them; of these boxes move along, and masks are refused.

    Args:
        p: 0..1.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: p is not a probability.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> torch.equal(RandomVerticalFlip(1)(batch).images, batch.images.flip(-2))
        True
    """

    _stream = VERTICAL_FLIP

    def on(self, view: View) -> View:
        """Turn the images of a view."""
        is_flipped = self.chosen(view.source)
        height, width = view.sizes[..., None].unbind(1)
        flags = is_flipped.tolist()
        motion = Motion.of_flips(is_flipped, height, width, is_vertical=True)
        result = view.redrawn(lambda n, image: image.flip(0) if flags[n] else image, motion)
        return replace(result, size=view.size)

    def _flipped(self, batch: ImageBatch, is_flipped: torch.Tensor) -> ImageBatch:
        motion = Motion.of_flips(is_flipped, *batch.pixels.shape[1:3], is_vertical=True)
        pixels = _with_lines_reversed(batch.pixels, is_flipped)
        return _with_labels(batch, pixels, motion, lambda masks: _with_lines_reversed(masks, is_flipped))


class RandomCrop(Described):
    """Cut size x size pixels (or (height, width)) at a random place of each image, after padding, as torchvision does.

    In rows with content the place is drawn inside the content and its padding. Where that is smaller than the crop, the crop
    holds all of it, at a random place. Boxes are clipped to the crop; those without area left are dropped. Images of different
    sizes, a RaggedBatch, become an ImageBatch; of these boxes move along, and masks are refused.

    Args:
        size: pixels, or (height, width).
        padding: pixels on every side, two of them for left and right, and top and bottom, or four: left, top, right, bottom.
        pad_if_needed: pad images that are smaller than size until they are not.
        fill: level of constant padding, one for each channel, or a dict of both as torchvision takes it; masks get 255.
        padding_mode: "constant", "edge", "reflect" or "symmetric", see Pad.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

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

    def __call__(self, batch: ImageBatch | RaggedBatch) -> ImageBatch:
        """Return uint8[B, height, width, C], padding included; where rows have content, it moves, and stays the image.

        Raises:
            ValueError: the padded images are smaller than size, or have boxes where padding repeats the image.
        """
        return self.mirrored(batch, None)

    def mirrored(self, batch: ImageBatch | RaggedBatch, is_mirrored: torch.Tensor | None) -> ImageBatch:
        """Do as a call, and mirror the crops of bool[B] left to right in the same pass over the pixels.

        Raises:
            ValueError: the padded images are smaller than size, or have boxes where padding repeats the image.
        """
        check_batch(self, batch, takes_ragged=True)
        if isinstance(batch, RaggedBatch):
            view = self.on(View.of(self, batch))
            cut: ImageBatch = (
                view if is_mirrored is None else replace(view.mirrored(is_mirrored), size=view.size)
            ).batch()
            return cut
        padding = self._padding_of(*batch.pixels.shape[1:3])
        top = on_the_host(lambda rows: self._corners(rows, padding)[0], batch)
        left = on_the_host(lambda rows: self._corners(rows, padding)[1], batch)
        result = cut_at(padding.applied(batch), top, left, self.height, self.width, is_mirrored)
        return result if is_mirrored is None else _with_mirrored_labels(result, result.pixels, is_mirrored)

    def on(self, view: View) -> View:
        """Cut the images of a view."""
        if self.padding.mode != "constant":
            raise ValueError(
                f'padding_mode is "{self.padding.mode}", and images have sizes of their own. Take "constant" for these.'
            )
        down, across = draw(host_batch(view.source), self.seed, CROP)
        tops, lefts = [], []
        for (height, width), y, x in zip(view.sizes.tolist(), down.tolist(), across.tolist(), strict=True):
            padding = self._padding_of(height, width)
            height, width = padding.size_of(height, width)
            tops.append(int(y * (height - self.height + 1)) - padding.top)
            lefts.append(int(x * (width - self.width + 1)) - padding.left)
        top, left = tensor_on(view.sizes.device, [tops, lefts], torch.int64)
        windows = torch.stack([left, top, left + self.width, top + self.height], -1)
        return replace(view.cut(windows, self.padding.fill), size=(self.height, self.width))

    def _padding_of(self, row_height: int, row_width: int) -> Padding:
        """Give the padding of rows of this size; raises ValueError where the crop does not fit."""
        padding = self.padding
        height, width = padding.size_of(row_height, row_width)
        if self.pad_if_needed:
            padding = padding.more(max(0, self.width - width), max(0, self.height - height))
            height, width = padding.size_of(row_height, row_width)
        if height < self.height or width < self.width:
            raise ValueError(
                f"RandomCrop cuts {self.height} x {self.width} pixels, but the rows have {row_height} x {row_width} and"
                f" {padding} of padding. Take a smaller size or more padding."
            )
        return padding

    def _corners(self, batch: ImageBatch, padding: Padding) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the upper left corners of the crops, int64[B] each, in rows that are yet to be padded."""
        down, across = draw(batch, self.seed, CROP)
        height, width = padding.size_of(*batch.pixels.shape[1:3])
        if batch.content is None:
            # the same as `_start`, with a third of the kernels
            return (down * (height - self.height + 1)).long(), (across * (width - self.width + 1)).long()
        y0, x0, y1, x1 = batch.content.long().unbind(-1)
        return (
            _start(down, y0, y1 + padding.top + padding.bottom, self.height, height),
            _start(across, x0, x1 + padding.left + padding.right, self.width, width),
        )


class RandomResizedCrop(Described):
    """Cut a random box of each image and resize it to size x size (or (height, width)), antialiased.

    The box is drawn by torchvision's definition: an area of scale times the image's, an aspect ratio (width / height) of
    ratio; ten tries, then the central box that comes closest. In rows with content the image is the content, so the result
    has none. Boxes are clipped to the crop; those without area left are dropped. Masks take the nearest pixel. Images of
    different sizes, a RaggedBatch, become an ImageBatch.

    Args:
        size: pixels, or (height, width).
        scale: lowest and highest area of the box, as a share of the image's.
        ratio: lowest and highest width / height of the box.
        interpolation: "bilinear" or "bicubic".
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: size is not 1 or more pixels, or scale or ratio are not two numbers above 0, the smaller one first,
            or there is no such interpolation.

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
        for name, limits in (("scale", scale), ("ratio", ratio)):
            is_pair = (
                isinstance(limits, Sequence) and len(limits) == 2 and all(isinstance(n, int | float) for n in limits)
            )
            if not is_pair or not 0 < limits[0] <= limits[1] < math.inf:
                raise ValueError(f"{name} is {limits!r}, expected two numbers above 0, the smaller one first.")
        self.interpolation = str(getattr(interpolation, "value", interpolation))
        if self.interpolation not in ("bilinear", "bicubic"):
            raise ValueError(f'interpolation is {interpolation!r}, expected "bilinear" or "bicubic".')
        self.scale, self.ratio, self.seed = scale, ratio, seed

    def __call__(self, batch: ImageBatch | RaggedBatch) -> ImageBatch:
        """Return uint8[B, height, width, C], without content."""
        return self.mirrored(batch, None)

    def mirrored(self, batch: ImageBatch | RaggedBatch, is_mirrored: torch.Tensor | None) -> ImageBatch:
        """Do as a call, and mirror the crops of bool[B] left to right in the same pass over the pixels."""
        crops = Crops(self.boxes(batch), self.height, self.width, None, self.interpolation == "bicubic", is_mirrored)
        pixels, extras = resized_boxes(batch, crops), cropped_extras(batch, lambda: self._motion(crops.boxes), crops)
        result: ImageBatch = replaced(batch, pixels=pixels, content=None, extras=extras)
        return result if is_mirrored is None else _with_mirrored_labels(result, pixels, is_mirrored)

    def _motion(self, boxes: torch.Tensor) -> Motion:
        x0, y0, x1, y1 = boxes.float()[..., None].unbind(1)
        return Motion(x0, y0, self.width / (x1 - x0), self.height / (y1 - y0), self.width, self.height)

    def boxes(self, batch: ImageBatch | RaggedBatch) -> torch.Tensor:
        """Draw the boxes that a call would cut: int64[B, 4] x0, y0, x1, y1 in row pixels."""
        check_batch(self, batch, takes_ragged=True)
        with on_one_torch_thread():
            return on_the_host(self._boxes, batch)

    def _boxes(self, batch: ImageBatch | RaggedBatch) -> torch.Tensor:
        y0, x0, y1, x1 = content_of(batch).unbind(-1)
        height, width = y1 - y0, x1 - x0
        drawn = draw(batch, self.seed, RESIZED_CROP)
        areas, ratios, (down, across) = drawn[:_TRIES], drawn[_TRIES : 2 * _TRIES], drawn[2 * _TRIES :]
        area = height * width * _between(areas, self.scale)
        ratio = _between(ratios, (math.log(self.ratio[0]), math.log(self.ratio[1]))).exp()
        box_width, box_height = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
        fits = (box_width > 0) & (box_width <= width) & (box_height > 0) & (box_height <= height)
        # the first try that fits, and after the last one the central box, which always does
        first = torch.cat([fits, torch.ones_like(fits[:1])]).byte().argmax(0, keepdim=True)
        central_height, central_width = self._central(height, width)
        box_height = torch.cat([box_height, central_height[None]]).gather(0, first)[0]
        box_width = torch.cat([box_width, central_width[None]]).gather(0, first)[0]
        is_central = first[0] == _TRIES
        y0 = y0 + _offset(down, height - box_height, is_central)
        x0 = x0 + _offset(across, width - box_width, is_central)
        return torch.stack([x0, y0, x0 + box_width, y0 + box_height], dim=-1)

    def _central(self, height: torch.Tensor, width: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give height and width of the largest box whose ratio is allowed, as torchvision rounds it."""
        ratio = width.double() / height
        low, high = self.ratio
        return (
            torch.where(ratio < low, (width.double() / low).round().long().clamp(min=1), height),
            torch.where(ratio > high, (height.double() * high).round().long().clamp(min=1), width),
        )


def _with_mirrored_labels(batch: ImageBatch, pixels: torch.Tensor, is_mirrored: torch.Tensor) -> ImageBatch:
    """Return a batch with pixels that are mirrored where bool[B] says so, and boxes, masks and content mirrored with them."""
    if batch.content is None and batch.extras is None:
        return replaced(batch, pixels=pixels, content=None, extras=None)
    motion = Motion.of_flips(is_mirrored, *pixels.shape[1:3])
    return _with_labels(batch, pixels, motion, lambda masks: mirrored(masks[..., None], is_mirrored)[..., 0])


def _with_labels(
    batch: ImageBatch, pixels: torch.Tensor, motion: Motion, of_masks: Callable[[torch.Tensor], torch.Tensor]
) -> ImageBatch:
    """Return a batch with pixels that have moved, and boxes, masks and content that move with them."""
    content = None if batch.content is None else moved_content(batch.content, motion)
    return replaced(batch, pixels=pixels, content=content, extras=moved_extras(batch.extras, motion, of_masks))


def _with_lines_reversed(pixels: torch.Tensor, is_chosen: torch.Tensor) -> torch.Tensor:
    """Copy [B, H, ...], with the lines of those of bool[B] from the last to the first."""
    count, height = pixels.shape[:2]
    line = torch.arange(height, device=pixels.device)
    first = height * torch.arange(count, device=pixels.device)[:, None]
    source = first + torch.where(is_chosen[:, None], height - 1 - line, line)
    return pixels.flatten(0, 1).index_select(0, source.view(-1)).view(pixels.shape)


def _start(drawn: torch.Tensor, low: torch.Tensor, high: torch.Tensor, size: int, row_size: int) -> torch.Tensor:
    """Place size pixels inside low..high, or around it where it is shorter, and inside the row: int64[B]."""
    first = torch.minimum(low, high - size).clamp(0, row_size - size)
    last = torch.maximum(low, high - size).clamp(0, row_size - size)
    return first + (drawn * (last - first + 1)).long()


def _between(drawn: torch.Tensor, limits: tuple[float, float]) -> torch.Tensor:
    return limits[0] + drawn * (limits[1] - limits[0])


def _offset(drawn: torch.Tensor, slack: torch.Tensor, is_central: torch.Tensor) -> torch.Tensor:
    return torch.where(is_central, slack // 2, (drawn * (slack + 1)).long())
