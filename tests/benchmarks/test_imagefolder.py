"""The benchmark against ImageFolder runs and checks what it times; README, page and charts say what its figures say."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import make_tree, torchvision_or_skip

from scripts.benchmarks.reading import _imagefolder_page as shown

MADE: dict[str, Any] = {
    "images": 1_000,
    "workers": 4,
    "workers_tried": {"2": 300.0, "4": 400.0},
    "machine": {
        "cores": 2,
        "date": "2026-11-23T04:05:00+00:00",
        "load_average": [0.1, 0.2, 0.3],
        "decoders": {"pillow": {"distribution": "pillow-simd"}},
    },
    "tasks": {
        "training": {
            "folder": {"median": 400.0},
            "store": {"median": 3_600.0},
            "ratio": {"median": 9.0, "p10": 8.5, "p90": 9.5},
        },
        "validation": {
            "folder": {"median": 500.0},
            "store": {"median": 50_000.0},
            "ratio": {"median": 100.0, "p10": 90.0, "p90": 110.0},
        },
    },
    "pack_seconds": 2.0,
    "store_bytes": 450_000_000,
    "source_bytes": 100_000_000,
    "epochs_to_break_even": 0.9,
}


@pytest.mark.parametrize("path", [shown.README, shown.PAGE], ids=lambda p: p.name)
def test_a_document_has_the_figures_that_are_kept(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(shown.BEGIN) == text.count(shown.END) == 1
    assert shown.filled(path, shown.kept()) == text, (
        "python -m scripts.benchmarks.reading._imagefolder_page writes it again"
    )


def test_the_charts_that_are_kept_show_the_figures_that_are_kept() -> None:
    report = shown.kept()
    for mode in ("light", "dark"):
        path = shown.FIGURES.with_name(f"imagefolder-{mode}.svg")
        assert path.exists() == (report is not None)
        assert report is None or path.read_text(encoding="utf-8") == shown.chart(report, mode)


def test_a_chart_is_svg_with_the_finding_as_its_title() -> None:
    light, dark = (ElementTree.fromstring(shown.chart(MADE, mode)) for mode in ("light", "dark"))
    texts = ["".join(node.itertext()) for node in light.iter() if node.tag.endswith("text")]
    assert texts[0] == "Random crops from the store come 9.0 times as fast as from the JPEGs"
    assert "400 images/s: 53 min an epoch" in texts
    assert "3,600 images/s: 6 min an epoch" in texts
    fills = [{node.get("fill") for node in tree.iter() if node.get("fill")} for tree in (light, dark)]
    assert fills[0].isdisjoint(fills[1])


def test_readme_and_page_are_filled_with_cost_and_ratios() -> None:
    readme, page = shown.filled(shown.README, MADE), shown.filled(shown.PAGE, MADE)
    assert "4.5 times the disk of the JPEGs" in readme
    assert "3.3 minutes to pack 100,000 of them on 2 cores; packing is paid back after 0.9 epochs." in readme
    assert "| training | 400 | 3,600 | 9.00 (8.50..9.50) |" in page
    assert "imagefolder-dark.svg" in readme


def test_the_benchmark_times_both_sides_and_stops_where_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchvision_or_skip()
    from scripts.benchmarks.reading import bench_imagefolder as bench

    # workers of a DataLoader take seconds to start, and are not what is tested
    monkeypatch.setattr(bench, "fastest", lambda task: (0, {"0": task.rate(task.folder(0))}))
    images = make_tree(tmp_path / "images", each=4)
    options = argparse.Namespace(images=images, count=24, size=28, batch_size=8, rounds=2)
    work = tmp_path / "work"
    work.mkdir()
    report = bench.measure(work, options)
    assert all(task[side]["median"] > 0 for task in report["tasks"].values() for side in ("folder", "store"))
    assert report["store_bytes"] > 0 < report["source_bytes"]
    assert shown.title(report) in shown.chart(report, "light")
    training, validation = bench.tasks_of(work / "images", work, options)
    with pytest.raises(bench.BenchmarkError, match="are not those of 1 epochs"):
        training.rate(list(training.folder(0))[1:])
    shuffled = bench.Comparison("validation", training.folder, validation.store, validation.targets)
    with pytest.raises(bench.BenchmarkError, match="differ"):
        bench.check_pixels(shuffled)
