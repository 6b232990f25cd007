"""Does a consumer that needs T ms a batch ever wait for MemmapLoader longer than T and the reading together must take?

    python -m scripts.benchmarks.reading.bench_prefetch --rounds 20

Steps of a loop are timed with consumers that need from a quarter to four times as long as reading a batch takes, of four kinds:

    sleep     sleeps: a GPU that computes while Python waits for it
    torch     small matrix products, one thread: Python that calls torch
    python    counts in a Python loop, and so lets the loader's thread at the interpreter only every 5 ms, or when it waits
    sort      numpy sorts, one thread, nearly always outside the interpreter

The limit of a step is max(T, read): T as it was in those very steps, and read as a turn of the same loader without a
consumer just before. A turn begins and ends with a full queue (see reader/bench/ways.py), so nothing is read outside of it. A
sleeping consumer takes no CPU; the others take a core, of which reading then has one less: their limit is stricter than a
machine with as many cores as threads can keep. Each ratio is taken within a round.

Checked: the rows of the timed batches are distinct within an epoch. Without --store: the store of bench_read.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reader import ImageBatch, MemmapDataset, MemmapLoader
from reader.bench.ways import ORDERS
from reader.system import available_cpus
from scripts.benchmarks.reading._read_ways import touch
from scripts.benchmarks.reading.bench_read import cached_store, verified_store
from scripts.common.arguments import READ_WORK, bench_parser
from scripts.common.figures import BenchmarkError, machine, spread, table
from scripts.common.program import reported
from scripts.common.timing import collection_paused, in_turns, seconds

FACTORS = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)
ALLOWED = 1.03
# Long beside a thread's wake-up (30 us), short beside what else happens on a machine: 8 batches of 38 MB take 30 ms.
STEPS = 8
# How late the end of a turn is seen, at most.
POLL_SECONDS = 5e-5

_SQUARE = torch.ones(64, 64)
_NUMBERS = np.random.default_rng(0).random(4096)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def multiply(count: int) -> None:
    for _ in range(count):
        torch.mm(_SQUARE, _SQUARE)


def add(count: int) -> None:
    total = 0
    for number in range(count):
        total += number


def sort(count: int) -> None:
    for _ in range(count):
        np.sort(_NUMBERS)


BUSY: dict[str, Callable[[int], None]] = {"torch": multiply, "python": add, "sort": sort}


def main() -> int:
    options = parse()
    torch.set_num_threads(options.threads)

    def measured(_: Path) -> dict[str, Any]:
        given = options.store
        return measure(verified_store(given) if given else cached_store(options.work, options.rows, 224), options)

    return reported("bench_prefetch", measured, text=text, json=options.json)


def parse() -> argparse.Namespace:
    counts = {"rows": 20_000, "batch_size": 256, "rounds": 20, "threads": available_cpus()}
    parser = bench_parser(__doc__, **counts, json=None, store=None, work=READ_WORK)
    parser.add_argument("--order", choices=ORDERS, default="full", help="the loader's order (default: full)")
    return parser.parse_args()


def measure(store: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Time every consumer at every T, in turns."""
    data = MemmapDataset(store, as_tuple=False)
    touch(data.numpy())
    way = QueuedSteps(data, options.batch_size, options.order)
    read = float(np.median([way.turn(None)[0] for _ in range(10)][3:]))
    rates = {kind: calls_per_second(work) for kind, work in BUSY.items()}

    def beside(kind: str, factor: float) -> tuple[float, float, float]:
        work = consumer(kind, factor * read, rates)
        alone, _ = way.turn(None)
        return (*way.turn(work), alone)

    cases = [(kind, factor) for kind in ("sleep", *BUSY) for factor in FACTORS]
    with collection_paused():
        found = in_turns({case: partial(beside, *case) for case in cases}, options.rounds)
    way.loader.close()
    consumers = [summary(kind, factor * read, turns) for (kind, factor), turns in found.items()]
    sleeping = max(one["step/limit"]["median"] for one in consumers if one["consumer"] == "sleep")
    return {
        "benchmark": "bench_prefetch",
        "machine": machine(store),
        "rows": len(data),
        "batch_size": options.batch_size,
        "order": options.order,
        "prefetch": way.loader.prefetch,
        "threads": torch.get_num_threads(),
        "rounds": options.rounds,
        "consumers": consumers,
        "worst_sleeping": sleeping,
        "holds": sleeping <= ALLOWED,
    }


def summary(kind: str, asked: float, turns: list[tuple[float, float, float]]) -> dict[str, Any]:
    """Describe the turns of one consumer: seconds of (a step, the consumer in it, a step without consumer)."""
    return {
        "consumer": kind,
        "asked_ms": round(1e3 * asked, 2),
        "consumer_ms": spread([1e3 * needed for _, needed, _ in turns], 3),
        "read_ms": spread([1e3 * alone for *_, alone in turns], 3),
        "step_ms": spread([1e3 * step for step, *_ in turns], 3),
        "step/limit": spread([step / max(needed, alone) for step, needed, alone in turns], 4),
    }


class QueuedSteps:
    """A loader whose turns of a few steps begin and end with a full queue."""

    def __init__(self, data: MemmapDataset, batch_size: int, order: str) -> None:
        # small batches without a transform are queued in groups, of which a turn would take a part
        options: dict[str, Any] = {"shuffle": ORDERS[order], "drop_last": True, "transform": same, "as_tuple": False}
        self.loader = MemmapLoader(data, batch_size, **options)
        self._steps = min(STEPS, len(self.loader) - self.loader.prefetch - 1)
        if self._steps < 1:
            raise BenchmarkError(f"{len(data)} rows are {len(self.loader)} batches, too few. Use a smaller --batch-size.")
        self._left, self._rows = 0, list[torch.Tensor]()

    def turn(self, work: Callable[[], None] | None) -> tuple[float, float]:
        """Return the seconds of a step, and of the consumer in it."""
        if self._left < 1 + self._steps + self.loader.prefetch:
            check(self._rows)
            self._rows, self._left, self._iterator = [], len(self.loader), iter(self.loader)
        self._take()
        self._fill()
        needed, start = 0.0, time.perf_counter()
        for _ in range(self._steps):
            self._take()
            if work is not None:
                started = time.perf_counter()
                work()
                needed += time.perf_counter() - started
        self._fill()
        return (time.perf_counter() - start) / self._steps, needed / self._steps

    def _take(self) -> None:
        self._rows.append(next(self._iterator).rows)
        self._left -= 1

    def _fill(self) -> None:
        """Wait until all that may be gathered ahead is."""
        while not self._iterator.is_filled:
            time.sleep(POLL_SECONDS)


def same(batch: ImageBatch) -> ImageBatch:
    return batch


def check(batches: list[torch.Tensor]) -> None:
    """Raise BenchmarkError if a row came twice."""
    rows = torch.cat(batches) if batches else torch.empty(0)
    if len(rows.unique()) < len(rows):
        raise BenchmarkError(f"{len(rows) - len(rows.unique())} rows came twice in one epoch of the timed loader.")


def consumer(kind: str, seconds: float, rates: dict[str, float]) -> Callable[[], None]:
    """Return a call that needs so long when it has a core to itself."""
    if kind == "sleep":
        return lambda: sleep(seconds)
    work, count = BUSY[kind], max(1, round(seconds * rates[kind]))
    return lambda: work(count)


def calls_per_second(work: Callable[[int], None], count: int = 500) -> float:
    """Measure a busy consumer alone."""
    return count / float(np.median([seconds(partial(work, count)) for _ in range(9)][2:]))


def text(report: dict[str, Any]) -> str:
    """Draw the report for a person."""
    lines = [["consumer", "T, ms", "read, ms", "step, ms", "step / max(T, read)", "p10..p90"]]
    for one in report["consumers"]:
        ratio = one["step/limit"]
        cells = [f"{one[name]['median']:.2f}" for name in ("consumer_ms", "read_ms", "step_ms")]
        lines.append([one["consumer"], *cells, f"{ratio['median']:.3f}", f"{ratio['p10']:.3f}..{ratio['p90']:.3f}"])
    verdict = "within" if report["holds"] else "NOT within"
    return (
        f"batch {report['batch_size']}, order {report['order']}, prefetch {report['prefetch']}, {report['threads']} threads,"
        f" {report['rounds']} rounds: medians\n{table(lines)}\n"
        f"a sleeping consumer: at most {report['worst_sleeping']:.3f}, {verdict} {ALLOWED}"
    )


if __name__ == "__main__":
    sys.exit(main())
