"""Calls of the compiled part on memory that begins at any byte, as a view of a file or of part of an array does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

# Takes bytes alone, which begin where Python puts them.
_OF_BYTES = frozenset({"resize"})
# No alignment asks for more.
_MOST_OFFSET = 64
_GUARD = b"x" * 32


class AtOddOffsets:
    """Has the functions of the compiled part, and counts their calls.

    What a call reads is moved to an odd address first, what it writes to is copied back; bytes around that must stay.
    """

    def __init__(self, native: Any, seed: int) -> None:
        self._native, self._rng = native, random.Random(seed)
        self.calls: Counter[str] = Counter()

    @property
    def uncalled(self) -> list[str]:
        """The functions that no call was made of."""
        functions = (name for name in dir(self._native) if callable(getattr(self._native, name)))
        return sorted(name for name in functions if not (name.startswith("_") or self.calls[name]))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._native, name)

        def call(*arguments: Any) -> Any:
            """Call it on moved memory."""
            self.calls[name] += 1
            if name in _OF_BYTES:
                return function(*arguments)
            moved = [_Moved.of(value, self._rng) for n, value in enumerate(arguments)]
            try:
                return function(
                    *(there.view if there else value for there, value in zip(moved, arguments, strict=True))
                )
            finally:
                for there, value in zip(moved, arguments, strict=True):
                    if there:
                        there.take_back(value)

        return call


class _Moved:
    """A copy of an array's bytes at an odd address, between bytes of ours."""

    def __init__(self, array: memoryview, rng: random.Random) -> None:
        before = _GUARD + b"x" * rng.randrange(1, _MOST_OFFSET, 2)
        self._around = bytearray(before + array.tobytes() + _GUARD)
        self._start, self._stop = len(before), len(before) + array.nbytes
        view = memoryview(self._around)[self._start : self._stop]
        self.view = (view.toreadonly() if array.readonly else view).cast(array.format)

    @classmethod
    def of(cls, value: object, rng: random.Random) -> _Moved | None:
        """Move an argument; None where it is no array."""
        try:
            return cls(memoryview(value), rng)  # type: ignore[arg-type]
        except TypeError:
            return None

    def take_back(self, value: Any) -> None:
        """Copy what was written to where it belongs."""
        assert set(self._around[: self._start]) == set(self._around[self._stop :]) == set(_GUARD)
        if not memoryview(value).readonly:
            memoryview(value).cast("B")[:] = self._around[self._start : self._stop]
