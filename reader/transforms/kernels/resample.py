"""Pixels of a box of each sample: copied, or resized to one size with antialiasing. uint8 in, uint8 out.

Knows how the CPU and other devices do that fast; knows nothing of labels or randomness.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Optional, Protocol

import torch

from reader.compiled import Crops, Places, are_served, cropped, memory
from reader.store import ImageBatch, RaggedBatch
from reader.tuning import tuning

# A number, or one for each sample: int64[B, 1].
_Where = int | torch.Tensor


class PixelSource(Protocol):
    """What crops read rows from instead of from their batch: a store and its levels."""

    @property
    def factors(self) -> Iterable[int]:
        """By what the sides of each level are divided."""

    def read(self, rows: torch.Tensor, factor: int) -> Iterator[tuple[torch.Tensor, ImageBatch | RaggedBatch]]:
        """Yield rows of a level, 1: of the store, some at a time with their positions among the rows: int64[...]."""

    def content(self, rows: torch.Tensor, factor: int) -> torch.Tensor | None:
        """Return the image area of rows of a level, int64[B, 4] x0, y0, x1, y1; None: all of each row."""

    def masks(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return uint8[T] and where in it the masks of rows of the store begin, int64[B]."""


def cut(
    pixels: torch.Tensor,
    top: torch.Tensor,
    left: torch.Tensor,
    height: int,
    width: int,
    is_mirrored: torch.Tensor | None = None,
) -> torch.Tensor:
    """Copy uint8[B, height, width, C] from int64[B] corners of uint8[B, H, W, C], those of bool[B] mirrored left to right."""
    if are_served(pixels, pixels.shape[-1]):
        boxes = torch.stack([left, top, left + width, top + height], -1)
        made = _crops_of_rows(pixels, Crops(boxes, height, width, is_mirrored=is_mirrored))
        if made is not None:
            return made
    count, row_height, row_width, channels = pixels.shape
    # each line of a crop is consecutive bytes: one index_select of overlapping lines, 30 times as fast as indexing pixels
    lines = pixels.reshape(-1).unfold(0, width * channels, channels)
    sample = torch.arange(count, device=pixels.device)[:, None]
    y = top[:, None] + torch.arange(height, device=pixels.device)
    first = (sample * row_height + y) * row_width + left[:, None]
    made = lines.index_select(0, first.view(-1)).view(count, height, width, channels)
    return _mirrored_where(made, is_mirrored)


def mirrored(pixels: torch.Tensor, is_chosen: torch.Tensor) -> torch.Tensor:
    """Copy uint8[B, H, W, C], those of bool[B] mirrored left to right."""
    if are_served(pixels, pixels.shape[-1]):
        height, width = pixels.shape[1:3]
        boxes = torch.tensor([[0, 0, width, height]], device="cpu").expand(len(pixels), 4)
        made = _crops_of_rows(pixels, Crops(boxes, height, width, is_mirrored=is_chosen))
        if made is not None:
            return made
    shape, is_chosen = pixels.shape, is_chosen[:, None]
    first, second = pixels.flip(-2).reshape(len(pixels), -1), pixels.reshape(len(pixels), -1)
    if first.shape[1] % 8 == 0 and not torch.compiler.is_compiling():
        # eight bytes at a time: on a CPU twice as fast for the whole flip
        first, second = first.view(torch.int64), second.view(torch.int64)
    return torch.where(is_chosen, first, second).view(pixels.dtype).view(shape)


def resized(pixels: torch.Tensor, crops: Crops) -> torch.Tensor:
    """Resize a box of each image of uint8[B, H, W, C] to uint8[B, height, width, C].

    What torchvision's v2 resized_crop gives: on the CPU the same bytes; elsewhere bilinear within 1, and bicubic within 1 of
    what it gives for float32, as the CPU's uint8 kernel cuts what overshoots between the axes too.
    """
    if pixels.device.type == "cpu":
        return _resized_by_loop(pixels, *crops)
    return _mirrored_where(resized_by_matmul(pixels, crops), crops.is_mirrored)


def resized_images(batch: RaggedBatch, crops: Crops, into: Places | None = None) -> torch.Tensor:
    """Do as `resized` with images of different sizes; into: where the compiled part writes them, and what it then returns."""
    if batch.pixels.device.type == "cpu":
        channels = int(batch.shapes[:1, 2].sum())
        if are_served(batch.pixels, channels):
            table = torch.cat([batch.offsets[:, None], batch.shapes[:, :2].long()], 1)
            made = cropped(batch.pixels, table, channels, crops, into)
            if made is not None:
                return made
        images = (batch.image(index) for index in range(len(batch)))
        each = batch.pixels.new_empty(len(batch), crops.height, crops.width, channels)
        return _mirrored_where(_resize_each(images, crops, each), crops.is_mirrored)
    return _mirrored_where(resized_by_padding(batch, crops), crops.is_mirrored)


def resized_from_levels(source: PixelSource, batch: ImageBatch | RaggedBatch, crops: Crops) -> torch.Tensor:
    """Read each row at the size that its box needs, and resize the box there."""
    need = torch.tensor([[crops.width, crops.height]]) if crops.grids is None else crops.grids[:, [3, 2]]
    assert batch.rows is not None
    factors, scaled = boxes_on_levels(source, batch, crops.boxes, need)
    made: torch.Tensor | None = None
    for factor, boxes in scaled.items():
        index = (factors == factor).nonzero()[:, 0]
        if not len(index):
            continue
        for some, level in source.read(batch.rows[index], factor):
            at = index[some]
            if made is None:
                channels = int(level.shapes[0, 2]) if isinstance(level, RaggedBatch) else level.pixels.shape[-1]
                made = memory(len(batch), crops.height, crops.width, channels)
            of_level = crops._replace(boxes=boxes).at(at)
            if isinstance(level, RaggedBatch):
                part = resized_images(level, of_level, (made, at))
            else:
                part = resized(level.pixels, of_level)
            if len(at) == len(batch):
                return part
            if part is not made:
                # a sixth of the time that torch takes to place rows
                made.numpy()[at.numpy()] = part.numpy()
    assert made is not None
    return made


def boxes_on_levels(
    source: PixelSource, batch: ImageBatch | RaggedBatch, boxes: torch.Tensor, need: torch.Tensor
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Return the smallest level that has the pixels of each box, int64[B] what its sides are divided by; and the boxes on each.

    need: int64[B, 2] or [1, 2], the width and height that boxes are resized to.
    """
    assert batch.rows is not None
    sides = batch.shapes[:, :2].long() if isinstance(batch, RaggedBatch) else torch.tensor([batch.pixels.shape[1:3]])
    most = torch.cat([sides.flip(-1), sides.flip(-1)], dim=-1)
    factors, scaled = torch.ones(len(batch), dtype=torch.int64), {1: boxes}
    for factor in source.factors:
        # 223 of 224 full pixels, halved, is 112 of 112: the nearest edge that the level has
        scaled[factor] = torch.minimum((boxes + factor // 2) // factor, most // factor)
        if (content := source.content(batch.rows, factor)) is not None:
            # 47 lines of image in 64 are 23 in 32 where the store's 23.5 would be 24: the last one is padding there
            low, high = content[:, :2].repeat(1, 2), content[:, 2:].repeat(1, 2)
            scaled[factor] = torch.maximum(torch.minimum(scaled[factor], high), low)
        factors[((scaled[factor][:, 2:] - scaled[factor][:, :2]) >= need).all(dim=-1)] = factor
    return factors, scaled


def resized_by_padding(batch: RaggedBatch, crops: Crops) -> torch.Tensor:
    """Do as `resized_images` by cutting the boxes into tensors that hold the largest, then by `resized_by_matmul`."""
    boxes = crops.boxes
    x0, y0, x1, y1 = boxes.unbind(-1)
    across, down, channels = torch.stack([(x1 - x0).max(), (y1 - y0).max(), batch.shapes[0, 2].long()]).tolist()
    # what a line of the largest box reaches beyond its own box has no weight; behind the last image there must be something
    lines = torch.nn.functional.pad(batch.pixels, (0, across * channels)).unfold(0, across * channels, 1)
    first = batch.offsets + (y0 * batch.shapes[:, 1] + x0) * channels
    step = batch.shapes[:, 1].long() * channels
    at_corner = crops._replace(boxes=boxes - torch.stack([x0, y0, x0, y0], dim=-1), is_mirrored=None)
    made = []
    for part in torch.arange(len(batch), device=boxes.device).split(
        max(1, tuning().padded_pass_bytes // (across * down * channels))
    ):
        y = torch.minimum(torch.arange(down, device=boxes.device), (y1 - y0)[part, None] - 1)
        chosen = lines.index_select(0, (first[part, None] + y * step[part, None]).view(-1))
        pixels = chosen.view(len(part), down, across, channels)
        made.append(resized_by_matmul(pixels, at_corner.at(part)))
    return torch.cat(made)


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


def resized_by_matmul(pixels: torch.Tensor, crops: Crops) -> torch.Tensor:
    """Do as `resized` with two batched products, of float32 weights a sample and axis: what a GPU is good at.

    On 2 CPU cores the loop is over ten times as fast, since it skips the weights that are 0.
    """
    count, row_height, row_width, channels = pixels.shape
    height, width, is_cubic = crops.height, crops.width, crops.is_cubic
    x0, y0, x1, y1 = crops.boxes.unbind(-1)
    (top, new_height), (left, new_width) = _axes(crops)
    lines = pixels.reshape(count, row_height, row_width * channels).float()
    vertical = _weights(y0, y1, row_height, new_height, top, height, is_cubic)
    horizontal = _weights(x0, x1, row_width, new_width, left, width, is_cubic)
    # a loop that stands in an autocast as a whole would have bfloat16's 8 bits, and pixels off by 2
    with torch.autocast(pixels.device.type, enabled=False):
        down = torch.bmm(vertical, lines).view(count, height, row_width, channels)
        columns = down.transpose(1, 2).reshape(count, row_width, height * channels)
        both = torch.bmm(horizontal, columns).view(count, width, height, channels)
    return both.transpose(1, 2).round().clamp(0, 255).to(torch.uint8).contiguous()


def _axes(crops: Crops) -> tuple[tuple[_Where, _Where], tuple[_Where, _Where]]:
    """Give (top, new height) and (left, new width): numbers, or int64[B, 1] of each sample."""
    if crops.grids is None:
        return (0, crops.height), (0, crops.width)
    top, left, new_height, new_width = crops.grids[..., None].unbind(1)
    return (top, new_height), (left, new_width)


def _weights(
    start: torch.Tensor,
    stop: torch.Tensor,
    size: int,
    new_size: _Where,
    first: _Where,
    count: int,
    is_cubic: torch.Tensor | None,
) -> torch.Tensor:
    """Give float32[B, count, size], rows that sum to 1: a triangle as wide as a new pixel, or as two old ones if wider.

    Where bool[B] says so it is Keys's cubic of -0.5, as wide as two new pixels or four old ones.

    They are those of new pixels first to first + count. Nothing outside start..stop has weight, as if the box had been cut out
    before.
    """
    new = torch.arange(count, dtype=torch.float32, device=start.device) + first
    scale = ((stop - start).float()[:, None] / new_size)[..., None]
    start, stop = start[:, None, None], stop[:, None, None]
    center = start + (new[..., None] + 0.5) * scale
    pixel = torch.arange(size, dtype=torch.float32, device=start.device)
    far = ((pixel + 0.5 - center) / scale.clamp(min=1)).abs()
    weights = (1 - far).clamp(min=0)
    if is_cubic is not None:
        weights = torch.where(is_cubic[:, None, None], _cubic(far), weights)
    weights = weights * ((pixel >= start) & (pixel < stop))
    return weights / weights.sum(-1, keepdim=True)


def _cubic(far: torch.Tensor) -> torch.Tensor:
    """Give what Keys's cubic of -0.5, Pillow's, is at these distances of 0 or more."""
    near = (1.5 * far - 2.5) * far * far + 1
    beyond = ((-0.5 * far + 2.5) * far - 4) * far + 2
    return torch.where(far < 1, near, torch.where(far < 2, beyond, 0.0))


# An op of its own, so that torch.compile keeps one graph: the loop needs the boxes as numbers.
@torch.library.custom_op("pixpack::resized_by_loop", mutates_args=(), device_types="cpu")
def _resized_by_loop(
    pixels: torch.Tensor,
    boxes: torch.Tensor,
    height: int,
    width: int,
    grids: Optional[torch.Tensor],  # noqa: UP045 (the schema is inferred from it)
    is_cubic: Optional[torch.Tensor],  # noqa: UP045
    is_mirrored: Optional[torch.Tensor],  # noqa: UP045
) -> torch.Tensor:
    """Call the compiled part, or torch's uint8 kernel for each sample."""
    crops = Crops(boxes, height, width, grids, is_cubic, is_mirrored)
    if are_served(pixels, pixels.shape[-1]):
        made = _crops_of_rows(pixels, crops)
        if made is not None:
            return made
    into = pixels.new_empty(len(pixels), height, width, pixels.shape[-1])
    return _mirrored_where(_resize_each(pixels, crops, into), is_mirrored)


@_resized_by_loop.register_fake
def _(
    pixels: torch.Tensor,
    boxes: torch.Tensor,
    height: int,
    width: int,
    grids: Optional[torch.Tensor],  # noqa: UP045
    is_cubic: Optional[torch.Tensor],  # noqa: UP045
    is_mirrored: Optional[torch.Tensor],  # noqa: UP045
) -> torch.Tensor:
    return pixels.new_empty(len(pixels), height, width, pixels.shape[-1])


def _crops_of_rows(pixels: torch.Tensor, crops: Crops) -> torch.Tensor | None:
    """Call `cropped` with uint8[B, H, W, C]."""
    count, row_height, row_width, channels = pixels.shape
    row = [row_height * row_width * channels, row_height, row_width]
    images = torch.tensor([row], device="cpu").repeat(count, 1)
    images[:, 0] *= torch.arange(count, device="cpu")
    return cropped(pixels, images, channels, crops)


def _mirrored_where(pixels: torch.Tensor, is_mirrored: torch.Tensor | None) -> torch.Tensor:
    return pixels if is_mirrored is None else mirrored(pixels, is_mirrored)


def _resize_each(images: Iterable[torch.Tensor], crops: Crops, made: torch.Tensor) -> torch.Tensor:
    """Resize a box of each of uint8[H, W, C] into uint8[B, height, width, C]."""
    boxes, height, width, grids, is_cubic, _ = crops
    full_sizes = [(0, 0, height, width)] * len(made) if grids is None else grids.tolist()
    kernels = (torch.ops.aten._upsample_bilinear2d_aa, torch.ops.aten._upsample_bicubic2d_aa)
    which = [0] * len(made) if is_cubic is None else is_cubic.long().tolist()
    new_images = made.movedim(-1, 1)
    for n, (image, (x0, y0, x1, y1), (top, left, *full_size)) in enumerate(
        zip(images, boxes.tolist(), full_sizes, strict=True)
    ):
        kernel = kernels[which[n]]
        if full_size == [y1 - y0, x1 - x0]:
            # either kernel copies then, into memory of another layout
            made[n] = image[y0 + top : y0 + top + height, x0 + left : x0 + left + width]
            continue
        box = image[y0:y1, x0:x1].movedim(-1, 0)[None]
        if full_size == [height, width]:
            # interpolate(antialias=True) is this without out; the copy that saves takes half as long as the resizing
            kernel.out(box, full_size, False, None, None, out=new_images[n : n + 1])
        else:
            new = kernel(box, full_size, False, None, None)
            new_images[n] = new[0, :, top : top + height, left : left + width]
    return made


def _centers(crops: Crops) -> tuple[torch.Tensor, torch.Tensor]:
    """Give int64[B, height] and int64[B, width], the old pixel that holds each new pixel's center, down and across."""
    x0, y0, x1, y1 = crops.boxes.unbind(-1)
    (top, new_height), (left, new_width) = _axes(crops)
    return (_centers_of(y0, y1, new_height, top, crops.height), _centers_of(x0, x1, new_width, left, crops.width))


def _centers_of(start: torch.Tensor, stop: torch.Tensor, new_size: _Where, first: _Where, count: int) -> torch.Tensor:
    """Give int64[B, count], the old pixel that holds each new pixel's center: integers, so that nothing rounds."""
    odd = 2 * (torch.arange(count, device=start.device) + first) + 1
    return start[:, None] + odd * (stop - start)[:, None] // (2 * new_size)
