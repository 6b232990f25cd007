"""Does the compiled part read or write a byte that is not its own, or lose memory, whatever the JPEG and the sizes?

    python -m tests.fuzz.fuzz_native --seconds 600 --seed 1

Builds reader/native/ with gcc's address and undefined-behavior sanitizers, which end the process at the first fault, and
calls row() on damaged small JPEGs, resize() on random pixels, with random sizes,
origins and filters, crops() on images of random sizes, boxes and grids, some of them outside of what they are of, augment()
and floats() with any numbers, and sums(), crc32(), copy_spans() and read_spans() on bytes of any length, in a process
of its own. Crops are compared with what resize() and slices make. All memory but that of row(), resize() and unfilter(), which
take bytes, begins at an odd address, and each function of the part is called. --plain builds what runs on any CPU. Afterwards
some of the calls are made twice more: the second time they may hold no more memory.
Needs gcc with libasan and libubsan, and libjpeg's headers. Prints one JSON object last; exits 1 at a fault, with the
sanitizer's report.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts import ROOT
from tests.fuzz._native_calls import Call, NativeCalls
from tests.fuzz._odd_offsets import AtOddOffsets

_NATIVE = ROOT / "reader" / "native"
_FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
_LIBRARIES = ("libasan.so", "libubsan.so")
# Calls that are made again to see whether memory is lost; each allocates some kB.
_AGAIN = 400
_MOST_GROWN_BYTES = 4096


def main() -> int:
    """Build, run the child, and report what it found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--calls", type=int, default=0, help="make so many calls, also where that takes longer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="build the code without vector instructions")
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        with tempfile.TemporaryDirectory(prefix="pixpack-native-") as name:
            native = load(options.library)
            print(json.dumps(fuzz(native, Path(name), options.seconds, options.calls, options.seed)))
        return 0
    if lacks := missing():
        print(f"fuzz_native: {lacks}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="pixpack-native-") as folder:
        library = build(Path(folder), *(["-DPIXPACK_PLAIN_C"] if options.plain else []))
        done = _run_child(library, options)
    sys.stderr.write(done.stderr)
    if done.returncode:
        print(f"fuzz_native: seed {options.seed}: the process ended with {done.returncode}", file=sys.stderr)
        return 1
    result = json.loads(done.stdout)
    print(json.dumps({"benchmark": "fuzz_native", "seed": options.seed} | result))
    if result["grown_bytes"] > _MOST_GROWN_BYTES:
        print(f"fuzz_native: {result['grown_bytes']} bytes were lost in {_AGAIN} calls", file=sys.stderr)
        return 1
    return 0


def missing() -> str:
    """Return what this machine lacks to build with sanitizers; "": nothing."""
    if not shutil.which("gcc"):
        return "gcc is missing"
    for name in _LIBRARIES:
        if not os.path.isabs(_located(name)):
            return f"gcc's {name} is missing"
    return ""


def build(folder: Path, *flags: str) -> Path:
    """Compile the extension with the sanitizers, and with further flags."""
    library = folder / "_native.so"
    sources = [str(path) for path in sorted(_NATIVE.glob("*.c"))]
    command = ["gcc", *_FLAGS, *flags, "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    subprocess.run([*command, *sources, "-o", str(library), "-ljpeg", "-lm"], check=True)
    return library


def load(path: str) -> Any:
    """Import the extension in a file."""
    spec = importlib.util.spec_from_file_location("_native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fuzz(native: Any, folder: Path, seconds: float, least: int, seed: int) -> dict[str, Any]:
    """Call the functions of the compiled part until the time is over; returns how often, and what memory was lost."""
    begun, moved = time.monotonic(), AtOddOffsets(native, seed)
    trials = NativeCalls(moved, folder, seed)
    calls: list[Call] = []
    for number in itertools.count():
        if number >= max(least, _AGAIN) and time.monotonic() - begun >= seconds:
            break
        calls += trials.make()[: _AGAIN - len(calls)]
    before = _allocated_after(calls)
    grown = _allocated_after(calls) - before
    found = {"calls": moved.calls.total(), "uncalled": moved.uncalled, "grown_bytes": grown}
    return trials.counts | found | {"seconds": round(time.monotonic() - begun, 1)}


def _allocated_after(calls: list[Call]) -> int:
    """Make the calls; returns the bytes that this process holds by malloc after that."""
    for function, arguments in calls:
        function(*arguments)
    gc.collect()
    count = ctypes.CDLL(None).__sanitizer_get_current_allocated_bytes
    count.restype = ctypes.c_size_t
    return int(count())


def _run_child(library: Path, options: argparse.Namespace) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "LD_PRELOAD": " ".join(map(_located, _LIBRARIES)),
        # Python keeps memory to its end: what is lost is counted in the child
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # else small arrays are parts of larger ones, and what is behind them is nobody's
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, "-m", "tests.fuzz.fuzz_native", "--library", str(library)]
    arguments = [f"--{name}={getattr(options, name)}" for name in ("seconds", "calls", "seed")]
    return subprocess.run([*command, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True)


def _located(name: str) -> str:
    """Return where gcc has a library; its bare name where it has none."""
    done = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
