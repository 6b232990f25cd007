"""Does a network learn as much from images that grow over the epochs as at one size, and in how much of the time?

    python -m scripts.studies.ramp

Draws photographs, packs them with a level, and runs examples/progressive.py: both ways from the same seeds, in turns. Each
photograph is one drawn scene, seen through another one of another class at --mix: no network is right about all of them. Those
that are measured on are drawn from other scenes than those that are learned from, and the last half of the epochs has the full
size. Reported: accuracy of each way, mean and standard error over the seeds; the difference, each seed beside itself; and
the share of the time.
"""

from __future__ import annotations

import math
import re
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from packer import PackError, pack
from reader.system import available_cpus
from scripts.common.arguments import bench_parser
from scripts.common.figures import machine, publish, table
from scripts.samples.scenes import SCENES, draw

# Of a photograph, drawn small: rows are smaller yet.
SIDES = 128, 160
# What the example prints of each run.
RUN = re.compile(r"seed (\d+), crops of ([\d to]+): held out ([\d.]+), trained in ([\d.]+) s")


def main() -> int:
    parser = bench_parser(__doc__, count=1020, size=96, batch_size=64, json=None)
    parser.add_argument("--held-out", type=int, default=600, help="photographs to measure on")
    parser.add_argument("--mix", type=float, default=0.35, help="share of the other scene in a photograph, 0 to 0.5")
    parser.add_argument("--first", type=int, default=48, help="side of crops in the first epoch")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.count % len(SCENES) or options.held_out % len(SCENES):
        parser.error(
            f"--count and --held-out are {options.count} and {options.held_out}, expected multiples of {len(SCENES)}."
        )
    try:
        with tempfile.TemporaryDirectory(prefix="pixpack-ramp-") as folder:
            report = measure(Path(folder), options)
    except (PackError, RuntimeError) as e:
        print(f"ramp: {e}", file=sys.stderr)
        return 1
    print(text(report))
    publish(report, options.json)
    return 0


def measure(work: Path, options: Namespace) -> dict[str, Any]:
    """Draw, pack and train."""
    for split, count in (("train", options.count), ("val", options.held_out)):
        draw_photographs(work / "images" / split, count, options.mix)
    # rows a little larger than crops, even on the level
    pack(work / "images", work / "out", size=options.size * 7 // 6 // 2 * 2, levels=2, max_rejects=0)
    words = {"val": work / "out" / "val", "size": options.size, "first": options.first, "multiple": 16, "device": "cpu"}
    words |= {"epochs": options.epochs, "seeds": options.seeds, "batch-size": options.batch_size}
    command = [sys.executable, "examples/progressive.py", str(work / "out" / "train")]
    command += [str(word) for name, value in words.items() for word in (f"--{name}", value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    runs = RUN.findall(done.stdout)
    if done.returncode or len(runs) != 2 * options.seeds:
        raise RuntimeError(f"examples/progressive.py ended with {done.returncode}, and printed {done.stdout!r}.")
    ways = {True: "grows", False: "one size"}
    found: dict[str, dict[int, tuple[float, float]]] = {way: {} for way in ways.values()}
    for seed, sides, accuracy, seconds in runs:
        found[ways["to" in sides]][int(seed)] = float(accuracy), float(seconds)
    pairs = [(found["grows"][seed], found["one size"][seed]) for seed in range(options.seeds)]
    return {
        "benchmark": "ramp",
        "machine": machine(work),
        **{
            name: getattr(options, name)
            for name in ("count", "held_out", "mix", "size", "first", "batch_size", "epochs", "seeds")
        },
        "accuracy": {way: mean_and_error([accuracy for accuracy, _ in each.values()]) for way, each in found.items()},
        "difference": mean_and_error([grown - fixed for (grown, _), (fixed, _) in pairs]),
        "seconds": {way: [seconds for _, seconds in each.values()] for way, each in found.items()},
        "share_of_time": mean_and_error([grown / fixed for (_, grown), (_, fixed) in pairs]),
    }


def draw_photographs(folder: Path, count: int, mix: float) -> None:
    """Draw photographs into class folders, named by the scene of which they have more."""
    with ProcessPoolExecutor(available_cpus()) as pool:
        scenes = list(pool.map(partial(draw_scene, folder.name), range(count), chunksize=8))
    rng = np.random.default_rng(count)
    names = sorted(SCENES)
    for n, scene in enumerate(scenes):
        # one of another class
        other = scenes[
            (n + int(rng.integers(1, len(names))) + len(names) * int(rng.integers(count // len(names)))) % count
        ]
        path = folder / names[n % len(names)] / f"{n:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.blend(Image.fromarray(scene), Image.fromarray(other), mix).save(path, quality=90)


def draw_scene(split: str, number: int) -> np.ndarray:
    """Draw a scene: uint8[H, W, 3]; its class is its number's turn."""
    rng = np.random.default_rng([len(split), number])
    return draw(sorted(SCENES)[number % len(SCENES)], rng, *SIDES)


def mean_and_error(values: list[float]) -> dict[str, float]:
    """Return the mean, and its standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {"mean": round(statistics.mean(values), 4), "standard_error": round(error, 4)}


def text(report: dict[str, Any]) -> str:
    """Draw the report for a person."""
    lines = [["", "held out", "standard error", "seconds"]]
    for way, accuracy in report["accuracy"].items():
        seconds = " ".join(f"{value:.1f}" for value in report["seconds"][way])
        lines.append([way, f"{accuracy['mean']:.3f}", f"{accuracy['standard_error']:.3f}", seconds])
    difference, share = report["difference"], report["share_of_time"]
    return (
        f"{table(lines)}\ndifference {difference['mean']:+.3f}, standard error {difference['standard_error']:.3f};"
        f" {share['mean']:.2f} of the time, standard error {share['standard_error']:.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
