"""The compiled part touches no memory that is not its own, and loses none, whatever it is called with."""

from __future__ import annotations

import faulthandler
import io
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from PIL import Image

from packer.pixels import compiled
from reader import native
from scripts import ROOT
from tests.fuzz.native_calls import Call, calls, make

pytestmark = pytest.mark.skipif(compiled.native().is_missing, reason="the compiled part could not be built here")
_FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


@settings(max_examples=300, derandomize=True)
@given(calls())
def test_calls_leave_what_is_around_their_memory(together: list[Call]) -> None:
    for call in together:
        make(native.functions(), call)


@pytest.mark.nightly
@pytest.mark.parametrize("plain", [(), ("-DPIXPACK_PLAIN_C",)], ids=["vectors", "plain"])
def test_calls_under_sanitizers(plain: tuple[str, ...], tmp_path: Path) -> None:
    located = [_located(name) for name in ("libasan.so", "libubsan.so")]
    if not all(map(os.path.isabs, located)):
        pytest.skip("gcc with libasan and libubsan is not here")
    # the limit below is this test's
    faulthandler.cancel_dump_traceback_later()
    library, sources = tmp_path / "_native.so", sorted((ROOT / "reader/native").glob("*.c"))
    flags = [*_FLAGS, *plain, "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    subprocess.run(["gcc", *flags, *sources, "-o", library, "-ljpeg", "-lm"], check=True)
    variables = {
        "LD_PRELOAD": " ".join(located),
        # Python keeps memory to its end: what is lost is counted
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # else small arrays are parts of larger ones, and what is behind them is nobody's
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("tests", "tests/support")),
    }
    command = [sys.executable, "-m", "tests.fuzz.native_calls", library, "61000"]
    done = subprocess.run(command, env=os.environ | variables, cwd=ROOT, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr


def _located(name: str) -> str:
    """Return where gcc has a library; its bare name where it has none, or where there is no gcc."""
    if shutil.which("gcc") is None:
        return name
    done = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def stating(width: int, height: int) -> bytes:
    """Return a progressive JPEG of 64 x 64 whose header says another size."""
    written = io.BytesIO()
    Image.new("RGB", (64, 64), "gray").save(written, "JPEG", progressive=True, subsampling=0)
    data = bytearray(written.getvalue())
    at = data.index(b"\xff\xc2") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


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
