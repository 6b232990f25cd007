"""Pixels of a box of each sample: copied, or resized to one size with antialiasing. uint8 in, uint8 out.

Knows how the CPU and other devices do that fast; knows nothing of labels or randomness. Boxes are int64[B, 4] x0, y0, x1, y1
(half-open) and lie inside the image.
"""

from __future__ import annotations

import torch


def cut(pixels: torch.Tensor, top: torch.Tensor, left: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Copy uint8[B, height, width, C] from int64[B] corners of uint8[B, H, W, C]."""
    count, row_height, row_width, channels = pixels.shape
    # each line of a crop is consecutive bytes: one index_select of overlapping lines, 30 times as fast as indexing pixels
    lines = pixels.reshape(-1).unfold(0, width * channels, channels)
    sample = torch.arange(count, device=pixels.device)[:, None]
    y = top[:, None] + torch.arange(height, device=pixels.device)
    first = (sample * row_height + y) * row_width + left[:, None]
    return lines.index_select(0, first.view(-1)).view(count, height, width, channels)


def resized(pixels: torch.Tensor, boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Resize a box of each image of uint8[B, H, W, C] to uint8[B, height, width, C]: bilinear, antialiased.

    What torchvision's v2 resized_crop gives: on the CPU the same bytes, elsewhere within 1.
    """
    if pixels.device.type == "cpu":
        return _resized_by_loop(pixels, boxes, height, width)
    return resized_by_matmul(pixels, boxes, height, width)


def nearest(masks: torch.Tensor, boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Resize a box of each mask of uint8[B, H, W] to uint8[B, height, width]: the pixel under each new pixel's centre."""
    sample = torch.arange(len(masks), device=masks.device)[:, None, None]
    x0, y0, x1, y1 = boxes.unbind(-1)
    return masks[sample, _centres(y0, y1, height)[:, :, None], _centres(x0, x1, width)[:, None, :]]


def resized_by_matmul(pixels: torch.Tensor, boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Do as `resized` with two batched products, of float32 weights a sample and axis: what a GPU is good at.

    On 2 CPU cores the loop is over ten times as fast, since it skips the weights that are 0.
    """
    count, row_height, row_width, channels = pixels.shape
    x0, y0, x1, y1 = boxes.unbind(-1)
    lines = pixels.reshape(count, row_height, row_width * channels).float()
    down = torch.bmm(_weights(y0, y1, row_height, height), lines).view(count, height, row_width, channels)
    columns = down.transpose(1, 2).reshape(count, row_width, height * channels)
    both = torch.bmm(_weights(x0, x1, row_width, width), columns).view(count, width, height, channels)
    return both.transpose(1, 2).round().clamp(0, 255).to(torch.uint8).contiguous()


def _weights(start: torch.Tensor, stop: torch.Tensor, size: int, new_size: int) -> torch.Tensor:
    """Give float32[B, new_size, size], rows that sum to 1: a triangle as wide as a new pixel, or as two old ones if wider.

    Nothing outside start..stop has weight, as if the box had been cut out before.
    """
    start, stop = start[:, None, None], stop[:, None, None]
    scale = (stop - start) / new_size
    centre = start + (torch.arange(new_size, device=start.device)[:, None] + 0.5) * scale
    pixel = torch.arange(size, device=start.device)
    weights = (1 - ((pixel + 0.5 - centre) / scale.clamp(min=1)).abs()).clamp(min=0)
    weights = weights * ((pixel >= start) & (pixel < stop))
    return weights / weights.sum(-1, keepdim=True)


# An op of its own, so that torch.compile keeps one graph: the loop needs the boxes as numbers.
@torch.library.custom_op("pixpack::resized_by_loop", mutates_args=(), device_types="cpu")
def _resized_by_loop(pixels: torch.Tensor, boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Call torch's uint8 kernel for each sample."""
    made = pixels.new_empty(len(pixels), height, width, pixels.shape[-1])
    images, new_images = pixels.movedim(-1, 1), made.movedim(-1, 1)
    for n, (x0, y0, x1, y1) in enumerate(boxes.tolist()):
        image, new = images[n : n + 1, :, y0:y1, x0:x1], new_images[n : n + 1]
        # interpolate(antialias=True) is this without out; the copy that saves takes half as long as the resizing
        torch.ops.aten._upsample_bilinear2d_aa.out(image, [height, width], False, None, None, out=new)
    return made


@_resized_by_loop.register_fake
def _(pixels: torch.Tensor, boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    return pixels.new_empty(len(pixels), height, width, pixels.shape[-1])


def _centres(start: torch.Tensor, stop: torch.Tensor, new_size: int) -> torch.Tensor:
    """Give int64[B, new_size], the old pixel that holds each new pixel's centre: whole numbers, so that nothing rounds."""
    odd = 2 * torch.arange(new_size, device=start.device) + 1
    return start[:, None] + odd * (stop - start)[:, None] // (2 * new_size)
