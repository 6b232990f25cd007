"""`pack IMAGES OUT`."""

from __future__ import annotations

from typing import Any

import click

from packer.cli.help import command
from packer.cli.options import COMPRESS, INPUTS, RUN, StorePath, images_argument
from packer.cli.output import print_packed
from packer.cli.progress import ProgressBar
from packer.options import CHANNELS, ENGINES, FITS, RESAMPLES, PackOptions


@command(short_help="Decode IMAGES into the store OUT (the default command).")
@click.argument("images", type=StorePath(), nargs=-1)
@click.argument("out", type=StorePath())
@click.option(
    "--size",
    metavar="S|HxW",
    help="Row size in pixels: 224, or 192x256 (height x width). Without it all images must have one size.",
)
@click.option(
    "--fit",
    type=click.Choice(FITS),
    default=PackOptions.fit,
    help="crop: cover, then center crop, as torchvision does; pad: all of it, centered; squash: stretch; inside: upper left;"
    " none: each row keeps its image's size.",
)
@click.option(
    "--max-size",
    metavar="S|short:S",
    help="With --fit none: scale images down whose longer side, or shorter side, is more than S pixels.",
)
@click.option(
    "--crop-fraction",
    type=float,
    default=PackOptions.crop_fraction,
    metavar="F",
    help="Share of the resized image that the crop keeps; 0.875 is the usual 224 of 256.",
)
@click.option(
    "--resample",
    type=click.Choice(RESAMPLES),
    default=PackOptions.resample,
    help="Filter, always antialiased.",
)
@COMPRESS
@click.option(
    "--exact", is_flag=True, help="Never decode JPEGs at reduced size first (done only where twice the target remains)."
)
@click.option(
    "--channels",
    type=click.Choice(tuple(CHANNELS)),
    default=PackOptions.channels,
    help="What a row holds.",
)
@click.option(
    "--requantize",
    type=int,
    metavar="Q",
    help="Store what the JPEG would decode to after ffmpeg -q:v Q: 2 (best) to 31 (smallest).",
)
@click.option(
    "--bit-depth",
    type=int,
    default=PackOptions.bit_depth,
    metavar="N",
    help="Bits that 16-bit gray files use, 8 to 16, such as 12 of a camera's.",
)
@INPUTS
@click.option(
    "--mask-values",
    metavar="VALUE,...",
    help="Values of masks that become 0, 1, ..., such as 0,255; 255 stays if it is not listed, another value rejects the image.",
)
@click.option("--shuffle", type=int, metavar="SEED", help="Write rows in a random order fixed by SEED.")
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace an existing store, unless OUT is what is asked for.",
)
@click.option(
    "--part",
    metavar="i/n",
    help="Pack only the i-th of n equal parts, on any host that shares OUT; pack seal OUT joins them.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=PackOptions.engine,
    help="ray: pack parts as tasks of a Ray cluster, then join them.",
)
@RUN
def build(images: tuple[str, ...], out: str, nul: bool, as_json: bool, quiet: bool, **options: Any) -> int:
    """Decode IMAGES once into the store OUT.

    IMAGES is a folder of class folders, a folder of images, or a folder of splits (train, val, valid, test), each of which is
    packed below OUT, all with one class list. It may be at a URL, s3://bucket/images. Or it is a .csv, .tsv, .jsonl or
    .parquet table, one or more tars, a zip, or - for a list of paths on standard input. Broken images are skipped, recorded
    and summed up.

    OUT is there once it is finished. Until then its pack is in OUT.packing: the same line continues it, pack info
    OUT.packing says how far it is, and rm -rf OUT.packing gives up.

    Examples:

        pack images/ out/ --fit none --max-size 512
        pack images/ out/ --size 224
        pack images/ out/ --size 224 --crop-fraction 0.875 --resample bicubic
        pack val/ out-val/ --size 224 --classes out-train/
        pack images/ out/ --size 192x256 --fit pad --json | jq .rows
        pack images/ out/ --fit none --max-size short:256
        find photos -name '*.jpg' | sort | pack - out/ --fit none --max-size 512 --root photos
        find photos -name '*.jpg' -print0 | pack -0 out/ --fit none --max-size 512 --root photos
        pack train.csv out/ --fit none --max-size 512 --root photos/ --path-column id --extension .jpg --target-column label
        pack shard-*.tar out/ --fit none --max-size 512
          pack s3://bucket/images out/ --size 224
        pack images/ out/ --fit none --max-size 512 --part 2/8
        pack photos/ out/ --size 320 --fit pad --boxes instances.json
        pack photos/ out/ --size 320 --fit pad --masks annotations/ --mask-values 0,255
    """
    from packer.packing.pack import pack

    with ProgressBar(hidden=quiet or as_json) as bar:
        report = pack(images_argument(images, nul), out, **options, progress=bar.update)
    return print_packed(
        report,
        options["max_rejects"],
        has_said_found=bar.has_said_found,
        as_json=as_json,
        quiet=quiet,
        is_new=True,
    )
