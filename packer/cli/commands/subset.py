"""`pack subset`."""

from __future__ import annotations

from typing import Any

import click

from packer.cli import messages
from packer.cli.options import StorePath, answers, options_of, parse_rows, read_rows
from packer.cli.output import Output
from packer.errors import OptionsError


@click.command()
@click.argument("store", type=StorePath())
@click.argument("out", type=StorePath())
@click.option("--rows", metavar="LIST|-", help="Rows in their order, such as 0,7,20-29; -: from standard input.")
@click.option("--class", "names", multiple=True, metavar="NAME", help="Only rows of this class; may be given again.")
@click.option("--classes", metavar="STORE|FILE", help="Only rows of these classes, which become the list of OUT.")
@click.option("--per-class", type=click.IntRange(1), metavar="K", help="K rows of each class, drawn by --seed.")
@click.option("--fraction", type=float, metavar="F", help="This share of the rows, drawn by --seed.")
@click.option("--seed", type=click.IntRange(0), metavar="N", default=0, help="Seed for --per-class and --fraction.")
@options_of("overwrite")
@answers
def subset(store: str, out: str, names: tuple[str, ...], output: Output, **options: Any) -> int:
    """Copy some rows of STORE into OUT, without decoding.

    If STORE is a folder of splits, rows of each split are copied below OUT. With --class or --classes, OUT has these
    classes only, numbered in this order; otherwise it has the classes of STORE. Rows keep their order. With --overwrite, OUT
    may be STORE itself.

    \b
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
        options["rows"] = read_rows() if rows == "-" else parse_rows(rows)
    with output.progress(" rows") as bar:
        report = run(store, out, **options, progress=bar.update)
    output.report(report, messages.copied(report), report.notes)
    return 0
