"""Both benchmarks on a handful of images: the JSON line is there, and a wrong store or result stops them."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from children import program
from conftest import make_tree, torchvision_or_skip

from scripts.benchmarks.storage import _disk_curve

ROOT = Path(__file__).resolve().parents[2]
PIXELS = "_tensordict/pixels.memmap"

# They fork, and read /proc.
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks are for Linux")


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program of scripts/; an interpreter of its own where it forks often, which takes longer with torch imported."""
    forking = "benchmarks.packing.bench_pack", "benchmarks.reading.bench_read"
    if script not in forking:
        return program(f"scripts.{script}", *arguments)
    words = [sys.executable, "-m", f"scripts.{script}", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT)


def last_line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Parse the JSON object that must stand last."""
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def load(name: str) -> ModuleType:
    """Import a script as the module that it is."""
    return importlib.import_module(f"scripts.{name}")


def main(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run a script's main in this process, for what ends before anything is timed."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    code: int = load(name).main()
    return code


def prepared(bench: ModuleType, images: Path, work: Path, workers: int = 1) -> Any:
    """Copy 12 images into work, which it makes, for packing at 32 x 32."""
    work.mkdir()
    return bench.prepare(argparse.Namespace(images=images, count=12, size=32, workers=workers), work)


def flip_a_bit(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


@pytest.fixture(scope="module")
def wide_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 rows of 256 x 256: batches of 8 are above 1 MB, below which bench_read does not go."""
    from packer import pack

    root = tmp_path_factory.mktemp("wide")
    make_tree(root / "images", classes=2, each=32)
    pack(root / "images", root / "out", size=256, workers=2)
    return root / "out"


# -- what they share


def test_each_round_of_turns_begins_with_the_next_way_and_untimed_rounds_do_not_count() -> None:
    timing, taken = load("common.timing"), list[str]()
    ways = {name: lambda name=name: taken.append(name) or len(taken) for name in "abc"}
    assert timing.in_turns(ways, 2, untimed=1) == {"a": [6, 8], "b": [4, 9], "c": [5, 7]}
    assert "".join(taken) == "abcbcacab"


def test_turns_that_take_too_long_are_two_rounds() -> None:
    found = load("common.timing").in_turns({"a": lambda: 1}, 9, untimed=3, most_seconds=0)
    assert found == {"a": [1, 1]}


def test_options_in_common_have_a_default_of_each_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    parser = load("common.arguments").bench_parser("What?", batch_size=8, json=None)
    assert vars(parser.parse_args([])) == {"batch_size": 8, "json": None}
    assert parser.parse_args(["--json", "a"]).json == Path("a")
    with pytest.raises(SystemExit):
        parser.parse_args(["--batch-size", "0"])
    assert "--batch-size is 0, expected 1 or more." in capsys.readouterr().err


def test_a_folder_that_was_left_half_made_is_made_again(tmp_path: Path) -> None:
    made_once = load("samples.stores").made_once

    def fails(folder: Path) -> None:
        folder.mkdir()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        made_once(tmp_path / "dest", fails)
    assert not (tmp_path / "dest").exists()
    assert made_once(tmp_path / "dest", Path.mkdir).is_dir()
    assert made_once(tmp_path / "dest", fails).is_dir()


@pytest.mark.parametrize(
    "name",
    [
        *("packing.bench_pack", "reading.bench_read", "reading.bench_gpu_peers"),
    ],
)
def test_programs_that_run_nightly_say_what_they_are_given(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(f"benchmarks.{name}", monkeypatch, "--help")
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.nightly
def test_bench_pack_prints_every_figure_and_checks_the_rows(images: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    words = ("--images", images, "--count", 30, "--size", 40, "--runs", 1, "--json", file)
    done = run("benchmarks.packing.bench_pack", *words)
    report = last_line(done)
    assert json.loads(file.read_text()) == report
    others = {"decode", "row"}
    assert set(report["images_per_second"]) == {*others, "call", "pack", "update"}
    assert set(report["ratio"]) == {f"{a}/{b}" for a in ("pack", "call") for b in (*others, "update")}
    assert all(len(found["values"]) == 1 for found in report["images_per_second"].values())
    assert all(0 < found["p10"] <= found["median"] <= found["p90"] for found in report["ratio"].values())
    assert set(report["own_mib"]) == {"worker", "parent"}
    assert report["checks"]["rows"] == report["checks"]["equal_rows"] == report["count"] == 30
    assert {"date", "cpu", "cores", "versions", "decoders", "file_system"} <= set(report["machine"])


def test_the_memory_of_a_process_that_this_one_started_is_found() -> None:
    bench = load("benchmarks.packing.bench_pack")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.pid in bench.children(os.getpid())
        assert 2**12 <= bench.process_bytes(process.pid, *bench.SHARES) < 2**30
        assert process.pid not in bench.children(process.pid)


def test_bench_pack_refuses_a_folder_without_jpegs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "broken.jpg").write_bytes(b"\xff\xd8 and nothing more")
    assert main("benchmarks.packing.bench_pack", monkeypatch, "--images", tmp_path / "images") == 1
    assert "holds no JPEG" in capsys.readouterr().err


def test_bench_pack_stops_when_a_result_is_wrong(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = load("benchmarks.packing.bench_pack")
    job = prepared(bench, images, tmp_path / "work")
    store = job.work / "store"
    bench.time_call(job)
    assert bench.check_store(job, store)["equal_rows"] == 12
    job.paths.reverse()
    with pytest.raises(bench.BenchmarkError, match="is not what Pillow makes of it"):
        bench.check_store(job, store)
    job.names.reverse()
    with pytest.raises(bench.BenchmarkError, match="order"):
        bench.check_store(job, store)
    flip_a_bit(store / PIXELS)
    with pytest.raises(bench.BenchmarkError, match="verify"):
        bench.check_store(job, store)


@pytest.mark.parametrize("has_turbojpeg", [True, False])
def test_bench_pack_stops_when_a_process_fails(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_turbojpeg: bool
) -> None:
    if not has_turbojpeg:
        monkeypatch.setattr("packer.pixels.formats.turbojpeg.JpegDecoder.is_available", False)
    bench = load("benchmarks.packing.bench_pack")
    job = prepared(bench, images, tmp_path / "work", workers=2)
    for way in (bench.decode_alone, bench.make_rows):
        assert bench.in_processes(job, way) > 0
    job.paths[3].unlink()
    for way in (bench.decode_alone, bench.make_rows):
        with pytest.raises(bench.BenchmarkError, match="a process failed"):
            bench.in_processes(job, way)


@pytest.mark.nightly
def test_bench_read_prints_every_figure_of_a_store(wide_store: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    options = ("--batch-size", 8, "--rounds", 2, "--order", "sequential", "--json", file)
    report = last_line(run("benchmarks.reading.bench_read", "--store", wide_store, *options))
    assert json.loads(file.read_text()) == report
    others = ("limit", "store[idx]", "DataLoader 0", "DataLoader 2")
    assert set(report["images_per_second"]) == {"loader", "loader concat", "loader ram", *others}
    assert set(report["ratio"]) == {
        "loader concat/loader",
        "loader ram/limit",
        "store[idx]/limit",
        *(f"loader/{other}" for other in others),
    }
    assert all(len(found["values"]) == 2 for found in report["images_per_second"].values())
    assert report["checks"]["epoch_rows_once"] == report["rows"] == 64
    assert report["order"] == "sequential"
    assert report["first_batch_ms"]["median"] > 0


def test_bench_read_keeps_the_store_it_makes_and_repairs_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench, work = load("benchmarks.reading.bench_read"), tmp_path / "work"
    monkeypatch.setattr("scripts.common.figures._PHOTOS", images)
    store = bench.cached_store(work, 48, 32)
    assert "packing 48 rows" in capsys.readouterr().err
    assert [path.name for path in work.iterdir()] == [store.name]
    pixels, made = (store / PIXELS).read_bytes(), (store / "manifest.json").stat().st_ino
    assert bench.cached_store(work, 48, 32) == store
    assert (store / "manifest.json").stat().st_ino == made
    flip_a_bit(store / PIXELS)
    assert bench.cached_store(work, 48, 32) == store
    assert (store / PIXELS).read_bytes() == pixels


def test_bench_read_refuses_a_damaged_store(
    wide_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(wide_store, tmp_path / "store")
    flip_a_bit(tmp_path / "store" / PIXELS)
    assert main("benchmarks.reading.bench_read", monkeypatch, "--store", tmp_path / "store", "--batch-size", 8) == 1
    assert "does not pass `pack verify`: _tensordict/pixels.memmap, row" in capsys.readouterr().err


def test_bench_read_stops_when_a_batch_is_not_its_rows(wide_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reader import MemmapDataset

    bench = load("benchmarks.reading.bench_read")
    data = MemmapDataset(wide_store, as_tuple=False)
    raw, raw_rows = np.array(data.numpy()), bench.RawRows(wide_store, data.manifest)
    assert bench.check_batches(data, raw_rows, raw, 8) == 3
    with pytest.raises(bench.BenchmarkError, match=r"store\[idx\]: a batch is not the rows"):
        bench.check_batches(data, raw_rows, raw ^ 1, 8)
    raw_rows.pixels = raw_rows.pixels ^ 1
    with pytest.raises(bench.BenchmarkError, match="DataLoader: a batch is not the rows"):
        bench.check_batches(data, raw_rows, raw, 8)
    options = argparse.Namespace(batch_size=8, order="full")
    assert bench.check_epoch(data, raw, options) == 2
    with pytest.raises(bench.BenchmarkError, match="step 0 of the loader is not the rows"):
        bench.check_epoch(data, raw ^ 1, options)


def test_bench_read_refuses_a_store_of_too_few_batches(
    wide_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("benchmarks.reading.bench_read", monkeypatch, "--store", wide_store, "--batch-size", 32) == 1
    assert "64 rows are 2 batches, too few. Use a smaller --batch-size." in capsys.readouterr().err


@pytest.mark.slow
def test_bench_workers_measures_a_worker_by_number_of_rows() -> None:
    words = ("--workers", 1, "--rounds", 1, "--rows", 500, 600, "--starts", "fork", "--paths", 30_000)
    report = last_line(run("benchmarks.reading.bench_workers", *words))
    assert [(one["rows"], one["start"]) for one in report["stores"]] == [(500, "fork"), (600, "fork")]
    assert report["holds"]
    assert all(one["private_mb"] > 0 and one["pickle_bytes"] < 1000 for one in report["stores"])
    assert [one["dataset"] for one in report["others"]] == ["a list of 30,000 paths", "a numpy memmap of 1,000 rows"]
    assert all(one["pickle_bytes"] > 10**6 for one in report["others"])


# -- transforms


def test_bench_transforms_times_what_it_compared_with_torchvision() -> None:
    torchvision_or_skip()
    found = last_line(
        run("benchmarks.transforms.bench_transforms", "--batch-size", 4, "--row", 40, "--size", 32, "--rounds", 2)
    )
    names = ["copy", "RandomHorizontalFlip()", "RandomCrop(32)", "RandomResizedCrop(32)"]
    names += ["RandomResizedCrop(32), RandomHorizontalFlip()", "ColorJitter(0.4, 0.4, 0.4)"]
    names += ["RandomResizedCrop(32), with labels", "RandomResizedCrop(32), own sizes"]
    assert [t["transform"] for t in found["transforms"]] == names
    assert all(len(t["ratio"]["values"]) == 2 and t["largest_difference"] <= 2 for t in found["transforms"])
    assert [t["batch_ratio"] is None for t in found["transforms"]] == [True, *[False] * 3, True, False, True, True]
    assert len(found["drawn"]) == 19
    assert all(len(t["ratio"]["values"]) == 2 and t["per_sample_images_per_second"] for t in found["drawn"])


def test_seconds_are_those_of_the_clock_that_is_given() -> None:
    ticks = iter([1.0, 3.5])
    assert load("common.timing").seconds(lambda: None, clock=lambda: next(ticks)) == 2.5


def test_bench_transforms_stops_where_results_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = load("benchmarks.transforms.bench_transforms")
    wrong = bench.Case("wrong", bench.copied, lambda image, n: image.flip(-1), 1)
    with pytest.raises(SystemExit, match="wrong differs from torchvision by"):
        bench.measure(wrong, bench.smooth_batch(2, 16), 1)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("large", 2), ("small", 40), ("icc", 8), ("objects", 8), ("many", 30)])
def test_bench_inputs_measures_each_kind(tmp_path: Path, kind: str, count: int) -> None:
    if kind == "objects":
        for name in ("s3fs", "obstore"):
            pytest.importorskip(name, reason=f"{name} is not installed: pip install 'pixpack[remote]'")
    out = tmp_path / "found.json"
    words = [kind, "--count", count, "--runs", 1, "--work", tmp_path, "--json", out]
    report = last_line(run("benchmarks.packing.bench_inputs", *words))
    assert json.loads(out.read_text()) == report
    assert (report["kind"], report["count"]) == (kind, count)
    if kind == "many":
        assert report["list_bytes_per_image"] >= 0
        assert report["all"]["images"] == 30
        # packing so little may begin and end between two looks at /proc
        assert set(report["all"]["own_mib"]) == {"worker", "parent"}
    elif kind == "objects":
        assert report["folder"]["server_cpu_seconds"]["max"] == 0
        assert all(report[name]["cpu_seconds"]["min"] > 0 for name in ("folder", "objects"))
    else:
        ours, other = {"large": ("pack", "exact"), "small": ("pack", "row"), "icc": ("plain", "converted")}[kind]
        assert set(report["ratio"][f"{ours}/{other}"]) >= {"median", "p10", "p90"}
        assert "decode" in report["profile"][ours]["worker 1"] | report["profile"][ours].get("worker 2", {})
    assert not list(tmp_path.glob("pixpack-*"))


def test_bench_start_compares_the_command_with_another_checkout(tmp_path: Path) -> None:
    report = last_line(
        run("benchmarks.packing.bench_start", "--count", 2, "--runs", 1, "--work", tmp_path, "--against", ROOT)
    )
    ways = report["ways"]
    assert set(ways) == {"pack", "help", "python", "against"}
    assert all(way["seconds"]["min"] > 0 and way["cpu_seconds"]["min"] > 0 for way in ways.values())
    assert not list(tmp_path.iterdir())


def test_bench_remote_reads_each_row_over_a_link_and_from_its_cache(wide_store: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
    pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'pixpack[zstd]'")
    options = ("--rounds", 1, "--latency-ms", 2, "--megabytes-per-second", 500, "--work", tmp_path)
    forms = ("--compress", "zstd", "--compress", "jpeg:95")
    report = last_line(run("benchmarks.storage.bench_remote", "--store", wide_store, *options, *forms))
    of_forms = {f"{name}, {form}" for name in ("limit", "first", "first batch") for form in ("zstd", "jpeg:95")}
    assert set(report["seconds"]) == {"limit", "first", "later", "local", "first batch"} | of_forms
    assert all(values["median"] > 0 for values in report["seconds"].values())
    first = {form: report["seconds"][f"first, {form}"]["median"] for form in report["images_to_raw"]}
    raw = report["seconds"]["first"]["median"]
    assert {form: ratio["median"] for form, ratio in report["images_to_raw"].items()} == pytest.approx(
        {form: raw / taken for form, taken in first.items()}, rel=0.05
    )
    assert report["bytes_to_raw"]["jpeg:95"] < report["bytes_to_raw"]["zstd"] < 1


def test_bench_disk_reads_each_row_in_each_order_and_form(
    wide_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'pixpack[zstd]'")
    # of so small a file some pages are back as soon as one looks
    monkeypatch.setattr(load("benchmarks.storage.bench_disk"), "drop", lambda *_: None)
    monkeypatch.setattr(_disk_curve, "drop", lambda *_: None)
    words = ["--store", wide_store, "--work", tmp_path, "--rounds", 2, "--compress", "zstd"]
    assert main("benchmarks.storage.bench_disk", monkeypatch, *words) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    orders = {"block", "full", "sequential"}
    compressed = {f"{order}, zstd" for order in orders}
    assert (
        set(report["images_per_second"]) == {"cat", "direct", "blocks", "random", "page faults"} | orders | compressed
    )
    assert set(report["images_to_raw"]) == compressed
    assert all(len(found["values"]) == 2 for found in report["images_per_second"].values())
    assert (
        main("benchmarks.storage.bench_disk", monkeypatch, "--store", next(tmp_path.glob("*-zstd")), "--work", tmp_path)
        == 1
    )
    assert "is compressed, expected the raw store" in capsys.readouterr().err


@pytest.mark.usefixtures("real_syncs")
def test_a_disk_is_limited_by_the_kernel_while_it_is_asked_to(tmp_path: Path) -> None:
    bench = load("benchmarks.storage._limited_disk")
    file, before = tmp_path / "file", Path("/proc/self/cgroup").read_text()
    file.write_bytes(os.urandom(16 << 20))
    try:
        with bench.limited_disk(file, 20_000_000):
            assert "pixpack-bench" in Path("/proc/self/cgroup").read_text()
            taken = _read_cold(file)
    except bench.BenchmarkError as e:
        pytest.skip(str(e))
    assert taken > 0.4
    assert Path("/proc/self/cgroup").read_text() == before


def test_what_is_on_no_disk_cannot_be_limited() -> None:
    bench = load("benchmarks.storage._limited_disk")
    with (
        pytest.raises(bench.BenchmarkError, match="the disk of /proc cannot be limited here"),
        bench.limited_disk(Path("/proc"), 1),
    ):
        pass


def _read_cold(file: Path) -> float:
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        while opened.read(1 << 20):
            pass
    return time.perf_counter() - started


def test_a_disk_s_curve_has_a_rate_for_each_size_and_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_disk_curve, "DEPTHS", (1, 3))
    monkeypatch.setattr(_disk_curve, "SIZES", (4096,))
    (tmp_path / "rows").write_bytes(os.urandom(20 * 1000))
    # of so small a file some pages are back as soon as one looks
    monkeypatch.setattr(_disk_curve, "drop", lambda *_: None)
    curves = _disk_curve.measure_curve(tmp_path / "rows", 1000, rounds=1, seconds=5.0)
    assert [*curves] == ["past the page cache", "through it"]
    for curve in curves.values():
        assert {size: [*rates] for size, rates in curve.items()} == {1000: [1, 3], 4096: [1, 3]}
    assert _disk_curve.best(curves, 1000) == max(rate for curve in curves.values() for rate in curve[1000].values())
    lines = _disk_curve.table_lines(curves)
    assert [len(line) for line in lines] == [3] * 5


@pytest.mark.slow
@pytest.mark.parametrize("form", ["zstd", "jpeg:95"])
def test_bench_compress_compares_packing_and_reading_with_their_limits(images: Path, form: str) -> None:
    pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'pixpack[zstd]'")
    words = ["--form", form, "--count", 24, "--size", 40, "--batch-size", 4, "--runs", 1, "--rounds", 1]
    report = last_line(run("benchmarks.packing.bench_compress", images, *words))
    assert (report["form"], report["count"]) == (form, 24)
    assert 0 < report["ratio_of_bytes"] < 2
    packing, reading = report["packing"], report["reading"]
    assert set(packing["images_per_second"]) == {"nothing_written", "compressed", "raw"}
    assert set(packing["ratio"]) == {"compressed/nothing_written", "compressed/raw"}
    assert set(reading["ratio"]) == {"compressed/only_unpacking", "compressed/raw"}
    for found in (*packing["images_per_second"].values(), *reading["images_per_second"].values()):
        assert found["median"] > 0
    assert (reading["psnr_db"] is None) == (form == "zstd")


def test_bench_forms_compares_bytes_and_time_of_each_form_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'pixpack[zstd]'")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'pixpack[test]'")
    make_tree(tmp_path / "images", classes=2, each=8, size=(150, 110))
    words = ["--size", 64, "--rounds", 1, "--cpus", 2, "--picture", tmp_path / "forms.svg"]
    assert main("benchmarks.storage.bench_forms", monkeypatch, "--images", tmp_path / "images", *words) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    raw, compressed, best, small, source = found["forms"]
    assert (found["images"], raw["bytes"], raw["of_raw"]) == (16, 64 * 64 * 3, 1)
    assert small["bytes"] < best["bytes"] < compressed["bytes"] < raw["bytes"]
    # what the loss costs, of those that have one
    assert 25 < small["psnr_db"] < best["psnr_db"] < 60
    assert compressed["psnr_db"] is source["psnr_db"] is None
    even = found["even_megabytes_per_second"]
    assert [*even] == [
        "raw rows / compressed rows",
        "compressed rows / JPEG rows, quality 95",
        "JPEG rows, quality 95 / the images, as ImageFolder",
    ]
    rate = load("benchmarks.storage.bench_forms").rate_of
    # where two forms are even, both are: the larger one by the link, the smaller one by its CPUs
    link = 2 * compressed["images_per_second_and_core"] * raw["bytes"]
    assert rate(compressed, link, 2) == pytest.approx(rate(raw, link, 1000))
    assert "compressed rows" in (tmp_path / "forms.svg").read_text(encoding="utf-8")
