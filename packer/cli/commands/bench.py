"""`pack bench`."""

from __future__ import annotations

import dataclasses

import click

from packer.cli.options import JSON, StorePath, need_torch
from packer.cli.output import say, say_json


@click.command()
@click.argument("out", type=StorePath())
@click.option("--batch-size", type=click.IntRange(1), default=256, metavar="N", help="Rows per batch.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=5.0,
    metavar="S",
    help="Approximate duration of the measurement.",
)
@JSON
def bench(out: str, batch_size: int, seconds: float, as_json: bool) -> int:
    """Time reading the store OUT, beside memory and the disk.

    Times MemmapLoader and torch's DataLoader, plain copies of the rows, and reads from the disk.

    \b
    Examples:
        pack bench out/
        pack bench out/ --seconds 20
        pack bench out/ --json | jq '.ways[0]'
    """
    need_torch("pack bench")
    from reader.bench import measure

    ways = measure(out, batch_size=batch_size, seconds=seconds)
    if as_json:
        say_json({"ways": [dataclasses.asdict(way) for way in ways]})
        return 0
    for way in ways:
        share = "" if way.of_limit is None else f"{way.of_limit:10.2f} of the limit"
        say(f"{way.name:27}{way.images_per_second:12,.0f} images/s{share}")
    return 0
