"""The compiled part touches no memory that is not its own, and loses none, whatever it is called with."""

from __future__ import annotations

import io
import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from packer.pixels import compiled
from tests.fuzz import fuzz_native

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
def test_some_calls_under_sanitizers() -> None:
    if shutil.which("gcc") is None or fuzz_native.missing():
        pytest.skip("gcc with libasan and libubsan is not here")
    if compiled.native().is_missing:
        pytest.skip("the compiled part could not be built here")
    command = [sys.executable, "-m", "tests.fuzz.fuzz_native", "--seconds=0", "--calls=950", "--seed=7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["uncalled"] == []
    assert result["row_calls"] > 400
    assert result["rows"] > 20
    assert result["crops_calls"] > 200
    assert result["crops_refused"] > 30
    assert result["steps_calls"] > 200
    assert result["steps_refused"] > 20
    assert result["pixels_calls"] > 200
    assert result["pixels_made"] > 20


def stating(width: int, height: int) -> bytes:
    """Return a progressive JPEG of 64 x 64 whose header says another size."""
    written = io.BytesIO()
    Image.new("RGB", (64, 64), "gray").save(written, "JPEG", progressive=True, subsampling=0)
    data = bytearray(written.getvalue())
    at = data.index(b"\xff\xc2") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


# three components whose blocks are in three scans
_SCANS = b"\xff\xd8\xff\xc0\0\x11\x08\x4e\x20\x4e\x20\3\1\x11\0\2\x11\0\3\x11\0\xff\xda\0\x08\1\1\0\0\x3f\0\xff\xd9"


@pytest.mark.skipif(compiled.native().row is None, reason="the compiled part is not used here")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say what memory was asked for")
@pytest.mark.parametrize(("width", "height", "kept_bytes"), [(20_000, 20_000, 0), (2000, 3000, 36_000_000)])
def test_libjpeg_asks_for_no_more_memory_than_one_image_may_take(
    width: int, height: int, kept_bytes: int, tmp_path: Path
) -> None:
    (tmp_path / "large.jpg").write_bytes(stating(width, height))
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


@pytest.mark.skipif(compiled.native().row is None, reason="the compiled part is not used here")
def test_offsets_and_sizes_at_the_ends_of_an_int_give_none() -> None:
    native = compiled.native()
    assert native.row is not None
    assert native.resize is not None
    most = (1 << 31) - 1
    written = io.BytesIO()
    Image.new("RGB", (8, 8), "gray").save(written, "JPEG")
    data = written.getvalue()
    assert native.row(data, (8, 8), (8, 8), (0, 0), (8, 8), 2, bytearray(192))
    for origin in ((most, 0), (0, most), (-most - 1, 0), (0, -most - 1)):
        assert not native.row(data, (8, 8), (8, 8), origin, (8, 8), 2, bytearray(192))
    for size in ((most, most), (most, 1), (1, most)):
        assert native.resize(bytes(4), (1, 1), size, 2) is None
