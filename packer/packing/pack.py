"""The pipeline of `pack`: check options, list inputs, determine the rows' shape, make a store of each split, report.

No click here, no printing: progress goes to a callback, results come back as a PackReport.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence

from packer.errors import OptionsError, SourceError
from packer.inputs.class_lists import load_classes
from packer.inputs.samples import Inputs
from packer.inputs.scan import scan
from packer.inputs.splits import split_of
from packer.options import PackOptions
from packer.packing.build import Build
from packer.packing.image_sizes import common_size
from packer.packing.keywords import takes
from packer.progress import notify
from packer.report import PackReport, Progress
from packer.store.destination import Folder
from packer.store.disk_space import as_pack_error, guard_standard_streams
from packer.store.reports import summed_report
from packer.store.state import check_destination, resolved_out
from packer.text import counted
from packer.workers.block_worker import PackJob
from reader.format.filesystem import user_path

ImagesArgument = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@takes(PackOptions)
def pack(images: ImagesArgument, out: str | os.PathLike[str], options: PackOptions) -> PackReport:
    """Decode a folder of images once, into the store OUT. The same as the command `pack IMAGES OUT`.

    Args:
        images: a folder of class folders, of images, or of train / val / valid / test folders; a .csv, .tsv, .jsonl or
            .parquet table; a tar, or a list of tars; a zip; "-" for paths on standard input, one a line, "-0" NUL-separated.
        out: the store to make; with splits, the folder that holds one store a split.
        options: the fields of `PackOptions`, as keywords.

    Raises:
        OptionsError: an option has an invalid value.
        ScanError: images cannot be read or holds no image.
        PackError: OUT is in the way, or nothing could be packed. Its subclasses:
            DiskFullError (OUT's disk lacks room), LockedError (another pack holds OUT), JournalError (it cannot be resumed),
            SourceError (the folder, disk or network of the inputs cannot be read now).

    Examples:
        >>> pack(images_path, out_path, size=32).rows
        6
    """
    return pack_checked(images, out, options)


def pack_checked(
    images: ImagesArgument,
    out: str | os.PathLike[str],
    options: PackOptions,
    check: Callable[[dict[str, Inputs]], None] | None = None,
) -> PackReport:
    """Pack as `pack` does, with the check of `pack_sources`."""
    return pack_sources(images, Folder(resolved_out(out), overwrite=options.overwrite), options, check)


def pack_parts(
    parts: dict[str, Inputs],
    to: Folder,
    options: PackOptions,
    started: float,
    make_job: Callable[..., PackJob] = PackJob,
) -> PackReport:
    """Pack each split into its store in a destination; without splits, into the one store.

    Args:
        started: when the call began, by time.perf_counter().
        make_job: takes the fields of a PackJob.
    """
    if not (reports := _finished(parts, to, options)):
        to.check(parts)
        shape = options.least_sides or common_size(parts, options)
        builds = {
            split: Build(inputs, options, to.store(split), shape=shape, split=split, make_job=make_job)
            for split, inputs in parts.items()
        }
        reports = _built(builds, to, started)
    return reports[""] if "" in reports else summed_report(to.out, reports)


def _built(builds: dict[str, Build], to: Folder, started: float) -> dict[str, PackReport]:
    """Build stores one after the other, publish all splits together, and return the report of each."""
    for build in builds.values():
        build.divide()
    reports: dict[str, PackReport] = {}
    try:
        with to.begin(builds):
            for split, build in builds.items():
                reports[split] = build.run(started)
                started = time.perf_counter()
            if to.replaces and any(report.too_many_rejects for report in reports.values()):
                return {split: dataclasses.replace(report, is_in_place=False) for split, report in reports.items()}
            to.publish()
    except OSError as e:
        raise as_pack_error(e, to.stage, {}) from None
    return reports


def _finished(parts: dict[str, Inputs], to: Folder, options: PackOptions) -> dict[str, PackReport]:
    """Return the reports of finished stores if OUT holds exactly these splits; none for an update or with --overwrite.

    Raises:
        PackError: a store is finished, but from other inputs or options.
    """
    if options.update or options.overwrite or {split_of(store, to.out) for store in to.finished} != {*parts}:
        return {}
    from packer.packing.request import finished_report

    return {split: finished_report(inputs, to.out / split, options, to.out) for split, inputs in parts.items()}


def pack_sources(
    images: ImagesArgument,
    to: Folder,
    options: PackOptions,
    check: Callable[[dict[str, Inputs]], None] | None = None,
) -> PackReport:
    """Pack IMAGES, as `pack` takes it, with ready-made options; raises as `pack`.

    check: called with the inputs of each split before anything is made, to refuse them.
    """
    started, sources = time.perf_counter(), named_sources(images)
    guard_standard_streams()
    _check_libraries(options)
    check_destination(sources, to.out)
    to.recover()
    try:
        parts = _listed(sources, options)
    except SourceError as e:
        raise type(e)(f"{e}. Give the same command again when it can be read.") from None
    to.check_splits(parts)
    if check is not None:
        check(parts)
    count, classes = sum(map(len, parts.values())), len(next(iter(parts.values())).classes)
    splits = [] if "" in parts else [f"{counted(len(parts), 'split', 'splits')} ({', '.join(parts)})"]
    found = [counted(count, "image", "images"), *splits, counted(classes, "class", "classes")]
    notify(Progress("list", count, count, found=", ".join(found)))
    is_finished = to.finished and not options.overwrite
    if options.engine == "ray" and not is_finished:
        from packer.packing.ray import pack_by_ray

        return pack_by_ray(parts, to, options, pack_parts)
    if options.part and not is_finished:
        from packer.packing.parts import pack_part

        return pack_part(parts, to, options, started, pack_parts)
    return pack_parts(parts, to, options, started)


def named_sources(images: ImagesArgument) -> list[str]:
    """Return IMAGES, one or several, as text; raises OptionsError if one is not a path."""
    try:
        return list(map(user_path, [images] if isinstance(images, str | os.PathLike) else images))
    except TypeError:
        raise OptionsError(f"images is {images!r}, expected a path, or a list of them.") from None


def _check_libraries(options: PackOptions) -> None:
    """Refuse options whose library is not installed, before anything starts."""
    if options.requantize is not None:
        from packer.pixels.ffmpeg import Ffmpeg

        Ffmpeg()


def _listed(sources: list[str], options: PackOptions) -> dict[str, Inputs]:
    """List the inputs of each split in the order of their rows, with the classes imposed on them."""
    imposed = None if options.classes is None else load_classes(os.fspath(options.classes))
    parts = scan(sources, classes=imposed, options=options)
    if options.shuffle is None:
        return parts
    return {split: inputs.shuffled(options.shuffle) for split, inputs in parts.items()}
