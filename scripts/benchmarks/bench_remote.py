"""How near does a store in object storage come to the link, and to a local store once it is in its cache?

    python -m scripts.benchmarks.bench_remote --rows 8000 --rounds 3 --latency-ms 50 --megabytes-per-second 200

A server on loopback, in a process of its own, answers after a latency over a bandwidth that all connections share. In turns:

    limit          the same library fetches the same ranges with as many connections, and nothing is done with the bytes
    first          the first epoch of MemmapLoader(shuffle="block"), its cache empty; until its first batch: "first batch"
    later          an epoch of the same loader, all of the store in its cache
    local          an epoch of the local store
    half           an epoch through a cache of half the store, after two others; only of a store of more than three windows

Opening is not timed. What half of the store takes over the link, at the rate of "limit" in the same round, is what "half" is
compared with; three latencies and a window's transfer what "first batch" is. Checked: every epoch brings each row once, and each
batch equals the local store.
"""

from __future__ import annotations

import concurrent.futures
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reader import MemmapDataset, MemmapLoader
from reader.format.manifest import PIXELS
from reader.loading.schedule import window_bytes
from reader.remote.blocks import REQUEST_BYTES, THREADS
from reader.remote.objects import Objects
from scripts.benchmarks._bench import BenchError, machine, publish, ratio_cells, ratios, spread, table
from scripts.benchmarks._shaped_server import serving
from scripts.benchmarks.arguments import READ_WORK, bench_parser
from scripts.benchmarks.bench_read import cached_store
from scripts.benchmarks.timing import in_turns, seconds

BATCH = 256


def main() -> int:
    parser = bench_parser(__doc__, rows=8000, rounds=3, json=None, store=None, work=READ_WORK)
    parser.add_argument("--latency-ms", type=float, default=50.0, help="until a request is answered (default: 50)")
    parser.add_argument("--megabytes-per-second", type=float, default=200.0, help="of the link (default: 200)")
    options = parser.parse_args()
    try:
        data = MemmapDataset(options.store or cached_store(options.work, options.rows, 224))
        latency, rate = options.latency_ms / 1e3, options.megabytes_per_second * 1e6
        with tempfile.TemporaryDirectory(prefix="pixpack-bench-") as cache, serving(data.path, latency, rate) as url:
            report = measure(data, url, Path(cache), options.rounds, latency, rate)
    except (BenchError, ValueError) as e:
        print(f"bench_remote: {e}", file=sys.stderr)
        return 1
    print(text(report))
    publish(report, options.json)
    return 0


def measure(
    data: MemmapDataset, url: str, cache: Path, rounds: int, latency: float, bytes_per_second: float
) -> dict[str, Any]:
    """Time each way in turns."""
    size = data.store.pixels.nbytes
    rounds_of_ways = in_turns({"all": partial(_round, data, url, cache)}, rounds)["all"]
    taken = {name: [found[name] for found in rounds_of_ways] for name in rounds_of_ways[0]}
    planned = 3 * latency + min(size, window_bytes(data.manifest)) / bytes_per_second
    return {
        "benchmark": "bench_remote",
        "machine": machine(data.path),
        "rows": len(data),
        "gigabytes": round(size / 1e9, 3),
        "latency_ms": 1e3 * latency,
        "megabytes_per_second": bytes_per_second / 1e6,
        "rounds": rounds,
        "seconds": {name: spread(values, 3) for name, values in taken.items()},
        "first_to_limit": ratios(taken["limit"], taken["first"]),
        "later_to_local": ratios(taken["local"], taken["later"]),
        "half_to_limit": ratios([0.5 * limit for limit in taken["limit"]], taken["half"]) if "half" in taken else None,
        "first_batch_to_plan": ratios([planned] * rounds, taken["first batch"]),
    }


def _round(data: MemmapDataset, url: str, cache: Path) -> dict[str, float]:
    size, found = data.store.pixels.nbytes, dict[str, float]()
    found["limit"] = seconds(partial(_fetch, Objects(url), size))
    full = MemmapDataset(url, cache=cache / "full")
    with _loader(full) as loader:
        found["first"], found["first batch"] = _epoch(loader, data)
        found["later"], _ = _epoch(loader, data)
    with _loader(data) as loader:
        found["local"], _ = _epoch(loader, data)
    assert full.remote is not None
    full.remote.close()
    # blocks of two windows may overlap: one of 256 MiB takes up to 336 MB
    if size // 2 > 1.5 * window_bytes(data.manifest):
        half = MemmapDataset(url, cache=cache / "half", cache_size=size // 2)
        with _loader(half) as loader:
            found["half"] = [_epoch(loader, data)[0] for _ in range(3)][-1]
        assert half.remote is not None
        half.remote.close()
    shutil.rmtree(cache)
    return found


def _loader(data: MemmapDataset) -> MemmapLoader:
    return MemmapLoader(data, BATCH, shuffle="block", as_tuple=False)


def _fetch(objects: Objects, size: int) -> None:
    starts = range(0, size, REQUEST_BYTES)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        for done in pool.map(lambda start: objects.read(PIXELS, start, min(size, start + REQUEST_BYTES)), starts):
            assert len(done)


def _epoch(loader: MemmapLoader, data: MemmapDataset) -> tuple[float, float]:
    """Read an epoch and check it; returns its seconds without the checks, and those until its first batch."""
    seen, checking, first = np.zeros(len(data), dtype=np.int64), 0.0, 0.0
    started = time.perf_counter()
    for batch in loader:
        now = time.perf_counter()
        first = first or now - started
        seen[batch.rows.numpy()] += 1
        if not torch.equal(batch.pixels[:4], data.mapped.pixels[batch.rows[:4]]):
            raise BenchError("a batch is not what the local store holds.")
        checking += time.perf_counter() - now
    taken = time.perf_counter() - started - checking
    if not (seen == 1).all():
        raise BenchError("an epoch does not bring each row once.")
    return taken, first


def text(report: dict[str, Any]) -> str:
    lines = [["", "seconds", "min..max", "compared", "p10..p90"]]
    compared = {
        "first": "first_to_limit",
        "later": "later_to_local",
        "half": "half_to_limit",
        "first batch": "first_batch_to_plan",
    }
    for name, taken in report["seconds"].items():
        cells = ratio_cells(report[compared[name]]) if name in compared else ratio_cells(None)
        lines.append([name, f"{taken['median']:.2f}", f"{taken['min']:.2f}..{taken['max']:.2f}", *cells])
    link = f"{report['latency_ms']:.0f} ms, {report['megabytes_per_second']:.0f} MB/s"
    head = f"{report['rows']} rows, {report['gigabytes']} GB, a link of {link}, {report['rounds']} rounds: medians"
    return f"{head}\n{table(lines)}"


if __name__ == "__main__":
    sys.exit(main())
