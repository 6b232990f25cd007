"""How every picture of the claims looks: one palette, the finding as title, labels beside what they name.

Knows matplotlib; measures nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from PIL import Image

from scripts.common.svg import svg_bytes

Axes = Any

OURS = "#0b6fa4"
OURS_LIGHT = "#7fb8d6"
OTHER = "#a3adb8"
WARM = "#d9772b"
DARK = "#26323d"
GRAY = "#6b7783"
# for lines that are neither ours nor a limit, in this order
LINES = ("#d9772b", "#8a5fa8", "#5b8c3e", "#6b7783", "#b8433f", "#b59a2e")

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": DARK,
    "axes.labelcolor": GRAY,
    "axes.edgecolor": "#c5ccd3",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": DARK,
    "grid.color": "#e7ebee",
    "grid.linewidth": 0.8,
    "xtick.color": GRAY,
    "ytick.color": GRAY,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 2.2,
    "lines.markersize": 5,
}
_INCHES = (9.6, 5.4)
_DPI = 105


def new_figure(title: str, claim: str, footer: str, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure with the finding, the claim and the machine written on it, and its axes, side by side."""
    mpl.rcParams.update(_STYLE)
    figure = Figure(figsize=_INCHES, dpi=_DPI, facecolor="white")
    lines = textwrap.wrap(title, 77)
    figure.text(0.025, 0.965, "\n".join(lines), size=13.5, weight="bold", va="top", linespacing=1.25)
    below = 0.965 - 0.052 * len(lines) - 0.005
    claimed = textwrap.wrap(claim, 145)
    figure.text(0.025, below, "\n".join(claimed), size=9, color=GRAY, va="top", linespacing=1.3)
    figure.text(0.025, 0.018, footer, size=7.5, color=GRAY)
    figure.subplots_adjust(left=0.08, right=0.97, bottom=0.16, top=below - 0.04 * len(claimed) - 0.05, wspace=0.3)
    return figure, list(np.atleast_1d(figure.subplots(1, panels)))


def save(figure: Figure, path: Path) -> None:
    """Give what stands left of the first axes the room that it needs, and write the picture."""
    canvas = FigureCanvasAgg(figure)
    axes, width = figure.axes[0], figure.bbox.width
    needed = axes.get_window_extent().x0 - axes.yaxis.get_tightbbox().x0
    figure.subplots_adjust(left=needed / width + 0.025)
    canvas.draw()
    if path.suffix == ".svg":
        path.write_bytes(svg_bytes(figure))
        return
    # 128 colors: a third of the bytes, and no eye sees it
    Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").quantize(128).save(path, optimize=True)


def bars(axes: Axes, values: Mapping[str, float], texts: Sequence[str], *, xlabel: str, log: bool = False) -> None:
    """Draw horizontal bars from the top, each with its text; those of this library are colored."""
    names = list(values)
    heights = np.arange(len(names))[::-1]
    drawn = axes.barh(heights, list(values.values()), 0.68, color=[_color(name) for name in names])
    axes.set_yticks(heights, names)
    axes.tick_params("y", labelcolor=DARK)
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_weight("bold" if _is_ours(name) else "normal")
    axes.bar_label(drawn, texts, padding=4, size=9.5, color=DARK)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(xlabel)
    if log:
        axes.set_xscale("log")
        written_out(axes.xaxis)
        axes.set_xlim(min(values.values()) / 2, max(values.values()) * 6)
    else:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.set_xlim(0, max(values.values()) * 1.25)


def end_labels(axes: Axes, ends: Mapping[str, float], colors: Mapping[str, str]) -> None:
    """Write each line's name right of the axes, at the height where the line ends, or just above the name below it."""
    low, gap = -np.inf, 0.055 * axes.get_ylim()[1]
    style = {"transform": axes.get_yaxis_transform(), "va": "center", "size": 9, "weight": "bold"}
    for name in sorted(ends, key=lambda name: ends[name]):
        low = max(ends[name], low + gap)
        axes.text(1.015, low, name, color=colors[name], **style)


def names_below(figure: Figure, axes: Axes) -> None:
    """Name what has a label in the axes in one line below all panels."""
    handles, names = axes.get_legend_handles_labels()
    figure.subplots_adjust(bottom=0.235)
    legend = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.045)}
    figure.legend(handles, names, ncols=len(names), frameon=False, fontsize=9, **legend)


def written_out(axis: Any) -> None:
    """Label the powers of ten of a log axis as numbers, and nothing between: 0.1, 1,000, 10 k, 1 M."""

    def label(value: float, _: int) -> str:
        if value >= 1e6:
            return f"{value / 1e6:,g} M"
        return f"{value / 1e3:g} k" if value >= 1e4 else f"{value:,g}"

    axis.set_major_formatter(label)
    axis.set_minor_formatter(NullFormatter())


def _is_ours(name: str) -> bool:
    return name.startswith(("MemmapLoader", "MemmapDataset", "pixpack"))


def _color(name: str) -> str:
    return OURS if _is_ours(name) else OTHER
