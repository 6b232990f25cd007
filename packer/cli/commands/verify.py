"""`pack verify`."""

from __future__ import annotations

import dataclasses

import click

from packer.cli import messages
from packer.cli.help import command
from packer.cli.options import REPORT, StorePath
from packer.cli.output import EXIT_FAILED, say, say_json
from packer.cli.progress import ProgressBar
from packer.errors import OptionsError
from packer.progress import listening


@command(short_help="Read every byte of a store and compare.")
@click.argument("out", type=StorePath())
@click.option(
    "--redecode", type=click.IntRange(0), default=0, metavar="K", help="Also decode K rows again from their sources."
)
@click.option(
    "--images",
    type=StorePath(),
    help="What was packed: a folder, URL, tar or zip. Compare the bytes of every source; for --redecode, where they are.",
)
@REPORT
def verify(out: str, redecode: int, images: str | None, as_json: bool, quiet: bool) -> int:
    """Check the store OUT: its structure, all digests, then every block's checksum. Changes nothing.

    OUT may also be a folder of splits; --images is then the folder that they were packed from.

    Examples:

        pack verify out/
        pack verify out/ --images images/
        pack verify out/ --redecode 100 --images images/
    """
    from packer.operations.verify import verify as run

    if redecode and images is None:
        raise OptionsError("--redecode needs --images, the folder that was packed.")
    with ProgressBar(hidden=quiet or as_json, unit=" rows") as bar, listening(bar.update):
        report = run(out, redecode=redecode, images=images, progress=bar.bytes_done)
    if as_json:
        say_json(dataclasses.asdict(report))
    for problem in report.problems:
        say(f"pack: {out}: {problem}", err=True)
    if report.problems:
        say(f"pack: {out} is damaged. Copy it again, or pack again with --overwrite.", err=True)
        return EXIT_FAILED
    if report.sources is not None and (lines := messages.source_differences(out, images, report.sources)):
        say("\n".join(lines), err=True)
        if not report.sources.are_same:
            return EXIT_FAILED
    if not quiet and not as_json:
        again = f", {report.redecoded} rows decoded again" if report.redecoded else ""
        again += f", {report.sources.compared:,} sources are what was packed" if report.sources else ""
        say(
            f"{out} is intact: {messages.rows(report.rows)}, {messages.size(report.checked_bytes)} read and compared{again}."
        )
    return 0
