"""`pack update`: bring a store to the state that packing its images again would give, without decoding unchanged ones.

A store is never written to. The new one is built beside the old, as with --overwrite, reuses its rows (see `store/reuse.py`),
and then replaces it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.errors import PackError
from packer.inputs.samples import Inputs
from packer.inputs.scan import belongs
from packer.inputs.splits import stores_of
from packer.option_names import OVERWRITE, Option
from packer.options import LabelOptions, PackOptions, WorkerOptions
from packer.packing.keywords import takes
from packer.packing.pack import ImagesArgument, named_sources, pack_sources
from packer.packing.request import intact
from packer.pixels.decoder_choice import pixel_versions
from packer.report import PackReport
from packer.store.destination import Folder
from packer.store.reuse import check_reusable
from packer.store.state import UPDATE, resolved_out
from packer.text import names_difference, some
from reader.format.manifest import Manifest

# Label options that an update takes from the store unless they are given.
_FROM_STORE = ("target_column", "path_column", "extension", "label_separator")


@dataclass(frozen=True, kw_only=True)
class UpdateOptions(WorkerOptions, LabelOptions):
    """Options of `update`: the options of its groups."""


class _ReusingOptions(PackOptions):
    """Options of a pack that reuses rows of the stores that it replaces."""

    update = True


@takes(UpdateOptions)
def update(images: ImagesArgument, out: str | os.PathLike[str], options: UpdateOptions) -> PackReport:
    """Update the store OUT to the bytes that packing its images again would give. The same as the command `pack update`.

    Every input is read, and decoded only if its bytes have changed. Size and other options that shape rows are those recorded
    in OUT. Give boxes and masks again if OUT was packed with them. OUT stays readable until the new store is complete, so the
    disk must hold both.

    Args:
        images: the images that OUT was packed from, in their present state.
        out: the store; or the folder that holds a store of each split.
        options: the fields of `UpdateOptions`, as keywords.

    Raises:
        PackError: OUT holds no store, is damaged, or was packed by other decoders or with labels that are not given now;
            classes of kept rows would get other numbers; or any error of `pack`.

    Examples:
        >>> from pixpack import pack
        >>> _ = pack(images_path, out_path, size=32)
        >>> (images_path / "class0" / "000.jpg").unlink()
        >>> report = update(images_path, out_path)
        >>> report.rows, report.kept, report.gone
        (5, 5, 1)
    """
    target = resolved_out(out)
    to = Folder(target, UPDATE)
    to.recover()
    stores = stores_of(target)
    manifests = {split: intact(path) for split, path in stores.items()}
    recorded = next(iter(manifests.values()))
    labels = _labels(target, next(iter(stores.values())), recorded, options, named_sources(images))
    pack_options = _ReusingOptions.pick_from(vars(options) | dict(recorded.options) | labels)
    for split, manifest in manifests.items():
        check_reusable(stores[split], manifest, pack_options.shaping(), pixel_versions(pack_options.shaping()))
    notes: list[str] = []

    def check(parts: dict[str, Inputs]) -> None:
        """Refuse options that would change the meaning of labels."""
        for split in manifests.keys() & parts.keys():
            notes.extend(_check_classes(stores[split], manifests[split], parts[split], options))

    report = pack_sources(images, to, pack_options, check)
    return dataclasses.replace(report, notes=[*report.notes, *notes])


def _labels(
    target: Path, store: Path, recorded: Manifest, options: UpdateOptions, images: Sequence[str]
) -> dict[str, object]:
    """Return the label options: as they are given, else as the store records them.

    Raises:
        PackError: an option with a path, which is recorded nowhere, was given and is not now, or the reverse.
    """
    for name in ("boxes", "masks", "root"):
        had, is_given = bool(recorded.labels.get(name)), getattr(options, name) is not None
        if had and not is_given and belongs(name, images):
            raise PackError(f"{target} was packed with {Option(name)}. Give {Option(name)} again.")
        if is_given and not had and name != "root":
            raise PackError(
                f"{target} was packed without {Option(name)}, which an update cannot add. Pack again with {OVERWRITE}."
            )
    found: dict[str, Any] = {name: recorded.labels.get(name) for name in _FROM_STORE if belongs(name, images)}
    if recorded.labels.get("classes"):
        found["classes"] = str(store)
    return {name: value for name, value in found.items() if value is not None and not getattr(options, name)}


def _check_classes(out: Path, before: Manifest, now: Inputs, options: UpdateOptions) -> list[str]:
    """Refuse other numbers for the classes of a store, unless a class list is given; returns notes on new classes.

    Raises:
        PackError: names the classes, and what to do.
    """
    if before.target_kind != now.target_kind:
        raise PackError(
            f"{out} has {before.target_kind} targets, the images have {now.target_kind} ones. Pack again with {OVERWRITE}."
        )
    old, new = before.classes, now.classes
    numbers = {name: number for number, name in enumerate(new)}
    moved = [
        f"{name} was {number}, now {numbers[name]}"
        for number, name in enumerate(old)
        if numbers.get(name, number) != number
    ]
    what = names_difference(old, new) or "in another order"
    if moved and options.classes is None:
        raise PackError(
            f"classes would have other numbers than in {out}: {some(moved)} ({what}). Keep them by {Option('classes', out)},"
            f" or a file with its names, then new ones; or pack again with {OVERWRITE}."
        )
    if old == new:
        return []
    changes = f"numbers moved: {some(moved)}" if moved else "all others keep their numbers"
    return [f"{out} has other classes than before ({what}); {changes}."]
