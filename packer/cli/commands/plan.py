"""`pack plan`."""

from __future__ import annotations

import shlex
from typing import Any

import click

from packer.cli.options import JSON, StorePath, options_of
from packer.cli.output import Output


@click.command()
@click.argument("images", type=StorePath())
@options_of("size", "fit", "max_size", "channels", "workers")
@JSON
def plan(images: str, as_json: bool, **options: Any) -> int:
    """Show the disk use of each way to pack IMAGES, from headers.

    \b
    Examples:
        pack plan images/
        pack plan images/ --size 320
        pack plan images/ --json | jq .choices
    """
    from packer.operations.plan import plan as run
    from packer.operations.plan import summary

    output = Output(as_json, quiet=False)
    with output.progress() as bar:
        found = run(images, **options, progress=bar.update)
    channels = "" if options["channels"] == "rgb" else f" --channels {options['channels']}"
    line = f"to pack this way: pack {shlex.quote(images)} OUT {found.chosen}{channels}"
    output.report(found, f"{summary(found)}\n{line}")
    return 0
