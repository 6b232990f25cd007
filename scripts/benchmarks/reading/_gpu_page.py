"""Draw docs/benchmarks/gpu.svg from docs/benchmarks/gpu.json: how near each way came to its limit, in each run.

    python -m scripts.benchmarks.reading._gpu_page

The JSON has a run of `bench_gpu` for each commit that was measured, with its machine; ratios are medians of rounds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from scripts import ROOT
from scripts.common.svg import DARK, GRAY, LIMIT, OTHER, OURS, WIDTH_INCHES, svg_bytes

_FOLDER = Path(ROOT, "docs", "benchmarks")
# Part and way of the report -> what it is called in the picture.
_ROWS = {
    ("loading", "MemmapLoader, full"): "Full shuffle, bytes/s\nof one large pinned copy",
    ("loading", "MemmapLoader, block"): "Block shuffle, bytes/s\nof one large pinned copy",
    ("training", "with loading, crop and flip"): "ResNet-50 with crop and flip,\nsteps/s of a resident batch",
}


def main() -> int:
    runs = json.loads((_FOLDER / "gpu.json").read_text(encoding="utf-8"))
    (_FOLDER / "gpu.svg").write_bytes(svg_bytes(drawn(runs)))
    return 0


def drawn(runs: list[dict[str, Any]]) -> Figure:
    """Draw a bar for each way and run, with the range of its rounds."""
    figure = Figure(figsize=(WIDTH_INCHES, 3.7), layout="constrained")
    axes = figure.add_subplot()
    height = 0.8 / len(runs)
    for number, (run, color) in enumerate(zip(runs, (OTHER, OURS), strict=True)):
        found = [run["parts"][part][way]["of_first"] for part, way in _ROWS]
        places = [-row - number * height for row in range(len(found))]
        medians = [ratio["median"] for ratio in found]
        around = [[r["median"] - r["p10"] for r in found], [r["p90"] - r["median"] for r in found]]
        axes.barh(places, medians, height * 0.9, color=color, label=f"{run['title']} ({run['commit']})")
        axes.errorbar(medians, places, xerr=around, fmt="none", ecolor=DARK, elinewidth=1, capsize=2)
        for place, ratio in zip(places, found, strict=True):
            axes.text(0.01, place, f"{ratio['median']:.2f}", va="center", size=10, weight="bold", color="#ffffff")
    axes.axvline(1, color=LIMIT, linewidth=1.5)
    axes.set_yticks([-row - height / 2 for row in range(len(_ROWS))], list(_ROWS.values()), color=DARK)
    axes.set_xlim(0, 1.12)
    axes.set_xlabel("share of the limit: median of rounds, p10 to p90", color=GRAY)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=1)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure


if __name__ == "__main__":
    sys.exit(main())
