"""Images of all kinds, and damaged files of them, as strategies of hypothesis."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

from conftest import photo
from hypothesis import strategies as st

# Segments of a JPEG: tables, frames, a scan, restarts, an application's, its end. And bytes that a fault puts between two.
_SEGMENTS = ("ffdb", "ffc0", "ffc2", "ffc4", "ffda", "ffdd", "ffe0", "ffd9")
_JUNK = ("ff00", "ffff", "00000000", "ffd8", "ffd9", "ffd0", "ffe10002", "ff01", "616263")
_OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    *(("PNG", mode, {}) for mode in ("RGB", "RGBA", "L", "P", "1", "I;16")),
    *(("WEBP", mode, {"lossless": lossless}) for mode in ("RGB", "RGBA") for lossless in (True, False)),
    *(("TIFF", "RGB", {"compression": name}) for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")),
    # no group4: for a damaged one, libtiff leaves lines of uninitialized memory, and Pillow takes them
    *(("GIF", mode, {}) for mode in ("P", "L")),
    *(("BMP", mode, {}) for mode in ("RGB", "P", "L", "1")),
]


class File(NamedTuple):
    """An image file: its suffix and its bytes."""

    suffix: str
    data: bytes


def _encoded(format: str, mode: str, options: dict[str, Any], size: tuple[int, int], seed: int) -> File:
    stream, picture = io.BytesIO(), photo(*size, seed)
    picture = picture.convert("L").convert("I;16") if mode == "I;16" else picture.convert(mode)
    picture.save(stream, format, **options)
    return File(format.lower(), stream.getvalue())


_sizes, _seeds = st.tuples(st.integers(8, 150), st.integers(8, 150)), st.integers(0, 99)
# any sampling, baseline or progressive, with or without restart markers and a profile
jpegs = st.builds(
    _encoded, st.just("JPEG"), st.sampled_from(["RGB", "RGB", "L", "CMYK"]),
    st.fixed_dictionaries(
        {"quality": st.sampled_from([10, 97]), "progressive": st.booleans(), "subsampling": st.sampled_from([0, 1, 2, "4:1:1"])},
        optional={"restart_marker_blocks": st.integers(1, 30), "icc_profile": st.binary(min_size=10, max_size=300)},
    ), _sizes, _seeds,
)  # fmt: skip
files = jpegs | st.builds(
    lambda other, size, seed: _encoded(*other, size, seed), st.sampled_from(_OTHERS), _sizes, _seeds
)
# a damage: near which segment of a JPEG, or where in the file; bytes removed and inserted there
_damages = st.tuples(
    st.sampled_from(_SEGMENTS) | st.integers(0, 999), st.integers(0, 12), st.sampled_from([0, 0, 1, 2, 9, 300, 1 << 20]),
    st.sampled_from(_JUNK).map(bytes.fromhex) | st.binary(max_size=9),
)  # fmt: skip


def _damaged(file: File, damages: list[tuple[str | int, int, int, bytes]]) -> File:
    data = file.data
    for where, offset, removed, put in damages:
        at = len(data) * where // 1000 if isinstance(where, int) else data.find(bytes.fromhex(where)) + offset
        data = data[: max(2, at)] + put + data[max(2, at) + removed :]
    return File(file.suffix, data)


def damaged(originals: st.SearchStrategy[File]) -> st.SearchStrategy[File]:
    """Damage a file in one to four places."""
    return st.builds(_damaged, originals, st.lists(_damages, min_size=1, max_size=4))
