"""Random calls of augment() and floats(), with any numbers: they write nothing that is not theirs."""

from __future__ import annotations

import random
import struct
from typing import Any

# pixel_steps.h has as many
_KINDS = 16
# The last takes how many pixels across and down count.
_BLUR = 15
_GUARD = b"x" * 32
# of the table
_STEP = struct.Struct("=i6f")
_ANY = (0.0, -0.0, 1e6, -1e6, 1e7, 3e38, -3e38, float("inf"), float("nan"), 1e-45)


def steps_arguments(rng: random.Random) -> tuple[Any, ...]:
    """Choose pixels, a table of steps, sizes and a fill; some numbers are far from any that a transform draws."""
    height, width = (rng.choice([1, 2, 3, rng.randint(1, 40)]) for _ in range(2))
    channels, images, steps = rng.choice([1, 3]), rng.randint(0, 4), rng.randint(0, 3)
    table = b""
    for _ in range(images * steps):
        kind = rng.randrange(_KINDS) if rng.random() < 0.98 else rng.choice([-1, _KINDS, (1 << 31) - 1, -(1 << 31)])
        numbers = [rng.uniform(-2, 2) for _ in range(6)]
        if rng.random() < 0.5:
            numbers[0] = abs(numbers[0])
        if kind == _BLUR:
            numbers[:3] = (
                abs(numbers[0]),
                *(2 * rng.randrange(side + (rng.random() < 0.05)) + 1 for side in (width, height)),
            )
        if rng.random() < 0.1:
            numbers[rng.randrange(6)] = rng.choice(_ANY)
        table += _STEP.pack(kind, *numbers)
    fill = rng.choice([None, (0.0, 127.5, 255.0), (-1e6, 1e6, rng.choice(_ANY))])
    return (
        rng.randbytes(images * height * width * channels),
        table,
        (height, width),
        channels,
        steps,
        fill,
        rng.randint(-1, 4),
    )


def check_steps(native: Any, pixels: bytes, table: bytes, *further: Any) -> bool:
    """Call augment(), and floats() with what it made; returns whether it took the table."""
    around = bytearray(_GUARD + bytes(len(pixels)) + _GUARD)
    made = memoryview(around)[32 : len(around) - 32]
    try:
        native.augment(pixels, table, made, *further)
    except ValueError:
        return False
    finally:
        assert around[:32] == around[-32:] == _GUARD
    (height, width), channels = further[:2]
    tables = [[float(level + 1000 * channel) for level in range(256)] for channel in range(channels)]
    floats = bytearray(_GUARD + bytes(4 * len(pixels)) + _GUARD)
    into = memoryview(floats)[32 : len(floats) - 32]
    packed = b"".join(struct.pack("=256f", *numbers) for numbers in tables)
    native.floats(bytes(made), packed, into, height * width * channels, further[-1])
    assert floats[:32] == floats[-32:] == _GUARD
    size = height * width * channels
    images = [made[start : start + size] for start in range(0, len(made), size)]
    expected = [
        numbers[level]
        for image in images
        for channel, numbers in enumerate(tables)
        for level in image[channel::channels]
    ]
    assert list(struct.unpack(f"={len(pixels)}f", into)) == expected
    return True
