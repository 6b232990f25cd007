"""`pack show`."""

from __future__ import annotations

import os

import click

from packer.cli.options import StorePath, parse_rows
from packer.cli.output import say
from packer.option_names import Option
from packer.options import TILES
from reader.format.filesystem import absolute_path, error_path


@click.command()
@click.argument("out", type=StorePath())
@click.option("--rows", metavar="LIST", help="Rows to show, such as 0,7,20-29; default: spread over the store.")
@click.option("--count", type=click.IntRange(1, 10_000), metavar="N", default=TILES, help="Tiles of the sheet.")
@click.option("-o", "--output", type=StorePath(), metavar="PNG", help="The PNG to write; default: OUT-sheet.png.")
def show(out: str, rows: str | None, count: int, output: str | None) -> int:
    """Draw rows of the store OUT into a PNG, with boxes and masks.

    For a folder of splits, draws one PNG per split: FILE-train.png and so on.

    \b
    Examples:
        pack show out/ -o sheet.png
        pack show out/ --rows 100-149 -o some.png
    """
    from packer.inputs.splits import check_one_store, stores_of
    from packer.operations.show import contact_sheet

    if rows is not None:
        check_one_store(out, Option("rows"))
    chosen = None if rows is None else parse_rows(rows, most=10_000)
    stem, suffix = os.path.splitext(output or f"{absolute_path(out)}-sheet.png")
    for split, store in stores_of(out).items():
        path = f"{stem}-{split}{suffix}" if split else f"{stem}{suffix}"
        sheet = contact_sheet(store, rows=chosen, count=count)
        with error_path(path):
            sheet.save(path, format="PNG")
        say(path)
    return 0
