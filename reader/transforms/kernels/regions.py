"""Pixels of regions of images: each is resized, cut, mirrored and filled around; steps, and floats, of images of own sizes.

On the CPU the compiled part makes an image in a call, several images at once; elsewhere torch does, one image after the other.
Knows nothing of labels or randomness.
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
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.kernels.pixel_ops import channels_of
from reader.tuning import tuning

# as crops.c has them
IS_CUBIC, IS_MIRRORED, IS_TURNED, IS_NEAREST = 1, 2, 4, 8


Numbers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Regions(NamedTuple):
    """The region of each image that becomes its new image; in numpy, whose operators of few numbers are the faster ones.

    Attributes:
        images: int64[B, 3], the byte where an image begins, its height and width.
        boxes: int64[B, 4] x0, y0, x1, y1 in the image, which are resized, bilinear and antialiased.
        sizes: int64[B, 2], the width and height that they are resized to.
        windows: int64[B, 4] x0, y0, x1, y1 in the resized boxes, the new images; may reach beyond them.
        flags: int64[B], bicubic or nearest instead, and what is mirrored or upside down in the end.
        fill: the level beyond the boxes, or one for each channel.
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
    def of(cls, images: Numbers) -> Regions:
        """Take images, int64[B, 3], as they are."""
        sizes = images[:, :0:-1]
        windows = np.concatenate([np.zeros_like(sizes), sizes], 1)
        return cls(images, windows, sizes, windows, np.zeros_like(images[:, 0]))

    def at(self, rows: slice) -> Regions:
        """Return the regions of some images."""
        images, boxes, sizes, windows, flags = (each[rows] for each in self[:5])
        return self._replace(images=images, boxes=boxes, sizes=sizes, windows=windows, flags=flags)

    def are_resized(self) -> bool:
        """Say whether boxes become larger or smaller."""
        return not np.array_equal(self.boxes[:, 2:] - self.boxes[:, :2], self.sizes)


def write_regions(
    pixels: torch.Tensor,
    regions: Regions,
    channels: int,
    places: Numbers,
    size_bytes: int,
    result: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write uint8[height, width, channels] of each region of flat pixels, from int64[B] places on.

    To result, or to new uint8[size_bytes], which is returned.

    What torchvision's v2 resized_crop gives: on the CPU the same bytes; elsewhere bilinear within 1, and bicubic within 1 of
    what it gives for float32, as the CPU's uint8 kernel cuts what overshoots between the axes too.
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
    widths, heights = (regions.windows[:, 2:] - regions.windows[:, :2]).T.tolist()
    is_one_size = len({*heights}) == len({*widths}) == 1
    is_nearest = bool((regions.flags & IS_NEAREST).any()) or not (pixels.device.type == "cpu" or regions.are_resized())
    if is_nearest and is_one_size and size_bytes == len(places) * heights[0] * widths[0] * channels:
        return _nearest(pixels, regions, channels, there).reshape(-1)
    for n, start in enumerate(places.tolist()):
        shape = heights[n], widths[n], channels
        part = regions.at(slice(n, n + 1))
        made = _nearest(pixels, part, channels, there)[0] if is_nearest else _resized(pixels, part, channels, there)
        result[start : start + made.numel()].view(shape).copy_(made)
    return result


def _nearest(pixels: torch.Tensor, regions: Regions, channels: int, fill: torch.Tensor) -> torch.Tensor:
    """Make uint8[B, height, width, C] of regions of one size: the old pixel under each new pixel's center, by integers."""
    (start, _, row_width), x, y = regions.images.T, _centers(regions, 0), _centers(regions, 1)
    # -1 where it is beyond the box
    lines = np.where(y < 0, -1, start[:, None] + y * row_width[:, None] * channels)
    line, column = (sent(torch.from_numpy(each), pixels.device) for each in (lines, x * channels))
    depth, some = torch.arange(channels, device=pixels.device), tuning().masks_per_pass
    parts = []
    for down, across in zip(line[:, :, None, None].split(some), column[:, None, :, None].split(some), strict=True):
        is_beyond = (down < 0) | (across < 0)
        parts.append(torch.where(is_beyond, fill, pixels.take((down + across + depth).clamp(min=0))))
    return torch.cat(parts)


def _centers(regions: Regions, axis: int) -> Numbers:
    """Give int64[B, pixels], of each new place of an axis the old one in the images; -1 beyond the boxes."""
    (low, high), (start, stop) = regions.boxes.T[axis::2, :, None], regions.windows.T[axis::2, :, None]
    step, size = np.arange(int((stop - start)[0, 0])), regions.sizes[:, axis, None]
    is_flipped = regions.flags[:, None] & (IS_MIRRORED, IS_TURNED)[axis] > 0
    place = start + np.where(is_flipped, step[::-1], step)
    return np.where((place < 0) | (place >= size), -1, low + (2 * place + 1) * (high - low) // (2 * size))


def _resized(pixels: torch.Tensor, region: Regions, channels: int, fill: torch.Tensor) -> torch.Tensor:
    """Make uint8[height, width, C] of one region by torch's kernels."""
    ((start, row_height, row_width),) = region.images.tolist()
    ((x0, y0, x1, y1),), ((left, top, right, bottom),) = region.boxes.tolist(), region.windows.tolist()
    ((width, height),), flags = region.sizes.tolist(), int(region.flags[0])
    image = pixels[start : start + row_height * row_width * channels].view(row_height, row_width, channels)
    made = image[y0:y1, x0:x1]
    if (width, height) != (x1 - x0, y1 - y0):
        aten, is_exact = torch.ops.aten, pixels.device.type == "cpu"
        kernel = aten._upsample_bicubic2d_aa if flags & IS_CUBIC else aten._upsample_bilinear2d_aa
        given = made.movedim(-1, 0)[None]
        # no other device has torch's uint8 kernel
        found = kernel(given if is_exact else given.float(), [height, width], False, None, None)
        made = (found if is_exact else found.round_().clamp_(0, 255).to(torch.uint8))[0].movedim(0, -1)
    inner = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
    whole = fill.expand(bottom - top, right - left, channels).clone()
    if inner[0] < inner[2] and inner[1] < inner[3]:
        part = made[inner[1] : inner[3], inner[0] : inner[2]]
        whole[inner[1] - top : inner[3] - top, inner[0] - left : inner[2] - left] = part
    return whole.flip([axis for axis, flag in enumerate((IS_TURNED, IS_MIRRORED)) if flags & flag])


def stepped(batch: RaggedBatch, kinds: torch.Tensor, numbers: torch.Tensor) -> RaggedBatch | None:
    """Do steps, int64[B, S] and float32[B, S, 6], to each image as `compiled.augmented` does; None where it does not."""
    if not len(batch) or not compiled.take_channels(batch.pixels, channels_of(batch)):
        return None
    total, offsets = _flat_images(batch)
    result = compiled.memory(total)
    out, are_made = result.numpy(), np.zeros(len(batch), bool)
    starts, images = offsets.tolist(), [batch.image(n).numpy() for n in range(len(batch))]

    def change(n: int) -> None:
        place = out[starts[n] : starts[n] + images[n].size].reshape(images[n].shape)
        are_made[n] = compiled.augment_into(images[n], kinds[n], numbers[n], place)

    compiled.for_each(change, len(batch), total)
    return with_pixels(batch, result, offsets) if are_made.all() else None


def by_image(batch: RaggedBatch, change: Callable[[int, torch.Tensor], torch.Tensor]) -> RaggedBatch:
    """Give each image what change(n, uint8[H, W, C]) makes of it, uint8 or floats; one channel may become several."""
    if not len(batch):
        return batch
    result = [change(n, batch.image(n)) for n in range(len(batch))]
    flat = [(image.movedim(-1, 0) if image.is_floating_point() else image).reshape(-1) for image in result]
    shapes = tensor_on(batch.shapes.device, [image.shape for image in result], batch.shapes.dtype)
    counts = shapes.long().prod(1)
    changed: RaggedBatch = with_pixels(batch, torch.cat(flat), counts.cumsum(0) - counts).replace(shapes=shapes)
    return changed


def floats(batch: RaggedBatch, of_levels: Callable[[torch.Tensor], torch.Tensor]) -> RaggedBatch:
    """Make floats of uint8 images by a function of uint8[C, H, W], in planes."""
    channels = channels_of(batch)
    is_served = len(batch) > 0 and compiled.take_channels(batch.pixels, channels)
    tables = compiled.float_tables(channels, of_levels) if is_served else None
    if tables is None:
        return by_image(batch, lambda _, image: of_levels(image.movedim(-1, 0)).movedim(0, -1))
    total, offsets = _flat_images(batch)
    result = compiled.memory(total, 4).view(torch.float32)[:, 0]
    pixels, of_level, out = batch.pixels.numpy(), tables.numpy(), result.numpy()
    ends: list[Any] = [*offsets.tolist(), total]
    begins = batch.offsets.tolist()

    def convert(n: int) -> None:
        start, stop = ends[n], ends[n + 1]
        compiled.floats_into(pixels[begins[n] : begins[n] + stop - start], of_level, out[start:stop])

    compiled.for_each(convert, len(batch), 4 * total)
    return with_pixels(batch, result, offsets)


def with_pixels(batch: RaggedBatch, pixels: torch.Tensor, offsets: torch.Tensor) -> RaggedBatch:
    """Return a batch with pixels of images of the same sizes, without masks."""
    result: RaggedBatch = batch.replace(pixels=pixels, offsets=offsets, mask_offsets=None)
    return result


def _flat_images(batch: RaggedBatch) -> tuple[int, torch.Tensor]:
    """Return how many numbers images have, and int64[B], where each begins among them where nothing is between."""
    counts = batch.shapes.long().prod(-1)
    ends = counts.cumsum(0)
    return int(ends[-1]) if len(batch) else 0, ends - counts
