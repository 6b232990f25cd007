"""The compiled part touches no memory that is not its own, and loses none, whatever it is called with."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from packer.pixels import compiled
from scripts.stress.fuzz import cross_native, fuzz_native

ROOT = Path(__file__).resolve().parents[2]


def test_some_calls_under_sanitizers() -> None:
    if shutil.which("gcc") is None or fuzz_native.missing():
        pytest.skip("gcc with libasan and libubsan is not here")
    if compiled.native().is_missing:
        pytest.skip("the compiled part could not be built here")
    command = [sys.executable, "-m", "scripts.stress.fuzz.fuzz_native", "--seconds=0", "--calls=950", "--seed=7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["row_calls"] > 400
    assert result["rows"] > 20
    assert result["file_rows"] > 20
    assert result["png_rows"] > 20
    assert result["crops_calls"] > 200
    assert result["crops_refused"] > 30
    assert result["steps_calls"] > 200
    assert result["steps_refused"] > 20
    assert result["pixels_calls"] > 200
    assert result["pixels_made"] > 20


def test_the_compiled_part_for_aarch64_makes_the_same() -> None:
    root = os.environ.get("PIXPACK_ARM64", "")
    if lacks := cross_native.missing(Path(root)):
        pytest.skip(lacks)
    command = [sys.executable, "-m", "scripts.stress.fuzz.cross_native", root, "--calls=200", "--seed=7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert min(result[name] for name in ("crops", "crc32", "resize", "row", "sums")) > 10


def test_what_is_missing_to_build_for_aarch64_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cross_native.missing(tmp_path) == "aarch64-linux-gnu-gcc is missing: apt-get install gcc-aarch64-linux-gnu"


@pytest.mark.skipif(compiled.native().row is None, reason="the compiled part is not used here")
def test_offsets_and_sizes_at_the_ends_of_an_int_give_none() -> None:
    native = compiled.native()
    assert native.row is not None
    assert native.resize is not None
    most = (1 << 31) - 1
    written = io.BytesIO()
    Image.new("RGB", (8, 8), "gray").save(written, "JPEG")
    data = written.getvalue()
    assert native.row(data, (8, 8), (8, 8), (0, 0), (8, 8), 2) is not None
    for origin in ((most, 0), (0, most), (-most - 1, 0), (0, -most - 1)):
        assert native.row(data, (8, 8), (8, 8), origin, (8, 8), 2) is None
    for size in ((most, most), (most, 1), (1, most)):
        assert native.resize(bytes(4), (1, 1), size, 2) is None
