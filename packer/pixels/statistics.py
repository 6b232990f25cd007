"""Exact sums of uint8 pixels, fast: what a store's mean and standard deviation are made of."""

from __future__ import annotations

from packer.pixels.compiled import PixelBytes, native

# Squares of so many lines fit in uint32.
_LINES = 256


def channel_sums(pixels: PixelBytes, channels: int, line_bytes: int) -> tuple[int, ...]:
    """Return the sum of each channel of complete lines of pixels, and behind these the sums of squares.

    Padding is 0 and adds nothing.
    """
    if (compiled := native().sums) is not None:
        return compiled(pixels, channels)
    import numpy as np

    totals = np.zeros((2, channels), np.uint64)
    lines = np.frombuffer(pixels, np.uint8).reshape(-1, line_bytes)
    for start in range(0, len(lines), _LINES):
        values = lines[start : start + _LINES].astype(np.uint16)
        for total, some in zip(totals, (values, values * values), strict=True):
            total += some.sum(axis=0, dtype=np.uint32).reshape(-1, channels).sum(axis=0, dtype=np.uint64)
    return tuple(totals.reshape(-1).tolist())
