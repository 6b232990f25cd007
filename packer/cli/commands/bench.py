"""`pack bench`."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import click

from packer.cli.help import command
from packer.cli.options import Range, StorePath
from packer.cli.output import say, say_json
from packer.cli.progress import ProgressBar
from packer.errors import OptionsError, PackError
from reader.format.urls import is_url


@command(short_help="How near reading comes to the speed of this machine's memory and disk.")
@click.argument("out", type=StorePath())
@click.option(
    "--batch-size", type=click.IntRange(1), metavar="N", help="Rows a batch. [default: 256, fewer of a small store]"
)
@click.option("--device", default="cpu", metavar="DEVICE", show_default=True, help="cuda: measure copies to it too.")
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
    "--trace", type=StorePath(), metavar="FILE", help="Run 16 batches, and write who did what when as a Chrome trace."
)
@click.option(
    "--residency",
    type=click.Choice(("auto", "cache", "ram", "disk", "gpu")),
    default="auto",
    show_default=True,
    help="Where that run reads from.",
)
@click.option("--normalize", is_flag=True, help="That run normalizes to float32, as the loader's transform.")
@click.option(
    "--step-ms",
    type=Range(0, 60_000),
    default=0.0,
    show_default=True,
    metavar="MS",
    help="That run waits so long with each batch, as for a training step.",
)
@click.option("--cache", type=StorePath(), metavar="FOLDER", help="Of a URL: where blocks are put while it measures.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print the figures and nothing else.")
def bench(out: str, as_json: bool, quiet: bool, cache: str | None, trace: str | None, **options: Any) -> int:
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
    _need_torch()
    run = {name: options.pop(name) for name in ("residency", "normalize", "step_ms")}
    # imports what other commands need not wait for
    from packer.operations.pictures import check_picture_path, marked, save, scratch_trace

    if trace is not None:
        check_picture_path("--trace", trace, (".json",))
    if is_url(out):
        _check_remote(options, run)
    else:
        out = _largest(out)
    # torch's profiler would report on stderr that it starts and stops; read when torch is imported
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with _scratch(out, cache) as scratch, ProgressBar(hidden=quiet or as_json) as bar:
        bar.share_done("loading torch", 0.0)
        from packer.cli.bench_table import text
        from reader.bench.measure import measure
        from reader.bench.network import measure_remote
        from reader.bench.timeline import record_store
        from reader.format.errors import BenchError

        try:
            if scratch is not None:
                asked = {name: value for name, value in options.items() if name != "device"}
                report = dataclasses.asdict(measure_remote(out, scratch, **asked, progress=bar.share_done))
            else:
                report = dataclasses.asdict(measure(out, **options, progress=bar.share_done))
            if trace is not None:
                bar.share_done("trace", 0.0)
                run |= {name: options[name] for name in ("batch_size", "device")}
                order = options["order"] or ("full" if scratch is None else "block")
                run["cache"] = None if scratch is None else os.path.join(scratch, "trace")
                with scratch_trace() as written:
                    report["timeline"] = dataclasses.asdict(record_store(out, order=order, trace=written, **run))
                    save(trace, marked(written))
        except BenchError as e:
            raise OptionsError(str(e)) from None
    if as_json:
        say_json(report)
    else:
        say(text(report))
    return 0


def _need_torch() -> None:
    """Raise PackError where torch or tensordict, which the other commands do without, is not installed."""
    for name in ("torch", "tensordict"):
        if importlib.util.find_spec(name) is None:
            raise PackError(
                f"pack bench reads as a training program does and needs {name}, which is not installed here."
                " Run it where you train, or: pip install torch tensordict"
            )


def _check_remote(options: dict[str, object], run: dict[str, object]) -> None:
    """Refuse what is for stores on a disk; raises OptionsError."""
    if options["device"] != "cpu":
        raise OptionsError("--device is for a store on a disk. Leave it out, or measure a copy: pack pull URL OUT")
    if run["residency"] not in ("auto", "cache"):
        raise OptionsError(
            "--residency is for a store on a disk: one at a URL is read through its cache. Leave it out."
        )


@contextlib.contextmanager
def _scratch(out: str, cache: str | None) -> Iterator[str | None]:
    """Give a folder for the blocks of a URL, which is removed; None: OUT is not a URL."""
    if not is_url(out):
        if cache is not None:
            raise OptionsError("--cache is for the URL of a store. Leave it out.")
        yield None
        return
    if cache is not None:
        os.makedirs(cache, exist_ok=True)
    from reader.bench.network import scratch_folder

    with scratch_folder(cache) as folder:
        yield str(folder)


def _largest(out: str) -> str:
    """Return OUT, or of the stores of splits that it holds the one with most rows, which a note names."""
    from packer.inputs.splits import stores_of
    from packer.store.unfinished import check_finished

    stores = stores_of(out)
    if "" in stores:
        return out
    largest = max(stores.values(), key=lambda store: check_finished(store).rows)
    say(f"pack: note: {out} holds the stores of splits: {largest}, which has most rows, is measured.", err=True)
    return str(largest)
