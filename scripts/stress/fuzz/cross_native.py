"""Does the compiled part make the same bytes on another processor, aarch64, as on this one?

    scripts/stress/fuzz/arm64_root.sh FOLDER
    python -m scripts.stress.fuzz.cross_native FOLDER --calls 400 --seed 1

Builds pixpack_native/ for aarch64 with gcc-aarch64-linux-gnu, makes random calls of this machine's compiled part, of JPEGs,
pixels, sums, checksums, crops and transforms, and makes the same calls under qemu-user: what they return and write is the same.
--plain leaves the code for NEON out. FOLDER holds Debian's Python and libjpeg-turbo for arm64. An emulator's times say nothing.
Prints one JSON object last; exits 1 where a call differs, with its name and number.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pixpack_native
from scripts import ROOT
from scripts.stress.fuzz._native_calls import NativeCalls
from scripts.stress.fuzz._replay import made_by

_FLAGS = (
    "-O2",
    "-ffp-contract=off",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-shared",
    "-fPIC",
)
# These take no functions, which cannot be passed to another process, and touch no files.
_NAMES = (
    "augment",
    "blur",
    "crc32",
    "crops",
    "floats",
    "jpeg_pixels",
    "resize",
    "row",
    "sums",
    "unfilter",
)
# Of 255, more than a sum of 32 bits holds the squares of (sums.c, MOST_GROUPS).
_MOST_PIXELS_BYTES = 66_100 * 96
# Left to torch on other processors than x86, where it may round sums in another way; --plain makes them for the comparison.
_LEFT_TO_TORCH = "augment", "blur"


def main() -> int:
    """Build, record, replay and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "root", type=Path, metavar="FOLDER", help="Debian's files for arm64: scripts/stress/fuzz/arm64_root.sh"
    )
    parser.add_argument("--calls", type=int, default=400, help="of NativeCalls; most make several")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="build without the code for NEON")
    options = parser.parse_args()
    if lacks := missing(options.root):
        print(f"cross_native: {lacks}", file=sys.stderr)
        return 1
    # libjpeg-turbo's own SIMD code makes other pixels of coefficients that are out of range, as damaged JPEGs have
    os.environ["JSIMD_FORCENONE"] = "1"
    with tempfile.TemporaryDirectory(prefix="pixpack-cross-") as name:
        folder = Path(name)
        library = build(folder, options.root, options.plain)
        calls, expected = record(folder, options.calls, options.seed)
        (folder / "calls").write_bytes(pickle.dumps(calls))
        found = _replayed(options.root, library, folder / "calls")
    names = [name for name, _ in calls]
    is_left = [name in _LEFT_TO_TORCH and not options.plain for name in names]
    pairs = zip(names, is_left, expected, found, strict=True)
    differ = [f"{n} ({name})" for n, (name, left, one, other) in enumerate(pairs) if one != other and not left]
    counts = {
        kind: sum(name == kind and not left for name, left in zip(names, is_left, strict=True)) for kind in _NAMES
    }
    result = {
        "benchmark": "cross_native",
        "seed": options.seed,
        "differ": len(differ),
    }
    print(json.dumps(result | counts))
    if differ:
        print(f"cross_native: these calls differ: {', '.join(differ[:20])}", file=sys.stderr)
    return 1 if differ else 0


def missing(root: Path) -> str:
    """Say what this machine lacks; "": nothing."""
    for program, package in (("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"), ("qemu-aarch64", "qemu-user")):
        if not shutil.which(program):
            return f"{program} is missing: apt-get install {package}"
    if not (root / "usr/bin/python3").is_symlink():
        return f"{root} holds no Python for arm64: make it by scripts/stress/fuzz/arm64_root.sh {root}"
    return ""


def build(folder: Path, root: Path, is_plain: bool) -> Path:
    """Compile the extension for aarch64."""
    python = (root / "usr/bin/python3").readlink().name
    include = root / "usr/include"
    places = [
        f"-I{include / python}",
        f"-I{include}",
        f"-I{include}/aarch64-linux-gnu",
        f"-L{root}/usr/lib/aarch64-linux-gnu",
    ]
    sources = [str(path) for path in sorted((ROOT / "pixpack_native").glob("*.c"))]
    library = folder / "_native.so"
    plain = ["-DPIXPACK_PLAIN_C"] * is_plain
    subprocess.run(
        ["aarch64-linux-gnu-gcc", *_FLAGS, *plain, *places, *sources, "-o", str(library), "-ljpeg", "-lm"], check=True
    )
    return library


class _CallRecorder:
    """The compiled part, which notes each call and a digest of what it made."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.calls: list[tuple[str, list[Any]]] = []
        self.made: list[str] = []

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._native, name)
        return (lambda *arguments: self._noted(name, function, arguments)) if name in _NAMES else function

    def _noted(self, name: str, function: Any, arguments: tuple[Any, ...]) -> Any:
        kept = [_as_bytes(argument) for argument in arguments]
        self.calls.append((name, kept))
        self.made.append(made_by(function, pickle.loads(pickle.dumps(kept))))
        return function(*arguments)


def _as_bytes(argument: Any) -> Any:
    """Return memory that is written to as a bytearray of its own, all else as it is."""
    return bytearray(argument) if isinstance(argument, bytearray | memoryview) else argument


def record(folder: Path, count: int, seed: int) -> tuple[list[tuple[str, list[Any]]], list[str]]:
    """Make random calls by the compiled part here; returns them, and what each made."""
    recorder = _CallRecorder(pixpack_native.functions())
    trials = NativeCalls(recorder, folder, seed)
    for _ in range(count):
        trials.make()
    for pixels in (random.Random(seed).randbytes(100_001 * 6), b"\xff" * _MOST_PIXELS_BYTES):
        recorder.sums(pixels, 3)
        recorder.crc32(pixels, seed)
    return recorder.calls, [f"{name} {made}" for (name, _), made in zip(recorder.calls, recorder.made, strict=True)]


def _replayed(root: Path, library: Path, calls: Path) -> list[str]:
    replay = str(ROOT / "scripts" / "stress" / "fuzz" / "_replay.py")
    command = ["qemu-aarch64", "-L", str(root), str(root / "usr/bin/python3"), replay, str(library), str(calls)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
