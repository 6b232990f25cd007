"""Damaged images cost nothing but themselves: each becomes a row, or is rejected for a reason that a person understands."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import DecodeError
from packer.pixels import decode
from packer.pixels.compiled import Native
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row
from packer.sample_lines import read_json_lines
from reader import MemmapDataset
from tests.fuzz.images import File, damaged, files, jpegs
from tests.hostile.watched import Watched

_SIDE = 64
# of a rejected image: what it is, not what went wrong with a worker
_REASONS = ("it ", "its ", "the ", "there ", "Pillow ")
_CRASHES = ("its worker", "stood still", "no answer", "longer than", "memory", "made the decoder fail")


def decoder(is_compiled: bool) -> Decoder:
    """Return a decoder with the compiled part or without."""
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(decode, "native", Native)
        return Decoder(Geometry(_SIDE, _SIDE))


def row_or_reason(decoder: Decoder, data: bytes) -> Row | str:
    try:
        return decoder.row(data)
    except DecodeError as e:
        assert str(e).startswith(_REASONS)  # noqa: PT017
        assert "\n" not in str(e)  # noqa: PT017
        return str(e)


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_a_damaged_image_is_a_row_or_a_reason_with_the_compiled_part_and_without(count: int) -> None:
    compiled, plain = decoder(True), decoder(False)

    @examples(count)
    @given(damaged(jpegs) | damaged(files))
    def check(file: File) -> None:
        assert row_or_reason(compiled, file.data) == row_or_reason(plain, file.data)

    check()


def packed(watched: Watched, images: dict[str, bytes]) -> dict[str, Any]:
    """Pack images by name; returns of each the line and the pixels of its row, or the reason for which it is rejected."""
    own = watched.clear()
    (own / "images").mkdir()
    for name, data in images.items():
        (own / "images" / name).write_bytes(data)
    trial = watched.run(f"build images out --size {_SIDE} --workers 2 --max-rejects 100% --quiet".split())
    assert (trial.code, trial.says, trial.failures) == (0, "", [])
    pixels = MemmapDataset(own / "out").numpy()
    rows = {
        line["path"]: (line, pixels[n].tobytes()) for n, line in enumerate(read_json_lines(own / "out/samples.jsonl"))
    }
    rejects = {line["path"]: line["reason"] for line in read_json_lines(own / "out/rejected.jsonl")}
    assert len(rows) + len(rejects) == len(images)
    return rows | rejects


@pytest.mark.parametrize("count", [2, pytest.param(60, marks=pytest.mark.nightly)])
def test_images_between_damaged_ones_become_what_they_become_without_these(count: int, watched: Watched) -> None:
    @examples(count)
    @given(st.lists(files, min_size=10, max_size=10), st.lists(damaged(files), min_size=30, max_size=30))
    def check(intact: list[File], broken: list[File]) -> None:
        # in the order of names, three broken ones before each
        good = {f"{3 * n:02}_.{file.suffix}": file.data for n, file in enumerate(intact)}
        bad = {f"{n:02}.{file.suffix}": file.data for n, file in enumerate(broken)}
        alone, found = packed(watched, good), packed(watched, good | bad)
        assert {name: found.pop(name) for name in good} == alone
        assert found.keys() == bad.keys()
        reasons = [one for one in found.values() if isinstance(one, str)]
        assert all(one.startswith(_REASONS) and not any(words in one for words in _CRASHES) for one in reasons)

    check()
