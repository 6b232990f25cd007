"""What does the command `pack` take beside the images: a pack of 8 photographs, from before its start to after its end?

    python -m scripts.benchmarks.packing.bench_start --count 8 --runs 40
    python -m scripts.benchmarks.packing.bench_start --against ../other-checkout

In turns: `pack` of photographs of 500 x 375 to 224 x 224, `pack --help`, and Python that does nothing. --against packs by another
checkout, too, with this Python; its compiled part has to be built there. Checked: no input is rejected.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from scripts import ROOT
from scripts.benchmarks.packing._pack_ways import command_environment
from scripts.benchmarks.packing.bench_inputs import DRAWN, children_seconds, drawn
from scripts.common.arguments import bench_parser
from scripts.common.figures import BenchmarkError, machine, ratios, spread, table
from scripts.common.program import reported
from scripts.common.timing import in_turns, timed


def main() -> int:
    options = parse()
    return reported("bench_start", lambda work: measure(work, options), json=options.json, work=options.work)


def measure(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Take turns, and print a table."""
    images = drawn(work / "images", options.count, DRAWN[::-1], "jpg")
    pack = ["-m", "packer", str(images), str(work / "out"), "--size", "224", "--max-rejects", "0"]
    ways = {
        "pack": partial(run, pack, ROOT, work),
        "help": partial(run, ["-m", "packer", "--help"], ROOT, work),
        "python": partial(run, ["-c", "pass"], ROOT, work),
    }
    if options.against is not None:
        ways["against"] = partial(run, pack, options.against, work)
    found = in_turns(ways, options.runs, untimed=1)
    report, lines = {}, [["", "seconds", "min..max", "CPU seconds", "min..max", "CPU: pack/it"]]
    for name, turns in found.items():
        wall, cpu = (spread(values, 4) for values in zip(*turns, strict=True))
        compared = ratios([turn[1] for turn in found["pack"]], [turn[1] for turn in turns])
        report[name] = {"seconds": wall, "cpu_seconds": cpu, "pack_cpu_to_it": compared}
        cells = [cell for each in (wall, cpu) for cell in cells_of(each)]
        lines.append([name, *cells, f"{compared['median']:.2f}"])
    print(table(lines))
    return {"count": options.count, "ways": report, "machine": machine(work)}


def parse() -> argparse.Namespace:
    parser = bench_parser(__doc__, count=8, runs=20, work=None, json=None)
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout that packs the same, in turns")
    return parser.parse_args()


def run(words: list[str], root: Path, work: Path) -> tuple[float, float]:
    """Run Python with the packages of a checkout; returns seconds and CPU seconds, those of its workers included."""
    shutil.rmtree(work / "out", ignore_errors=True)
    used = children_seconds()
    command = partial(subprocess.run, [sys.executable, *words], cwd=root, env=command_environment())
    done, taken = timed(partial(command, capture_output=True, text=True))
    if done.returncode:
        raise BenchmarkError(f"python {' '.join(words)} ended with exit code {done.returncode}: {done.stderr.strip()}")
    return taken, children_seconds() - used


def cells_of(figure: dict[str, Any]) -> tuple[str, str]:
    """Format a spread of seconds: median, minimum..maximum."""
    return f"{figure['median']:.3f}", f"{figure['min']:.3f}..{figure['max']:.3f}"


if __name__ == "__main__":
    sys.exit(main())
