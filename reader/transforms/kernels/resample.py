"""Pixels of a box of each sample: copied, or resized to one size with antialiasing. uint8 in, uint8 out.

The compiled part does it on the CPU, torch's kernel image by image elsewhere. Knows nothing of
labels or randomness.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from reader.compiled import Crops, are_served, cropped
from reader.store import RaggedBatch
from reader.transforms.kernels.pixel_ops import channels_of
from reader.tuning import tuning

# A number, or one for each sample: int64[B, 1].
_Where = int | torch.Tensor


def cut(
    pixels: torch.Tensor,
    top: torch.Tensor,
    left: torch.Tensor,
    height: int,
    width: int,
    is_mirrored: torch.Tensor | None = None,
) -> torch.Tensor:
    """Copy uint8[B, height, width, C] from int64[B] corners of uint8[B, H, W, C], those of bool[B] mirrored left to right."""
    if not len(pixels):
        return pixels.new_empty(0, height, width, pixels.shape[-1])
    boxes = torch.stack([left, top, left + width, top + height], -1)
    result = _crops_of_rows(pixels, Crops(boxes, height, width, is_mirrored=is_mirrored))
    if result is not None:
        return result
    count, row_height, row_width, channels = pixels.shape
    # each line of a crop is consecutive bytes: one index_select of overlapping lines, 30 times as fast as indexing pixels
    lines = pixels.reshape(-1).unfold(0, width * channels, channels)
    sample = torch.arange(count, device=pixels.device)[:, None]
    y = top[:, None] + torch.arange(height, device=pixels.device)
    first = (sample * row_height + y) * row_width + left[:, None]
    result = lines.index_select(0, first.view(-1)).view(count, height, width, channels)
    return _mirrored_where(result, is_mirrored)


def mirrored(pixels: torch.Tensor, is_chosen: torch.Tensor) -> torch.Tensor:
    """Copy uint8[B, H, W, C], those of bool[B] mirrored left to right."""
    height, width = pixels.shape[1:3]
    boxes = torch.tensor([0, 0, width, height], device="cpu").expand(len(pixels), 4)
    result = _crops_of_rows(pixels, Crops(boxes, height, width, is_mirrored=is_chosen))
    if result is not None:
        return result
    shape, is_chosen = pixels.shape, is_chosen[:, None]
    first, second = pixels.flip(-2).flatten(1), pixels.flatten(1)
    if first.shape[1] % 8 == 0:
        # eight bytes at a time: on a CPU twice as fast for the whole flip
        first, second = first.view(torch.int64), second.view(torch.int64)
    return torch.where(is_chosen, first, second).view(pixels.dtype).view(shape)


def resized(pixels: torch.Tensor, crops: Crops) -> torch.Tensor:
    """Resize a box of each image of uint8[B, H, W, C] to uint8[B, height, width, C].

    What torchvision's v2 resized_crop gives: on the CPU the same bytes; elsewhere bilinear within 1, and bicubic within 1 of
    what it gives for float32, as the CPU's uint8 kernel cuts what overshoots between the axes too.
    """
    if (result := _crops_of_rows(pixels, crops)) is not None:
        return result
    into = pixels.new_empty(len(pixels), crops.height, crops.width, pixels.shape[-1])
    return _mirrored_where(_resize_each(pixels, crops, into), crops.is_mirrored)


def resized_images(batch: RaggedBatch, crops: Crops) -> torch.Tensor:
    """Do as `resized` with images of different sizes."""
    channels = channels_of(batch)
    if are_served(batch.pixels, channels):
        images = torch.cat([batch.offsets[:, None], batch.shapes[:, :2].long()], 1)
        if (result := cropped(batch.pixels, images, channels, crops)) is not None:
            return result
    each = batch.pixels.new_empty(len(batch), crops.height, crops.width, channels)
    return _mirrored_where(_resize_each(map(batch.image, range(len(batch))), crops, each), crops.is_mirrored)


def nearest(masks: torch.Tensor, crops: Crops) -> torch.Tensor:
    """Resize a box of each mask of uint8[B, H, W] to uint8[B, height, width]: the pixel under each new pixel's center."""
    sample = torch.arange(len(masks), device=masks.device)[:, None, None]
    y, x = _centers(crops)
    return masks[sample, y[:, :, None], x[:, None, :]]


def nearest_of_images(batch: RaggedBatch, crops: Crops) -> torch.Tensor:
    """Do as `nearest` with the masks of images of different sizes, which a batch must have."""
    y, x = _centers(crops)
    assert batch.mask_offsets is not None
    first = batch.mask_offsets[:, None] + y * batch.shapes[:, 1:2].long()
    some = tuning().masks_per_pass
    parts = zip(first.split(some), x.split(some), strict=True)
    return torch.cat([batch.pixels.take(lines[:, :, None] + columns[:, None, :]) for lines, columns in parts])


def _axes(crops: Crops) -> tuple[tuple[_Where, _Where], tuple[_Where, _Where]]:
    """Give (top, new height) and (left, new width): numbers, or int64[B, 1] of each sample."""
    if crops.grids is None:
        return (0, crops.height), (0, crops.width)
    top, left, new_height, new_width = crops.grids[..., None].unbind(1)
    return (top, new_height), (left, new_width)


def _crops_of_rows(pixels: torch.Tensor, crops: Crops) -> torch.Tensor | None:
    """Make all crops of uint8[B, H, W, C] by the compiled part; None: it does not take them."""
    if not are_served(pixels, pixels.shape[-1]):
        return None
    count, row_height, row_width, channels = pixels.shape
    images = torch.empty(count, 3, dtype=torch.int64, device="cpu")
    images[:, 0] = torch.arange(count, device="cpu") * (row_height * row_width * channels)
    images[:, 1], images[:, 2] = row_height, row_width
    return cropped(pixels, images, channels, crops)


def _mirrored_where(pixels: torch.Tensor, is_mirrored: torch.Tensor | None) -> torch.Tensor:
    return pixels if is_mirrored is None else mirrored(pixels, is_mirrored)


def _resize_each(images: Iterable[torch.Tensor], crops: Crops, result: torch.Tensor) -> torch.Tensor:
    """Resize a box of each of uint8[H, W, C] into uint8[B, height, width, C]."""
    boxes, height, width, grids, is_cubic, _ = crops.on_host() or crops
    is_exact = result.device.type == "cpu"
    full_sizes = [(0, 0, height, width)] * len(result) if grids is None else grids.tolist()
    aten = torch.ops.aten
    kernel = aten._upsample_bicubic2d_aa if is_cubic else aten._upsample_bilinear2d_aa
    new_images = result.movedim(-1, 1)
    for n, (image, (x0, y0, x1, y1), (top, left, *full_size)) in enumerate(
        zip(images, boxes.tolist(), full_sizes, strict=True)
    ):
        if full_size == [y1 - y0, x1 - x0]:
            # either kernel copies then, into memory of another layout
            result[n] = image[y0 + top : y0 + top + height, x0 + left : x0 + left + width]
            continue
        box = image[y0:y1, x0:x1].movedim(-1, 0)[None]
        if not is_exact:
            # no other device has torch's uint8 kernel
            floats = kernel(box.float(), full_size, False, None, None)[0, :, top : top + height, left : left + width]
            new_images[n] = floats.round_().clamp_(0, 255)
        elif full_size == [height, width]:
            # interpolate(antialias=True) is this without out; the copy that saves takes half as long as the resizing
            kernel.out(box, full_size, False, None, None, out=new_images[n : n + 1])
        else:
            new = kernel(box, full_size, False, None, None)
            new_images[n] = new[0, :, top : top + height, left : left + width]
    return result


def _centers(crops: Crops) -> tuple[torch.Tensor, torch.Tensor]:
    """Give int64[B, height] and int64[B, width], the old pixel that holds each new pixel's center, down and across."""
    x0, y0, x1, y1 = crops.boxes.unbind(-1)
    (top, new_height), (left, new_width) = _axes(crops)
    return (_centers_of(y0, y1, new_height, top, crops.height), _centers_of(x0, x1, new_width, left, crops.width))


def _centers_of(start: torch.Tensor, stop: torch.Tensor, new_size: _Where, first: _Where, count: int) -> torch.Tensor:
    """Give int64[B, count], the old pixel that holds each new pixel's center: integers, so that nothing rounds."""
    odd = 2 * (torch.arange(count, device=start.device) + first) + 1
    return start[:, None] + odd * (stop - start)[:, None] // (2 * new_size)
