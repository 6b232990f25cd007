"""What torchvision does to the pixels of one image, for whole batches: uint8[B, H, W, C] in and out, a parameter a sample.

Each function gives what torchvision's v2 functional of that name gives for uint8, within 1 level: float32 sums may be rounded in
another order. Knows nothing of randomness, labels or batches. 1 or 3 channels, but for those that treat each one by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# How much red, green and blue count in gray: torchvision's numbers (ITU-R 601).
_GRAY = (0.2989, 0.587, 0.114)
# Bytes of pixels at once, as float32 four times as many: on a CPU what stays in its cache, elsewhere what leaves room.
_CPU_BYTES, _DEVICE_BYTES = 150 << 10, 64 << 20

Kernel = Callable[..., torch.Tensor]


def in_parts(kernel: Kernel, pixels: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    """Call a kernel with some samples at a time, so that what it makes in float32 stays small, and join the results.

    parameters: [B, ...] each.
    """
    if not len(pixels) or torch.compiler.is_compiling():
        return kernel(pixels, *parameters)
    limit = _CPU_BYTES if pixels.device.type == "cpu" else _DEVICE_BYTES
    step = max(1, limit // max(1, pixels[0].numel()))
    parts = zip(*(tensor.split(step) for tensor in (pixels, *parameters)), strict=True)
    # one result for all parts: joined at the end they would lie in memory twice
    made: torch.Tensor | None = None
    for n, part in enumerate(parts):
        found = kernel(*part)
        if made is None:
            made = found.new_empty(len(pixels), *found.shape[1:])
        made[n * step : n * step + len(found)] = found
    assert made is not None
    return made


def changed_where(is_chosen: torch.Tensor, kernel: Kernel, pixels: torch.Tensor, *parameters: Any) -> torch.Tensor:
    """Call a kernel for the chosen samples, bool[B], and leave the others as they are; the shape stays what it was.

    On the CPU only those are computed. Elsewhere all are, as to ask which they are would wait for the device.
    """
    if pixels.device.type != "cpu" or torch.compiler.is_compiling():
        made = in_parts(kernel, pixels, *parameters)
        return torch.where(is_chosen.view(-1, 1, 1, 1), made, pixels)
    rows = is_chosen.nonzero()[:, 0]
    made = pixels.clone()
    if len(rows):
        made[rows] = in_parts(kernel, pixels[rows], *(parameter[rows] for parameter in parameters))
    return made


def invert(pixels: torch.Tensor) -> torch.Tensor:
    """Turn light into dark: 255 - x."""
    return pixels.bitwise_not()


def solarize(pixels: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Invert what is float32[B] or lighter."""
    # levels are whole: one that is at least 99.5 is at least 100
    lowest = _each(threshold.ceil().clamp(0, 255)).to(torch.uint8)
    return torch.where(pixels >= lowest, pixels.bitwise_not(), pixels)


def posterize(pixels: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Keep the highest int64[B] of 8 bits."""
    # 3 -> 0b11100000
    return pixels & _each(256 - (1 << (8 - bits))).to(torch.uint8)


def brightness(pixels: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiply by float32[B]."""
    return blended(pixels.float(), 0, factor).to(torch.uint8)


def contrast(pixels: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Mix with the mean of the gray image, float32[B] of the pixels themselves."""
    made = pixels.float()
    return blended(made, mean_gray(made), factor).to(torch.uint8)


def saturation(pixels: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Mix with the gray image, float32[B] of the pixels themselves."""
    made = pixels.float()
    return blended(made, gray(made), factor).to(torch.uint8)


def grayscale(pixels: torch.Tensor) -> torch.Tensor:
    """Return as many channels, all of them gray."""
    return gray(pixels).to(torch.uint8).expand_as(pixels)


def autocontrast(pixels: torch.Tensor) -> torch.Tensor:
    """Stretch each channel to 0..255; one of a single level stays."""
    lines, (count, _, width, channels) = _lines(pixels), pixels.shape
    low = lines.amin(1).view(count, width, channels).amin(1).float()
    high = lines.amax(1).view(count, width, channels).amax(1).float()
    is_flat = low == high
    scale = torch.where(is_flat, 1.0, (high - low) * (1 / 255))
    low, scale = (each.repeat(1, width)[:, None] for each in (torch.where(is_flat, 0.0, low), scale))
    return ((lines.float() - low) / scale).clamp_(0, 255).to(torch.uint8).view(pixels.shape)


def equalize(pixels: torch.Tensor) -> torch.Tensor:
    """Spread the levels of each channel evenly, as Pillow does."""
    count, height, width, channels = pixels.shape
    # the place of each level in the histogram of its image and channel
    of_channel = torch.arange(channels, device=pixels.device).repeat(width) * 256
    of_image = torch.arange(count, device=pixels.device).view(-1, 1, 1) * (channels * 256)
    places = (_lines(pixels).long() + (of_channel + of_image)).view(-1)
    histogram = torch.zeros(count * channels * 256, dtype=torch.int32, device=pixels.device)
    histogram.scatter_add_(0, places, torch.ones((), dtype=torch.int32, device=pixels.device).expand_as(places))
    histogram = histogram.view(-1, 256)
    below = histogram.cumsum(1, dtype=torch.int32)
    # of the lightest level that is there
    highest = histogram.gather(1, below.argmax(1, keepdim=True))
    step = (height * width - highest) // 255
    table = ((below + step // 2) // step.clamp(min=1)).clamp(0, 255)
    table = torch.nn.functional.pad(table[:, :-1], (1, 0))
    table = torch.where(step > 0, table, torch.arange(256, dtype=torch.int32, device=pixels.device))
    return table.to(torch.uint8).view(-1).index_select(0, places).view(pixels.shape)


def sharpness(pixels: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Mix with the smoothed image, float32[B] of the pixels themselves: 0 smooths, 1 changes nothing. Edges stay."""
    if min(pixels.shape[1:3]) <= 2:
        return pixels.clone()
    made = pixels.float()
    inner = made[:, 1:-1, 1:-1]
    lines = made[:, :-2] + made[:, 1:-1] + made[:, 2:]
    # 3 x 3 pixels, the middle one five times
    smooth = ((lines[:, :, :-2] + lines[:, :, 1:-1] + lines[:, :, 2:] + 4 * inner) / 13).round()
    sharp = made.clone()
    sharp[:, 1:-1, 1:-1] = inner + (1 - _each(factor)) * (smooth - inner)
    return sharp.clamp(0, 255).to(torch.uint8)


def gaussian_blur(pixels: torch.Tensor, sigma: torch.Tensor, kernel_size: tuple[int, int]) -> torch.Tensor:
    """Blur by float32[B] pixels; kernel_size is (width, height), and beyond the edges the image is reflected."""
    count, height, width, channels = pixels.shape
    down, across = _blur_matrix(sigma, kernel_size[1], height), _blur_matrix(sigma, kernel_size[0], width)
    with torch.autocast(pixels.device.type, enabled=False):
        made = torch.bmm(down, pixels.reshape(count, height, width * channels).float())
        columns = made.view(count, height, width, channels).transpose(1, 2).reshape(count, width, height * channels)
        made = torch.bmm(across, columns).view(count, width, height, channels).transpose(1, 2)
    return made.round().clamp(0, 255).to(torch.uint8)


def hue(pixels: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Turn the circle of colors by float32[B], -0.5..0.5 of a full turn. Gray stays gray."""
    if pixels.shape[-1] == 1:
        return pixels.clone()
    scaled = pixels.float() * (1 / 255)
    value, low = scaled.amax(-1), scaled.amin(-1)
    spread = value - low
    red, green, blue = ((value[..., None] - scaled) / torch.where(spread == 0, 1.0, spread)[..., None]).unbind(-1)
    turn = torch.where(
        scaled[..., 0] == value,
        blue - green,
        torch.where(scaled[..., 1] == value, 2 + red - blue, 4 + green - red),
    )
    turn = (turn / 6 + 1).fmod(1)
    turn = (turn + shift.view(-1, 1, 1)).remainder(1) * 6
    # red, green and blue are the largest 5, 3 and 1 sixths of a turn further on
    sixth = (turn[..., None] + torch.tensor([5.0, 3.0, 1.0], device=pixels.device)).fmod(6)
    made = value[..., None] - spread[..., None] * torch.minimum(sixth, 4 - sixth).clamp(0, 1)
    # as torchvision makes levels of [0, 1]: cut, after a factor just below 256
    return (made * (256 - 1e-3)).clamp(0, 255).to(torch.uint8)


def blended(pixels: torch.Tensor, other: torch.Tensor | float, factor: torch.Tensor) -> torch.Tensor:
    """Mix float32[B, H, W, C] with another image, and cut to whole levels, as torchvision does after each step."""
    factor = _each(factor)
    return torch.addcmul(other * (1 - factor), pixels, factor).clamp_(0, 255).floor_()


def gray(pixels: torch.Tensor) -> torch.Tensor:
    """Make float32[B, H, W, 1] whole levels of [B, H, W, C]; of one channel the same."""
    if pixels.shape[-1] == 1:
        return pixels
    red, green, blue = pixels.split(1, dim=-1)
    return red.mul(_GRAY[0]).add_(green, alpha=_GRAY[1]).add_(blue, alpha=_GRAY[2]).floor_()


def mean_gray(pixels: torch.Tensor) -> torch.Tensor:
    """Make float32[B, 1, 1, 1] of float32[B, H, W, C]."""
    return gray(pixels).mean((1, 2, 3), keepdim=True)


def check_channels(transform: object, pixels: torch.Tensor) -> None:
    """Refuse images that are neither gray nor red, green and blue with a ValueError."""
    if pixels.shape[-1] not in (1, 3):
        raise ValueError(f"{type(transform).__name__} takes 1 or 3 channels, the rows have {pixels.shape[-1]}.")


def _lines(pixels: torch.Tensor) -> torch.Tensor:
    """Give uint8[B, H, W * C]: what is computed for each channel broadcasts over lines many times as fast as over channels."""
    return pixels.reshape(len(pixels), pixels.shape[1], -1)


def _each(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.view(-1, 1, 1, 1)


def _blur_matrix(sigma: torch.Tensor, kernel_size: int, size: int) -> torch.Tensor:
    """Give float32[B, size, size], what each pixel of a line counts in each new one."""
    reach = kernel_size // 2
    # torchvision's kernel: exp(-x^2 / (2 sigma^2)), and its way to write that
    place = torch.linspace(-reach, reach, kernel_size, device=sigma.device) / 2**0.5
    weights = (-((place / sigma[:, None]) ** 2)).softmax(1)
    new = torch.arange(size, device=sigma.device)
    old = (new[:, None] + torch.arange(-reach, reach + 1, device=sigma.device)).abs()
    # [-2, -1, 0, .., n - 1, n, n + 1] -> [2, 1, 0, .., n - 1, n - 2, n - 3]
    old = torch.where(old >= size, 2 * (size - 1) - old, old)
    matrix = torch.zeros(len(sigma), size, size, device=sigma.device)
    return matrix.scatter_add_(2, old.expand(len(sigma), -1, -1), weights[:, None].expand(-1, size, -1))
