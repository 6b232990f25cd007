"""Both Huffman decoders under libFuzzer: builds scripts/stress/fuzz/libfuzzer/ by clang, and runs it.

Knows clang, the files that make the program, and what libFuzzer prints; not what is compared.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts import ROOT
from scripts.stress.fuzz._mutated_images import make_jpeg

_TARGET = ROOT / "scripts" / "stress" / "fuzz" / "libfuzzer"
_NATIVE = ROOT / "pixpack_native"
_PARTS = "huffman", "huffman_probe", "jpeg_row", "resample"
_FLAGS = (
    *("-O2", "-g", "-fno-omit-frame-pointer", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined"),
    *("-DPIXPACK_FAST_HUFFMAN", f"-I{_NATIVE}", "-Wl,--wrap=huffman_begin"),
    f"-fsanitize-coverage-ignorelist={_TARGET}/no_coverage.txt",
)
# Freed memory that is watched: with ASan's 256 MB most of the time is page faults.
_ASAN = "quarantine_size_mb=8"
# jpeg_cases.h: PLAN_BYTES, in front of each JPEG
_PLAN_BYTES = 12
_SEEDS = 40
_MOST_CASE_BYTES = 8192
_DONE = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/")
_COUNTS = re.compile(r"counts: (\{.*\})")


def missing() -> str:
    """Say what this machine lacks to build for libFuzzer; "": nothing."""
    if not shutil.which("clang"):
        return "clang is missing: apt-get install clang"
    library = f"libclang_rt.fuzzer-{os.uname().machine}.a"
    command = ["clang", f"-print-file-name={library}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return "" if os.path.isabs(found) else f"clang's {library} is missing: apt-get install libclang-rt-14-dev"


def build(folder: Path, jpeg: str | None) -> Path:
    """Compile the program. jpeg: the folder with include/ and lib/ of another libjpeg-turbo than the system's."""
    sources = [
        *sorted(_TARGET.glob("*.c")),
        *(_NATIVE / f"{name}.c" for name in _PARTS),
    ]
    places = [f"-I{jpeg}/include", f"-L{jpeg}/lib"] if jpeg else []
    program = folder / "huffman_fuzz"
    subprocess.run(["clang", *_FLAGS, *places, *map(str, sources), "-o", str(program), "-ljpeg", "-lm"], check=True)
    return program


def run(program: Path, corpus: Path, limit: str, seed: int) -> dict[str, Any]:
    """Run it until the limit, an option of libFuzzer; returns its counts, with the exit code and edges reached as well.

    corpus: what is there is used, and what reaches new edges is added. What ends the program is written to the working directory.
    """
    corpus.mkdir(exist_ok=True)
    if not any(corpus.iterdir()):
        _write_seeds(corpus, seed)
    command = [str(program), f"-seed={seed}", limit, f"-max_len={_MOST_CASE_BYTES}", "-timeout=60", "-reload=0"]
    log = program.with_suffix(".log")
    with log.open("w") as stderr:
        arguments = [*command, "-artifact_prefix=huffman-fault-", str(corpus)]
        done = subprocess.run(arguments, stdout=stderr, stderr=stderr, env=os.environ | {"ASAN_OPTIONS": _ASAN})
    printed = log.read_text(errors="replace")
    counts, reached = _COUNTS.search(printed), _DONE.findall(printed)
    if done.returncode or counts is None or not reached:
        sys.stderr.write(printed[-20_000:])
        return {"exit_code": done.returncode or 1}
    edges, features, cases = map(int, reached[-1])
    sizes = [path.stat().st_size for path in corpus.iterdir()]
    found = {"edges": edges, "features": features, "corpus_cases": cases, "corpus_bytes": sum(sizes)}
    return {**json.loads(counts[1]), **found, "exit_code": 0}


def _write_seeds(corpus: Path, seed: int) -> None:
    """Write small baseline JPEGs that Pillow encodes; all others are made by the program."""
    rng = random.Random(seed)
    for number in range(_SEEDS):
        data = make_jpeg(rng, 48, ("RGB", "RGB", "L")).data
        if b"\xff\xc2" not in data:
            (corpus / f"seed-{number}").write_bytes(rng.randbytes(_PLAN_BYTES) + data)
