"""The compiled part makes the bytes that the Python path makes, and refuses what that refuses."""

from __future__ import annotations

import base64
import io
import os
import pickle
import shutil
import struct
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from PIL import Image

import packer
import reader.native
from packer.errors import DecodeError
from packer.pixels import compiled, decode, jpeg
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry, pillow_distribution, resize
from packer.pixels.row import Row
from reader.format.manifest import PIXELS, SAMPLES, read_manifest
from scripts import environment

ROOT = Path(__file__).resolve().parents[2]
NATIVE = compiled.native()


@pytest.fixture(autouse=True)
def _is_built() -> None:
    if pillow_distribution() != "pillow-simd":
        pytest.skip("there is no Pillow-SIMD to compare with")
    # Pillow-SIMD was compiled here, with the same headers
    assert NATIVE.row is not None, NATIVE.reason


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture with edges, smooth parts and noise."""
    generator = np.random.default_rng([width, height, seed])
    coarse = generator.integers(0, 256, (max(1, height // 9), max(1, width // 9), 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    noisy = smooth + generator.integers(-30, 31, (height, width, 3)) * (generator.random((height, 1, 1)) < 0.5)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **{"quality": 90} | options)
    return file.getvalue()


def both(data: bytes, geometry: Geometry, **options: Any) -> tuple[Row | str, Row | str, int]:
    """Return what the two paths make of it, a row or a reason, and how many rows the compiled part made."""
    found: list[Row | str] = []
    served = 0

    def counting(*args: Any) -> bool:
        nonlocal served
        is_made = NATIVE.row is not None and NATIVE.row(*args)
        served += is_made
        return is_made

    for row in (counting, None):
        with mock.patch.object(decode, "native", lambda row=row: compiled.Native(row)):
            try:
                found.append(Decoder(geometry, **options).row(data))
            except DecodeError as e:
                found.append(str(e))
    return found[0], found[1], served


SIZES = [(500, 375), (375, 500), (333, 250), (641, 97), (97, 641), (17, 13), (1, 1), (2, 300), (300, 1), (225, 225)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("subsampling", [0, 1, 2, "4:1:1"])
def test_rows_are_the_same_bytes(size: tuple[int, int], subsampling: int | str) -> None:
    data = encoded(picture(*size), subsampling=subsampling)
    for geometry in (
        Geometry(224, 224),
        Geometry(224, 224, crop_fraction=0.875),
        Geometry(64, 200, "crop", resample="bicubic"),
        Geometry(100, 31, "squash", resample="lanczos"),
        Geometry(96, 96, "pad", resample="box"),
        Geometry(96, 160, "inside", resample="bicubic"),
        Geometry(128, 128, "none"),
    ):
        for exact in (False, True):
            ours, plain, _ = both(data, geometry, exact=exact)
            assert ours == plain


@pytest.mark.parametrize(
    "options",
    [
        {"progressive": True},
        {"optimize": True, "quality": 20},
        {"restart_marker_blocks": 3},
        {"progressive": True, "subsampling": 0},
        {"quality": 100, "subsampling": 0},
    ],
    ids=str,
)
def test_every_kind_of_jpeg_is_served(options: dict[str, Any]) -> None:
    for size in SIZES[:5]:
        ours, plain, served = both(encoded(picture(*size), **options), Geometry(160, 160))
        assert ours == plain
        assert served == 1


# 320 x 240 of cjpeg -quality 5 -optimize -sample 4x2,1x1,1x1, which Pillow cannot write; zlib, base85
_FOUR_BY_TWO = (
    "c-"
    "pm6T}T{P6h8OfaXVQx%mjB$_MuEhA`^EhF<A?>(2laZr3=y>GqYJ+2x_C$?Qf!mz7#HFgvn%Aq!=h657$|1XD1r!PYTIHu{JItU`g#NHVqQe7n"
    "3I`eeQOAE9rCZ$Kf2#J>U86J)GK3?Fk6!)Y~aQ2mtwj+V3zf0E1893n=(@!H)}I`nCd|AO8URXbN$#508E9qvz;6x`bpjg%jv+Jcx6+)Ay%vE2"
    "j7%`I<EN-"
    "X+6$$<Lf364y=I$T0byRJi~rZ~^=g!CaoZ%k`5z?mNH!PcA@q4;~@<aw|UeVbhn{Mx2jrvWutv=F?>N|3~dd5P4r(C8!&)h=_=4_n_Gy)xog-b"
    "r2^0MOb(-4@f*9pce@k!2zLJ{BI`_*B(IwLB1Xl;Z4|M^j2DGL#yS!a^L6k)%mY@X2)`lrQH4{DTID@T#235=c{AsjknGp#+4FYpV-"
    "V!3tHt4g?50ZNTKTPS(jrbJ=vwAD_wn=$OA^%S~mZx)p<#)%j(86&y@}v8>-s-Q$`4-oI^!q$DR(1=LRgBDzY1-?aGKdGFP-"
    "1bt=_5E_~Y?nVTukP1dJ*G~k(dN#Px*^{BODSyoGTOUlG-a%!tC5sIa~QhmgZC&Za(M~Me>x!*-"
    "$H+uZ0yAizgang?QMRq0S$Z<KI5VV(a7XgNiVsbRM`0X2)k1W3@23q7ssq>6Vxx0burm~gKI+YvmYwlub_SgbH{Xw-Wl8DHB8<|xo9P!reHSf+"
    "}59GKcMx`R(2|VOwg~m&oTh09u?uho<EBr{=X%xj7ky%0dnG=Lr*PHhyzihJ<DdAw+zbcXP6N>AGjB5*{%{}2y&-EPr^;{~w$+N2xv-"
    "#PK)@NjOO;e+wU<>f_lx)5(@a(m!8W&O@_86mCXFcsnj^G4&FYV38j38t1jsH1-"
    "p^Hcz+v*BT1(xJSUY09PCEO8?8n(PH4uvxj)d(3AnUe~SJ8TU1AM)f3z$*^0<CR227<L!k#ff6F5N%4@E$IR)Ispb!uZ^+%)IH5g?;_|&aEwA~"
    "jLLK)c{MVbUmUDYOC;4L&Inai7xEN0c)|On6B!-dcn<XCHcDHYPzEjN#s$skxH(sNHdh|>cxJ8fo6-"
    "g|>CPjQHmpK}BKa%H<E)m_Gi9CAB5@<2pFM$^FtZf%9)Rxe@F0VBNj5trfbFKNo^b&luha>l&Fii_el21KrHl%PAjx%8;NPkJ_79mXc8C"
)


@pytest.mark.parametrize("side", [60, 40, 30, 16])
def test_scaled_pictures_of_large_sampling_factors_are_not_cropped(side: int) -> None:
    """libjpeg-turbo 2 would read memory that it has not written."""
    data = zlib.decompress(base64.b85decode(_FOUR_BY_TWO))
    ours, plain, served = both(data, Geometry(side, side))
    assert ours == plain
    assert served == 1


@pytest.mark.parametrize("scans", [1, 2, 3])
def test_progressive_jpegs_that_lack_scans_are_not_cropped(scans: int) -> None:
    """libjpeg smooths what is missing over the blocks on both sides, without a warning."""
    data = encoded(picture(640, 480), progressive=True, subsampling=2)
    begins = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    # a scan ends where the next one's tables or the scan begin
    ends = [at for at in range(begins[0] + 2, len(data)) if data[at : at + 2] in (b"\xff\xc4", b"\xff\xda")]
    ours, plain, served = both(data[: ends[scans - 1]] + b"\xff\xd9", Geometry(300, 150, crop_fraction=0.9))
    assert ours == plain
    assert served == 1


@pytest.mark.parametrize("side", [1, 2, 3, 5, 7])
def test_tiny_pictures_have_turbojpeg_s_scale(side: int) -> None:
    ours, plain, served = both(encoded(picture(side, side), subsampling=0), Geometry(1, 1, "squash"))
    assert ours == plain
    assert served == 1


def test_gray_jpegs_are_served() -> None:
    ours, plain, served = both(encoded(picture(500, 375).convert("L")), Geometry(224, 224))
    assert ours == plain
    assert served == 1


def test_what_it_does_not_serve_takes_the_python_path() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for data, options in (
        (encoded(picture(300, 200), exif=exif), {}),
        (encoded(picture(300, 200).convert("CMYK")), {}),
        (encoded(picture(300, 200)), {"channels": "gray"}),
        (encoded(picture(300, 200)), {"channels": "rgba"}),
    ):
        ours, plain, served = both(data, Geometry(64, 64), **options)
        assert ours == plain
        assert served == 0


@pytest.mark.parametrize("resample", ["bilinear", "bicubic", "lanczos", "box"])
def test_a_picture_of_the_row_s_size_is_as_it_was_decoded(resample: str) -> None:
    for geometry in (Geometry(192, 224, resample=resample), Geometry(0, 0, "none", resample=resample)):
        ours, plain, served = both(encoded(picture(224, 192)), geometry)
        assert ours == plain
        assert served == 1


def test_damage_below_the_crop_is_noticed() -> None:
    """The lines below what is kept are skipped, not left unread."""
    data = encoded(picture(100, 900), quality=95)
    ours, plain, served = both(data[: int(len(data) * 0.97)], Geometry(96, 96))
    assert ours == plain
    assert isinstance(ours, str)
    assert served == 0


def test_sizes_that_are_not_the_picture_s_give_none() -> None:
    assert NATIVE.row is not None
    data = encoded(picture(300, 200))
    right = (data, (300, 200), (96, 64), (16, 0), (64, 64), 2)
    out = bytearray(64 * 64 * 3)
    assert NATIVE.row(*right, out)
    assert any(out)
    for at, value in (
        (1, (299, 200)),
        (1, (300, 201)),
        (1, (0, 200)),
        (2, (0, 64)),
        (2, (1 << 21, 64)),
        (3, (200, 0)),
        (3, (-64, 0)),
        (3, ((1 << 31) - 1, 0)),
        (3, (0, -(1 << 31))),
        (4, (0, 64)),
        (4, (64, -1)),
        (4, (70_000, 70_000)),
        (5, 0),
        (5, 7),
        (0, b""),
        (0, data[:200]),
        (0, b"\xff\xd8\xff"),
    ):
        arguments: list[Any] = list(right)
        arguments[at] = value
        assert not NATIVE.row(*arguments, out), arguments[1:]
    with pytest.raises(ValueError, match="^expected the memory of a row of 3 channels$"):
        NATIVE.row(*right, out[1:])


def of_scans(count: int) -> bytes:
    """Make a progressive JPEG of one block, each of whose scans has a bit of one coefficient."""
    parts = [b"\xff\xd8", b"\xff\xdb\0\x43\0" + bytes([1] * 64), b"\xff\xc2\0\x0b\x08\0\x08\0\x08\1\1\x11\0"]
    # one code of one bit in either table
    parts += [b"\xff\xc4\0\x14" + table + b"\1" + bytes(15) + b"\0" for table in (b"\0", b"\x10")]
    bits = [(0, 13), *((low + 1, low) for low in range(12, -1, -1))]
    scans = [(0, 0), *((k, high << 4 | low) for high, low in bits for k in range(1, 64))]
    parts += [b"\xff\xda\0\x08\1\1\0" + bytes([k, k, shifts]) + b"\x7f" for k, shifts in scans[:count]]
    return b"".join([*parts, b"\xff\xd9"])


@pytest.mark.parametrize(("scans", "is_made"), [(1, True), (100, True), (101, False)])
def test_a_progressive_jpeg_of_more_scans_than_any_has_is_left(scans: int, is_made: bool) -> None:
    """Each goes over all coefficients again: a small file could keep a processor busy for hours."""
    assert NATIVE.row is not None
    assert NATIVE.row(of_scans(scans), (8, 8), (8, 8), (0, 0), (8, 8), 2, bytearray(192)) == is_made


@pytest.mark.parametrize(("width", "height", "kept_bytes"), [(20_000, 20_000, 0), (2000, 3000, 36_000_000)])
def test_libjpeg_asks_for_no_more_memory_than_one_image_may_take(
    width: int, height: int, kept_bytes: int, tmp_path: Path
) -> None:
    """The header of a progressive JPEG of 64 x 64 says another size."""
    data = bytearray(encoded(picture(64, 64), progressive=True, subsampling=0))
    struct.pack_into(">HH", data, data.index(b"\xff\xc2") + 5, height, width)
    (tmp_path / "large.jpg").write_bytes(data)
    program = (
        "import sys; from reader.native import functions; native = functions()\n"
        "status = lambda: next(line for line in open('/proc/self/status') if line.startswith('VmPeak'))\n"
        "peak = lambda: int(status().split()[1])\n"
        "data, before = open(sys.argv[1], 'rb').read(), peak()\n"
        f"assert not native.row(data, ({width // 8}, {height // 8}), (8, 8), (0, 0), (8, 8), 2, bytearray(192))\n"
        "print(peak() - before)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "large.jpg")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert abs((int(done.stdout) << 10) - kept_bytes) <= 1 << 20


def test_the_code_for_other_processors_makes_the_same_bytes(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = ROOT / "reader" / "native"
    include = sysconfig.get_paths()["include"]
    command = [
        compiler,
        "-O2",
        "-shared",
        "-fPIC",
        "-ffp-contract=off",
        "-DPIXPACK_PLAIN_C",
    ]
    command += [f"-I{include}", *map(str, sorted(folder.glob("*.c"))), "-ljpeg", "-lm"]
    subprocess.run([*command, "-o", str(tmp_path / "_native.so")], check=True)
    sources = [encoded(picture(*size, seed=3), subsampling=2) for size in SIZES]
    geometry = Geometry(96, 80, "squash", resample="lanczos")
    cases = [
        (data, (header.width, header.height), geometry.resized(header.width, header.height), (0, 0), (80, 96), 1)
        for data in sources
        if (header := jpeg.read_header(data))
    ]
    # resized and mirrored, and copied and mirrored
    table = (
        [0, 80, 96, 5, 6, 90, 77, 40, 12, 1, 2, 32, 11, 2, 9 * 31 * 3],
        [0, 80, 96, 7, 8, 38, 17, 31, 9, 0, 0, 31, 9, 2, 0],
    )
    crops = picture(96, 80, seed=5).tobytes(), np.array(table, np.int64).tobytes()
    program = "import sys, pickle; sys.path.insert(0, sys.argv[1]); import _native\n"
    program += "cases, crops = pickle.load(sys.stdin.buffer)\n"
    program += "made, rows = bytearray(2 * 9 * 31 * 3), [bytearray(80 * 96 * 3) for case in cases]\n"
    program += "_native.crops(*crops, made, 3, bytes(3), 2)\n"
    program += "assert all(_native.row(*case, row) for case, row in zip(cases, rows))\n"
    program += "sys.stdout.buffer.write(pickle.dumps((rows, made)))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        input=pickle.dumps((cases, crops)),
        capture_output=True,
        check=True,
    )
    assert NATIVE.row is not None
    rows, made = pickle.loads(done.stdout)
    expected_rows = [bytearray(len(row)) for row in rows]
    assert all(NATIVE.row(*case, row) for case, row in zip(cases, expected_rows, strict=True))
    assert rows == expected_rows
    expected = bytearray(len(made))
    reader.native.functions().crops(*crops, expected, 3, bytes(3), 2)
    assert made == expected
    assert len(cases) == len(SIZES)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "RGBX", "L", "CMYK"])
@pytest.mark.parametrize(
    "resample", [Image.Resampling.LANCZOS, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.BOX]
)
def test_plain_pillow_s_pictures_are_resized_as_pillow_simd_does(
    mode: str, resample: Image.Resampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(5)
    pairs = [
        ((300, 200), (224, 149)),
        ((31, 77), (224, 224)),
        ((1, 1), (5, 3)),
        ((640, 3), (64, 64)),
        ((99, 500), (99, 64)),
    ]
    bands = len(Image.new(mode, (1, 1)).getbands())
    pictures = [
        Image.frombytes(mode, size, generator.integers(0, 256, size[0] * size[1] * bands, dtype=np.uint8).tobytes())
        for size, _ in pairs
    ]
    by_simd = [picture.resize(size, resample) for picture, (_, size) in zip(pictures, pairs, strict=True)]
    resize_of = _without_simd(monkeypatch)
    for picture, (_, size), wanted in zip(pictures, pairs, by_simd, strict=True):
        with monkeypatch.context() as patch:
            if mode not in ("L", "RGBA"):  # which are brought to a mode that is
                patch.setattr(Image.Image, "resize", None)
            ours = resize_of(picture, size, resample)
        assert ours.mode == mode
        assert ours.tobytes() == wanted.tobytes()


def _without_simd(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the resizing of a machine with plain Pillow."""
    monkeypatch.setattr("packer.pixels.geometry.compiled_resize", lambda: NATIVE.resize)
    return resize


def test_a_pack_with_plain_pillow_names_the_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for n, mode in enumerate(("RGB", "RGBA", "L")):
        picture(200, 150, n).convert(mode).save(tmp_path / "in" / "a" / f"{n}.png")
    packer.pack(tmp_path / "in", tmp_path / "simd", size=64, workers=1)
    _without_simd(monkeypatch)
    packer.pack(tmp_path / "in", tmp_path / "plain", size=64, workers=1)
    stores = [read_manifest(tmp_path / name) for name in ("simd", "plain")]
    assert "resize" not in stores[0].decoders
    assert stores[1].decoders["resize"] == {"rule": "pillow-simd"}
    pixels = [(tmp_path / name / "_tensordict" / "pixels.memmap").read_bytes() for name in ("simd", "plain")]
    assert pixels[0] == pixels[1]


def test_pictures_of_another_size_than_stated_are_refused() -> None:
    assert NATIVE.resize is not None
    for pixels, source, size in (
        (b"", (1, 1), (1, 1)),
        (b"1234", (2, 1), (1, 1)),
        (b"1234", (1, 1), (0, 1)),
        (b"123", (1, 1), (1, 1)),
    ):
        with pytest.raises(ValueError, match="four bytes"):
            NATIVE.resize(pixels, source, size, 2)
    assert NATIVE.resize(b"1234", (1, 1), ((1 << 20) + 1, 1), 2) is None


def test_sums_of_incomplete_pixels_are_refused() -> None:
    assert NATIVE.sums is not None
    for size, channels in ((4, 3), (5, 5), (3, 0), (3, -1)):
        with pytest.raises(ValueError, match="complete pixels"):
            NATIVE.sums(np.zeros(size, np.uint8), channels)


def test_a_file_built_from_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader.native, "INTERFACE", reader.native.INTERFACE + 1)
    assert compiled.native.__wrapped__() == compiled.Native(
        reason="built from other sources than these: build it again", is_missing=True
    )


@pytest.mark.parametrize(
    ("library", "version", "stated"),
    [
        ("_native.so", "2.1.0", ""),
        ("_native.so", "3.2.1", ""),
        ("_native.so", "2.0.6", "2.0.6"),
        ("_native.so", "9", "9"),
        ("libjpeg.so", "2.1.2", ""),
        ("libjpeg.so", "3.3.0", "3.3.0"),
        ("gone.so", "2.1.2", "of unknown version"),
        (None, "2.1.2", "of unknown version"),
    ],
)
def test_it_decodes_with_the_versions_whose_pixels_are_known(
    library: str | None, version: str, stated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that is linked in has the version of its headers."""
    for name in ("_native.so", "libjpeg.so"):
        (tmp_path / name).write_bytes(f"libjpeg-turbo version {version} (build 1)".encode() * (name == "libjpeg.so"))
    values = {"__file__": str(tmp_path / "_native.so"), "library": lambda: library and str(tmp_path / library)}
    values["HEADERS"] = version if library == "_native.so" else "2.1.5"
    built = SimpleNamespace(**vars(reader.native.functions()) | values)
    monkeypatch.setattr(reader.native, "functions", lambda: built)
    found = compiled.native.__wrapped__()
    assert found.resize is not None
    if stated:
        assert (found.row, found.version) == (None, "")
        assert found.reason == f"not used to decode: it runs with libjpeg-turbo {stated}, expected 2.1 to 3.2"
    else:
        assert found.row is not None
        assert (found.version, found.reason) == (version, "")


@pytest.mark.skipif(sys.platform != "linux", reason="hides a library from the loader of Linux")
def test_it_decodes_where_libturbojpeg_is_missing(tmp_path: Path) -> None:
    """Its libjpeg-turbo is recorded; without it Pillow would decode at 1.45 times the CPU time."""
    (tmp_path / "in" / "a").mkdir(parents=True)
    picture(200, 150).save(tmp_path / "in" / "a" / "1.jpg", quality=90)
    packer.pack(tmp_path / "in", tmp_path / "with", size=32, workers=1)
    # the loader looks here first, and stops at what is no library
    (tmp_path / "libturbojpeg.so.0").write_text("no library")
    words = [sys.executable, "-m", "packer", "in", "without", "--size", "32", "--workers", "1", "--quiet"]
    env = environment(ROOT) | {"LD_LIBRARY_PATH": str(tmp_path)}
    subprocess.run(words, cwd=tmp_path, env=env, check=True, timeout=500)
    assert read_manifest(tmp_path / "without").decoders["libjpeg-turbo"] == {
        "jpeg4py": None,
        "turbojpeg": None,
        "compiled": NATIVE.version,
    }
    for name in (PIXELS, SAMPLES):
        assert (tmp_path / "without" / name).read_bytes() == (tmp_path / "with" / name).read_bytes()
    assert '"decoder":"libjpeg-turbo"' in (tmp_path / "without" / SAMPLES).read_text().replace(": ", ":")


def test_a_decoder_that_cannot_be_imported_stops_the_pack_and_costs_no_image(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for number in range(3):
        picture(64, 48).save(tmp_path / "in" / "a" / f"{number}.jpg", quality=90)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "jpeg4py.py").write_text("raise ImportError('no such symbol')")
    # rows of gray are not the compiled part's
    words = [sys.executable, "-m", "packer", "in", "out", "--size", "32", "--channels", "gray", "--max-rejects", "3"]
    env = environment(ROOT)
    broken = env | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "broken"), env.get("PYTHONPATH", "")])}
    done = subprocess.run([*words, "--quiet"], cwd=tmp_path, env=broken, capture_output=True, text=True, timeout=500)
    assert done.returncode == 1
    assert "could not be decoded, by an error of this machine (ImportError: no such symbol)." in done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()
    subprocess.run([*words, "--quiet"], cwd=tmp_path, env=env, check=True, timeout=500)
    assert read_manifest(tmp_path / "out").rows == 3


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, and print what they import")
@pytest.mark.parametrize(("suffix", "imported"), [("jpg", set()), ("png", {"numpy", "PIL.Image", "logging"})])
def test_photographs_need_neither_numpy_nor_pillow(suffix: str, imported: set[str], tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    picture(64, 48).save(tmp_path / "in" / "a" / f"1.{suffix}", quality=90)
    words = [sys.executable, "-X", "importtime", "-m", "packer", "in", "out", "--size", "32", "--workers", "1"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(ROOT), capture_output=True, text=True, check=True, timeout=500
    )
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "reader.native" in modules
    # importing jpeg4py takes each process 80 ms, most of it cffi's parser of C
    unneeded = {"numpy", "PIL.Image", "logging", "csv", "difflib", "jpeg4py", "cffi", "pycparser"}
    assert unneeded & modules == imported


@pytest.mark.skipif(sys.platform != "linux", reason="workers inherit the limit by fork")
def test_masks_of_any_size_are_read_where_no_other_image_needs_pillow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("in", "masks"):
        (tmp_path / folder / "a").mkdir(parents=True)
    picture(64, 48).save(tmp_path / "in" / "a" / "1.jpg", quality=90)
    Image.new("L", (64, 48), 7).save(tmp_path / "masks" / "a" / "1.png")
    # Pillow refuses twice as many pixels
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    report = packer.pack(tmp_path / "in", tmp_path / "out", size=32, masks=tmp_path / "masks", workers=1)
    assert (report.rows, report.rejected) == (1, 0)
