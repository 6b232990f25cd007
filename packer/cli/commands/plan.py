"""`pack plan`."""

from __future__ import annotations

import shlex
from typing import Any

import click

from packer.cli.help import command
from packer.cli.options import WORKERS, StorePath, pair, parse_limits
from packer.cli.output import print_report
from packer.cli.progress import ProgressBar
from packer.options import CHANNELS, CROP, CROP_RATIO, CROP_SCALE, FITS, PackOptions


@command(short_help="What each choice of row sizes would cost and lack, and how long packing takes.")
@click.argument("images", type=StorePath())
@click.option(
    "--crop", type=click.IntRange(1, 16384), default=CROP, show_default=True, metavar="S", help="Crop's side."
)
@click.option(
    "--scale", default=pair(CROP_SCALE), show_default=True, metavar="LOW,HIGH", help="Share of the area that a box has."
)
@click.option(
    "--ratio", default=pair(CROP_RATIO), show_default=True, metavar="LOW,HIGH", help="Width / height of a box."
)
@click.option(
    "--size",
    metavar="S|HxW",
    help="Also compare rows of this size, as pack takes it; the time and the command are of it.",
)
@click.option(
    "--fit", type=click.Choice(FITS), default=PackOptions.fit, show_default=True, help="How an image fills that row."
)
@click.option("--max-size", metavar="S|short:S", help="With --fit none: the most that a side may have.")
@click.option("--channels", type=click.Choice(tuple(CHANNELS)), default="rgb", show_default=True, help="Of a row.")
@WORKERS
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print the plan and nothing else.")
def plan(images: str, scale: str, ratio: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Compare ways to pack IMAGES for training with RandomResizedCrop(S): bytes, what crops would lose, and minutes.

    Reads headers, and decodes up to 64 images to estimate how long packing takes. Random boxes are drawn in the images.
    `reachable` is the share of boxes that are completely inside a row; `upsampled` the share that have fewer pixels than the
    crop, in height or width.

    \b
    Examples:
      pack plan images/
      pack plan images/ --size 320
      pack plan images/ --crop 160 --scale 0.25,1
      pack plan images/ --json | jq -r .recommended
    """
    from packer.operations.planning.plan import plan as run
    from packer.operations.planning.plan import summary

    with ProgressBar(hidden=quiet or as_json) as bar:
        options |= {"scale": parse_limits("--scale", scale), "ratio": parse_limits("--ratio", ratio)}
        found = run(images, **options, progress=bar.update)
    channels = "" if options["channels"] == "rgb" else f" --channels {options['channels']}"
    line = f"to pack this way: pack {shlex.quote(images)} OUT {found.chosen.options}{channels} --resume"
    print_report(found, f"{summary(found)}\n{line}", as_json=as_json, quiet=False)
    return 0
