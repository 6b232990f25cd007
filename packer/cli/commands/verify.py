"""`pack verify`."""

from __future__ import annotations

import dataclasses

import click

from packer.cli import messages
from packer.cli.help import command
from packer.cli.options import REPORT, StorePath
from packer.cli.output import EXIT_FAILED, say, say_json
from packer.cli.progress import ProgressBar
from packer.progress import listening


@command(short_help="Read every byte of a store and compare.")
@click.argument("out", type=StorePath())
@REPORT
def verify(out: str, as_json: bool, quiet: bool) -> int:
    """Check the store OUT: its structure, all digests, then every block's checksum. Changes nothing.

    OUT may also be a folder of splits.

    Examples:

        pack verify out/
    """
    from packer.operations.verify import verify as run

    with ProgressBar(hidden=quiet or as_json, unit=" rows") as bar, listening(bar.update):
        report = run(out, progress=bar.bytes_done)
    if as_json:
        say_json(dataclasses.asdict(report))
    for problem in report.problems:
        say(f"pack: {out}: {problem}", err=True)
    if report.problems:
        say(f"pack: {out} is damaged. Copy it again, or pack again with --overwrite.", err=True)
        return EXIT_FAILED
    if not quiet and not as_json:
        say(f"{out} is intact: {messages.rows(report.rows)}, {messages.size(report.checked_bytes)} read and compared.")
    return 0
