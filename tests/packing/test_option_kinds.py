"""Images that are rejected do not decide about the size of rows."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import pytest
from conftest import make_tree, photo

from packer import OptionsError, pack


def odd_png(width: int, height: int) -> bytes:
    """A PNG whose header says so many pixels, and that has none of them."""
    header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    return b"\x89PNG\r\n\x1a\n\0\0\0\r" + header + zlib.crc32(header).to_bytes(4, "big")


@pytest.mark.parametrize("broken", ["truncated", "too many pixels"])
def test_an_image_that_is_rejected_does_not_decide_about_sizes(tmp_path: Path, broken: str) -> None:
    images = tmp_path / "images" / "a"
    images.mkdir(parents=True)
    for seed in range(4):
        photo(40, 30, seed).save(images / f"{seed}.jpg")
    stream = io.BytesIO()
    photo(60, 50, 9).save(stream, "JPEG")
    (images / "odd.jpg").write_bytes(stream.getvalue()[:900] if broken == "truncated" else odd_png(70_000, 70_000))
    report = pack(tmp_path / "images", tmp_path / "out", max_rejects=1)
    assert (report.rows, report.rejected, report.size) == (4, 1, (30, 40))


def test_sound_images_of_two_sizes_still_need_a_size(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", classes=1, each=2)
    with pytest.raises(OptionsError, match="the images have 2 sizes"):
        pack(tmp_path / "images", tmp_path / "out", max_rejects=1)
