"""ICC profiles: sRGB and its variants are none to speak of; others are named, counted and, where asked, converted."""

from __future__ import annotations

import functools
import io
import json
import random
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SHARED, ffmpeg_or_skip, photo, store_bytes
from PIL import Image, ImageCms

from packer import PackError, merge, pack, subset
from packer.cli.app import run
from packer.operations.verify import verify
from packer.packing.update import update
from packer.pixels.decode import Decoder
from packer.pixels.formats import icc, jpeg
from packer.pixels.geometry import Geometry
from reader.format.manifest import read_manifest
from reader.format.samples import read_json_lines

PHOTO = photo(60, 44, seed=4)
GEOMETRY = Geometry(44, 60, "squash")
# XYZ under D50 of red, green and blue: Display P3 and Adobe RGB (1998), as their profiles have them
P3 = ((0.5151, 0.2412, -0.0011), (0.2919, 0.6922, 0.0419), (0.1572, 0.0666, 0.7841))
ADOBE = ((0.6097, 0.3111, 0.0195), (0.2053, 0.6257, 0.0609), (0.1492, 0.0632, 0.7446))
SRGB = ((0.4361, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141))
# IEC 61966-2-1 as ICC's parametric curve of kind 3
SRGB_CURVE = (
    b"para"
    + bytes(4)
    + struct.pack(">Hxx5i", 3, *(round(v * 65536) for v in (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)))
)


def gamma(value: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(value * 256))


def table(function: Any, count: int = 1024) -> bytes:
    values = [round(65535 * function(i / (count - 1))) for i in range(count)]
    return b"curv" + bytes(4) + struct.pack(f">I{count}H", count, *values)


def xyz(values: tuple[float, ...]) -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(v * 65536) for v in values))


def description(name: str, *, new: bool = False) -> bytes:
    if new:
        text = name.encode("utf-16-be")
        return b"mluc" + bytes(4) + struct.pack(">II2s2sII", 1, 12, b"en", b"US", len(text), 28) + text
    text = name.encode("latin-1") + b"\0"
    return b"desc" + bytes(4) + struct.pack(">I", len(text)) + text + bytes(78)


def profile(
    name: str, primaries: Any = SRGB, curve: bytes = SRGB_CURVE, *, space: bytes = b"RGB ", new: bool = False
) -> bytes:
    """Make a profile of a matrix and curves, or of one curve for gray."""
    tags = {
        b"desc": description(name, new=new),
        b"wtpt": xyz((0.9642, 1.0, 0.8249)),
        b"cprt": description("none", new=new),
    }
    if space == b"GRAY":
        tags[b"kTRC"] = curve
    elif primaries:
        tags |= {key: xyz(value) for key, value in zip((b"rXYZ", b"gXYZ", b"bXYZ"), primaries, strict=True)}
        tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    at, index, body = 132 + 12 * len(tags), b"", b""
    for key, content in tags.items():
        index += struct.pack(">4sII", key, at + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    head = bytearray(128)
    version = 0x04300000 if new else 0x02400000
    struct.pack_into(">I4xI4s4s4s", head, 0, 128 + 4 + len(index) + len(body), version, b"mntr", space, b"XYZ ")
    head[36:40] = b"acsp"
    head[68:80] = struct.pack(">3i", 0xF6D6, 0x10000, 0xD32D)
    return bytes(head) + struct.pack(">I", len(tags)) + index + body


DISPLAY_P3 = profile("Display P3", P3, new=True)
ADOBE_RGB = profile("Adobe RGB (1998)", ADOBE, gamma(2.19921875))
DOT_GAIN = profile("Dot Gain 20%", curve=gamma(1.75), space=b"GRAY")


def encoded(form: str, image: Image.Image = PHOTO, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def decoded(data: bytes, **options: Any) -> Any:
    return Decoder(GEOMETRY, exact=True, **options).row(data)


# -- what is sRGB


@functools.cache
def littlecms_srgb() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


@pytest.mark.parametrize(
    "found",
    [
        profile("sRGB IEC61966-2.1"),
        profile("sRGB", new=True),
        profile("c2", curve=table(lambda x: x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4, 42)),
        profile("Monitor", curve=gamma(2.2)),
        profile("Nikon sRGB 4.0.0.3001", ((0.436, 0.2224, 0.0139), (0.3851, 0.717, 0.097), (0.143, 0.0606, 0.7141))),
        profile("sRGB v4 ICC preference", None),
        profile("Gray Gamma 2.2", curve=gamma(2.2), space=b"GRAY"),
        profile("sGray", space=b"GRAY"),
        littlecms_srgb(),
    ],
    ids=lambda found: icc._description(icc._tags(found)),
)
def test_srgb_and_its_variants_are_not_counted(found: bytes) -> None:
    assert icc.foreign_name(found) == ""
    assert "icc" not in decoded(encoded("JPEG", icc_profile=found)).done


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (DISPLAY_P3, "Display P3"),
        (ADOBE_RGB, "Adobe RGB (1998)"),
        (profile("sRGB", (SRGB[1], SRGB[2], SRGB[0])), "sRGB"),  # says so, and has its colours exchanged
        (profile("Generic RGB Profile", curve=gamma(1.8)), "Generic RGB Profile"),
        (profile("linear", curve=b"curv" + bytes(8)), "linear"),
        (DOT_GAIN, "Dot Gain 20%"),
        (profile("SWOP", None, space=b"CMYK"), "SWOP"),
        (profile("a table", None), "a table"),
        (profile("", None), "unnamed RGB profile"),
        (profile("two\nlines\x07 and more", P3), "two lines and more"),
        (profile("x" * 99, P3), "x" * 60),
        (b"", "damaged"),
        (b"?", "damaged"),
        (bytes(500), "damaged"),
        (DISPLAY_P3[:200], "damaged"),
        (DISPLAY_P3[:128] + b"\xff\xff\xff\xff" + DISPLAY_P3[132:], "damaged"),
    ],
)
def test_others_are_named(found: bytes, name: str) -> None:
    assert icc.foreign_name(found) == name


def test_no_profile_makes_the_parser_fail() -> None:
    random = np.random.default_rng(0)
    for _ in range(3000):
        data = bytearray(DISPLAY_P3 if random.random() < 0.5 else ADOBE_RGB)
        for at in random.integers(0, len(data), random.integers(1, 9)):
            data[at] = random.integers(0, 256)
        name = icc.foreign_name(bytes(data[: random.integers(1, len(data) + 1)]))
        assert isinstance(name, str)
        assert name.isprintable()


# -- where it is found


def app2(parts: list[bytes], count: int | None = None) -> bytes:
    contents = [b"ICC_PROFILE\0" + bytes([n, count or len(parts)]) + part for n, part in enumerate(parts, start=1)]
    return b"".join(b"\xff\xe2" + struct.pack(">H", len(content) + 2) + content for content in contents)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "MPO"])
def test_a_profile_is_found_in_every_format(form: str) -> None:
    if form == "AVIF":
        pytest.importorskip("PIL._avif")
    done = decoded(encoded(form, icc_profile=DISPLAY_P3)).done
    assert done["icc"] == "Display P3"
    assert "icc_converted" not in done
    assert "icc" not in decoded(encoded(form)).done


def test_a_jpegs_profile_may_be_in_several_segments_and_behind_the_frame_header() -> None:
    data = encoded("JPEG")
    thirds = [DISPLAY_P3[:200], DISPLAY_P3[200:300], DISPLAY_P3[300:]]
    segments = app2(thirds)
    first = segments[: len(app2(thirds[:1], 3))]
    swapped = segments[len(first) :] + first
    for at, inserted in ((2, segments), (2, swapped), (data.index(b"\xff\xda"), segments)):
        assert jpeg.read_header(data[:at] + inserted + data[at:]).icc == DISPLAY_P3  # type: ignore[union-attr]
        assert decoded(data[:at] + inserted + data[at:]).done["icc"] == "Display P3"
    for broken in (segments[: -len(app2(thirds[2:]))], first + segments, app2(thirds, 2)):
        row = decoded(data[:2] + broken + data[2:])
        assert (row.done["icc"], row.pixels) == ("damaged", decoded(data).pixels)


def test_a_large_profile_is_written_and_read_in_segments() -> None:
    large = np.random.default_rng(1).bytes(200_000)
    segments = jpeg.profile_segments(large)
    assert jpeg.read_header(b"\xff\xd8" + segments + encoded("JPEG")[2:]).icc == large  # type: ignore[union-attr]


# -- what is converted


def through_littlecms(image: Image.Image, found: bytes) -> Any:
    return np.asarray(
        ImageCms.profileToProfile(
            image, ImageCms.ImageCmsProfile(io.BytesIO(found)), ImageCms.createProfile("sRGB"), outputMode="RGB"
        ),
        dtype=int,
    )


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("found", [DISPLAY_P3, ADOBE_RGB], ids=["P3", "Adobe RGB"])
def test_converted_pixels_are_those_of_littlecms(form: str, found: bytes) -> None:
    data = encoded(form, icc_profile=found)
    kept, converted = decoded(data), decoded(data, icc="convert")
    assert converted.done == kept.done | {"icc_converted": True}
    plain = Image.open(io.BytesIO(data)).convert("RGB")
    pixels = np.frombuffer(converted.pixels, np.uint8).reshape(44, 60, 3).astype(int)
    assert np.abs(pixels - through_littlecms(plain, found)).max() <= 1
    assert kept.pixels == plain.tobytes()
    # colours move, and neutral gray of the same curve does not
    assert np.abs(pixels - np.asarray(plain, int)).max() > 8
    gray = encoded(form, Image.new("RGB", (60, 44), (90, 90, 90)), icc_profile=DISPLAY_P3)
    assert np.abs(np.frombuffer(decoded(gray, icc="convert").pixels, np.uint8).astype(int) - 90).max() <= 2


def test_display_p3s_red_becomes_srgbs_and_alpha_stays() -> None:
    half = Image.new("RGBA", (60, 44), (234, 51, 35, 77))
    row = decoded(encoded("PNG", half, icc_profile=DISPLAY_P3), icc="convert", channels="rgba")
    pixels = np.frombuffer(row.pixels, np.uint8).reshape(-1, 4)
    # CSS Color 4: color(display-p3 0.918 0.2 0.137) is rgb(255 0 0)
    assert np.abs(pixels[0].astype(int) - [255, 0, 0, 77]).max() <= 2


@pytest.mark.parametrize("channels", ["rgb", "gray", "rgba"])
def test_gray_and_palette_and_cmyk_are_converted_or_reported_not_to_be(channels: str) -> None:
    gray = decoded(encoded("JPEG", PHOTO.convert("L"), icc_profile=DOT_GAIN), icc="convert", channels=channels)
    assert gray.done["icc_converted"]
    values = np.frombuffer(gray.pixels, np.uint8).reshape(44, 60, -1)[..., 0].astype(int)
    assert np.abs(values - np.asarray(PHOTO.convert("L"), int)).mean() > 8
    palette = decoded(encoded("PNG", PHOTO.convert("P"), icc_profile=DISPLAY_P3), icc="convert", channels=channels)
    assert palette.done["icc_converted"]
    # a profile of other colours than the image has
    for image, found in (
        (PHOTO, DOT_GAIN),
        (PHOTO.convert("CMYK"), DISPLAY_P3),
        (PHOTO, profile("SWOP", None, space=b"CMYK")),
    ):
        data = encoded("JPEG", image, icc_profile=found)
        kept, asked = decoded(data, channels=channels), decoded(data, icc="convert", channels=channels)
        assert (asked.pixels, asked.done) == (kept.pixels, kept.done)
        assert "icc_converted" not in asked.done


def test_a_damaged_profile_rejects_nothing_even_under_strict() -> None:
    for found in (DISPLAY_P3[:300], bytes(200), profile("a table", None)):
        data = encoded("JPEG", icc_profile=found)
        row = decoded(data, icc="convert", strict=True)
        assert row.pixels == decoded(encoded("JPEG")).pixels
        assert row.done["icc"] in ("damaged", "a table")
        assert "icc_converted" not in row.done


def test_a_reduced_decoding_is_converted_too() -> None:
    data = encoded("JPEG", photo(800, 600, 3), icc_profile=DISPLAY_P3, quality=95)
    geometry = Geometry(60, 80)
    fast, exact = (Decoder(geometry, exact=exact, icc="convert").row(data) for exact in (False, True))
    assert fast.done["dct_scale"] == 4
    a, b = (np.frombuffer(row.pixels, np.uint8).astype(int) for row in (fast, exact))
    assert np.abs(a - b).mean() < 2


@pytest.mark.parametrize("fit", ["pad", "inside"])
@pytest.mark.parametrize("image", [PHOTO, PHOTO.convert("RGBA"), PHOTO.convert("P")], ids=["RGB", "RGBA", "P"])
def test_padding_stays_0(fit: str, image: Image.Image) -> None:
    geometry = Geometry(80, 80, fit)
    row = Decoder(geometry, icc="convert").row(encoded("PNG", image, icc_profile=ADOBE_RGB))
    pixels = np.frombuffer(row.pixels, np.uint8).reshape(80, 80, 3).copy()
    y0, x0, y1, x1 = row.content
    assert pixels[y0:y1, x0:x1].min(axis=2).mean() > 20
    pixels[y0:y1, x0:x1] = 0
    assert not pixels.any()


@pytest.mark.skipif(not (SHARED / "corpus").is_dir(), reason="the corpus is not here")
def test_ink_is_converted_by_its_profile_and_its_padding_is_black() -> None:
    with tarfile.open(SHARED / "corpus/hostile.tar") as tar:
        member = tar.extractfile("odd/colour/cmyk-icc.jpg")
        assert member is not None
        data = member.read()
    row = Decoder(Geometry(80, 120, "pad"), icc="convert", exact=True).row(data)
    assert (row.done["icc"], row.done["icc_converted"]) == ("U.S. Web Coated (SWOP) v2", True)
    pixels = np.frombuffer(row.pixels, np.uint8).reshape(80, 120, 3).astype(int)
    y0, x0, y1, x1 = row.content
    assert not np.delete(pixels, range(x0, x1), axis=1).any()
    with Image.open(io.BytesIO(data)) as image:
        found = through_littlecms(
            image.resize((x1 - x0, y1 - y0), Image.Resampling.BILINEAR), image.info["icc_profile"]
        )
    assert np.abs(pixels[y0:y1, x0:x1] - found).mean() < 12


# -- what a pack says


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    images = tmp_path / "images"
    images.mkdir()
    for n, found in enumerate([b"", littlecms_srgb(), DISPLAY_P3, DISPLAY_P3, ADOBE_RGB, DISPLAY_P3[:300]]):
        options = {"icc_profile": found} if found else {}
        PHOTO.save(images / f"{n}.jpg", **options)
    return images


COUNTS = {"Display P3": 2, "Adobe RGB (1998)": 1, "damaged": 1}


def test_they_are_counted_in_the_report_the_manifest_and_info(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(mixed), str(tmp_path / "out"), "--size", "32"]) == 0
    assert (
        "pack: note: 4 images have another ICC profile than sRGB (Display P3 2, Adobe RGB (1998) 1, damaged 1). Their values are"
        " stored as they are; --icc convert converts them to sRGB." in capsys.readouterr().err
    )
    assert read_manifest(tmp_path / "out").icc == COUNTS
    assert "icc" not in read_manifest(tmp_path / "out").options
    assert run(["info", str(tmp_path / "out")]) == 0
    assert "Display P3 (2), Adobe RGB (1998) (1), damaged (1)" in capsys.readouterr().out
    assert run([str(mixed), str(tmp_path / "two"), "--size", "32", "--icc", "convert", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["icc"] == COUNTS
    assert "4 images have another ICC profile than sRGB" in printed.err
    assert "3 were converted to sRGB, the profiles of the others do not fit or are damaged." in printed.err


def test_the_note_of_a_split_names_it(mixed: Path, tmp_path: Path) -> None:
    splits = tmp_path / "splits"
    splits.mkdir()
    mixed.rename(splits / "train")
    (splits / "val").mkdir()
    photo(40, 30, 0).save(splits / "val/a.jpg")
    notes = pack(splits, tmp_path / "out", size=32, workers=1, max_rejects="100%").notes
    assert [note.split(" have ")[0] for note in notes if "ICC" in note] == ["train: 4 images"]


def test_a_store_without_such_images_says_nothing_of_profiles(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=32, workers=1)
    assert b"icc" not in (tmp_path / "out/manifest.json").read_bytes()
    pack(images, tmp_path / "two", size=32, workers=1, icc="convert")
    assert read_manifest(tmp_path / "two").options["icc"] == "convert"
    assert read_manifest(tmp_path / "two").decoders["littlecms"]["version"]
    for name in ("samples.jsonl", "_tensordict/pixels.memmap"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_option_is_recorded_compared_and_used_again(mixed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(mixed, out, size=32, workers=1, icc="convert")
    with pytest.raises(PackError, match=r"other options \(with icc='convert', now without\)"):
        pack(mixed, out, size=32, resume=True)
    before = store_bytes(out)
    assert verify(out, redecode=6, images=mixed).problems == []
    report = update(mixed, out, workers=1)
    assert (report.kept, report.icc) == (6, COUNTS)
    assert store_bytes(out) == before
    PHOTO.save(mixed / "7.jpg", icc_profile=ADOBE_RGB)
    assert update(mixed, out, workers=1).kept == 6
    pack(mixed, tmp_path / "again", size=32, workers=1, icc="convert")
    assert store_bytes(out) == store_bytes(tmp_path / "again")


def test_subsets_and_merges_count_their_own_rows(mixed: Path, tmp_path: Path) -> None:
    pack(mixed, tmp_path / "out", size=32, workers=1)
    assert subset(tmp_path / "out", tmp_path / "some", rows=[0, 2, 4]).icc == {"Adobe RGB (1998)": 1, "Display P3": 1}
    merge([tmp_path / "out", tmp_path / "some"], tmp_path / "both")
    assert read_manifest(tmp_path / "both").icc == {"Display P3": 3, "Adobe RGB (1998)": 2, "damaged": 1}
    pack(mixed, tmp_path / "converted", size=32, workers=1, icc="convert")
    with pytest.raises(PackError, match="without icc='convert' and with it"):
        merge([tmp_path / "out", tmp_path / "converted"], tmp_path / "no")


def test_sealing_parts_counts_them_too(mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("1/2", "2/2"):
        pack(mixed, tmp_path / "out", size=32, workers=1, part=part)
    assert run(["seal", str(tmp_path / "out")]) == 0
    assert "pack: note: 4 images have another ICC profile than sRGB" in capsys.readouterr().err
    pack(mixed, tmp_path / "full", size=32, workers=1)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "full")


def test_requantized_images_keep_a_profile_that_is_not_srgb(mixed: Path, tmp_path: Path) -> None:
    ffmpeg_or_skip()
    turned = Image.Exif()
    turned[0x0112] = 6
    PHOTO.save(mixed / "2.jpg", icc_profile=DISPLAY_P3, exif=turned)
    assert run(["requantize", str(mixed), str(tmp_path / "tree"), "-q", "3", "--quiet"]) == 0
    for number, name in enumerate(["", "", "Display P3", "Display P3", "Adobe RGB (1998)", ""]):
        with Image.open(tmp_path / f"tree/{number}.jpg") as image:
            found = image.info.get("icc_profile", b"")
            assert image.getexif().get(0x0112, 1) == (6 if number == 2 else 1)
        # some versions of FFmpeg write a profile themselves, also one that is damaged
        name_found = icc.foreign_name(found) if found else ""
        assert name_found == name or (number, name_found) == (5, "damaged")
    pack(mixed, tmp_path / "direct", size=32, requantize=3, icc="convert", workers=1)
    pack(tmp_path / "tree", tmp_path / "through", size=32, exact=True, icc="convert", workers=1)
    lines = list(read_json_lines(tmp_path / "direct/samples.jsonl"))
    assert [line.get("icc_converted", False) for line in lines] == [False, False, True, True, True, False]
    for name in ("_tensordict/pixels.memmap",):
        assert (tmp_path / "direct" / name).read_bytes() == (tmp_path / "through" / name).read_bytes()


def test_what_surely_has_no_profile_has_none_also_where_segments_are_damaged() -> None:
    stream, draw = io.BytesIO(), random.Random(0)
    Image.new("RGB", (8, 8)).save(stream, "JPEG", icc_profile=b"profile of no color")
    with_profile = stream.getvalue()
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "JPEG")
    assert jpeg.surely_has_no_profile(stream.getvalue())
    assert not jpeg.surely_has_no_profile(with_profile)
    found = 0
    for _ in range(5000):
        data = bytearray(with_profile)
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(60)] = draw.choice((0, 0xFF, 0xE2, 0xD8, 0xDA, 0xD9, 1, draw.randrange(256)))
        if jpeg.surely_has_no_profile(bytes(data)):
            header, found = jpeg.read_header(bytes(data)), found + 1
            assert header is None or not header.icc
    assert found > 10
