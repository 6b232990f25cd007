"""Does a pack that was killed at any moment resume to the very bytes that an uninterrupted one gives?

    python -m scripts.stress.crash_test --images 3000 --kills 100

Two series, both on real processes and a real file system:

    random       the process group gets SIGKILL after a random time, --kills times, each on a pack of its own
    enumerated   the process group dies at the n-th write, sync, allocation, truncation, rename, new name or removal, for n = 1,
                 2, 3, ... until one run survives, for each kind of run (scripts/stress/_runs.py; small packs; a C shim counts the
                 calls, so a compiler is needed)

After each death of the random series: of the blocks that a worker began to decode, all but a few are committed. After each
death: no manifest means that opening says "incomplete" or that nothing was begun, in under 50 ms; then
`pack --resume` must end with the bytes of the uninterrupted pack, and must not decode
again what the journal says is committed. Prints one line a series and one JSON object last; exits 1 at the first failure.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from packer.store.journal import JOURNAL, read_blocks
from reader.format.check import check_store
from reader.format.errors import IncompleteStoreError, StoreError
from scripts.benchmarks._bench import BenchError, photographs, repeat_files
from scripts.stress._calls import Shim
from scripts.stress._runs import KINDS, PUSHING, Run, are_mixed, difference, files, make_run

_SIZE = 64
_OPEN_SECONDS = 0.05
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


class CrashError(RuntimeError):
    """A death that was not survived; says which, and what was found."""


def main() -> int:
    """Run both series."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--images", type=int, default=3000, help="images of the random series")
    parser.add_argument("--kills", type=int, default=100, help="deaths of the random series")
    parser.add_argument(
        "--enumerated-images", type=int, default=24, help="images of the enumerated series; 0: leave it out"
    )
    parser.add_argument("--every", type=int, default=1, help="die only at every so many of the calls")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="runs of the enumerated series")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results: dict[str, Any] = {"benchmark": "crash_test", "seed": options.seed}
    try:
        with tempfile.TemporaryDirectory(prefix="pixpack-crash-") as folder:
            work = Path(folder)
            if options.kills:
                results["random"] = random_series(work / "random", options)
            if options.enumerated_images:
                results["enumerated"] = enumerated_series(work / "enumerated", options)
    except (CrashError, BenchError) as e:
        print(f"crash_test: {e}", file=sys.stderr)
        return 1
    print(json.dumps(results))
    return 0


def random_series(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Kill packs at random moments between their first and their last breath."""
    images = _make_images(work / "images", options.images)
    whole, seconds = _reference(images, work, options.workers)
    draw = random.Random(options.seed)
    redecoded, lost, unfinished = [], [], 0
    for _ in range(options.kills):
        out, begun = work / "out", work / "begun"
        process = _start(images, out, options.workers, begun)
        time.sleep(draw.uniform(0.02, seconds))
        _kill_group(process)
        done, blocks = _committed(out)
        if _check_unfinished(out):
            unfinished += 1
            lost.append(((begun.stat().st_size if begun.exists() else 0) - blocks) / options.workers)
        begun.unlink(missing_ok=True)
        report = _resume(images, out, options.workers)
        redecoded.append(report["inputs"] - report["resumed_from"] - (options.images - done))
        if _digests(out) != whole:
            raise CrashError(f"seed {options.seed}: the resumed store differs: {_difference(_digests(out), whole)}")
        shutil.rmtree(out)
    if min(lost, default=0) < 0:
        raise CrashError("blocks were committed that no worker began: they are not counted")
    if max(lost, default=0) > _MOST_LOST:
        raise CrashError(f"a death cost {max(lost):.1f} blocks a worker, expected at most {_MOST_LOST}")
    print(
        f"random: {options.kills} of {options.kills} killed packs of {options.images} images resumed to the same bytes,"
    )
    print(f"        {unfinished} of them unfinished when killed; {max(redecoded)} committed images decoded again;")
    print(
        f"        of the blocks begun at most {max(lost, default=0):.1f} a worker were lost, {_mean(lost):.1f} on average"
    )
    result = {"images": options.images, "kills": options.kills, "unfinished": unfinished, "redone": max(redecoded)}
    return result | {"lost_blocks": max(lost, default=0), "mean_lost_blocks": round(_mean(lost), 2)}


def enumerated_series(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Die at the first call that changes a file, at the second, at the third, until a run survives; each kind of run."""
    deaths = {}
    for kind in options.kinds:
        (work / kind).mkdir(parents=True)
        run = make_run(kind, work / kind, options.enumerated_images)
        deaths[kind] = _die_everywhere(run, Shim(work / kind, run.disk), options.every)
        at = "each" if options.every == 1 else f"every {options.every}th"
        print(f"enumerated: {kind}: died at {at} of the calls that change a file, {deaths[kind]} times;", end=" ")
        print("every one went on to the same bytes")
    return {"images": options.enumerated_images, "deaths": sum(deaths.values()), "kinds": deaths}


def _die_everywhere(run: Run, shim: Shim, every: int) -> int:
    for deaths in itertools.count():
        n = 1 + deaths * every
        run.lay_out()
        done = shim.run(run.command(), at=n, do="die")
        if done.returncode not in (0, -signal.SIGKILL):
            raise CrashError(f"{run.kind} run, death at call {n}: exit code {done.returncode}: {done.stderr.strip()}")
        if done.returncode:
            if run.kind in PUSHING:
                _check_pushed(run, n)
            else:
                _check_unfinished(run.out)
            if are_mixed(run):
                raise CrashError(f"{run.kind} run, death at call {n}: an old and a new split open")
            run.go_on()
        if files(run.disk) != run.expected:
            raise CrashError(f"{run.kind} run, death at call {n}: {difference(files(run.disk), run.expected)} differ")
        if not done.returncode:
            return deaths
    raise AssertionError("unreachable")


def _check_pushed(run: Run, n: int) -> None:
    """See that a URL pulls as the old store or the new one, or, before the first was there, as none; a pulled OUT as a pack's."""
    if run.kind == "pull":
        _check_unfinished(run.out)
    elif problem := run.unreadable():
        raise CrashError(f"{run.kind} run, death at call {n}: {problem}")


def _make_images(folder: Path, count: int) -> Path:
    """Lay out count photographs, and one broken file in a hundred, in class folders."""
    repeat_files(photographs(None, folder.parent, _SIZE, most=count), folder, count, link=False)
    for n, path in enumerate(sorted(p for p in folder.rglob("*") if p.is_file())):
        if n % 100 == 50:
            path.unlink()
            path.write_text("broken")
    return folder


def _reference(images: Path, work: Path, workers: int) -> tuple[dict[str, str], float]:
    begun = time.monotonic()
    subprocess.run(_command(images, work / "whole", workers), check=True, stdout=subprocess.DEVNULL)
    return _digests(work / "whole"), time.monotonic() - begun


def _command(images: Path, out: Path, workers: int) -> list[str]:
    command = [sys.executable, "-m", "packer", str(images), str(out), "--size", str(_SIZE)]
    return [*command, "--workers", str(workers), "--max-rejects", "5%", "--json"]


def _start(images: Path, out: Path, workers: int, begun: Path) -> subprocess.Popen[str]:
    """Start a pack that writes a byte into the file begun for each block that a worker begins."""
    return subprocess.Popen(
        [sys.executable, "-c", _COUNTED, str(begun), *_command(images, out, workers)[3:]],
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
    if not (out / JOURNAL).is_file():
        return 0, 0
    inputs = [result.inputs for result, _ in read_blocks(out)]
    return sum(inputs), len(inputs)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _check_unfinished(out: Path) -> bool:
    """See that a store without a manifest is called incomplete, or is not there at all; returns whether it was."""
    if (out / "manifest.json").exists():
        check_store(out)
        return False
    took = min(_seconds_to_refuse(out) for _ in range(3))  # other programs may hold the core for longer than that once
    if took > _OPEN_SECONDS:
        raise CrashError(f"it took {took:.3f} s to say that a store is incomplete")
    return True


def _seconds_to_refuse(out: Path) -> float:
    begun = time.monotonic()
    try:
        check_store(out)
    except IncompleteStoreError:
        pass
    except StoreError as e:
        if (out / JOURNAL).exists():
            raise CrashError(f"an unfinished store is called: {e}") from e
    else:
        raise CrashError("an unfinished store opens")
    return time.monotonic() - begun


def _resume(images: Path, out: Path, workers: int) -> dict[str, Any]:
    done = subprocess.run([*_command(images, out, workers), "--resume"], capture_output=True, text=True)
    if done.returncode != 0:
        raise CrashError(f"the resume exits with {done.returncode}: {done.stderr.strip()}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _digests(out: Path) -> dict[str, str]:
    """Return the sha256 of every file: the store is that, and nothing else may lie in it."""
    files = sorted(p for p in out.rglob("*") if p.is_file())
    return {str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def _difference(found: dict[str, str], expected: dict[str, str]) -> str:
    return ", ".join(sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)))


if __name__ == "__main__":
    sys.exit(main())
