"""FFmpeg's encoder gives the pixels of `ffmpeg -q:v`, and refuses what it would convert."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ffmpeg_or_skip, photo
from PIL import Image

from packer.errors import FfmpegError, NotRequantized
from packer.pixels.ffmpeg import Ffmpeg

KINDS: dict[str, dict[str, Any]] = {
    "4:2:0": {"subsampling": 2},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_rows": 1},
}


def jpeg(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **{"quality": 92, **options})
    return file.getvalue()


def pixels(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def plain_ffmpeg(folder: Path, data: bytes, *options: str) -> Any:
    """Do what a person types: a file in, a file out."""
    program = shutil.which("ffmpeg") or pytest.skip("no ffmpeg on PATH")
    (folder / "in.jpg").write_bytes(data)
    paths = ["-noautorotate", "-i", str(folder / "in.jpg"), *options, str(folder / "out.jpg")]
    subprocess.run([program, "-v", "error", "-y", *paths], check=True)
    return pixels((folder / "out.jpg").read_bytes())


@pytest.mark.parametrize(("kind", "quality"), [*((kind, 3) for kind in KINDS), ("4:2:0", 2), ("4:4:4", 31)])
def test_pixels_are_those_of_ffmpegs_command_line(kind: str, quality: int, tmp_path: Path) -> None:
    data = jpeg(photo(131, 77, seed=quality), **KINDS[kind])
    expected = plain_ffmpeg(tmp_path, data, "-q:v", str(quality))
    encoded = ffmpeg_or_skip().encode(data, quality)
    assert np.array_equal(pixels(encoded), expected)
    assert not np.array_equal(pixels(data), expected)


def test_gray_stays_gray(tmp_path: Path) -> None:
    data = jpeg(photo(63, 50, seed=1).convert("L"))
    encoded = ffmpeg_or_skip().encode(data, 3)
    assert np.array_equal(pixels(encoded), plain_ffmpeg(tmp_path, data, "-q:v", "3"))
    assert len(np.unique(pixels(encoded) - pixels(encoded)[..., :1])) == 1


def test_scaling_is_that_of_ffmpegs_command_line(tmp_path: Path) -> None:
    data = jpeg(photo(200, 150, seed=2))
    expected = plain_ffmpeg(tmp_path, data, "-vf", "scale=90:61:flags=bicubic", "-q:v", "4")
    assert np.array_equal(pixels(ffmpeg_or_skip().encode(data, 4, (90, 61))), expected)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (jpeg(photo(40, 30, seed=3).convert("CMYK")), "FFmpeg decodes it as gbrap"),
        (jpeg(photo(40, 30, seed=3), keep_rgb=True), "FFmpeg decodes it as gbrp"),
        (b"\xff\xd8\xff\xdb", "FFmpeg cannot decode it"),
        (b"no image at all", "FFmpeg cannot decode it"),
    ],
    ids=["CMYK", "RGB", "cut short", "text"],
)
def test_what_it_would_convert_or_cannot_read_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(NotRequantized, match=reason):
        ffmpeg_or_skip().encode(data, 3)


def test_an_embedded_thumbnail_is_not_taken_for_the_picture() -> None:
    body, thumbnail = jpeg(photo(160, 120, seed=4)), jpeg(photo(32, 24, seed=5))
    segment = b"Exif\0\0" + thumbnail
    data = body[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + body[2:] + bytes(9) + thumbnail
    assert pixels(ffmpeg_or_skip().encode(data, 3)).shape == (120, 160, 3)


def test_without_pyav_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(FfmpegError, match=r"^requantizing needs PyAV, .* Get it: pip install 'pixpack\[ffmpeg\]'\.$"):
        Ffmpeg()
