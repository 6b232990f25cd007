"""Recorded calls of the compiled part, with spoiled arguments.

    python -m tests.fuzz.native_calls CALLS COUNT   makes this many; exits 1 if the same calls hold more memory each time

CALLS is a pickle of calls. Each call gets one arbitrary argument. Other tests check the results of the functions. An array is
memory that a call reads, a bytearray memory that it writes: both begin at an odd address, between bytes that must stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import itertools
import pickle
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_EXTREMES = [
    *range(-3, 20),
    70_000,
    1 << 20,
    *(n for bits in (31, 32, 62, 63) for n in (-(1 << bits), (1 << bits) - 1)),
]
# the last ones are kinds of steps: pixel_steps.h has 16, an int32
_FLOATS = [0.0, -0.0, 0.3, -1.4, 9.0, 1e6, 3e38, float("inf"), float("nan"), *(n * 1.4e-45 for n in range(18))]
_JPEG_PARTS = [b"", b"\0", b"\xff", b"\xff\xd8", b"\xff\xd9", b"\xff\xd0", b"\xff\xc2", b"\0\0\0\0"]
_GUARD = b"x" * 33
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
        yield name, _spoiled(some, some.choice(by_name[name]))


def _spoiled(some: random.Random, value: Any) -> Any:
    """Replace a number of an argument by any number; remove bytes of memory, or insert others."""
    if isinstance(value, bytearray):
        return value[: some.randint(0, len(value))]
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        at, removed = some.randint(0, min(len(value), 700)), some.choice([0, 1, 2, 9, len(value)])
        data = bytes(value[:at]) + some.choice(_JPEG_PARTS) + bytes(value[at + removed :])
        return np.frombuffer(data, np.uint8)
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
            around = bytearray(_GUARD + bytes(value) + _GUARD)
            moved.append((around, bytes(value), isinstance(value, bytearray)))
            return memoryview(around)[len(_GUARD) : -len(_GUARD)].cast(memoryview(value).format)
        if isinstance(value, str):
            return _file.fileno()
        return tuple(map(put, value)) if isinstance(value, tuple) else value

    with contextlib.suppress(ValueError, OverflowError, OSError, MemoryError):
        getattr(native, name)(*map(put, arguments))
    for around, data, is_written in moved:
        assert around.startswith(_GUARD), call
        assert around.endswith(_GUARD), call
        assert is_written or around[len(_GUARD) : -len(_GUARD)] == data, call


def functions_of(native: Any) -> set[str]:
    """Return the names of all functions."""
    return {name for name in dir(native) if callable(getattr(native, name)) and name[0] != "_"}


def _main(path: str, count: int) -> None:
    native, recorded = importlib.import_module("_native"), pickle.loads(Path(path).read_bytes())
    for call in spoiled(recorded, count):
        make(native, call)
    again = [*itertools.islice(spoiled(recorded, count), _AGAIN)]
    allocated = ctypes.CDLL(None).__sanitizer_get_current_allocated_bytes
    allocated.restype, held = ctypes.c_size_t, []
    for _ in range(2):
        for call in again:
            make(native, call)
        gc.collect()
        held.append(allocated())
    if held[1] - held[0] > _MOST_GROWN_BYTES:
        sys.exit(f"lost in {_AGAIN} calls: {held}")


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
