"""`pack merge`."""

from __future__ import annotations

from typing import Any

import click

from packer.cli import messages
from packer.cli.options import StorePath, answers, options_of
from packer.cli.output import Output


@click.command()
@click.argument("stores", type=StorePath(), nargs=-1, metavar="STORES...")
@click.argument("out", type=StorePath())
@options_of("classes", "overwrite")
@answers
def merge(stores: tuple[str, ...], out: str, output: Output, **options: Any) -> int:
    """Copy the rows of several stores into OUT, without decoding.

    Folders of splits are merged split by split. STORES must have been packed with the same options and decoders. If their class
    lists differ, OUT has the longest list if that has all classes, otherwise all names, sorted. With --overwrite, OUT may be one
    of STORES: this adds the others to it.

    \b
    Examples:
        pack merge monday/ tuesday/ both/
        pack merge out/ new/ out/ --overwrite
        pack merge a/ b/ all/ --classes names.txt
    """
    from packer.operations.merge import merge as run

    with output.progress(" rows") as bar:
        report = run(stores, out, **options, progress=bar.update)
    output.report(report, messages.copied(report), report.notes)
    return 0
