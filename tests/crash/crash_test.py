"""Does a pack that was killed at any moment resume to the very bytes that an uninterrupted one gives?

    python -m tests.crash.crash_test --images 3000 --kills 100

The process group of a real pack gets SIGKILL after a random time, --kills times, each on a pack of its own; fault_test kills at
each call. After each death: of the blocks that a worker began to decode, all but a few are committed; no manifest means that
opening says "incomplete" or that nothing was begun, in under 50 ms; then the same line must end with the bytes of the
uninterrupted pack, and must not decode again what the journal says is committed. Prints what was seen and one JSON object last;
exits 1 at the first failure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from packer.store.journal import JOURNAL, read_blocks
from tests.crash._program import TrialError, counts_parser, draw_photographs, reported
from tests.crash._runs import check_unfinished, difference, digests, stage_of

_SIZE = 64
# Blocks that a worker began and that a death costs: those that it may hold (engine.py, _DEPTH), and its share of those that
# wait to be committed while others are (disk.py, _PENDING_BLOCKS a worker, twice). An image that takes seconds may cost more: the
# others work on, but cannot be committed before it.
_MOST_LOST = 8
# The command, with a line in a file for each block that a worker begins: a killed process leaves what it has written.
_COUNTED = """
import os, sys
from packer.cli.app import run
from packer.workers.block_worker import BlockWorker
decode, begun = BlockWorker.decode, os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
def counted(worker, task):
    os.write(begun, b".")
    return decode(worker, task)
BlockWorker.decode = counted
sys.exit(run(sys.argv[2:]))
"""


def main() -> int:
    """Kill packs."""
    options = counts_parser(__doc__, images=3000, kills=100, workers=2, seed=0).parse_args()
    return reported("crash_test", lambda work: {"seed": options.seed} | kill_at_random(work, options))


def kill_at_random(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Kill packs at random moments between their first and their last breath."""
    images = _make_images(work / "images", options.images)
    expected, seconds = _reference(images, work, options.workers)
    draw = random.Random(options.seed)
    redecoded, lost, unfinished = [], [], 0
    for _ in range(options.kills):
        out, decoded = work / "out", work / "begun"
        process = _start(images, out, options.workers, decoded)
        time.sleep(draw.uniform(0.02, seconds))
        _kill_group(process)
        done, blocks = _committed(out)
        if check_unfinished(out):
            unfinished += 1
            lost.append(((decoded.stat().st_size if decoded.exists() else 0) - blocks) / options.workers)
        decoded.unlink(missing_ok=True)
        report = _resume(images, out, options.workers)
        redecoded.append(report["inputs"] - report["resumed_from"] - (options.images - done))
        if digests(out) != expected:
            raise TrialError(f"seed {options.seed}: the resumed store differs: {difference(digests(out), expected)}")
        shutil.rmtree(out)
    if min(lost, default=0) < 0:
        raise TrialError("blocks were committed that no worker began: they are not counted")
    if max(lost, default=0) > _MOST_LOST:
        raise TrialError(f"a death cost {max(lost):.1f} blocks a worker, expected at most {_MOST_LOST}")
    print(f"{options.kills} of {options.kills} killed packs of {options.images} images resumed to the same bytes,")
    print(f"{unfinished} of them unfinished when killed; {max(redecoded)} committed images decoded again;")
    print(f"of the blocks begun at most {max(lost, default=0):.1f} a worker were lost, {_mean(lost):.1f} on average")
    result = {"images": options.images, "kills": options.kills, "unfinished": unfinished, "redone": max(redecoded)}
    return result | {"lost_blocks": max(lost, default=0), "mean_lost_blocks": round(_mean(lost), 2)}


def _make_images(folder: Path, count: int) -> Path:
    """Lay out count photographs, and one broken file in a hundred, in class folders."""
    draw_photographs(folder, count)
    for n, path in enumerate(sorted(p for p in folder.rglob("*") if p.is_file())):
        if n % 100 == 50:
            path.unlink()
            path.write_text("broken")
    return folder


def _reference(images: Path, work: Path, workers: int) -> tuple[dict[str, str], float]:
    command = _command(images, work / "expected", workers)
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return digests(work / "expected"), time.perf_counter() - started


def _command(images: Path, out: Path, workers: int) -> list[str]:
    command = [sys.executable, "-m", "packer", str(images), str(out), "--size", str(_SIZE)]
    return [*command, "--workers", str(workers), "--max-rejects", "5%", "--json"]


def _start(images: Path, out: Path, workers: int, decoded: Path) -> subprocess.Popen[str]:
    """Start a pack that writes a byte into the file begun for each block that a worker begins."""
    return subprocess.Popen(
        [sys.executable, "-c", _COUNTED, str(decoded), *_command(images, out, workers)[3:]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _committed(out: Path) -> tuple[int, int]:
    """Count the inputs whose block is in the journal, and those blocks: a resume should not decode them again."""
    stage = stage_of(out)
    if not (stage / JOURNAL).is_file():
        return 0, 0
    inputs = [result.inputs for result, _ in read_blocks(stage)]
    return sum(inputs), len(inputs)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _resume(images: Path, out: Path, workers: int) -> dict[str, Any]:
    done = subprocess.run([*_command(images, out, workers)], capture_output=True, text=True)
    if done.returncode != 0:
        raise TrialError(f"the resume exits with {done.returncode}: {done.stderr.strip()}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


if __name__ == "__main__":
    sys.exit(main())
