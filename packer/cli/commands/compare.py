"""`pack compare`."""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path

import click

from packer.cli.help import command
from packer.cli.need_torch import need_torch
from packer.cli.options import REPORT, StorePath
from packer.cli.output import EXIT_FAILED, say, say_json
from packer.errors import OptionsError


@command(short_help="Compare a store with its images as Pillow and torchvision give them.")
@click.argument("images", type=StorePath())
@click.argument("out", type=StorePath())
@click.option("--rows", type=click.IntRange(1), default=64, metavar="N", help="Rows to compare.")
@REPORT
def compare(images: str, out: str, rows: int, as_json: bool, quiet: bool) -> int:
    """Compare the store OUT with IMAGES, decoded whole by Pillow and resized and cropped by the options of the pack.

    Reports how many levels of 255 their pixels differ, whether classes, their order and the numbers of images are the same, and
    what explains a difference. Exit code 1 if anything but levels differs. To compare a program's own recipe, call
    pixpack.compare.

    Examples:

        pack compare images/ out/
        pack compare images/ out/ --rows 1000
        pack compare images/ out/ --json | jq .differences
    """
    need_torch("pack compare")
    from packer.inputs.scan import scan
    from packer.inputs.splits import stores_of
    from packer.operations.folder_rows import FolderRows
    from packer.store.state import check_finished, published
    from reader.comparison import compare as run
    from reader.dataset.dataset import MemmapDataset
    from reader.format.splits import is_stage

    is_other = os.path.exists(out) and not published(Path(out)) and not is_stage(Path(out))
    if is_other and published(Path(images)):
        line = shlex.join(["pack", "compare", out, images])
        raise OptionsError(f"{images} is a store, and {out} is not. Give the images first: {line}")
    stores, found = stores_of(out), {}
    heads = {split: check_finished(store) for split, store in stores.items()}
    listed = scan([images])
    for split, store in stores.items():
        if split not in listed:
            there = ", ".join(filter(None, listed)) or "no splits"
            raise OptionsError(f"{out} has {split or 'no splits'}, and {images} has {there}. Expected what was packed.")
        folder = os.path.join(images, split) if split and os.path.isdir(images) else images
        found[split] = run(FolderRows(folder, listed[split], store, heads[split]), MemmapDataset(store), rows)
    if as_json:
        reports = {split: dataclasses.asdict(report) for split, report in found.items()}
        say_json(reports.get("", {"splits": reports}))
    elif not quiet:
        for split, report in found.items():
            say(f"a is {os.path.join(images, split) if split else images}, b is {stores[split]}\n{report}")
    return EXIT_FAILED if any(report.differences for report in found.values()) else 0
