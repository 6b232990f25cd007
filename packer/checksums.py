"""Digests of files, and the crc32 of a file from the crc32s of its pieces, without reading it again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from reader.format.filesystem import error_path

_READ_BYTES = 1 << 20


def crc32_combine(first: int, second: int, second_bytes: int) -> int:
    """Return the crc32 of A + B from crc32(A), crc32(B) and len(B), as zlib's C function of that name does.

    The register advances over a zero byte by a linear map over GF(2); squaring it doubles the distance.
    """
    return _advance(first, second_bytes) ^ second


def sha256_file(path: Path, read: Callable[[int], object] = lambda _: None) -> str:
    """Return "sha256:<hex>" of a file, read in pieces; `read` is called with the size of each."""
    digest = hashlib.sha256()
    with error_path(path), open(path, "rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
            read(len(chunk))
    return f"sha256:{digest.hexdigest()}"


def _advance(crc: int, count: int) -> int:
    """Advance a crc32 register over count zero bytes: bit j of count applies the map for 2**j bytes."""
    power = 0
    while count:
        if count & 1:
            crc = _apply(_zero_bytes_map(power), crc)
        count >>= 1
        power += 1
    return crc


def _apply(matrix: tuple[int, ...], vector: int) -> int:
    total = 0
    while vector:
        low = vector & -vector
        total ^= matrix[low.bit_length() - 1]
        vector ^= low
    return total


_MAPS: list[tuple[int, ...]] = []


def _zero_bytes_map(power: int) -> tuple[int, ...]:
    """Return the GF(2) matrix that advances a crc32 over 2**power zero bytes, as 32 columns."""
    if not _MAPS:
        one_bit = (0xEDB88320, *(1 << n for n in range(31)))
        two = tuple(_apply(one_bit, column) for column in one_bit)
        four = tuple(_apply(two, column) for column in two)
        _MAPS.append(tuple(_apply(four, column) for column in four))
    while len(_MAPS) <= power:
        last = _MAPS[-1]
        _MAPS.append(tuple(_apply(last, column) for column in last))
    return _MAPS[power]
