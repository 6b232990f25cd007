"""The command `pack`: the only module that imports click, prints, or knows an exit code."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from packer import __version__
from packer.options import CHANNELS, ENGINES, FITS, RESAMPLES, OptionsError, parse_size
from packer.profile import profile_table

if TYPE_CHECKING:
    from packer.info import Duplicates, Sources
    from packer.push import CopyReport
    from packer.report import PackReport, Progress
    from packer.requantize import RequantizeReport
    from reader.manifest import Manifest

EXIT_FAILED, EXIT_USAGE, EXIT_REJECTS, EXIT_DISK_FULL = 1, 2, 3, 28
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143

_REASONS_SHOWN = 8
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Terminated(BaseException):
    """SIGTERM arrived."""


class _DefaultToBuild(click.Group):
    """A first word that is no command's name, options included, belongs to `build`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help", "--version"):
            args = ["build", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
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


@cli.command(short_help="Decode IMAGES into the store OUT (the default command).")
@click.argument("images", type=click.Path(), nargs=-1)
@click.argument("out", type=click.Path())
@click.option(
    "-0", "nul", is_flag=True, help="Read paths from standard input, NUL-separated, as find -print0 writes them."
)
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
    "--boxes",
    type=click.Path(),
    metavar="JSON|DIR",
    help="Boxes of the images: COCO's json, or the folder of YOLO's .txt files, which may be IMAGES itself.",
)
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
    "--masks",
    type=click.Path(),
    metavar="DIR",
    help="Masks of the images, palette or gray, by the same relative path: a.png for a.jpg.",
)
@click.option(
    "--upright-labels",
    is_flag=True,
    help="Boxes and masks were drawn on upright pictures: do not turn them with EXIF.",
)
@click.option(
    "--classes",
    metavar="STORE|FILE",
    help="Take the class list from a store or a file: one name a line, .json, or YOLO's data.yaml.",
)
@click.option("--root", metavar="DIR", help="Folder that relative paths of a list start from.")
@click.option("--path-column", metavar="NAME", help="Column of a manifest that holds the path.  [default: path]")
@click.option(
    "--target-column",
    metavar="NAME[,NAME]",
    help="Column that holds the target; several of numbers make one vector, others a target each."
    "  [default: target, label, class or cls]",
)
@click.option("--extension", metavar=".EXT", help="Add this to the paths of a list that lack it.")
@click.option("--shuffle", type=int, metavar="SEED", help="Write rows in a random order fixed by SEED.")
@click.option("--workers", type=int, metavar="N", help="Worker processes. [default: the CPUs this process may use]")
@click.option(
    "--on-error",
    type=click.Choice(("skip", "fail")),
    default="skip",
    show_default=True,
    help="What a broken image does to the pack.",
)
@click.option(
    "--max-rejects",
    default="1%",
    show_default=True,
    metavar="N|P%",
    help="More rejects than this end with exit code 3.",
)
@click.option("--strict", is_flag=True, help="Reject also what decodes only with warnings.")
@click.option(
    "--max-pixels",
    type=int,
    default=50_000_000,
    show_default=True,
    metavar="N",
    help="Reject images whose header claims more.",
)
@click.option(
    "--timeout", type=float, default=30.0, show_default=True, metavar="SECONDS", help="Longest that one image may take."
)
@click.option("--resume", is_flag=True, help="Go on with an interrupted pack.")
@click.option("--overwrite", is_flag=True, help="Replace an existing store.")
@click.option(
    "--part",
    metavar="i/n",
    help="Pack only the i-th of n equal parts, on any host that shares OUT; pack seal OUT joins them.",
)
@click.option(
    "--engine", type=click.Choice(ENGINES), default="local", show_default=True, help="ray: workers on a Ray cluster."
)
@click.option("--address", metavar="HOST:PORT", help="The Ray cluster.  [default: RAY_ADDRESS, or one on this machine]")
@click.option("--profile", is_flag=True, help="Also print where the seconds went, by stage and process.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def build(
    images: tuple[str, ...], out: str, nul: bool, profile: bool, as_json: bool, quiet: bool, **options: Any
) -> int:
    """Decode IMAGES once into the store OUT.

    IMAGES is a folder of class folders, a folder of images, or a folder of train, val, valid or test folders; each of
    those is packed into OUT/<name>, all with one class list; also as a URL, s3://bucket/images. Or it is a .csv, .tsv or
    .jsonl manifest, one or more tars, a zip, or - for a list of paths on standard input. Broken images are left out,
    recorded and summed up.

    \b
    Examples:
      pack images/ out/ --size 224
      pack images/ out/ --size 224 --crop-fraction 0.875 --resample bicubic
      pack val/ out-val/ --size 224 --classes out-train/
      pack images/ out/ --size 192x256 --fit pad --json | jq .rows
      pack images/ out/ --fit none --max-size 512
      pack images/ out/ --fit none --max-size short:256
      find photos -name '*.jpg' | sort | pack - out/ --size 224
      find photos -name '*.jpg' -print0 | pack -0 out/ --size 224
      pack train.csv out/ --size 224 --root photos/ --path-column id --extension .jpg --target-column label
      pack shard-*.tar out/ --size 224
      pack images/ out/ --size 224 --part 2/8 --resume
      pack images/ out/ --size 224 --engine ray --address head-node:6379
      pack photos/ out/ --size 320 --fit pad --boxes instances.json
    """
    from packer.pipeline import pack

    if nul and images in ((), ("-",)):
        images = ("-0",)
    if not images or (nul and images != ("-0",)):
        raise click.UsageError(
            f"{images[0]} and -0 cannot be packed together." if images else "Missing argument 'OUT'."
        )
    size = None if options["size"] is None else parse_size(options["size"])
    with _ProgressBar(hidden=quiet or as_json) as bar:
        report = pack(images, out, **{**options, "size": size}, progress=bar.update)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif not quiet:
        click.echo(_summary(report))
        if profile and report.profile:
            click.echo(profile_table(report.profile))
    for note in [] if quiet else report.notes:
        click.echo(f"pack: note: {note}", err=True)
    if report.too_many_rejects:
        return _too_many(report.rejected, report.inputs, options["max_rejects"])
    return 0


@cli.command(short_help="Join the parts of OUT, packed by pack --part, into one store.")
@click.argument("out", type=click.Path())
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
    interrupted seal is gone on with by the same command.

    \b
    Examples:
      pack seal out/
      for i in 1 2 3 4; do pack images/ out/ --size 224 --part $i/4; done; pack seal out/
    """
    from packer.join import seal_parts

    with _ProgressBar(hidden=quiet or as_json, unit=" rows") as bar:
        report = seal_parts(out, max_rejects=max_rejects, progress=bar.update)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif not quiet:
        lines = [*_store_lines(report), f"sealed in {report.seconds:.1f} s", *_reject_lines(report)]
        click.echo("\n".join(lines))
    if report.too_many_rejects:
        return _too_many(report.rejected, report.inputs, max_rejects)
    return 0


@cli.command(short_help="Copy a store to object storage.")
@click.argument("out", type=click.Path())
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def push(out: str, url: str, as_json: bool, quiet: bool) -> int:
    """Copy the store OUT to URL: only files that differ, each compared with its checksum before it is sent.

    \b
    Examples:
      pack push out/ s3://bucket/stores/out
    """
    from packer.push import push as run

    with _ProgressBar(hidden=quiet or as_json, unit="B") as bar:
        report = run(out, url, progress=lambda done, total: bar.bytes_done(done, total, "push"))
    return _copied(report, f"{report.out} is at {report.url}", as_json, quiet)


@cli.command(short_help="Copy a store from object storage.")
@click.argument("url")
@click.argument("out", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def pull(url: str, out: str, as_json: bool, quiet: bool) -> int:
    """Copy the store at URL to OUT and compare every byte with its checksums. Interrupted, the same command goes on.

    \b
    Examples:
      pack pull s3://bucket/stores/out out/
    """
    from packer.push import pull as run

    with _ProgressBar(hidden=quiet or as_json, unit="B") as bar:
        report = run(url, out, progress=lambda done, total: bar.bytes_done(done, total, "pull"))
    return _copied(report, f"{report.url} is at {report.out}", as_json, quiet)


@cli.command(short_help="What each choice of row sizes would cost and lack, from headers alone.")
@click.argument("images", type=click.Path())
@click.option("--crop", type=click.IntRange(1, 16384), default=224, show_default=True, metavar="S", help="Crop's side.")
@click.option(
    "--scale", default="0.08,1", show_default=True, metavar="LOW,HIGH", help="Share of the area that a box has."
)
@click.option("--ratio", default="0.75,1.3333", show_default=True, metavar="LOW,HIGH", help="Width / height of a box.")
@click.option("--channels", type=click.Choice(tuple(CHANNELS)), default="rgb", show_default=True, help="Of a row.")
@click.option("--workers", type=int, metavar="N", help="Worker processes. [default: the CPUs this process may use]")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON on stdout.")
def plan(images: str, scale: str, ratio: str, as_json: bool, **options: Any) -> int:
    """Compare ways to pack IMAGES for training with RandomResizedCrop(S): bytes, and what the crops would lack.

    Reads headers, decodes nothing. Random boxes are drawn in the images. `reachable` is the share of them that lies whole in a
    row; `upsampled` the share that has fewer pixels there than the crop, in height or width.

    \b
    Examples:
      pack plan images/
      pack plan images/ --crop 160 --scale 0.25,1
      pack plan images/ --json | jq -r .recommended
    """
    from packer.plan import plan as run
    from packer.plan import summary

    with _ProgressBar(hidden=as_json) as bar:
        options |= {"scale": _parse_limits("--scale", scale), "ratio": _parse_limits("--ratio", ratio)}
        found = run(images, **options, progress=bar.update)
    click.echo(json.dumps(dataclasses.asdict(found)) if as_json else summary(found))
    return 0


@cli.command(short_help="What a store holds.")
@click.argument("out", type=click.Path())
@click.option("--brief", is_flag=True, help="Read the manifest alone, not the targets and samples.jsonl.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it, but for the table of blocks, as JSON.")
def info(out: str, brief: bool, as_json: bool) -> int:
    """Say what the store OUT holds and how it was made, and what its sources were. Reads no pixel.

    OUT may also be a folder of train, val, valid or test stores.

    \b
    Examples:
      pack info out/
      pack info out/ --json | jq .rows
      pack info out/ --json | jq .duplicates
    """
    from reader.manifest import check_store

    if brief:
        manifest = check_store(out)
        head = manifest.to_json() | {"digest": manifest.digest}
        click.echo(json.dumps(head) if as_json else _table(_manifest_lines(out, manifest)))
        return 0
    from packer.info import describe

    found = describe(out)
    if as_json:
        click.echo(json.dumps(found.to_json()))
        return 0
    for split, manifest in found.manifests.items():
        name = os.path.join(out, split) if split else out
        click.echo(_table(_manifest_lines(name, manifest) | _source_lines(manifest, found.sources[split])))
        if split:
            click.echo()
    click.echo(_table(_duplicate_lines(found.duplicates, "" not in found.manifests)))
    return 0


@cli.command(short_help="Read every byte of a store and compare.")
@click.argument("out", type=click.Path())
@click.option(
    "--redecode", type=click.IntRange(0), default=0, metavar="K", help="Also decode K rows again from their sources."
)
@click.option("--images", type=click.Path(), help="The folder that was packed, for --redecode.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def verify(out: str, redecode: int, images: str | None, as_json: bool, quiet: bool) -> int:
    """Check the store OUT: its structure, all digests, then every block's checksum. Changes nothing.

    \b
    Examples:
      pack verify out/
      pack verify out/ --redecode 100 --images images/
    """
    from packer.verify import verify as run

    if redecode and images is None:
        raise OptionsError("--redecode needs --images, the folder that was packed.")
    with _ProgressBar(hidden=quiet or as_json, unit="B") as bar:
        report = run(out, redecode=redecode, images=images, progress=bar.bytes_done)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    for problem in report.problems:
        click.echo(f"pack: {out}: {problem}", err=True)
    if report.problems:
        click.echo(f"pack: {out} is damaged. Copy it again, or pack again with --overwrite.", err=True)
        return EXIT_FAILED
    if not quiet and not as_json:
        again = f", {report.redecoded} rows decoded again" if report.redecoded else ""
        click.echo(f"{out} is whole: {report.rows:,} rows, {_size(report.checked_bytes)} read and compared{again}.")
    return 0


@cli.command(short_help="Write a folder of images anew as smaller JPEGs, by FFmpeg.")
@click.argument("images", type=click.Path())
@click.argument("dest", type=click.Path())
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
@click.option("--resume", is_flag=True, help="Go on with an interrupted run, or do what is new or changed since.")
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
    from packer.requantize import requantize as run

    with _ProgressBar(hidden=quiet or as_json) as bar:
        report = run(images, dest, **options, progress=bar.update)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif not quiet:
        click.echo(_requantized(report))
    if report.too_many_rejects:
        return _too_many(report.rejected, report.inputs, options["max_rejects"])
    return 0


@cli.command(short_help="What this machine has and lacks for packing.")
@click.argument("path", type=click.Path(), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON on stdout.")
def doctor(path: str, as_json: bool) -> int:
    """Look at decoders, packages, CPUs, memory, GPUs, and the file system of PATH, where a store is to lie.

    Says what is missing and what mends it; exits with 1 where packing needs it.

    \b
    Examples:
      pack doctor
      pack doctor /data/stores
      pack doctor --json | jq '.findings[] | select(.level != "ok")'
    """
    from packer.doctor import examine

    report = examine(path)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    else:
        for finding in report.findings:
            level = "" if finding.level == "ok" else f"{finding.level}: "
            click.echo(f"{finding.name:14}{level}{finding.found}")
            if finding.mend:
                click.echo(f"{'':14}mend it: {finding.mend}")
    return 0 if report.is_fit else EXIT_FAILED


@cli.command(short_help="A contact sheet, or single rows, as PNG.")
@click.argument("out", type=click.Path())
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
@click.option("-o", "--output", type=click.Path(), help="The PNG to write.  [default: OUT-sheet.png beside OUT]")
def show(
    out: str, rows: str | None, count: int, columns: int, per_class: int | None, single: bool, output: str | None
) -> int:
    """Draw rows of the store OUT into a PNG.

    \b
    Examples:
      pack show out/ -o sheet.png
      pack show out/ --rows 100-149 -o some.png
      pack show out/ --per-class 6 -o classes.png
      pack show out/ --rows 7 --single -o seven.png
    """
    from packer.show import class_sheet, contact_sheet, row_image

    if per_class and (rows or single):
        raise OptionsError("--per-class chooses the rows itself: leave --rows and --single out.")
    chosen = None if rows is None else _parse_rows(rows)
    path = output or f"{os.path.normpath(out)}-sheet.png"
    if single and (chosen is None or len(chosen) != 1):
        raise OptionsError("--single shows one row: give it with --rows, for example --rows 7.")
    _check_writable("-o", path)
    try:
        if single and chosen:
            image = row_image(out, chosen[0])
        elif per_class:
            image = class_sheet(out, per_class)
        else:
            image = contact_sheet(out, rows=chosen, count=count, columns=columns)
    except IndexError as e:
        raise OptionsError(f"--rows: {e}") from None
    image.save(path, format="PNG")
    click.echo(path)
    return 0


@cli.command(short_help="How near reading comes to the speed of this machine's memory and disk.")
@click.argument("out", type=click.Path())
@click.option(
    "--batch-size", type=click.IntRange(1), metavar="N", help="Rows a batch. [default: 256, or all of a smaller store]"
)
@click.option("--device", default="cpu", metavar="DEVICE", show_default=True, help="cuda: measure copies to it too.")
@click.option(
    "--order",
    type=click.Choice(("full", "block", "sequential")),
    help="Time this order of MemmapLoader alone. [default: all, block from the disk]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=5.0,
    show_default=True,
    metavar="S",
    help="About how long to measure.",
)
@click.option("--plot", type=click.Path(), metavar="FILE", help="Draw the figures into this PNG.")
@click.option("--timeline", type=click.Path(), metavar="FILE", help="Run 16 batches and draw who did what when.")
@click.option("--trace", type=click.Path(), metavar="FILE", help="Write that run as a Chrome trace, JSON.")
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
    type=click.FloatRange(0, 60_000),
    default=0.0,
    show_default=True,
    metavar="MS",
    help="That run waits so long with each batch, as for a training step.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON on stdout.")
def bench(out: str, as_json: bool, **options: Any) -> int:
    """Time the reader on the store OUT, beside copying memory and reading the disk, and torch's DataLoader.

    Pages of OUT are dropped from the page cache to time the disk, and read again. Nothing is written but pictures.

    \b
    Examples:
      pack bench out/
      pack bench out/ --seconds 20 --plot bench.png
      pack bench out/ --timeline timeline.png --step-ms 20 --order full
      pack bench out/ --json | jq '.sections[0].ways'
    """
    pictures = {name: options.pop(name) for name in ("plot", "timeline", "trace")}
    run = {name: options.pop(name) for name in ("residency", "normalize", "step_ms")}
    for name, path in pictures.items():
        if path is not None:
            _check_writable(f"--{name}", path)
    # torch's profiler would report on stderr that it starts and stops; read when torch is imported
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    from packer import bench as view
    from reader.bench import BenchError, measure
    from reader.timeline import record_store

    recorded = None
    try:
        with _ProgressBar(hidden=as_json) as bar:
            report = dataclasses.asdict(measure(out, **options, tell=bar.share_done))
        if pictures["timeline"] or pictures["trace"]:
            run |= {name: options[name] for name in ("batch_size", "device")}
            order = options["order"] or "full"
            recorded = dataclasses.asdict(record_store(out, order=order, trace=pictures["trace"], **run))
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


def _too_many(rejected: int, inputs: int, allowed: str) -> int:
    return _fail(f"{rejected} of {inputs} inputs were rejected, more than --max-rejects {allowed}.", EXIT_REJECTS)


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
    from packer.disk import FULL, DiskFullError
    from packer.engine import EngineError
    from packer.inputs import ScanError
    from packer.report import PackError
    from reader.manifest import StoreError

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
        # importlib's callbacks lose what is raised in them. Nothing has to be closed: a killed pack can be gone on with too
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(_ended(error))
        frame = frame.f_back
    raise error


def _ended(error: BaseException) -> int:
    what, code = (
        ("terminated", EXIT_TERMINATED) if isinstance(error, _Terminated) else ("interrupted", EXIT_INTERRUPTED)
    )
    return _fail(f"{what}. Go on with --resume where a pack had begun.", code)


class _ProgressBar:
    """One tqdm line on stderr, only where that is a terminal; a new one for each stage."""

    def __init__(self, *, hidden: bool, unit: str = " images") -> None:
        # sys.stderr is None where the caller closed it
        self._hidden = hidden or sys.stderr is None or not sys.stderr.isatty()
        self._unit = unit
        self._bar: Any = None
        self._stage = ""

    def __enter__(self) -> _ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, progress: Progress) -> None:
        """Show where a pack is."""
        if self._hidden:
            return
        bar = self._stage_bar(f"{progress.split} {progress.stage}".strip(), progress.total)
        if progress.stage == "pack":
            elapsed = bar.format_dict["elapsed"]
            megabytes = progress.source_bytes / 1e6 / elapsed if elapsed else 0
            bar.set_postfix_str(
                f"{megabytes:.0f} MB/s, {progress.rejected} rejected", refresh=progress.done == progress.total
            )
        self._move(bar, progress.done)

    def bytes_done(self, done: int, total: int, stage: str = "verify") -> None:
        """Show bytes read."""
        if not self._hidden:
            self._move(self._stage_bar(stage, total), done)

    def share_done(self, stage: str, share: float) -> None:
        """Show the share of a stage that is done, 0..1."""
        if not self._hidden:
            bar = self._stage_bar(stage, 100)
            bar.bar_format = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
            self._move(bar, round(100 * share))

    def _move(self, bar: Any, done: int) -> None:
        bar.update(done - bar.n)

    def _stage_bar(self, stage: str, total: int) -> Any:
        if self._bar is None or stage != self._stage:
            from tqdm import tqdm

            # tqdm's monitor is a thread: workers could not be forked beside it
            tqdm.monitor_interval = 0
            if self._bar is not None:
                self._bar.close()
            scale = self._unit == "B" or "allocate" in stage
            unit = "B" if scale else self._unit
            # a terminal that does not know its size says 0 x 0, and tqdm would draw nothing
            columns, lines = os.get_terminal_size(sys.stderr.fileno())
            size = {"ncols": columns or 80, "nrows": lines or 24}
            self._bar = tqdm(
                total=total or None, desc=stage, unit=unit, unit_scale=scale, file=sys.stderr, leave=False, **size
            )
            self._stage = stage
        return self._bar


def _summary(report: PackReport) -> str:
    lines = _store_lines(report)
    if report.resumed_from == report.inputs:
        return "\n".join([*lines, "already finished; nothing was done", *_part_lines(report)])
    already = f", {report.resumed_from:,} of them before" if report.resumed_from else ""
    lines.append(
        f"packed {report.rows:,} of {report.inputs:,} images{already} in {report.seconds:.1f} s:"
        f" {report.images_per_second:,.0f} images/s, from {_size(report.source_bytes)}"
    )
    if report.changed:
        more = report.changed_count - len(report.changed_paths)
        named = ", ".join(report.changed_paths) + (f" and {more} more" if more else "")
        lines.append(
            f"{named} changed since the pack was interrupted: all from the first one's block on was decoded anew"
        )
    if report.ignored:
        lines.append(f"{report.ignored:,} other files were left alone")
    return "\n".join([*lines, *_reject_lines(report), *_part_lines(report)])


def _store_lines(report: PackReport) -> list[str]:
    """Say what each store holds."""
    lines = []
    for part in list(report.splits.values()) or [report]:
        labels = "no labels" if part.target_kind == "class" else f"{part.target_kind} targets"
        labelled = f", {part.classes} classes" if part.classes else f", {labels}"
        lines.append(f"{part.out}: {part.rows:,} rows of {_shape(part)}{labelled}, {_size(part.store_bytes)}")
    return lines


def _reject_lines(report: PackReport) -> list[str]:
    """Sum up the rejects by reason."""
    if not report.rejected:
        return []
    where = "rejected.jsonl" if not report.splits else "each rejected.jsonl"
    lines = [f"rejected {report.rejected:,} (see {where}{' of the sealed store' if report.part else ''}):"]
    reasons = list(report.reasons.items())
    for reason, count in reasons[:_REASONS_SHOWN]:
        lines.append(f"  {count:>6,} x {reason}{_line_numbers(report.reject_lines.get(reason, []), count)}")
    if len(reasons) > _REASONS_SHOWN:
        lines.append(f"         and {len(reasons) - _REASONS_SHOWN} more reasons")
    return lines


def _part_lines(report: PackReport) -> list[str]:
    return [f"this is part {report.part}; when all are there, pack seal makes the store"] if report.part else []


def _copied(report: CopyReport, what: str, as_json: bool, quiet: bool) -> int:
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif not quiet:
        speed = f"{_size(int(report.copied_bytes / report.seconds))}/s"
        kept = f", {_size(report.kept_bytes)} were there" if report.kept_bytes else ""
        click.echo(f"{what}: {_size(report.copied_bytes)} copied in {report.seconds:.1f} s ({speed}){kept}")
    return 0


def _requantized(report: RequantizeReport) -> str:
    already = f", {report.resumed_from:,} of them before" if report.resumed_from else ""
    share = report.bytes_after / report.bytes_before if report.bytes_before else 1
    lines = [
        f"{report.out}: {report.requantized:,} of {report.inputs:,} images requantized{already} in {report.seconds:.1f} s",
        f"{'before':10}{_size(report.bytes_before)}",
        f"{'after':10}{_size(report.bytes_after)}, {share:.0%} of it",
    ]
    if report.ssim is not None and report.lowest_ssim is not None:
        psnr = "no error" if report.psnr is None else f"PSNR {report.psnr:.1f} dB"
        lowest, path = report.lowest_ssim
        lines.append(
            f"{'fidelity':10}{psnr}, SSIM {report.ssim:.3f}, of {report.compared} images; least {lowest:.3f}, {path}"
        )
    for what, count, reasons in (
        ("kept as they are", report.kept, report.kept_reasons),
        ("rejected", report.rejected, report.reasons),
    ):
        if count:
            lines.append(f"{what} {count:,} (see requantized.jsonl):")
            lines += [f"  {number:>6,} x {reason}" for reason, number in list(reasons.items())[:_REASONS_SHOWN]]
            if len(reasons) > _REASONS_SHOWN:
                lines.append(f"         and {len(reasons) - _REASONS_SHOWN} more reasons")
    return "\n".join(lines)


def _table(lines: dict[str, str]) -> str:
    return "\n".join(f"{key:12}{value}" for key, value in lines.items())


def _further(m: Manifest) -> str:
    """Say of each further target its kind and classes."""
    classes = {
        name: f", {len(t.classes)} classes{_some(t.classes)}" for name, t in m.further_targets.items() if t.classes
    }
    return "; ".join(f"{name} {t.kind}{classes.get(name, '')}" for name, t in m.further_targets.items())


def _manifest_lines(out: str, m: Manifest) -> dict[str, str]:
    size_bytes = sum(entry.size_bytes for entry in m.files.values())
    options = ", ".join(f"{k} {v}" for k, v in m.options.items() if v not in (None, False) and k != "size")
    decoders = ", ".join(f"{name} {' '.join(str(v) for v in d.values() if v)}" for name, d in m.decoders.items())
    width = f" x {m.target_count}" if m.target_count else ""
    return {
        "store": f"{out} (format {m.version[0]}.{m.version[1]}, {m.digest[:19]})",
        "rows": f"{m.rows:,} of {'up to ' if m.has_own_sizes else ''}uint8[{m.height}, {m.width}, {m.channels}],"
        f" {_size(size_bytes)}",
        "inputs": f"{m.inputs:,}, {m.rejected:,} rejected",
        "targets": f"{m.target_kind}{width}, {len(m.classes)} classes{_some(m.classes)}",
        **({"further": _further(m)} if m.further_targets else {}),
        "extras": ", ".join([*m.extras, *(["masks"] if m.has_own_masks else [])]) or "none",
        "mean": " ".join(f"{value:.4f}" for value in m.mean),
        "std": " ".join(f"{value:.4f}" for value in m.std),
        "options": options,
        "decoders": decoders,
    }


def _source_lines(manifest: Manifest, sources: Sources) -> dict[str, str]:
    """Say how rows spread over classes, and what sizes their sources had."""
    lines = {}
    if counts := sources.class_counts:
        least, most = (choose(range(len(counts)), key=counts.__getitem__) for choose in (min, max))
        spread = f"{counts[least]:,} ({manifest.classes[least]}) to {counts[most]:,} ({manifest.classes[most]})"
        lines["a class"] = f"{spread} rows" if counts[least] != counts[most] else f"{counts[least]:,} rows"
        lines["a class"] += f"; {sources.unlabelled:,} rows without a label" if sources.unlabelled else ""
    if sources.sizes:
        common = ", ".join(f"{width} x {height} ({count:,})" for width, height, count in sources.sizes)
        more = f"; {sources.distinct_sizes:,} sizes" if sources.distinct_sizes > len(sources.sizes) else ""
        lines["sources"] = f"{_size(sources.source_bytes)}; {common}{more}"
        sides = ", ".join(f"{start} to {stop - 1} ({count:,})" for start, stop, count in sources.short_sides)
        lines["short side"] = sides
    return lines


def _duplicate_lines(duplicates: Duplicates, has_splits: bool) -> dict[str, str]:
    if not duplicates.images:
        return {"duplicates": "none"}
    across = f", {duplicates.across:,} of them in more than one split" if has_splits else ""
    lines = [f"{duplicates.images:,} images come more than once, in {duplicates.rows:,} rows{across}"]
    lines += [" = ".join(group) for group in duplicates.examples]
    return {"duplicates": f"\n{'':12}".join(lines)}


def _line_numbers(numbers: list[int], count: int) -> str:
    """Name lines of the list: " (line 7)", " (lines 7, 9)", " (lines 7, 9, 12, 13, 20, ...)"."""
    if not numbers:
        return ""
    named = ", ".join(map(str, numbers)) + (", ..." if count > len(numbers) else "")
    return f" (line{'s' if count > 1 else ''} {named})"


def _shape(report: PackReport) -> str:
    up_to = "up to " if report.has_own_sizes else ""
    return f"{up_to}{report.size[0]} x {report.size[1]} x {report.channels}"


def _check_writable(option: str, path: str) -> None:
    if os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or "."):
        raise OptionsError(f"{option} {path} cannot be written: expected a file name in a folder that exists.")


def _parse_rows(text: str) -> list[int]:
    rows: list[int] = []
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise OptionsError(f"--rows is {text!r}, expected rows such as 0,7,20-29.")
        rows += range(int(first), int(last or first) + 1)
        if not rows or len(rows) > 10_000:
            raise OptionsError(f"--rows {text!r} names {len(rows)} rows, expected 1 to 10,000.")
    return rows


def _parse_limits(option: str, text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise OptionsError(f"{option} is {text!r}, expected two numbers such as 0.08,1.") from None
    return low, high


def _size(size_bytes: int) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} bytes"


def _some(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    return f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})"


if __name__ == "__main__":
    main()
