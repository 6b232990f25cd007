"""`pack bench`."""

from __future__ import annotations

import dataclasses

import click

from packer.cli.help import command
from packer.cli.need_torch import need_torch
from packer.cli.options import Range, StorePath
from packer.cli.output import say, say_json


@command(short_help="How near reading comes to the speed of this machine's memory and disk.")
@click.argument("out", type=StorePath())
@click.option("--batch-size", type=click.IntRange(1), default=256, metavar="N", help="Rows a batch.")
@click.option("--seconds", type=Range(0.1, 3600), default=5.0, metavar="S", help="About how long to measure.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON on stdout.")
def bench(out: str, batch_size: int, seconds: float, as_json: bool) -> int:
    """Time reading the store OUT: MemmapLoader and torch's DataLoader, against copying its rows, and reading from the disk.

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
