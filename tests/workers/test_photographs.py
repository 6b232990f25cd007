"""Rows that the compiled part makes of files in one call are those that are made one by one, and so is all that is recorded."""

from __future__ import annotations

import ctypes
import hashlib
import io
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tune, photo
from PIL import Image, ImageCms

from packer import pack
from packer.errors import SourceChangedError
from packer.inputs.scan import scan
from packer.options import RowOptions
from packer.pixels import compiled
from packer.pixels.decode import Decoder
from packer.pixels.formats import jpeg, png
from packer.pixels.geometry import Geometry
from packer.store.blocks import Result, Task
from packer.workers import photographs
from packer.workers.block_worker import BlockWorker, PackJob
from reader.format.samples import read_rejects
from scripts import environment

ROOT = Path(__file__).resolve().parents[2]
NATIVE = compiled.native()
pytestmark = pytest.mark.skipif(NATIVE.photographs is None, reason="the compiled part is not used here")
# the time of a file that has long been there, which no test has
LONG_AGO = -(10**18)
DAMAGED = (
    "cut.jpg",
    "zeros.jpg",
    "empty.jpg",
    "text.jpg",
    "folder.jpg",
    "gone.jpg",
    "link.jpg",
    "fifo.jpg",
    "12bit.jpg",
)


def encoded(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **{"quality": 90} | options)
    return file.getvalue()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what is a plain photograph, what is another image, and what is not an image."""
    folder = tmp_path_factory.mktemp("mixed")
    exif = Image.Exif()
    exif[0x0112] = 6
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    files = {f"{n:02}.jpg": encoded(photo(90 + 7 * n, 70 + 3 * n, n)) for n in range(12)}
    files |= {
        "03-gray.jpg": encoded(photo(80, 60, 1).convert("L")),
        "03-progressive.JPEG": encoded(photo(80, 60, 2), progressive=True),
        "04-turned.jpg": encoded(photo(80, 60, 3), exif=exif),
        "04-inks.jpg": encoded(photo(80, 60, 4).convert("CMYK")),
        "05-srgb.jpg": encoded(photo(80, 60, 5), icc_profile=srgb),
        "05-lab.jpg": encoded(photo(80, 60, 6), icc_profile=lab),
        "05-large.jpg": encoded(photo(700, 500, 6)),
        "06-same.jpg": encoded(photo(32, 32, 7)),
        "06-filled.jpg": encoded(photo(80, 60, 7)).replace(b"\xff\xdb", b"\xff\xff\xff\xdb", 1),
        "07-junk.jpg": encoded(photo(80, 60, 7)).replace(b"\xff\xdb", b"junk\xff\xdb", 1),
        "07-tail.jpg": encoded(photo(80, 60, 8)) + b"tail",
        "07-strip.jpg": encoded(photo(1200, 4, 8)),
        "cut.jpg": encoded(photo(80, 60, 9))[:-300],
        "zeros.jpg": bytes(999),
        "empty.jpg": b"",
        "text.jpg": b"no image",
        "12bit.jpg": encoded(photo(80, 60, 9)).replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
    }
    png = io.BytesIO()
    photo(50, 40, 1).save(png, "PNG")
    files |= {"08.png": png.getvalue(), "09-png.jpg": png.getvalue()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "folder.jpg").mkdir()
    (folder / "link.jpg").symlink_to("nowhere")
    os.mkfifo(folder / "fifo.jpg")
    return folder


def names_of(folder: Path) -> list[str]:
    return sorted([*os.listdir(folder), "gone.jpg", "nul\0.jpg"])


def decoded(job: PackJob, task: Task, *, at_once: int, **options: Any) -> tuple[Result, bytes, int]:
    """Return what becomes of a task, its rows, and how many of them were made several a call; at_once 0: none."""
    worker = BlockWorker(job, **options)
    maker = worker._photographs
    assert maker is not None
    served = 0
    if not at_once:
        worker._photographs = None
    else:
        make = maker.make
        maker._at_once = at_once

        def counting(*arguments: Any) -> int:
            nonlocal served
            made = make(*arguments)
            maker._at_once = at_once
            served += made
            return made

        maker.make = counting  # type: ignore[method-assign]
    result = worker.decode(task)
    return result, b"".join(worker._held[task.start].chunks), served


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(32, 32),
        Geometry(40, 24, "crop", 0.875, "lanczos"),
        Geometry(32, 48, "pad", resample="bicubic"),
        Geometry(48, 32, "inside", resample="box"),
        Geometry(30, 30, "squash"),
    ],
    ids=str,
)
@pytest.mark.parametrize("compress", [False, True], ids=["raw", "zstd"])
def test_what_is_known_of_a_block_is_the_same(mixed: Path, geometry: Geometry, compress: bool, tune: Tune) -> None:
    if compress:
        pytest.importorskip("zstandard")
    tune(file_clock_ns=LONG_AGO)
    names = names_of(mixed)
    task = Task(3, 20, names, [*range(len(names))], refused={22: "why"})
    job = PackJob(str(mixed), "", geometry, RowOptions(max_pixels=300_000, compress=compress))
    singly, rows, _ = decoded(job, task, at_once=0)
    assert len(singly.frames) == (singly.rows if compress else 0)
    for at_once in (1, 3, 8):
        assert decoded(job, task, at_once=at_once)[:2] == (singly, rows)
    served = decoded(job, task, at_once=8)[2]
    # all but what is turned, of inks, too large, refused, or has something between its segments, and what is no JPEG
    plain = [name for name in names if name not in DAMAGED and (name[2] == "." or name[3:6] in PLAIN)]
    assert served == len([name for name in plain if name.endswith(("jpg", "JPEG")) and names.index(name) != 2])
    assert {reject.path for reject in singly.rejects} >= {*DAMAGED, "nul\0.jpg", "05-large.jpg"}
    assert singly.rows > served > 12


PLAIN = ("gra", "pro", "srg", "lab", "sam", "tai", "str")


def as_png(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def with_chunk(data: bytes, kind: bytes, content: bytes, at: int = 33) -> bytes:
    """Put a chunk into a PNG, behind its header or elsewhere."""
    checksum = zlib.crc32(kind + content).to_bytes(4, "big")
    return data[:at] + len(content).to_bytes(4, "big") + kind + content + checksum + data[at:]


def pngs() -> tuple[dict[str, bytes], dict[str, bytes]]:
    """PNGs of 32 x 32 that are plain, and others."""
    plain = as_png(photo(32, 32, 1))
    start, stop = plain.index(b"IDAT") - 4, plain.index(b"IEND") - 4
    pixels = plain[start + 8 : stop - 4]
    wrong = zlib.compress(bytes([9]) + bytes(32 * 97 - 1))
    served = {
        "rgb": plain,
        "gray": as_png(photo(32, 32, 2).convert("L")),
        "noise": as_png(Image.frombytes("RGB", (32, 32), random.Random(1).randbytes(3072))),
        "flat": as_png(Image.new("RGB", (32, 32), "teal"), compress_level=9),
        "dpi": as_png(photo(32, 32, 3), dpi=(72, 72)),
        "time": with_chunk(plain, b"tIME", bytes(7), stop),
    }
    left = {
        "parts": with_chunk(
            with_chunk(plain[:start] + plain[stop:], b"IDAT", pixels[:9], start), b"IDAT", pixels[9:], start + 21
        ),
        "alpha": as_png(photo(32, 32, 4).convert("RGBA")),
        "palette": as_png(photo(32, 32, 5).convert("P")),
        "bits": as_png(photo(32, 32, 6).convert("1")),
        "deep": as_png(photo(32, 32, 6).convert("L").convert("I;16")),
        "text": with_chunk(plain, b"tEXt", b"Comment\0hello"),
        "short": with_chunk(plain, b"pHYs", bytes(8)),
        "other": as_png(photo(40, 32, 7)),
        "sum": plain[:40] + bytes([plain[40] ^ 1]) + plain[41:],
        "cut": plain[:-20],
        "tail": plain + b"tail",
        "none": plain[:start] + plain[stop:],
        "filter": with_chunk(plain[:start] + plain[stop:], b"IDAT", wrong, start),
        "little": with_chunk(plain[:start] + plain[stop:], b"IDAT", zlib.compress(bytes(97 * 31)), start),
        "much": with_chunk(plain[:start] + plain[stop:], b"IDAT", zlib.compress(bytes(97 * 33)), start),
        "behind": with_chunk(plain[:start] + plain[stop:], b"IDAT", zlib.compress(bytes(97 * 32)) + b"x", start),
        "empty": plain[:8],
        "long": plain[:33] + b"\xff\xff\xff\xf0IDAT" + plain[41:],
    }
    return served, left


def test_plain_pngs_of_the_row_s_size_are_served(tmp_path: Path, tune: Tune) -> None:
    tune(file_clock_ns=LONG_AGO, unmade_pngs=99)
    served, left = pngs()
    for name, content in (served | left).items():
        (tmp_path / f"{name}.png").write_bytes(content)
    names = sorted(os.listdir(tmp_path))
    task = Task(0, 0, names, [*range(len(names))])
    job = PackJob(str(tmp_path), "", Geometry(32, 32), RowOptions())
    singly, rows, _ = decoded(job, task, at_once=0)
    assert decoded(job, task, at_once=8) == (singly, rows, len(served))
    assert decoded(job, task, at_once=1) == (singly, rows, len(served))
    assert singly.rows > len(served) + 5
    assert len(singly.rejects) > 3
    # one at a time, so that none hides behind another
    assert NATIVE.photographs is not None
    for name in served | left:
        made = call(
            [str(tmp_path / f"{name}.png")],
            bytearray(3072),
            plan=lambda width, height: ((32, 32), (32, 32), (0, 0), (32, 32), 2),
            inflate=png.inflated,
            row_bytes=3072,
        )[0]
        assert len(made) == (name in served), name


def test_pngs_of_another_size_are_soon_no_longer_tried(tmp_path: Path, tune: Tune) -> None:
    tune(file_clock_ns=LONG_AGO)
    for n in range(30):
        (tmp_path / f"{n:02}.png").write_bytes(as_png(photo(40 if n < 9 else 32, 32, n)))
    job, names = PackJob(str(tmp_path), "", Geometry(32, 32), RowOptions()), sorted(os.listdir(tmp_path))
    for first, count in ((1, 0), (2, 21)):
        assert decoded(job, Task(0, 0, names[first:], [0] * (30 - first)), at_once=1)[2] == count


def test_rows_of_another_bit_depth_take_no_png(tmp_path: Path, tune: Tune) -> None:
    tune(file_clock_ns=LONG_AGO)
    (tmp_path / "0.png").write_bytes(as_png(photo(32, 32, 1)))
    job = PackJob(str(tmp_path), "", Geometry(32, 32), RowOptions(bit_depth=16))
    assert Decoder(Geometry(32, 32), bit_depth=16).inflate is None
    maker = BlockWorker(job)._photographs
    assert maker is None or maker._decoder.inflate is None


def test_a_file_changed_lately_is_left_to_where_it_is_read_twice(mixed: Path, tune: Tune) -> None:
    task = Task(0, 0, ["00.jpg", "01.jpg"], [0, 1])
    job = PackJob(str(mixed), "", Geometry(32, 32), RowOptions())
    for clock_ns, count in ((LONG_AGO, 2), (10**18, 0)):
        tune(file_clock_ns=clock_ns)
        result, _, served = decoded(job, task, at_once=8)
        assert (result.rows, served) == (2, count)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_members_of_a_tar_are_made_as_one_by_one(mixed: Path, tmp_path: Path, form: int, tune: Tune) -> None:
    tune(file_clock_ns=LONG_AGO)
    with tarfile.open(tmp_path / "all.tar", "w", format=form) as tar:
        tar.add(mixed, arcname="images")
        tar.addfile(tarfile.TarInfo("images/nothing.jpg"))
    inputs = scan(tmp_path / "all.tar")[""]
    task = Task(0, 0, inputs.paths, [*range(len(inputs))], inputs.members.tolist(), inputs.refused)
    job = PackJob(str(inputs.root), "", Geometry(32, 32), RowOptions(max_pixels=300_000), archives=inputs.archives)
    singly, rows, _ = decoded(job, task, at_once=0)
    for at_once in (1, 8):
        found, pixels, served = decoded(job, task, at_once=at_once)
        assert (found, pixels) == (singly, rows)
        assert served > 12
    assert {os.path.basename(reject.path) for reject in singly.rejects} >= {"cut.jpg", "fifo.jpg", "nothing.jpg"}
    # one that is not the listed one is left, and refused where it is read
    with open(tmp_path / "all.tar", "ab") as file:
        file.write(bytes(512))
    with pytest.raises(SourceChangedError, match="was changed since it was listed"):
        decoded(job, task, at_once=8)


def test_a_part_of_a_file_that_is_not_there_is_left(mixed: Path, tmp_path: Path) -> None:
    data = (mixed / "00.jpg").read_bytes()
    path = tmp_path / "parts"
    path.write_bytes(b"before" + data + b"behind")
    size_bytes, mtime_ns = len(data) + 12, path.stat().st_mtime_ns
    right = (str(path), 6, len(data), size_bytes, mtime_ns)
    made = call([right], bytearray(576))[0]
    assert made[0][:3] == (len(data), mtime_ns, hashlib.sha256(data).hexdigest())
    largest = (1 << 63) - 1
    for n, values in enumerate(
        ((-1, 13, largest, -largest), (0, -1, len(data) + 7, largest), (0, size_bytes + 1), (0, 1))
    ):
        for value in values:
            wrong = (*right[: n + 1], value, *right[n + 2 :])
            assert call([wrong], bytearray(576))[0] == []
    for odd in ((str(path), 6), (str(path), 6, len(data), "long", 0)):
        with pytest.raises(TypeError):
            call([odd], bytearray(576))


def test_inputs_that_are_asked_back_are_not_started(mixed: Path, tune: Tune) -> None:
    tune(file_clock_ns=LONG_AGO)
    worker = BlockWorker(PackJob(str(mixed), "", Geometry(32, 32), RowOptions()))
    assert worker._photographs is not None
    worker._photographs._at_once = 8
    asked: list[int] = []

    def may_begin(index: int) -> bool:
        asked.append(index)
        return index < 5

    result = worker.decode(Task(0, 0, [f"{n:02}.jpg" for n in range(12)], [0] * 12), may_begin)
    assert (result.inputs, result.rows) == (5, 5)
    # the first has begun with the task
    assert asked == [1, 2, 3, 4, 5, 5]


def test_slow_inputs_are_started_one_by_one(mixed: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(file_clock_ns=LONG_AGO)
    for seconds, count in ((1.0, 1), (1e-9, 8)):
        worker = BlockWorker(PackJob(str(mixed), "", Geometry(32, 32), RowOptions()))
        assert worker._photographs is not None
        passed = iter(range(1000))
        monkeypatch.setattr(photographs.time, "perf_counter", lambda passed=passed, s=seconds: next(passed) * s)
        worker._photographs.make(Task(0, 0, ["00.jpg"], [0]), 0, 1, _started(worker))
        assert worker._photographs._at_once == count


def _started(worker: BlockWorker) -> Result:
    worker._rows.begin(1)
    return Result(0, 0)


def test_the_image_in_flight_is_marked_as_for_one_by_one(mixed: Path, tune: Tune) -> None:
    tune(file_clock_ns=LONG_AGO)
    marks = (ctypes.c_int64 * 4)(-1, 0, 0, 7)
    seen: list[tuple[int, ...]] = []
    job = PackJob(str(mixed), "", Geometry(32, 32), RowOptions())
    worker = BlockWorker(job, marks)
    assert worker._photographs is not None
    plan, worker._photographs._at_once = worker._photographs._plan, 8

    def planned(width: int, height: int) -> Any:
        seen.append(tuple(marks))
        return plan(width, height)

    worker._photographs._plan = planned  # type: ignore[assignment]
    worker.decode(Task(0, 40, ["00.jpg", "01.jpg"], [0, 0]))
    # twice an image: while it is read, and then
    assert seen == [(40, 2, 0, 0), (41, 4, 0, 0)]
    assert tuple(marks) == (-1, 5, 0, 0)


def test_a_pack_is_the_same_to_the_byte(
    mixed: Path, tmp_path: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIXPACK_START_METHOD", "fork")
    for name, clock_ns in (("calls", LONG_AGO), ("singly", 10**18)):
        tune(file_clock_ns=clock_ns)
        pack(mixed, tmp_path / name, size=32, workers=2, max_rejects="100%")
    for name in ("manifest.json", "samples.jsonl", "rejected.jsonl", "_tensordict/pixels.memmap"):
        assert (tmp_path / "calls" / name).read_bytes() == (tmp_path / "singly" / name).read_bytes()


@pytest.mark.parametrize(
    "options",
    [{"channels": "gray"}, {"compress": "jpeg:95"}, {"requantize": 3}],
    ids=str,
)
def test_other_rows_are_made_one_by_one(mixed: Path, options: dict[str, Any]) -> None:
    pytest.importorskip({"requantize": "av"}.get(next(iter(options)), "PIL"))
    assert BlockWorker(PackJob(str(mixed), "", Geometry(32, 32), RowOptions(**options)))._photographs is None


@pytest.mark.parametrize("compress", [False, True])
def test_rows_as_large_as_their_images_are_made_one_by_one(mixed: Path, compress: bool) -> None:
    if compress:
        pytest.importorskip("zstandard")
    job = PackJob(str(mixed), "", Geometry(0, 0, "none"), RowOptions(compress=compress))
    assert BlockWorker(job)._photographs is None


# -- orientations


def exif_of(order: str, *entries: tuple[int, int, int, int], count: int | None = None) -> bytes:
    """EXIF whose first directory has entries: tag, type, count, value."""
    packed = b"".join(struct.pack(f"{order}HHIHxx", *entry) for entry in entries)
    head = b"Exif\0\0" + (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    return head + struct.pack(f"{order}H", len(entries) if count is None else count) + packed + bytes(4)


MAKE, UPRIGHT, TURNED = (0x010F, 3, 1, 7), (0x0112, 3, 1, 1), (0x0112, 3, 1, 6)
XMP = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="%d"/>'


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("segments", "is_served"),
    [
        (lambda o: [exif_of(o, MAKE)], True),
        (lambda o: [exif_of(o, MAKE, UPRIGHT)], True),
        (lambda o: [exif_of(o, MAKE, TURNED)], False),
        (lambda o: [exif_of(o, UPRIGHT, UPRIGHT)], False),
        (lambda o: [exif_of(o, UPRIGHT, TURNED)], False),
        (lambda o: [exif_of(o, (0x0112, 4, 1, 1))], False),
        (lambda o: [exif_of(o, (0x0112, 3, 2, 1))], False),
        (lambda o: [exif_of(o, UPRIGHT, count=2)], False),
        (lambda o: [exif_of(o, UPRIGHT)[:-9]], False),
        (lambda o: [exif_of(o, UPRIGHT) + b"\x01\x12\0\x12\x01"], True),
        # a value that is not all there ends what Pillow reads
        (lambda o: [exif_of(o, (0x010F, 2, 50, 200), UPRIGHT), XMP % 6], False),
        (lambda o: [exif_of(o, (0x010F, 2, 4, 200), UPRIGHT), XMP % 6], True),
        (lambda o: [XMP % 1], False),
        (lambda o: [XMP % 6], False),
        (lambda o: [XMP % 6, exif_of(o, UPRIGHT)], True),
        (lambda o: [exif_of(o, UPRIGHT), XMP % 6], True),
        (lambda o: [exif_of(o, MAKE), XMP % 6], False),
        (lambda o: [exif_of(o, MAKE), exif_of(o, UPRIGHT), XMP % 6], False),
        (lambda o: [exif_of(o, UPRIGHT), exif_of(o, TURNED)], False),
        (lambda o: [b"Exif\0\0II*\0", b"Exif\0\0", b"rientation"], False),
        (lambda o: [b"Exif\0\0" + exif_of(o, UPRIGHT)], False),
    ],
)
def test_what_is_surely_upright_is_served(segments: Any, is_served: bool, order: str, tmp_path: Path) -> None:
    parts = [b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment for segment in segments(order)]
    plain = encoded(photo(90, 70, 1))
    data = plain[:2] + b"".join(parts) + plain[2:]
    (tmp_path / "a.jpg").write_bytes(data)
    header = jpeg.read_header(data)
    assert header is not None
    assert header.may_be_rotated != is_served
    assert len(call([str(tmp_path / "a.jpg")], bytearray(576))[0]) == is_served
    with Image.open(tmp_path / "a.jpg") as image:
        assert not is_served or image.getexif().get(0x0112, 1) == 1


# -- the call


def call(paths: list[Any], rows: Any, **changed: Any) -> Any:
    arguments = {
        "first": 0,
        "plan": lambda width, height: ((width, height), (16, 12), (0, 0), (16, 12), 2),
        "sha256": hashlib.sha256,
        "inflate": None,
        "rows": rows,
        "row_bytes": 16 * 12 * 3,
        "marks": bytearray(),
        "crc32": 0,
        "settled_ns": LONG_AGO,
    }
    assert NATIVE.photographs is not None
    return NATIVE.photographs(paths, *(arguments | changed).values())


def test_a_call_returns_what_is_known_of_each_file(mixed: Path) -> None:
    rows = bytearray(3 * 576)
    paths = [str(mixed / name) for name in ("00.jpg", "05-lab.jpg", "04-inks.jpg")]
    made, crc32, sums, seconds = call(paths, rows, crc32=zlib.crc32(b"before"))
    assert len(made) == 2
    for path, known in zip(paths, made, strict=False):
        data, status = Path(path).read_bytes(), os.stat(path)
        header = jpeg.read_header(data)
        assert header is not None
        assert known[:3] == (status.st_size, status.st_mtime_ns, hashlib.sha256(data).hexdigest())
        assert known[3:5] == (header.width, header.height)
    pixels = rows[: 2 * 576]
    assert crc32 == zlib.crc32(b"before" + pixels)
    values = np.frombuffer(pixels, np.uint8).reshape(-1, 3).astype(np.int64)
    assert list(sums) == [*values.sum(axis=0), *(values * values).sum(axis=0)]
    assert len(seconds) == 3


def test_a_plan_that_does_not_fit_leaves_the_file(mixed: Path) -> None:
    paths, rows = [str(mixed / "00.jpg")], bytearray(576)
    for plan in (None, ((90, 70), (16, 12), (0, 0), (16, 13), 2), ((91, 70), (16, 12), (0, 0), (16, 12), 2)):
        assert call(paths, rows, plan=lambda *_, plan=plan: plan)[0] == []


def test_errors_of_what_is_called_are_raised(mixed: Path) -> None:
    paths, rows = [str(mixed / "00.jpg")], bytearray(576)
    for name, wrong in (("plan", lambda *_: 1 / 0), ("sha256", lambda *_: 1 / 0)):
        with pytest.raises(ZeroDivisionError):
            call(paths, rows, **{name: wrong})
    for changed in ({"rows": bytearray(575)}, {"row_bytes": 0}, {"row_bytes": 575}, {"marks": bytearray(31)}):
        with pytest.raises(ValueError, match="room for a row"):
            call(paths, **{"rows": rows} | changed)
    assert len(call(paths, rows)[0]) == 1


def test_a_list_that_is_changed_meanwhile_stays_what_it_was(mixed: Path) -> None:
    paths = [str(mixed / f"{n:02}.jpg") for n in range(2)]
    around = bytearray(b"x") * (8 * 576)

    def plan(width: int, height: int) -> Any:
        """Change the list between two files, which has no room for more rows."""
        paths[:] = [paths[0]] * 8
        return (width, height), (16, 12), (0, 0), (16, 12), 2

    made = call(paths, memoryview(around)[: 2 * 576], plan=plan)[0]
    assert [known[3] for known in made] == [90, 97]
    assert around[2 * 576 :] == b"x" * (6 * 576)


def test_no_marks_may_be_anywhere(mixed: Path) -> None:
    for at in range(9):
        assert len(call([str(mixed / "00.jpg")], bytearray(576), marks=memoryview(bytearray(9))[at:at])[0]) == 1


def test_what_ends_a_worker_within_a_call_costs_that_image_alone(
    tmp_path: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images").mkdir()
    for n in range(24):
        (tmp_path / f"images/{n:02}.jpg").write_bytes(encoded(photo(60 + n, 50, n)))
    parent, plan = os.getpid(), Decoder.plan

    def deadly(self: Decoder, width: int, height: int) -> Any:
        if width == 73 and os.getpid() != parent:
            with open(tmp_path / "deaths", "a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return plan(self, width, height)

    tune(file_clock_ns=LONG_AGO)
    monkeypatch.setattr(Decoder, "plan", deadly)
    tune(photographs_call_seconds=1000)
    monkeypatch.setenv("PIXPACK_START_METHOD", "fork")
    pack(tmp_path / "images", tmp_path / "out", size=32, workers=1, max_rejects="100%")
    rejects = [reject.path for reject in read_rejects(tmp_path / "out")]
    # tried once more, alone; no other was taken for it before
    assert (rejects, (tmp_path / "deaths").read_text()) == (["13.jpg"], "xx")


# LD_PRELOAD: a file named victim.jpg grows right behind its first read
_SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>
ssize_t read(int descriptor, void *into, size_t size) {
    ssize_t (*original)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");
    ssize_t count = original(descriptor, into, size);
    char link[64], path[4096] = {0};
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/victim.jpg")) {
        int other = open(path, O_WRONLY | O_APPEND);
        if (write(other, "x", 1) != 1) _exit(9);
        close(other);
    }
    return count;
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_a_file_that_changes_while_it_is_read_is_left(mixed: Path, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "shim.c").write_text(_SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "shim.c", "-o", "shim.so", "-ldl"], cwd=tmp_path, check=True)
    for name in ("calm.jpg", "victim.jpg"):
        shutil.copy(mixed / "00.jpg", tmp_path / name)
    program = (
        "import hashlib, sys; from packer.pixels.compiled import native;"
        "plan = lambda *size: (size, (16, 12), (0, 0), (16, 12), 2);"
        "print(*(len(native().photographs([name], 0, plan, hashlib.sha256, None, bytearray(576), 576, bytearray(), 0, -10**18)"
        "[0]) for name in sys.argv[1:]))"
    )
    words = [sys.executable, "-c", program, "calm.jpg", "victim.jpg"]
    found = environment(ROOT) | {"LD_PRELOAD": str(tmp_path / "shim.so")}
    done = subprocess.run(words, cwd=tmp_path, env=found, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("1 0\n", "")
