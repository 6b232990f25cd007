"""How long does a newcomer wait from cloning to the first batch of their own photographs, and what takes the time?

    python -m scripts.benchmarks.packing.first_batch IMAGES                      git clone, pip install, pack, read
    python -m scripts.benchmarks.packing.first_batch IMAGES --way quickstart     git clone, scripts/quickstart, read

Runs under an empty home, in a new virtual environment, with an empty cache of pip; the system's packages stay. IMAGES is a
folder of class folders, --from what is cloned (default: this checkout). Each stage is timed. The batch is checked: as many rows
as asked for, of the size asked for, not all the same. A network is needed, and how fast it is decides most of it. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

from scripts import ROOT
from scripts.common.fresh import Failed, Fresh

BATCH, SIZE = 64, 224

# What quickstart says when -> what begins then.
QUICKSTART = {
    "Making .venv": "make the virtual environment",
    "Installing with apt-get": "install system packages",
    "Installing torch": "install torch",
    "Installing the other": "install the other packages",
    "Building Pillow-SIMD": "build Pillow-SIMD",
    "$ pack verify": "verify",
    "$ pack bench": "time reading beside its limits",
    "$ pack show": "draw a contact sheet",
    "$ pack": "pack",
}

READ = f"""
import json, time
start = time.perf_counter()
from reader import MemmapDataset, MemmapLoader
imported = time.perf_counter()
images, targets = next(iter(MemmapLoader(MemmapDataset("packed"), batch_size={BATCH}, shuffle=True)))
done = time.perf_counter()
assert images.shape[2:] == ({SIZE}, {SIZE}) and len(targets) == min({BATCH}, len(MemmapDataset("packed")))
assert images.float().std() > 1, "all pixels are the same"
print(json.dumps({{"import torch and reader": imported - start, "open the store, take a batch": done - imported}}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("images", type=Path, help="a folder of class folders")
    parser.add_argument("--way", choices=["pip", "quickstart"], default="pip")
    parser.add_argument("--from", dest="source", default=str(ROOT), metavar="REPOSITORY", help="what git clones")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pixpack-newcomer-"))
    fresh = Fresh(folder)
    try:
        with fresh.stage("git clone"):
            fresh.run(["git", "clone", "--quiet", options.source, "pixpack"])
        (by_pip if options.way == "pip" else by_quickstart)(fresh, options.images.absolute())
        reported = json.loads(fresh.run(["python", "-c", READ]))
    except Failed as e:
        print(f"first_batch: {e}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder)
    fresh.seconds |= reported
    print(fresh.table())
    machine = {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}
    machine |= {"date": time.strftime("%Y-%m-%d", time.gmtime()), "load_average": round(os.getloadavg()[0], 2)}
    print(json.dumps({"first_batch": fresh.rounded(), "way": options.way, "machine": machine}))
    return 0


def by_pip(fresh: Fresh, images: Path) -> None:
    with fresh.stage("make the virtual environment"):
        fresh.venv("venv")
    # apart from the rest only to be timed: `pip install .` brings it
    with fresh.stage("install torch"):
        fresh.run(["pip", "install", "torch"])
    with fresh.stage("install the other packages"):
        fresh.run(["pip", "install", "./pixpack"])
    with fresh.stage("pack"):
        fresh.run(["pack", images, "packed", "--size", str(SIZE)])


def by_quickstart(fresh: Fresh, images: Path) -> None:
    clone = fresh.work / "pixpack"
    # a Python without packages of its own, or quickstart would reuse its torch
    fresh.venv("python")
    fresh.follow([clone / "scripts" / "quickstart", images, fresh.work / "packed"], QUICKSTART, cwd=clone)
    fresh.use(clone / ".venv")


if __name__ == "__main__":
    sys.exit(main())
