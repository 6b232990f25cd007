"""A model of a disk after a power cut: it holds all synced data, and any part of the rest.

The rules are POSIX's, which guarantee least: fsync of a file makes its bytes safe but not its name; fsync of a folder makes
the names in it safe. A rename is kept or lost as a whole. Knows nothing about packs.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.crash.calls import Call

# a disk writes a sector completely or not at all
_SECTOR_BYTES = 512

# relative path -> its bytes; None: a folder, which comes before its content
Tree = dict[str, bytes | None]


class _Node:
    """A file: its bytes when last synced, then after each change since. A folder has none."""

    def __init__(self, *versions: bytes) -> None:
        self.versions = [*versions]


# (folder, name) -> what it leads to
_Names = dict[tuple[_Node, str], _Node]
_GONE = _Node()


class Disk:
    """The folder root on a disk, with safe content at first: `apply` calls, then see what a power cut would leave."""

    def __init__(self, root: Path, content: Tree) -> None:
        self._path, self._root = root.resolve(), _Node()
        self._names: _Names = {}
        # changes of names, each kept or lost as a whole: their old and new targets
        self._pending: list[tuple[_Names, _Names]] = []
        for name, data in content.items():
            self._lead({str(self._path / name): _Node(*[] if data is None else [data])})
        self._safe = dict(self._names)
        self._pending.clear()

    def apply(self, call: Call) -> None:
        """Follow one call of the log."""
        if call.result < 0:
            return
        match call.name:
            case "create":
                self._lead({call.path: _Node(b"")})
            case "mkdir":
                self._lead({call.path: _Node()})
            case "unlink" | "rmdir":
                self._lead({call.path: _GONE})
            case "rename":
                self._lead({call.path: _GONE, call.to: self._node(call.path)})
            case "link":
                self._lead({call.to: self._node(call.path)})
            case "exchange":
                self._lead({call.path: self._node(call.to), call.to: self._node(call.path)})
            case "fsync" | "fdatasync":
                self._sync(self._node(call.path))
            case "write" | "pwrite" | "punch" | "fallocate" | "ftruncate" | "truncate":
                versions = self._node(call.path).versions
                kept = b"" if "truncate" in call.name else versions[-1][call.offset + len(call.data) :]
                versions.append(versions[-1][: call.offset].ljust(call.offset, b"\0") + call.data + kept)

    def left(self, draw: random.Random) -> tuple[Tree, ...]:
        """Return what a power cut may leave.

        Returns:
            the least: only synced data;
            on journaling file systems: every change of names, but only synced bytes;
            the view of programs;
            only synced data and the last change of names: names are kept in any order;
            synced data and any part of the rest: changes of names, and single sectors of files.
        """
        share, last = draw.random(), iter([False] * (len(self._pending) - 1) + [True])
        return (
            self._tree(lambda: False, lambda versions: versions[0]),
            self._tree(lambda: True, lambda versions: versions[0]),
            self._tree(lambda: True, lambda versions: versions[-1]),
            self._tree(lambda: next(last), lambda versions: versions[0]),
            self._tree(lambda: draw.random() < share, lambda versions: _some_sectors(versions, draw)),
        )

    def _key(self, path: str) -> tuple[_Node, str]:
        *folders, name = Path(path).relative_to(self._path).parts
        folder = self._root
        for one in folders:
            folder = self._names[folder, one]
        return folder, name

    def _node(self, path: str) -> _Node:
        return self._root if path == str(self._path) else self._names[self._key(path)]

    def _lead(self, paths: dict[str, _Node]) -> None:
        """Change the targets of paths, all in one step."""
        after = {self._key(path): node for path, node in paths.items()}
        self._pending.append(({key: self._names.get(key, _GONE) for key in after}, after))
        self._names |= after

    def _sync(self, node: _Node) -> None:
        del node.versions[:-1]
        folders, safe = {node}, []
        for change in reversed(self._pending):
            # a rename between folders is one step: earlier changes in the other folder are safe too
            changed = {folder for folder, _ in change[1]}
            if changed & folders:
                folders |= changed
                safe.append(change)
        for change in reversed(safe):
            self._safe |= change[1]
            self._pending.remove(change)

    def _tree(self, keeps: Callable[[], bool], content: Callable[[list[bytes]], bytes]) -> Tree:
        names = dict(self._safe)
        for before, after in self._pending:
            # a change that depends on a lost one is lost too
            if keeps() and all(names.get(key, _GONE) is node for key, node in before.items()):
                names |= after

        def below(folder: _Node, above: str) -> Tree:
            found: Tree = {}
            for (parent, name), node in names.items():
                if parent is folder and node is not _GONE:
                    found[above + name] = content(node.versions) if node.versions else None
                    found |= below(node, f"{above}{name}/")
            return found

        return below(self._root, "")


def read_tree(folder: Path) -> Tree:
    """Read everything below a folder."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def write_tree(tree: Tree, folder: Path) -> None:
    """Write a tree in place of a folder."""
    shutil.rmtree(folder)
    folder.mkdir()
    for name, data in tree.items():
        if data is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(data)


def _some_sectors(versions: list[bytes], draw: random.Random) -> bytes:
    """Compose a file of sectors, each from any time since the last sync; its size too."""
    size = len(draw.choice(versions))
    sized = [one[:size].ljust(size, b"\0") for one in versions]
    return b"".join(draw.choice(sized)[at : at + _SECTOR_BYTES] for at in range(0, size, _SECTOR_BYTES))
