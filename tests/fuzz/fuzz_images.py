"""Does a damaged image cost more than itself, or become a row without a word?

    python -m tests.fuzz.fuzz_images --seconds 600 --seed 1

Packs folders of damaged JPEGs (baseline, progressive, restart markers, all samplings, gray, CMYK), PNGs, WebPs, TIFFs, GIFs and
BMPs, with untouched ones between them, by `pack` in processes whose memory and time are limited, and compares: each file is a row
or a line of rejected.jsonl, the untouched ones have the row and the record of a clean pack, `pack verify` passes, no process
crashes, and none takes longer than its time. Of each damaged JPEG the compiled part and the Python path make the same row, or
give the same reason. Prints one JSON object last; exits 1 at the first failure, and leaves the folder where --keep says.

Rows that visibly differ from what their file was before (PSNR below 25 dB) are counted by format: with a recorded warning, and
silent, where no decoder noticed. The latter are no failure: a changed bit that leaves every code valid, in a format without
checksums, nothing can find.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import reader
from packer.errors import DecodeError
from packer.pixels import decode
from packer.pixels.compiled import Native
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row
from packer.sample_lines import read_json_lines
from reader.format.manifest import REJECTED, SAMPLES
from scripts import ROOT
from tests.fuzz._mutated_images import Original, make_jpeg, make_other, mutate

_MUTANTS, _UNTOUCHED = 400, 40
_SIDE = 64
_VISIBLE_DB = 25.0
# of a pack of one round, which takes 3 s here, and of each of its processes
_MOST_SECONDS = 180
_MOST_BYTES = 3 << 30
_OPTIONS: tuple[tuple[str, ...], ...] = (
    (),
    ("--exact",),
    ("--fit", "pad"),
    ("--fit", "squash"),
    ("--channels", "gray"),
)
# What a reject says whose process died or stood still, or met an error that nobody foresaw (packer/workers).
_CRASHES = "its worker", "stood still", "no answer", "longer than", "memory", "made the decoder fail"


class FuzzError(RuntimeError):
    """Damage cost more than the damaged image; says what."""


def main() -> int:
    """Run rounds until the time is over."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutants", type=int, default=_MUTANTS, help="damaged images of a round")
    parser.add_argument(
        "--list", action="store_true", help="print each damaged image that became another row without a message"
    )
    parser.add_argument("--keep", type=Path, help="leave the folder of a failure there")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    started, rounds = time.monotonic(), 0
    counts: collections.Counter[str] = collections.Counter()
    while rounds == 0 or time.monotonic() - started < options.seconds:
        with tempfile.TemporaryDirectory(prefix="pixpack-fuzz-") as folder:
            try:
                found, silent = run_round(Path(folder), random.Random(f"{options.seed} {rounds}"), options.mutants)
            except FuzzError as e:
                print(f"fuzz_images: round {rounds} of seed {options.seed}: {e}", file=sys.stderr)
                if options.keep:
                    shutil.copytree(folder, options.keep)
                return 1
        counts += found
        for line in silent if options.list else ():
            print(f"round {rounds}: {line}")
        rounds += 1
    result = {"benchmark": "fuzz_images", "seed": options.seed, "rounds": rounds} | dict(sorted(counts.items()))
    print(json.dumps(result | {"seconds": round(time.monotonic() - started)}))
    return 0


def run_round(work: Path, rng: random.Random, mutants: int) -> tuple[collections.Counter[str], list[str]]:
    """Make a folder of damaged and untouched images, pack it, and compare.

    Returns the counts, and of each image that became another row without a message its name, kind and PSNR.

    Raises:
        FuzzError: anything is not as it must be.
    """
    originals = [
        (make_jpeg if rng.random() < 0.6 else make_other)(rng, 160) for _ in range(max(_UNTOUCHED, mutants // 5))
    ]
    damaged: dict[str, tuple[Original, bytes]] = {}
    images, clean = work / "images", work / "clean"
    for folder in (images, clean):
        folder.mkdir()
    for number in range(mutants):
        original = rng.choice(originals)
        name = f"{number:05}.{original.suffix}"
        damaged[name] = original, mutate(rng, original)
        (images / name).write_bytes(damaged[name][1])
    for number in range(_UNTOUCHED):
        # between the others, in the order of names
        name = f"{rng.randrange(mutants):05}_{number}.{originals[number].suffix}"
        for folder in (images, clean):
            (folder / name).write_bytes(originals[number].data)
    options = rng.choice(_OPTIONS)
    expected, _ = packed(clean, work / "expected", options)
    rows, rejects = packed(images, work / "out", options)
    check_neighbors(expected, rows)
    check_accounted(set(damaged) | set(expected), set(rows), rejects)
    decoder = make_decoder(options)
    counts = collections.Counter(images=len(damaged), untouched=_UNTOUCHED, rejected=len(rejects))
    silent = []
    for name, (original, data) in damaged.items():
        if original.suffix == "jpg":
            check_paths(name, data, options)
            counts["compared"] += 1
        if name in rows:
            record, pixels = rows[name]
            psnr = psnr_db(decoder.row(original.data).pixels, pixels)
            outcome = "warned" if "warnings" in record else "silent"
            counts += collections.Counter(rows=1, warned=outcome == "warned")
            if psnr < _VISIBLE_DB:
                counts += collections.Counter({f"differ_{outcome}": 1, f"differ_{outcome}_{original.suffix}": 1})
                silent += [f"{name}, {original.kind}, {psnr:.1f} dB"] if outcome == "silent" else []
    return counts, silent


def packed(
    images: Path, out: Path, options: tuple[str, ...]
) -> tuple[dict[str, tuple[dict[str, Any], bytes]], dict[str, str]]:
    """Pack and verify; returns the record and the pixels of each row, and the reason of each reject, by name.

    Raises:
        FuzzError: a command did not do what it must.
    """
    run("build", str(images), str(out), "--size", str(_SIDE), "--max-rejects", "100%",
        "--workers", "2", *options)  # fmt: skip
    run("verify", str(out))
    pixels = reader.MemmapDataset(out).numpy()
    samples = read_json_lines(out / SAMPLES)
    rows = {sample["path"]: (sample, pixels[row].tobytes()) for row, sample in enumerate(samples)}
    return rows, {line["path"]: line["reason"] for line in read_json_lines(out / REJECTED)}


def run(*arguments: str) -> None:
    """Run a command of pack within its limits.

    Raises:
        FuzzError: it took too long, failed, or printed a traceback.
    """
    command = [sys.executable, "-m", "packer", *arguments]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=_MOST_SECONDS, preexec_fn=_limit_memory
        )
    except subprocess.TimeoutExpired:
        raise FuzzError(f"pack {arguments[0]} took longer than {_MOST_SECONDS} s") from None
    if done.returncode or "Traceback" in done.stderr:
        raise FuzzError(f"pack {arguments[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


def _limit_memory() -> None:
    """Before exec: each process of the command is given so much."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    os.environ["OMP_NUM_THREADS"] = "1"


def check_neighbors(expected: dict[str, Any], rows: dict[str, Any]) -> None:
    """See that the untouched images have the rows and records of a clean pack."""
    lost = [name for name in expected if rows.get(name) != expected[name]]
    if lost or len(expected) != _UNTOUCHED:
        raise FuzzError(f"{len(lost)} untouched images of {len(expected)} are lost or differ: {lost[:5]}")


def check_accounted(names: set[str], rows: set[str], rejects: dict[str, str]) -> None:
    """See that each image is a row or a reject, for what it holds."""
    if rows | set(rejects) != names or rows & set(rejects):
        raise FuzzError(
            f"not a row or a reject, or both: {sorted((rows | set(rejects)) ^ names | rows & set(rejects))[:5]}"
        )
    for name, reason in rejects.items():
        if any(words in reason for words in _CRASHES) or not reason.startswith(("it ", "its ", "the ", "Pillow ")):
            raise FuzzError(f"{name} was rejected because {reason}")


def make_decoder(options: tuple[str, ...]) -> Decoder:
    """Return the decoder of a pack of these options."""
    fit = options[1] if options[:1] == ("--fit",) else "crop"
    channels = options[1] if options[:1] == ("--channels",) else "rgb"
    return Decoder(Geometry(_SIDE, _SIDE, fit), channels=channels, exact="--exact" in options)


def check_paths(name: str, data: bytes, options: tuple[str, ...]) -> None:
    """See that the compiled part and the Python path make the same of a JPEG."""
    found = [_row_or_reason(make_decoder(options), data)]
    with mock.patch.object(decode, "native", Native):
        found.append(_row_or_reason(make_decoder(options), data))
    if found[0] != found[1]:
        raise FuzzError(f"{name}: with the compiled part and without: {[str(one)[:300] for one in found]}")


def _row_or_reason(decoder: Decoder, data: bytes) -> Row | str:
    try:
        return decoder.row(data)
    except DecodeError as e:
        return str(e)


def psnr_db(first: bytes, second: bytes) -> float:
    """Return how alike two rows are: their peak signal-to-noise ratio in dB."""
    error = np.frombuffer(first, np.uint8).astype(float) - np.frombuffer(second, np.uint8)
    return 10 * math.log10(255**2 / max(float((error**2).mean()), 1e-9))


if __name__ == "__main__":
    sys.exit(main())
