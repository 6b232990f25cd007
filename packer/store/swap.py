"""Finished stores take the places of others: one in a single step, those of splits together or none.

The system exchanges two names at a time. So the stores of splits are all finished, marked, and then exchanged one behind the
other: what a crash leaves between two of them is known by the mark, refused by readers, and finished here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Sequence
from pathlib import Path

from packer.store import journal as journals
from packer.store.files import sync_folder, write_synced
from packer.store.lock import Lock
from packer.store.out_folder import (
    check_no_links,
    free_trash,
    own_places,
    remove_replaced,
    remove_trash,
    remove_working_folder,
    replacement,
)
from reader.format.manifest import MANIFEST
from reader.format.unfinished import SWAPPING, read_swapping


def swap(places: Sequence[Path]) -> None:
    """Put the finished store that lies beside each of these places there; open readers keep the old files.

    The new ones bring their working folders along, by which a crash here can be told from one before. Each name changes in one
    step where the system can (Linux). Elsewhere, and on file systems that cannot, a crash between the two renames leaves the
    new store whole under its working name.
    """
    for place in places:
        remove_trash(place)
        if (place / journals.FOLDER).exists():
            # left of a crash, and taken for the new one's once it lies beside
            remove_working_folder(place)
    if len(places) > 1:
        names = json.dumps(sorted(place.name for place in places)).encode()
        for place in places:
            write_synced(replacement(place) / SWAPPING, names)
            sync_folder(replacement(place) / journals.FOLDER)
    parents = dict.fromkeys(place.absolute().parent for place in places)
    # the names first, at once: until the last of them is changed the splits do not belong together
    exchanged = [place for place in places if _take_place(place)]
    _sync(parents)  # before the next rename: a disk that kept only that one would have lost the new store
    for place in exchanged:
        os.rename(replacement(place), free_trash(place))
        sync_folder(place.absolute().parent)
    for place in places:
        remove_trash(place)
        sync_folder(place.absolute().parent)
    for place in places:
        # last, and under the lock: another pack may begin here as soon as it is gone
        remove_working_folder(place)


def finish_swap(out: Path) -> bool:
    """Finish what a crash has left of exchanging the stores of OUT's splits; returns whether any had not been exchanged.

    Raises:
        PackError: LockedError where another process is at it; a symbolic link lies in a place of ours.
    """
    names = {name for folder in _folders(out) for name in read_swapping(out / folder)}
    places = [out / name for name in sorted(names)]
    if not places:
        return False
    for place in places:
        check_no_links(*own_places(place))
    with contextlib.ExitStack() as held:
        pending = []
        for place in places:
            new = replacement(place)
            if not (new / journals.FOLDER).is_dir() or not (new / MANIFEST).is_file():
                continue
            try:
                held.enter_context(contextlib.closing(Lock(new)))
            except FileNotFoundError:  # who was at it has just finished
                continue
            pending.append(place)
        if pending:
            swap(pending)
    for place in places:
        if place not in pending and (place / journals.FOLDER).is_dir():
            with contextlib.suppress(FileNotFoundError), contextlib.closing(Lock(place)):
                remove_replaced(place)
                remove_working_folder(place)
    return bool(pending)


def _folders(out: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(out) if (out / name).is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _take_place(place: Path) -> bool:
    """Let the store beside a place have its name; returns whether the old one now lies where the new one was."""
    new = replacement(place)
    if _exchange(new, place):
        return True
    if place.exists():
        os.rename(place, free_trash(place))
    os.rename(new, place)
    return False


def _sync(folders: dict[Path, None]) -> None:
    for folder in folders:
        sync_folder(folder)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically by renameat2(2); False where that is not to be had."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    at_current_folder, exchange = -100, 2
    return call(at_current_folder, os.fsencode(one), at_current_folder, os.fsencode(other), exchange) == 0
