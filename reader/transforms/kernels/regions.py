"""Pixels of images of different sizes: a region of each becomes an image of its own size; steps, and floats, of each.

On the CPU the compiled part makes an image in a call, several images at once; elsewhere torch does, one image after the other.
Knows nothing of labels or randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from reader import compiled
from reader.store import RaggedBatch
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.kernels.pixel_ops import channels_of

FillLevels = Sequence[float]


class Regions(NamedTuple):
    """The region of each image that becomes its new image.

    boxes: int64[B, 4] x0, y0, x1, y1, inside the image, which are resized, bilinear and antialiased. sizes: int64[B, 2], the
    height and width that they are resized to. windows: int64[B, 4] x0, y0, x1, y1 in the resized box, the new image; may reach
    beyond it. is_mirrored: bool[B], left to right in the end. fill: the level beyond the box, or one for each channel.
    """

    boxes: torch.Tensor
    sizes: torch.Tensor
    windows: torch.Tensor
    is_mirrored: torch.Tensor
    fill: FillLevels


def flat_images(batch: RaggedBatch, heights: torch.Tensor, widths: torch.Tensor) -> tuple[int, torch.Tensor]:
    """Return how many numbers new images of these sizes, int64[B], have, and int64[B], where each begins among them."""
    counts = heights * widths * batch.shapes[:, 2].long()
    ends = counts.cumsum(0)
    return int(ends[-1]) if len(batch) else 0, ends - counts


def cut_out(batch: RaggedBatch, regions: Regions) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the regions of uint8 images: their bytes, uint8[T], and int64[B], where each begins."""
    x0, y0, x1, y1 = regions.windows.unbind(-1)
    total, offsets = flat_images(batch, y1 - y0, x1 - x0)
    if len(batch) and compiled.are_served(batch.pixels, channels_of(batch)):
        result = compiled.memory(total)
        if _cut_by_compiled_part(batch, regions, result, offsets):
            return result, offsets
    images = []
    for n, (box, size, window, is_mirrored) in enumerate(zip(*(each.tolist() for each in regions[:4]), strict=True)):
        images.append(_region(batch.image(n), box, size, window, is_mirrored, regions.fill).reshape(-1))
    return torch.cat(images) if images else batch.pixels[:0], offsets


def _cut_by_compiled_part(batch: RaggedBatch, regions: Regions, result: torch.Tensor, offsets: torch.Tensor) -> bool:
    channels, (_, sizes, windows, is_mirrored, fill) = channels_of(batch), regions
    # of the window what is in the resized box; the rest is filled
    limit = torch.cat([sizes.flip(-1), sizes.flip(-1)], -1)
    inner = windows.clamp(min=0).minimum(limit)
    images = torch.cat([batch.offsets[:, None], batch.shapes[:, :2].long()], 1)
    more = [inner[:, [1, 0]], sizes, 2 * is_mirrored[:, None].long(), torch.zeros_like(offsets)[:, None]]
    table = torch.cat([images, regions.boxes, *more], 1).numpy()
    pixels, out, are_made = batch.pixels.numpy(), result.numpy(), np.zeros(len(batch), bool)
    wholes, inners, starts, flips = windows.tolist(), inner.tolist(), offsets.tolist(), is_mirrored.tolist()

    def cut(n: int) -> None:
        (left, top, right, bottom), (x0, y0, x1, y1) = wholes[n], inners[n]
        shape = bottom - top, right - left, channels
        image = out[starts[n] : starts[n] + shape[0] * shape[1] * channels].reshape(shape)
        if wholes[n] == inners[n]:
            are_made[n] = compiled.crop_into(pixels, table[n], image)
            return
        _fill(image, fill)
        if x0 >= x1 or y0 >= y1:
            are_made[n] = True
            return
        part = np.empty((y1 - y0, x1 - x0, channels), np.uint8)
        are_made[n] = compiled.crop_into(pixels, table[n], part)
        across = right - x1 if flips[n] else x0 - left
        image[y0 - top : y1 - top, across : across + x1 - x0] = part

    compiled.for_each(cut, len(batch), result.numel())
    return bool(are_made.all())


def _fill(image: npt.NDArray[np.uint8], fill: FillLevels) -> None:
    """Set all of uint8[H, W, C] to one level, or one for each channel."""
    levels = [int(level) for level in fill]
    if len({*levels}) == 1:
        image.fill(levels[0])
    else:
        # whole lines: pixel by pixel it takes ten times as long
        image.reshape(len(image), -1)[:] = np.tile(np.array(levels, np.uint8), image.shape[1])


def _region(
    image: torch.Tensor, box: list[int], size: list[int], window: list[int], is_mirrored: bool, fill: FillLevels
) -> torch.Tensor:
    """Make the region of one image, uint8[H, W, C], by torch."""
    x0, y0, x1, y1 = box
    result = image[y0:y1, x0:x1]
    if size != [y1 - y0, x1 - x0]:
        is_exact = image.device.type == "cpu"
        given = result.movedim(-1, 0)[None]
        found = torch.ops.aten._upsample_bilinear2d_aa(given if is_exact else given.float(), size, False, None, None)
        result = (found if is_exact else found.round().clamp(0, 255).to(torch.uint8))[0].movedim(0, -1)
    left, top, right, bottom = window
    levels = tensor_on(image.device, [int(level) for level in fill], torch.uint8)
    whole = levels.expand(bottom - top, right - left, image.shape[-1]).clone()
    x0, y0, x1, y1 = max(left, 0), max(top, 0), min(right, size[1]), min(bottom, size[0])
    if x0 < x1 and y0 < y1:
        whole[y0 - top : y1 - top, x0 - left : x1 - left] = result[y0:y1, x0:x1]
    return whole.flip(1) if is_mirrored else whole


def stepped(batch: RaggedBatch, kinds: torch.Tensor, numbers: torch.Tensor) -> RaggedBatch | None:
    """Do steps, int64[B, S] and float32[B, S, 6], to each image as `compiled.augmented` does; None where it does not."""
    if not len(batch) or not compiled.take_channels(batch.pixels, channels_of(batch)):
        return None
    total, offsets = flat_images(batch, *batch.shapes[:, :2].long().unbind(-1))
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
    total, offsets = flat_images(batch, *batch.shapes[:, :2].long().unbind(-1))
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
