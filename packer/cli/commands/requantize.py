"""`pack requantize`."""

from __future__ import annotations

from typing import Any

import click

from packer.cli import messages
from packer.cli.help import command
from packer.cli.options import MAX_REJECTS, REPORT, WORKERS, StorePath
from packer.cli.output import fail_of_rejects, print_report
from packer.cli.progress import ProgressBar


@command(short_help="Convert a folder of images to smaller JPEGs, by FFmpeg.")
@click.argument("images", type=StorePath())
@click.argument("dest", type=StorePath())
@click.option("-q", "--quality", type=int, required=True, metavar="Q", help="ffmpeg's -q:v: 2 (best) to 31 (smallest).")
@click.option(
    "--size",
    metavar="S|HxW",
    help="Scale first: 480 makes the short side 480 where it is longer, 480x640 (height x width) makes just that.",
)
@WORKERS
@MAX_REJECTS
@REPORT
def requantize(images: str, dest: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Convert the JPEGs of the folder IMAGES to smaller ones in DEST, by ffmpeg's -q:v, with the same folders and names.

    Other files, and JPEGs that FFmpeg would convert on the way, are in DEST unchanged; broken images are
    skipped, recorded and summed up. EXIF orientation is kept. IMAGES never changes. The same line
    again continues an interrupted run, and does what is new or changed.

    Examples:

        pack requantize images/ smaller/ -q 3
        pack requantize images/ smaller/ -q 5 --size 480
        pack requantize images/ smaller/ -q 3 --json | jq '.bytes_after / .bytes_before'
    """
    from packer.operations.requantize import requantize as run

    with ProgressBar(hidden=quiet or as_json) as bar:
        report = run(images, dest, **options, progress=bar.update)
    print_report(report, messages.requantized(report), as_json=as_json, quiet=quiet)
    if report.too_many_rejects:
        return fail_of_rejects(report.rejected, report.inputs, options["max_rejects"])
    return 0
