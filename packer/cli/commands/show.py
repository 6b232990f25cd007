"""`pack show`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from packer.cli.options import StorePath, parse_rows
from packer.cli.output import say
from packer.errors import OptionsError
from packer.option_names import Option
from packer.options import TILES, TILES_A_LINE
from reader.format.filesystem import absolute_path, error_path, plain_path


@click.command()
@click.argument("out", type=StorePath())
@click.option("--rows", metavar="LIST", help="Rows to show, such as 0,7,20-29; without it, some spread over the store.")
@click.option("--count", type=click.IntRange(1, 10_000), default=TILES, help="Tiles of the sheet.")
@click.option("--columns", type=click.IntRange(1, 200), default=TILES_A_LINE, help="Tiles in a line.")
@click.option(
    "--per-class",
    type=click.IntRange(1, 100),
    metavar="K",
    help="A line for each class, of K rows spread over it; of more than 100 classes, 100 spread over the list.",
)
@click.option("--single", is_flag=True, help="Write one row as it is stored, without caption or scaling.")
@click.option("-o", "--output", type=StorePath(), help="The PNG to write.  [default: OUT-sheet.png beside OUT]")
def show(out: str, rows: str | None, output: str | None, **options: Any) -> int:
    """Draw rows of the store OUT into a PNG.

    Of a folder of splits, into one PNG for each: FILE-train.png and so on.

    \b
    Examples:
        pack show out/ -o sheet.png
        pack show out/ --rows 100-149 -o some.png
        pack show out/ --per-class 6 -o classes.png
        pack show out/ --rows 7 --single -o seven.png
    """
    from packer.inputs.splits import check_one_store, stores_of

    if options["per_class"] and (rows or options["single"]):
        raise OptionsError("--per-class chooses the rows itself: leave --rows and --single out.")
    if rows is not None:
        check_one_store(out, Option("rows"))
    chosen = None if rows is None else parse_rows(rows, most=10_000)
    if options["single"] and (chosen is None or len(chosen) != 1):
        raise OptionsError("--single shows one row: give it with --rows, for example --rows 7.")
    for split, store in stores_of(out).items():
        path = _sheet_path(out, split, output)
        _draw(path, store, chosen, **options)
        say(path)
    return 0


def _draw(
    path: str,
    store: Path,
    rows: list[int] | None,
    *,
    count: int,
    columns: int,
    per_class: int | None,
    single: bool,
) -> None:
    """Draw the picture of one store."""
    from packer.operations.show import class_sheet, contact_sheet, png, row_image

    try:
        if single and rows:
            image = row_image(store, rows[0])
        elif per_class:
            image = class_sheet(store, per_class)
        else:
            image = contact_sheet(store, rows=rows, count=count, columns=columns)
    except IndexError as e:
        raise OptionsError(f"--rows: {e}") from None
    with error_path(path):
        Path(path).write_bytes(png(image))


def _sheet_path(out: str, split: str, output: str | None) -> str:
    """Name a store's picture; that of a split has the split's name in it: sheet.png -> sheet-train.png."""
    # "." and ".." are no names that another could stand beside
    beside = plain_path(out)
    if os.path.basename(beside) in (".", ".."):
        beside = absolute_path(out)
    of_split = f"-{split}" if split else ""
    if output is None:
        return f"{beside}{of_split}-sheet.png"
    stem, suffix = os.path.splitext(output)
    return f"{stem}{of_split}{suffix}"
