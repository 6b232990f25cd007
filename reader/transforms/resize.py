"""Resizes and central cuts that draw nothing, of images of one size and of many: CenterCrop, Resize, and both in one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from tensordict import TensorDict

from reader.compiled import Crops
from reader.described import Described
from reader.store import ImageBatch, RaggedBatch, replaced
from reader.transforms.annotations import Motion, content_of, moved_content, moved_extras
from reader.transforms.detection.view import View
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.kernels.pixel_ops import in_parts
from reader.transforms.kernels.resample import (
    cut,
    nearest,
    nearest_of_images,
    resized,
    resized_images,
)
from reader.transforms.padding import Padding
from reader.transforms.random import check_batch, checked_size, number, on_the_host


class CenterCrop(Described):
    """Cut the central size x size pixels (or (height, width)) of each row, with zeros around one that is smaller: torchvision's.

    It resizes nothing; right behind Resize both are one pass over the pixels, see `ResizeCenterCrop`. Boxes, masks and content
    move with the pixels. Images of different sizes, a RaggedBatch, become an ImageBatch; of these boxes move along, and masks are
    refused.

    Args:
        size: pixels, or (height, width).

    Raises:
        ValueError: size is not 1 or more pixels.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> torch.equal(CenterCrop(28)(batch).images, batch.images[..., 2:30, 2:30])
        True
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.height, self.width = checked_size(size)

    def __call__(self, batch: ImageBatch | RaggedBatch) -> ImageBatch:
        """Return uint8[B, height, width, C], zeros included; where rows have content, it moves, and stays the image.

        Raises:
            ValueError: images of different sizes have masks, or it is one row.
        """
        check_batch(self, batch, takes_ragged=True)
        if isinstance(batch, RaggedBatch):
            return self.on(View.of(self, batch)).batch()
        padding = self._padding(*batch.pixels.shape[1:3])
        height, width = padding.size_of(*batch.pixels.shape[1:3])
        # a half goes to the even neighbor, as in torchvision
        corner = round((height - self.height) / 2), round((width - self.width) / 2)
        top, left = tensor_on(batch.pixels.device, corner).expand(len(batch), 2).unbind(-1)
        return cut_at(padding.applied(batch), top, left, self.height, self.width)

    def on(self, view: View) -> View:
        """Cut the images of a view."""
        slack = view.sizes - tensor_on(view.sizes.device, [self.height, self.width])
        # of the zeros around a smaller image the half that is rounded down comes first
        top, left = torch.where(slack < 0, -(-slack // 2), _middle(slack)).unbind(-1)
        windows = torch.stack([left, top, left + self.width, top + self.height], -1)
        return replace(view.cut(windows, (0.0,)), size=(self.height, self.width))

    def _padding(self, row_height: int, row_width: int) -> Padding:
        """Give the zeros around rows of this size."""
        down, across = max(0, self.height - row_height), max(0, self.width - row_width)
        return Padding((across // 2, down // 2, across - across // 2, down - down // 2), 0, "constant")


class ResizeCenterCrop(Described):
    """Resize each image, antialiased, until it covers size / fraction, and cut its central size x size pixels.

    What torchvision's Resize(size / fraction) and CenterCrop(size) give, rounding included; `pack --crop-fraction` does the same
    offline. In rows with content the image is the content, so the result has none. Boxes and masks move with the pixels.
    Images of different sizes, a RaggedBatch, become an ImageBatch.

    Args:
        size: pixels, or (height, width).
        fraction: share of the resized image that is kept; 0.875 gives the usual 224 of 256.

    Raises:
        ValueError: size is not 1 or more pixels, or fraction is not above 0 and at most 1.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> ResizeCenterCrop(28, fraction=0.875)(batch).images.shape
        torch.Size([2, 3, 28, 28])
    """

    def __init__(self, size: int | tuple[int, int], fraction: float = 1.0) -> None:
        self.height, self.width = checked_size(size)
        self.fraction = number("fraction", fraction)
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction is {fraction}, expected more than 0, and at most 1.")

    def __call__(self, batch: ImageBatch | RaggedBatch) -> ImageBatch:
        """Return uint8[B, height, width, C], without content.

        Raises:
            ValueError: one row instead of a batch.
        """
        check_batch(self, batch, takes_ragged=True)
        boxes, grids = on_the_host(_content_boxes, batch), on_the_host(self._grids_of, batch)
        crops = Crops(boxes, self.height, self.width, grids)
        extras = cropped_extras(batch, lambda: self._motion(boxes, grids), crops)
        return replaced(batch, pixels=resized_boxes(batch, crops), content=None, extras=extras)

    def _motion(self, boxes: torch.Tensor, grids: torch.Tensor) -> Motion:
        x0, y0, x1, y1 = boxes.unbind(-1)
        top, left, new_height, new_width = grids.unbind(-1)
        down, across = new_height / (y1 - y0).float(), new_width / (x1 - x0).float()
        corner = (x0 + left / across)[:, None], (y0 + top / down)[:, None]
        return Motion(*corner, across[:, None], down[:, None], self.width, self.height)

    def _grids_of(self, batch: ImageBatch | RaggedBatch) -> torch.Tensor:
        y0, x0, y1, x1 = content_of(batch).unbind(-1)
        return self._grids(y1 - y0, x1 - x0)

    def _grids(self, height: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
        """Give int64[B, 4] top, left, height, width: what images of int64[B] each are resized to, and where the crop is."""
        # a size / fraction of 400 may be 399.99999999999994
        cover_height, cover_width = (math.floor(side / self.fraction + 1e-9) for side in (self.height, self.width))
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
    sizes, a RaggedBatch, become an ImageBatch. With a shorter side the whole row is resized, and images of different sizes keep
    sizes of their own, without masks. Boxes and masks move along.

    Args:
        size: (height, width), or pixels of the shorter side.
        interpolation: "bilinear" or "bicubic".
        max_size: limit of the longer side, pixels, where size is the shorter one; None: none.

    Raises:
        ValueError: size is not 1 or more pixels, interpolation is neither of these, or max_size is not above size.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> Resize((24, 30), "bicubic")(batch).images.shape
        torch.Size([2, 3, 24, 30])
    """

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: str = "bilinear",
        max_size: int | None = None,
    ) -> None:
        sides = tuple(size) if isinstance(size, Sequence) else (size,)
        if len(sides) not in (1, 2) or not all(isinstance(side, int) and side > 0 for side in sides):
            raise ValueError(f"size is {size!r}, expected (height, width), or pixels of the shorter side.")
        name = getattr(interpolation, "value", interpolation)
        if name not in ("bilinear", "bicubic"):
            raise ValueError(f'interpolation is {interpolation!r}, expected "bilinear" or "bicubic".')
        if max_size is not None and (len(sides) == 2 or type(max_size) is not int or max_size <= sides[0]):
            raise ValueError(
                f"max_size is {max_size!r} and size {size!r}, expected a longer side above the shorter one that size is."
            )
        self.size, self.interpolation, self.max_size = sides, str(name), max_size

    @property
    def _keeps_sizes(self) -> bool:
        """Say whether images of different sizes have sizes of their own afterwards."""
        return len(self.size) == 1

    def __call__(self, batch: ImageBatch | RaggedBatch) -> ImageBatch | RaggedBatch:
        """Return uint8[B, height, width, C]; a RaggedBatch where images of different sizes get a shorter side.

        Raises:
            ValueError: such images have masks, or it is one row.
        """
        check_batch(self, batch, takes_ragged=True)
        if isinstance(batch, RaggedBatch) and (self._keeps_sizes or batch.mask_offsets is None):
            return self.on(View.of(self, batch)).batch()
        height, width = (
            self._new_size(*batch.pixels.shape[1:3]) if isinstance(batch, ImageBatch) else self._new_size(0, 0)
        )
        is_uncut = isinstance(batch, ImageBatch) and (batch.content is None or len(self.size) == 1)
        y0, x0, y1, x1 = self._corners(batch, is_uncut).unbind(-1)
        boxes = torch.stack([x0, y0, x1, y1], -1)
        # a number divided by a tensor is multiplied by its inverse, and rounded twice
        across, down = (
            (torch.full_like(x0, width) / (x1 - x0))[:, None],
            (torch.full_like(y0, height) / (y1 - y0))[:, None],
        )
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
        extras = cropped_extras(batch, lambda: motion, Crops(boxes, height, width))
        return replaced(batch, pixels=pixels, content=content, extras=extras)

    def on(self, view: View) -> View:
        """Resize the images of a view."""
        new = [self._new_size(*size) for size in view.sizes.tolist()]
        sizes = tensor_on(view.sizes.device, new).view(-1, 2)
        if self.interpolation == "bilinear":
            result = view.resized(sizes)
        else:
            factors, (height, width) = sizes / view.sizes, sizes[..., None].unbind(1)
            motion = Motion(0, 0, factors[:, 1:], factors[:, :1], width, height)
            result = view.redrawn(lambda n, image: self._resized(image[None], *new[n])[0], motion)
        # a shorter side of images of one size gives one size again
        is_one_size = not self._keeps_sizes or view.size is not None
        return replace(result, size=self._new_size(*(view.size or (0, 0)))) if is_one_size else result

    def _new_size(self, height: int, width: int) -> tuple[int, int]:
        """Give (height, width) of the result, as torchvision rounds it."""
        if len(self.size) == 2:
            return self.size[0], self.size[1]
        short, long = self.size[0], int(self.size[0] * max(height, width) / min(height, width))
        if self.max_size is not None and long > self.max_size:
            short, long = int(self.max_size * short / long), self.max_size
        return (long, short) if width <= height else (short, long)

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
        result = torch.nn.functional.interpolate(
            images if is_exact else images.float(), (height, width), mode=self.interpolation, antialias=True
        )
        if not is_exact:
            result = result.round().clamp(0, 255).to(torch.uint8)
        return result.movedim(1, -1)


def cut_at(
    batch: ImageBatch,
    top: torch.Tensor,
    left: torch.Tensor,
    height: int,
    width: int,
    is_mirrored: torch.Tensor | None = None,
) -> ImageBatch:
    """Cut height x width pixels at int64[B] corners, and what moves with them; mirrors the pixels of bool[B] alone."""
    motion = Motion(left[:, None], top[:, None], 1, 1, width, height)

    def cut_mask(masks: torch.Tensor) -> torch.Tensor:
        return cut(masks[..., None], top, left, height, width)[..., 0]

    pixels = cut(batch.pixels, top, left, height, width, is_mirrored)
    content = None if batch.content is None else moved_content(batch.content, motion)
    result: ImageBatch = replaced(
        batch, pixels=pixels, content=content, extras=moved_extras(batch.extras, motion, cut_mask)
    )
    return result


def resized_boxes(batch: ImageBatch | RaggedBatch, crops: Crops) -> torch.Tensor:
    """Resize a box of each image to uint8[B, height, width, C], see `resample.resized`."""
    return resized_images(batch, crops) if isinstance(batch, RaggedBatch) else resized(batch.pixels, crops)


def cropped_extras(batch: ImageBatch | RaggedBatch, motion: Callable[[], Motion], crops: Crops) -> TensorDict | None:
    """Move boxes as motion says, if there are extras, and masks as `resized_boxes` moves pixels, to the nearest of each.

    They become uint8[B, height, width].
    """

    def move(masks: torch.Tensor) -> torch.Tensor:
        """Give masks of one size the boxes and size of the images; refuses them beside images of their own sizes."""
        if isinstance(batch, RaggedBatch):
            raise ValueError(
                "extras' masks have one size and the images sizes of their own. Rename those that are not masks."
            )
        return nearest(masks, crops)

    extras = None if batch.extras is None else moved_extras(batch.extras, motion(), move)
    if not isinstance(batch, RaggedBatch) or batch.mask_offsets is None:
        return extras
    masks = nearest_of_images(batch, crops)
    return TensorDict(
        {**({} if extras is None else extras), "masks": masks}, batch_size=[len(batch)], device=masks.device
    )


def _content_boxes(batch: ImageBatch | RaggedBatch) -> torch.Tensor:
    """Return the image area of rows: int64[B, 4] x0, y0, x1, y1."""
    return content_of(batch)[:, [1, 0, 3, 2]]


def _middle(slack: torch.Tensor) -> torch.Tensor:
    """Halve integers as Python's round does: a half goes to the even neighbor."""
    half = slack // 2
    return half + (slack & half & 1)


def _cut(batch: ImageBatch | RaggedBatch, boxes: torch.Tensor) -> list[torch.Tensor]:
    """Give the views uint8[H, W, C] of boxes."""
    images = (batch.image(n) if isinstance(batch, RaggedBatch) else batch.pixels[n] for n in range(len(batch)))
    return [image[y0:y1, x0:x1] for image, (x0, y0, x1, y1) in zip(images, boxes.tolist(), strict=True)]
