"""Finished stores replace others: one in a single step, those of splits together or none.

The system exchanges two names at a time. So the stores of splits are all finished, marked, and then exchanged one behind the
other: what a crash leaves between two of them is known by the mark, refused by readers, and finished here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Mapping
from pathlib import Path

from packer.store import journal as journals
from packer.store.files import sync_folder, write_synced
from packer.store.lock import Lock
from packer.store.out_folder import (
    check_no_links,
    free_trash,
    own_paths,
    remove_replaced,
    remove_trash,
    remove_working_folder,
    replacement,
)
from reader.format.manifest import MANIFEST
from reader.format.splits import SWAPPING, read_swapping


def swap(destinations: Mapping[Path, Lock]) -> None:
    """Put the finished store that is beside each of these destinations, and locked, there; open readers keep the old files.

    The new ones bring their working folders, which distinguish a crash here from one before. Each name changes in one
    step where the system can (Linux). Elsewhere, and on file systems that cannot, a crash between the two renames leaves the
    new store complete under its working name.
    """
    for destination, lock in destinations.items():
        lock.check_replaced()
        remove_trash(destination)
        if (destination / journals.FOLDER).exists():
            # left of a crash, and taken for the new one's once it is beside
            remove_working_folder(destination)
    if len(destinations) > 1:
        names = json.dumps(sorted(destination.name for destination in destinations)).encode()
        for destination, lock in destinations.items():
            lock.check()
            write_synced(replacement(destination) / SWAPPING, names)
            sync_folder(replacement(destination) / journals.FOLDER)
    for lock in destinations.values():
        lock.check()
        lock.check_replaced()
    # the names first, at once: until the last of them is changed the splits do not belong together
    exchanged = [destination for destination in destinations if _take_name(destination)]
    for parent in dict.fromkeys(destination.absolute().parent for destination in destinations):
        sync_folder(parent)  # before the next rename: a disk that kept only that one would have lost the new store
    for destination in exchanged:
        os.rename(replacement(destination), free_trash(destination))
        sync_folder(destination.absolute().parent)
    for destination in destinations:
        remove_trash(destination)
        sync_folder(destination.absolute().parent)
    for destination, lock in destinations.items():
        lock.check_moved(destination)
        # last, and under the lock: another pack may begin here as soon as it is gone
        remove_working_folder(destination)


def finish_swap(out: Path) -> bool:
    """Complete an exchange of the stores of OUT's splits after a crash; returns whether any was not exchanged yet.

    Raises:
        PackError: LockedError where another process is at it; a symbolic link is at a path of ours.
    """
    names = {name for folder in _folders(out) for name in read_swapping(out / folder)}
    destinations = [out / name for name in sorted(names)]
    if not destinations:
        return False
    for destination in destinations:
        check_no_links(*own_paths(destination))
    with contextlib.ExitStack() as held:
        pending: dict[Path, Lock] = {}
        for destination in destinations:
            new = replacement(destination)
            if not (new / journals.FOLDER).is_dir() or not (new / MANIFEST).is_file():
                continue
            try:
                pending[destination] = held.enter_context(contextlib.closing(Lock(new, replaces=destination)))
            except FileNotFoundError:  # who was at it has just finished
                continue
        if pending:
            swap(pending)
    for destination in destinations:
        if destination not in pending and (destination / journals.FOLDER).is_dir():
            with contextlib.suppress(FileNotFoundError), contextlib.closing(Lock(destination)):
                remove_replaced(destination)
                remove_working_folder(destination)
    return bool(pending)


def _folders(out: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(out) if (out / name).is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _take_name(destination: Path) -> bool:
    """Let the store beside a destination have its name; returns whether the old one now is where the new one was."""
    new = replacement(destination)
    if _exchange(new, destination):
        return True
    if destination.exists():
        os.rename(destination, free_trash(destination))
    os.rename(new, destination)
    return False


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically by renameat2(2); False if it is not available."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    at_current_folder, exchange = -100, 2
    return call(at_current_folder, os.fsencode(one), at_current_folder, os.fsencode(other), exchange) == 0
