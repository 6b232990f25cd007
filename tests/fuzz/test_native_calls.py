"""The compiled part touches no memory that is not its own, and loses none, whatever it is called with."""

from __future__ import annotations

import faulthandler
import io
import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import photo
from kinds import MakeStore

from packer.pixels import compiled
from reader import MemmapDataset, MemmapLoader, native, transforms
from scripts import ROOT
from tests.fuzz.native_calls import FILE, Call, functions_of, make, spoiled

pytestmark = pytest.mark.skipif(compiled.native().is_missing, reason="the compiled part could not be built here")
_FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


# function -> which arguments it writes to
WRITTEN = {"augment": 2, "copy_spans": 4, "crops": 2, "floats": 2, "jpeg_pixels": 4, "read_spans": 4, "row": 6}


def copied(name: str, at: int, value: Any) -> Any:
    """Return an argument of a call as `make` takes it."""
    if (name, at) == ("read_spans", 0):
        return FILE
    # resize takes bytes alone
    if value is None or isinstance(value, int | float) or name == "resize":
        return value
    if isinstance(value, tuple):
        return tuple(copied(name, WRITTEN["read_spans"] if name == "read_spans" else -1, one) for one in value)
    array = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.asarray(value)
    return bytearray(array.nbytes) if WRITTEN.get(name) == at else array.copy()


@pytest.fixture(scope="module")
def recorded(store_of: MakeStore) -> list[Call]:
    """Calls of all functions: those of the reader that reads stores, and some as packer makes them."""
    built, calls = native.functions(), list[Call]()

    def recording(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            calls.append((name, [copied(name, at, value) for at, value in enumerate(arguments)]))
            return function(*arguments)

        return called

    with pytest.MonkeyPatch.context() as patch:
        for name in functions_of(built):
            patch.setattr(built, name, recording(name, getattr(built, name)))
        for kind, fill, residency in (("pad", (9, 5, 0), "cache"), ("own-sizes", 7, "disk"), ("gray", 0, "disk")):
            steps = [transforms.RandomResizedCrop(24), transforms.Pad(2, fill=fill)]
            steps += [transforms.TrivialAugmentWide(interpolation="bilinear") for _ in range(6)]
            steps += [
                transforms.RandomAffine(9, fill=fill),
                transforms.ColorJitter(hue=0.4),
                transforms.GaussianBlur(5),
            ]
            transform = transforms.Compose([*steps, transforms.Normalize([0.5], [0.2])])
            data = MemmapDataset(store_of(kind))
            with MemmapLoader(data, 3, transform=transform, shuffle="full", residency=residency, seed=1) as loader:
                assert len([*loader])
        built.library()
        built.sums(bytes(range(240)), 6)
        for n, mode in enumerate(("RGB", "L", "RGB", "CMYK")):
            stream, picture = io.BytesIO(), photo(60, 41, n).convert(mode)
            picture.save(stream, "JPEG", progressive=n > 1, subsampling=n, restart_marker_blocks=3 * n)
            channels = 1 if mode == "L" else 3
            built.jpeg_pixels(stream.getvalue(), 41, 60, channels, bytearray(60 * 41 * channels))
            built.row(stream.getvalue(), (30, 21), (20, 24), (n - 2, 3), (19, 17), n, bytearray(19 * 17 * 3))
            built.resize(photo(60, 41, n).convert("RGBA" if n % 2 else "L").tobytes(), (60, 41), (7, 9 + n), n + 1)
    return calls


def test_calls_leave_what_is_around_their_memory(recorded: list[Call]) -> None:
    assert {name for name, _ in recorded} == functions_of(native.functions())
    for call in spoiled(recorded, 2000):
        make(native.functions(), call)


@pytest.mark.nightly
@pytest.mark.parametrize("plain", [[], ["-DPIXPACK_PLAIN_C"]], ids=["vectors", "plain"])
def test_calls_under_sanitizers(plain: list[str], recorded: list[Call], tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc with libasan and libubsan is not here")
    # the limit below is this test's
    faulthandler.cancel_dump_traceback_later()
    asked = [["gcc", f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so")]
    located = [subprocess.check_output(command, text=True).strip() for command in asked]
    flags = [*_FLAGS, *plain, "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    sources = (ROOT / "reader/native").glob("*.c")
    subprocess.run(["gcc", *flags, *sources, "-o", tmp_path / "_native.so", "-ljpeg", "-lm"], check=True)
    variables = {
        "LD_PRELOAD": " ".join(located),
        # Python keeps memory to its end: what is lost is counted
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        # else small arrays are parts of larger ones, and what is behind them is nobody's
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(tmp_path),
    }
    (tmp_path / "calls").write_bytes(pickle.dumps(recorded))
    command = [sys.executable, "-m", "tests.fuzz.native_calls", tmp_path / "calls", "61000"]
    done = subprocess.run(command, env=os.environ | variables, cwd=ROOT, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
