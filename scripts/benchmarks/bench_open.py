"""How long does opening a store take that is larger than the machine's memory, and what does it cost to pickle one?

    python -m scripts.benchmarks.bench_open --rows 1000000

Makes a store of --rows rows of 224 x 224 x 3 whose files are holes (150 GB for a million rows, on no disk at all) with a
manifest as `pack` would write it, table of blocks included, and opens it again and again. The limit beside it is reading
the manifest's bytes and taking their sha256, which no reader can do without. Checked: length, shape, and that a row can be read.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packer.store.blocks import block_inputs
from reader import MemmapDataset
from reader.format.manifest import Block, FileEntry, Manifest, encode_manifest
from reader.format.tensordict_meta import metadata_files
from scripts.benchmarks._bench import machine

_SIDE = 224
_REPEATS = 30


def main() -> int:
    """Open stores of 1,000, 1,000,000 and --rows rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args()
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
    before = _own_bytes()
    dataset = MemmapDataset(out, as_tuple=False)
    memory = _own_bytes() - before
    if len(dataset) != rows or dataset[rows - 1].pixels.shape != (_SIDE, _SIDE, 3) or dataset[rows - 1].pixels.any():
        raise SystemExit("bench_open: the store that was opened is not the one that was made.")
    opens, limits = [], []
    for _ in range(_REPEATS):
        opens.append(_milliseconds(lambda: MemmapDataset(out)))
        limits.append(_milliseconds(lambda: hashlib.sha256((out / "manifest.json").read_bytes()).digest()))
    return {
        "rows": rows,
        "store_gb": rows * _SIDE * _SIDE * 3 / 1e9,
        "manifest_bytes": (out / "manifest.json").stat().st_size,
        "open_ms": statistics.median(opens),
        "open_ms_min": min(opens),
        "open_ms_max": max(opens),
        "limit_ms": statistics.median(limits),
        "pickle_bytes": len(pickle.dumps(dataset)),
        "memory_mb": memory / 1e6,
    }


def sparse_store(out: Path, rows: int, side: int = _SIDE) -> Path:
    """Make a structurally valid store of rows of side x side x 3 whose large files are holes: any size, no disk."""
    row_bytes = side * side * 3
    sizes = {"samples.jsonl": rows * 200, "rejected.jsonl": 0}
    sizes |= {"_tensordict/pixels.memmap": rows * row_bytes, "_tensordict/targets.memmap": rows * 8}
    fields: dict[str, Any] = {
        "rows": rows,
        "height": side,
        "width": side,
        "channels": 3,
        "target_kind": "class",
        "target_count": None,
        "has_content": False,
        "extras": {},
        "classes": tuple(f"class {n}" for n in range(1000)),
        "mean": (0.5, 0.5, 0.5),
        "std": (0.25, 0.25, 0.25),
        "inputs": rows,
        "rejected": 0,
        "options": {},
        "decoders": {},
    }
    blank = dict.fromkeys([*sizes, "meta.json", "_tensordict/meta.json"], FileEntry(0, ""))
    metadata = metadata_files(Manifest(**fields, files=blank))
    entries = {name: FileEntry(size, "") for name, size in sizes.items()}
    entries |= {name: FileEntry(len(content), "") for name, content in metadata.items()}
    (out / "_tensordict").mkdir(parents=True)
    for name, size in sizes.items():
        with open(out / name, "wb") as file:
            file.truncate(size)
    for name, content in metadata.items():
        (out / name).write_bytes(content)
    step = block_inputs(rows, row_bytes)
    # checksums as long as real ones are
    blocks = [Block(n, min(n + step, rows), 0xFFFFFFFF - n, n * 200) for n in range(0, rows, step)]
    (out / "manifest.json").write_bytes(encode_manifest(Manifest(**fields, files=entries), blocks))
    return out


def _milliseconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begun)


def _own_bytes() -> int:
    """Return this process's own memory; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


if __name__ == "__main__":
    sys.exit(main())
