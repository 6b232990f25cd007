"""What `pack bench` shows: the figures as a table. Takes reports as plain values; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packer.cli.messages import size
from reader.format.row_kinds import row_kind

# reader.bench.measure.BenchReport as a dict.
Report = Mapping[str, Any]

_TITLES = {
    "memory": "from memory",
    "device": "to the device",
    "disk": "from the disk, nothing of it cached",
    "network": "from the network",
}


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
