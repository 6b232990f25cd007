"""How fast do `pack subset` and `pack merge` copy rows, beside cp, which checks nothing, and beside packing the images again?

    python -m scripts.benchmarks.packing.bench_copy --rows 10000

Makes a store of --rows rows of 224 x 224 x 3 out of photographs, each many times. Ways, in turns, warm, each until its bytes are
on disk: cp -r and sync; a subset of all rows; of a tenth of them, drawn; a merge of the store's two halves. Packing is timed
once, of the photographs as they are. Checked: the subset of all rows is the store again, byte for byte.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from packer import merge, pack, subset
from reader.format.check import check_store
from reader.format.manifest import PIXELS
from scripts.common.arguments import bench_parser
from scripts.common.figures import (
    BenchmarkError,
    machine,
    photographs,
    rate_cells,
    ratio_cells,
    ratios,
    repeat_files,
    spread,
    table,
)
from scripts.common.program import reported
from scripts.common.timing import in_turns, seconds

SIZE, CP = 224, "cp -r; sync"


def main() -> int:
    """Time each way."""
    parser = bench_parser(__doc__, rows=10_000, runs=5, work=None, json=None)
    parser.add_argument("--packed", type=int, default=1000, help="photographs to pack")
    options = parser.parse_args()
    return reported("bench_copy", lambda work: report_of(work, options), json=options.json, work=options.work)


def report_of(work: Path, options: Namespace) -> dict[str, Any]:
    """Measure, and print a table."""
    packed, rates = measure(work, options.rows, options.packed, options.runs)
    of_cp = {name: ratios(found, rates[CP]) for name, found in rates.items() if name != CP}
    lines = [["", "rows/s", "", "of cp", ""]]
    for name, found in rates.items():
        lines.append([name, *rate_cells(spread(found, 1)), *ratio_cells(of_cp.get(name))])
    print(table([*lines, ["pack", f"{packed:,.0f}", "", "", ""]]))
    head = {"rows": options.rows, "size": SIZE, "packed_images_per_second": packed}
    ways = {name: spread(found, 1) for name, found in rates.items()}
    return head | {"rows_per_second": ways, "of_cp": of_cp, "machine": machine(work)}


def measure(work: Path, rows: int, packed: int, runs: int) -> tuple[float, dict[str, list[float]]]:
    """Return the images/s of packing, and the rows/s of each way, run by run."""
    repeat_files(photographs(None, work, SIZE, most=packed), work / "images", packed, link=False)
    rate = pack(work / "images", work / "small", size=SIZE).images_per_second
    full, out = work / "full", work / "out"
    subset(work / "small", full, rows=[row % packed for row in range(rows)])
    for name, span in (("a", slice(0, rows // 2)), ("b", slice(rows // 2, rows))):
        subset(full, work / name, rows=span)
    if merge([work / "a", work / "b"], out).rows != rows or not filecmp.cmp(full / PIXELS, out / PIXELS, shallow=False):
        raise BenchmarkError("two halves of a store, merged, are not the store.")
    shutil.rmtree(out)
    ways: dict[str, Callable[[], object]] = {
        CP: lambda: copied(full, out),
        "subset of all rows": lambda: subset(full, out, fraction=1),
        "subset of a tenth": lambda: subset(full, out, fraction=0.1),
        "merge of two halves": lambda: merge([work / "a", work / "b"], out),
    }

    def turn(name: str) -> float:
        took = seconds(ways[name])
        made = check_store(out).rows
        if name == "subset of all rows" and not filecmp.cmp(full / "manifest.json", out / "manifest.json", False):
            raise BenchmarkError("a subset of all rows is not the store again.")
        shutil.rmtree(out)
        os.sync()
        return made / took

    return rate, in_turns({name: partial(turn, name) for name in ways}, runs)


def copied(store: Path, out: Path) -> None:
    """Copy with cp, and wait for the disk."""
    subprocess.run(["cp", "-r", store, out], check=True)
    subprocess.run(["sync", "-f", out], check=True)


if __name__ == "__main__":
    sys.exit(main())
