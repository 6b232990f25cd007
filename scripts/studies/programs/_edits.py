"""Our edits of programs, kept as ed scripts, which hold line numbers and our own lines alone.

Those of programs that live in repositories are applied to a copy of a checkout that the caller names, of the commit that they are
made for. Downloads nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

EDITS = Path(__file__).resolve().parent / "edits"
_COMMAND = re.compile(r"(\d+)(?:,(\d+))?([acd])")


class EditError(ValueError):
    """An edit does not go with the checkout; the text says what was found and what was expected."""


@dataclass(frozen=True)
class Edits:
    """The edits of one program.

    Attributes:
        repository: owner/name on GitHub.
        commit: the one that the edits are made for.
        files: path in the repository -> sha256 of the file before.
        without: what the edited program lacks of the original, or why it has more lines than nine; "" where nothing.
    """

    name: str
    repository: str
    commit: str
    files: dict[str, str]
    without: str = ""

    @classmethod
    def all(cls) -> dict[str, Edits]:
        """Read edits/edits.json."""
        known = json.loads((EDITS / "edits.json").read_text(encoding="ascii"))
        return {name: cls(name, **fields) for name, fields in known.items()}

    def scripts(self) -> dict[str, str]:
        """Return the ed script of each file."""
        return {path: (EDITS / self.name / f"{path}.ed").read_text(encoding="ascii") for path in self.files}

    def counts(self) -> tuple[int, int]:
        """Return how many lines are removed and added in all."""
        found = [script_counts(script) for script in self.scripts().values()]
        return sum(removed for removed, _ in found), sum(added for _, added in found)

    def apply(self, checkout: Path, dest: Path) -> None:
        """Copy a checkout to dest, edit it there and compile what was edited.

        Raises:
            EditError: a file is missing, or another one than the edits are made for.
        """
        shutil.copytree(checkout, dest, ignore=shutil.ignore_patterns(".git"))
        for path, script in self.scripts().items():
            file = dest / path
            if not file.is_file():
                raise EditError(f"{checkout} has no {path}. Expected a checkout of {self.repository} at {self.commit}.")
            if hashlib.sha256(file.read_bytes()).hexdigest() != self.files[path]:
                raise EditError(f"{checkout / path} is another one than that of {self.repository} at {self.commit}.")
            edited = edit(file.read_text(encoding="utf-8"), script)
            compile(edited, path, "exec")
            file.write_text(edited, encoding="utf-8")


def edit(text: str, script: str) -> str:
    """Apply an ed script as `diff -e` writes it: from the last line to the first.

    Example:
        >>> edit("a\\nb\\nc\\n", "3a\\nd\\n.\\n1,2c\\nB\\n.\\n")
        'B\\nc\\nd\\n'
    """
    lines = text.splitlines()
    for start, stop, new in _commands(script):
        lines[start:stop] = new
    return "".join(f"{line}\n" for line in lines)


def script_counts(script: str) -> tuple[int, int]:
    """Return how many lines an ed script removes and adds.

    Example:
        >>> script_counts("3a\\nd\\n.\\n1,2c\\nB\\n.\\n")
        (2, 2)
    """
    found = _commands(script)
    return sum(stop - start for start, stop, _ in found), sum(len(new) for _, _, new in found)


def _commands(script: str) -> list[tuple[int, int, list[str]]]:
    """Return (start, stop, new lines) of each command, with half-open ranges of lines from 0."""
    found, rest = [], iter(script.splitlines())
    for line in rest:
        match = _COMMAND.fullmatch(line)
        if match is None:
            raise EditError(f"{line!r} is not a command of an ed script, expected such as 3a or 1,2c.")
        first, last = int(match[1]), int(match[2] or match[1])
        new = [] if match[3] == "d" else list(iter(lambda: next(rest), "."))
        # 3a appends behind line 3
        found.append((first if match[3] == "a" else first - 1, last, new))
    return found
