"""`pack update`."""

from __future__ import annotations

from typing import Any

import click

from packer.cli.help import command
from packer.cli.options import INPUTS, RUN, StorePath, images_argument
from packer.cli.output import print_packed
from packer.cli.progress import ProgressBar


@command(short_help="Bring the store OUT up to date with IMAGES, decoding what has changed.")
@click.argument("images", type=StorePath(), nargs=-1)
@click.argument("out", type=StorePath())
@INPUTS
@RUN
def update(images: tuple[str, ...], out: str, nul: bool, as_json: bool, quiet: bool, **options: Any) -> int:
    """Update the store OUT to what a new pack of IMAGES would make, byte for byte: new images are added, missing ones removed.

    Every image is read. An image whose bytes have not changed keeps its row; the others are decoded, with the options, columns
    and class list that OUT was packed with. Give paths again: --boxes, --masks, --root. An update that would change the class
    numbers of rows that stay needs --classes. The new store is built beside OUT, which stays readable until then: the disk
    must hold both.

    Examples:

        pack update images/ out/
        find photos -name '*.jpg' | sort | pack update - out/
        pack update photos/ out/ --boxes instances.json
        pack update photos/ out/ --classes classes.txt  # adds a class
    """
    from packer.packing.update import update as run

    with ProgressBar(hidden=quiet or as_json) as bar:
        report = run(images_argument(images, nul), out, **options, progress=bar.update)
    return print_packed(report, options["max_rejects"], has_said_found=bar.has_said_found, as_json=as_json, quiet=quiet)
