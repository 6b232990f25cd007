"""`pack seal`."""

from __future__ import annotations

import click

from packer.cli import messages
from packer.cli.options import StorePath, answers
from packer.cli.output import Output


@click.command()
@click.argument("out", type=StorePath())
@click.option("--max-rejects", metavar="N|P%", help="Fail (exit 3) if more are rejected; default: as the parts.")
@answers
def seal(out: str, max_rejects: str | None, output: Output) -> int:
    """Join the parts of OUT, packed by pack --part, into one store.

    It needs neither IMAGES nor the options of the parts. A part that is missing, unfinished, or packed with other options is an
    error. The same command continues an interrupted seal.

    \b
    Examples:
        pack seal out/
        for i in 1 2 3 4; do pack images/ out/ --fit none --part $i/4; done; pack seal out/
    """
    from packer.packing.parts import seal_parts

    with output.progress(" rows") as bar:
        report = seal_parts(out, max_rejects=max_rejects, progress=bar.update)
    return output.packed(report, messages.sealed(report), max_rejects or "of the parts")
