"""`pack merge`."""

from __future__ import annotations

from typing import Any

import click

from packer.cli import messages
from packer.cli.help import command
from packer.cli.options import COPY, StorePath
from packer.cli.output import print_copied_rows
from packer.cli.progress import ProgressBar


@command(short_help="Copy the rows of several stores into one, without decoding.")
@click.argument("stores", type=StorePath(), nargs=-1, metavar="STORES...")
@click.argument("out", type=StorePath())
@click.option(
    "--classes", metavar="STORE|FILE", help="The class list to count in: of a store, or a file with one name a line."
)
@COPY
def merge(stores: tuple[str, ...], out: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Copy the rows of all STORES, one store after the other, into the store OUT, checked on the way.

    Folders of splits are merged split by split. STORES must have been packed with the same options and decoders. If their class
    lists differ, OUT has the longest list if that has all classes, otherwise all names, sorted. With --overwrite, OUT may be one
    of STORES: this adds the others to it.

    Examples:

        pack merge monday/ tuesday/ both/
        pack merge out/ new/ out/ --overwrite
        pack merge a/ b/ all/ --classes names.txt
    """
    from packer.operations.merge import merge as run

    with ProgressBar(hidden=quiet or as_json, unit=" rows") as bar:
        report = run(stores, out, **options, progress=bar.update)
    print_copied_rows(report, messages.rows_copied(report), as_json=as_json, quiet=quiet)
    return 0
