"""`pack verify`."""

from __future__ import annotations

import click

from packer.cli import messages
from packer.cli.options import StorePath, answers
from packer.cli.output import EXIT_FAILED, Output, say
from packer.progress import listening
from reader.format.filesystem import size_text


@click.command()
@click.argument("out", type=StorePath())
@answers
def verify(out: str, output: Output) -> int:
    """Check the store OUT: structure, digests, then every block.

    OUT may also be a folder of splits. Changes nothing.

    \b
    Examples:
        pack verify out/
    """
    from packer.operations.verify import verify as run

    with output.progress(" rows") as bar, listening(bar.update):
        report = run(out, progress=bar.bytes_done)
    intact = f"{out} is intact: {messages.rows(report.rows)}, {size_text(report.checked_bytes)} read and compared."
    if output.as_json or not report.problems:
        output.report(report, intact)
    for problem in report.problems:
        say(f"pack: {out}: {problem}", err=True)
    if report.problems:
        say(f"pack: {out} is damaged. Copy it again, or pack again with --overwrite.", err=True)
        return EXIT_FAILED
    return 0
