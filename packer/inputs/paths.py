"""The paths of inputs, held compactly: a million take 60 MB less than as strings, and no process that is forked copies them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

# Decoded at once by a loop.
_TOGETHER = 1024
# Keeps what is no character, as in names that are no UTF-8.
_ERRORS = "surrogatepass"


class Paths(Sequence[str]):
    """Paths one after the other in one buffer, a NUL behind each.

    Example:
        >>> paths = Paths(["a/1.jpg", "b/2.jpg"])
        >>> paths[1], paths[:1], bytes(paths.encoded)
        ('b/2.jpg', ['a/1.jpg'], b'a/1.jpg\\x00b/2.jpg\\x00')
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._data, self._ends = bytearray(), array("Q")
        self.extend(paths)

    def append(self, path: str) -> None:
        """Add one."""
        self._data += path.encode("utf-8", _ERRORS)
        self._data.append(0)
        self._ends.append(len(self._data))

    def extend(self, paths: Iterable[str]) -> None:
        """Add several."""
        for path in paths:
            self.append(path)

    @property
    def encoded(self) -> bytearray:
        """All of them in UTF-8, a NUL behind each; not to be written to."""
        return self._data

    def escaped_bytes(self) -> int:
        """Return how many bytes they take in a journal at most."""
        # what is not ASCII is escaped twice: "é" is \\\\u00e9
        return len(self._data) * (1 if self._data.isascii() else 7)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._span(start, stop) if step == 1 else [self[i] for i in range(start, stop, step)]
        end = self._ends[index]
        number = index + len(self) if index < 0 else index
        begin = self._ends[number - 1] if number else 0
        return self._data[begin : end - 1].decode("utf-8", _ERRORS)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _TOGETHER):
            yield from self._span(start, min(start + _TOGETHER, len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Paths):
            return self._data == other._data and self._ends == other._ends
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self[:]!r})"

    def _span(self, start: int, stop: int) -> list[str]:
        if start >= stop:
            return []
        begin = self._ends[start - 1] if start else 0
        paths = self._data[begin : self._ends[stop - 1] - 1].decode("utf-8", _ERRORS).split("\0")
        # an archive may name a member so that a NUL is in its path
        return paths if len(paths) == stop - start else [self[index] for index in range(start, stop)]
