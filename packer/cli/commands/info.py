"""`pack info`."""

from __future__ import annotations

import os

import click

from packer.cli import messages
from packer.cli.options import JSON, StorePath
from packer.cli.output import ProgressBar, say, say_json


@click.command()
@click.argument("out", type=StorePath())
@JSON
def info(out: str, as_json: bool) -> int:
    """Show the content, options and sources of the store OUT.

    OUT may also be a folder of splits. For an unfinished pack, out.packing, it shows the progress and the line that continues
    it, with exit code 1. Reads no pixels.

    \b
    Examples:
        pack info out/
        pack info out/ --json | jq .rows
        pack info out.packing/
    """
    from packer.operations.info import describe

    with ProgressBar(hidden=as_json, unit=" rows") as bar:
        found = describe(out, progress=bar.update)
    if as_json:
        say_json(found.to_json())
        return 0
    for split, manifest in found.manifests.items():
        name = os.path.join(out, split) if split else out
        lines = messages.manifest_lines(name, manifest) | messages.source_lines(manifest, found.sources[split])
        say("\n".join(f"{key:12}{value}" for key, value in lines.items()))
    return 0
