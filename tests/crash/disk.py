"""A model of what a disk may hold when the power goes: what was synced for certain, and of the rest whatever it likes.

The rules are POSIX's, which promise least: fsync of a file makes its bytes safe but not its name; fsync of a folder makes
the names in it safe. A rename is kept or lost as a whole. Knows nothing of packs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.calls import Call

# what a disk writes whole or not at all
_SECTOR_BYTES = 512

Tree = dict[str, "Tree | bytes"]


@dataclass(eq=False)
class _File:
    """Its bytes when last synced, then after each change since."""

    versions: list[bytes] = field(default_factory=lambda: [b""])

    def change(self, content: bytes) -> None:
        self.versions.append(content)

    def sync(self) -> None:
        del self.versions[:-1]


@dataclass(eq=False)
class _Folder:
    """Its names as programs see them, and as they are safe."""

    names: dict[str, _File | _Folder] = field(default_factory=dict)
    safe: dict[str, _File | _Folder] = field(default_factory=dict)


# One change of names, kept or lost as a whole: (folder, name, what it led to, what it leads to).
_Change = list[tuple[_Folder, str, "_File | _Folder | None", "_File | _Folder | None"]]


class Disk:
    """A folder on a disk: `apply` calls to it, then ask what would be left of it."""

    def __init__(self, root: Path) -> None:
        self._root_path = root.resolve()
        self._root = _loaded(root)
        self._pending: list[_Change] = []

    def apply(self, call: Call) -> None:
        """Follow one call of the log."""
        if call.is_done and call.name in _ACTIONS:
            _ACTIONS[call.name](self, call)

    def only_synced(self) -> Tree:
        """Return the least that can be left: what was synced, and nothing else."""
        return self._left(lambda change: False, lambda file: file.versions[0])

    def all_names(self) -> Tree:
        """Return what journaling file systems may leave: every change of names, and of the bytes only what was synced."""
        return self._left(lambda change: True, lambda file: file.versions[0])

    def some(self, draw: random.Random) -> Tree:
        """Return what was synced and of the rest any part: changes of names, and single sectors of files."""
        share = draw.random()
        return self._left(lambda change: draw.random() < share, lambda file: _some_sectors(file.versions, draw))

    def everything(self) -> Tree:
        """Return what programs see."""
        return self._left(lambda change: True, lambda file: file.versions[-1])

    # -- calls

    def _find(self, path: str) -> tuple[_Folder, str]:
        """Return the folder that holds the last name of a path."""
        folder, relative = self._root, Path(path).relative_to(self._root_path)
        for name in relative.parts[:-1]:
            inner = folder.names[name]
            assert isinstance(inner, _Folder)
            folder = inner
        return folder, relative.name

    def _entry(self, path: str) -> _File | _Folder:
        if path == str(self._root_path):
            return self._root
        folder, name = self._find(path)
        return folder.names[name]

    def _file(self, path: str) -> _File:
        found = self._entry(path)
        assert isinstance(found, _File)
        return found

    def _rename_all(self, *changes: tuple[str, _File | _Folder | None]) -> None:
        """Let each path lead to something else, or to nothing, all in one step."""
        change: _Change = []
        for path, after in changes:
            folder, name = self._find(path)
            change.append((folder, name, folder.names.get(name), after))
            _put(folder.names, name, after)
        self._pending.append(change)

    def _write(self, call: Call) -> None:
        file = self._file(call.path)
        old = file.versions[-1].ljust(call.offset, b"\0")
        file.change(old[: call.offset] + call.data + old[call.offset + len(call.data) :])

    def _resize(self, call: Call) -> None:
        file = self._file(call.path)
        size = call.offset if call.name == "ftruncate" else max(call.offset, len(file.versions[-1]))
        if call.name == "truncate":
            size = 0
        file.change(file.versions[-1][:size].ljust(size, b"\0"))

    def _sync(self, call: Call) -> None:
        entry = self._entry(call.path)
        if isinstance(entry, _File):
            entry.sync()
            return
        folders = {entry}
        for change in reversed(self._pending):
            # a rename from folder to folder is one step: what came before it in the other one is safe too
            if any(folder in folders for folder, *_ in change):
                folders |= {folder for folder, *_ in change}
        for change in [change for change in self._pending if any(folder in folders for folder, *_ in change)]:
            for folder, name, _, after in change:
                _put(folder.safe, name, after)
            self._pending.remove(change)

    def _rename(self, call: Call) -> None:
        self._rename_all((call.path, None), (call.to, self._entry(call.path)))

    def _link(self, call: Call) -> None:
        self._rename_all((call.to, self._entry(call.path)))

    def _exchange(self, call: Call) -> None:
        self._rename_all((call.path, self._entry(call.to)), (call.to, self._entry(call.path)))

    # -- what is left

    def _left(self, keeps: Callable[[_Change], bool], content: Callable[[_File], bytes]) -> Tree:
        names: dict[_Folder, dict[str, _File | _Folder]] = {}
        for change in self._pending:
            # a change that rests on a lost one is lost with it
            rests = all(names.get(folder, folder.safe).get(name) is before for folder, name, before, _ in change)
            if keeps(change) and rests:
                for folder, name, _, after in change:
                    _put(names.setdefault(folder, dict(folder.safe)), name, after)

        def tree(folder: _Folder) -> Tree:
            entries = names.get(folder, folder.safe).items()
            return {name: tree(node) if isinstance(node, _Folder) else content(node) for name, node in entries}

        return tree(self._root)


_ACTIONS: dict[str, Callable[[Disk, Call], None]] = {
    "create": lambda disk, call: disk._rename_all((call.path, _File())),
    "mkdir": lambda disk, call: disk._rename_all((call.path, _Folder())),
    "unlink": lambda disk, call: disk._rename_all((call.path, None)),
    "rmdir": lambda disk, call: disk._rename_all((call.path, None)),
    "rename": Disk._rename,
    "exchange": Disk._exchange,
    "link": Disk._link,
    "write": Disk._write,
    "pwrite": Disk._write,
    "punch": Disk._write,
    "ftruncate": Disk._resize,
    "truncate": Disk._resize,
    "fallocate": Disk._resize,
    "fsync": Disk._sync,
    "fdatasync": Disk._sync,
}


def write_tree(tree: Tree, folder: Path) -> None:
    """Lay a tree out as a new folder."""
    folder.mkdir()
    for name, entry in tree.items():
        if isinstance(entry, bytes):
            (folder / name).write_bytes(entry)
        else:
            write_tree(entry, folder / name)


def flat(tree: Tree, above: str = "") -> dict[str, bytes]:
    """Return the files of a tree: relative path -> bytes."""
    found = dict[str, bytes]()
    for name, entry in tree.items():
        found |= {above + name: entry} if isinstance(entry, bytes) else flat(entry, f"{above}{name}/")
    return found


def _loaded(path: Path) -> _Folder:
    """Take what is there as safe."""
    names: dict[str, _File | _Folder] = {}
    for entry in os.scandir(path):
        inner = Path(entry.path)
        names[entry.name] = _loaded(inner) if entry.is_dir() else _File([inner.read_bytes()])
    return _Folder(dict(names), names)


def _put(names: dict[str, _File | _Folder], name: str, entry: _File | _Folder | None) -> None:
    if entry is None:
        names.pop(name, None)
    else:
        names[name] = entry


def _some_sectors(versions: list[bytes], draw: random.Random) -> bytes:
    """Compose a file of sectors, each as it was at any time since the last sync; its size too."""
    if len(versions) == 1:
        return versions[0]
    size = len(draw.choice(versions))
    sectors = []
    for start in range(0, size, _SECTOR_BYTES):
        stop = min(start + _SECTOR_BYTES, size)
        sectors.append(draw.choice(versions)[start:stop].ljust(stop - start, b"\0"))
    return b"".join(sectors)
