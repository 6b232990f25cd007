"""Pixels of regions of images: resized, cropped, mirrored and padded; also steps, and floats, for images of their own sizes.

On the CPU the compiled part makes one image per call, several at once; elsewhere torch makes one image after the other. Knows
nothing about labels or randomness.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from reader import compiled
from reader.host_values import sent
from reader.store import RaggedBatch
from reader.transforms.kernels.pixel_ops import channels_of, tensor_on

# Masks per pass: their indices are int64, eight times the bytes.
MASKS_PER_PASS = 32

# the same as in crops.c
IS_CUBIC, IS_MIRRORED, IS_TURNED, IS_NEAREST = 1, 2, 4, 8


Numbers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Regions(NamedTuple):
    """The region of each image that becomes its new image; in numpy, which is faster for few numbers.

    Attributes:
        images: int64[B, 3], the first byte of each image, its height and width.
        boxes: int64[B, 4] x0, y0, x1, y1 in the image, to be resized, bilinear and antialiased.
        sizes: int64[B, 2], the new width and height of the boxes.
        windows: int64[B, 4] x0, y0, x1, y1 in the resized boxes, the new images; they may extend beyond them.
        flags: int64[B], bicubic or nearest in place of bilinear, and flips of the result.
        fill: the level outside the boxes, or one for each channel.
        mask_fill: the class there.
    """

    images: Numbers
    boxes: Numbers
    sizes: Numbers
    windows: Numbers
    flags: Numbers
    fill: tuple[float, ...] = (0.0,)
    mask_fill: int = 255

    @classmethod
    def from_images(cls, images: Numbers) -> Regions:
        """Return the regions of whole images, int64[B, 3]."""
        sizes = images[:, :0:-1]
        windows = np.concatenate([np.zeros_like(sizes), sizes], 1)
        return cls(images, windows, sizes, windows, np.zeros_like(images[:, 0]))

    def pick(self, rows: slice) -> Regions:
        """Return the regions of some images."""
        images, boxes, sizes, windows, flags = (each[rows] for each in self[:5])
        return self._replace(images=images, boxes=boxes, sizes=sizes, windows=windows, flags=flags)

    def are_resized(self) -> bool:
        """Return whether boxes become larger or smaller."""
        return not np.array_equal(self.boxes[:, 2:] - self.boxes[:, :2], self.sizes)


def write_regions(
    pixels: torch.Tensor,
    regions: Regions,
    channels: int,
    places: Numbers,
    size_bytes: int,
    result: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write uint8[height, width, channels] of each region of flat pixels, at places int64[B].

    Writes to result, or to new uint8[size_bytes], and returns it.

    The result equals torchvision's v2 resized_crop: the same bytes on the CPU; elsewhere bilinear within 1. Bicubic is within
    1 of its float32 result, since the CPU's uint8 kernel also clips between the axes.
    """
    fill = [int(level) for level in regions.fill]
    levels = bytes(fill * channels if len(fill) == 1 else fill)
    if compiled.are_served(pixels, channels):
        result = compiled.memory(size_bytes) if result is None else result
        table = np.column_stack([*regions[:5], places])
        if compiled.crop(pixels, table, result, channels, levels):
            return result
    result = pixels.new_empty(size_bytes) if result is None else result
    if not len(places):
        return result
    there = tensor_on(pixels.device, list(levels), torch.uint8)
    if regions.are_resized() and not (regions.flags & IS_NEAREST).any():
        pixels, regions = _resized(pixels, regions, channels)
    sizes = regions.windows[:, 2:] - regions.windows[:, :2]
    if (sizes == sizes[0]).all() and size_bytes == sizes.prod(1).sum() * channels:
        return _nearest(pixels, regions, channels, there).reshape(-1)
    for n, start in enumerate(places.tolist()):
        made = _nearest(pixels, regions.pick(slice(n, n + 1)), channels, there).reshape(-1)
        result[start : start + len(made)] = made
    return result


def _nearest(pixels: torch.Tensor, regions: Regions, channels: int, fill: torch.Tensor) -> torch.Tensor:
    """Make uint8[B, height, width, C] from regions of one size: the old pixel under each new pixel's center, in integers."""
    (start, _, row_width), x, y = regions.images.T, _centers(regions, 0), _centers(regions, 1)
    # -1 outside the box
    lines = np.where(y < 0, -1, start[:, None] + y * row_width[:, None] * channels)
    line, column = (sent(torch.from_numpy(each), pixels.device) for each in (lines, x * channels))
    depth, some = torch.arange(channels, device=pixels.device), MASKS_PER_PASS
    parts = []
    for down, across in zip(line[:, :, None, None].split(some), column[:, None, :, None].split(some), strict=True):
        is_beyond = (down < 0) | (across < 0)
        parts.append(torch.where(is_beyond, fill, pixels.take((down + across + depth).clamp(min=0))))
    return torch.cat(parts)


def _centers(regions: Regions, axis: int) -> Numbers:
    """Return int64[B, pixels], the old place of each new place on an axis; -1 outside the boxes."""
    (low, high), (start, stop) = regions.boxes.T[axis::2, :, None], regions.windows.T[axis::2, :, None]
    step, size = np.arange(int((stop - start)[0, 0])), regions.sizes[:, axis, None]
    is_flipped = regions.flags[:, None] & (IS_MIRRORED, IS_TURNED)[axis] > 0
    place = start + np.where(is_flipped, step[::-1], step)
    return np.where((place < 0) | (place >= size), -1, low + (2 * place + 1) * (high - low) // (2 * size))


def _resized(pixels: torch.Tensor, regions: Regions, channels: int) -> tuple[torch.Tensor, Regions]:
    """Resize boxes by torch's kernels; returns these images, flat, and their regions, without resizing."""
    made, is_exact = [], pixels.device.type == "cpu"
    for (start, row_height, row_width), (x0, y0, x1, y1), (width, height), flags in zip(
        *(each.tolist() for each in (regions.images, regions.boxes, regions.sizes, regions.flags)), strict=True
    ):
        image = pixels[start : start + row_height * row_width * channels].view(row_height, row_width, channels)
        box = image[y0:y1, x0:x1].movedim(-1, 0)[None]
        kernel = torch.ops.aten._upsample_bicubic2d_aa if flags & IS_CUBIC else torch.ops.aten._upsample_bilinear2d_aa
        # other devices lack torch's uint8 kernel
        found = kernel(box if is_exact else box.float(), [height, width], False, None, None)
        found = found if is_exact else found.round_().clamp_(0, 255).to(torch.uint8)
        made.append(found[0].movedim(0, -1).reshape(-1))
    counts = regions.sizes.prod(1) * channels
    images = np.column_stack([counts.cumsum() - counts, regions.sizes[:, ::-1]])
    return torch.cat(made), regions._replace(images=images, boxes=Regions.from_images(images).boxes)


def written(
    batch: RaggedBatch, dtype: torch.dtype, write: Callable[[int, npt.NDArray[Any], npt.NDArray[Any]], None]
) -> RaggedBatch:
    """Call write(n, uint8[H, W, C], out) for several images at once, with room for as many numbers of a type in out."""
    if not len(batch):
        return batch
    ends = batch.shapes.long().prod(1).cumsum(0).tolist()
    result = compiled.memory(ends[-1], dtype.itemsize).view(dtype)[:, 0]
    out, starts = result.numpy(), [0, *ends]
    compiled.for_each(
        lambda n: write(n, batch.image(n).numpy(), out[starts[n] : ends[n]]), len(batch), dtype.itemsize * len(result)
    )
    return _with_pixels(batch, result, batch.shapes)


def by_image(batch: RaggedBatch, change: Callable[[int, torch.Tensor], torch.Tensor]) -> RaggedBatch:
    """Replace each image by change(n, uint8[H, W, C]), uint8 or floats; one channel may become several."""
    if not len(batch):
        return batch
    result = [change(n, batch.image(n)) for n in range(len(batch))]
    flat = [(image.movedim(-1, 0) if image.is_floating_point() else image).reshape(-1) for image in result]
    shapes = tensor_on(batch.shapes.device, [image.shape for image in result], batch.shapes.dtype)
    return _with_pixels(batch, torch.cat(flat), shapes)


def floats(batch: RaggedBatch, of_levels: Callable[[torch.Tensor], torch.Tensor]) -> RaggedBatch:
    """Convert uint8 images to floats by a function of uint8[C, H, W], in planes."""
    channels = channels_of(batch)
    is_served = compiled.take_channels(batch.pixels, channels)
    tables = compiled.float_tables(channels, of_levels) if is_served else None
    if tables is None:
        return by_image(batch, lambda _, image: of_levels(image.movedim(-1, 0)).movedim(0, -1))
    of_level = tables.numpy()
    return written(batch, torch.float32, lambda _, image, out: compiled.floats_into(image, of_level, out))


def _with_pixels(batch: RaggedBatch, pixels: torch.Tensor, shapes: torch.Tensor) -> RaggedBatch:
    """Return a batch with the pixels of changed images, one after the other, and the same masks."""
    counts, mask_offsets = shapes.long().prod(1), None
    offsets = counts.cumsum(0) - counts
    if batch.mask_offsets is not None:
        pairs = [(image, batch.mask(n)) for n, image in enumerate(pixels.split(counts.tolist()))]
        pixels = torch.cat([part.reshape(-1) for pair in pairs for part in pair if part is not None])
        areas = shapes[:, :2].long().prod(1)
        offsets += areas.cumsum(0) - areas
        mask_offsets = offsets + counts
    result: RaggedBatch = batch.replace(pixels=pixels, shapes=shapes, offsets=offsets, mask_offsets=mask_offsets)
    return result
