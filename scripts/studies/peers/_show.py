"""How the figures of all peers are shown: tables, a page, a picture. Measures nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scripts.common import figures, plot
from scripts.common.figures import ratio_cells
from scripts.studies.peers._turns import LEAD, OUR_COPYING, OURS, PEER, PEER_COPYING

# two of them timed
LEAST_BATCHES = LEAD + 2
# medians of the same minute differ by less on an idle machine
AS_FAST = 0.1
READ_HEAD = ["", "shuffle", "images/s", "of copying", "pixpack / it", "p10..p90", "whole epochs", "p10..p90"]
PACK_HEAD = ["", "images/s", "pixpack, in turns with it", "pixpack / it", "p10..p90"]


def table(found: dict[str, Any]) -> str:
    """Draw the tables for a terminal; peers without figures follow them with their reasons."""
    reasons = [f"{report['peer']}: {reason(report)}" for report in found.values() if reason(report)]
    measured = [report for report in found.values() if not reason(report)]
    packing = [["packing", *PACK_HEAD[1:]], *pack_lines(measured)]
    reading = [["reading", *READ_HEAD[1:]], *read_lines(measured)]
    return "\n".join([figures.table(packing), "", figures.table(reading), *reasons])


def pack_lines(measured: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Return a line for each peer that has a packed form."""
    found = [(report["peer"], report["packing"]) for report in measured if "packing" in report]
    return [
        [peer, rate(packing, PEER), rate(packing, OURS), *ratio_cells(packing["ratio"][f"{OURS}/{PEER}"])]
        for peer, packing in found
    ]


def read_lines(measured: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Return a line for ours beside each peer, and one for each way of the peer."""
    return [line for report in measured for line in lines_of(report)]


def lines_of(report: dict[str, Any]) -> list[list[str]]:
    steady, epoch = report["steady"], report["epoch"]
    copied = f"{steady['ratio'][f'{OURS}/{OUR_COPYING}']['median']:.2f}"
    result = [[f"pixpack, in turns with {report['peer']}", "full", rate(steady, OURS), copied, "", "", "", ""]]
    for way, order in report["orders"].items():
        copied = f"{steady['ratio'][f'{way}/{PEER_COPYING}']['median']:.2f}"
        against = [cell for kind in (steady, epoch) for cell in ratio_cells(kind["ratio"][f"{OURS}/{way}"])]
        result.append([f"{report['peer']} {way}", order, rate(steady, way), copied, *against])
    return result


def rate(kind: dict[str, Any], name: str) -> str:
    return f"{kind['images_per_second'][name]['median']:,.0f}"


def reason(report: dict[str, Any]) -> str:
    """Say why there are no figures; empty where there are."""
    if "not_installed" in report:
        return f"not installed: {report['not_installed']}"
    return f"failed: {report['failed']}" if "failed" in report else ""


def save(found: dict[str, Any], out: Path) -> None:
    """Write README.md, and peers.png where there is anything to draw."""
    measured = {name: report for name, report in found.items() if not reason(report)}
    parts = ["# Beside others", "Written by `python -m scripts.studies.peers`; its first lines say what is measured."]
    if measured:
        draw(measured, out / "peers.svg")
        parts += ["## Packing", markdown(PACK_HEAD, pack_lines(measured.values()))]
        parts += ["## Reading", markdown(READ_HEAD, read_lines(measured.values())), "![the table as bars](peers.svg)"]
    parts += [f"- {found[name]['peer']}: {described(found[name])}" for name in found]
    (out / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def markdown(head: list[str], cells: list[list[str]]) -> str:
    rows = [head, ["---", *["---:"] * (len(head) - 1)], *cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def described(report: dict[str, Any]) -> str:
    """Name the machine, the versions and the date of one peer's figures, or why there are none."""
    if reason(report):
        # no path of the machine
        return f"{re.sub(r' ?.log: [^)]*.', '', reason(report))} ({report['machine']['date'][:10]})"
    where, versions = report["machine"], ", ".join(f"{name} {v}" for name, v in report["versions"].items())
    load = f"load {where['load_average'][0]} before, {report['load_average_after'][0]} after"
    return (
        f"{report['rows']} rows of {'x'.join(map(str, report['row_shape']))}, batch {report['batch_size']},"
        f" {report['threads']} threads, {report['rounds']} rounds; {where['cores']} cores of {where['cpu']}, {load},"
        f" {where['date'][:10]}; pixpack {where['versions']['pixpack']} with torch {where['versions']['torch']}; {versions}"
    )


def finding(peer: str, factor: float) -> str:
    """Say how ours and the fastest peer compare; a tenth more or less is as fast, on a machine that does other work as well.

    factor: the speed of ours as a multiple of the peer's.
    """
    name = peer.partition(",")[0]
    if abs(factor - 1) <= AS_FAST:
        return f"pixpack reads as fast as {name}, the fastest peer"
    if factor > 1:
        return f"pixpack reads {factor:.2g} times as fast as {name}, the fastest peer"
    return f"{name} reads {1 / factor:.2g} times as fast as pixpack"


def bar_text(factor: float) -> str:
    """Say a peer's speed as a share of ours, and where ours is clearly faster, how many times."""
    share = f"{1 / factor:.2g}"
    return share if factor <= 1 + AS_FAST else f"{share}: pixpack is {factor:.3g} times as fast"


def draw(measured: dict[str, Any], path: Path) -> None:
    """Draw each way of reading as its share of what ours did in the same rounds, the fastest first."""
    factors = {}
    for report in measured.values():
        for way, order in report["orders"].items():
            factors[f"{report['peer']} {way}, {order}"] = report["steady"]["ratio"][f"{OURS}/{way}"]["median"]
    names = sorted(factors, key=lambda name: factors[name])
    values = {"pixpack, full": 1.0} | {name: 1 / factors[name] for name in names}
    texts = ["1", *(bar_text(factors[name]) for name in names)]
    first = next(iter(measured.values()))
    where = first["machine"]
    load = f"load {where['load_average'][0]} when the first began"
    footer = f"{where['cores']} cores of {where['cpu']}, {where['date'][:10]}, {load}"
    title = f"Shuffled from the page cache, {finding(names[0], factors[names[0]])}"
    size = f"rows of {'x'.join(map(str, first['row_shape']))}, batch {first['batch_size']}, {first['threads']} threads"
    claim = f"{size}, in turns; steady reading, after an epoch's first {LEAD} batches"
    figure, (axes,) = plot.new_figure(title, claim, footer)
    plot.bars(axes, values, texts, xlabel="images/s as a share of pixpack's in the same rounds, medians")
    axes.set_xlim(0, max(values.values()) * 1.5)
    plot.save(figure, path)
