"""Calls of the compiled part with random arguments, each compared with what other code makes of them.

Knows the functions of reader.native and what is true of them; not how the part is built, nor how long it is called.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz._mutated_images import make_jpeg, mutate
from tests.fuzz._native_steps import check_steps, steps_arguments

_ORIGINALS = 80
# resample.h
_MOST_SIDE = 1 << 20
_EXTREMES = (-(1 << 31), -(1 << 31) + 9, -70_000, 0, 70_000, (1 << 31) - 9, (1 << 31) - 1)

# A function and its arguments.
Call = tuple[Callable[..., object], tuple[Any, ...]]


class NativeCalls:
    """Calls functions of the compiled part at random, and counts them.

    folder: for the files that it reads.
    """

    def __init__(self, native: Any, folder: Path, seed: int) -> None:
        self._native, self._folder, self._rng = native, folder, random.Random(seed)
        modes = ("RGB", "RGB", "L", "CMYK")
        self._originals = [make_jpeg(self._rng, 90, modes) for _ in range(_ORIGINALS)]
        names = (
            "rows row_calls resize_calls crops_calls crops_refused steps_calls"
            " steps_refused sums_calls pixels_calls pixels_made"
        )
        self.counts = dict.fromkeys(names.split(), 0)

    def make(self) -> list[Call]:
        """Call one function, or several small ones, and compare what it makes; returns the calls."""
        if self._rng.random() < 0.05:
            return self._small()
        if self._rng.random() < 0.2:
            return [self._resize()]
        return [self._row()]

    def _small(self) -> list[Call]:
        """Call small functions once; more often crops(), augment() and jpeg_pixels()."""
        rng, counts, made = self._rng, self.counts, list[Call]()
        pixels = rng.randbytes(rng.choice([96, 97, 6 * rng.randint(0, 200), rng.randint(0, 999)]))
        arguments = self._native, pixels, rng.randint(1, 6)
        counts["sums_calls"] += 1
        _check_sums(*arguments)
        _check_copies(self._native, rng)
        _check_reads(self._native, self._folder, rng)
        assert self._native.library() is not None
        for _ in range(9):
            crop = self._native, *_crops_arguments(rng)
            counts["crops_calls"] += 1
            counts["crops_refused"] += not _crops(*crop)
            steps = self._native, *steps_arguments(rng)
            counts["steps_calls"] += 1
            counts["steps_refused"] += not check_steps(*steps)
            frame = self._native, *_pixels_arguments(rng, _data(rng, self._originals))
            counts["pixels_calls"] += 1
            counts["pixels_made"] += _jpeg_pixels(*frame)
            made += [(_crops, crop), (check_steps, steps), (_jpeg_pixels, frame)]
        return [*made, (_sums, arguments)]

    def _resize(self) -> Call:
        arguments = _resize_arguments(self._rng)
        self.counts["resize_calls"] += 1
        assert (self._native.resize(*arguments) is None) == (max(arguments[2]) > _MOST_SIDE)
        return self._native.resize, arguments

    def _row(self) -> Call:
        arguments = _row_arguments(self._rng, _data(self._rng, self._originals))
        self.counts["row_calls"] += 1
        self.counts["rows"] += _row(self._native, *arguments) is not None
        return _row, (self._native, *arguments)


def _data(rng: random.Random, originals: list[Any]) -> bytes:
    """Return a JPEG, mostly a damaged one."""
    original = rng.choice(originals)
    return mutate(rng, original) if rng.random() < 0.8 else bytes(original.data)


def _pixels_arguments(rng: random.Random, data: bytes) -> tuple[Any, ...]:
    """Choose a JPEG, and a height, width and channels: those that its header states, mostly."""
    at = data.find(b"\xff\xc0")
    height, width = (int.from_bytes(data[at + n : at + n + 2], "big") for n in (5, 7)) if at >= 0 else (1, 1)
    channels = data[at + 9] if at >= 0 and len(data) > at + 9 else 1
    if rng.random() < 0.1:
        height, width = rng.randint(1, 100), rng.randint(1, 100)
    return data, min(max(1, height), 300), min(max(1, width), 300), channels if channels in (1, 3) else 3


def _jpeg_pixels(native: Any, data: bytes, height: int, width: int, channels: int) -> bool:
    """Decode a JPEG into memory, and compare the pixels with those of row(); returns whether there are any."""
    guard, size_bytes = b"x" * 64, height * width * channels
    around = bytearray(guard + bytes(size_bytes) + guard)
    made = memoryview(around)[64 : 64 + size_bytes]
    what = native.jpeg_pixels(data, height, width, channels, made)
    assert around[:64] == around[-64:] == guard
    if not what and channels == 3:
        size = width, height
        row = _row(native, data, size, size, (0, 0), size, 2)
        assert row is None or row == made
    return not what


def _row(native: Any, data: bytes, source: Any, resized: Any, origin: Any, size: Any, resample: int) -> bytes | None:
    """Decode a JPEG to a row between bytes of ours."""
    row_bytes, guard = max(size[0], 0) * max(size[1], 0) * 3, b"x" * 64
    around = bytearray(guard + bytes(row_bytes) + guard)
    is_made = native.row(data, source, resized, origin, size, resample, memoryview(around)[64 : 64 + row_bytes])
    assert around[:64] == around[64 + row_bytes :] == guard
    return bytes(around[64 : 64 + row_bytes]) if is_made else None


def _check_sums(native: Any, pixels: bytes, channels: int) -> None:
    """Compare sums() with Python's own."""
    found = _sums(native, pixels, channels)
    parts = [pixels[channel::channels] for channel in range(channels)]
    expected = *map(sum, parts), *(sum(value * value for value in part) for part in parts)
    assert found is None or found == expected


def _check_copies(native: Any, rng: random.Random) -> None:
    """Compare copied spans with slices, written at any address, also where a number is outside of either."""
    source, before = rng.randbytes(rng.randint(1, 3000)), rng.randint(0, 64)
    begins = [rng.randrange(len(source)) for _ in range(rng.randint(1, 9))]
    sizes = [rng.choice([0, 64, rng.randint(0, 700)]) for _ in begins]
    sizes = [min(size, len(source) - begin) for begin, size in zip(begins, sizes, strict=True)]
    places = [*itertools.accumulate(sizes, initial=0)]
    around = bytearray(b"x") * (before + places[-1] + 64)
    expected = b"x" * before + b"".join(source[b : b + n] for b, n in zip(begins, sizes, strict=True)) + b"x" * 64
    numbers = begins, sizes, places[:-1]
    native.copy_spans(source, *(array("q", n) for n in numbers), memoryview(around)[before:-64], rng.random() < 0.5)
    assert around == expected
    wrong = [[*each] for each in numbers]
    rng.choice(wrong)[rng.randrange(len(begins))] = rng.choice(
        [*_EXTREMES[:3], -1, len(source) + places[-1] + 1, 1 << 62]
    )
    try:
        native.copy_spans(source, *(array("q", n) for n in wrong), bytearray(places[-1]), rng.random() < 0.5)
    except ValueError:
        return
    raise AssertionError(f"a span that is not there was copied: {wrong}")


def _check_reads(native: Any, folder: Path, rng: random.Random) -> None:
    """Compare spans read from a file with slices, also where a number is outside of the file, the staging or a memory."""
    content, align, base = rng.randbytes(rng.randint(1, 3000)), rng.choice([1, 8, 64]), rng.choice([0, 1 << 20])
    path = folder / "spans"
    path.write_bytes(content)
    wanted = [(rng.randrange(len(content)), rng.randint(0, 300)) for _ in range(rng.randint(1, 9))]
    wanted = [(begin, min(size, len(content) - begin)) for begin, size in wanted]
    memories = tuple(bytearray(size) for _, size in wanted)
    spans = sorted([base + begin, size, n, 0] for n, (begin, size) in enumerate(wanted))
    step = rng.choice([64, 128, 1024])
    reads = [[base + start, min(step, len(content) - start)] for start in range(0, len(content), step)]
    tables = reads, spans

    def read(reads: list[list[int]], spans: list[list[int]], base: int = base) -> int:
        numbers = (array("q", itertools.chain(*table)) for table in (reads, spans))
        with open(path, "rb") as file:
            table, other = numbers
            end: int = native.read_spans(
                file.fileno(), table, align, base, bytearray(step), other, tuple(map(memoryview, memories))
            )
        return end

    assert read(*tables) == -1
    assert [*memories] == [content[begin : begin + size] for begin, size in wanted]
    if align > 1:
        try:
            read(*tables, base + 1)
        except ValueError:
            pass
        else:
            raise AssertionError("a base that is no whole block was taken")
    wrong = [[[*row] for row in table] for table in tables]
    row = rng.choice(rng.choice(wrong))
    row[rng.randrange(len(row))] = rng.choice([*_EXTREMES, -1, 1 << 62, (1 << 63) - 1])
    with contextlib.suppress(ValueError, OSError):
        read(*wrong)


def _sums(native: Any, pixels: bytes, channels: int) -> Any:
    """Return the sums; None where the pixels are not complete, or are of a number of channels that no image has."""
    try:
        return native.sums(pixels, channels)
    except ValueError:
        assert len(pixels) % channels or channels == 5
        return None


def _row_arguments(rng: random.Random, data: bytes) -> tuple[Any, ...]:
    """Choose sizes for a row of an image: those that its header states, mostly, and any."""
    scale = rng.choice([1, 1, 2, 4, 8])
    at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    height, width = (int.from_bytes(data[at + n : at + n + 2], "big") for n in (5, 7)) if at >= 0 else (1, 1)
    source = -(-min(width, 300) // scale), -(-min(height, 300) // scale)
    if rng.random() < 0.05:
        source = rng.randint(-1, 100), rng.randint(-1, 100)
    resized = rng.choice([1, 2, rng.randint(1, 150)]), rng.choice([1, 2, rng.randint(1, 150)])
    origin = rng.randint(-20, max(0, resized[0] - 1)), rng.randint(-20, max(0, resized[1] - 1))
    size = rng.randint(1, 160), rng.randint(1, 160)
    if rng.random() < 0.05:
        size = rng.randint(-2, 70_000), rng.randint(-2, 9)
        origin = rng.choice(_EXTREMES), rng.choice(_EXTREMES)
    return data, source, resized, origin, size, rng.randint(0, 5)


def _resize_arguments(rng: random.Random) -> tuple[Any, ...]:
    width, height = (rng.choice([1, 2, 3, 5, rng.randint(1, 120)]) for _ in range(2))
    size = rng.randint(1, 130), rng.randint(1, 130)
    if rng.random() < 0.02:
        size = (1 << 31) - 1, rng.choice([1, (1 << 31) - 1])
    return rng.randbytes(width * height * rng.choice([1, 4])), (width, height), size, rng.randint(1, 4)


@dataclass(frozen=True)
class _Crop:
    """A row of crops(): the image, and the other numbers of its row of the table, which may be any."""

    image: bytes
    sides: tuple[int, int]
    box: tuple[int, int, int, int]
    # width and height
    size: tuple[int, int]
    window: tuple[int, int, int, int]
    flags: int

    @property
    def pixels(self) -> int:
        """Pixels of the crop."""
        left, top, right, bottom = self.window
        return (right - left) * (bottom - top)


def _crops_arguments(rng: random.Random) -> tuple[list[_Crop], bytes, int, bool]:
    """Choose images, boxes and windows, a level beyond for each channel, and threads, and whether a number is any."""
    channels, rows = rng.choice([1, 3, 4]), []
    for _ in range(rng.randint(1, 4)):
        sides = rng.choice([1, 2, rng.randint(1, 90)]), rng.choice([1, 2, rng.randint(1, 90)])
        (y0, y1), (x0, x1) = (sorted(rng.sample(range(side + 1), 2)) for side in sides)
        size = (x1 - x0, y1 - y0) if rng.random() < 0.3 else (rng.randint(1, 90), rng.randint(1, 90))
        low = rng.choice([0, -20])
        left, top = (rng.randint(low, side - 1 - low) for side in size)
        right, bottom = (rng.randint(start + 1, start + 60) for start in (left, top))
        if not low:
            right, bottom = min(right, size[0]), min(bottom, size[1])
        image = rng.randbytes(sides[0] * sides[1] * channels)
        rows.append(_Crop(image, sides, (x0, y0, x1, y1), size, (left, top, right, bottom), rng.randrange(16)))
    return rows, rng.choice([b"mmmm", b"abcd"])[:channels], rng.randint(-1, 4), rng.random() < 0.3


def _crops(native: Any, rows: list[_Crop], fill: bytes, threads: int, is_any: bool) -> bool:
    """Call crops(), and compare each crop with what resize() and slices make; returns whether it took the table.

    is_any: one number of it is another, the same one in each call.
    """
    channels, pixels, table = len(fill), b"".join(row.image for row in rows), list[int]()
    ends = [*itertools.accumulate(row.pixels * channels for row in rows)]
    for n, row in enumerate(rows):
        offset = sum(len(before.image) for before in rows[:n])
        # the last one is written first
        table += [offset, *row.sides, *row.box, *row.size, *row.window, row.flags, ends[-1] - ends[n]]
    if is_any:
        rng = random.Random(repr(table))
        at = rng.randrange(len(table))
        near = table[at] - 1, table[at] + 1, rng.randint(-9, 99)
        table[at] = rng.choice([*_EXTREMES, -(1 << 63), (1 << 63) - 1, _MOST_SIDE, *near])
    # between bytes of ours: those behind a bytearray's last one may be its own too
    around = bytearray(b"x") * (ends[-1] + 64)
    made = memoryview(around)[32:-32]
    try:
        is_made = native.crops(pixels, array("q", table), made, channels, fill, threads)
    except ValueError:
        assert is_any
        return False
    assert around[:32] == around[-32:] == b"x" * 32
    if not is_any:
        assert is_made
        assert made == b"".join(_crop_by_resize(native, row, fill) for row in reversed(rows))
    return True


def _crop_by_resize(native: Any, row: _Crop, fill: bytes) -> bytes:
    """Make a crop by resize(), of 4 bytes a pixel where it has 3 channels, and by slices."""
    (x0, y0, x1, y1), (width, height), (left, top, right, bottom) = row.box, row.size, row.window
    channels = wide = len(fill)
    step = row.sides[1] * channels
    box = b"".join(row.image[y * step + x0 * channels : y * step + x1 * channels] for y in range(y0, y1))
    if channels == 3:
        box, wide = b"".join(box[at : at + 3] + b"x" for at in range(0, len(box), 3)), 4
    if row.flags & 8:
        places = [
            ((2 * y + 1) * (y1 - y0) // (2 * height), (2 * x + 1) * (x1 - x0) // (2 * width))
            for y in range(height)
            for x in range(width)
        ]
        starts = [(y * (x1 - x0) + x) * wide for y, x in places]
        resized = b"".join(box[at : at + wide] for at in starts)
    elif row.size == (x1 - x0, y1 - y0):
        resized = box
    else:
        resized = native.resize(box, (x1 - x0, y1 - y0), row.size, 3 if row.flags & 1 else 2)
    made, lines, columns = b"", range(top, bottom), range(left, right)
    for y in reversed(lines) if row.flags & 4 else lines:
        for x in reversed(columns) if row.flags & 2 else columns:
            at = (y * width + x) * wide
            made += resized[at : at + channels] if 0 <= y < height and 0 <= x < width else fill
    return made
