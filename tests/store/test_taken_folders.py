"""OUT, or where it is made, is renamed or removed meanwhile, and another pack finishes a store there: that store stays as it is.

The command ends with one sentence, and what it did stays where it was moved.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import interrupted, make_tree, store_bytes, tuned

from packer import PackError, merge, pack, pull, push, seal_parts, subset, update
from packer.report import Progress

SENTENCE = (
    r"^\S*/out(\.packing)? was renamed, removed or replaced while this command worked on it\. Nothing there was changed\."
    r" Move the folder back, or choose another, and give the command again\.$"
)
Seen = Callable[..., None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trees of images, a store of each, the first at a URL too; a pack and parts that are not finished. 2 inputs a block."""
    root = tmp_path_factory.mktemp("taken")
    make_tree(root / "images")
    make_tree(root / "more", classes=2, each=6, size=(50, 70))
    with tuned(least_block_inputs=2):
        pack(root / "images", root / "mine", size=32, workers=1)
        pack(root / "more", root / "theirs", size=16, workers=1)
        push(root / "mine", (root / "url").as_uri())
        interrupted(pack, root / "images", root / "begun", size=32, workers=1)
        for part in ("1/2", "2/2"):
            pack(root / "images", root / "parts", size=32, workers=1, part=part)
    return root


def _packs(**options: Any) -> Callable[[Path, Path, Seen], object]:
    return lambda made, out, seen: pack(made / "images", out, size=32, workers=1, progress=seen, **options)


# What OUT, or where it is made, is a copy of before, and what is run.
COMMANDS: dict[str, tuple[str, Callable[[Path, Path, Seen], object]]] = {
    "pack": ("", _packs()),
    "pack, continued": ("begun.packing", _packs()),
    "pack --overwrite": ("mine", _packs(overwrite=True)),
    "pack --part": ("", _packs(part="1/1")),
    "update": ("mine", lambda made, out, seen: update(made / "images", out, workers=1, progress=seen)),
    "seal": ("parts.packing", lambda made, out, seen: seal_parts(out, progress=seen)),
    "merge": ("", lambda made, out, seen: merge([made / "mine"] * 2, out, progress=seen)),
    "subset --overwrite": (
        "mine",
        lambda made, out, seen: subset(made / "mine", out, rows=range(24), overwrite=True, progress=seen),
    ),
    "pull": (
        "",
        lambda made, out, seen: pull(
            (made / "url").as_uri(), out, progress=lambda done, total: seen(Progress("copy", done * 24 // total, 24))
        ),
    ),
}
# At which reports OUT is taken: as the work begins, in the middle, before the seal; and as the manifest is written.
MOMENTS = (
    {"pack": 2, "copy": 1, "seal": 0},
    {"pack": 14, "copy": 12, "seal": 12},
    {"seal": 0, "copy": 24},
    {},
)
TABLE = [
    (name, moment) for name in COMMANDS for moment in range(3) if moment < 2 or name not in ("seal", "pack --part")
]


def _run(name: str, moment: int, made: Path, out: Path, take: Callable[[], object]) -> str:
    """Run a command whose OUT is taken at a moment; returns what it ends with."""
    (before, command), taken, replace = COMMANDS[name], list[bool](), os.replace

    def seen(report: Progress) -> None:
        if not taken and report.done >= MOMENTS[moment].get(report.stage, 1 << 60):
            taken.append(True)
            take()

    def write_manifest(source: Path, target: Path) -> None:
        replace(source, target)
        if moment == 3 and target.name == "manifest.json":
            taken.append(True)
            take()

    if before:
        shutil.copytree(made / before, out if before == "mine" else out.with_name("out.packing"))
    with tuned(least_block_inputs=2), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", write_manifest)
        with pytest.raises(PackError) as caught:
            command(made, out, seen)
    assert taken
    return str(caught.value)


WAYS = [(name, moment, how) for name, moment in TABLE for how in ("renamed", "removed")]
# beside a stage that stays, where none was; and a stage that is gone
WAYS += [(name, 2 if (name, 2) in TABLE else 1, "appears") for name in COMMANDS]
WAYS += [(name, 1, "gone") for name in COMMANDS]
WAYS += [(name, 3, "renamed") for name in COMMANDS if name != "pack --part"]


@pytest.mark.parametrize(("name", "moment", "how"), WAYS)
def test_what_is_where_out_was_or_where_it_is_made_is_left_as_it_is(
    name: str, moment: int, how: str, made: Path, tmp_path: Path
) -> None:
    """The store of another command, or nothing."""
    out, stage, inodes = tmp_path / "out", tmp_path / "out.packing", list[dict[str, int]]()

    def inode_numbers() -> dict[str, int]:
        return {str(path): path.stat().st_ino for path in tmp_path.glob("out/**/*")}

    def take() -> None:
        taken = stage if how == "gone" or not (out.exists() or how == "appears") else out
        if how in ("removed", "gone"):
            shutil.rmtree(taken)
        elif taken.exists():
            taken.rename(tmp_path / "out.old")
        if how != "gone":
            shutil.copytree(made / "theirs", out)
        inodes.append(inode_numbers())

    error = _run(name, moment, made, out, take)
    assert re.match(SENTENCE, error), error
    assert inode_numbers() == inodes[0]
    if how == "gone":
        assert not stage.exists()
        assert out.exists() == (COMMANDS[name][0] == "mine")
    else:
        assert store_bytes(out) == store_bytes(made / "theirs")
