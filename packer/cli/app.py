"""The command `pack`: the only module that imports click, prints reports, or knows an exit code."""

from __future__ import annotations

import dataclasses
import errno
import functools
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from packer import __version__
from packer.cli import messages
from packer.cli.progress import ProgressBar
from packer.clock import profile_table
from packer.options import CHANNELS, ENGINES, FITS, ICC, MAX_PIXELS, RESAMPLES, OptionsError, parse_size

if TYPE_CHECKING:
    from packer.operations.transfer.copy import CopyReport
    from packer.report import PackReport

EXIT_FAILED, EXIT_USAGE, EXIT_REJECTS, EXIT_DISK_FULL = 1, 2, 3, 28
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Terminated(BaseException):
    """SIGTERM arrived."""


class _Range(click.FloatRange):
    """A number within bounds; nan, which is neither below nor above one, is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the number; as a usage error where it is out of bounds."""
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class _Path(click.Path):
    """A path or URL; "" is none: as a folder it would be the current one, as a URL the root."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what is named; as a usage error where nothing is, as of a variable that a script did not set."""
        if value == "":
            self.fail("it is empty, expected a path or URL.", param, ctx)
        return super().convert(value, param, ctx)


class _DefaultToBuild(click.Group):
    """A first word that is no command's name, options included, belongs to `build`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `build` in front of words that begin with no command."""
        if args and args[0] not in (*self.commands, "-h", "--help", "--version"):
            args = ["build", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show both ways to call: with IMAGES, and with a command's name."""
        formatter.write_usage("pack", "IMAGES OUT [OPTIONS]    (pack build --help lists them)")
        formatter.write_usage("pack", "COMMAND ...", prefix="       ")


@click.group(cls=_DefaultToBuild, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="pixpack", message="%(prog)s %(version)s")
def cli() -> None:
    """Decode a folder of images once; train from the result at the speed of memory.

    \b
    Examples:
      pack images/ out/ --size 224        decode, crop to 224 x 224, write the store out/
      pack plan images/                   what each choice of row sizes would mean for random crops
      pack update images/ out/            bring it up to date, decoding only what has changed
      pack subset out/ some/ --class cat  a store of some of its rows
      pack merge out/ more/ all/          a store of the rows of several
      pack info out/                      what it holds
      pack seal out/                      join what pack --part has packed
      pack verify out/                    read every byte of it and compare
      pack push out/ s3://bucket/out      copy it to object storage; pack pull copies it back
      pack show out/ -o sheet.png         look at it
      pack requantize images/ less/ -q 3  the folder as smaller JPEGs, by FFmpeg
      pack doctor                         what this machine lacks
      pack bench out/                     time reading it, beside this machine's limits

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 more rejects than allowed, 28 disk full, 130 or 143 interrupted.
    """


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Put several options in one, which a command then has in this order."""
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


# Of `build` and `update`: what the inputs are, and what belongs to one run alone.
_INPUTS = _options(
    click.option(
        "-0", "nul", is_flag=True, help="Read paths from standard input, NUL-separated, as find -print0 writes them."
    ),
    click.option(
        "--boxes",
        type=_Path(),
        metavar="JSON|DIR",
        help="Boxes of the images: COCO's json, or the folder of YOLO's .txt files, which may be IMAGES itself.",
    ),
    click.option(
        "--masks",
        type=_Path(),
        metavar="DIR|boxes",
        help="Masks of the images, palette or gray, by the same relative path: a.png for a.jpg; or drawn of the polygons and RLE"
        " that the files of --boxes have.",
    ),
    click.option(
        "--classes",
        metavar="STORE|FILE",
        help="Take the class list from a store or a file: one name a line, .json, or YOLO's data.yaml.",
    ),
    click.option(
        "--root",
        metavar="DIR",
        help="Folder that relative paths of a list start from; on standard input, classes are the folders below it.",
    ),
    click.option(
        "--path-column",
        metavar="NAME",
        help="Column of a manifest that holds the path.  [default: path, file_name, image or the like]",
    ),
    click.option(
        "--target-column",
        metavar="NAME[,NAME]",
        help="Column that holds the target; several of numbers make one vector, others a target each."
        "  [default: target, label, class or cls]",
    ),
    click.option("--extension", metavar=".EXT", help="Add this to the paths of a list that lack it."),
    click.option(
        "--missing",
        multiple=True,
        metavar="WORD",
        help="A cell that means no label, beside an empty one and nan. May be given several times.",
    ),
)
_RUN = _options(
    click.option("--workers", type=int, metavar="N", help="Worker processes. [default: the CPUs this process may use]"),
    click.option(
        "--on-error",
        type=click.Choice(("skip", "fail")),
        default="skip",
        show_default=True,
        help="What a broken image does to the pack.",
    ),
    click.option(
        "--max-rejects",
        default="1%",
        show_default=True,
        metavar="N|P%",
        help="More rejects than this end with exit code 3; a store that would be replaced stays.",
    ),
    click.option(
        "--timeout",
        type=float,
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="Longest that one image may take.",
    ),
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default="local",
        show_default=True,
        help="ray: workers on a Ray cluster.",
    ),
    click.option(
        "--address", metavar="HOST:PORT", help="The Ray cluster.  [default: RAY_ADDRESS, or one on this machine]"
    ),
    click.option("--profile", is_flag=True, help="Also print where the seconds went, by stage and process."),
    click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout."),
    click.option("--quiet", is_flag=True, help="Print nothing but errors."),
)


# Of `subset` and `merge`.
_COPY = _options(
    click.option("--overwrite", is_flag=True, help="Replace an existing store."),
    click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout."),
    click.option("--quiet", is_flag=True, help="Print nothing but errors."),
)


@cli.command(short_help="Decode IMAGES into the store OUT (the default command).")
@click.argument("images", type=_Path(), nargs=-1)
@click.argument("out", type=_Path())
@click.option(
    "--size",
    metavar="S|HxW",
    help="Row size in pixels: 224, or 192x256 (height x width). Without it all images must have one size.",
)
@click.option(
    "--fit",
    type=click.Choice(FITS),
    default="crop",
    show_default=True,
    help="crop: cover, then centre crop, as torchvision does; pad: all of it, centred; squash: stretch; inside: upper left;"
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
    default=1.0,
    show_default=True,
    metavar="F",
    help="Share of the resized image that the crop keeps; 0.875 is the usual 224 of 256.",
)
@click.option(
    "--resample",
    type=click.Choice(RESAMPLES),
    default="bilinear",
    show_default=True,
    help="Filter, always antialiased.",
)
@click.option(
    "--exact", is_flag=True, help="Never decode JPEGs at reduced size first (done only where twice the target remains)."
)
@click.option(
    "--channels", type=click.Choice(tuple(CHANNELS)), default="rgb", show_default=True, help="What a row holds."
)
@click.option(
    "--requantize",
    type=int,
    metavar="Q",
    help="Store what the JPEG would decode to after ffmpeg -q:v Q: 2 (best) to 31 (smallest).",
)
@click.option(
    "--icc",
    type=click.Choice(ICC),
    default="keep",
    show_default=True,
    help="convert: bring images with another ICC profile than sRGB to sRGB; keep: count them.",
)
@click.option(
    "--bit-depth",
    type=int,
    metavar="N",
    help="Bits over which 16-bit files spread their values, 8 to 16, such as 12 of a camera's.  [default: as they say, or 16]",
)
@_INPUTS
@click.option(
    "--min-visibility",
    type=float,
    default=0.1,
    show_default=True,
    metavar="SHARE",
    help="Leave out boxes of which less than this share of their area is in the row.",
)
@click.option(
    "--max-boxes", type=int, metavar="K", help="Most boxes of a row, the largest.  [default: as many as an image has]"
)
@click.option(
    "--upright-labels",
    is_flag=True,
    help="Boxes and masks were drawn on upright pictures: do not turn them with EXIF.",
)
@click.option("--shuffle", type=int, metavar="SEED", help="Write rows in a random order fixed by SEED.")
@click.option("--strict", is_flag=True, help="Reject also what decodes only with warnings.")
@click.option(
    "--max-pixels",
    type=int,
    default=MAX_PIXELS,
    show_default=True,
    metavar="N",
    help="Reject images whose header claims more.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Begin, continue an interrupted pack, or confirm a finished store of the same inputs and options.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace an existing store; with --resume: begin or continue that, unless OUT is what is asked for.",
)
@click.option(
    "--part",
    metavar="i/n",
    help="Pack only the i-th of n equal parts, on any host that shares OUT; pack seal OUT joins them.",
)
@_RUN
def build(
    images: tuple[str, ...], out: str, nul: bool, profile: bool, as_json: bool, quiet: bool, **options: Any
) -> int:
    """Decode IMAGES once into the store OUT.

    IMAGES is a folder of class folders, a folder of images, or a folder of splits (train, val, test and the like); each of
    those is packed into OUT/<name>, all with one class list; also as a URL, s3://bucket/images. Or it is a .csv, .tsv,
    .jsonl or .parquet manifest, one or more tars, a zip, or - for a list of paths on standard input. Broken images are left out,
    recorded and summed up.

    \b
    Examples:
      pack images/ out/ --size 224
      pack images/ out/ --size 224 --crop-fraction 0.875 --resample bicubic
      pack val/ out-val/ --size 224 --classes out-train/
      pack images/ out/ --size 192x256 --fit pad --json | jq .rows
      pack images/ out/ --fit none --max-size 512
      pack images/ out/ --fit none --max-size short:256
      find photos -name '*.jpg' | sort | pack - out/ --size 224 --root photos
      find photos -name '*.jpg' -print0 | pack -0 out/ --size 224 --root photos
      pack train.csv out/ --size 224 --root photos/ --path-column id --extension .jpg --target-column label
      pack shard-*.tar out/ --size 224
      pack images/ out/ --size 224 --resume
      pack images/ out/ --size 224 --part 2/8 --resume
      pack images/ out/ --size 224 --engine ray --address head-node:6379
      pack photos/ out/ --size 320 --fit pad --boxes instances.json
      pack photos/ out/ --size 320 --fit pad --boxes instances.json --masks boxes
    """
    from packer.packing.pack import pack

    size = None if options["size"] is None else parse_size(options["size"])
    with ProgressBar(hidden=quiet or as_json) as bar:
        report = pack(_images(images, nul), out, **{**options, "size": size}, progress=bar.update)
    return _packed(report, options["max_rejects"], profile=profile, as_json=as_json, quiet=quiet)


@cli.command(short_help="Bring the store OUT up to date with IMAGES, decoding what has changed.")
@click.argument("images", type=_Path(), nargs=-1)
@click.argument("out", type=_Path())
@_INPUTS
@click.option(
    "--max-pixels", type=int, metavar="N", help="Reject images whose header claims more.  [default: as OUT records it]"
)
@click.option(
    "--max-gone", metavar="N|P%", help="Refuse where more rows of a store would be gone.  [default: 10%, at least 10]"
)
@click.option("--resume", is_flag=True, help="Begin, continue an interrupted update, or find that OUT is up to date.")
@_RUN
def update(
    images: tuple[str, ...], out: str, nul: bool, profile: bool, as_json: bool, quiet: bool, **options: Any
) -> int:
    """Make of the store OUT what packing IMAGES anew makes, byte for byte: with what is new, without what is gone.

    Every image is read; one whose bytes have not changed keeps its row, the others are decoded, by the options that OUT was
    packed with, and with the labels that its columns and class list give. What is a path is given again: --boxes, --masks,
    --root. Refused is what would give other class numbers to rows that stay, unless --classes says so, and what would lose
    more rows than --max-gone. The new store is built beside OUT, which keeps its readers until then: the disk must hold both.

    \b
    Examples:
      pack update images/ out/
      find photos -name '*.jpg' | sort | pack update - out/
      pack update photos/ out/ --boxes instances.json
      pack update photos/ out/ --classes classes.txt     a new class, behind those of OUT
    """
    from packer.packing.update import update as run

    with ProgressBar(hidden=quiet or as_json) as bar:
        report = run(_images(images, nul), out, **options, progress=bar.update)
    return _packed(report, options["max_rejects"], profile=profile, as_json=as_json, quiet=quiet)


def _images(images: tuple[str, ...], nul: bool) -> tuple[str, ...]:
    """Return IMAGES as `pack` takes it."""
    if nul and images in ((), ("-",)):
        return ("-0",)
    if not images or (nul and images != ("-0",)):
        raise click.UsageError(
            f"{images[0]} and -0 cannot be packed together." if images else "Missing argument 'OUT'."
        )
    return images


def _packed(report: PackReport, max_rejects: str, *, profile: bool, as_json: bool, quiet: bool) -> int:
    """Print what a pack did; returns the exit code."""
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif not quiet:
        click.echo(messages.summary(report))
        if profile and report.profile:
            click.echo(profile_table(report.profile))
    for note in [] if quiet else report.notes:
        click.echo(f"pack: note: {note}", err=True)
    if report.too_many_rejects:
        return _fail(messages.too_many_rejects(report, max_rejects), EXIT_REJECTS)
    return 0


@cli.command(short_help="Join the parts of OUT, packed by pack --part, into one store.")
@click.argument("out", type=_Path())
@click.option(
    "--max-rejects",
    default="1%",
    show_default=True,
    metavar="N|P%",
    help="More rejects than this end with exit code 3.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def seal(out: str, max_rejects: str, as_json: bool, quiet: bool) -> int:
    """Make the store OUT of its parts, each packed by pack IMAGES OUT --part i/n: the bytes that pack IMAGES OUT gives.

    Needs neither IMAGES nor the options. Refuses where a part is missing, unfinished, or packed otherwise than the rest. An
    interrupted seal is continued by the same command.

    \b
    Examples:
      pack seal out/
      for i in 1 2 3 4; do pack images/ out/ --size 224 --part $i/4; done; pack seal out/
    """
    from packer.packing.seal_parts import seal_parts

    with ProgressBar(hidden=quiet or as_json, unit=" rows") as bar:
        report = seal_parts(out, max_rejects=max_rejects, progress=bar.update)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif not quiet:
        lines = [*messages.store_lines(report), f"sealed in {report.seconds:.1f} s", *messages.reject_lines(report)]
        click.echo("\n".join(lines))
    for note in [] if quiet else report.notes:
        click.echo(f"pack: note: {note}", err=True)
    if report.too_many_rejects:
        return _too_many(report.rejected, report.inputs, max_rejects)
    return 0


@cli.command(short_help="Copy some rows of a store into another, without decoding.")
@click.argument("store", type=_Path())
@click.argument("out", type=_Path())
@click.option(
    "--rows", metavar="LIST|-", help="Rows in their order, such as 0,7,20-29; -: numbers from standard input."
)
@click.option(
    "--class", "names", multiple=True, metavar="NAME", help="Only rows of this class; may be given several times."
)
@click.option(
    "--classes",
    metavar="STORE|FILE",
    help="Only rows of these classes, whose list OUT then has: of a store, or a file with one name a line.",
)
@click.option(
    "--per-class", type=click.IntRange(1), metavar="K", help="K rows of each class, or all it has, drawn by --seed."
)
@click.option("--fraction", type=float, metavar="F", help="This share of the rows, drawn by --seed.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of --per-class and --fraction.")
@_COPY
def subset(store: str, out: str, as_json: bool, quiet: bool, names: tuple[str, ...], **options: Any) -> int:
    """Copy some rows of STORE into the store OUT: their pixels, targets and all else, checked on the way.

    Where STORE is the folder of the stores of splits, rows of each are copied into OUT/<split>. With --class or --classes,
    targets are numbered in the list of these alone; otherwise OUT has the classes of STORE. Rows keep their order. OUT with
    --overwrite may be STORE itself.

    \b
    Examples:
      pack subset out/ some/ --class cat --class dog
      pack subset out/ tenth/ --fraction 0.1
      pack subset out/ few/ --per-class 20 --seed 1
      pack subset imagenet/ imagenet-100/ --classes hundred.txt
      seq 0 2 1998 | pack subset out/ even/ --rows -
    """
    from packer.operations.subset import subset as run

    if names and options["classes"]:
        raise OptionsError("--class and --classes both say which classes: give one of them.")
    options["classes"] = names or options["classes"]
    if (rows := options["rows"]) is not None:
        options["rows"] = _read_rows() if rows == "-" else _checked_spans(_row_spans(rows), store)
    with ProgressBar(hidden=quiet or as_json, unit=" rows") as bar:
        report = run(store, out, **options, progress=bar.update)
    return _rows_copied(report, as_json, quiet)


@cli.command(short_help="Copy the rows of several stores into one, without decoding.")
@click.argument("stores", type=_Path(), nargs=-1, metavar="STORES...")
@click.argument("out", type=_Path())
@click.option(
    "--classes", metavar="STORE|FILE", help="The class list to count in: of a store, or a file with one name a line."
)
@_COPY
def merge(stores: tuple[str, ...], out: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Copy the rows of all STORES, one store behind the other, into the store OUT, checked on the way.

    Folders of the stores of splits are merged split by split. They must have been packed alike, by the same options and
    decoders. Where their class lists differ, OUT has the longest if that has all classes, else all names, sorted. OUT with
    --overwrite may be one of STORES: that adds the others to it.

    \b
    Examples:
      pack merge monday/ tuesday/ both/
      pack merge out/ new/ out/ --overwrite
      pack merge a/ b/ all/ --classes names.txt
    """
    from packer.operations.merge import merge as run

    with ProgressBar(hidden=quiet or as_json, unit=" rows") as bar:
        report = run(stores, out, **options, progress=bar.update)
    return _rows_copied(report, as_json, quiet)


def _rows_copied(report: PackReport, as_json: bool, quiet: bool) -> int:
    """Print what a subset or a merge made; returns the exit code."""
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif not quiet:
        click.echo(
            "\n".join([*messages.store_lines(report), messages.rows_copied(report), *messages.reject_lines(report)])
        )
    for note in [] if quiet else report.notes:
        click.echo(f"pack: note: {note}", err=True)
    return 0


@cli.command(short_help="Copy a store to object storage.")
@click.argument("out", type=_Path())
@click.argument("url", type=_Path())
@click.option(
    "--overwrite", is_flag=True, help="Replace another store, which stays whole at the URL until the new one is."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def push(out: str, url: str, overwrite: bool, as_json: bool, quiet: bool) -> int:
    """Copy the store OUT to URL, each file compared with its checksum before it is sent.

    The same command is right in every state: it begins, continues after an interruption, and sends nothing where the store is
    already at URL. Anything else at URL is refused; another store is replaced with --overwrite. Of a folder of the stores of
    splits, each is copied to URL/<split>.

    \b
    Examples:
      pack push out/ s3://bucket/stores/out
      pack push out/ s3://bucket/stores/out --overwrite
    """
    from packer.operations.transfer.splits import push_all as run

    with ProgressBar(hidden=quiet or as_json, unit="B") as bar:
        report = run(out, url, overwrite=overwrite, progress=lambda done, total: bar.bytes_done(done, total, "push"))
    return _copied(report, f"{report.out} is at {report.url}", as_json, quiet)


@cli.command(short_help="Copy a store from object storage.")
@click.argument("url", type=_Path())
@click.argument("out", type=_Path())
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def pull(url: str, out: str, as_json: bool, quiet: bool) -> int:
    """Copy the store at URL to OUT and compare every byte with its checksums. Interrupted, the same command continues.

    Where URL holds the stores of splits, each is copied to OUT/<split>.

    \b
    Examples:
      pack pull s3://bucket/stores/out out/
    """
    from packer.operations.transfer.splits import pull_all as run

    with ProgressBar(hidden=quiet or as_json, unit="B") as bar:
        report = run(url, out, progress=lambda done, total: bar.bytes_done(done, total, "pull"))
    return _copied(report, f"{report.url} is at {report.out}", as_json, quiet)


@cli.command(short_help="What each choice of row sizes would cost and lack, from headers alone.")
@click.argument("images", type=_Path())
@click.option("--crop", type=click.IntRange(1, 16384), default=224, show_default=True, metavar="S", help="Crop's side.")
@click.option(
    "--scale", default="0.08,1", show_default=True, metavar="LOW,HIGH", help="Share of the area that a box has."
)
@click.option("--ratio", default="0.75,1.3333", show_default=True, metavar="LOW,HIGH", help="Width / height of a box.")
@click.option("--channels", type=click.Choice(tuple(CHANNELS)), default="rgb", show_default=True, help="Of a row.")
@click.option("--workers", type=int, metavar="N", help="Worker processes. [default: the CPUs this process may use]")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print the plan and nothing else.")
def plan(images: str, scale: str, ratio: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Compare ways to pack IMAGES for training with RandomResizedCrop(S): bytes, and what the crops would lack.

    Reads headers, decodes nothing. Random boxes are drawn in the images. `reachable` is the share of them that lies whole in a
    row; `upsampled` the share that has fewer pixels there than the crop, in height or width.

    \b
    Examples:
      pack plan images/
      pack plan images/ --crop 160 --scale 0.25,1
      pack plan images/ --json | jq -r .recommended
    """
    from packer.operations.plan import plan as run
    from packer.operations.plan import summary

    with ProgressBar(hidden=quiet or as_json) as bar:
        options |= {"scale": _parse_limits("--scale", scale), "ratio": _parse_limits("--ratio", ratio)}
        found = run(images, **options, progress=bar.update)
    click.echo(json.dumps(dataclasses.asdict(found)) if as_json else summary(found))
    return 0


@cli.command(short_help="What a store holds.")
@click.argument("out", type=_Path())
@click.option("--brief", is_flag=True, help="Read the manifest alone, not the targets and samples.jsonl.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it, but for the table of blocks, as JSON.")
def info(out: str, brief: bool, as_json: bool) -> int:
    """Say what the store OUT holds and how it was made, and what its sources were. Reads no pixel.

    OUT may also be the folder of the stores of splits.

    \b
    Examples:
      pack info out/
      pack info out/ --json | jq .rows
      pack info out/ --json | jq .duplicates
    """
    if brief:
        return _brief(out, as_json)
    from packer.operations.info import describe

    found = describe(out)
    if as_json:
        click.echo(json.dumps(found.to_json()))
        return 0
    for split, manifest in found.manifests.items():
        name = os.path.join(out, split) if split else out
        click.echo(
            messages.table(
                messages.manifest_lines(name, manifest) | messages.source_lines(manifest, found.sources[split])
            )
        )
        if split:
            click.echo()
    click.echo(messages.table(messages.duplicate_lines(found.duplicates)))
    return 0


def _brief(out: str, as_json: bool) -> int:
    """Print the manifest of a store, or of each split."""
    from packer.inputs.splits import stores_of
    from reader.format.manifest import check_store

    heads = {split: check_store(place) for split, place in stores_of(out).items()}
    if as_json:
        found = {split: head.to_json() | {"digest": head.digest} for split, head in heads.items()}
        click.echo(json.dumps(found.get("") or {"splits": found}))
        return 0
    names = {split: os.path.join(out, split) if split else out for split in heads}
    click.echo("\n\n".join(messages.table(messages.manifest_lines(names[split], heads[split])) for split in heads))
    return 0


@cli.command(short_help="Read every byte of a store and compare.")
@click.argument("out", type=_Path())
@click.option(
    "--redecode", type=click.IntRange(0), default=0, metavar="K", help="Also decode K rows again from their sources."
)
@click.option(
    "--images",
    type=_Path(),
    help="What was packed: a folder, URL, tar or zip. Compare the bytes of every source; for --redecode, where they lie.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def verify(out: str, redecode: int, images: str | None, as_json: bool, quiet: bool) -> int:
    """Check the store OUT: its structure, all digests, then every block's checksum. Changes nothing.

    OUT may also be the folder of the stores of splits; then --images is the folder that they were packed from.

    \b
    Examples:
      pack verify out/
      pack verify out/ --images images/
      pack verify out/ --redecode 100 --images images/
    """
    from packer.operations.verify import verify as run

    if redecode and images is None:
        raise OptionsError("--redecode needs --images, the folder that was packed.")
    with ProgressBar(hidden=quiet or as_json, unit="B") as bar:
        report = run(out, redecode=redecode, images=images, progress=bar.bytes_done)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    for problem in report.problems:
        click.echo(f"pack: {out}: {problem}", err=True)
    if report.problems:
        click.echo(f"pack: {out} is damaged. Copy it again, or pack again with --overwrite.", err=True)
        return EXIT_FAILED
    if report.sources is not None and (lines := messages.source_differences(out, images, report.sources)):
        click.echo("\n".join(lines), err=True)
        if not report.sources.are_same:
            return EXIT_FAILED
    if not quiet and not as_json:
        again = f", {report.redecoded} rows decoded again" if report.redecoded else ""
        again += f", {report.sources.compared:,} sources are what was packed" if report.sources else ""
        click.echo(
            f"{out} is intact: {messages.rows(report.rows)}, {messages.size(report.checked_bytes)} read and compared{again}."
        )
    return 0


@cli.command(short_help="Write a folder of images anew as smaller JPEGs, by FFmpeg.")
@click.argument("images", type=_Path())
@click.argument("dest", type=_Path())
@click.option("-q", "--quality", type=int, required=True, metavar="Q", help="ffmpeg's -q:v: 2 (best) to 31 (smallest).")
@click.option(
    "--size",
    metavar="S|HxW",
    help="Scale first: 480 makes the short side 480 where it is longer, 480x640 (height x width) makes just that.",
)
@click.option("--workers", type=int, metavar="N", help="Worker processes. [default: the CPUs this process may use]")
@click.option(
    "--fidelity",
    type=click.IntRange(0),
    default=32,
    show_default=True,
    metavar="K",
    help="Images to compare with their sources afterwards.",
)
@click.option(
    "--max-rejects",
    default="1%",
    show_default=True,
    metavar="N|P%",
    help="More rejects than this end with exit code 3.",
)
@click.option("--resume", is_flag=True, help="Begin, or resume an earlier run: what is new or changed since.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def requantize(images: str, dest: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Write the folder IMAGES anew to DEST as JPEGs of ffmpeg's -q:v, in the same folders under the same names.

    What is no JPEG, and JPEGs that FFmpeg would convert on the way, lie in DEST as they are; broken images are left
    out, recorded and summed up. EXIF orientation is kept. IMAGES is never touched.

    \b
    Examples:
      pack requantize images/ smaller/ -q 3
      pack requantize images/ smaller/ -q 5 --size 480
      pack requantize images/ smaller/ -q 3 --json | jq '.bytes_after / .bytes_before'
    """
    from packer.operations.requantize import requantize as run

    with ProgressBar(hidden=quiet or as_json) as bar:
        report = run(images, dest, **options, progress=bar.update)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif not quiet:
        click.echo(messages.requantized(report))
    if report.too_many_rejects:
        return _too_many(report.rejected, report.inputs, options["max_rejects"])
    return 0


@cli.command(short_help="What this machine has and lacks for packing.")
@click.argument("path", type=_Path(), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON on stdout.")
def doctor(path: str, as_json: bool) -> int:
    """Look at decoders, packages, CPUs, memory, GPUs, and the file system of PATH, where a store is to lie.

    Says what is missing and what fixes it; exits with 1 where packing needs it.

    \b
    Examples:
      pack doctor
      pack doctor /data/stores
      pack doctor --json | jq '.findings[] | select(.level != "ok")'
    """
    from packer.operations.doctor import examine

    report = examine(path)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    else:
        for finding in report.findings:
            level = "" if finding.level == "ok" else f"{finding.level}: "
            click.echo(f"{finding.name:14}{level}{finding.found}")
            if finding.mend:
                click.echo(f"{'':14}fix it: {finding.mend}")
    return 0 if report.is_fit else EXIT_FAILED


@cli.command(short_help="A contact sheet, or single rows, as PNG.")
@click.argument("out", type=_Path())
@click.option("--rows", metavar="LIST", help="Rows to show, such as 0,7,20-29; without it, some spread over the store.")
@click.option("--count", type=click.IntRange(1, 10_000), default=48, show_default=True, help="Tiles of the sheet.")
@click.option("--columns", type=click.IntRange(1, 200), default=8, show_default=True, help="Tiles in a line.")
@click.option(
    "--per-class",
    type=click.IntRange(1, 100),
    metavar="K",
    help="A line for each class, of K rows spread over it; of more than 100 classes, 100 spread over the list.",
)
@click.option("--single", is_flag=True, help="Write one row as it is stored, without caption or scaling.")
@click.option("-o", "--output", type=_Path(), help="The PNG to write.  [default: OUT-sheet.png beside OUT]")
def show(
    out: str, rows: str | None, count: int, columns: int, per_class: int | None, single: bool, output: str | None
) -> int:
    """Draw rows of the store OUT into a PNG; where OUT holds the stores of splits, into one each, FILE-train.png and so on.

    \b
    Examples:
      pack show out/ -o sheet.png
      pack show out/ --rows 100-149 -o some.png
      pack show out/ --per-class 6 -o classes.png
      pack show out/ --rows 7 --single -o seven.png
    """
    from packer.inputs.splits import check_one_store, stores_of
    from packer.operations.pictures import check_place, save
    from packer.operations.show import class_sheet, contact_sheet, png, row_image

    if per_class and (rows or single):
        raise OptionsError("--per-class chooses the rows itself: leave --rows and --single out.")
    if rows is not None:
        check_one_store(out, "--rows")
    chosen = None if rows is None else _parse_rows(rows)
    if single and (chosen is None or len(chosen) != 1):
        raise OptionsError("--single shows one row: give it with --rows, for example --rows 7.")
    for split, store in stores_of(out).items():
        path = _sheet_path(out, split, output)
        check_place("-o", path)
        try:
            if single and chosen:
                image = row_image(store, chosen[0])
            elif per_class:
                image = class_sheet(store, per_class)
            else:
                image = contact_sheet(store, rows=chosen, count=count, columns=columns)
        except IndexError as e:
            raise OptionsError(f"--rows: {e}") from None
        save(path, png(image))
        click.echo(path)
    return 0


def _sheet_path(out: str, split: str, output: str | None) -> str:
    """Name a store's picture; that of a split has the split's name in it: sheet.png -> sheet-train.png."""
    # "." and ".." are no names that another could stand beside
    beside = os.path.normpath(out)
    if os.path.basename(beside) in (".", ".."):
        beside = os.path.abspath(out)
    of_split = f"-{split}" if split else ""
    if output is None:
        return f"{beside}{of_split}-sheet.png"
    stem, suffix = os.path.splitext(output)
    return f"{stem}{of_split}{suffix}"


@cli.command(short_help="How near reading comes to the speed of this machine's memory and disk.")
@click.argument("out", type=_Path())
@click.option(
    "--batch-size", type=click.IntRange(1), metavar="N", help="Rows a batch. [default: 256, fewer of a small store]"
)
@click.option("--device", default="cpu", metavar="DEVICE", show_default=True, help="cuda: measure copies to it too.")
@click.option(
    "--order",
    type=click.Choice(("full", "block", "sequential")),
    help="Time this order of MemmapLoader alone. [default: all, block from the disk]",
)
@click.option(
    "--seconds",
    type=_Range(0.1, 3600),
    default=5.0,
    show_default=True,
    metavar="S",
    help="About how long to measure.",
)
@click.option("--plot", type=_Path(), metavar="FILE", help="Draw the figures into this PNG.")
@click.option("--timeline", type=_Path(), metavar="FILE", help="Run 16 batches and draw who did what when.")
@click.option("--trace", type=_Path(), metavar="FILE", help="Write that run as a Chrome trace, JSON.")
@click.option(
    "--residency",
    type=click.Choice(("auto", "cache", "ram", "disk", "gpu")),
    default="auto",
    show_default=True,
    help="Where that run reads from.",
)
@click.option("--normalize", is_flag=True, help="That run normalises to float32, as the loader's transform.")
@click.option(
    "--step-ms",
    type=_Range(0, 60_000),
    default=0.0,
    show_default=True,
    metavar="MS",
    help="That run waits so long with each batch, as for a training step.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print the figures and nothing else.")
def bench(out: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Time the reader on the store OUT, beside copying memory and reading the disk, and torch's DataLoader.

    Of a folder of the stores of splits, the one with most rows is measured. Pages of OUT are dropped from the page cache to time
    the disk, and read again. Nothing is written but pictures.

    \b
    Examples:
      pack bench out/
      pack bench out/ --seconds 20 --plot bench.png
      pack bench out/ --timeline timeline.png --step-ms 20 --order full
      pack bench out/ --json | jq '.sections[0].ways'
    """
    pictures = {name: options.pop(name) for name in ("plot", "timeline", "trace")}
    run = {name: options.pop(name) for name in ("residency", "normalize", "step_ms")}
    _check_pictures(pictures)
    out = _largest(out)
    # torch's profiler would report on stderr that it starts and stops; read when torch is imported
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with ProgressBar(hidden=quiet or as_json) as bar:
        bar.share_done("loading torch", 0.0)
        from packer.cli import charts as view
        from packer.operations.pictures import marked, save, scratch_trace
        from reader.bench.measure import BenchError, measure
        from reader.bench.timeline import record_store

        recorded = None
        try:
            report = dataclasses.asdict(measure(out, **options, tell=bar.share_done))
            if pictures["timeline"] or pictures["trace"]:
                bar.share_done("timeline", 0.0)
                run |= {name: options[name] for name in ("batch_size", "device")}
                order = options["order"] or "full"
                with scratch_trace() as trace:
                    recorded = dataclasses.asdict(record_store(out, order=order, trace=trace, **run))
                    if pictures["trace"]:
                        save(pictures["trace"], marked(trace))
                report["timeline"] = recorded
        except BenchError as e:
            raise OptionsError(str(e)) from None
    click.echo(json.dumps(report) if as_json else view.text(report))
    try:
        if pictures["plot"]:
            view.plot(report, pictures["plot"])
        if recorded and pictures["timeline"]:
            view.plot_timeline(recorded, view.about(report), pictures["timeline"])
    except view.PictureError as e:
        return _fail(str(e), EXIT_FAILED)
    return 0


def _check_pictures(pictures: dict[str, str | None]) -> None:
    """Refuse places where a picture or the trace cannot be, before anything is measured; raises OptionsError."""
    from packer.operations.pictures import check_place

    taken: dict[str, str] = {}
    for name, path in pictures.items():
        if path is not None:
            check_place(f"--{name}", path)
            other = taken.setdefault(os.path.realpath(path), name)
            if other != name:
                raise OptionsError(f"--{other} and --{name} name the same file, {path}. Give each one of its own.")


def _largest(out: str) -> str:
    """Return OUT, or of the stores of splits that it holds the one with most rows, which is said."""
    from packer.inputs.splits import stores_of
    from reader.format.manifest import check_store

    stores = stores_of(out)
    if "" in stores:
        return out
    largest = max(stores.values(), key=lambda store: check_store(store).rows)
    click.echo(f"pack: note: {out} holds the stores of splits: {largest}, which has most rows, is measured.", err=True)
    return str(largest)


def _too_many(rejected: int, inputs: int, allowed: str) -> int:
    return _fail(messages.rejected_of(rejected, inputs, allowed), EXIT_REJECTS)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command and exit with its code; every expected error is one line on stderr."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    # numpy starts a thread a CPU for algebra that packing never does; without them it starts in half the time
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with _signals_raise():
            return cli.main(arguments, prog_name="pack", standalone_mode=False) or 0
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.UsageError as e:
        command, told = e.ctx.command_path if e.ctx else "pack", e.format_message()
        if told.startswith("Usage: "):
            # `pack` alone is answered by all of the help, which needs no word before or after it
            click.echo(told, err=True)
            return EXIT_USAGE
        return _fail(f"{told} See: {command} --help", EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt, _Terminated) as e:
        return _ended(e)
    except BrokenPipeError:
        # the reader of our stdout is gone; nothing is left to say, and Python must not try at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as e:
        return _explain(e)


def _explain(error: Exception) -> int:
    """Tell the pack's own errors, and disks that are full, from bugs; a bug keeps its traceback."""
    from packer.inputs.samples import ScanError
    from packer.report import PackError
    from packer.store.disk_space import FULL, DiskFullError
    from packer.workers.processes import EngineError
    from reader.format.manifest import StoreError

    if isinstance(error, OptionsError | ScanError):
        return _fail(str(error), EXIT_USAGE)
    if isinstance(error, DiskFullError):
        return _fail(str(error), EXIT_DISK_FULL)
    if isinstance(error, PackError | StoreError | EngineError):
        return _fail(str(error), EXIT_FAILED)
    if isinstance(error, OSError):
        where = error.filename or "standard output or the current folder"
        name = errno.errorcode.get(error.errno or 0, "?")
        return _fail(f"{where}: {error.strerror} ({name}).", EXIT_DISK_FULL if error.errno in FULL else EXIT_FAILED)
    raise error


def _fail(message: str, code: int) -> int:
    click.echo(f"pack: {message}", err=True)
    return code


class _signals_raise:
    """Turn SIGINT and SIGTERM into exceptions for the time of the command, so that everything is closed on the way out."""

    def __enter__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            # who started this may want one ignored, as nohup and a shell's & do
            if signal.getsignal(number) == signal.SIG_IGN:
                continue
            try:
                self._before[number] = signal.signal(number, _raise_signal)
            except ValueError:  # not the main thread: someone else handles signals there
                return

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _raise_signal(number: int, frame: FrameType | None) -> NoReturn:
    error = KeyboardInterrupt() if number == signal.SIGINT else _Terminated()
    while frame is not None:
        # importlib's callbacks lose what is raised in them. Nothing has to be closed: a killed pack can be resumed too
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(_ended(error))
        frame = frame.f_back
    raise error


def _ended(error: BaseException) -> int:
    what, code = (
        ("terminated", EXIT_TERMINATED) if isinstance(error, _Terminated) else ("interrupted", EXIT_INTERRUPTED)
    )
    return _fail(f"{what}. Run a pack again with --resume; run any other command again as it was.", code)


def _copied(report: CopyReport, what: str, as_json: bool, quiet: bool) -> int:
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif not quiet:
        speed = f"{messages.size(int(report.copied_bytes / report.seconds))}/s"
        kept = f", {messages.size(report.kept_bytes)} were there" if report.kept_bytes else ""
        click.echo(f"{what}: {messages.size(report.copied_bytes)} copied in {report.seconds:.1f} s ({speed}){kept}")
    return 0


def _parse_rows(text: str) -> list[int]:
    """Return the rows that are named; for what shows them, not for all of a store."""
    spans = _row_spans(text)
    if not 1 <= sum(map(len, spans)) <= 10_000:
        raise OptionsError(f"--rows {text!r} names {sum(map(len, spans))} rows, expected 1 to 10,000.")
    return [row for span in spans for row in span]


def _row_spans(text: str) -> list[range]:
    """Parse rows and spans of them, whose ends are included: "0,7,20-29"."""
    spans = []
    for piece in text.split(","):
        if not (match := re.fullmatch(r"([0-9]{1,15})(?:-([0-9]{1,15}))?", piece.strip())):
            raise OptionsError(f"--rows is {text[:60]!r}, expected rows such as 0,7,20-29.")
        spans.append(range(int(match[1]), int(match[2] or match[1]) + 1))
        if not spans[-1]:
            raise OptionsError(f"--rows has {piece!r}, expected the smaller row first.")
    return spans


def _checked_spans(spans: list[range], store: str) -> Iterator[int]:
    """Give the rows of spans, once it is known that a store has them: a slip of the finger must not fill the memory."""
    from packer.inputs.splits import check_one_store
    from packer.operations.row_sources import opened

    check_one_store(store, "--rows")
    count = opened(store)[1].rows
    if wrong := next((span[-1] for span in spans if span[-1] >= count), None):
        raise OptionsError(f"row {wrong} is out of range: the store has rows 0 to {count - 1}.")
    return itertools.chain.from_iterable(spans)


def _read_rows() -> list[int]:
    """Read row numbers from standard input, whatever white space is between them."""
    if sys.stdin is None:
        raise OptionsError("standard input is closed, expected row numbers.")
    words = (sys.stdin.buffer.read() if hasattr(sys.stdin, "buffer") else sys.stdin.read().encode()).split()
    if wrong := next((word for word in words if not re.fullmatch(rb"[0-9]{1,15}", word)), None):
        raise OptionsError(f"standard input has {wrong[:40].decode(errors='replace')!r}, expected row numbers.")
    if not words:
        raise OptionsError("standard input is empty, expected row numbers.")
    return [*map(int, words)]


def _parse_limits(option: str, text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise OptionsError(f"{option} is {text!r}, expected two numbers such as 0.08,1.") from None
    return low, high


if __name__ == "__main__":
    main()
