"""A table of runs that change files: commands and a reader with a cache, each on a folder that models a disk and holds OUT.

Records such a run, lists what it may leave, and continues after an accident.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kinds
import sizes
from conftest import interrupted

from packer import pack
from packer.cli.app import run as run_command
from reader.format.manifest import MANIFEST
from tests.crash.calls import Shim
from tests.crash.disk import Disk, Tree, read_tree, write_tree

# pad: so that the store has a content.memmap too
_OPTIONS = "--size 32 --fit pad --workers 2 --max-rejects 1"
_BUILD = f"build {{work}}/images {{out}} {_OPTIONS}"
_SPLITS = f"build {{work}}/splits/images {{out}} {_OPTIONS}"
_MERGE = "merge {work}/a {work}/b {out} --overwrite"
# a reader's requests to its fetcher, without torch
_FETCH = (
    "from reader.remote.fetcher import Fetcher; fetcher = Fetcher()\n"
    "fetcher.open(['file://{work}/a', '{out}', None, '']); fetcher.fetch([0, 1, 2])"
)


def _is_old_or_new(seen: Tree, before: Tree, after: Tree) -> bool:
    return seen in (before, after)


def _is_no_store(seen: Tree, before: Tree, after: Tree) -> bool:
    """Files arrive at their final place, the manifest last: a truncated one is no store, since its digest is missing."""
    return seen in (before, after) or seen.get(MANIFEST, b"") not in (before.get(MANIFEST), after[MANIFEST])


def _has_old_or_new_files(seen: Tree, before: Tree, after: Tree) -> bool:
    return all(
        content in (before.get(name), after.get(name)) or name.endswith((".tmp", ".part"))
        for name, content in seen.items()
    )


@dataclass(frozen=True)
class Kind:
    """A line of the command, or of Python; the lines before it whose result the disk holds.

    is_torn: it was interrupted before, inside a line of its journal. is_changed: an image is replaced in between. is_inside:
        OUT is a folder before. may_leave: whether OUT may hold this after an early end: (found, before, after).
    """

    line: str
    before: tuple[str, ...] = ()
    is_torn: bool = False
    is_changed: bool = False
    is_inside: bool = False
    may_leave: Callable[[Tree, Tree, Tree], bool] = _is_old_or_new


KINDS = {
    "new": Kind(_BUILD),
    "continued": Kind(_BUILD, is_torn=True),
    "overwrite": Kind(f"{_BUILD} --overwrite", (_BUILD,), is_changed=True),
    "update": Kind("update {work}/images {out} --workers 2 --max-rejects 1", (_BUILD,), is_changed=True),
    "splits": Kind(_SPLITS),
    "resplit": Kind(f"{_SPLITS} --overwrite", (_SPLITS,), is_changed=True),
    "own sizes": Kind(
        "build {work}/images {out} --fit none --boxes {work}/boxes.json --masks {work}/masks --workers 2 --max-rejects 1"
    ),
    "jpeg": Kind(f"{_BUILD} --compress=90"),
    "seal": Kind("seal {out}", (f"{_BUILD} --part 1/2", f"{_BUILD} --part 2/2")),
    "part": Kind(f"{_BUILD} --part 2/2", (f"{_BUILD} --part 1/2",)),
    # OUT is an empty folder, perhaps a mount point
    "inside": Kind(_BUILD, is_inside=True, may_leave=_is_no_store),
    "merge": Kind(_MERGE),
    "remerge": Kind(_MERGE, ("subset {work}/a {out} --rows 2,1",)),
    "subset": Kind("subset {work}/a {out} --rows 4,0,3,2 --overwrite"),
    "pull": Kind("pull file://{work}/a {out}"),
    "push": Kind("push {work}/a file://{out}", may_leave=_is_no_store),
    "repush": Kind("push {work}/a file://{out} --overwrite", ("push {work}/b file://{out}",), may_leave=_is_no_store),
    "requantize": Kind(
        "requantize {work}/images {out} -q 5 --workers 2 --max-rejects 1", may_leave=_has_old_or_new_files
    ),
    # the next reader repairs any content
    "cache": Kind(_FETCH, may_leave=lambda *_: True),
}


class Run:
    """A recorded run of a kind: its disk, the content before and after, and the calls that change it.

    inputs: a folder filled by `make_inputs`, which is not changed.
    """

    def __init__(self, name: str, work: Path, inputs: Path) -> None:
        self.kind, self._disk, self._inputs = KINDS[name], work / "disk", work / "inputs"
        shutil.copytree(inputs, self._inputs)
        self._out = self._disk / "out"
        (self._out if self.kind.is_inside else self._disk).mkdir(parents=True)
        if self.kind.is_torn:
            images = self._inputs / "images"
            interrupted(pack, images, self._out, inputs=2, size=32, fit="pad", workers=1, max_rejects=1)
            with open(next(self._disk.rglob("journal")), "ab") as file:
                file.write(b'01234567 {"inputs_stop":4,')
        for line in self.kind.before:
            self._do(line)
        self.before = read_tree(self._disk)
        if self.kind.is_changed:
            for folder in (self._inputs / "images", self._inputs / "splits/images/val"):
                shutil.copy(folder / "ant/1.jpg", folder / "cat/0.jpg")
        self._do(self.kind.line)
        self.after = read_tree(self._disk)
        # with other workers, and on its own disk
        self.shim = Shim(work, self._disk)
        self.spoil()
        self.check_finished()
        self.calls = [call for call in self.shim.calls() if call.name not in ("close", "read")]

    def command(self) -> list[str]:
        """Return the words of the command."""
        return [sys.executable, *self._words(self.kind.line)]

    def lay_out(self, tree: Tree | None = None) -> None:
        """Set the disk to the start of the run, or to what an accident may leave."""
        write_tree(self.before if tree is None else tree, self._disk)

    def spoil(self, **how: Any) -> tuple[int, str]:
        """Run the command from its start, as `Shim.run` does."""
        self.lay_out()
        return self.shim.run(self.command(), **how)

    def cuts(self) -> Iterator[tuple[int, Tree]]:
        """Yield what a power cut after each call may leave, each once."""
        disk, draw, seen = Disk(self._disk, self.before), random.Random(0), set[frozenset[Any]]()
        for at, call in enumerate(self.calls, 1):
            disk.apply(call)
            least, _, everything, *_ = trees = disk.left(draw)
            if call.to.endswith("/manifest.json"):
                assert _journals(least) == _journals(everything), "a power cut loses committed blocks"
            for tree in trees:
                if (key := frozenset(tree.items())) not in seen:
                    seen.add(key)
                    yield at, tree
        assert everything == self.after, "the record misses calls"
        # the names in a cache are not synced: lost files are fetched again
        assert self.kind.line == _FETCH or _seen(least) == _seen(self.after), "a power cut after the end loses OUT"

    def check(self, found: Tree | None = None) -> None:
        """Check that the disk's content, or possible content, is not half a store."""
        seen, before, after = map(_seen, (read_tree(self._disk) if found is None else found, self.before, self.after))
        assert self.kind.may_leave(seen, before, after)

    def go_on(self) -> None:
        """Run the line again; check that it ends with the bytes of an undisturbed run, and leaves nothing else."""
        line = self.kind.line
        self._do(line + (" --workers 1" if "--workers" in line else ""))
        self.check_finished()

    def check_finished(self) -> None:
        """Check that the disk holds the bytes of an undisturbed run, and nothing else."""
        found, after = read_tree(self._disk), self.after
        assert [name for name in found | after if found.get(name, 0) != after.get(name, 0)] == []

    def _words(self, line: str) -> list[str]:
        """Return what python is given for a line."""
        given = line.format(work=self._inputs, out=self._out)
        return ["-c", given] if line == _FETCH else [sizes.__file__, *given.split(), "--quiet"]

    def _do(self, line: str) -> None:
        program, *words = self._words(line)
        if program == "-c":
            exec(*words, {})
        else:
            assert run_command(words) == 0, line


def make_inputs(work: Path) -> None:
    """Draw six images, one of them broken, with boxes and masks, and as splits; and pack two stores of them."""
    samples = [kinds.SAMPLES[number] for number in (1, 3, 5, 8, 11, 13)]
    kinds.KINDS["labels-own-sizes"](work, samples)
    kinds.KINDS["splits"](work / "splits", samples)
    for name in "ab":
        words = f"build {work}/images {work}/{name} {_OPTIONS} --shuffle {ord(name)} --quiet"
        assert run_command(words.split()) == 0


def _seen(found: Tree) -> Tree:
    """Return the files of OUT that a reader sees, without working files."""
    return {
        name.removeprefix("out/"): content
        for name, content in found.items()
        if name.startswith("out/") and content is not None and ".packing" not in Path(name).parts
    }


def _journals(tree: Tree) -> Tree:
    return {name: content for name, content in tree.items() if name.endswith("/journal")}
