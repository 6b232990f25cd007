"""How near does a store in object storage come to the link, and to a local store once it is in its cache?

    python -m scripts.benchmarks.storage.bench_remote --rows 8000 --rounds 3 --latency-ms 50 --megabytes-per-second 200

A server on loopback, in a process of its own, answers after a latency over a bandwidth that all connections share. In turns:

    limit          the same library fetches the same ranges with as many connections, and nothing is done with the bytes
    first          the first epoch of MemmapLoader(shuffle="block"), its cache empty; until its first batch: "first batch"
    later          an epoch of the same loader, all of the store in its cache
    local          an epoch of the local store, opened for it: as "later", the first that reads it by its mapping
    half           an epoch through a cache of half the store, after two others; only of a store of more than three windows

--compress zstd also reads the same rows compressed, --compress jpeg:95 as JPEGs, over a link of the same kind: "first, zstd" and
so on, and how many times the images/s of the raw store's a first epoch has.

Opening is not timed. What half of the store takes over the link, at the rate of "limit" in the same round, is what "half" is
compared with; three latencies and a window's transfer what "first batch" is. Checked: every epoch brings each row once, and each
batch has rows of the local store.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reader import MemmapDataset, MemmapLoader
from reader.format.manifest import PIXELS
from reader.planning.orders import window_bytes
from reader.remote.objects import Objects
from reader.tuning import tuning
from scripts.benchmarks.reading.bench_read import cached_store
from scripts.benchmarks.storage._row_forms import RAW, add_forms, check_batch, check_once, file_bytes, in_forms
from scripts.common.arguments import READ_WORK, bench_parser
from scripts.common.figures import machine, ratio_cells, ratios, spread, table
from scripts.common.program import reported
from scripts.common.shaped_server import serving
from scripts.common.timing import in_turns, seconds

BATCH = 256


def main() -> int:
    parser = bench_parser(__doc__, rows=8000, rounds=3, json=None, store=None, work=READ_WORK)
    parser.add_argument("--latency-ms", type=float, default=50.0, help="until a request is answered (default: 50)")
    parser.add_argument("--megabytes-per-second", type=float, default=200.0, help="of the link (default: 200)")
    add_forms(parser)
    options = parser.parse_args()

    def measured(cache: Path) -> dict[str, Any]:
        store = options.store or cached_store(options.work, options.rows, 224)
        forms = in_forms(store, options.compress, options.work)
        latency, rate = options.latency_ms / 1e3, options.megabytes_per_second * 1e6
        with contextlib.ExitStack() as stack:
            urls = {form: stack.enter_context(serving(data.path, latency, rate)) for form, data in forms.items()}
            return measure(forms, urls, cache, options.rounds, latency, rate)

    return reported("bench_remote", measured, text=text, json=options.json, also=(ValueError,))


def measure(
    forms: dict[str, MemmapDataset],
    urls: dict[str, str],
    cache: Path,
    rounds: int,
    latency: float,
    bytes_per_second: float,
) -> dict[str, Any]:
    """Time each way in turns; urls: of each form of the rows."""
    data = forms[RAW]
    turns = {form: partial(_first_epoch, forms, form, url, cache) for form, url in urls.items() if form != RAW}
    found = in_turns({RAW: partial(_round, forms, urls[RAW], cache), **turns}, rounds)
    taken = {_way_of(name, form): [turn[name] for turn in each] for form, each in found.items() for name in each[0]}
    size = file_bytes(data)
    planned = 3 * latency + min(size, window_bytes(data.manifest)) / bytes_per_second
    others = [form for form in forms if form != RAW]
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
        "bytes_to_raw": {form: round(file_bytes(other) / size, 4) for form, other in forms.items()},
        "first_to_limit_of_form": {
            form: ratios(taken[_way_of("limit", form)], taken[_way_of("first", form)]) for form in others
        },
        "images_to_raw": {form: ratios(taken["first"], taken[_way_of("first", form)]) for form in others},
    }


def _way_of(name: str, form: str) -> str:
    return name if form == RAW else f"{name}, {form}"


def _first_epoch(forms: dict[str, MemmapDataset], form: str, url: str, cache: Path) -> dict[str, float]:
    found = {"limit": seconds(partial(_fetch, Objects(url), file_bytes(forms[form])))}
    full = MemmapDataset(url, cache=cache / "full")
    with _loader(full) as loader:
        found["first"], found["first batch"] = _epoch(loader, forms, form)
    _let_go(full, cache / "full")
    return found


def _round(forms: dict[str, MemmapDataset], url: str, cache: Path) -> dict[str, float]:
    data, found = forms[RAW], dict[str, float]()
    size = file_bytes(data)
    found["limit"] = seconds(partial(_fetch, Objects(url), size))
    full = MemmapDataset(url, cache=cache / "full")
    with _loader(full) as loader:
        found["first"], found["first batch"] = _epoch(loader, forms)
        found["later"], _ = _epoch(loader, forms)
    with _loader(MemmapDataset(data.path)) as loader:
        found["local"], _ = _epoch(loader, forms)
    _let_go(full, cache / "full")
    # blocks of two windows may overlap: one of 256 MiB takes up to 336 MB
    if size // 2 > 1.5 * window_bytes(data.manifest):
        half = MemmapDataset(url, cache=cache / "half", cache_size=size // 2)
        with _loader(half) as loader:
            found["half"] = [_epoch(loader, forms)[0] for _ in range(3)][-1]
        _let_go(half, cache / "half")
    return found


def _let_go(data: MemmapDataset, cache: Path) -> None:
    assert data.remote is not None
    data.remote.close()
    shutil.rmtree(cache)


def _loader(data: MemmapDataset) -> MemmapLoader:
    return MemmapLoader(data, BATCH, shuffle="block", as_tuple=False)


def _fetch(objects: Objects, size: int) -> None:
    step = tuning().request_bytes
    starts = range(0, size, step)
    with concurrent.futures.ThreadPoolExecutor(tuning().requests_at_once) as pool:
        for done in pool.map(lambda start: objects.read(PIXELS, start, min(size, start + step)), starts):
            assert len(done)


def _epoch(loader: MemmapLoader, forms: dict[str, MemmapDataset], form: str = RAW) -> tuple[float, float]:
    """Read an epoch and check it; returns its seconds without the checks, and those until its first batch."""
    seen, checking, first = np.zeros(len(forms[form]), dtype=np.int64), 0.0, 0.0
    started = time.perf_counter()
    for batch in loader:
        now = time.perf_counter()
        first = first or now - started
        seen[batch.rows.numpy()] += 1
        check_batch(forms, form, batch.rows[:4], batch.pixels[:4])
        checking += time.perf_counter() - now
    taken = time.perf_counter() - started - checking
    check_once(seen, f"{form}, block")
    return taken, first


def text(report: dict[str, Any]) -> str:
    lines = [["", "seconds", "min..max", "compared", "p10..p90", "images/s of raw", "p10..p90"]]
    compared = {
        "first": report["first_to_limit"],
        "later": report["later_to_local"],
        "half": report["half_to_limit"],
        "first batch": report["first_batch_to_plan"],
    }
    compared |= {_way_of("first", form): ratio for form, ratio in report["first_to_limit_of_form"].items()}
    to_raw = {_way_of("first", form): ratio for form, ratio in report["images_to_raw"].items()}
    for name, taken in report["seconds"].items():
        cells = ratio_cells(compared.get(name)) + ratio_cells(to_raw.get(name))
        lines.append([name, f"{taken['median']:.2f}", f"{taken['min']:.2f}..{taken['max']:.2f}", *cells])
    link = f"{report['latency_ms']:.0f} ms, {report['megabytes_per_second']:.0f} MB/s"
    head = f"{report['rows']} rows, {report['gigabytes']} GB, a link of {link}, {report['rounds']} rounds: medians"
    return f"{head}\n{table(lines)}"


if __name__ == "__main__":
    sys.exit(main())
