"""Deterministic resizing, for batches of images of one size and of many, on their device: CenterCrop and Resize."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from tensordict import TensorDict

from reader.compiled import CompiledTransform, Crops
from reader.described import Described
from reader.epoch import row_source
from reader.store import ImageBatch, RaggedBatch, replaced
from reader.transforms.annotations import Motion, content_of, moved_extras
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.kernels.pixel_ops import in_parts
from reader.transforms.kernels.resample import (
    PixelSource,
    boxes_on_levels,
    nearest,
    nearest_of_images,
    resized,
    resized_from_levels,
    resized_images,
)
from reader.transforms.random import check_batch, number


class CenterCrop(CompiledTransform):
    """Resize each image, antialiased, until it covers size / fraction, and cut its central size x size pixels.

    What torchvision's Resize(size / fraction) and CenterCrop(size) give, rounding included; `pack --crop-fraction` does the same
    offline. In rows with content the image is the content, so the result has none. Boxes and masks move with the pixels.
    Images of different sizes, a RaggedBatch, become an ImageBatch.

    Args:
        size: pixels, or (height, width).
        fraction: share of the resized image that is kept; 0.875 gives the usual 224 of 256.

    Raises:
        ValueError: size is not 1 or more pixels, or fraction is not above 0 and at most 1.

    Example:
        >>> from reader import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> CenterCrop(28, fraction=0.875)(batch).images.shape
        torch.Size([2, 3, 28, 28])
    """

    # rows that nothing but its box is needed of
    reads_levels = True

    def __init__(self, size: int | tuple[int, int], fraction: float = 1.0) -> None:
        self.height, self.width = checked_size(size)
        self.fraction = number("fraction", fraction)
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction is {fraction}, expected more than 0, and at most 1.")

    def with_size(self, size: int | tuple[int, int]) -> CenterCrop:
        """Return this crop with results of another size."""
        return CenterCrop(size, self.fraction)

    def __call__(self, batch: ImageBatch | RaggedBatch) -> ImageBatch:
        """Return uint8[B, height, width, C], without content.

        Raises:
            ValueError: one row instead of a batch.
        """
        check_batch(self, batch, takes_ragged=True)
        y0, x0, y1, x1 = content_of(batch).unbind(-1)
        boxes = torch.stack([x0, y0, x1, y1], dim=-1)
        grids = self._grids(y1 - y0, x1 - x0)
        top, left, new_height, new_width = grids.unbind(-1)
        down, across = new_height / (y1 - y0).float(), new_width / (x1 - x0).float()
        corner = (x0 + left / across)[:, None], (y0 + top / down)[:, None]
        motion = Motion(*corner, across[:, None], down[:, None], self.width, self.height)
        crops = Crops(boxes, self.height, self.width, grids)
        extras = cropped_extras(batch, motion, crops)
        return replaced(batch, pixels=resized_boxes(batch, crops), content=None, extras=extras)

    def levels(self, source: PixelSource, batch: ImageBatch | RaggedBatch) -> torch.Tensor:
        """Return what the sides of each row are divided by where a call reads it from levels: int64[B]."""
        y0, x0, y1, x1 = content_of(batch).unbind(-1)
        grids = self._grids(y1 - y0, x1 - x0)
        return boxes_on_levels(source, batch, torch.stack([x0, y0, x1, y1], dim=-1), grids[:, [3, 2]])[0]

    def _grids(self, height: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
        """Give int64[B, 4] top, left, height, width: what images of int64[B] each are resized to, and where the crop is."""
        cover_height, cover_width = math.floor(self.height / self.fraction), math.floor(self.width / self.fraction)
        # the side that is shorter against the crop decides; for a square crop that is the short side
        is_narrow = cover_width * height >= cover_height * width
        by_width = (cover_width * height // width).clamp(min=cover_height)
        by_height = (cover_height * width // height).clamp(min=cover_width)
        new_height = torch.where(is_narrow, by_width, cover_height)
        new_width = torch.where(is_narrow, cover_width, by_height)
        return torch.stack(
            [_middle(new_height - self.height), _middle(new_width - self.width), new_height, new_width], dim=-1
        )


class Resize(Described):
    """Resize each image, bilinear or bicubic, antialiased: to a height and a width, whatever its shape was, or to a shorter side.

    With a height and a width the image of rows with content is the content, so the result has none, and images of different
    sizes, a RaggedBatch, become an ImageBatch. With a shorter side the whole row is resized. Boxes and masks move along.

    Args:
        size: (height, width), or pixels of the shorter side.
        interpolation: "bilinear" or "bicubic".
        antialias: average what is made smaller.

    Raises:
        ValueError: size is not 1 or more pixels, or interpolation is neither of these.

    Example:
        >>> from reader import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> Resize((24, 30), "bicubic")(batch).images.shape
        torch.Size([2, 3, 24, 30])
    """

    def __init__(self, size: int | Sequence[int], interpolation: str = "bilinear", antialias: bool = True) -> None:
        sides = (size,) if isinstance(size, int) else tuple(size)
        if len(sides) not in (1, 2) or not all(isinstance(side, int) and side > 0 for side in sides):
            raise ValueError(f"size is {size!r}, expected (height, width), or pixels of the shorter side.")
        name = getattr(interpolation, "value", interpolation)
        if name not in ("bilinear", "bicubic"):
            raise ValueError(f'interpolation is {interpolation!r}, expected "bilinear" or "bicubic".')
        self.size, self.interpolation, self.antialias = sides, str(name), antialias

    def __call__(self, batch: ImageBatch | RaggedBatch) -> ImageBatch:
        """Return uint8[B, height, width, C].

        Raises:
            ValueError: images of different sizes, and only the shorter side is given.
        """
        check_batch(self, batch, takes_ragged=len(self.size) == 2)
        height, width = self._size_of(batch)
        is_uncut = isinstance(batch, ImageBatch) and (batch.content is None or len(self.size) == 1)
        y0, x0, y1, x1 = self._corners(batch, is_uncut).unbind(-1)
        boxes = torch.stack([x0, y0, x1, y1], -1)
        across, down = width / (x1 - x0).float()[:, None], height / (y1 - y0).float()[:, None]
        motion = Motion(x0[:, None], y0[:, None], across, down, width, height)
        if is_uncut:
            pixels = in_parts(lambda part: self._resized(part, height, width), batch.pixels)
        else:
            pixels = torch.cat([self._resized(image[None], height, width) for image in _cut(batch, boxes)])
        content = None
        if isinstance(batch, ImageBatch) and batch.content is not None and is_uncut:
            y0, x0, y1, x1 = batch.content.float()[:, None].unbind(-1)
            x0, y0, x1, y1 = motion.move(x0, y0, x1, y1)
            # rows with padding are not all image
            content = torch.cat([y0.ceil(), x0.ceil(), y1.floor(), x1.floor()], -1).to(batch.content.dtype)
        extras = cropped_extras(batch, motion, Crops(boxes, height, width))
        return replaced(batch, pixels=pixels, content=content, extras=extras)

    def _size_of(self, batch: ImageBatch | RaggedBatch) -> tuple[int, int]:
        """Give (height, width) of the results, as torchvision rounds it."""
        if len(self.size) == 2:
            return self.size[0], self.size[1]
        height, width = batch.pixels.shape[1:3]
        short = self.size[0]
        return (int(short * height / width), short) if width <= height else (short, int(short * width / height))

    def _corners(self, batch: ImageBatch | RaggedBatch, is_uncut: bool) -> torch.Tensor:
        """Return int64[B, 4] y0, x0, y1, x1 of the resized parts."""
        if not is_uncut:
            return content_of(batch)
        height, width = batch.pixels.shape[1:3]
        return tensor_on(batch.pixels.device, [0, 0, height, width]).expand(len(batch), 4)

    def _resized(self, pixels: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Resize uint8[B, H, W, C]: on the CPU with torch's kernels for uint8, elsewhere in float32."""
        images = pixels.movedim(-1, 1)
        is_exact = images.device.type == "cpu"
        made = torch.nn.functional.interpolate(
            images if is_exact else images.float(), (height, width), mode=self.interpolation, antialias=self.antialias
        )
        if not is_exact:
            made = made.round().clamp(0, 255).to(torch.uint8)
        return made.movedim(1, -1)


def resized_boxes(batch: ImageBatch | RaggedBatch, crops: Crops) -> torch.Tensor:
    """Resize a box of each image to uint8[B, height, width, C], see `resample.resized`.

    Where a loader reads levels, from the smallest one of which the box, rounded to its pixels, has as many as it is resized to.
    """
    source = _row_source()
    # the result of an earlier crop has its own pixels
    if source is not None and (isinstance(batch, RaggedBatch) or batch.pixels.stride(1) == 0):
        return resized_from_levels(source, batch, crops)
    return resized_images(batch, crops) if isinstance(batch, RaggedBatch) else resized(batch.pixels, crops)


def cropped_extras(batch: ImageBatch | RaggedBatch, motion: Motion, crops: Crops) -> TensorDict | None:
    """Move boxes as motion says, and masks as `resized_boxes` moves pixels: uint8[B, height, width], the nearest of each."""

    def move(masks: torch.Tensor) -> torch.Tensor:
        """Give masks of one size the boxes and size of the images; refuses them beside images of their own sizes."""
        if isinstance(batch, RaggedBatch):
            raise ValueError(
                "extras' masks have one size and the images sizes of their own. Rename those that are not masks."
            )
        return nearest(masks, crops)

    extras = moved_extras(batch.extras, motion, move)
    if not isinstance(batch, RaggedBatch) or batch.mask_offsets is None:
        return extras
    if (source := _row_source()) is not None:
        assert batch.rows is not None
        pixels, begins = source.masks(batch.rows)
        batch = batch.replace(pixels=pixels, mask_offsets=begins)
    masks = nearest_of_images(batch, crops)
    return TensorDict(
        {**({} if extras is None else extras), "masks": masks}, batch_size=[len(batch)], device=masks.device
    )


def _row_source() -> PixelSource | None:
    """Return what the rows of a batch without pixels are read from; None: it has pixels."""
    # no loader compiles what reads from levels
    return None if torch.compiler.is_compiling() else row_source.get()


def checked_size(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width); raises ValueError."""
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ValueError(f"size is {size!r}, expected pixels: one number, or height and width.")
    return sides[0], sides[1]


def _middle(slack: torch.Tensor) -> torch.Tensor:
    """Halve integers as Python's round does: a half goes to the even neighbor."""
    half = slack // 2
    return half + (slack & half & 1)


def _cut(batch: ImageBatch | RaggedBatch, boxes: torch.Tensor) -> list[torch.Tensor]:
    """Give the views uint8[H, W, C] of boxes."""
    images = (batch.image(n) if isinstance(batch, RaggedBatch) else batch.pixels[n] for n in range(len(batch)))
    return [image[y0:y1, x0:x1] for image, (x0, y0, x1, y1) in zip(images, boxes.tolist(), strict=True)]
