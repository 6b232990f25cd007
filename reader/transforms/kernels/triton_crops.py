"""Crops of images on a CUDA device, by one kernel of Triton, which torch for CUDA brings along on Linux.

Imports Triton: only what has a device for it imports this. What a kernel computes is float32, as torch's own on CUDA.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from reader.compiled import IS_CUBIC, IS_MIRRORED, Crops
from reader.host_values import on_host, sent

# New pixels that a program makes.
_PIXELS = 256


def cropped(pixels: torch.Tensor, images: torch.Tensor, channels: int, crops: Crops) -> torch.Tensor:
    """Do as `reader.compiled.cropped` on the device of pixels, uint8[T], without waiting for it; nothing is checked."""
    result = torch.empty(len(images), crops.height, crops.width, channels, dtype=torch.uint8, device=pixels.device)
    if not result.numel():
        return result
    table = _table(images, crops, pixels.device)
    # on one axis: others end at 65,535
    blocks = triton.cdiv(crops.height * crops.width, _PIXELS)
    sizes = (crops.height, crops.width, channels, triton.next_power_of_2(channels), table.shape[1])
    with torch.cuda.device(pixels.device):
        _crop[blocks * len(images),](pixels, table, result, *sizes, IS_CUBIC, IS_MIRRORED, _PIXELS)
    return result


def _table(images: torch.Tensor, crops: Crops, device: torch.device) -> torch.Tensor:
    """Make the table of crops on the device: on the host, where all of it is known there."""
    here, images_here = crops.on_host(), on_host(images)
    if here is None or images_here is None:
        return crops.to(device).table(sent(images, device))
    return sent(here.table(images_here), device)


@triton.jit
def _weight(far, is_cubic):  # type: ignore[no-untyped-def]
    """Weigh a pixel at a distance: Keys's cubic of -0.5, or a triangle."""
    near = (1.5 * far - 2.5) * far * far + 1
    beyond = ((-0.5 * far + 2.5) * far - 4) * far + 2
    cubic = tl.where(far < 1, near, tl.where(far < 2, beyond, 0.0))
    return tl.where(is_cubic, cubic, tl.maximum(1 - far, 0.0))


@triton.jit
def _crop(  # type: ignore[no-untyped-def]
    pixels,
    table,
    result,
    height,
    width,
    channels: tl.constexpr,
    padded_channels: tl.constexpr,
    fields: tl.constexpr,
    cubic_flag: tl.constexpr,
    mirrored_flag: tl.constexpr,
    count: tl.constexpr,
):
    """Make `count` pixels of the crop of one image: sums of the pixels of its box, weighed down and across."""
    blocks = tl.cdiv(height * width, count)
    image, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    row = table + image.to(tl.int64) * fields
    source, row_width = pixels + tl.load(row), tl.load(row + 2).to(tl.int32)
    x0, y0 = tl.load(row + 3).to(tl.int32), tl.load(row + 4).to(tl.int32)
    x1, y1 = tl.load(row + 5).to(tl.int32), tl.load(row + 6).to(tl.int32)
    top, left = tl.load(row + 7).to(tl.int32), tl.load(row + 8).to(tl.int32)
    new_height, new_width = tl.load(row + 9), tl.load(row + 10)
    flags = tl.load(row + 11).to(tl.int32)
    is_cubic, is_mirrored = (flags & cubic_flag) != 0, (flags & mirrored_flag) != 0

    pixel = block * count + tl.arange(0, count)
    is_made = pixel < height * width
    line, column = pixel // width, pixel % width
    column = tl.where(is_mirrored, width - 1 - column, column)
    scale_y, scale_x = (y1 - y0).to(tl.float32) / new_height, (x1 - x0).to(tl.float32) / new_width
    center_y, center_x = y0 + (line + top + 0.5) * scale_y, x0 + (column + left + 0.5) * scale_x
    # old pixels per new one, of images that become smaller
    spread_y, spread_x = tl.maximum(scale_y, 1.0), tl.maximum(scale_x, 1.0)
    reach = tl.where(is_cubic, 2.0, 1.0)
    # of the pixels whose centers are nearer than reach x spread
    first_y = tl.floor(center_y - reach * spread_y - 0.5).to(tl.int32) + 1
    first_x = tl.floor(center_x - reach * spread_x - 0.5).to(tl.int32) + 1
    taps_y = tl.ceil(2 * reach * spread_y).to(tl.int32)
    taps_x = tl.ceil(2 * reach * spread_x).to(tl.int32)

    channel = tl.arange(0, padded_channels)
    is_read = is_made[:, None] & (channel < channels)[None, :]
    sums, weights = tl.zeros((count, padded_channels), tl.float32), tl.zeros((count,), tl.float32)
    down = 0
    while down < taps_y:
        y = first_y + down
        weight_y = _weight(tl.abs(y + 0.5 - center_y) / spread_y, is_cubic)
        weight_y = tl.where((y >= y0) & (y < y1), weight_y, 0.0)
        start = tl.minimum(tl.maximum(y, y0), y1 - 1) * row_width
        across = 0
        while across < taps_x:
            x = first_x + across
            weight = weight_y * _weight(tl.abs(x + 0.5 - center_x) / spread_x, is_cubic)
            weight = tl.where((x >= x0) & (x < x1), weight, 0.0)
            place = (start + tl.minimum(tl.maximum(x, x0), x1 - 1)) * channels
            levels = tl.load(source + place[:, None] + channel[None, :], mask=is_read, other=0).to(tl.float32)
            sums += weight[:, None] * levels
            weights += weight
            across += 1
        down += 1
    levels = tl.minimum(tl.maximum(sums / weights[:, None] + 0.5, 0.0), 255.0).to(tl.uint8)
    into = result + (image.to(tl.int64) * height * width + pixel) * channels
    tl.store(into[:, None] + channel[None, :], levels, mask=is_read)
