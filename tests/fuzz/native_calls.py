"""Recorded calls of the compiled part, with spoiled arguments.

    python -m tests.fuzz.native_calls LIBRARY CALLS COUNT   makes this many; exits 1 if the same calls hold more memory each time

CALLS is a pickle of calls. Each call gets one arbitrary argument. Other tests check the results of the functions. An array is
memory that a call reads, a bytearray memory that it writes: both begin at an odd address, between bytes that must stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import pickle
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_EXTREMES = [*range(-3, 20), 70_000, 1 << 20, -(1 << 31), (1 << 31) - 1, 1 << 32, 1 << 62, -(1 << 63), (1 << 63) - 1]
# the last ones are kinds of steps: pixel_steps.h has 16, an int32
_FLOATS = [
    0.0,
    -0.0,
    0.3,
    -1.4,
    9.0,
    1e6,
    -1e6,
    3e38,
    float("inf"),
    float("nan"),
    1e-40,
    *(n * 1.4e-45 for n in range(18)),
]
_JPEG_PARTS = [b"", b"\0", b"\xff", b"\xff\xd8", b"\xff\xd9", b"\xff\xd0", b"\xff\xc2", b"\0\0\0\0"]
_GUARD = b"x" * 32
# calls that are repeated to detect lost memory; each allocates some kB
_AGAIN, _MOST_GROWN_BYTES = 400, 4096
# stands for every file
FILE = "file"
_file = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
_file.truncate(1 << 17)

Call = tuple[str, list[Any]]


def spoiled(recorded: Sequence[Call], count: int) -> Iterator[Call]:
    """Yield each of the calls, then this many with one spoiled argument, equally many for each function."""
    yield from recorded
    some, by_name = random.Random(count), dict[str, list[list[Any]]]()
    for name, arguments in recorded:
        by_name.setdefault(name, []).append(arguments)
    for number in range(count):
        name = [*by_name][number % len(by_name)]
        arguments = [*some.choice(by_name[name])]
        if arguments:
            at = some.randrange(len(arguments))
            arguments[at] = _spoiled(some, arguments[at])
        yield name, arguments


def _spoiled(some: random.Random, value: Any) -> Any:
    """Replace a number of an argument by any number; remove bytes of memory, or insert others."""
    if isinstance(value, bytearray | np.ndarray) and memoryview(value).itemsize == 1:
        at = some.randint(0, min(len(value), some.choice([700, 1 << 20])))
        put, removed = some.choice(_JPEG_PARTS), some.choice([0, 1, 2, 9, len(value)])
        return (
            value[:at]
            if isinstance(value, bytearray)
            else np.frombuffer(bytes(value[:at]) + put + bytes(value[at + removed :]), np.uint8)
        )
    if isinstance(value, np.ndarray):
        return np.array(_spoiled(some, value.ravel().tolist()), value.dtype)
    if isinstance(value, list | tuple) and value:
        at = some.randrange(len(value))
        return type(value)([*value[:at], _spoiled(some, value[at]), *value[at + 1 :]])
    if isinstance(value, float):
        return some.choice(_FLOATS)
    return some.choice(_EXTREMES) if isinstance(value, int | str) else value


def make(native: Any, call: Call) -> None:
    """Make a call; check that it writes only to its memory, and refuses in a declared way."""
    name, arguments = call
    moved = list[tuple[bytearray, bytes, bool]]()

    def put(value: Any) -> Any:
        """Put memory at an odd address, between bytes that must stay."""
        if isinstance(value, bytearray | np.ndarray):
            data = bytes(value)
            around = bytearray(_GUARD + b"x" + data + _GUARD)
            moved.append((around, data, isinstance(value, bytearray)))
            return memoryview(around)[len(_GUARD) + 1 : len(around) - len(_GUARD)].cast(memoryview(value).format)
        if isinstance(value, str):
            return _file.fileno()
        return tuple(map(put, value)) if isinstance(value, tuple) else value

    given = [*map(put, arguments)]
    with contextlib.suppress(ValueError, OverflowError, OSError, MemoryError):
        getattr(native, name)(*given)
    for around, data, is_written in moved:
        assert around[: len(_GUARD) + 1] + around[-len(_GUARD) :] == _GUARD + b"x" + _GUARD, call
        assert is_written or around[len(_GUARD) + 1 : -len(_GUARD)] == data, call


def functions_of(native: Any) -> set[str]:
    """Return the names of all functions."""
    return {name for name in dir(native) if callable(getattr(native, name)) and name[0] != "_"}


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("_native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _main(library: str, recorded: str, count: int) -> None:
    native, some, made = _load(library), list[Call](), Counter[str]()
    for call in spoiled(pickle.loads(Path(recorded).read_bytes()), count):
        make(native, call)
        made[call[0]] += 1
        some.extend([call] if len(some) < _AGAIN else [])

    def held_bytes() -> int:
        """Repeat some calls; returns the bytes that this process then holds by malloc."""
        for call in some:
            make(native, call)
        gc.collect()
        allocated = ctypes.CDLL(None).__sanitizer_get_current_allocated_bytes
        allocated.restype = ctypes.c_size_t
        return int(allocated())

    before = held_bytes()
    uncalled = functions_of(native) - made.keys()
    grown = held_bytes() - before
    if uncalled or grown > _MOST_GROWN_BYTES:
        sys.exit(f"not called: {uncalled}; lost in {_AGAIN} calls: {grown} bytes")
    print(sorted(made.items()))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
