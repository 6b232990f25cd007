"""`pack update`: make of a store what packing its images anew would make, without decoding what has not changed.

A store is never written to: the new one is built beside the old, as --overwrite does, reuses rows (see `packer.store.reuse`),
and then takes its place.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from packer.errors import PackError, ScanError
from packer.inputs.splits import stores_of
from packer.options import PackOptions, missing_words
from packer.packing.pack import named_sources, pack_sources
from packer.packing.recorded_labels import LABEL_OPTIONS, LabelCheck, label_files, resolved_labels
from packer.pixels.requantize import pixel_versions
from packer.report import PackReport, Progress
from packer.store.out_folder import resolved_out
from packer.store.reuse import check_reusable
from packer.store.swap import finish_swap
from reader.format.check import check_store
from reader.format.errors import StoreError
from reader.format.manifest import Manifest

_FIELDS = {field.name for field in dataclasses.fields(PackOptions)}


def update(
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    boxes: str | os.PathLike[str] | None = None,
    masks: str | os.PathLike[str] | None = None,
    classes: str | None = None,
    root: str | os.PathLike[str] | None = None,
    path_column: str | None = None,
    target_column: str | None = None,
    extension: str | None = None,
    missing: str | Sequence[str] = (),
    workers: int | None = None,
    on_error: str = PackOptions.on_error,
    max_rejects: int | str = PackOptions.max_rejects,
    max_gone: int | str | None = None,
    max_pixels: int | None = None,
    timeout: float = PackOptions.timeout,
    resume: bool = PackOptions.resume,
    engine: str = PackOptions.engine,
    address: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> PackReport:
    """Bring the store OUT up to date with its images: the bytes that packing them anew gives. As the command `pack update`.

    Every input is read, and decoded only where its bytes are not those that were packed. Size and all else that shapes rows is
    as OUT records it. OUT keeps its place and its readers until the new store is complete, so the disk must hold both.

    Args:
        images: what OUT was packed from, as it is now.
        out: the store; or the folder that holds a store of each split.
        max_pixels: as for `pack`; None: as OUT records it.
        boxes, masks: given again where OUT was packed with them.
        resume: continue an update that was interrupted; where none was, change nothing of a store that is up to date.
        The rest is as for `pack`.

    Raises:
        PackError: OUT holds no store, is damaged, or was packed by other decoders or with labels that are not given now; all
            else that `pack` raises.

    Example:
        >>> from packer import pack
        >>> _ = pack(images_path, out_path, size=32)
        >>> (images_path / "class0" / "000.jpg").unlink()
        >>> report = update(images_path, out_path)
        >>> report.rows, report.kept, report.gone
        (5, 5, 1)
    """
    arguments = locals() | {"missing": missing_words(missing) or None}
    target = resolved_out(out)
    finish_swap(target)
    places = stores_of(target)
    stores = {path: _intact(path) for path in places.values()}
    recorded = next(iter(stores.values()))
    _check_labels(target, recorded, boxes=boxes is not None, masks=masks is not None)
    given = {name: arguments[name] for name in LABEL_OPTIONS}
    sources = named_sources(images)
    first = next(iter(stores))
    reused = _shaping(recorded, max_pixels) | resolved_labels(first, recorded, given, sources)
    options = PackOptions.of(arguments, **reused, overwrite=not resume, update=True)
    for path, manifest in stores.items():
        check_reusable(path, manifest, options.shaping(), pixel_versions(options.shaping()))
    limit = None if max_gone is None else str(max_gone)
    check = LabelCheck({split: (path, stores[path]) for split, path in places.items()}, sources, given, limit)
    try:
        report = pack_sources(images, target, options, progress, check)
    except ScanError as e:
        raise _explained(e, first, is_reused=classes is None and options.classes is not None) from None
    return dataclasses.replace(report, notes=[*report.notes, *check.notes])


def _shaping(recorded: Manifest, max_pixels: int | None) -> dict[str, Any]:
    """Return the options that shape rows, as a store records them."""
    options = {name: value for name, value in recorded.options.items() if name in _FIELDS}
    size = options.pop("size", None)
    options.pop("masks", None)  # is given again
    options |= {} if max_pixels is None else {"max_pixels": max_pixels}
    return {"max_pixels": PackOptions.max_pixels} | options | {"size": size and tuple(size)}


def _explained(error: ScanError, store: Path, *, is_reused: bool) -> ScanError:
    """Say whose class list does not fit, where the user gave none."""
    if not is_reused or "--classes" not in str(error):
        return error
    return ScanError(
        f"{error} That is the list of {store}, which was packed with --classes. Give --classes with one that fits."
    )


def _intact(path: Path) -> Manifest:
    try:
        return check_store(path)
    except StoreError as e:
        raise PackError(str(e)) from None


def _check_labels(target: Path, manifest: Manifest, *, boxes: bool, masks: bool) -> None:
    """Refuse an update that would lose labels, or add them."""
    had = label_files(manifest)
    for name, is_given in (("boxes", boxes), ("masks", masks)):
        if had[name] and not is_given:
            raise PackError(f"{target} was packed with --{name}. Give --{name} again, or its rows would lose them.")
        if is_given and not had[name]:
            raise PackError(
                f"{target} was packed without --{name}, which an update cannot add. Pack anew with --overwrite."
            )
