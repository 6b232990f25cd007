"""`pack IMAGES OUT`."""

from __future__ import annotations

from typing import Any

import click

from packer.cli import messages
from packer.cli.options import names_of, takes_images
from packer.cli.output import Output
from packer.options import PackOptions


@click.command()
@takes_images(*names_of(PackOptions))
def build(images: tuple[str, ...], out: str, output: Output, **options: Any) -> int:
    """Decode IMAGES once into the store OUT (the default command).

    IMAGES is a folder of classes, images or splits, also at a URL; a .csv, .tsv, .jsonl or .parquet table; tars; a zip; or
    - for paths on standard input. The same line again continues an interrupted pack. OUT exists once it is finished.

    \b
    Examples:
        pack images/ out/ --fit none --max-size 512
        pack val/ out-val/ --size 224 --crop-fraction 0.875 --classes out/
        pack train.csv out/ --size 224 --root photos/ --path-column id --extension .jpg
    """
    from packer.packing.pack import pack

    with output.progress() as bar:
        report = pack(images, out, **options, progress=bar.update)
    text = messages.summary(report)
    # a pack that finds its store finished reports 0 seconds
    if report.seconds and not report.too_many_rejects and not report.part:
        text = f"{text}\n{messages.next_step(report, images[0], has_boxes=options['boxes'] is not None)}"
    return output.packed(report, text, options["max_rejects"])
