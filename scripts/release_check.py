"""Does what would be released install into an empty environment, and run there?

    python -m scripts.release_check               builds into dist/; needs a network; a few minutes
    python -m scripts.release_check --installed   only uses the pixpack that this Python has installed

Builds an sdist from what git has committed here, and the wheel from that sdist, with `python -m build`. Then installs each, with
all that it asks for, into a virtual environment of its own under an empty home; packs, verifies, draws and reads a few images
there with the command and from Python; and looks at what is inside both. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from scripts import ROOT
from scripts.common.fresh import Failed, Fresh

# In the wheel nothing but the four packages; in the sdist what its tests need.
WHEEL_HAS = (
    "packer/cli/app.py",
    "packer/py.typed",
    "pixpack/__init__.py",
    "pixpack/py.typed",
    "pixpack_native/__init__.py",
    "pixpack_native/py.typed",
    "reader/loading/loader.py",
    "reader/FORMAT.md",
    "reader/py.typed",
)
# Where a compiler and libjpeg-turbo's headers are; elsewhere the wheel goes without.
COMPILED = "pixpack_native/_native."
SDIST_HAS = (
    "README.md",
    "pixpack_native/native.c",
    "pixpack_native/photographs.c",
    "pixpack_native/resample.h",
    "LICENSE",
    "CHANGELOG.md",
    "tests/golden/v1.0/manifest.json",
    "examples/train.py",
    "docs/reference/cli/build.md",
)

MAKE_IMAGES = """
import pathlib
from PIL import Image
for n in range(6):
    folder = pathlib.Path("images", f"class{n % 2}")
    folder.mkdir(parents=True, exist_ok=True)
    Image.linear_gradient("L").rotate(30 * n).resize((64 + n, 48)).convert("RGB").save(folder / f"{n}.jpg")
"""

READ = """
import importlib.resources, sys
import packer, pixpack, reader, torch
from reader import MemmapDataset, MemmapLoader, Normalize
assert packer.__file__.startswith(sys.prefix) and reader.__file__.startswith(sys.prefix), (packer.__file__, reader.__file__)
assert pixpack.MemmapDataset is MemmapDataset and pixpack.pack is packer.pack
assert importlib.resources.files("reader").joinpath("FORMAT.md").is_file()
data = MemmapDataset("out")
images, targets = next(iter(MemmapLoader(data, batch_size=6, shuffle=True)))
assert images.shape == (6, 3, 32, 32) and sorted(targets.tolist()) == [0, 0, 0, 1, 1, 1]
assert Normalize.of(data.manifest)(images).isfinite().all()
report = packer.pack("images", "out2", size=32, workers=1)
assert report.rows == 6 and open("out/manifest.json").read() == open("out2/manifest.json").read()
print(packer.__version__, torch.__version__)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where sdist and wheel go (default: dist/)")
    parser.add_argument("--installed", action="store_true", help="build nothing: use what this Python has installed")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pixpack-release-"))
    report: dict[str, object] = {}
    try:
        if options.installed:
            report["installed"] = use(lambda command: run_installed(command, folder))
        built = [] if options.installed else build(folder / "build", options.dist)
        for path in built:
            report[path.name] = trial(path, folder / path.suffix.strip("."))
    except Failed as e:
        print(f"release_check: {e}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder)
    print(json.dumps({"release_check": report}))
    return 0


def build(folder: Path, dist: Path) -> list[Path]:
    """Build from the files that git tracks, and look inside; returns [sdist, wheel]."""
    fresh = Fresh(folder)
    with fresh.stage("build"):
        source = fresh.work / "source"
        fresh.run(["git", "clone", "--quiet", ROOT, source])
        fresh.venv("builder")
        fresh.run(["pip", "install", "build"])
        fresh.run(["python", "-m", "build", "--outdir", dist.absolute(), source])
    version = fresh.run(["python", "-c", "import packer; print(packer.__version__)"], cwd=source).strip()
    sdist, wheel = dist / f"pixpack-{version}.tar.gz", max(dist.glob(f"pixpack-{version}-*.whl"), key=os.path.getmtime)
    with tarfile.open(sdist) as archive:
        lacks("sdist", {name.partition("/")[2] for name in archive.getnames()}, SDIST_HAS)
    names = set(zipfile.ZipFile(wheel).namelist())
    lacks("wheel", names, WHEEL_HAS)
    own = {"packer", "pixpack", "pixpack_native", "reader", f"pixpack-{version}.dist-info"}
    foreign = {name for name in names if name.split("/")[0] not in own}
    if foreign:
        raise Failed(
            f"the wheel holds {sorted(foreign)[:5]}, expected packer, pixpack, pixpack_native and reader alone."
        )
    print(
        f"built {sdist.name} and {wheel.name} in {fresh.seconds['build']:.0f} s: {len(names)} files in the wheel,"
        f" {'with' if any(name.startswith(COMPILED) for name in names) else 'without'} the compiled part"
    )
    return [sdist, wheel]


def lacks(what: str, names: set[str], expected: tuple[str, ...]) -> None:
    missing = [name for name in expected if name not in names]
    if missing:
        raise Failed(f"the {what} lacks {', '.join(missing)}.")


def trial(path: Path, folder: Path) -> dict[str, float | str]:
    """Install a file into an empty environment and use it there."""
    fresh = Fresh(folder)
    with fresh.stage(f"install {path.name}"):
        fresh.venv("venv")
        fresh.run(["pip", "install", path.absolute()])
    with fresh.stage("pack, verify, show, read"):
        versions = use(fresh.run)
        fresh.run(["pip", "check"])
    print(f"{path.name}: installs and runs\n{fresh.table()}")
    return fresh.rounded() | {"version": versions[0], "torch": versions[1]}


def use(run: Callable[[list[str]], str]) -> list[str]:
    """Pack, verify, draw and read a few images; returns the versions of pixpack and torch."""
    run(["python", "-c", MAKE_IMAGES])
    run(["pack", "images", "out", "--size", "32"])
    run(["pixpack", "verify", "out"])
    run(["python", "-m", "packer", "show", "out", "-o", "sheet.png"])
    versions = run(["python", "-c", READ]).split()
    run(["pack", "doctor", "--json"])
    return versions


def run_installed(command: list[str], folder: Path) -> str:
    """Run a command of `use` by this Python, wherever its scripts are.

    Raises:
        Failed: it did not end with exit code 0.
    """
    words = [sys.executable, *(["-m", "packer"] if command[0] in ("pack", "pixpack") else []), *command[1:]]
    # a folder of its own, and nothing of this checkout on the path: what is installed is imported
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise Failed(f"{' '.join(command)[:200]} ended with {done.returncode}: {(done.stderr or done.stdout)[-600:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
