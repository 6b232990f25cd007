"""The faults of hostile stores that have a level, by name; see `_faults`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reader.format.manifest import PIXELS, SAMPLES
from tests.hostile._stores import LEVEL, LEVEL_KINDS, OFFSETS, SHAPES, TARGETS, Draft, Fault

_EQUAL, _OWN = LEVEL_KINDS


def _set(key: str, value: Any) -> Fault:
    return Fault(_EQUAL, lambda draft: draft.head.__setitem__(key, value), "opening")


def _level(change: Callable[[Draft], object], says: str = "opening", kind: str = _EQUAL) -> Fault:
    """Change the level alone, and seal it."""

    def put(draft: Draft) -> None:
        level = Draft.open(draft.out / LEVEL)
        change(level)
        level.seal()

    return Fault(kind, put, says)


def _link(out: Path) -> None:
    (out / LEVEL).rename(out / "elsewhere")
    (out / LEVEL).symlink_to(out / "elsewhere")


def _flip(draft: Draft) -> None:
    pixels = draft.read(PIXELS)
    draft.write(PIXELS, bytes([pixels[0] ^ 1]) + pixels[1:])


def _of_other_sides(draft: Draft) -> None:
    """Have the level's rows the bytes that they had, as 2 x 8."""
    draft.head.update(height=2, width=8, content=False)
    draft.head["files"].pop("_tensordict/content.memmap")
    (draft.out / "_tensordict/content.memmap").unlink()


LEVEL_FAULTS: dict[str, Fault] = {
    # what the manifest of the store says
    "levels is a number": _set("levels", 2),
    "levels is a quarter alone": _set("levels", [4]),
    "levels has one twice": _set("levels", [2, 2]),
    "levels has one that is not there": _set("levels", [2, 4]),
    "levels is absent": Fault(_EQUAL, lambda draft: draft.head.pop("levels"), "opening"),
    "levels without the feature": _set("reader_features", []),
    "the feature levels without levels": Fault(
        "class", lambda draft: draft.head.update(reader_features=["levels"]), "opening"
    ),
    "files lacks one of a level": Fault(_EQUAL, lambda draft: draft.head["files"].pop(f"{LEVEL}/{SAMPLES}"), "opening"),
    "options.levels is a text": Fault(_EQUAL, lambda draft: draft.head["options"].update(levels="2"), "opening"),
    # what that of the level says
    "a level has a version of its own": _level(lambda level: level.head.update(version=[2, 0])),
    "a level has levels": _level(lambda level: level.head.update(levels=[2], reader_features=["levels"])),
    "a level has other sides": _level(_of_other_sides),
    "a store has fewer lines than its level": Fault(_OWN, lambda draft: draft.head.update(height=3), "opening"),
    "a level has other rejects": _level(lambda level: level.head.update(rejected=2, inputs=level.head["rows"] + 2)),
    "a level's rows are a text": _level(lambda level: level.head.update(rows="14")),
    "a level has fewer blocks": _level(lambda level: level.blocks.pop(), "verify"),
    # its files
    "a level has other pixels": _level(_flip, "verify"),
    "a target of a level is 3": _level(lambda level: level.patch(TARGETS, "q", 5, 3), "verify"),
    "a row of a level is of another image": _level(
        lambda level: level.line(SAMPLES, 3, lambda line: line | {"path": "a/other.jpg"}), "verify"
    ),
    "an offset in a level is 2^62": _level(lambda level: level.patch(OFFSETS, "q", 3, 1 << 62), "verify", _OWN),
    "a shape in a level exceeds it": _level(lambda level: level.patch(SHAPES, "i", 9, 1 << 20), "verify", _OWN),
    "a level is a link": Fault(_EQUAL, lambda draft: None, "opening", _link),
    "a level is not there": Fault(_EQUAL, lambda draft: None, "opening", lambda out: shutil.rmtree(out / LEVEL)),
    "other.pickle in a level": Fault(
        _EQUAL, lambda draft: None, "opening", lambda out: (out / LEVEL / "other.pickle").write_bytes(b"")
    ),
}
