"""The benchmarks of scripts/bench on tiny data, the harness that takes their turns, and README's chart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from children import program

import scripts.bench.__main__  # noqa: F401 (registers the benchmarks)
from scripts.bench import page
from scripts.bench.harness import BENCHES, Lab, Skip, Way, WrongResult, bench, require, run, table

# What this machine need not have.
NEEDS_GPU = {"bus_bytes", "gpu"}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The reports of all benchmarks, of one run on tiny data."""
    work, out = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("out")
    done = program("scripts.bench", "--quick", "--work", work, "--out", out, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr[-2000:]
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in out.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_each_benchmark_checks_and_times_its_ways(name: str, reports: dict[str, Any]) -> None:
    report = reports[name]
    if "skipped" in report:
        assert name in NEEDS_GPU or "pip install" in report["skipped"] or "C++" in report["skipped"]
        return
    ways = report["ways"].values()
    assert len(ways) >= 2
    assert all(way["columns"] or way["rate"]["median"] > 0 for way in ways)
    assert len({line.count("|") for line in table(report).splitlines() if line.startswith("|")}) == 1


@pytest.fixture
def fast_or_slow() -> Iterator[list[str]]:
    """Two ways, of which the second does half as much in a call; the calls are noted."""
    calls: list[str] = []

    @bench(
        "Which?", "images/s", rounds=3, claim="The slow one is faster.", holds=lambda rate: rate["slow"] > rate["fast"]
    )
    def trial(lab: Lab) -> Iterator[Way]:
        lab.stack.callback(calls.append, "closed")
        yield Way("fast", lambda: calls.append("f"), 200, before=lambda: calls.append("("))
        yield Way("slow", lambda: calls.append("s"), 100, before=lambda: calls.append("["))
        yield Way("seen", columns={"files": 1234})
        for name, way in lab.runnable({"other": _not_installed}):
            yield Way(name, way)

    yield calls
    del BENCHES["trial"]


def _not_installed() -> None:
    raise Skip("pip install other")


def test_ways_take_turns_and_ratios_are_taken_within_a_round(fast_or_slow: list[str], tmp_path: Path) -> None:
    seconds = iter(range(1000))
    report = run("trial", Lab(tmp_path), clock=lambda: float(next(seconds)))
    # two rounds of warming up, then three; each begins with the next way
    assert "".join(fast_or_slow) == "(f[s[s(f(f[s[s(f(f[sclosed"
    assert report["ways"]["slow"]["rate"] == {"median": 100.0, "p10": 100.0, "p90": 100.0}
    assert report["ways"]["slow"]["ratio"]["median"] == 0.5
    assert report["holds"] is False
    lines = table(report).splitlines()
    assert "|  | images/s | times as fast | p10..p90 | files |" in lines
    assert "| slow | 100 | 0.50 | 0.50..0.50 |  |" in lines
    assert "| seen |  |  |  | 1,234 |" in lines
    assert "other: not run, pip install other" in lines
    assert "Claim: The slow one is faster. **Does not hold here.**" in lines


def test_a_wrong_result_is_never_timed_and_a_lack_is_said() -> None:
    with pytest.raises(WrongResult, match="twice"):
        require(False, "a row comes twice.")
    assert table({"name": "gpu", "question": "How fast?", "skipped": "no GPU"}).endswith("Not measured: no GPU.")


def test_readme_shows_the_figures_that_are_kept() -> None:
    figures, text = page.FIGURES / "imagefolder.json", page.README.read_text(encoding="utf-8")
    report = json.loads(figures.read_text(encoding="utf-8"))
    assert page.filled(text, report) == text, "python -m scripts.bench.page writes it again"


@pytest.mark.parametrize(
    ("name", "shown"), [("imagefolder", r"[\d,]+ images/s: \d+ min an epoch"), ("peers", r"[\d,]+, \d+ kB an image")]
)
def test_charts_show_the_figures_that_are_kept(name: str, shown: str) -> None:
    report = json.loads((page.FIGURES / f"{name}.json").read_text(encoding="utf-8"))
    for mode in page.COLORS:
        drawn = page.chart(mode, *getattr(page, name)(report))
        assert (page.FIGURES / f"{name}-{mode}.svg").read_text(encoding="utf-8") == drawn
        texts = ["".join(node.itertext()) for node in ElementTree.fromstring(drawn).iter() if node.tag.endswith("text")]
        assert re.fullmatch(shown, texts[2]), texts
