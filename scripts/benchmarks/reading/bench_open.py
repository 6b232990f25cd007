"""How long does opening a store take that is larger than the machine's memory, and what does it cost to pickle one?

    python -m scripts.benchmarks.reading.bench_open --rows 1000000

Makes a store of --rows rows of 224 x 224 x 3 whose files are holes (150 GB for a million rows, on no disk at all) with a
manifest as `pack` would write it, table of blocks included, and opens it again and again. The limit beside it is reading
the manifest's bytes and taking their sha256, which no reader can do without. Checked: length, shape, and that a row can be read.
"""

from __future__ import annotations

import hashlib
import pickle
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

from reader import MemmapDataset
from scripts.common.arguments import bench_parser
from scripts.common.figures import machine, process_bytes, table
from scripts.common.program import reported
from scripts.common.timing import in_turns, seconds
from scripts.samples.stores import SIDE, sparse_store

_REPEATS = 30


def main() -> int:
    """Open stores of 1,000, 1,000,000 and --rows rows."""
    options = bench_parser(__doc__, rows=10_000_000).parse_args()

    def measured(work: Path) -> dict[str, Any]:
        counts = sorted({1000, 1_000_000, options.rows})
        stores = [measure(sparse_store(work / f"{rows}", rows), rows) for rows in counts]
        return {"machine": machine(work), "stores": stores}

    return reported("bench_open", measured, text=text)


def text(report: dict[str, Any]) -> str:
    """Draw the report for a person."""
    lines = [["rows", "store, GB", "manifest, MB", "open, ms", "min..max", "limit, ms", "pickled, B", "memory, MB"]]
    for one in report["stores"]:
        cells = [f"{one['rows']:,}", f"{one['store_gb']:,.1f}", f"{one['manifest_bytes'] / 1e6:.1f}"]
        cells += [f"{one['open_ms']:.2f}", f"{one['open_ms_min']:.2f}..{one['open_ms_max']:.2f}"]
        lines.append([*cells, f"{one['limit_ms']:.2f}", f"{one['pickle_bytes']}", f"{one['memory_mb']:.1f}"])
    return table(lines)


def measure(out: Path, rows: int) -> dict[str, Any]:
    """Time opening against the limit, in turns."""
    before = process_bytes("self", "Anonymous")
    dataset = MemmapDataset(out, as_tuple=False)
    memory = process_bytes("self", "Anonymous") - before
    if len(dataset) != rows or dataset[rows - 1].pixels.shape != (SIDE, SIDE, 3) or dataset[rows - 1].pixels.any():
        raise SystemExit("bench_open: the store that was opened is not the one that was made.")
    ways = {"open": lambda: MemmapDataset(out), "limit": lambda: hashed(out)}
    found = in_turns({name: partial(seconds, way) for name, way in ways.items()}, _REPEATS)
    opens, limits = ([1e3 * value for value in found[name]] for name in ways)
    return {
        "rows": rows,
        "store_gb": rows * SIDE * SIDE * 3 / 1e9,
        "manifest_bytes": (out / "manifest.json").stat().st_size,
        "open_ms": statistics.median(opens),
        "open_ms_min": min(opens),
        "open_ms_max": max(opens),
        "limit_ms": statistics.median(limits),
        "pickle_bytes": len(pickle.dumps(dataset)),
        "memory_mb": memory / 1e6,
    }


def hashed(out: Path) -> bytes:
    """Return the sha256 of a store's manifest, which whoever opens it must compute."""
    return hashlib.sha256((out / "manifest.json").read_bytes()).digest()


if __name__ == "__main__":
    sys.exit(main())
