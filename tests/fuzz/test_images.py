"""Damaged images cost nothing but themselves: each becomes a row, or is rejected for a reason that a person understands."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import examples, photo
from hypothesis import given
from hypothesis import strategies as st

from packer import pack
from packer.errors import DecodeError
from packer.pixels import decode
from packer.pixels.compiled import Native
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row
from packer.sample_lines import read_json_lines
from reader import MemmapDataset

_SIDE = 64
# of a rejected image: what it is, not what went wrong with a worker
_REASONS = ("it ", "its ", "the ", "there ", "Pillow ")
_CRASHES = ("its worker", "stood still", "no answer", "longer than", "memory", "made the decoder fail")
_OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    *(("PNG", mode, {}) for mode in ("RGB", "RGBA", "L", "P", "1", "I;16")),
    *(("WEBP", mode, {}) for mode in ("RGB", "RGBA")),
    # no group4: for a damaged one, libtiff leaves lines of uninitialized memory, and Pillow takes them
    *(("TIFF", "RGB", {"compression": name}) for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")),
    *((name, "P", {}) for name in ("GIF", "BMP")),
]
# Segments of a JPEG: tables, frames, a scan, restarts, an application's, its end. And bytes that a fault puts between two.
_SEGMENTS = ("ffdb", "ffc0", "ffc2", "ffc4", "ffda", "ffdd", "ffe0", "ffd9")
_JUNK = ("ff00", "ffff", "00000000", "ffd8", "ffd9", "ffd0", "ffe10002", "ff01", "616263")


# the suffix and the bytes of an image file
File = tuple[str, bytes]


def encoded(format: str, mode: str, options: dict[str, Any], size: tuple[int, int], seed: int) -> File:
    stream, picture = io.BytesIO(), photo(*size, seed)
    picture = (picture.convert("L") if mode == "I;16" else picture).convert(mode)
    picture.save(stream, format, **options)
    return format.lower(), stream.getvalue()


def damaged(file: File, damages: list[tuple[str | int, int, int, bytes]]) -> File:
    suffix, data = file
    for where, offset, removed, put in damages:
        at = max(2, len(data) * where // 1000 if isinstance(where, int) else data.find(bytes.fromhex(where)) + offset)
        data = data[:at] + put + data[at + removed :]
    return suffix, data


sizes, seeds = st.tuples(st.integers(8, 150), st.integers(8, 150)), st.integers(0, 99)
jpeg_options = st.fixed_dictionaries(
    {"quality": st.sampled_from([10, 97]), "progressive": st.booleans()}
    | {"subsampling": st.sampled_from([0, 1, 2, "4:1:1"]), "restart_marker_blocks": st.integers(0, 30)}
)
jpegs = st.builds(encoded, st.just("JPEG"), st.sampled_from(["RGB", "L", "CMYK"]), jpeg_options, sizes, seeds)
files = jpegs | st.builds(lambda one, size, seed: encoded(*one, size, seed), st.sampled_from(_OTHERS), sizes, seeds)
# a damage: near which segment of a JPEG, or where in the file; bytes removed and inserted there
damages = st.lists(
    st.tuples(
        st.sampled_from(_SEGMENTS) | st.integers(0, 999),
        st.integers(0, 12),
        st.sampled_from([0, 0, 1, 2, 9, 300, 1 << 20]),
        st.sampled_from(_JUNK).map(bytes.fromhex) | st.binary(max_size=9),
    ),
    min_size=1,
    max_size=4,
)


def row_or_reason(decoder: Decoder, data: bytes) -> Row | str:
    try:
        return decoder.row(data)
    except DecodeError as e:
        return str(e)


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_a_damaged_image_is_a_row_or_a_reason_with_the_compiled_part_and_without(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = Decoder(Geometry(_SIDE, _SIDE))
    monkeypatch.setattr(decode, "native", Native)
    plain = Decoder(Geometry(_SIDE, _SIDE))

    @examples(count)
    @given(st.builds(damaged, jpegs | files, damages))
    def check(file: File) -> None:
        found = row_or_reason(compiled, file[1])
        assert found == row_or_reason(plain, file[1])
        assert isinstance(found, Row) or (found.startswith(_REASONS) and "\n" not in found)

    check()


def packed(work: Path, images: dict[str, bytes]) -> dict[str, Any]:
    """Pack images by name; returns of each the line and the pixels of its row, or the reason for which it is rejected."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "images").mkdir(parents=True)
    for name, data in images.items():
        (work / "images" / name).write_bytes(data)
    pack(work / "images", work / "out", size=_SIDE, workers=2, max_rejects="100%")
    pixels = MemmapDataset(work / "out").numpy()
    lines, rejects = (read_json_lines(work / "out" / name) for name in ("samples.jsonl", "rejected.jsonl"))
    rows = {line["path"]: (line, pixels[n].tobytes()) for n, line in enumerate(lines)}
    return rows | {line["path"]: line["reason"] for line in rejects}


@pytest.mark.parametrize("count", [2, pytest.param(60, marks=pytest.mark.nightly)])
def test_images_between_damaged_ones_become_what_they_become_without_these(count: int, tmp_path: Path) -> None:
    @examples(count)
    @given(
        st.lists(files, min_size=10, max_size=10),
        st.lists(st.builds(damaged, files, damages), min_size=30, max_size=30),
    )
    def check(intact: list[File], broken: list[File]) -> None:
        # in the order of names, three broken ones before each
        good = {f"{3 * n:02}_.{suffix}": data for n, (suffix, data) in enumerate(intact)}
        bad = {f"{n:02}.{suffix}": data for n, (suffix, data) in enumerate(broken)}
        alone, found = packed(tmp_path / "work", good), packed(tmp_path / "work", good | bad)
        assert {name: found.pop(name) for name in good} == alone
        assert found.keys() == bad.keys()
        reasons = [one for one in found.values() if isinstance(one, str)]
        assert all(one.startswith(_REASONS) and not any(words in one for words in _CRASHES) for one in reasons)

    check()
