"""`packed`: open the store of a program's images; one of the calling processes packs it first, if needed.

Knows no format and no lock itself: `pack` starts, continues or confirms, and names another process that packs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from packer import values
from packer.cli.output import ProgressBar
from packer.errors import DiskFullError, LockedError, OptionsError, PackError, SourceError
from packer.options import PackOptions, option
from packer.packing.keywords import takes
from packer.packing.pack import ImagesArgument, named_sources, pack_checked
from packer.packing.request import update_command
from packer.progress import listening, notify
from packer.report import PackReport, Progress
from packer.store.state import stage_of
from reader.dataset.dataset import MemmapDataset, check_forms

_log = logging.getLogger("pixpack")

# Seconds between two checks of a waiting process.
_WAIT_SECONDS = 1.0
# Options that `packed` sets itself, or that belong to one run of the command.
_NOT_TAKEN = {
    "part": "it packs all, by the process that comes first. Pack parts with the command, and open MemmapDataset(out)",
}


@dataclass(frozen=True, kw_only=True)
class PackedOptions(PackOptions):
    """The options of a pack, and how the store is opened."""

    split: str | None = option(None, values.text, "Which of the stores in OUT, if IMAGES has splits.")
    transform: Callable[[Any], Any] | None = option(None, values.function, "As of MemmapDataset.")
    target_transform: Callable[[Any], Any] | None = option(None, values.function, "Called with one target.")
    as_tuple: bool = option(True, values.flag, "Indexing gives (image, target), not an ImageBatch.")
    as_pil: bool = option(False, values.flag, "Images are PIL images.")


@takes(PackedOptions)
def packed(images: ImagesArgument, out: str | os.PathLike[str], options: PackedOptions) -> MemmapDataset:
    """Return the store OUT as a MemmapDataset; pack IMAGES into it first, with progress, unless it equals the request.

    Read it by MemmapLoader(train, batch_size, transform=from_torchvision(recipe)): it has 8.8 times the images/s of
    ImageFolder. A DataLoader over transform=recipe, as_pil=True, which runs any recipe, has 2.2 times.

    An interrupted run is continued. All processes of a distributed program call it with the same arguments, before or after
    init_process_group. One packs, and the others wait for OUT, without a collective, so that none times out. If OUT is on
    each node's own disk, one process per node packs. Every call lists IMAGES, to check that OUT equals the request.

    Args:
        images: as for `pack`.
        out: as for `pack`.
        options: the fields of `PackOptions` except part, as keywords, and those of MemmapDataset.

    Raises:
        OptionsError: an option has an invalid value; or images have splits, and split names none of them.
        ValueError, ImportError: an argument of MemmapDataset is refused, before anything is packed.
        ScanError: images cannot be read or holds no image.
        PackError: as for `pack`; also if OUT is a store of other images or options, without overwrite=True, or if more images
            were rejected than max_rejects allows.
        StoreError: the store cannot be opened.

    Examples:
        >>> train = packed(images_path, out_path, size=32)
        >>> len(train), train[0][0].shape
        (6, torch.Size([3, 32, 32]))
    """
    for name, why in _NOT_TAKEN.items():
        if getattr(options, name):
            raise OptionsError(f"packed takes no {name}=: {why}.")
    if images == "":
        raise OptionsError("images is empty, expected a folder, list, archive or URL of images.")
    if not isinstance(out, str | os.PathLike):
        raise OptionsError(
            f"out is {out!r}, expected the folder of the store. A transform is given by its name, transform=."
        )
    # arguments that MemmapDataset would refuse after the pack
    check_forms(options.target_transform, as_tuple=options.as_tuple, as_pil=options.as_pil)
    with _progress(options.progress) as progress, listening(progress):
        packs = replace(PackOptions.pick_from(options), progress=progress)
        report = _packed_by_one(images, out, packs, options.split)
    if report.too_many_rejects:
        many = f"{report.rejected:,} of {report.inputs:,} images were rejected, more than max_rejects={options.max_rejects!r}"
        if not report.is_in_place:
            stage = stage_of(Path(report.out))
            raise PackError(
                f"{many} allows: see rejected.jsonl in {stage}. {report.out} is as it was. Allow more; or repair them, and"
                f" remove {stage}: the next call packs again."
            )
        update = update_command(named_sources(images), out, PackOptions.pick_from(options))
        raise PackError(
            f"{many} allows: see rejected.jsonl in {report.out}. Allow more; or repair them, and run: {update}"
        )
    if report.resumed_from < report.inputs:
        _log.info(
            "%s: packed %d rows in %.1f s, %d images rejected", report.out, report.rows, report.seconds, report.rejected
        )
    packing = {field.name for field in fields(PackOptions)}
    return MemmapDataset(out, **{name: value for name, value in vars(options).items() if name not in packing})


def _packed_by_one(
    images: ImagesArgument, out: str | os.PathLike[str], options: PackOptions, split: str | None
) -> PackReport:
    """Pack, or wait for the process that packs and then check that OUT equals the request."""
    refused = ""
    while True:
        try:
            return pack_checked(images, out, options, lambda splits: _check_split(splits, split, images))
        except LockedError as e:
            # a process that ends, even killed, releases the lock: the next one continues
            notify(Progress("wait", 0, 0, waits_for=str(e).partition(". ")[0]))
            time.sleep(_WAIT_SECONDS)
        except (DiskFullError, SourceError):
            raise
        except PackError as e:
            # another process may have finished OUT since this one looked: try twice
            if str(e) == refused:
                raise
            refused = str(e)


def _check_split(splits: Iterable[str], split: str | None, images: ImagesArgument) -> None:
    """Refuse a split that IMAGES do not have, before anything is packed; raises OptionsError."""
    names = [name for name in splits if name]
    if split is None and names:
        raise OptionsError(f"{images} has the splits {', '.join(names)}. Give one of them: split={names[0]!r}.")
    if split is not None and not names:
        raise OptionsError(f"{images} has no splits. Leave split={split!r} out.")
    if split is not None and split not in names:
        raise OptionsError(f"{images} has no split {split!r}. It has {', '.join(names)}.")


@contextlib.contextmanager
def _progress(given: Callable[[Progress], None] | None) -> Iterator[Callable[[Progress], None]]:
    """Return the progress callback: the caller's, or a bar, which only the first rank here and the packing one show."""
    if given is not None:
        yield given
        return
    shown = ProgressBar(hidden=False)
    is_first = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0"

    is_waiting = False

    def update(progress: Progress) -> None:
        """Show the progress of the first rank here, and of the packing one; but not the listing of IMAGES at each check."""
        nonlocal is_waiting
        is_packing, waits = progress.stage in ("allocate", "pack"), progress.stage == "wait"
        if is_packing or (is_first and (waits or not is_waiting)):
            shown.update(progress)
        is_waiting = waits or (is_waiting and not is_packing)

    with shown:
        yield update
