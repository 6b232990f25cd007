"""HEIC, AVIF, JPEG XL and JPEG 2000: packed where a library decodes them, else named, counted, with what to install."""

from __future__ import annotations

import io
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import interrupted, photo
from PIL import Image

from packer import PackError, pack, seal_parts
from packer.cli.app import run
from packer.errors import DecodeError
from packer.packing.update import update
from packer.pixels.decode import Decoder
from packer.pixels.formats import plugins
from packer.pixels.geometry import Geometry
from packer.sample_lines import read_json_lines
from reader import MemmapDataset

PHOTO = photo(60, 44, seed=4)
GEOMETRY = Geometry(44, 60, "squash")
JP2 = b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(40)
IDS = {plugins.HEIC: "HEIF", plugins.AVIF: "AVIF", plugins.JPEG_XL: "JXL", plugins.JPEG_2000: "JPEG2000"}
LOSSLESS: dict[str, dict[str, Any]] = {
    plugins.HEIC: {"quality": -1, "chroma": "444", "matrix_coefficients": 0},
    plugins.JPEG_XL: {"lossless": True},
    plugins.JPEG_2000: {},
}


@pytest.fixture(autouse=True)
def _fresh_libraries() -> Iterator[None]:
    # a test may put a function of its own there
    library = plugins.library
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pillow_heif", "pillow_avif", "pillow_jxl"):
        monkeypatch.setitem(sys.modules, name, None)  # then importing it fails as if it were not there
    monkeypatch.setattr(plugins, "missing_features", lambda names: [*names])


def ftyp(*brands: str) -> bytes:
    major, *compatible = (brand.encode() for brand in brands)
    body = b"ftyp" + major + bytes(4) + b"".join(compatible)
    return struct.pack(">I", len(body) + 4) + body + bytes(64)


def encoded(kind: str, image: Image.Image = PHOTO, **options: Any) -> bytes:
    if lacks := plugins.library(kind).lacks:
        pytest.skip(f"{kind} needs {lacks}")
    stream = io.BytesIO()
    image.save(stream, IDS[kind], **options)
    return stream.getvalue()


# -- identified by content


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (ftyp("heic", "mif1", "heic"), "HEIC"),
        (ftyp("mif1", "mif1", "heic"), "HEIC"),
        (ftyp("hevc", "msf1"), "HEIC"),
        (ftyp("mif1", "miaf", "avif"), "AVIF"),
        (ftyp("avif", "mif1"), "AVIF"),
        (ftyp("avis", "msf1", "heic"), "AVIF"),
        (ftyp("mif1"), "HEIC"),
        (ftyp("isom", "mp42"), ""),
        (ftyp("qt  "), ""),
        (b"\xff\x0a" + bytes(20), "JPEG XL"),
        (b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(20), "JPEG XL"),
        (JP2, "JPEG 2000"),
        (b"\xff\x4f\xff\x51" + bytes(20), "JPEG 2000"),
        (b"\xff\xd8\xff\xe0" + bytes(20), ""),
        (b"", ""),
        (b"\0\0\0\x0cftyp", ""),
    ],
)
def test_the_first_bytes_identify_the_format(data: bytes, kind: str) -> None:
    assert plugins.kind_of(data) == kind


# -- without a library


@pytest.mark.usefixtures("nothing_installed")
def test_a_folder_names_them_counts_them_and_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for n in range(3):
        PHOTO.save(images / f"{n}.jpg")
        (images / f"IMG_{n}.HEIC").write_bytes(ftyp("heic", "mif1"))
    (images / "named.jpg").write_bytes(ftyp("heic", "mif1"))
    (images / "a.avif").write_bytes(ftyp("avif"))
    (images / "a.jxl").write_bytes(b"\xff\x0a" + bytes(20))
    (images / "a.jp2").write_bytes(JP2)
    (images / "note.txt").write_text("no image")
    assert run([str(images), str(tmp_path / "out"), "--size", "32", "--workers", "1"]) == 3
    text = capsys.readouterr().out
    assert "4 x it is of the format HEIC; to decode it, install pillow-heif: pip install pillow-heif" in text
    assert (
        "1 x it is of the format AVIF; to decode it, install pillow-avif-plugin: pip install pillow-avif-plugin" in text
    )
    assert (
        "1 x it is of the format JPEG XL; to decode it, install pillow-jxl-plugin: pip install pillow-jxl-plugin"
        in text
    )
    assert "1 x it is of the format JPEG 2000; to decode it, install a Pillow with OpenJPEG" in text
    assert "1 other files were left alone" in text or "1 other file was left alone" in text
    assert len(MemmapDataset(tmp_path / "out")) == 3


def test_a_library_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "pillow_heif":
                raise ImportError("libheif.so.1: cannot open shared object file\nmore")

    monkeypatch.delitem(sys.modules, "pillow_heif", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(DecodeError, match=r"pillow-heif, which is there but cannot be imported \(libheif.so.1: cannot"):
        Decoder(GEOMETRY).row(ftyp("heic"))


def test_no_library_is_imported_before_an_image_needs_it(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for suffix in ("jpg", "png", "webp", "tif"):
        PHOTO.save(images / f"a.{suffix}")
        Decoder(GEOMETRY).row((images / f"a.{suffix}").read_bytes())
    assert plugins.library.cache_info().misses == 0


# -- with a library


@pytest.mark.parametrize("kind", LOSSLESS)
def test_pixels_are_those_that_were_encoded(kind: str) -> None:
    row = Decoder(GEOMETRY).row(encoded(kind, **LOSSLESS[kind]))
    assert row.pixels == PHOTO.tobytes()
    assert row.done == {"decoder": plugins.library(kind).decoder, "format": IDS[kind]}
    assert row.done["decoder"].startswith(("pillow-heif ", "pillow-jxl-plugin ", "Pillow"))


@pytest.mark.parametrize("kind", IDS)
def test_gray_and_alpha_become_what_is_asked_for(kind: str) -> None:
    half = PHOTO.convert("RGBA")
    half.putalpha(77)
    row = Decoder(GEOMETRY, channels="rgba").row(encoded(kind, half))
    assert np.abs(np.frombuffer(row.pixels, np.uint8).reshape(44, 60, 4)[..., 3].astype(int) - 77).max() <= 2
    gray = Decoder(GEOMETRY, channels="gray").row(encoded(kind, PHOTO.convert("L"), **LOSSLESS.get(kind, {})))
    assert len(gray.pixels) == 44 * 60


@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_what_is_cut_short_is_rejected_with_a_reason(kind: str, share: float) -> None:
    data = encoded(kind)
    with pytest.raises(DecodeError) as caught:
        Decoder(GEOMETRY).row(data[: int(share * len(data))])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", IDS)
def test_their_size_is_checked_before_they_are_decoded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(kind)
    monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("decoded"))
    monkeypatch.setattr("packer.pixels.row_rules.MAX_PIXELS", 1000)
    with pytest.raises(DecodeError, match=r"Image size \(2640 pixels\) exceeds limit of 1000 pixels"):
        Decoder(GEOMETRY).row(data)


def test_ten_bits_keep_their_range() -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    deep = np.linspace(0, 65535, 64 * 48 * 3).astype(np.uint16)
    file = pillow_heif.from_bytes("RGB;16", (64, 48), deep.tobytes())
    stream = io.BytesIO()
    file.save(stream, quality=100, chroma="444")
    row = Decoder(Geometry(48, 64, "squash")).row(stream.getvalue())
    found = np.frombuffer(row.pixels, np.uint8).astype(int)
    assert np.abs(found - (deep >> 8)).max() <= 3


def test_rows_of_another_version_of_a_library_are_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    PHOTO.save(images / "a.png")
    (images / "b.heic").write_bytes(encoded(plugins.HEIC))
    pack(images, tmp_path / "out", size=32, workers=1)
    assert update(images, tmp_path / "out", workers=1).kept == 2
    heic = plugins.library(plugins.HEIC)
    monkeypatch.setattr(plugins, "library", lambda kind: plugins.Library(heic.formats, "pillow-heif 99"))
    assert update(images, tmp_path / "out", workers=1).kept == 1
    lines = list(read_json_lines(tmp_path / "out/samples.jsonl"))
    assert [line["decoder"] for line in lines] == ["Pillow", "pillow-heif 99"]


@pytest.mark.parametrize("kind", [plugins.HEIC, plugins.JPEG_XL])
def test_parts_that_two_versions_of_a_library_decoded_are_not_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    images, out, suffix = tmp_path / "images", tmp_path / "out", plugins.SUFFIXES[kind][0]
    images.mkdir()
    for name in "ab":
        (images / f"{name}{suffix}").write_bytes(encoded(kind))
    for number in range(30):
        PHOTO.save(images / f"aa{number:02}.png")
    was = plugins.library(kind)
    pack(images, out, size=32, workers=1, part="1/2")
    with monkeypatch.context() as patch:
        patch.setattr(plugins, "library", lambda _: plugins.Library(was.formats, "pillow-x 99"))
        pack(images, out, size=32, workers=1, part="2/2")
    expected = (
        rf"part 1/2 of .* was packed with other decoders \({IDS[kind]}: {re.escape(was.decoder)}, now pillow-x 99\)"
    )
    with pytest.raises(PackError, match=expected):
        seal_parts(out)
    pack(images, out, size=32, workers=1, part="2/2", overwrite=True)
    assert seal_parts(out).rows == 32


@pytest.mark.parametrize("kind", [plugins.HEIC, plugins.JPEG_XL])
def test_a_pack_that_another_version_of_a_library_began_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    images, out = tmp_path / "images", tmp_path / "out"
    images.mkdir()
    (images / f"a{plugins.SUFFIXES[kind][0]}").write_bytes(encoded(kind))
    for number in range(30):
        PHOTO.save(images / f"b{number:02}.png")
    interrupted(pack, images, out, size=32, workers=1)
    was = plugins.library(kind)
    for now, text in ((plugins.Library(was.formats, "pillow-x 99"), "pillow-x 99"), (plugins.Library(), "none")):
        with monkeypatch.context() as patch:
            patch.setattr(plugins, "library", lambda _, now=now: now)
            expected = rf"was started with other decoders \({IDS[kind]}: {re.escape(was.decoder)}, now {text}\)\."
            with pytest.raises(PackError, match=expected):
                pack(images, out, size=32)
    assert pack(images, out, size=32).resumed_from > 0
