"""Calls of the compiled part with any arguments, as a strategy of hypothesis.

    python -m tests.fuzz.native_calls LIBRARY COUNT     makes so many; exits 1 where the same calls hold more memory each time

Of calls that are drawn together the first one's arguments fit each other; of the others one number is any. What the functions
make, other tests compare. An array is memory that a call reads, a bytearray memory that it writes: both begin at an odd address,
between bytes that must stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib.util
import itertools
import random
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.images import damaged, jpegs

_EXTREMES = [0, -1, 5, 70_000, 1 << 20, -(1 << 31), (1 << 31) - 1, 1 << 32, 1 << 62, -(1 << 63), (1 << 63) - 1]
# of a step, any of them may stand for its kind, an int32
_FLOATS = [0.0, -0.0, 1e6, -1e6, 3e38, float("inf"), float("nan"), 1e-45, 1e-40]
_GUARD = b"x" * 32
# pixel_steps.h has as many kinds of steps, the last of which takes taps
_KINDS, _BLUR = 16, 15
# calls that are made again to see whether memory is lost; each allocates some kB
_AGAIN, _MOST_GROWN_BYTES = 400, 4096
# that are drawn together: to draw arguments takes ten times as long as to call with them
_TOGETHER = 6


Call = tuple[str, list[Any]]
_sides, _threads = st.integers(1, 40), st.integers(-1, 4)
_sizes = st.tuples(_sides, _sides)


def _noise(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, count, np.uint8)


def _sums(draw: st.DrawFn) -> list[Any]:
    channels = draw(st.integers(1, 6))
    return [_noise(channels * draw(st.integers(0, 300))), channels]


def _spans(draw: st.DrawFn, size: int) -> list[tuple[int, int]]:
    """Draw some (begin, size) within so many bytes."""
    begins = draw(st.lists(st.integers(0, size), min_size=1, max_size=9))
    return [(begin, min(draw(st.integers(0, 700)), size - begin)) for begin in begins]


def _copy_spans(draw: st.DrawFn) -> list[Any]:
    size = draw(st.integers(1, 3000))
    begins, sizes = zip(*_spans(draw, size), strict=True)
    places = [*itertools.accumulate(sizes, initial=0)]
    return [_noise(size), *map(np.array, (begins, sizes, places[:-1])), bytearray(places[-1]), draw(st.booleans())]


@functools.cache
def _file() -> Any:
    file = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
    file.write(bytes(3000))
    file.flush()
    return file


def _read_spans(draw: st.DrawFn) -> list[Any]:
    base, step, size = draw(st.sampled_from([0, 1 << 20])), draw(st.sampled_from([64, 1024])), 3000
    spans = [(base + begin, count, n, 0) for n, (begin, count) in enumerate(_spans(draw, size))]
    reads = np.array([(base + start, min(step, size - start)) for start in range(0, size, step)])
    memories = tuple(bytearray(count) for _, count, *_ in spans)
    align = draw(st.sampled_from([1, 8, 64]))
    return [_file().fileno(), reads, align, base, bytearray(step), np.array(sorted(spans)), memories]


def _crops(draw: st.DrawFn) -> list[Any]:
    channels, table, offset, place = draw(st.sampled_from([1, 3, 4])), list[int](), 0, 0
    for _ in range(draw(st.integers(1, 4))):
        (height, width), size = draw(_sizes), draw(_sizes)
        (y0, x0), (left, top) = (
            (draw(st.integers(0, side - 1)) for side in (height, width)),
            draw(st.tuples(st.integers(-20, 39), st.integers(-20, 39))),
        )
        box = (x0, y0, draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height)))
        right, bottom = left + draw(_sides), top + draw(_sides)
        table += [offset, height, width, *box, *size, left, top, right, bottom, draw(st.integers(0, 15)), place]
        offset, place = offset + height * width * channels, place + (right - left) * (bottom - top) * channels
    return [_noise(offset), np.array(table), bytearray(place), channels, _noise(channels), draw(_threads)]


def _images(draw: st.DrawFn) -> tuple[tuple[int, int], int, int]:
    """Draw the size of images, their channels, and how many bytes some of them have."""
    (height, width), channels = draw(_sizes), draw(st.sampled_from([1, 3]))
    return (height, width), channels, height * width * channels * draw(st.integers(0, 4))


def _augment(draw: st.DrawFn) -> list[Any]:
    size, channels, count = _images(draw)
    steps, numbers = draw(st.integers(0, 3)), st.floats(-2, 2, width=32) | st.sampled_from(_FLOATS)
    table = np.empty((steps * (count // (size[0] * size[1] * channels)), 7), np.float32)
    for step in table:
        step[:1].view(np.int32)[0] = kind = draw(st.integers(0, _KINDS - 1))
        step[1:] = [draw(numbers) for _ in range(6)]
        if kind == _BLUR:
            step[1] = draw(st.floats(1 / 64, 9, width=32))
            step[2:4] = [2 * draw(st.integers(0, side - 1)) + 1 for side in size[::-1]]
    fill = draw(st.none() | st.tuples(numbers, numbers, numbers))
    return [_noise(count), table, bytearray(count), size, channels, steps, fill, draw(_threads)]


def _floats(draw: st.DrawFn) -> list[Any]:
    (height, width), channels, count = _images(draw)
    tables = np.arange(256 * channels, dtype=np.float32)
    return [_noise(count), tables, bytearray(4 * count), height * width * channels, draw(_threads)]


def _stated(data: bytes) -> tuple[int, int, int]:
    """Return the height, width and channels that a JPEG's header states, within reason."""
    at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"), 0)
    height, width, channels = struct.unpack_from(">HHB", data[at:] + bytes(10), 5)
    return min(max(1, height), 300), min(max(1, width), 300), 1 if channels == 1 else 3


_data = (jpegs | damaged(jpegs)).map(lambda file: file.data)


def _jpeg_pixels(draw: st.DrawFn) -> list[Any]:
    data = draw(_data)
    height, width, channels = _stated(data)
    return [np.frombuffer(data, np.uint8), height, width, channels, bytearray(height * width * channels)]


def _row(draw: st.DrawFn) -> list[Any]:
    data, scale = draw(_data), draw(st.sampled_from([1, 1, 2, 4, 8]))
    height, width, _ = _stated(data)
    size, resized, origin = draw(_sizes), draw(_sizes), draw(st.tuples(st.integers(-20, 40), st.integers(-20, 40)))
    source, room = (-(-width // scale), -(-height // scale)), bytearray(size[0] * size[1] * 3)
    return [np.frombuffer(data, np.uint8), source, resized, origin, size, draw(st.integers(0, 5)), room]


def _resize(draw: st.DrawFn) -> list[Any]:
    (height, width), pixel_bytes, few = draw(_sizes), draw(st.sampled_from([1, 4])), st.integers(1, 9)
    # a side of 1,048,576 beside a larger one takes seconds
    size = draw(st.tuples(few, few))
    return [_noise(height * width * pixel_bytes).tobytes(), (width, height), size, draw(st.integers(1, 4))]


_ARGUMENTS: dict[str, Callable[[st.DrawFn], list[Any]]] = {
    "sums": _sums, "copy_spans": _copy_spans, "read_spans": _read_spans, "crops": _crops, "augment": _augment,
    "floats": _floats, "jpeg_pixels": _jpeg_pixels, "row": _row, "resize": _resize, "library": lambda draw: [],
}  # fmt: skip


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """Draw a function and its arguments, and further calls of it with a number that is any."""
    name = draw(st.sampled_from([*_ARGUMENTS]))
    arguments, some = _ARGUMENTS[name](draw), random.Random(draw(st.integers(0, 1 << 32)))
    together = [(name, arguments)]
    numbers = [n for n, value in enumerate(arguments) if not isinstance(value, bytes)]
    while numbers and len(together) < _TOGETHER:
        at = some.choice(numbers)
        together.append((name, [*arguments[:at], _spoiled(some, arguments[at]), *arguments[at + 1 :]]))
    return together


def _spoiled(some: random.Random, value: Any) -> Any:
    """Put any number in place of one of an argument; take bytes of memory away."""
    if isinstance(value, bytearray | np.ndarray) and memoryview(value).itemsize == 1:
        return value[: some.randint(0, len(value))]
    if isinstance(value, np.ndarray):
        return np.array(_spoiled(some, value.ravel().tolist()), value.dtype)
    if isinstance(value, list | tuple) and value:
        at = some.randrange(len(value))
        return type(value)([*value[:at], _spoiled(some, value[at]), *value[at + 1 :]])
    if isinstance(value, float):
        return some.choice(_FLOATS)
    return some.choice(_EXTREMES) if isinstance(value, int) else value


def make(native: Any, call: Call) -> None:
    """Make a call; see that it writes only where it may, and refuses in a declared way."""
    name, arguments = call
    moved = list[tuple[bytearray, bytes, bool]]()

    def put(value: Any) -> Any:
        """Put memory at an odd address, between bytes that must stay."""
        if isinstance(value, bytearray | np.ndarray):
            data = bytes(value)
            around = bytearray(_GUARD + b"x" + data + _GUARD)
            moved.append((around, data, isinstance(value, bytearray)))
            return memoryview(around)[len(_GUARD) + 1 : len(around) - len(_GUARD)].cast(memoryview(value).format)
        return tuple(map(put, value)) if isinstance(value, tuple) else value

    given = [*map(put, arguments)]
    with contextlib.suppress(ValueError, OverflowError, OSError, MemoryError):
        getattr(native, name)(*given)
    for around, data, is_written in moved:
        assert around[: len(_GUARD) + 1] + around[-len(_GUARD) :] == _GUARD + b"x" + _GUARD, call
        assert is_written or around[len(_GUARD) + 1 : -len(_GUARD)] == data, call


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("_native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _main(library: str, count: int) -> None:
    native, some, made = _load(library), list[Call](), Counter[str]()

    @settings(max_examples=count // _TOGETHER, database=None, deadline=None, suppress_health_check=[*HealthCheck])
    @given(calls())
    def check(together: list[Call]) -> None:
        for call in together:
            make(native, call)
            made[call[0]] += 1
            some.extend([call] if len(some) < _AGAIN else [])

    def held_bytes() -> int:
        """Make some calls again; returns what this process holds by malloc after that."""
        for call in some:
            make(native, call)
        gc.collect()
        allocated = ctypes.CDLL(None).__sanitizer_get_current_allocated_bytes
        allocated.restype = ctypes.c_size_t
        return int(allocated())

    check()
    before = held_bytes()
    uncalled = {name for name in dir(native) if callable(getattr(native, name)) and name[0] != "_"} - made.keys()
    grown = held_bytes() - before
    if uncalled or grown > _MOST_GROWN_BYTES:
        sys.exit(f"not called: {uncalled}; lost in {_AGAIN} calls: {grown} bytes")
    print(sorted(made.items()))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
