"""`pack plan`."""

from __future__ import annotations

import shlex
from typing import Any

import click

from packer.cli.help import command
from packer.cli.options import WORKERS, StorePath
from packer.cli.output import print_report
from packer.cli.progress import ProgressBar
from packer.options import CHANNELS, FITS, PackOptions


@command(short_help="What each way to pack images takes on disk.")
@click.argument("images", type=StorePath())
@click.option("--size", metavar="S|HxW", help="Also show rows of this size, as pack takes it; the command is of it.")
@click.option("--fit", type=click.Choice(FITS), default=PackOptions.fit, help="How an image fills that row.")
@click.option("--max-size", metavar="S|short:S", help="With --fit none: the most that a side may have.")
@click.option("--channels", type=click.Choice(tuple(CHANNELS)), default="rgb", help="Of a row.")
@WORKERS
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print the plan and nothing else.")
def plan(images: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Count the sizes of IMAGES by their headers, and show the bytes of each way to pack them, and the command to use.

    Examples:

        pack plan images/
        pack plan images/ --size 320
        pack plan images/ --json | jq .choices
    """
    from packer.operations.plan import plan as run
    from packer.operations.plan import summary

    with ProgressBar(hidden=quiet or as_json) as bar:
        found = run(images, **options, progress=bar.update)
    channels = "" if options["channels"] == "rgb" else f" --channels {options['channels']}"
    line = f"to pack this way: pack {shlex.quote(images)} OUT {found.chosen}{channels}"
    print_report(found, f"{summary(found)}\n{line}", as_json=as_json, quiet=False)
    return 0
