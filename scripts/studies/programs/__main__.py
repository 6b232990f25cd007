"""Run training programs as others write them, and the same on a store, in turns: losses, loading time.

    python -m scripts.studies.programs                      every program, into ./programs-results
    python -m scripts.studies.programs --only simclr        one of them
    python -m scripts.studies.programs --checkout timm_train=../pytorch-image-models   not the stand-ins: the program itself
    python -m scripts.studies.programs --redraw             table and picture again from the figures in --out

A stand-in is a folder beside this file: original.py has the structure of a program that others published, with its transforms,
its samplers, its loop and its evaluation; dataset.diff and loader.diff change it to read by MemmapDataset and by MemmapLoader.
Its model is a linear layer on a grid of means: the seconds of an epoch are those of loading. Images are those of --images, class
folders, of which every fourth is evaluated on; or drawn ones. They are packed once, as README says: --fit none --max-size 512.
Programs that detect read drawn images with boxes, packed with --fit none. FFCV's program, which needs its own files and CUDA,
has no stand-in.

For each of --seeds seeds both run, the order changing. Losses: of the evaluation after the last epoch, or of training where the
program has no evaluation; two programs learn the same where the means are within three standard errors. Seconds: of all
training epochs of a run, its workers' start included. Ratios are taken within a seed. Bound: the ratio with data that costs
nothing, of the program under MemmapLoader when every step gives the first batch again. Packages come from the package index
into a virtual environment below --work that sees the packages of this one, unless they are here.

The programs themselves live in repositories, and are not copied: edits/ holds the lines that change, as diffs without context.
--checkout applies them to copies of a checkout of the commit that edits/edits.json names, compiles them, and runs original and
ways in turns where the program can run without CUDA and the internet: the loss that it prints, and the seconds in which it waits
for batches of training and evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

try:
    from scripts.studies.programs import _show
except ModuleNotFoundError as e:
    sys.exit(f"scripts.studies.programs needs {e.name}: pip install 'pixpack[test]'")
from packer import pack
from scripts.common.arguments import Count, bench_parser
from scripts.common.figures import BenchmarkError, machine, photographs, publish
from scripts.studies.peers._environment import NotInstalled
from scripts.studies.programs._boxes import make_boxes
from scripts.studies.programs._checkouts import measure_checkout
from scripts.studies.programs._edits import EditError, Edits
from scripts.studies.programs._environment import python_with, versions_of
from scripts.studies.programs._programs import PROGRAMS, Program
from scripts.studies.programs._turns import FREE, Runner, compare

# Every fourth image is evaluated on.
_HELD_OUT = 4
# Side of the images of programs that have all of them in memory.
_SMALL = 32


def main() -> int:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    try:
        images = None if options.redraw else given_images(options)
        if options.checkout and images:
            return measure_checkouts(images, options)
    except (BenchmarkError, EditError) as e:
        print(f"programs: {e}", file=sys.stderr)
        return 1
    for name in options.only or PROGRAMS if images else []:
        print(f"programs: {name}", file=sys.stderr, flush=True)
        (options.out / f"{name}.json").write_text(json.dumps(measure(PROGRAMS[name], options)) + "\n", encoding="ascii")
    found = {
        name: json.loads(path.read_text()) | {"title": program.title}
        for name, program in PROGRAMS.items()
        if (path := options.out / f"{name}.json").exists()
    }
    print(_show.table(found))
    _show.save(found, options.out)
    publish({"study": "programs", "programs": found}, None)
    return 1 if any("failed" in way for report in found.values() for way in report["ways"].values()) else 0


def parse() -> argparse.Namespace:
    work = Path(tempfile.gettempdir()) / "pixpack-programs"
    about = {"count": "images, repeated", "work": "environments, images and stores stay there"}
    parser = bench_parser(__doc__, about=about, images=None, count=400, batch_size=32, workers=2, work=work)
    parser.prog = "scripts.studies.programs"
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, metavar="NAME", help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--seeds", action=Count, default=5, help="turns of each, with a seed each (default: 5)")
    parser.add_argument("--epochs", action=Count, default=3, help="of each run (default: 3)")
    parser.add_argument(
        "--checkout",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="instead of the stand-ins: apply our edits to copies of it, and run them",
    )
    parser.add_argument("--redraw", action="store_true", help="measure nothing; draw what is in --out again")
    parser.add_argument("--out", type=Path, default=Path("programs-results"), help="default: ./programs-results")
    return parser.parse_args()


def given_images(options: argparse.Namespace) -> Path:
    """Make work/images of links to photographs, work/small/images of small ones, with train and val, and pack both."""
    by_class: dict[str, list[Path]] = {}
    for photo in photographs(options.images, options.work, 224):
        by_class.setdefault(photo.folder, []).append(photo.path.absolute())
    # as many of each class, so that all classes are among few images too
    each = max(2 * _HELD_OUT, -(-options.count // max(1, len(by_class))))
    chosen = [
        ("train" if n % _HELD_OUT else "val", folder, path)
        for folder, paths in by_class.items()
        if len(paths) >= 2 * _HELD_OUT
        for n, path in enumerate(paths[:each])
    ]
    if not chosen:
        raise BenchmarkError(
            f"no class has {2 * _HELD_OUT} photographs, of which some are held out. Give --images DIR."
        )
    images = options.work / "images"
    shutil.rmtree(images, ignore_errors=True)
    for n in range(options.count):
        split, folder, path = chosen[n % len(chosen)]
        link = images / split / folder / f"{n:06}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    pack(images, packed_of(images), fit="none", max_size=512, overwrite=True)
    small = options.work / "small" / "images"
    shutil.rmtree(small, ignore_errors=True)
    for path in images.rglob("*.jpg"):
        made = small / path.relative_to(images).with_suffix(".png")
        made.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).convert("RGB").resize((_SMALL, _SMALL)).save(made)
    pack(small, packed_of(small), overwrite=True)
    shutil.rmtree(options.work / "boxes", ignore_errors=True)
    make_boxes(options.work / "boxes", {"train": options.count, "val": max(1, options.count // _HELD_OUT)})
    return images


def packed_of(images: Path) -> Path:
    """Name the folder of the stores that images are packed into."""
    return images.with_name("packed")


def measure(program: Program, options: argparse.Namespace) -> dict[str, Any]:
    """Run a program and its versions on a store; or say why that could not be."""
    report: dict[str, Any] = {
        "machine": machine(options.work),
        "ways": {},
    }
    words = ["--epochs", options.epochs, "--batch-size", options.batch_size, "--workers", options.workers]
    words += ["--size", program.size]
    try:
        python = (
            python_with(program.requirements, options.work / "environments")
            if program.lacking()
            else Path(sys.executable)
        )
    except NotInstalled as e:
        return report | {"lacks": str(e)}
    programs = {"original": program.original, **program.write_ways(options.work / "programs")}
    if "loader" in programs:
        programs[FREE] = programs["loader"]
    folder = options.work / program.data / "images"
    data = {name: folder if name == "original" else packed_of(folder) for name in programs}
    with Runner([*programs.values()], python=python) as runner:
        found = compare(runner, programs, data, range(options.seeds), words)
    for way in program.ways():
        report["ways"][way] = found[way]
    if "faster" in found.get(FREE, {}):
        report["ways"]["loader"]["bound"] = found[FREE]["faster"]
    shown = {"images": options.count, "words": " ".join(map(str, words)), "seeds": options.seeds}
    return report | shown | {"versions": versions_of(python, program.needs), "load_after": round(os.getloadavg()[0], 2)}


def measure_checkouts(images: Path, options: argparse.Namespace) -> int:
    """Run the programs of the named checkouts in turns; prints and writes a report of each."""
    known, code = Edits.all(), 0
    for name, path in (pair.split("=", 1) for pair in options.checkout):
        if name not in known:
            raise EditError(f"there are no edits of {name!r}, but of {', '.join(known)}.")
        work = options.work / "checkouts" / name
        data = {"original": images, "store": packed_of(images)}
        found = measure_checkout(known[name], Path(path), work, data, options.seeds)
        code |= "failed" in found
        report = {"program": name, "machine": machine(options.work), "images": options.count, "ways": found}
        (options.out / f"{name}.checkout.json").write_text(json.dumps(report) + "\n", encoding="ascii")
        publish(report, None)
    return code


if __name__ == "__main__":
    sys.exit(main())
