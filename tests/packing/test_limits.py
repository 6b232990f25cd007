"""--max-pixels shapes no pixel of an accepted image: a changed one refuses no resume, update or merge."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from conftest import interrupted, photo, store_bytes
from PIL import Image
from redecoding import rows_of_other_sources

from packer import PackError, merge, pack, seal_parts
from packer.cli.app import run
from packer.operations.verify import verify
from packer.options import MAX_PIXELS, PackOptions
from packer.packing.update import update
from reader.format.manifest import read_manifest

LARGE = 7000


def limit(out: Path) -> object:
    return read_manifest(out).options["max_pixels"]


def test_a_camera_of_100_megapixels_passes_by_default(tmp_path: Path) -> None:
    assert PackOptions().max_pixels == MAX_PIXELS == 128_000_000
    stream = io.BytesIO()
    Image.new("L", (12_000, 8_500), 90).save(stream, "JPEG", quality=50)
    (tmp_path / "i").mkdir()
    (tmp_path / "i/a.jpg").write_bytes(stream.getvalue())
    assert pack(tmp_path / "i", tmp_path / "out", size=32, workers=1).rows == 1
    assert limit(tmp_path / "out") == MAX_PIXELS


def test_an_interrupted_pack_is_resumed_with_another_limit(images: Path, tmp_path: Path) -> None:
    photo(100, 80, 1).save(images / "class2" / "large.jpg")
    interrupted(pack, images, tmp_path / "out", size=32, workers=1, max_pixels=LARGE, inputs=12)
    report = pack(images, tmp_path / "out", size=32, workers=1)
    assert (report.rows, report.rejected, report.resumed_from > 0) == (25, 0, True)
    pack(images, tmp_path / "reference", size=32, workers=1)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "reference")


def test_what_was_rejected_for_its_size_is_tried_again_under_a_larger_limit(images: Path, tmp_path: Path) -> None:
    photo(100, 80, 1).save(images / "class0" / "000.jpg")
    interrupted(pack, images, tmp_path / "out", size=32, workers=1, max_pixels=LARGE, inputs=12)
    report = pack(images, tmp_path / "out", size=32, workers=1)
    assert (report.rows, report.rejected, report.changed) == (24, 0, "")
    pack(images, tmp_path / "reference", size=32, workers=1)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "reference")


def test_a_finished_store_is_the_asked_one_whatever_its_limit(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=32, workers=1, max_pixels=LARGE)
    before = store_bytes(tmp_path / "out")
    assert pack(images, tmp_path / "out", size=32, max_pixels=10**9).rows == 24
    assert store_bytes(tmp_path / "out") == before
    with pytest.raises(PackError, match=r"finished, but with other options \(fit='crop', now fit='pad'\)"):
        pack(images, tmp_path / "out", size=32, fit="pad", max_pixels=10**9)


def test_an_update_takes_the_recorded_limit_or_another(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=32, workers=1, max_pixels=LARGE)
    photo(100, 80, 1).save(images / "class2" / "large.jpg")
    report = update(images, tmp_path / "out", workers=1, max_rejects=1)
    assert (report.rows, report.rejected, limit(tmp_path / "out")) == (24, 1, LARGE)
    assert run(["update", str(images), str(tmp_path / "out"), "--max-pixels", "9000", "--quiet"]) == 0
    assert limit(tmp_path / "out") == 9000
    pack(images, tmp_path / "again", size=32, workers=1, max_pixels=9000)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "again")


def test_stores_of_different_limits_are_merged_and_decoded_again(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "small", size=32, workers=1, max_pixels=LARGE)
    photo(100, 80, 1).save(images / "class2" / "large.jpg")
    pack(images, tmp_path / "large", size=32, workers=1, max_pixels=9000)
    for stores, out in (("small", "large"), "a"), (("large", "small"), "b"):
        assert merge([tmp_path / name for name in stores], tmp_path / out).rows == 49
        assert limit(tmp_path / out) == 9000
        assert verify(tmp_path / out).problems == rows_of_other_sources(tmp_path / out, images) == []


def test_rows_accepted_under_a_larger_limit_than_the_recorded_one_are_decoded_again(
    images: Path, tmp_path: Path
) -> None:
    photo(100, 80, 1).save(images / "class0" / "000.jpg")
    interrupted(pack, images, tmp_path / "out", size=32, workers=1, inputs=12)
    pack(images, tmp_path / "out", size=32, workers=1, max_pixels=LARGE)
    assert limit(tmp_path / "out") == LARGE
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", images) == []


def test_parts_packed_with_different_limits_are_joined(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=32, workers=1, part="1/2", max_pixels=LARGE)
    pack(images, tmp_path / "out", size=32, workers=1, part="2/2")
    assert seal_parts(tmp_path / "out").rows == 24
