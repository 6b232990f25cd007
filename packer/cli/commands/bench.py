"""`pack bench`: the options, and the figures as a table."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from packer.cli.help import command
from packer.cli.messages import size
from packer.cli.need_torch import need_torch
from packer.cli.options import Range, StorePath
from packer.cli.output import say, say_json
from packer.cli.progress import ProgressBar
from packer.cli.terminal import aligned, columns_of
from packer.errors import OptionsError
from reader.format.row_kinds import row_kind
from reader.format.urls import is_url

if TYPE_CHECKING:
    from reader.bench import BenchReport, Section

_HEADINGS = {
    "memory": "from memory",
    "device": "to the device",
    "disk": "from the disk, nothing of it cached",
    "network": "from the network, into an empty cache",
}


@command(short_help="How near reading comes to the speed of this machine's memory and disk.")
@click.argument("out", type=StorePath())
@click.option(
    "--batch-size", type=click.IntRange(1), metavar="N", help="Rows a batch. [default: 256, fewer of a small store]"
)
@click.option(
    "--device",
    default="cpu",
    metavar="DEVICE",
    show_default=True,
    help="Also measure copies to this device, if it is cuda.",
)
@click.option(
    "--order",
    type=click.Choice(("full", "block", "sequential")),
    help="Time this order of MemmapLoader alone. [default: all, block from the disk]",
)
@click.option(
    "--seconds",
    type=Range(0.1, 3600),
    default=5.0,
    show_default=True,
    metavar="S",
    help="About how long to measure.",
)
@click.option(
    "--trace",
    type=StorePath(),
    metavar="FILE",
    help="Read 16 batches, and write a Chrome trace of what each thread does.",
)
@click.option(
    "--residency",
    type=click.Choice(("auto", "cache", "ram", "disk", "gpu")),
    default="auto",
    show_default=True,
    help="Where the traced loader reads rows from.",
)
@click.option("--normalize", is_flag=True, help="Let the traced loader normalize to float32.")
@click.option(
    "--step-ms",
    type=Range(0, 60_000),
    default=0.0,
    show_default=True,
    metavar="MS",
    help="Wait so long with each batch of the trace, as a training step does.",
)
@click.option("--cache", type=StorePath(), metavar="FOLDER", help="Folder for the blocks of a URL while it measures.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print the figures and nothing else.")
def bench(
    out: str, as_json: bool, quiet: bool, trace: str | None, seconds: float, cache: str | None, **options: Any
) -> int:
    """Time reading the store OUT, against copying memory, reading the disk, and torch's DataLoader.

    For the URL of a store, time the first epoch of its first rows, against fetching the same ranges alone.

    In a folder of splits, the split with most rows is measured. To time the disk, pages of OUT are dropped from the page cache
    and read again. Only the trace is written.

    \b
    Examples:
      pack bench out/
      pack bench out/ --seconds 20
      pack bench out/ --trace trace.json --step-ms 20 --order full
      pack bench out/ --json | jq '.sections[0].ways'
      pack bench s3://bucket/out --seconds 20
    """
    # imports what other commands need not wait for
    from packer.operations.pictures import check_picture_path, marked, save

    need_torch("pack bench")
    if trace is not None:
        check_picture_path("--trace", trace, (".json",))
    _check_place(is_url(out), options["device"], options["residency"], cache)
    out = out if is_url(out) else _largest(out)
    # torch's profiler would report on stderr that it starts and stops; read when torch is imported
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with ProgressBar(hidden=quiet or as_json) as bar:
        bar.share_done("loading torch", 0.0)
        from reader.bench import loop_ms, measure, record_store
        from reader.format.errors import BenchError

        run = {name: options.pop(name) for name in ("residency", "normalize", "step_ms")}
        try:
            report = measure(out, **options, seconds=seconds, cache=cache, progress=bar.share_done)
            shown, lines = dataclasses.asdict(report), text(report, columns_of(sys.stdout))
            if trace is not None:
                bar.share_done("trace", 0.0)
                recorded = record_store(out, **options, **run, cache=cache)
                save(trace, marked(recorded))
                shown["loop_ms"] = loop_ms(recorded)
                spent = shown["loop_ms"]
                lines += (
                    f"\nin the trace the loop waited {spent['wait']:.1f} ms, and its steps took {spent['step']:.1f} ms"
                )
        except BenchError as e:
            raise OptionsError(str(e)) from None
    if as_json:
        say_json(shown)
    else:
        say(lines)
    return 0


def _check_place(is_remote: bool, device: str, residency: str, cache: str | None) -> None:
    """Refuse what is for stores on a disk, or at a URL; raises OptionsError."""
    if is_remote and device != "cpu":
        raise OptionsError("--device is for a store on a disk. Leave it out, or measure a copy: pack pull URL OUT")
    if is_remote and residency not in ("auto", "cache"):
        raise OptionsError(
            "--residency is for a store on a disk: one at a URL is read through its cache. Leave it out."
        )
    if cache is not None and not is_remote:
        raise OptionsError("--cache is for the URL of a store. Leave it out.")


def _largest(out: str) -> str:
    """Return OUT, or of the stores of splits that it holds the one with most rows, which a note names."""
    from packer.inputs.splits import stores_of
    from packer.store.state import check_finished

    stores = stores_of(out)
    if "" in stores:
        return out
    largest = max(stores.values(), key=lambda store: check_finished(store).rows)
    say(f"pack: note: {out} holds the stores of splits: {largest}, which has most rows, is measured.", err=True)
    return str(largest)


# -- the table


def text(report: BenchReport, columns: int | None) -> str:
    """Write a report for a terminal of so many columns, or for a file."""
    height, width, channels = report.row_shape
    up_to = row_kind(has_own_sizes=report.has_own_sizes).up_to
    is_remote = report.sections[0].name == "network"
    place = "" if is_remote else f" on {report.file_system}, {report.cached_share:.0%} in the page cache"
    lines = [
        _headline(report),
        "",
        f"{report.store}: {report.rows:,} rows of {up_to}uint8[{height}, {width}, {channels}],"
        f" {size(report.pixel_bytes)}{place}",
        f"batches of {report.batch_size}, {report.threads} threads, torch {report.torch}",
    ]
    for section in report.sections:
        heading = f"{_HEADINGS[section.name]}: {section.rows:,} rows, {section.rounds} rounds"
        lines += ["", heading, section.title, *aligned(_table(section), columns)]
    where = "its cache empty" if is_remote else "rows in memory"
    lines += ["", f"first batch: {report.first_batch_ms:.1f} ms after iter() of a new MemmapLoader, {where}"]
    lines += [f"not measured: {what}: {why}" for what, why in report.not_measured.items()]
    lines += [f'residency "auto" is "{report.residency}" here: {report.residency_reason}', *report.advice]
    return "\n".join(lines)


def _headline(report: BenchReport) -> str:
    """Say in a sentence what the first table means for training."""
    section = report.sections[0]
    rates = {way.name: way.images_per_second for way in section.ways}
    ours = next(rate for name, rate in rates.items() if name.startswith("MemmapLoader"))
    torch = max((rate for name, rate in rates.items() if name.startswith("DataLoader")), default=0.0)
    beside = f" (torch's DataLoader over this store: {torch:,.0f})" if torch else ""
    return (
        f"MemmapLoader gives a training loop {ours:,.0f} images/s {_HEADINGS[section.name]}{beside}: a model that takes fewer"
        " does not wait for images."
    )


def _table(section: Section) -> list[Sequence[str]]:
    """Return the headings, and the cells of each way."""
    rows: list[Sequence[str]] = [("", "images/s", "bytes/s", "of limit", "p10..p90")]
    for way in section.ways:
        share = f"{way.of_limit:.2f}", f"{way.of_limit_p10:.2f}..{way.of_limit_p90:.2f}"
        if section.limits == (way.name,):
            share = "limit", f"{section.limit_p10:.2f}..{section.limit_p90:.2f}"
        speed = f"{size(round(way.gigabytes_per_second * 1e9))}/s"
        rows.append((way.name, f"{way.images_per_second:,.0f}", speed, *share))
    return rows
