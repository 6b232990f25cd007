"""Takes the ways of a benchmark in turns, and prints medians, ratios and a verdict. Knows no benchmark."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import multiprocessing
import os
import platform
import resource
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

# A short call is repeated in a turn until the overhead of clock and interpreter is negligible.
TURN_SECONDS = 0.05
# Units of time: a rate is shown as the time per item.
TIMES = {"s": 1.0, "ms": 1e3, "us": 1e6}
# The first rounds warm up memory and pages, and determine how often a call is repeated.
WARM_UP_ROUNDS = 2


class Skip(Exception):
    """This machine cannot run a benchmark, or one of its ways; the text says what is missing."""


class WrongResult(Exception):
    """A result is wrong, so its time would mean nothing."""


@dataclass(frozen=True)
class Way:
    """One way to do the work.

    Attributes:
        call: does the work once; None if `columns` hold all results.
        count: how many of the benchmark's items a call handles.
        before: prepares each call, untimed; such a call is not repeated within a turn.
        base: the way that the ratio refers to; the first one by default.
        columns: further cells of the table, by heading.
    """

    name: str
    call: Callable[[], Any] | None = None
    count: float = 1
    before: Callable[[], Any] | None = None
    base: str | None = None
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass
class Lab:
    """The environment of a benchmark. `notes` are printed below its table; `stack` is closed after the last round."""

    work: Path
    quick: bool = False
    images: Path | None = None
    notes: list[str] = field(default_factory=list)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def pick(self, full: Any, quick: Any) -> Any:
        """Return the value for this run."""
        return quick if self.quick else full

    def runnable(self, makers: dict[str, Callable[[], Any]]) -> Iterator[tuple[str, Any]]:
        """Make the ways that this machine can run; the others are noted with the reason."""
        for name, make in makers.items():
            try:
                yield name, make()
            except Skip as e:
                self.notes.append(f"{name}: not run, {e}")


@dataclass(frozen=True)
class Bench:
    """A question, the generator that answers it, and for a claim, its test on the median rates."""

    question: str
    ways: Callable[[Lab], Iterator[Way]]
    unit: str
    rounds: int
    claim: str
    holds: Callable[[dict[str, float]], bool] | None


BENCHES: dict[str, Bench] = {}


def bench(
    question: str,
    unit: str = "",
    *,
    rounds: int = 9,
    claim: str = "",
    holds: Callable[[dict[str, float]], bool] | None = None,
) -> Callable[[Callable[[Lab], Iterator[Way]]], Callable[[Lab], Iterator[Way]]]:
    """Register a generator of ways under its own name."""

    def register(ways: Callable[[Lab], Iterator[Way]]) -> Callable[[Lab], Iterator[Way]]:
        BENCHES[ways.__name__] = Bench(question, ways, unit, rounds, claim, holds)
        return ways

    return register


def require(is_right: bool, wrong: str) -> None:
    """Raise WrongResult, before anything is timed, unless a result is right."""
    if not is_right:
        raise WrongResult(wrong)


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


def run(
    name: str, lab: Lab, rounds: int | None = None, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """Prepare and time a benchmark; returns its report."""
    found = BENCHES[name]
    report: dict[str, Any] = {"name": name, "question": found.question, "unit": found.unit, "claim": found.claim}
    say(f"{name}: {found.question}")
    with lab.stack:
        try:
            ways = list(found.ways(lab))
        except Skip as e:
            return report | {"skipped": str(e)}
        rates = take_turns(name, ways, rounds or (1 if lab.quick else found.rounds), clock)
    report["ways"] = {way.name: {**_figures(way, rates), "columns": way.columns} for way in ways}
    report["notes"] = lab.notes
    if found.holds and not lab.quick:
        report["holds"] = bool(found.holds({way: statistics.median(values) for way, values in rates.items()}))
    return report


def take_turns(
    name: str, ways: list[Way], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Call every way once a round; returns the rate of each way in each round.

    Each round begins with the next way, so that disturbances of the machine affect all of them.
    """
    timed = [way for way in ways if way.call]
    calls = {way.name: 1 for way in timed}
    rates: dict[str, list[float]] = {way.name: [] for way in timed}
    for number in range(-WARM_UP_ROUNDS, rounds if timed else -WARM_UP_ROUNDS):
        say(f"{name}: " + (f"round {number + 1} of {rounds}" if number >= 0 else "warming up"))
        first = number % len(timed)
        for way in timed[first:] + timed[:first]:
            seconds = _seconds(way, calls[way.name], clock)
            if number >= 0:
                rates[way.name].append(way.count * calls[way.name] / seconds)
            elif not way.before:
                calls[way.name] = max(1, round(TURN_SECONDS * calls[way.name] / seconds))
    return rates


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children: those that ended, and workers that still run."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError):
            # "12 (a name) S 1 ...": user and system ticks are the 12th and 13th word after the name
            words = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return total


def table(report: dict[str, Any]) -> str:
    """Format a report as Markdown, for the terminal and for the docs alike."""
    title = f"**{report['name']}**: {report['question']}"
    if "skipped" in report:
        return f"{title}\n\nNot measured: {report['skipped']}."
    ways = report["ways"]
    headings = [*dict.fromkeys(heading for way in ways.values() for heading in way["columns"])]
    timed = any("rate" in way for way in ways.values())
    lines = [["", *([report["unit"], "times as fast", "p10..p90"] if timed else []), *headings]]
    for name, way in ways.items():
        cells = _cells(way, report["unit"]) if "rate" in way else [""] * (3 if timed else 0)
        lines.append([name, *cells, *(_written(way["columns"].get(heading, "")) for heading in headings)])
    lines.insert(1, ["---", *["---:"] * (len(lines[0]) - 1)])
    parts = [title, "\n".join(f"| {' | '.join(line)} |" for line in lines), *report["notes"]]
    if "holds" in report:
        parts.append(f"Claim: {report['claim']} **{'Holds' if report['holds'] else 'Does not hold'} here.**")
    return "\n\n".join(parts)


def machine() -> str:
    """Return the date, the machine and the versions of the figures."""
    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    device = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    versions = ", ".join(f"{name} {version(name)}" for name in ("pixpack", "torch", "numpy", "tensordict"))
    return (
        f"{datetime.date.today()}, {len(os.sched_getaffinity(0))} cores of {(models or [platform.machine()])[0]}{device},"
        f" load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, {versions}"
    )


def main() -> int:
    """Run the named benchmarks, all of them by default, and print a Markdown table of each."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--quick", action="store_true", help="tiny data: shows that it runs, its figures mean nothing")
    parser.add_argument("--rounds", type=int, help="timed turns of each way")
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--cpu-time", action="store_true", help="rates of a CPU second: they hold on a busy machine")
    parser.add_argument("--images", type=Path, metavar="DIR", help="photographs of your own, in class folders")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep what is made there, for the next run")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write NAME.json there")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in BENCHES]:
        parser.error(f"{unknown[0]} is no benchmark. Expected: {', '.join(BENCHES)}")
    if options.threads:
        torch.set_num_threads(options.threads)
    command = f"`{shlex.join(['python', '-m', 'scripts.bench', *sys.argv[1:]])}`, {machine()}"
    clock = cpu_seconds if options.cpu_time else time.perf_counter
    for name in options.names or BENCHES:
        with tempfile.TemporaryDirectory(prefix="pixpack-bench-") as folder:
            lab = Lab(options.work or Path(folder), options.quick, options.images)
            lab.work.mkdir(parents=True, exist_ok=True)
            try:
                # output of libraries is not part of the table
                with contextlib.redirect_stdout(sys.stderr):
                    report = run(name, lab, options.rounds, clock)
            except (WrongResult, ValueError) as e:
                say(f"{name}: {e}")
                return 1
        print(f"{table(report)}\n\n{command}\n", flush=True)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(report | {"command": command}, indent=1) + "\n"
            (options.out / f"{name}.json").write_text(text, encoding="utf-8")
    return 0


def _seconds(way: Way, calls: int, clock: Callable[[], float]) -> float:
    assert way.call
    if way.before:
        way.before()
    # neither the writing of an earlier way's files nor a garbage collection is charged to this one
    os.sync()
    gc.disable()
    _wait_for_device()
    started = clock()
    for _ in range(calls):
        way.call()
    _wait_for_device()
    taken = clock() - started
    gc.enable()
    return max(taken, 1e-9)


def _wait_for_device() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _figures(way: Way, rates: dict[str, list[float]]) -> dict[str, Any]:
    """Return the spread of a way's rates, and of their ratios to the base's, round by round."""
    if way.name not in rates:
        return {}
    base = rates[way.base or next(iter(rates))]
    ratios = [one / other for one, other in zip(rates[way.name], base, strict=True)]
    return {"rate": _spread(rates[way.name]), "ratio": _spread(ratios)}


def _spread(values: list[float]) -> dict[str, float]:
    tenths = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else values * 9
    return {"median": statistics.median(values), "p10": tenths[0], "p90": tenths[-1]}


def _cells(way: dict[str, Any], unit: str) -> list[str]:
    rate, ratio = way["rate"]["median"], way["ratio"]
    scale = TIMES.get(unit.partition(" ")[0])
    return [
        _written(scale / rate if scale else rate),
        f"{ratio['median']:.2f}",
        f"{ratio['p10']:.2f}..{ratio['p90']:.2f}",
    ]


def _written(value: Any) -> str:
    """Format a number with three digits or more; return other values unchanged."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
