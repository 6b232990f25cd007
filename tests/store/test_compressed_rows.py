"""What holds of compressed rows whatever compresses them: the same bytes however they are made, and damage is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import content_bytes, interrupted, store_bytes
from row_forms import WAYS, Formed, flip, stored, table

from packer import merge, pack, subset
from packer.errors import PackError
from packer.operations.verify import verify
from reader import MemmapDataset, MemmapLoader
from reader.format.errors import StoreError
from reader.format.manifest import PIXELS, read_manifest

pytest.importorskip("zstandard")

FORMS = ["zstd", "jpeg:95"]
VERSIONS: dict[str, tuple[str, Any]] = {
    "zstd": ("reader.frames.versions", lambda codec: {"zstandard": "9", "zstd": "9"}),
    "jpeg:95": ("reader.jpeg_frames.versions", lambda: {"pillow": "99", "libjpeg_turbo": "9"}),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, form: str) -> str:
    """How images become rows: a JPEG has no alpha."""
    if form == "jpeg:95" and request.param == "rgba":
        pytest.skip("a JPEG has no alpha")
    name: str = request.param
    return name


@pytest.fixture
def pair(formed: Formed, way: str, form: str) -> tuple[Path, Path]:
    """The same images packed raw and compressed."""
    return formed(way, "raw"), formed(way, form)


@pytest.fixture
def packed(formed: Formed, form: str) -> Path:
    return formed("equal", form)


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """A store of a test's own."""
    return Path(shutil.copytree(packed, tmp_path / "out"))


def test_splits_are_compressed_too(tree: Path, tmp_path: Path, form: str) -> None:
    for split in ("train", "val"):
        shutil.copytree(tree / "class0", tmp_path / "images" / split / "class0")
    pack(tmp_path / "images", tmp_path / "out", size=32, compress=form, workers=1)
    for split in ("train", "val"):
        compression = read_manifest(tmp_path / "out" / split).compression
        assert compression is not None
        assert compression.form == form
        assert MemmapDataset(tmp_path / "out" / split)[0][0].shape == (3, 32, 32)


# -- packing


def test_a_resumed_pack_has_the_same_bytes(
    tree: Path, tmp_path: Path, small_blocks: None, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, straight, options = tmp_path / "out", tmp_path / "straight", {"size": 32, "workers": 1}
    pack(tree, straight, compress=form, **options)
    interrupted(pack, tree, out, inputs=8, compress=form, **options)
    for other in {False, "zstd", "jpeg:95", "jpeg:90"} - {form}:
        with pytest.raises(PackError, match="other options"):
            pack(tree, out, compress=other, **options)
    with monkeypatch.context() as patch:
        patch.setattr(*VERSIONS[form])
        with pytest.raises(PackError, match=rf"other decoders.*{form[:4]}"):
            pack(tree, out, compress=form, **options)
    report = pack(tree, out, compress=form, **options)
    assert report.resumed_from > 0
    assert store_bytes(out) == store_bytes(straight)


def test_frames_are_copied_as_they_are(pair: tuple[Path, Path], tmp_path: Path) -> None:
    packed, rows = pair[1], [5, 3, 23, *range(7, 12)]
    subset(packed, tmp_path / "copy", fraction=1)
    assert content_bytes(tmp_path / "copy") == content_bytes(packed)
    subset(packed, tmp_path / "some", rows=rows)
    assert stored(tmp_path / "some") == [stored(packed)[row] for row in rows]


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
