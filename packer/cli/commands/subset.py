"""`pack subset`."""

from __future__ import annotations

from typing import Any

import click

from packer.cli import messages
from packer.cli.help import command
from packer.cli.options import COPY, StorePath, checked_spans, read_rows, row_spans
from packer.cli.output import print_copied_rows
from packer.cli.progress import ProgressBar
from packer.errors import OptionsError


@command(short_help="Copy some rows of a store into another, without decoding.")
@click.argument("store", type=StorePath())
@click.argument("out", type=StorePath())
@click.option(
    "--rows", metavar="LIST|-", help="Rows in their order, such as 0,7,20-29; -: numbers from standard input."
)
@click.option(
    "--class", "names", multiple=True, metavar="NAME", help="Only rows of this class; may be given several times."
)
@click.option(
    "--classes",
    metavar="STORE|FILE",
    help="Only rows of these classes, whose list OUT then has: of a store, or a file with one name a line.",
)
@click.option(
    "--per-class", type=click.IntRange(1), metavar="K", help="K rows of each class, or all it has, drawn by --seed."
)
@click.option("--fraction", type=float, metavar="F", help="This share of the rows, drawn by --seed.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of --per-class and --fraction.")
@COPY
def subset(
    store: str,
    out: str,
    as_json: bool,
    quiet: bool,
    names: tuple[str, ...],
    **options: Any,
) -> int:
    """Copy some rows of STORE into the store OUT: pixels, targets and everything else, checked on the way.

    If STORE is a folder of splits, rows of each split are copied below OUT. With --class or --classes, OUT has these
    classes only, numbered in this order; otherwise it has the classes of STORE. Rows keep their order. With --overwrite, OUT
    may be STORE itself.

    Examples:

        pack subset out/ some/ --class cat --class dog
        pack subset out/ tenth/ --fraction 0.1
        pack subset out/ few/ --per-class 20 --seed 1
        pack subset imagenet/ imagenet-100/ --classes hundred.txt
        seq 0 2 1998 | pack subset out/ even/ --rows -
    """
    from packer.operations.subset import subset as run

    if names and options["classes"]:
        raise OptionsError("--class and --classes both say which classes: give one of them.")
    options["classes"] = names or options["classes"]
    if (rows := options["rows"]) is not None:
        options["rows"] = read_rows() if rows == "-" else checked_spans(row_spans(rows), store)
    with ProgressBar(hidden=quiet or as_json, unit=" rows") as bar:
        report = run(store, out, **options, progress=bar.update)
    print_copied_rows(report, messages.rows_copied(report), as_json=as_json, quiet=quiet)
    return 0
