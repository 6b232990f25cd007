"""What do objects cost by fsspec, which reads a store at a URL where obstore is not installed?

    python -m scripts.benchmarks.storage.bench_carriers --rows 4000 --rounds 5

The pixels of a store are fetched in requests of 16 MiB, 32 at a time, as a cache fetches them, from a server on loopback in a
process of its own: over HTTP, and as an object of S3. In turns by obstore and by fsspec; seconds, and CPU seconds of the process
that fetches. Checked: each fetches every byte.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from reader import MemmapDataset
from reader.format.manifest import PIXELS
from reader.remote.blocks import REQUEST_BYTES, THREADS
from reader.remote.by_fsspec import connected
from reader.remote.objects import BUDGET_SECONDS, STALL_SECONDS, Objects
from scripts.benchmarks.reading.bench_read import cached_store
from scripts.common.arguments import READ_WORK, bench_parser
from scripts.common.figures import BenchError, machine, publish, ratio_cells, ratios, spread, table
from scripts.common.shaped_server import serving
from scripts.common.timing import in_turns

# Nothing is shaped.
_LATENCY_SECONDS, _BYTES_PER_SECOND = 0.0, 1e12

# Returns bytes [start, stop) of the pixels.
Fetch = Callable[[int, int], memoryview]


def main() -> int:
    """Time both."""
    parser = bench_parser(__doc__, rows=4000, rounds=5, json=None, store=None, work=READ_WORK)
    options = parser.parse_args()
    data = MemmapDataset(options.store or cached_store(options.work, options.rows, 224))
    try:
        with tempfile.TemporaryDirectory(prefix="pixpack-bench-") as folder:
            Path(folder, "bucket").mkdir()
            Path(folder, "bucket/out").symlink_to(data.path.resolve())
            with serving(Path(folder), _LATENCY_SECONDS, _BYTES_PER_SECOND) as url:
                keys = {"AWS_ACCESS_KEY_ID": "some", "AWS_SECRET_ACCESS_KEY": "thing", "AWS_REGION": "us-east-1"}
                os.environ.update(keys | {"AWS_ENDPOINT_URL": url})
                report = measure(data, {"http": f"{url}/bucket/out", "s3": "s3://bucket/out"}, options.rounds)
    except BenchError as e:
        print(f"bench_carriers: {e}", file=sys.stderr)
        return 1
    print(text(report))
    publish(report, options.json)
    return 0


def measure(data: MemmapDataset, urls: dict[str, str], rounds: int) -> dict[str, Any]:
    """Time each library over each kind of URL in turns."""
    size, turns = data.store.pixels.nbytes, dict[str, Callable[[], tuple[float, float]]]()
    for kind, url in urls.items():
        if (objects := Objects(url)).library != "obstore":
            raise BenchError("obstore is not installed: pip install 'pixpack[remote]'")
        other = connected(url, STALL_SECONDS, BUDGET_SECONDS)
        turns[f"{kind} obstore"] = partial(_fetched, partial(objects.read, PIXELS), size)
        turns[f"{kind} fsspec"] = partial(
            _fetched, lambda start, stop, get=other.get: get(PIXELS, start, stop, stop - start, lambda: None), size
        )
    # the first turn of each opens connections
    taken = in_turns(turns, rounds, untimed=1)
    wall, used = ({name: [pair[n] for pair in pairs] for name, pairs in taken.items()} for n in (0, 1))
    return {
        "benchmark": "bench_carriers",
        "machine": machine(data.path),
        "gigabytes": round(size / 1e9, 3),
        "rounds": rounds,
        "seconds": {name: spread(values, 3) for name, values in wall.items()},
        "cpu_seconds": {name: spread(values, 3) for name, values in used.items()},
        "seconds_of_fsspec_to_obstore": {kind: _ratio(wall, kind) for kind in urls},
        "cpu_seconds_of_fsspec_to_obstore": {kind: _ratio(used, kind) for kind in urls},
    }


def _ratio(taken: dict[str, list[float]], kind: str) -> dict[str, float] | None:
    return ratios(taken[f"{kind} fsspec"], taken[f"{kind} obstore"])


def _fetched(fetch: Fetch, size: int) -> tuple[float, float]:
    """Fetch all pixels; returns seconds, and CPU seconds of all threads."""
    spans = [(start, min(size, start + REQUEST_BYTES)) for start in range(0, size, REQUEST_BYTES)]
    started, used = time.perf_counter(), time.process_time()
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        found = sum(pool.map(lambda span: len(fetch(*span)), spans))
    if found != size:
        raise BenchError(f"{found} bytes came, expected {size}.")
    return time.perf_counter() - started, time.process_time() - used


def text(report: dict[str, Any]) -> str:
    """Return the report as a table."""
    lines = [["", "seconds", "CPU seconds", "CPU to obstore", "p10..p90"]]
    for name, taken in report["seconds"].items():
        kind, library = name.split()
        compared = report["cpu_seconds_of_fsspec_to_obstore"][kind] if library == "fsspec" else None
        cells = [f"{taken['median']:.2f}", f"{report['cpu_seconds'][name]['median']:.2f}"]
        lines.append([name, *cells, *ratio_cells(compared)])
    return f"{report['gigabytes']} GB, {report['rounds']} rounds: medians\n{table(lines)}"


if __name__ == "__main__":
    sys.exit(main())
