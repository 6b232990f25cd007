"""What `pack plan` says of a folder: boxes by torchvision's definition, shares that packing and cropping then bear out."""

from __future__ import annotations

import collections
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Feed, photo

from packer import OptionsError, PackError, pack
from packer.cli.app import run
from packer.operations.planning import read_rates
from packer.operations.planning.crop_boxes import boxes_in, drawn_boxes
from packer.operations.planning.plan import measured, plan, summary
from packer.operations.planning.read_rates import LossyRates, ReadRates
from packer.pixels.geometry import Geometry
from reader.format.manifest import PIXELS, read_manifest
from reader.system import MEMORY_FILE_SYSTEMS, file_system

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def test_a_fixed_crop_of_a_photograph_keeps_what_is_known_of_it() -> None:
    """Of torchvision's boxes in 500 x 375 a center crop keeps 37 % complete; at 256 x 256 82 % are upsampled for 34 %."""
    sources, boxes = drawn_boxes(collections.Counter({(375, 500): 1}), 20_000, SCALE, RATIO, seed=1)
    reachable, upsampled = measured(Geometry(256, 256), sources, boxes, 224)
    assert (reachable, upsampled) == pytest.approx((0.37, 0.82), abs=0.02)
    assert measured(Geometry(0, 0, "none"), sources, boxes, 224) == pytest.approx((1, 0.34), abs=0.02)
    assert measured(Geometry(512, 512, "inside"), sources, boxes, 224)[0] == 1


def test_boxes_are_in_their_images_with_the_areas_and_ratios_asked_for() -> None:
    sources = np.tile([[640.0, 480.0]], (5000, 1))
    x0, y0, width, height = boxes_in(sources, SCALE, RATIO, np.random.default_rng(0)).T
    assert min(x0.min(), y0.min()) >= 0
    assert (x0 + width).max() <= 640
    assert (y0 + height).max() <= 480
    area = width * height / (640 * 480)
    assert area.min() == pytest.approx(0.08, abs=0.005)
    assert ((width / height > 0.74) & (width / height < 1.35)).all()


@pytest.mark.parametrize(("size", "box"), [((1000, 10), [493, 0, 13, 10]), ((10, 1000), [0, 493, 10, 13])])
def test_an_image_too_long_for_any_box_gives_the_central_one(size: tuple[int, int], box: list[int]) -> None:
    drawn = boxes_in(np.array([size], dtype=float), (0.9, 1.0), RATIO, np.random.default_rng(0))
    assert drawn[0].tolist() == box


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """30 images, lying, standing and square, and one that is none."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    for n, size in enumerate([(100, 75), (75, 100), (60, 60)] * 10):
        photo(*size, n).save(folder / f"{n:02}.jpg")
    (folder / "broken.jpg").write_bytes(b"no image")
    return folder


def test_a_plan_reports_the_bytes_that_packing_takes(mixed: Path, tmp_path: Path) -> None:
    found = plan(mixed, crop=56, workers=1)
    assert (found.images, found.unreadable) == (30, 1)
    assert found.sizes == [(60, 60, 10), (75, 100, 10), (100, 75, 10)]
    choices = {choice.options: choice for choice in found.choices}
    pack(mixed, tmp_path / "out", fit="none", max_size=96, max_rejects=1)
    stored = read_manifest(tmp_path / "out").files[PIXELS].size_bytes
    assert 0 <= stored - choices["--fit none --max-size 96"].pixel_bytes < 4096
    assert choices["--size 64"].pixel_bytes == 30 * 64 * 64 * 3
    own = choices["--fit none"]
    assert (own.reachable, own.upsampled) == (1, found.source_upsampled)
    assert found.recommended.startswith("--fit none")


def test_a_plan_estimates_how_long_packing_takes(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.operations.planning.pack_time.time.process_time", itertools.count().__next__)
    found = plan(mixed, crop=56, workers=3).time
    # a second each, on three workers; of 31 inputs 30 were measured
    assert found is not None
    assert (found.sampled, found.workers, found.epochs) == (30, 3, 1)
    assert found.pack_seconds == pytest.approx(31 / 3)
    if found.rates is not None:
        # five copies a second
        assert (found.rates.raw, found.rates.compressed) == (150, 30)


RATES = ReadRates(
    # two cores of 200 rows a second, of 10 kB each
    raw=5000,
    compressed=200,
    share=0.6,
    row_bytes=10_000,
    cpus=2,
    jpeg=LossyRates("jpeg:95", 150, 0.2, 41.0),
)


@pytest.mark.parametrize(
    ("free", "disk", "message"),
    [
        (10_000, None, "raw, whose rows fit into memory (10.0 kB of memory are free)"),
        (
            9_999,
            None,
            "--compress, unless the disk or link gives more than 4.0 MB/s: compressed rows fit into memory, raw ones do not"
            " (10.0 kB of memory are free)",
        ),
        (
            5_999,
            None,
            "--compress, unless the disk or link gives more than 4.0 MB/s: neither fits into memory (6.0 kB of memory are free)",
        ),
        (
            5_999,
            1e6,
            "--compress: the disk of IMAGES gives 1.0 MB/s, less than the 4.0 MB/s that all CPUs unpack; neither fits into memory"
            " (6.0 kB of memory are free); images/s then: raw 100, --compress 167, jpeg:95 (with a loss) 300",
        ),
        (
            1_999,
            1e5,
            "--compress: the disk of IMAGES gives 100.0 kB/s, less than the 4.0 MB/s that all CPUs unpack; neither fits into"
            " memory (2.0 kB of memory are free); images/s then: raw 10, --compress 17, jpeg:95 (with a loss) 50",
        ),
        (
            9_999,
            5e6,
            "raw: the disk of IMAGES gives 5.0 MB/s, more than the 4.0 MB/s that all CPUs unpack; compressed rows fit into"
            " memory, raw ones do not (10.0 kB of memory are free); images/s then: raw 500, --compress 400, jpeg:95 (with a"
            " loss) 300",
        ),
    ],
)
def test_a_plan_names_the_better_form_by_memory_and_disk(
    free: int, disk: float | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_rates, "available_bytes", lambda: free)
    assert RATES.better(10_000, disk) == message


@pytest.mark.usefixtures("real_syncs")
def test_a_plan_measures_the_disk_where_raw_rows_do_not_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'pixpack[zstd]'")
    photo(400, 300, 0).save(tmp_path / "0.bmp")
    for n in range(1, 16):
        shutil.copyfile(tmp_path / "0.bmp", tmp_path / f"{n}.bmp")
    is_memory = file_system(tmp_path) in MEMORY_FILE_SYSTEMS
    found = plan(tmp_path, crop=56, workers=1).time
    assert found is not None
    assert found.disk_bytes_per_second is None
    for module in ("plan", "read_rates"):
        monkeypatch.setattr(f"packer.operations.planning.{module}.available_bytes", lambda: 1)
    found = plan(tmp_path, crop=56, workers=1)
    assert found.time is not None
    assert (found.time.disk_bytes_per_second is None) == is_memory
    assert ("the disk of IMAGES gives" in summary(found)) != is_memory
    # too little to time
    for n in range(1, 16):
        (tmp_path / f"{n}.bmp").unlink()
    one = plan(tmp_path, crop=56, workers=1).time
    assert one is not None
    assert one.disk_bytes_per_second is None


def test_a_plan_of_images_that_cannot_be_decoded_has_no_time(tmp_path: Path) -> None:
    photo(100, 75, 0).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:700])
    assert plan(tmp_path, crop=56, workers=1).time is None


def test_a_plan_has_the_bytes_of_compressed_rows(mixed: Path, tmp_path: Path) -> None:
    pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'pixpack[zstd]'")
    found = plan(mixed, crop=56, workers=1)
    words = shlex.split(found.recommended)
    assert run(["build", str(mixed), str(tmp_path / "out"), *words, "--compress", "--max-rejects", "1"]) == 0
    manifest = read_manifest(tmp_path / "out")
    ends = np.fromfile(tmp_path / "out/_tensordict/frames.memmap", "<i8")
    assert found.time is not None
    assert found.time.compressed_share == pytest.approx(int(ends.max()) / manifest.pixel_bytes)
    assert f"{found.recommended} --compress takes " in summary(found)
    assert "better here: raw, whose rows fit into memory" in summary(found)


def test_a_plan_has_the_bytes_and_the_loss_of_jpeg_rows(mixed: Path, tmp_path: Path) -> None:
    pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'pixpack[zstd]'")
    found = plan(mixed, crop=56, workers=1)
    words = [*shlex.split(found.recommended), "--compress", "jpeg:95", "--max-rejects", "1"]
    assert run(["build", str(mixed), str(tmp_path / "out"), *words]) == 0
    compression = read_manifest(tmp_path / "out").compression
    stored = np.fromfile(tmp_path / "out/_tensordict/frames.memmap", "<i8").max()
    assert found.time is not None
    assert found.time.rates is not None
    assert found.time.rates.jpeg is not None
    assert compression is not None
    assert found.time.rates.jpeg.share == pytest.approx(stored / compression.pixel_bytes)
    assert found.time.rates.jpeg.psnr == pytest.approx(compression.psnr)
    assert f"of raw, with a loss, PSNR {compression.psnr:.1f} dB: a core reads" in summary(found)
    alpha = plan(mixed, crop=56, workers=1, channels="rgba").time
    assert alpha is not None
    assert alpha.rates is not None
    assert alpha.rates.jpeg is None


def test_a_plan_without_the_library_names_no_compressed_rows(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    found = plan(mixed, crop=56, workers=1)
    assert found.time is not None
    assert found.time.compressed_share is None
    assert "--compress" not in summary(found)
    assert "pip install 'pixpack[zstd]'" in summary(found)


def test_the_command_prints_a_plan(mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(mixed), "--crop", "56"]) == 0
    out = capsys.readouterr().out
    assert "30 images; 1 without a readable header: 60 x 60 (10)" in out
    assert out.count("recommended") == 1
    line = out.splitlines()[-1]
    assert line.startswith(f"to pack this way: pack {mixed} OUT --fit none")
    words = shlex.split(line.partition(": pack ")[2].replace("OUT", str(tmp_path / "out")))
    assert run([*words, "--max-rejects", "1", "--channels", "gray"]) == 0
    capsys.readouterr()
    assert run(["plan", str(mixed), "--crop", "56", "--channels", "gray"]) == 0
    assert capsys.readouterr().out.endswith(" --channels gray --resume\n")
    assert run(["plan", str(mixed), "--crop", "56", "--scale", "0.5,1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scale"] == [0.5, 1]


@pytest.mark.parametrize(
    "options", ["--size 60", "--size 48x60 --fit pad", "--fit none --max-size short:60", "--fit none"]
)
def test_a_plan_is_of_the_size_that_is_asked_for(
    mixed: Path, options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(mixed), "--crop", "100", *options.split()]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(rf"(?m)^{re.escape(options)}  .*asked for$", out)) == out.count("asked for") == 1
    assert out.splitlines()[-1] == f"to pack this way: pack {mixed} OUT {options} --resume"
    assert run(["plan", str(mixed), *options.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert run(["build", str(mixed), str(tmp_path / "out"), *options.split(), "--max-rejects", "1"]) == 0
    stored = read_manifest(tmp_path / "out").files[PIXELS].size_bytes
    planned = {choice["options"]: choice["pixel_bytes"] for choice in found["choices"]}[found["asked"]]
    assert 0 <= stored - planned < 4096


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--fit", "pad"], "--fit pad needs --size: the side of a row in pixels"),
        (
            ["--max-size", "300"],
            "--max-size belongs to --fit none, not to --fit crop: add --fit none, or give --size instead",
        ),
        (["--scale", "1"], "--scale is '1', expected two numbers such as 0.08,1"),
        *(
            ([option, limits], f"{option} is {limits}, expected two numbers above 0, the smaller one first")
            for option in ("--scale", "--ratio")
            for limits in ("2,1", "inf,inf", "0.08,inf", "nan,1", "0.5,nan", "-1,1", "0,1")
        ),
    ],
)
def test_wrong_options_of_a_plan_are_one_sentence(
    mixed: Path, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(mixed), *options]) == 2
    assert text in capsys.readouterr().err


def test_a_box_too_large_for_a_number_does_not_fit(mixed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(mixed), "--scale", "1,1e308", "--ratio", "1e307,1e308"]) == 0
    assert capfd.readouterr().err == ""


def test_nothing_to_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"")
    with pytest.raises(PackError, match="nothing can be planned: no header of 1 input could be read"):
        plan(tmp_path, workers=1)
    arguments: Any = {"crop": 0}
    with pytest.raises(OptionsError, match="size is 0"):
        plan(tmp_path, **arguments)


def test_a_list_of_which_no_file_is_there_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feed: Feed, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    feed(b"".join(b"photos/%04d.jpg\n" % number for number in range(3000)))
    (tmp_path / "photos").mkdir()
    assert run(["plan", "-"]) == 2
    first = tmp_path / "photos/0000.jpg"
    assert capfd.readouterr().err == (
        f"pack: standard input names 3000 files, and none of 300, evenly spread, is there, such as {first}. Expected paths that"
        f" start from {tmp_path}, or absolute ones. Write them so, or run pack plan where they start from.\n"
    )


def test_a_list_whose_first_files_are_missing_is_planned(mixed: Path, feed: Feed) -> None:
    there = sorted(mixed.rglob("*.*"))
    gone = [mixed / f"gone{number}.jpg" for number in range(350)]
    feed("\n".join(map(str, [*gone, *there])).encode())
    found = plan("-", workers=1)
    assert found.images > 1
    assert found.images + found.unreadable == len(there) + 350


def test_workers_that_read_headers_end_with_a_process_that_was_killed(mixed: Path) -> None:
    code = "import os, sys, packer; packer.plan(sys.argv[1], progress=lambda now: now.stage == 'sizes' and os._exit(7))"
    # returns when nobody has the pipe open, so no worker either
    ended = subprocess.run([sys.executable, "-c", code, str(mixed)], capture_output=True, timeout=60, check=False)
    assert ended.returncode == 7
