"""torchvision's operations on pixels for whole batches: uint8[B, C, H, W] in and out, one parameter per sample.

Each kernel equals torchvision's v2 functional of that name for uint8, within 1 level: float32 sums may be rounded in another
order. Kernels take any memory format; those that use several channels or pixels at once compute in planes. They take 1 or 3
channels, or any number if channels are independent. Knows nothing about randomness, labels or batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from reader import compiled
from reader.host_values import sent
from reader.store import ImageBatch, RaggedBatch

# Bytes of pixels per pass on a CPU (four times as many as float32): they fit in its cache.
CPU_PASS_BYTES = 150 << 10

# Weights of red, green and blue in gray: torchvision's numbers (ITU-R 601).
_GRAY = (0.2989, 0.587, 0.114)
# Bytes of pixels per pass (four times as many as float32), except on a CPU: they leave memory free.
_DEVICE_BYTES = 64 << 20

Kernel = Callable[..., torch.Tensor]


def tensor_on(device: torch.device, values: Sequence[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return torch.tensor(values, device=device), without its wait for the caller's stream on CUDA.

    For a few numbers, a copy from pageable memory is staged at once (CUDA Runtime API, "API synchronization behavior").
    """
    return sent(torch.tensor(values, dtype=dtype, device="cpu"), device)


def in_parts(kernel: Kernel, pixels: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    """Call a kernel with a few samples at a time, so that its float32 memory stays small, and join the results.

    parameters: [B, ...] each.
    """
    limit = CPU_PASS_BYTES if pixels.device.type == "cpu" else _DEVICE_BYTES
    step = max(1, limit // max(1, pixels[:1].numel()))
    result: list[torch.Tensor] = []
    for n, part in enumerate(zip(*(tensor.split(step) for tensor in (pixels, *parameters)), strict=True)):
        found = kernel(*part)
        # one result for all parts: if kept until a join, each would take its own memory
        result = result or [compiled.memory_like(found, len(pixels))]
        result[0][n * step : n * step + len(found)] = found
    return result[0]


def invert(images: torch.Tensor) -> torch.Tensor:
    """Turn light into dark: 255 - x."""
    return ~images


def solarize(images: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Invert levels of float32[B] or above."""
    return torch.where(images >= _each(threshold), ~images, images)


def solarize_add(images: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    """Add int64[B], 0 to 128, to levels below 128, as timm does."""
    return torch.where(images < 128, images + _each(more), images).clamp_(max=255).to(torch.uint8)


def posterize(images: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Keep the highest int64[B] of 8 bits."""
    # 3 -> 0b11100000
    return images & _each(256 - (1 << (8 - bits))).to(torch.uint8)


def brightness(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiply by float32[B]."""
    return levels_of(images.float().mul_(_each(factor)))


def contrast(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Blend with the mean of the gray image; float32[B] is the weight of the original."""
    result = images.contiguous().float()
    return levels_of(_mixed(result, _gray_of(result).mean((1, 2, 3), keepdim=True), factor))


def saturation(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Blend with the gray image; float32[B] is the weight of the original. A single channel is gray already."""
    if images.shape[1] == 1:
        return images.clone()
    result = images.contiguous().float()
    return levels_of(_mixed(result, _gray_of(result), factor))


def grayscale(images: torch.Tensor) -> torch.Tensor:
    """Return the same number of channels, all gray, as views of one."""
    return _gray_of(images.float()).to(torch.uint8).expand_as(images)


def autocontrast(images: torch.Tensor) -> torch.Tensor:
    """Stretch each channel to 0..255; a channel of a single level stays."""
    images = images.contiguous()
    low, high = (each[..., None, None].float() for each in (images.amin((2, 3)), images.amax((2, 3))))
    is_flat = low == high
    scale = torch.where(is_flat, 1.0, (high - low) * (1 / 255))
    return levels_of((images.float() - torch.where(is_flat, 0.0, low)) / scale)


def equalize(images: torch.Tensor) -> torch.Tensor:
    """Spread the levels of each channel evenly, as Pillow does."""
    count, channels, height, width = images.shape
    # the bin of each level in the histogram of its image and channel
    first = torch.arange(0, count * channels * 256, 256, dtype=torch.int32, device=images.device)
    bins = (images.contiguous().int() + first.view(count, channels, 1, 1)).view(-1)
    histogram = torch.zeros(count * channels * 256, dtype=torch.int32, device=images.device)
    histogram = histogram.scatter_add_(0, bins.long(), torch.ones_like(bins)).view(-1, 256)
    below = histogram.cumsum(1, dtype=torch.int32)
    # of the lightest level in the image
    highest = histogram.gather(1, below.argmax(1, keepdim=True))
    step = (height * width - highest) // 255
    table = ((below + step // 2) // step.clamp(min=1)).clamp(0, 255)
    table = torch.nn.functional.pad(table[:, :-1], (1, 0))
    table = torch.where(step > 0, table, torch.arange(256, dtype=torch.int32, device=images.device))
    return table.to(torch.uint8).view(-1).index_select(0, bins).view(images.shape)


def sharpness(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Blend with the smoothed image; float32[B] is the weight of the original (1 changes nothing). Edges stay."""
    if min(images.shape[2:]) <= 2:
        return images.clone()
    result = images.contiguous().float()
    inner = result[..., 1:-1, 1:-1]
    # 3 x 3 pixels, the middle one five times
    lines = result[..., :-2, :] + result[..., 1:-1, :] + result[..., 2:, :]
    smooth = ((lines[..., :-2] + lines[..., 1:-1] + lines[..., 2:] + 4 * inner) / 13).round_()
    result[..., 1:-1, 1:-1] = (smooth - inner) * (1 - _each(factor)) + inner
    return levels_of(result)


def gaussian_blur(images: torch.Tensor, sigma: torch.Tensor, kernel_size: tuple[int, int]) -> torch.Tensor:
    """Blur by float32[B] pixels; kernel_size is (width, height), and the image is reflected at its edges."""
    across, down = (_blur_weights(sigma, size) for size in kernel_size)
    return levels_of(_blurred(_blurred(images.float(), down, 2), across, 3).round_())


def _blur_weights(sigma: torch.Tensor, kernel_size: int) -> torch.Tensor:
    """Return float32[B, kernel_size], the weights of a line's pixels: torchvision's exp(-x^2 / (2 sigma^2))."""
    reach = kernel_size // 2
    offset = torch.linspace(-reach, reach, kernel_size, dtype=torch.float32, device=sigma.device) / 2**0.5
    return (-((offset / sigma[:, None]) ** 2)).softmax(1)


def hue(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Turn the circle of colors by float32[B], -0.5..0.5 of a full turn. Gray stays gray."""
    if images.shape[1] == 1:
        return images.clone()
    scaled = images.contiguous().float().mul_(1 / 255)
    value, low = scaled.amax(1, keepdim=True), scaled.amin(1, keepdim=True)
    spread = value - low
    # 0 if all are 0, as in gray
    red, green, blue = ((value - scaled) / spread.clamp(min=1 / 1024)).split(1, dim=1)
    turn = torch.where(
        scaled[:, :1] == value,
        blue - green,
        torch.where(scaled[:, 1:2] == value, 2 + red - blue, 4 + green - red),
    )
    # a full turn is 6; red, green and blue are the largest 5, 3 and 1 sixths of a turn further on
    turn = turn.mul_(1 / 6).add_(_each(shift) + 1).frac_()
    sixth = turn + tensor_on(images.device, [5 / 6, 3 / 6, 1 / 6]).view(1, 3, 1, 1)
    sixth = sixth.frac_().mul_(6)
    result = value - spread * torch.minimum(sixth, 4 - sixth).clamp_(0, 1)
    # as torchvision converts [0, 1] to levels: truncated, after a factor just below 256
    return levels_of(result.mul_(256 - 1e-3))


def _gray_of(images: torch.Tensor) -> torch.Tensor:
    """Convert [B, C, H, W] to integer gray levels float32[B, 1, H, W]; a single channel is returned as it is."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    return red.mul(_GRAY[0]).add_(green, alpha=_GRAY[1]).add_(blue, alpha=_GRAY[2]).floor_()


def levels_of(result: torch.Tensor) -> torch.Tensor:
    """Clamp float32 to 0..255, in place, and convert it to uint8."""
    return result.clamp_(0, 255).to(torch.uint8)


def check_channels(transform: object, batch: ImageBatch | RaggedBatch) -> None:
    """Refuse images that are neither gray nor red, green and blue with a ValueError."""
    channels = channels_of(batch)
    if len(batch) and channels not in (1, 3):
        raise ValueError(f"{type(transform).__name__} takes 1 or 3 channels, the rows have {channels}.")


def channels_of(batch: ImageBatch | RaggedBatch) -> int:
    """Return the number of channels, which all images of a store share; 0 without images."""
    return int(batch.shapes[:1, 2].sum()) if isinstance(batch, RaggedBatch) else batch.pixels.shape[-1]


def _mixed(images: torch.Tensor, other: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Mix float32[B, C, H, W] with another image, which may have one channel or one pixel."""
    factor = _each(factor)
    # rounded once less than by a product and a sum, as in torchvision
    return images.mul(factor).addcmul_(other, 1 - factor)


def _each(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.reshape(-1, 1, 1, 1)


def _blurred(images: torch.Tensor, weights: torch.Tensor, dim: int) -> torch.Tensor:
    """Sum float32[B, C, H, W] along a dimension with weights float32[B, taps], from first to last tap as in the compiled part."""
    size, taps = images.shape[dim], weights.shape[1]
    old = torch.arange(-(taps // 2), size + taps // 2, device=images.device).abs()
    # [-2, -1, 0, .., n - 1, n, n + 1] -> [2, 1, 0, .., n - 1, n - 2, n - 3]
    padded = images.index_select(dim, torch.where(old >= size, 2 * (size - 1) - old, old))
    result = padded.narrow(dim, 0, size) * _each(weights[:, 0])
    for tap in range(1, taps):
        result.addcmul_(padded.narrow(dim, tap, size), _each(weights[:, tap]))
    return result
