"""Does a pack straight to a URL that was killed at any moment resume to the very store that an uninterrupted one gives?

    python -m scripts.stress.network.upload_test --images 1000 --kills 100

The process group of a real pack to a file:// URL gets SIGKILL after a random time, --kills times in all: a pack, then its resume,
each of which finds nothing but what is at the URL. After each death the URL holds the complete store, or no pull takes it. Then
`pack --resume` must end with the bytes of the uninterrupted pack, and leave nothing at the URL but the store. Prints what was
seen and one JSON object last; exits 1 at the first failure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from packer import PackError, pull
from reader.format.manifest import MANIFEST
from scripts.common.arguments import counts_parser
from scripts.common.program import reported
from scripts.stress._runs import TrialError, difference, digests
from scripts.stress.crash.crash_test import _kill_group, _make_images, _reference

_SIZE = 64
# Of each URL: a pack, and its first resume.
_DEATHS = 2


def main() -> int:
    """Kill packs to a URL."""
    options = counts_parser(__doc__, images=1000, kills=100, workers=2, seed=0).parse_args()
    return reported("upload_test", lambda work: {"seed": options.seed} | kill_at_random(work, options))


def kill_at_random(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Kill packs and their resumes, and compare what the last resume of each makes."""
    images = _make_images(work / "images", options.images)
    expected, seconds = _reference(images, work, options.workers)
    draw, unfinished, resumed = random.Random(options.seed), 0, 0
    for number in range(-(-options.kills // _DEATHS)):
        target = work / "url"
        for death in range(min(_DEATHS, options.kills - number * _DEATHS)):
            process = _started(images, target, options.workers, work, is_resumed=death > 0)
            time.sleep(draw.uniform(0.02, 1.5 * seconds))
            _kill_group(process)
            unfinished += _is_unfinished(target, work)
        report = _ended(_started(images, target, options.workers, work, is_resumed=True))
        resumed += report["resumed_from"] > 0
        pull(target.as_uri(), work / "pulled")
        if (found := digests(work / "pulled")) != expected:
            raise TrialError(f"seed {options.seed}: the store differs: {difference(found, expected)}")
        if left := [
            p.name for p in target.rglob("*") if p.is_file() and (".packing" in p.parts or "pushing" in p.name)
        ]:
            raise TrialError(f"seed {options.seed}: left at the URL: {left}")
        for folder in (target, work / "pulled", work / "tmp"):
            shutil.rmtree(folder)
    print(f"{options.kills} packs of {options.images} images to a URL killed, {unfinished} of them unfinished;")
    print(f"{number + 1} of {number + 1} URLs resumed to the same bytes, {resumed} of them from a journal with blocks")
    return {"images": options.images, "kills": options.kills, "unfinished": unfinished, "resumed": resumed}


def _started(images: Path, target: Path, workers: int, work: Path, *, is_resumed: bool) -> subprocess.Popen[str]:
    (work / "tmp").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "packer", str(images), target.as_uri(), "--size", str(_SIZE), "--json"]
    return subprocess.Popen(
        [*command, "--workers", str(workers), "--max-rejects", "5%", *(["--resume"] if is_resumed else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(work / "tmp")},
        text=True,
        start_new_session=True,
    )


def _ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=600)
    if process.returncode:
        raise TrialError(f"the resume exits with {process.returncode}: {errors.strip()}")
    report: dict[str, Any] = json.loads(output)
    return report


def _is_unfinished(target: Path, work: Path) -> bool:
    """Whether the URL holds no store yet, which then no pull takes."""
    if (target / MANIFEST).exists():
        return False
    try:
        pull(target.as_uri(), work / "pulled")
    except PackError:
        return True
    raise TrialError("a URL without a manifest was pulled")


if __name__ == "__main__":
    sys.exit(main())
