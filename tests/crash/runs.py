"""What changes files as one table, commands and a reader with a cache; each on a folder that stands for a disk and holds OUT.

Knows how to bring a disk to where such a run starts, what may be left of it, and how to continue after an accident.
"""

from __future__ import annotations

import contextlib
import gc
import io
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sizes
from conftest import interrupted, make_tree
from PIL import Image

from packer import pack
from packer.cli.app import run as run_command
from reader import MemmapDataset
from reader.format.manifest import MANIFEST

_OUT = "out"
# pad: so that the store has a content.memmap too
_OPTIONS = "--size 32 --fit pad --workers 2 --max-rejects 50%"
_BUILD = f"build {{work}}/images {{out}} {_OPTIONS}"
_SPLITS = f"build {{work}}/splits {{out}} {_OPTIONS}"


@dataclass(frozen=True)
class Kind:
    """A line of the command; the lines before it whose result the disk holds.

    is_torn: it was interrupted before, within a line of its journal. is_changed: an image is replaced in between. is_copy: of
    stores, not of images; the line again needs --overwrite. is_filled: files come to where they stay, the manifest last.
    is_inside: OUT is a folder before. is_files: it makes files, no store. is_cache: no command, a reader with OUT as its cache.
    """

    line: str
    before: tuple[str, ...] = ()
    is_torn: bool = False
    is_changed: bool = False
    is_copy: bool = False
    is_filled: bool = False
    is_inside: bool = False
    is_files: bool = False
    is_cache: bool = False


KINDS = {
    "new": Kind(_BUILD),
    "continued": Kind(_BUILD, is_torn=True),
    "overwrite": Kind(f"{_BUILD} --overwrite", (_BUILD,), is_changed=True),
    "update": Kind("update {work}/images {out} --workers 2 --max-rejects 50%", (_BUILD,), is_changed=True),
    "splits": Kind(_SPLITS),
    "resplit": Kind(f"{_SPLITS} --overwrite", (_SPLITS,), is_changed=True),
    "labelled": Kind(f"{_BUILD} --boxes {{work}}/boxes --masks {{work}}/masks"),
    "own sizes": Kind("build {work}/images {out} --fit none --workers 2 --max-rejects 50%"),
    "jpeg": Kind(f"{_BUILD} --compress=90"),
    "seal": Kind("seal {out}", (f"{_BUILD} --part 1/2", f"{_BUILD} --part 2/2")),
    "part": Kind(f"{_BUILD} --part 2/2", (f"{_BUILD} --part 1/2",)),
    # where OUT is an empty folder, a mount point perhaps
    "inside": Kind(_BUILD, is_filled=True, is_inside=True),
    "merge": Kind("merge {work}/a {work}/b {out}", is_copy=True),
    "remerge": Kind("merge {work}/a {work}/b {out} --overwrite", ("subset {work}/a {out} --rows 2,1",), is_copy=True),
    "subset": Kind("subset {work}/a {out} --rows 4,0,3,2", is_copy=True),
    "pull": Kind("pull file://{work}/a {out}"),
    "push": Kind("push {work}/a file://{out}", is_filled=True),
    "repush": Kind("push {work}/a file://{out} --overwrite", ("push {work}/b file://{out}",), is_filled=True),
    "requantize": Kind("requantize {work}/images {out} -q 5 --workers 2 --max-rejects 50%", is_files=True),
    "cache": Kind("file://{work}/a {out}", is_cache=True),
}
COMMANDS = [name for name, kind in KINDS.items() if not kind.is_cache]
# push syncs nothing: what is at a URL is whole when the command ends, not when the power goes
SYNCED = [name for name in KINDS if "push" not in name]
# what a reader has its fetcher do, without torch
_FETCH = (
    "import sys; from reader.remote.fetcher import Fetcher; fetcher = Fetcher()\n"
    "fetcher.open([*sys.argv[1:], None, '']); fetcher.fetch([0, 1, 2])"
)


class Run:
    """One run of a kind: its disk, what that holds before and after an undisturbed run, and its command.

    inputs: a folder that `make_inputs` has filled; it stays as it is.
    """

    def __init__(self, name: str, work: Path, inputs: Path) -> None:
        self.kind, self.disk, self._inputs, self._start = KINDS[name], work / "disk", inputs, work / "start"
        if self.kind.is_changed:
            self._inputs = Path(shutil.copytree(inputs, work / "inputs"))
        (self.out if self.kind.is_inside else self.disk).mkdir(parents=True)
        if self.kind.is_torn:
            options: dict[str, Any] = {"size": 32, "fit": "pad", "workers": 1, "max_rejects": "50%"}
            interrupted(pack, inputs / "images", self.out, inputs=2, **options)
            with open(next(self.disk.rglob("journal")), "ab") as file:
                file.write(b'01234567 {"inputs_stop":4,')
        for line in self.kind.before:
            self._do(line)
        shutil.copytree(self.disk, self._start)
        if self.kind.is_changed:
            for folder in (self._inputs / "images", self._inputs / "splits/val"):
                shutil.copy(folder / "class0/000.jpg", folder / "class2/001.jpg")
        self._do(self.kind.line)
        self.before, self.after = files(self._start), files(self.disk)
        # by other workers, and on a disk of its own
        self.lay_out()

    @property
    def out(self) -> Path:
        return self.disk / _OUT

    def found(self) -> dict[str, bytes]:
        """Read what the disk holds."""
        return files(self.disk)

    def command(self) -> list[str]:
        """Return the words of the command."""
        program = ["-c", _FETCH] if self.kind.is_cache else [sizes.__file__]
        return [sys.executable, *program, *self._words(self.kind.line)]

    def lay_out(self) -> None:
        """Bring the disk to where the run starts."""
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.copytree(self._start, self.disk)

    def problem(self, found: Mapping[str, bytes]) -> str:
        """Return what is wrong with the files of a disk on which the run has ended early; "": nothing.

        OUT is what it was before, or finished, or not there. A cache may hold anything that the next reader repairs.
        """
        seen, before, after = (self._seen(content) for content in (found, self.before, self.after))
        if self.kind.is_cache or seen in (before, after):
            return ""
        if self.kind.is_filled:
            # a manifest that was cut short is none: its digest is missing
            is_whole = seen.get(MANIFEST, b"") in (before.get(MANIFEST), after[MANIFEST])
            return "what is unfinished has its manifest" if is_whole else ""
        if self.kind.is_files:
            mixed = [name for name, content in seen.items() if content not in (before.get(name), after.get(name))]
            mixed = [name for name in mixed if not name.endswith((".tmp", ".part"))]
            return f"neither old nor new: {mixed}" if mixed else ""
        if seen:
            return f"OUT is neither the old one nor the new one: {difference(seen, after)}"
        return "the old OUT is gone, and the new one not there" if before else ""

    def is_new(self, found: Mapping[str, bytes]) -> bool:
        """Whether OUT is what an undisturbed run leaves."""
        return self._seen(found) == self._seen(self.after)

    def go_on(self) -> None:
        """Give the line again; see that it ends with the bytes of an undisturbed run, and leaves nothing else."""
        line = self.kind.line
        if self.kind.is_copy and any(self.disk.rglob(MANIFEST)) and "--overwrite" not in line:
            line += " --overwrite"
        self._do(line + (" --workers 1" if "--workers" in line else ""))
        self.check_finished()

    def check_finished(self) -> None:
        """See that the disk holds the bytes of an undisturbed run, and nothing else."""
        found = files(self.disk)
        assert found == self.after, f"these differ: {difference(found, self.after)}"

    def _seen(self, found: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the files of OUT that a reader sees: not those with which it is made."""
        inside = {name: content for name, content in found.items() if name.startswith(f"{_OUT}/")}
        return {
            name.removeprefix(f"{_OUT}/"): content
            for name, content in inside.items()
            if ".packing" not in Path(name).parts
        }

    def _words(self, line: str) -> list[str]:
        return (line if self.kind.is_cache else f"{line} --quiet").format(work=self._inputs, out=self.out).split()

    def _do(self, line: str) -> None:
        if self.kind.is_cache:
            url, cache = self._words(line)
            MemmapDataset(url, cache=cache)[:]
            # a fetcher ends with its dataset
            gc.collect()
            return
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code = run_command(self._words(line))
        if code:
            raise AssertionError(f"{line} exits with {code}: {errors.getvalue()}")


def make_inputs(work: Path) -> None:
    """Draw images, one of them broken, as a folder and as splits; a box and a mask for each; and two stores of them."""
    make_tree(work / "images", each=2)
    (work / "images/class1/001.jpg").write_text("broken")
    for split in ("train", "val"):
        shutil.copytree(work / "images", work / "splits" / split)
    for path in (work / "images").rglob("*.jpg"):
        label, mask = (work / name / path.relative_to(work / "images") for name in ("boxes", "masks"))
        for folder in (label.parent, mask.parent):
            folder.mkdir(parents=True, exist_ok=True)
        label.with_suffix(".txt").write_text("0 0.5 0.5 0.5 0.5")
        size = (1, 1)
        with contextlib.suppress(OSError), Image.open(path) as image:
            size = image.size
        Image.new("L", size, 7).save(mask.with_suffix(".png"))
    for name in "ab":
        words = f"build {work}/images {work}/{name} {_OPTIONS} --shuffle {ord(name)} --quiet"
        assert run_command(words.split()) == 0


def files(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder: relative path -> bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def difference(found: Mapping[str, object], expected: Mapping[str, object]) -> str:
    """Name the files in which two folders differ."""
    return ", ".join(sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)))
