"""HEIC, AVIF, JPEG XL and JPEG 2000: packed where a library decodes them, else named, counted, with what to install."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import photo
from PIL import Image, features

from packer import pack
from packer.cli.app import run
from packer.errors import DecodeError
from packer.packing.update import update
from packer.pixels import plugins
from packer.pixels.decode import Decoder
from packer.pixels.decoder_choice import pixel_versions
from packer.pixels.geometry import Geometry
from reader import MemmapDataset

PHOTO = photo(60, 44, seed=4)
GEOMETRY = Geometry(44, 60, "squash")
SUFFIXES = {"HEIF": ".heic", "JXL": ".jxl", "AVIF": ".avif", "JPEG2000": ".jp2"}
LOSSLESS: dict[str, dict[str, Any]] = {
    "HEIF": {"quality": -1, "chroma": "444", "matrix_coefficients": 0},
    "JXL": {"lossless": True},
    "JPEG2000": {},
}


@pytest.fixture(autouse=True)
def _fresh_plugins() -> Iterator[None]:
    plugins.missing.cache_clear()
    yield
    plugins.missing.cache_clear()


def ftyp(*brands: str) -> bytes:
    major, *compatible = (brand.encode() for brand in brands)
    body = b"ftyp" + major + bytes(4) + b"".join(compatible)
    return struct.pack(">I", len(body) + 4) + body + bytes(64)


def encoded(kind: str, image: Image.Image = PHOTO, **options: Any) -> bytes:
    if kind in plugins.PLUGINS:
        if lacks := plugins.missing(kind):
            pytest.skip(f"{kind} needs {lacks}")
    elif not features.check({"AVIF": "avif", "JPEG2000": "jpg_2000"}[kind]):
        pytest.skip(f"Pillow has no {kind}")
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """30 PNGs, and a HEIC behind the first."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.heic").write_bytes(encoded("HEIF"))
    for number in range(30):
        PHOTO.save(folder / f"{'aab'[number % 3]}{number:02}.png")
    return folder


# -- identified by content


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (ftyp("heic", "mif1", "heic"), "HEIF"),
        (ftyp("mif1", "mif1", "heic"), "HEIF"),
        (ftyp("hevc", "msf1"), "HEIF"),
        (ftyp("mif1"), "HEIF"),
        (ftyp("mif1", "miaf", "avif"), ""),
        (ftyp("avif", "mif1"), ""),
        (ftyp("isom", "mp42"), ""),
        (b"\xff\x0a" + bytes(20), "JXL"),
        (b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(20), "JXL"),
        (b"\xff\xd8\xff\xe0" + bytes(20), ""),
        (b"", ""),
        (b"\0\0\0\x0cftyp", ""),
    ],
)
def test_the_first_bytes_identify_the_format(data: bytes, kind: str) -> None:
    assert plugins.kind_of(data) == kind


# -- without a plugin


def test_a_folder_names_them_counts_them_and_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = plugins.importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if "pillow_" in name else find(name, *rest)
    )
    images = tmp_path / "images"
    images.mkdir()
    for n in range(3):
        PHOTO.save(images / f"{n}.jpg")
        (images / f"IMG_{n}.HEIC").write_bytes(ftyp("heic", "mif1"))
    (images / "named.jpg").write_bytes(ftyp("heic", "mif1"))
    (images / "a.jxl").write_bytes(b"\xff\x0a" + bytes(20))
    (images / "a.jp2").write_bytes(b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(40))
    (images / "note.txt").write_text("no image")
    assert run([str(images), str(tmp_path / "out"), "--size", "32", "--workers", "1"]) == 3
    text = capsys.readouterr().out
    assert "4 x it is of the format HEIF; to decode it: pip install pillow-heif" in text
    assert "1 x it is of the format JXL; to decode it: pip install pillow-jxl-plugin" in text
    assert "1 x Pillow" in text
    assert len(MemmapDataset(tmp_path / "out")) == 3


def test_no_plugin_is_imported_before_an_image_needs_it() -> None:
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        stream = io.BytesIO()
        PHOTO.save(stream, kind)
        Decoder(GEOMETRY).row(stream.getvalue())
    assert plugins.missing.cache_info().misses == 0


# -- with a library


@pytest.mark.parametrize("kind", LOSSLESS)
def test_pixels_are_those_that_were_encoded(kind: str) -> None:
    row = Decoder(GEOMETRY).row(encoded(kind, **LOSSLESS[kind]))
    assert row.pixels == PHOTO.tobytes()
    assert row.done == {"decoder": "Pillow", "format": kind}


@pytest.mark.parametrize("kind", SUFFIXES)
def test_gray_and_alpha_become_what_is_asked_for(kind: str) -> None:
    half = PHOTO.convert("RGBA")
    half.putalpha(77)
    row = Decoder(GEOMETRY, channels="rgba").row(encoded(kind, half))
    assert np.abs(np.frombuffer(row.pixels, np.uint8).reshape(44, 60, 4)[..., 3].astype(int) - 77).max() <= 2
    gray = Decoder(GEOMETRY, channels="gray").row(encoded(kind, PHOTO.convert("L"), **LOSSLESS.get(kind, {})))
    assert len(gray.pixels) == 44 * 60


@pytest.mark.parametrize("kind", SUFFIXES)
def test_what_is_cut_short_or_too_large_is_rejected_with_a_reason(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(kind)
    for share in (0.1, 0.5, 0.9):
        with pytest.raises(DecodeError) as caught:
            Decoder(GEOMETRY).row(data[: int(share * len(data))])
        assert "\n" not in str(caught.value)
    # before it is decoded
    monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("decoded"))
    monkeypatch.setattr("packer.pixels.row.MAX_PIXELS", 1000)
    with pytest.raises(DecodeError, match=r"Image size \(2640 pixels\) exceeds limit of 1000 pixels"):
        Decoder(GEOMETRY).row(data)


def test_ten_bits_keep_their_range() -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    deep = np.linspace(0, 65535, 64 * 48 * 3).astype(np.uint16)
    stream = io.BytesIO()
    pillow_heif.from_bytes("RGB;16", (64, 48), deep.tobytes()).save(stream, quality=100, chroma="444")
    row = Decoder(Geometry(48, 64, "squash")).row(stream.getvalue())
    found = np.frombuffer(row.pixels, np.uint8).astype(int)
    assert np.abs(found - (deep >> 8)).max() <= 3


# -- another version of a plugin is another decoder


def test_versions_of_plugins_are_among_the_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "versions", lambda: {"pillow-heif": {"version": "99"}})
    assert pixel_versions({})["pillow-heif"] == {"version": "99"}


def test_an_update_packs_what_a_new_plugin_decodes(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.missing.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(plugins, "PLUGINS", plugins.PLUGINS | {"HEIF": ("pillow_gone", "pillow-gone")})
        assert pack(images, tmp_path / "out", size=32, max_rejects=1).rejected == 1
    plugins.missing.cache_clear()
    report = update(images, tmp_path / "out")
    assert (report.kept, report.rows) == (30, 31)
