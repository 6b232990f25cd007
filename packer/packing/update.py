"""`pack update`: bring a store to the state that packing its images again would give, without decoding unchanged ones.

A store is never written to: the new one is built beside the old, as --overwrite does, reuses rows (see `store/sealed/reuse.py`),
and then replaces it.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from packer.errors import PackError, ScanError
from packer.inputs.splits import stores_of
from packer.option_names import OVERWRITE, Option
from packer.options import LabelOptions, PackOptions, WorkerOptions
from packer.packing.keywords import takes
from packer.packing.pack import ImagesArgument, named_sources, pack_sources
from packer.packing.recorded_labels import LABEL_OPTIONS, LabelCheck, label_files, resolved_labels
from packer.pixels.requantize import pixel_versions
from packer.report import PackReport
from packer.store.destination import Folder
from packer.store.journal import header_of
from packer.store.out_folder import check_no_links, resolved_out
from packer.store.sealed.reuse import check_reusable
from packer.store.state import check_finished, unfinished_message
from reader.format.errors import StoreError
from reader.format.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class UpdateOptions(WorkerOptions, LabelOptions):
    """Options of `update`: those of its groups, and these.

    Args:
        max_pixels: as for `pack`; None: as OUT records it.
        max_gone: how many rows of a store may vanish, a count or a percentage; None: 10 %, at least 10, but not all.
    """

    max_pixels: int | None = None
    max_gone: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class _ReusingOptions(PackOptions):
    """Options of a pack that reuses rows of the stores that it replaces; max_gone: of `UpdateOptions`, for the line to resume."""

    update = True
    max_gone: int | str | None = None


@takes(UpdateOptions)
def update(images: ImagesArgument, out: str | os.PathLike[str], options: UpdateOptions) -> PackReport:
    """Bring the store OUT up to date with its images: the bytes that packing them again gives. As the command `pack update`.

    Every input is read, and decoded only where its bytes are not those that were packed. Size and all else that shapes rows is
    as OUT records it; boxes and masks are given again where OUT was packed with them. OUT stays readable until the new store is
    complete, so the disk must hold both.

    Args:
        images: what OUT was packed from, as it is now.
        out: the store; or the folder that holds a store of each split.
        options: the fields of `UpdateOptions`, as keywords.

    Raises:
        PackError: OUT holds no store, is damaged, or was packed by other decoders or with labels that are not given now; all
            else that `pack` raises.

    Examples:
        >>> from pixpack import pack
        >>> _ = pack(images_path, out_path, size=32)
        >>> (images_path / "class0" / "000.jpg").unlink()
        >>> report = update(images_path, out_path)
        >>> report.rows, report.kept, report.gone
        (5, 5, 1)
    """
    target = resolved_out(out)
    to = Folder(target)
    to.recover()
    stores = stores_of(target)
    manifests = {path: _intact(path) for path in stores.values()}
    first, recorded = next(iter(manifests.items()))
    _check_unfinished(to)
    _check_labels(target, recorded, options)
    given = {name: getattr(options, name) for name in LABEL_OPTIONS} | {"missing": options.missing or None}
    sources = named_sources(images)
    pack_options = _ReusingOptions.among(
        vars(options)
        | _recorded(recorded, options.max_pixels)
        | resolved_labels(first, recorded, given, sources)
    )
    for path, manifest in manifests.items():
        check_reusable(path, manifest, pack_options.shaping(), pixel_versions(pack_options.shaping()))
    limit = None if options.max_gone is None else str(options.max_gone)
    check = LabelCheck({split: (path, manifests[path]) for split, path in stores.items()}, sources, given, limit)
    try:
        report = pack_sources(images, to, pack_options, check)
    except ScanError as e:
        raise _explained(e, first, is_reused=options.classes is None and pack_options.classes is not None) from None
    return dataclasses.replace(report, notes=[*report.notes, *check.notes])


def _recorded(manifest: Manifest, max_pixels: int | None) -> dict[str, object]:
    """Return the options that shape rows, as a store records them."""
    limit = manifest.options.get("max_pixels", PackOptions.max_pixels) if max_pixels is None else max_pixels
    return dict(manifest.options) | {"max_pixels": limit}


def _explained(error: ScanError, store: Path, *, is_reused: bool) -> ScanError:
    """Say whose class list does not fit, where the user gave none."""
    if not is_reused or f"{Option('classes')} does not list" not in str(error):
        return error
    return ScanError(
        f"{error} That is the list of {store}, which was packed with {Option('classes')}. Give {Option('classes')} with one"
        " that fits."
    )


def _intact(path: Path) -> Manifest:
    try:
        return check_finished(path)
    except StoreError as e:
        raise PackError(str(e)) from None


def _check_unfinished(to: Folder) -> None:
    """Refuse to clear away the unfinished work of another command; raises PackError."""
    for folder in to.state.unfinished:
        header = header_of(folder)
        # parts have headers of their own
        if header is None or not header.update:
            check_no_links(to.stage)
            raise PackError(
                f"An update would discard the unfinished work in {to.stage}: continue that first, or remove the folder."
                f" {unfinished_message(to.out)}"
            )


def _check_labels(target: Path, manifest: Manifest, options: LabelOptions) -> None:
    """Refuse an update that would lose labels, or add them."""
    for name, had in label_files(manifest).items():
        is_given = getattr(options, name) is not None
        if had and not is_given:
            raise PackError(
                f"{target} was packed with {Option(name)}. Give {Option(name)} again, or its rows would lose them."
            )
        if is_given and not had:
            raise PackError(
                f"{target} was packed without {Option(name)}, which an update cannot add. Pack again with {OVERWRITE}."
            )
