"""scripts/gpu/on_gpu as far as a machine without a GPU shows it, and bench_gpu.py on tiny data."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from children import program
from conftest import torchvision_or_skip

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"


@pytest.fixture
def script() -> ModuleType:
    return importlib.import_module("scripts.gpu._on_gpu")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with one wheel, of a package that nobody has."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    about = "nobody-1.0.dist-info"
    with zipfile.ZipFile(folder / "nobody-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("nobody.py", "here = True\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: nobody\nVersion: 1.0\n")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    return folder


def run(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, **variables}
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment, cwd=ROOT)


def test_without_wheels_it_says_how_to_get_them(tmp_path: Path) -> None:
    done = run(SCRIPTS / "gpu" / "on_gpu", "--wheels", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr == f"on_gpu: {tmp_path} holds no wheel. First: scripts/gpu/on_gpu --collect DIR\n"


def test_what_a_machine_without_a_gpu_leaves_out_is_reported(tmp_path: Path, wheels: Path) -> None:
    out = tmp_path / "out"
    done = run(SCRIPTS / "gpu" / "on_gpu", "--wheels", wheels, "--out", out, "--no-cuda", "--only", "tests")
    assert done.returncode == 0, done.stderr
    parts = ("tests", "tests full-device")
    assert done.stdout.splitlines() == [f"on_gpu: {name}: left out: needs a CUDA device" for name in parts]
    report = json.loads((out / "on_gpu.json").read_text())
    assert report["parts"] == {name: {"left_out": "needs a CUDA device"} for name in parts}
    assert report["machine"]["torch"]


def test_each_part_is_reported_and_the_others_run_all_the_same(
    script: ModuleType, tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {
        "uses a wheel": "import nobody; print(nobody.here)",
        "fails": "import sys; sys.exit('no such thing')",
        # what it has started would hold the output open, and the device busy, for as long
        "takes too long": "import subprocess, sys; print('begun', flush=True);"
        "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])",
        "writes": "open('found.json', 'w').write('[1]'); open('a.png', 'w').write('x')",
    }

    def parts(work: Path, *, no_cuda: bool, images: Path | None) -> list[Any]:
        return [
            script.GpuCommand(name, [sys.executable, "-c", code], False, "found.json", "a.png", seconds=2)
            for name, code in codes.items()
        ]

    monkeypatch.setattr(script, "parts", parts)
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["on_gpu", "--wheels", str(wheels), "--out", str(out), "--no-cuda"])
    assert script.main() == 1
    found = json.loads((out / "on_gpu.json").read_text())["parts"]
    assert [found[name]["exit_code"] for name in codes] == [0, 1, 124, 0]
    assert found["uses a wheel"]["tail"] == "True\n"
    assert "no such thing" in found["fails"]["tail"]
    assert found["takes too long"]["tail"].endswith("stopped after 2 s")
    assert found["takes too long"]["seconds"] < 20
    assert found["writes"]["result"] == [1]
    assert zipfile.ZipFile(out / script.PICTURES).namelist() == ["a.png"]


def test_a_result_that_was_cut_short_is_reported_as_it_is_and_nothing_begins_when_time_is_up(
    script: ModuleType, tmp_path: Path
) -> None:
    part = script.GpuCommand("one", [sys.executable, "-c", "open('cut.json', 'w').write('[1, ')"], False, "cut.json")
    options = argparse.Namespace(no_cuda=True, out=tmp_path, within=5)
    assert script.outcome(part, dict(os.environ), options, tmp_path, 60)["result"] == "[1, "
    assert script.outcome(part, dict(os.environ), options, tmp_path, 0) == {"left_out": "5 s have passed"}


def test_the_store_is_made_for_the_parts_that_read_it(script: ModuleType, tmp_path: Path) -> None:
    def named(*only: str) -> list[str]:
        return [part.name for part in script.asked_for(every, list(only) or None)]

    every = script.parts(tmp_path, no_cuda=False, images=None)
    assert named("timeline", "claims kernels") == ["store", "timeline", "claims kernels"]
    assert named("bench") == ["store", *(f"bench {name}" for name in script.BENCHES)]
    assert named("logic", "bench pinned", "tests") == ["tests", "tests full-device", "store", "bench pinned", "logic"]
    assert named("claims kernels") == ["claims kernels"]
    assert named() == [part.name for part in every]


def test_each_call_of_the_help_names_parts_that_are_there_and_together_they_are_all(
    script: ModuleType, tmp_path: Path
) -> None:
    help_text = (SCRIPTS / "gpu" / "on_gpu").read_text()
    calls = [shlex.split(line)[2:] for line in help_text.replace("#", "").splitlines() if "--within 540" in line]
    every = script.parts(tmp_path, no_cuda=False, images=None)
    names = [call[1 : call.index("--images") if "--images" in call else None] for call in calls]
    chosen = {part.name for only in names for part in script.asked_for(every, only)}
    assert len(calls) == 3
    assert chosen == {part.name for part in every} - {"logic"}


def test_a_part_that_is_not_there_is_a_usage_error(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["on_gpu", "--wheels", "x", "--only", "bench", "claims", "bus_bytes"])
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 2


def test_every_wheel_has_a_version_and_parts_name_what_is_there(script: ModuleType, tmp_path: Path) -> None:
    pinned = {line.partition("==")[0] for line in (SCRIPTS / "constraints.txt").read_text().splitlines()}
    assert {*script.PACKAGES, *script.BUILT} <= pinned
    for no_cuda in (False, True):
        parts = script.parts(tmp_path, no_cuda=no_cuda, images=tmp_path)
        files = [word for part in parts for word in part.command if word.endswith(".py")]
        modules = {word for part in parts for word in part.command if word.startswith("scripts.")}
        assert len(files) >= 2
        assert all(Path(word).exists() for word in files)
        assert modules == {
            "scripts.benchmarks.reading.bench_gpu",
            "scripts.benchmarks.reading.bench_gpu_peers",
            "scripts.benchmarks.transforms.bench_transforms",
            "scripts.studies.claims",
        }
        assert all(importlib.util.find_spec(name) for name in modules)
        assert len({part.name for part in parts}) == len(parts)
    assert {*script.CLAIMS} <= {path.stem for path in (SCRIPTS / "studies" / "claims").glob("*/*.py")}
    trees = importlib.import_module("scripts.studies.claims.devices.nested_moves").TREES
    assert list(script.LIBRARIES) == [package for _, packages in trees.values() for package in packages]
    assert {*script.BENCHES} == {*importlib.import_module("scripts.benchmarks.reading.bench_gpu").PARTS}


@pytest.mark.slow
def test_the_compiled_part_is_built_from_what_was_collected(script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("reader._native", reason="the compiled part is not built")
    collected, compiled = tmp_path / "collected", tmp_path / "compiled"
    collected.mkdir()
    script.collect_jpeg(collected)
    assert {path.name for path in collected.iterdir()} == {*script.HEADERS, *script.SHARED_LIBRARIES}
    assert script.build_compiled_part([collected], compiled)
    code = "import sys; sys.path.remove(''); import reader.native; print(reader.native.functions().__file__)"
    done = run(sys.executable, "-c", code, PYTHONPATH=str(compiled), LD_LIBRARY_PATH=str(compiled))
    assert Path(done.stdout.strip()).parent == compiled / "reader", done.stderr


def test_without_a_compiler_the_compiled_part_is_left_out_in_a_sentence(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-compiler-of-this-name")
    assert not script.build_compiled_part([tmp_path], tmp_path / "compiled")
    assert capsys.readouterr().err.startswith("on_gpu: the compiled part is not built: torch does its work.")
    assert (tmp_path / "compiled" / "reader" / "__init__.py").exists()


# -- bench_gpu


def test_the_device_benchmark_says_in_each_part_that_there_is_no_gpu(tmp_path: Path) -> None:
    done = program("scripts.benchmarks.reading.bench_gpu", "--work", tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["parts"] == dict.fromkeys(
        ["loading", "training", "waiting", "resident", "pinned"], "not measured: no GPU"
    )


@pytest.mark.nightly
def test_the_benchmark_of_peers_runs_on_tiny_data(tmp_path: Path) -> None:
    torchvision_or_skip()
    # in a process of its own: workers are forked from it
    words = ["-m", "scripts.benchmarks.reading.bench_gpu_peers", "--device", "cpu", "--quick", "--work", tmp_path]
    done = run(sys.executable, *words)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    # what decodes is in torchvision's C part, which only that of this very torch has; FFCV is no package of the tests
    assert {*report["failed"]} <= {"decoded on the device, 1 workers", "FFCV, as its ImageNet recipe"}
    ways = report["ways"]
    assert {"one batch, on the device", "MemmapLoader, rows of own sizes", "ImageFolder, 1 workers"} <= {*ways}
    assert report["not_measured"] == "no GPU"
    for way in ways.values():
        assert way["images_per_second"]["median"] > 0
        assert (way["joules_per_image"], way["percent_busy"]) == (None, None)


@pytest.mark.slow
def test_a_writer_that_fails_says_why(tmp_path: Path) -> None:
    way = importlib.import_module("scripts.benchmarks.reading._ffcv_way")
    with pytest.raises(way.BenchmarkError, match=r"(?s)FFCV's writer: .*(ffcv|torchvision|missing)"):
        way.written(tmp_path / "missing", tmp_path / "images.beton", 96)


@pytest.mark.slow
def test_the_device_benchmark_runs_on_tiny_data(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--quick", "--only", "loading", "training", "waiting", "resident", "pinned"]
    done = program("scripts.benchmarks.reading.bench_gpu", *words, "--work", tmp_path)
    assert done.returncode == 0, done.stderr
    parts = json.loads(done.stdout.splitlines()[-1])["parts"]
    assert parts["pinned"] == "not measured: no GPU"
    for part in ("loading", "training", "waiting", "resident"):
        first, other, *_ = parts[part].values()
        assert first["of_first"]["median"] == 1
        assert other["images_per_second"]["median"] > 0
