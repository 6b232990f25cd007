"""Options from Python are checked by kind at once: what passes packs a store that opens."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_tree, photo

from packer import OptionsError, pack
from reader import MemmapDataset

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"exact": 1}, "exact is 1, expected True or False."),
    ({"shuffle": True}, "shuffle is True, expected an integer or None."),
    ({"workers": True}, "workers is True, expected an integer or None."),
    ({"crop_fraction": "1"}, "crop_fraction is '1', expected a number."),
    ({"fit": 3}, "fit is 3, expected text."),
    ({"compress": 101}, "compress is 101, expected the quality of JPEGs, 1 to 100, such as 90."),
    ({"boxes": 3}, "boxes is 3, expected text or a path."),
    ({"progress": 3}, "progress is 3, expected a function that takes a Progress."),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG, ids=[str(next(reversed(options))) for options, _ in WRONG])
def test_a_value_of_another_kind_is_refused_before_any_work(
    images: Path, tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(OptionsError) as caught:
        pack(images, tmp_path / "out", **{"size": 32} | options)
    assert str(caught.value) == sentence
    assert not (tmp_path / "out").exists()


def test_numbers_of_numpy_are_recorded_as_numbers(images: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"shuffle": np.uint8(3), "crop_fraction": np.float32(0.5)}
    pack(images, tmp_path / "out", size=32, **options)
    recorded = MemmapDataset(tmp_path / "out").manifest.options
    assert {name: recorded[name] for name in options} == {"shuffle": 3, "crop_fraction": 0.5}


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
