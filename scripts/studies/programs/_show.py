"""How the programs' figures are shown: a table, a page, a picture. Runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.common import figures, plot
from scripts.common.figures import ratio_cells
from scripts.studies.programs._edits import WAYS
from scripts.studies.programs._turns import is_within

_LOSSES, _SPREAD = ["loss before", "with a store", "apart"], "p10..p90"
HEAD = ["program", "way", *_LOSSES, "times as fast", _SPREAD, "bound", _SPREAD]


def lines_of(reports: dict[str, Any]) -> list[list[str]]:
    """Return a line for each way of each program."""
    return [cells(report, way) for report in reports.values() for way in report["ways"]]


def cells(report: dict[str, Any], way: str) -> list[str]:
    found = report["ways"][way]
    if "failed" in found:
        return [report["title"], WAYS[way], found["failed"], *[""] * 6]
    losses = [f"{found['losses'][side]['median']:.3f}" for side in ("original", "ours")]
    apart = "one seed" if found["apart"] is None else f"{found['apart']:.1f}{'' if is_within(found) else ' (too far)'}"
    return [
        report["title"],
        WAYS[way],
        *losses,
        apart,
        *ratio_cells(found["faster"]),
        *ratio_cells(found.get("bound")),
    ]


def table(reports: dict[str, Any]) -> str:
    """Draw the table for a terminal; programs that did not run follow it with their reasons."""
    reasons = [f"{report['title']}: not run, {report['lacks']}" for report in reports.values() if "lacks" in report]
    return "\n".join([figures.table([HEAD, *lines_of(reports)]), *reasons])


def save(reports: dict[str, Any], out: Path) -> None:
    """Write README.md, and programs.png where there is anything to draw."""
    parts = [
        "# Programs of others on a store",
        "Written by `python -m scripts.studies.programs`; its first lines say what is measured."
        " `apart` is the distance of the mean losses in standard errors over the seeds; `bound` is how many"
        " times as fast the program is with data that costs nothing.",
        markdown(HEAD, lines_of(reports)),
    ]
    if any("faster" in found for report in reports.values() for found in report["ways"].values()):
        draw(reports, out / "programs.png")
        parts.append("![how many times as fast each program loads](programs.png)")
    parts += [f"- {report['title']}: {described(report)}" for report in reports.values()]
    (out / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def markdown(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---", *["---:"] * (len(head) - 1)], *lines])


def described(report: dict[str, Any]) -> str:
    """Name the machine, the versions and the date of one program's figures, or say why there are none."""
    if "lacks" in report:
        return f"not run, {report['lacks']}"
    where, versions = report["machine"], ", ".join(f"{name} {v}" for name, v in report["versions"].items())
    return (
        f"{report['images']} images, {report['words']}, {report['seeds']} seeds; {where['cores']} cores of {where['cpu']}, load"
        f" {where['load_average'][0]} before, {where['date'][:10]}; {versions}"
    )


def draw(reports: dict[str, Any], path: Path) -> None:
    """Draw how many times as fast as its original each program ran its training epochs."""
    values, texts = {}, []
    for report in reports.values():
        for way, found in report["ways"].items():
            if "faster" in found:
                values[f"{WAYS[way]}: {report['title']}"] = found["faster"]["median"]
                texts.append(f"{found['faster']['median']:.2g}x")
    where = next(report["machine"] for report in reports.values() if "machine" in report)
    title = f"{len(reports)} programs of others on a store: how many times as fast they load"
    claim = "training epochs with a model that takes no time, medians over seeds, original and pixpack in turns"
    footer = f"{where['cores']} cores of {where['cpu']}, {where['date'][:10]}, load {where['load_average'][0]} before"
    figure, (axes,) = plot.new_figure(title, claim, footer)
    plot.bars(axes, values, texts, xlabel="times as fast as the original")
    axes.axvline(1, color=plot.DARK, linewidth=1)
    plot.save(figure, path)
