"""Our edits of programs, kept as unified diffs without context: the lines that go and the lines that come, and no others.

Those of programs that live in repositories are applied to a copy of a checkout that the caller names, of the commit that they are
made for. Downloads nothing.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
EDITS = HERE / "edits"
# What a program is read with on a store.
WAYS = {"dataset": "MemmapDataset alone", "loader": "MemmapLoader"}
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@.*")


class EditError(ValueError):
    """An edit does not go with the checkout; the text says what was found and what was expected."""


@dataclass(frozen=True)
class Edits:
    """A program that lives in a repository, and our edits of it, a diff for each way.

    Attributes:
        repository: owner/name on GitHub; or a package, whose program is a few lines: the stand-in.
        commit: the one that the edits are made for, or the package's version.
        file: the program, a path in the repository; of a notebook, its code cells.
        ran: what ran on a store: the program itself, or which stand-in and why.
        note: what the edited program lacks of the original, or why it has more lines than nine; "" where nothing.
        words: what it is run with here, {data} for the images or the store; none where it cannot run.
        here: pieces of its files that are written otherwise, in the original too, so that it runs without CUDA or the internet.
        loss: finds the loss in what it prints; the last one counts.
    """

    name: str
    repository: str
    commit: str
    file: str
    ran: str
    note: str = ""
    words: Sequence[str] = ()
    here: dict[str, dict[str, str]] = field(default_factory=dict)
    loss: str = ""

    @classmethod
    def all(cls) -> dict[str, Edits]:
        """Read edits/edits.json."""
        known = json.loads((EDITS / "edits.json").read_text(encoding="ascii"))
        return {name: cls(name, **fields) for name, fields in known.items()}

    def diffs(self) -> dict[str, str]:
        """Return the diff of each way."""
        if "/" in self.repository:
            paths = {way: EDITS / f"{self.name}.{way}.diff" for way in WAYS}
        else:
            paths = {way: HERE / self.name / f"{way}.diff" for way in WAYS}
        return {way: path.read_text(encoding="utf-8") for way, path in paths.items() if path.exists()}

    def apply(self, way: str, checkout: Path, dest: Path) -> None:
        """Copy a checkout to dest, edit it there and compile what was edited; notebooks become programs. "original": no edits.

        Raises:
            EditError: a file is missing, or another one than the edits are made for.
        """
        shutil.copytree(checkout, dest, ignore=shutil.ignore_patterns(".git"))
        diffs = by_file(self.diffs()[way]) if way in WAYS else {}
        for path in {self.file, *diffs, *self.here}:
            file = dest / path
            if not file.is_file():
                raise EditError(f"{checkout} has no {path}. Expected a checkout of {self.repository} at {self.commit}.")
            try:
                text = patched(program_text(file), diffs.get(path, ""))
            except EditError as e:
                raise EditError(
                    f"{checkout / path} is another one than that of {self.repository} at {self.commit}: {e}"
                ) from e
            for before, after in self.here.get(path, {}).items():
                text = text.replace(before, after)
            compile(text, path, "exec")
            file.with_suffix(".py").write_text(text, encoding="utf-8")


def program_text(file: Path) -> str:
    """Read a program; of a notebook, its code cells without those lines that are a shell's."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".ipynb":
        return text
    cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    lines = (line for cell in cells for line in cell.splitlines())
    return "".join(f"{line}\n" for line in lines if not line.startswith(("!", "%")))


def by_file(diff: str) -> dict[str, str]:
    """Split a diff of several files, by the path behind "+++ b/".

    Example:
        >>> by_file("--- a/x.py\\n+++ b/x.py\\n@@ -1 +0,0 @@\\n-a\\n")
        {'x.py': '@@ -1 +0,0 @@\\n-a\\n'}
    """
    parts = re.split(r"^--- a/.*\n\+\+\+ b/(.*)\n", diff, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def patched(text: str, diff: str) -> str:
    """Apply a diff of one file, without its two lines of file names.

    Raises:
        EditError: the lines that it removes are not there.

    Example:
        >>> patched("a\\nb\\nc\\n", "@@ -1,2 +1 @@\\n-a\\n-b\\n+B\\n@@ -3,0 +3 @@\\n+d\\n")
        'B\\nc\\nd\\n'
    """
    lines = text.splitlines()
    hunks = re.split(r"^(?=@@ )", diff, flags=re.M)[1:]
    for hunk in reversed(hunks):
        head, *changes = hunk.splitlines()
        match = _HUNK.fullmatch(head)
        if match is None:
            raise EditError(f"{head!r} is not the head of a hunk, expected such as @@ -3,0 +4 @@.")
        first, count = int(match[1]), int(match[2] or 1)
        # -3,0 adds behind line 3
        start = first - 1 if count else first
        removed = [line[1:] for line in changes if line[0] == "-"]
        if lines[start : start + count] != removed:
            raise EditError(f"line {start + 1} is not {removed[:1]}.")
        lines[start : start + count] = [line[1:] for line in changes if line[0] == "+"]
    return "".join(f"{line}\n" for line in lines)


def changed_lines(diff: str) -> tuple[int, int]:
    """Return how many lines a diff removes and adds.

    Example:
        >>> changed_lines("--- a/x.py\\n+++ b/x.py\\n@@ -2 +2,2 @@\\n-b\\n+B\\n+d\\n")
        (1, 2)
    """
    lines = [line for hunks in by_file(diff).values() for line in hunks.splitlines()]
    return sum(line[0] == "-" for line in lines), sum(line[0] == "+" for line in lines)
