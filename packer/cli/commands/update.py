"""`pack update`."""

from __future__ import annotations

from typing import Any

import click

from packer.cli import messages
from packer.cli.options import names_of, takes_images
from packer.cli.output import Output
from packer.options import LabelOptions, WorkerOptions


@click.command()
@takes_images(*names_of(LabelOptions), *names_of(WorkerOptions))
def update(images: tuple[str, ...], out: str, output: Output, **options: Any) -> int:
    """Update the store OUT from IMAGES, decoding changed ones only.

    OUT becomes what a new pack of IMAGES would make, byte for byte. Every image is read. Images with unchanged bytes keep
    their rows. The others are decoded with the options, columns and class list of OUT. Give paths again: --boxes, --masks,
    --root. An update that would change the class numbers of kept rows needs --classes. The new store is built beside OUT,
    which stays readable until then: the disk must hold both.

    \b
    Examples:
        pack update images/ out/
        find photos -name '*.jpg' | sort | pack update - out/
        pack update photos/ out/ --boxes instances.json
        pack update photos/ out/ --classes classes.txt  # adds a class
    """
    from packer.packing.update import update as run

    with output.progress() as bar:
        report = run(images, out, **options, progress=bar.update)
    return output.packed(report, messages.summary(report), options["max_rejects"])
