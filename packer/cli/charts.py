"""What `pack bench` shows: the figures as a table, as bars beside their limits, and a run as a timeline.

The only module that knows matplotlib, and only where a picture is asked for. Takes reports as plain values; measures nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from packer.cli.messages import size
from packer.errors import PictureError
from reader.format.filesystem import absolute_path
from reader.format.row_kinds import row_kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# reader.bench.measure.BenchReport and reader.bench.timeline.Timeline as dicts.
Report = Mapping[str, Any]
TimelineRecord = Mapping[str, Any]

_TITLES = {
    "memory": "from memory",
    "device": "to the device",
    "disk": "from the disk, nothing of it cached",
    "network": "from the network",
}
# What a section's loader is compared with in a headline.
_LIMITS = {"network": ("the network", "the network")}

OURS, OTHER, LIMIT, DARK, GRAY = "#0b6fa4", "#a3adb8", "#d9772b", "#26323d", "#6b7783"
# Waiting is pale: what is dark is work.
_COLORS = {
    "network": "#c9a227",
    "read": "#5b8c3e",
    "gather": "#0b6fa4",
    "copy": "#8a5fa8",
    "transform": "#d9772b",
    "compute": "#b8433f",
    "step": "#26323d",
    "wait": "#dfe4e8",
}
_NAMES = {"step": "step of the loop", "wait": "waiting"}
_STYLE: dict[Any, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": DARK,
    "axes.labelcolor": GRAY,
    "axes.edgecolor": "#c5ccd3",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "grid.color": "#e7ebee",
    "xtick.color": GRAY,
    "ytick.color": GRAY,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
# Light color -> dark color of an SVG, which shows one or the other as the reader's system asks for.
_DARK_MODE = {
    "#ffffff": "#0d1117",
    "#000000": "#9aa7b4",  # axes without a color of their own
    DARK: "#e6edf3",
    GRAY: "#9aa7b4",
    "#c5ccd3": "#46515c",
    "#e7ebee": "#262d35",
    "#dfe4e8": "#3a444e",
    OTHER: "#66717d",
    OURS: "#3f9fd3",
    LIMIT: "#e8935a",
}
# A stage is named on its bar where that is so wide, as a share of the axes; else in the legend.
_LABEL_SHARE = 0.06
WIDTH_INCHES, DPI = 9.6, 105
# All digits that a tick has: 2.5 is not 2, a million is not 1e+06.
_TICKS = "{x:,.10g}"


def text(report: Report) -> str:
    """Write a report for a terminal."""
    height, width, channels = report["row_shape"]
    up_to = row_kind(has_own_sizes=report["has_own_sizes"]).up_to
    lines = [
        f"{report['store']}: {report['rows']:,} rows of {up_to}uint8[{height}, {width}, {channels}],"
        f" {size(report['pixel_bytes'])} on {report['file_system']}, {report['cached_share']:.0%} in the page cache",
        f"batches of {report['batch_size']}, {report['threads']} threads, torch {report['torch']}",
    ]
    head = ["", "images/s", "bytes/s", "of limit", "p10..p90"]
    table: list[list[str]] = []
    for section in report["sections"]:
        about = f"{section['rows']:,} rows, {section['rounds']} rounds"
        table += [[""] * 5, [f"{_TITLES[section['name']]} ({about})", *head[1:]]]
        table += [_cells(way, section["limits"]) for way in section["ways"]]
    lines += [*_aligned(table), ""]
    where = "its cache empty" if report["sections"][0]["name"] == "network" else "rows in memory"
    lines.append(f"first batch: {report['first_batch_ms']:.1f} ms after iter() of a new MemmapLoader, {where}")
    lines += [f"not measured: {what}: {why}" for what, why in report["not_measured"].items()]
    lines.append(f'residency "auto" is "{report["residency"]}" here: {report["residency_reason"]}')
    return "\n".join([*lines, *report["advice"]])


def plot(report: Report, path: str | os.PathLike[str]) -> None:
    """Draw the ways of each section as bars, and its limit as a line, into a PNG, or an SVG by the suffix .svg.

    Raises:
        PictureError: matplotlib is missing.
    """
    sections = report["sections"]
    counts = [len(section["ways"]) for section in sections]
    height = 1.1 + sum(0.9 + 0.34 * count for count in counts)
    with _figure(path, height, _finding(report), about(report)) as figure:
        panels = figure.subplots(len(sections), 1, squeeze=False, height_ratios=counts)[:, 0]
        for axes, section in zip(panels, sections, strict=True):
            _bars(axes, section)
        panels[-1].set_xlabel("images/s, and the share of the limit (median of rounds)")


def plot_timeline(timeline: TimelineRecord, about: str, path: str | os.PathLike[str]) -> None:
    """Draw who did what when, a lane for each thread and stream, into a PNG, or an SVG by the suffix .svg.

    Raises:
        PictureError: matplotlib is missing.
    """
    lanes, spans = timeline["lanes"], timeline["spans"]
    stages = [stage for stage in _COLORS if any(span["stage"] == stage for span in spans)]
    with _figure(path, 2.0 + 0.45 * len(lanes), timeline_finding(timeline), about) as figure:
        axes = figure.subplots()
        unnamed: list[object] = []
        # in the order of colors, waiting last: it may be inside another stage
        for stage in stages:
            bars = [(span["start_ms"], span["stop_ms"] - span["start_ms"]) for span in spans if span["stage"] == stage]
            positions = [-lanes.index(span["lane"]) for span in spans if span["stage"] == stage]
            starts, lengths = zip(*bars, strict=True)
            style: dict[str, Any] = {
                "color": _COLORS[stage],
                "edgecolor": "white",
                "linewidth": 0.4,
                "label": _NAMES.get(stage, stage),
            }
            drawn = axes.barh(positions, lengths, 0.76, left=starts, **style)
            longest = max(range(len(bars)), key=lengths.__getitem__)
            if lengths[longest] >= _LABEL_SHARE * _end(timeline):
                middle = starts[longest] + lengths[longest] / 2
                color = DARK if stage == "wait" else "white"
                axes.text(middle, positions[longest], style["label"], color=color, size=9, ha="center", va="center")
            else:
                unnamed.append(drawn)
        axes.set_yticks(range(0, -len(lanes), -1), lanes)
        axes.set_xlim(0, _end(timeline))
        axes.xaxis.set_major_formatter(_TICKS)
        axes.set_xlabel("ms")
        if unnamed:
            figure.legend(handles=unnamed, loc="outside lower center", ncols=len(unnamed), frameon=False)


def timeline_finding(timeline: TimelineRecord) -> str:
    """Say how long a run took and how much of it the loop waited."""
    spans = timeline["spans"]
    steps = sum(span["stage"] == "step" for span in spans)
    waited = sum(
        span["stop_ms"] - span["start_ms"] for span in spans if (span["lane"], span["stage"]) == ("caller", "wait")
    )
    total = _end(timeline)
    batches = "batch" if steps == 1 else "batches"
    return f"{steps} {batches} in {total:,.0f} ms; the loop waited {waited / total:.0%} of that for a batch"


def _end(timeline: TimelineRecord) -> float:
    """Return when the loop ended; its feeder had begun batches that nobody took."""
    return max(span["stop_ms"] for span in timeline["spans"] if span["stage"] == "step")


def _cells(way: Mapping[str, Any], limits: Sequence[str]) -> list[str]:
    rate, speed = f"{way['images_per_second']:,.0f}", f"{size(round(way['gigabytes_per_second'] * 1e9))}/s"
    name = way["name"] + (": the limit" if [way["name"]] == list(limits) else "")
    if way["name"] in limits and len(limits) == 1:
        return [name, rate, speed, "", ""]
    return [name, rate, speed, f"{way['of_limit']:.2f}", f"{way['of_limit_p10']:.2f}..{way['of_limit_p90']:.2f}"]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Align cells in columns, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = ([cell.rjust(width) for cell, width in zip(line, widths, strict=True)] for line in table)
    return ["  ".join([line[0].ljust(widths[0]), *cells[1:]]).rstrip() for line, cells in zip(table, rows, strict=True)]


def _finding(report: Report) -> str:
    """Say what the bars show."""
    loader = next(way for way in report["sections"][0]["ways"] if _is_ours(way["name"]))
    limit, slower = _LIMITS.get(report["sections"][0]["name"], ("memory", "copying memory"))
    share = (
        f"{loader['of_limit']:.0%} of the speed of {limit}" if loader["of_limit"] <= 1 else f"no slower than {slower}"
    )
    return f"{loader['name']}: {loader['images_per_second']:,.0f} images/s, {share}"


def about(report: Report) -> str:
    """Say in a line what was measured."""
    height, width, channels = report["row_shape"]
    up_to = row_kind(has_own_sizes=report["has_own_sizes"]).up_to
    return (
        f"{os.path.basename(absolute_path(report['store']))}: {report['rows']:,} rows of {up_to}{height} x {width} x"
        f" {channels}, {size(report['pixel_bytes'])}, batches of {report['batch_size']}, {report['threads']} threads,"
        f" torch {report['torch']}"
    )


def _bars(axes: Axes, section: Mapping[str, Any]) -> None:
    """Draw a section: ours in blue, limits in orange."""
    ways = section["ways"]
    rates = [way["images_per_second"] for way in ways]
    limit = max(way["images_per_second"] for way in ways if way["name"] in section["limits"])
    colors = [OURS if _is_ours(way["name"]) else LIMIT if way["name"] in section["limits"] else OTHER for way in ways]
    positions = range(0, -len(ways), -1)
    drawn = axes.barh(positions, rates, 0.68, color=colors)
    texts = [f"{way['images_per_second']:,.0f}   {way['of_limit']:.0%}" for way in ways]
    for label in axes.bar_label(drawn, texts, padding=5, size=9):
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})  # over the limit's line
    axes.axvline(limit, color=LIMIT, linestyle="--", linewidth=1.2)
    axes.text(limit, 1.0, "limit", color=LIMIT, size=9, ha="center", va="bottom", transform=axes.get_xaxis_transform())
    axes.set_xlim(0, 1.22 * max(rates))
    axes.xaxis.set_major_formatter(_TICKS)
    axes.tick_params("y", labelcolor=DARK)
    axes.set_yticks(positions, [way["name"] for way in ways])
    axes.set_title(f"{_TITLES[section['name']]}, {section['rows']:,} rows", loc="left", pad=20, size=10, weight="bold")


def _is_ours(name: str) -> bool:
    return name.startswith("MemmapLoader")


@contextlib.contextmanager
def _figure(path: str | os.PathLike[str], height: float, title: str, about: str) -> Iterator[Figure]:
    """Give a figure with what it shows written on top; write it as a PNG in the end. height: inches."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise PictureError(
            f"{os.fspath(path)}: a picture needs matplotlib. Install it: pip install 'pixpack[bench]'."
        ) from None
    with mpl.rc_context(_STYLE):
        layout = ConstrainedLayoutEngine(rect=(0.01, 0.02, 0.97, 0.98 - 0.75 / height))
        figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DPI, facecolor="white", layout=layout)
        figure.text(0.02, 1 - 0.15 / height, title, size=13, weight="bold", va="top")
        figure.text(0.02, 1 - 0.45 / height, about, size=9, color=GRAY, va="top")
        yield figure
        # imports what a figure on a terminal need not wait for
        from packer.operations.pictures import SOFTWARE, save

        if os.fspath(path).lower().endswith(".svg"):
            save(path, svg_bytes(figure))
            return
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", metadata=SOFTWARE)
        save(path, drawn.getvalue())


def svg_bytes(figure: Figure) -> bytes:
    """Write a figure of matplotlib as an SVG with text as text, light or dark as the reader's system asks for; without a date."""
    import matplotlib as mpl

    from packer.operations.pictures import SVG_STYLE

    written = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pixpack"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": "pixpack"})
    rules = "".join(
        f'[style*="{name}: {light}"]{{{name}:{dark}!important}}'
        for light, dark in _DARK_MODE.items()
        for name in ("fill", "stroke")
    )
    # text without a color of its own is black
    style = f"{SVG_STYLE}@media (prefers-color-scheme:dark){{text:not([style*='fill']){{fill:#e6edf3}}{rules}}}</style>"
    head, tag, rest = written.getvalue().decode().partition("<defs>")
    return f"{head}{style}{tag}{rest}".encode()
