"""`pack compare`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from packer.cli.options import StorePath, answers, need_torch
from packer.cli.output import EXIT_FAILED, Output, say, say_json


@click.command()
@click.argument("images", type=StorePath())
@click.argument("out", type=StorePath())
@click.option("--rows", type=click.IntRange(1), default=64, metavar="N", help="Rows to compare.")
@answers
def compare(images: str, out: str, rows: int, output: Output) -> int:
    """Compare the store OUT with IMAGES, decoded by Pillow.

    IMAGES are decoded whole, then resized and cropped by the options of the pack. Reports differences of pixels in levels of
    255, of classes, their order and the number of images, with explanations. Exit code 1 if anything but levels differs. To
    compare a program's own recipe, call pixpack.compare.

    \b
    Examples:
        pack compare images/ out/
        pack compare images/ out/ --rows 1000
        pack compare images/ out/ --json | jq .differences
    """
    need_torch("pack compare")
    from packer.inputs.samples import Inputs
    from packer.inputs.scan import scan
    from packer.inputs.splits import stores_of
    from packer.operations.folder_rows import FolderRows
    from packer.store.state import check_finished
    from reader.comparison import compare as run
    from reader.dataset.dataset import MemmapDataset

    stores, found, turned = stores_of(out), {}, {}
    heads = {split: check_finished(store) for split, store in stores.items()}
    listed = scan([images])
    for split, store in stores.items():
        images_of = FolderRows(images, listed.get(split, Inputs(Path(images))), store, heads[split])
        found[split] = run(images_of, MemmapDataset(store), rows)
        turned[split] = len(images_of.turned)
    if output.as_json:
        reports = {split: dataclasses.asdict(report) for split, report in found.items()}
        say_json(reports.get("", {"splits": reports}))
    elif not output.quiet:
        for split, report in found.items():
            say(f"a is {images}, b is {stores[split]}\n{report}")
            if turned[split]:
                say(f"Images turned upright in b by EXIF: {turned[split]}. ImageFolder leaves them as they are.")
    return EXIT_FAILED if any(report.differences for report in found.values()) else 0
