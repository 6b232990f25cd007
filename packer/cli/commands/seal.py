"""`pack seal`."""

from __future__ import annotations

import click

from packer.cli import messages
from packer.cli.help import command
from packer.cli.options import MAX_REJECTS, REPORT, StorePath
from packer.cli.output import EXIT_REJECTS, fail, print_copied_rows
from packer.cli.progress import ProgressBar


@command(short_help="Join the parts of OUT, packed by pack --part, into one store.")
@click.argument("out", type=StorePath())
@MAX_REJECTS
@REPORT
def seal(out: str, max_rejects: str, as_json: bool, quiet: bool) -> int:
    """Join the parts of OUT, each packed by pack IMAGES OUT --part i/n, into the store that pack IMAGES OUT makes.

    It needs neither IMAGES nor the options. A part that is missing, unfinished, or packed with other options is an error. The
    same command continues an interrupted seal.

    Examples:

        pack seal out/
        for i in 1 2 3 4; do pack images/ out/ --fit none --part $i/4; done; pack seal out/
    """
    from packer.packing.parts.seal_parts import seal_parts

    with ProgressBar(hidden=quiet or as_json, unit=" rows") as bar:
        report = seal_parts(out, max_rejects=max_rejects, progress=bar.update)
    print_copied_rows(report, f"sealed in {report.seconds:.1f} s", as_json=as_json, quiet=quiet)
    if report.too_many_rejects:
        return fail(messages.too_many_rejects(report, max_rejects), EXIT_REJECTS)
    return 0
