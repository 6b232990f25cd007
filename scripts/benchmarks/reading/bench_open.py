"""How long does opening a store take that is larger than the machine's memory, and what does it cost to pickle one?

    python -m scripts.benchmarks.reading.bench_open --rows 1000000

Makes a store of --rows rows of 224 x 224 x 3 whose files are holes (150 GB for a million rows, on no disk at all) with a
manifest as `pack` would write it, table of blocks included, and opens it again and again. The limit beside it is reading
the manifest's bytes and taking their sha256, which no reader can do without. Checked: length, shape, and that a row can be read.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from reader import MemmapDataset
from scripts.common.arguments import bench_parser
from scripts.common.figures import machine, process_bytes
from scripts.common.timing import in_turns, seconds
from scripts.samples.stores import SIDE, sparse_store

_REPEATS = 30


def main() -> int:
    """Open stores of 1,000, 1,000,000 and --rows rows."""
    options = bench_parser(__doc__, rows=10_000_000).parse_args()
    results = []
    print(
        f"{'rows':>12} {'store':>10} {'manifest':>10} {'open, ms':>20} {'limit, ms':>10} {'pickled':>9} {'memory':>9}"
    )
    for rows in sorted({1000, 1_000_000, options.rows}):
        with tempfile.TemporaryDirectory(prefix="pixpack-open-") as folder:
            result = measure(sparse_store(Path(folder) / "store", rows), rows)
        results.append(result)
        spread = f"{result['open_ms']:.2f} ({result['open_ms_min']:.2f}..{result['open_ms_max']:.2f})"
        print(
            f"{rows:12,} {result['store_gb']:7.1f} GB {result['manifest_bytes'] / 1e6:7.1f} MB {spread:>20}"
            f" {result['limit_ms']:10.2f} {result['pickle_bytes']:7} B {result['memory_mb']:6.1f} MB"
        )
    print(json.dumps({"benchmark": "bench_open", "machine": machine(Path(tempfile.gettempdir())), "stores": results}))
    return 0


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
