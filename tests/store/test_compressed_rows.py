"""Stores of rows that are JPEGs: the same bytes however they are made, and damage is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import interrupted, store_bytes
from row_forms import WAYS, Formed, flip, stored, table

from packer import merge, pack, subset
from packer.errors import PackError
from packer.operations.verify import verify
from reader import MemmapDataset, MemmapLoader
from reader.format.errors import StoreError
from reader.format.manifest import PIXELS, read_manifest


@pytest.fixture(params=[way for way in WAYS if way != "rgba"])
def pair(request: pytest.FixtureRequest, formed: Formed) -> tuple[Path, Path]:
    """The same images packed raw and as JPEGs."""
    return formed(request.param, 0), formed(request.param, 95)


@pytest.fixture
def packed(formed: Formed) -> Path:
    return formed("equal", 95)


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """A store of a test's own."""
    return Path(shutil.copytree(packed, tmp_path / "out"))


def test_splits_are_jpegs_too(tree: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(tree / "class0", tmp_path / "images" / split / "class0")
    pack(tmp_path / "images", tmp_path / "out", size=32, compress=95, workers=1)
    for split in ("train", "val"):
        assert read_manifest(tmp_path / "out" / split).options["compress"] == 95
        assert MemmapDataset(tmp_path / "out" / split)[0][0].shape == (3, 32, 32)


# -- packing


def test_a_resumed_pack_has_the_same_bytes(
    tree: Path, tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, straight, options = tmp_path / "out", tmp_path / "straight", {"size": 32, "workers": 1}
    pack(tree, straight, compress=95, **options)
    interrupted(pack, tree, out, inputs=8, compress=95, **options)
    for other in (None, 90):
        with pytest.raises(PackError, match="other options"):
            pack(tree, out, compress=other, **options)
    with monkeypatch.context() as patch:
        patch.setattr("packer.pixels.jpeg_rows.jpeg_versions", lambda: {"pillow": "99", "libjpeg_turbo": "9"})
        with pytest.raises(PackError, match="other decoders.*jpeg"):
            pack(tree, out, compress=95, **options)
    report = pack(tree, out, compress=95, **options)
    assert report.resumed_from > 0
    assert store_bytes(out) == store_bytes(straight)


def test_rows_are_merged_as_they_are(pair: tuple[Path, Path], tmp_path: Path) -> None:
    raw, packed = pair
    merge([packed, packed], tmp_path / "merged")
    assert stored(tmp_path / "merged") == 2 * stored(packed)
    assert verify(tmp_path / "merged").problems == []
    with pytest.raises(PackError, match="other options"):
        merge([raw, packed], tmp_path / "mixed")


# -- what is stored


def test_every_flipped_bit_of_a_row_is_named_with_it(copy: Path, tmp_path: Path) -> None:
    begin, end = table(copy)[5]
    for offset in range(begin, end, max(1, (end - begin) // 40)):
        flip(copy / PIXELS, offset)
        with pytest.raises(StoreError, match=r"out: row 5: its frame.*run pack verify"):
            MemmapDataset(copy)[5]
        with pytest.raises(StoreError, match="row 5"), MemmapLoader(MemmapDataset(copy), 8) as loader:
            list(loader)
        flip(copy / PIXELS, offset)
    flip(copy / PIXELS, begin + 9)
    flip(copy / PIXELS, end + 9)
    assert [problem.rows for problem in verify(copy).problems] == [(5, 6), (6, 7)]
    with pytest.raises(PackError, match=r"is damaged: rows .* not what was packed"):
        subset(copy, tmp_path / "copy", rows=[5])
