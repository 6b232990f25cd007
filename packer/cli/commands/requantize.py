"""`pack requantize`."""

from __future__ import annotations

from typing import Any

import click

from packer.cli import messages
from packer.cli.options import StorePath, answers, options_of
from packer.cli.output import EXIT_REJECTS, Output, fail


@click.command()
@click.argument("images", type=StorePath())
@click.argument("dest", type=StorePath())
@click.option("-q", "--quality", required=True, metavar="Q", help="ffmpeg's -q:v: 2 (best) to 31 (smallest).")
@click.option(
    "--size", metavar="S|HxW", help="Scale first: 480 limits the short side, 480x640 (height x width) is exact."
)
@options_of("workers", "max_rejects")
@answers
def requantize(images: str, dest: str, output: Output, **options: Any) -> int:
    """Convert JPEGs of a folder to smaller ones in DEST, by ffmpeg.

    Folders and names stay. Other formats, and JPEGs that FFmpeg would convert, are copied unchanged. Broken images are
    skipped, recorded and summed up. EXIF orientation is kept. IMAGES never changes. The same line again continues an
    interrupted run, and converts new or changed images.

    \b
    Examples:
        pack requantize images/ smaller/ -q 3
        pack requantize images/ smaller/ -q 5 --size 480
        pack requantize images/ smaller/ -q 3 --json | jq '.bytes_after / .bytes_before'
    """
    from packer.operations.requantize import requantize as run

    with output.progress() as bar:
        report = run(images, dest, **options, progress=bar.update)
    output.report(report, messages.requantized(report))
    if report.too_many_rejects:
        return fail(messages.rejects_sentence(report.rejected, report.inputs, options["max_rejects"]), EXIT_REJECTS)
    return 0
