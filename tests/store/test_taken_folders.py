"""OUT, or where it is made, is renamed or removed meanwhile, and another pack finishes a store there: that store stays as it is.

The command ends with one sentence, and what it did stays where it was moved.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import PACK, Tune, interrupted, make_tree, photo, store_bytes, tuned

from packer import PackError, merge, pack, pull, push, seal_parts, subset, update, verify
from packer.report import Progress

SENTENCE = (
    r"^\S*/out(\.packing)? was renamed, removed or replaced while this command worked on it, and what is there now was left as it"
    r" is\."
    r" Move the folder back, or choose another, and give the command again\.$"
)
Seen = Callable[..., None]


@dataclass(frozen=True)
class Folders:
    """What the commands are given: two trees of images, a store of the first, and what others left half done."""

    images: Path
    more_images: Path
    mine: Path
    theirs: Path
    url: Path
    interrupted_pack: Path
    parts: Path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Make them once, with 2 inputs a block."""
    root = tmp_path_factory.mktemp("taken")
    made = Folders(*(root / name for name in ("images", "more", "mine", "theirs", "url", "interrupted", "parts")))
    make_tree(made.images)
    make_tree(made.more_images, classes=2, each=6, size=(50, 70))
    with tuned(least_block_inputs=2):
        pack(made.images, made.mine, size=32, workers=1)
        pack(made.more_images, made.theirs, size=16, workers=1)
        push(made.mine, made.url.as_uri())
        interrupted(pack, made.images, made.interrupted_pack, size=32, workers=1)
        for part in ("1/2", "2/2"):
            pack(made.images, made.parts, size=32, workers=1, part=part)
    return made


@dataclass(frozen=True)
class Command:
    """A command: the folder that OUT, or where it is made, is a copy of before, how it is run, and the moments to take that."""

    before: str
    run: Callable[[Folders, Path, Seen], object]
    moments: dict[str, Callable[..., bool]]


def _stage(stage: str, done: int = 0) -> Callable[[Progress], bool]:
    return lambda progress: progress.stage == stage and progress.done >= done


def _packs(before: str = "", **options: Any) -> Command:
    def run(folders: Folders, out: Path, seen: Seen) -> object:
        return pack(folders.images, out, size=32, workers=1, progress=seen, **options)

    return Command(before, run, PACKING)


PACKING = {"before a block": _stage("allocate"), "in the middle": _stage("pack", 14), "before the seal": _stage("seal")}
COPYING = {
    "before a block": _stage("allocate"),
    "in the middle": _stage("copy", 12),
    "before the seal": _stage("copy", 24),
}
SEALING = {"before a block": _stage("seal"), "in the middle": _stage("seal", 12)}
PULLING: dict[str, Callable[..., bool]] = {
    "before a block": lambda done, total: done > 0,
    "in the middle": lambda done, total: done > total // 2,
    "before the seal": lambda done, total: done == total,
}
COMMANDS = {
    "pack": _packs(),
    "pack, continued": _packs("interrupted_pack"),
    "pack --overwrite": _packs("mine", overwrite=True),
    "pack --part": Command(
        "",
        lambda folders, out, seen: pack(folders.images, out, size=32, workers=1, progress=seen, part="1/1"),
        {name: PACKING[name] for name in ("before a block", "in the middle")},
    ),
    "update": Command(
        "mine", lambda folders, out, seen: update(folders.images, out, workers=1, progress=seen), PACKING
    ),
    "seal": Command("parts", lambda folders, out, seen: seal_parts(out, progress=seen), SEALING),
    "merge": Command("", lambda folders, out, seen: merge([folders.mine] * 2, out, progress=seen), COPYING),
    "merge --overwrite": Command(
        "mine", lambda folders, out, seen: merge([folders.mine] * 2, out, overwrite=True, progress=seen), COPYING
    ),
    "subset": Command("", lambda folders, out, seen: subset(folders.mine, out, fraction=1, progress=seen), COPYING),
    "subset --overwrite": Command(
        "mine",
        lambda folders, out, seen: subset(folders.mine, out, rows=range(24), overwrite=True, progress=seen),
        COPYING,
    ),
    "pull": Command("", lambda folders, out, seen: pull(folders.url.as_uri(), out, progress=seen), PULLING),
}
TABLE = [(name, moment) for name, command in COMMANDS.items() for moment in command.moments]


def _run(name: str, moment: str, folders: Folders, out: Path, take: Callable[[], object]) -> str:
    """Run a command whose OUT is taken at a moment; returns what it ends with."""
    command = COMMANDS[name]
    taken: list[bool] = []

    def seen(*report: Any) -> None:
        if not taken and command.moments[moment](*report):
            taken.append(True)
            take()

    if command.before == "mine":
        shutil.copytree(folders.mine, out)
    elif command.before:
        begun = getattr(folders, command.before)
        shutil.copytree(begun.with_name(f"{begun.name}.packing"), out.with_name("out.packing"))
    with tuned(least_block_inputs=2), pytest.raises(PackError) as caught:
        command.run(folders, out, seen)
    assert taken
    return str(caught.value)


@pytest.mark.parametrize("is_removed", [False, True], ids=["renamed", "removed"])
@pytest.mark.parametrize(("name", "moment"), TABLE)
def test_the_store_that_another_made_where_out_was_is_left_as_it_is(
    name: str, moment: str, is_removed: bool, folders: Folders, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    inodes: list[dict[str, int]] = []

    def inode_numbers() -> dict[str, int]:
        return {str(path): path.stat().st_ino for path in out.rglob("*")}

    def take() -> None:
        taken = out if out.exists() else tmp_path / "out.packing"
        shutil.rmtree(taken) if is_removed else taken.rename(tmp_path / "out.old")
        shutil.copytree(folders.theirs, out)
        inodes.append(inode_numbers())

    error = _run(name, moment, folders, out, take)
    assert store_bytes(out) == store_bytes(folders.theirs)
    assert inode_numbers() == inodes[0]
    assert re.match(SENTENCE, error), error


@pytest.mark.parametrize("name", COMMANDS)
def test_a_store_that_appears_where_none_was_is_left_as_it_is(name: str, folders: Folders, tmp_path: Path) -> None:
    out, last = tmp_path / "out", [*COMMANDS[name].moments][-1]

    def appear() -> None:
        if out.exists():
            out.rename(tmp_path / "out.old")
        shutil.copytree(folders.theirs, out)

    error = _run(name, last, folders, out, appear)
    assert store_bytes(out) == store_bytes(folders.theirs)
    assert re.match(SENTENCE, error), error


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_that_was_removed_is_not_made_again(name: str, folders: Folders, tmp_path: Path) -> None:
    out, stage = tmp_path / "out", tmp_path / "out.packing"

    def remove() -> None:
        shutil.rmtree(stage)

    error = _run(name, "in the middle", folders, out, remove)
    assert not stage.exists()
    assert re.match(SENTENCE, error), error
    assert out.exists() == (COMMANDS[name].before == "mine")


def test_a_working_folder_that_is_taken_leaves_the_store_that_was_to_be_replaced(
    folders: Folders, tmp_path: Path
) -> None:
    out, beside = tmp_path / "out", tmp_path / "out.packing"
    error = _run("pack --overwrite", "in the middle", folders, out, lambda: beside.rename(tmp_path / "elsewhere"))
    assert f"{beside} was renamed, removed or replaced" in error
    assert store_bytes(out) == store_bytes(folders.mine)
    assert not beside.exists()


def test_of_two_commands_the_one_whose_folder_was_renamed_ends_with_one_line_and_can_be_resumed(
    folders: Folders, tmp_path: Path, tune: Tune
) -> None:
    tune(least_block_inputs=2)
    images, out, moved = tmp_path / "images", tmp_path / "out", tmp_path / "moved.packing"
    stage = tmp_path / "out.packing"
    images.mkdir()
    photo(1600, 1200, 7).save(images / "0.jpg")
    for number in range(1, 60):
        os.link(images / "0.jpg", images / f"{number}.jpg")
    words = [*PACK, str(images), str(out), "--size", "32", "--workers", "1"]
    first = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    journal = stage / ".packing/journal"
    while not journal.exists() or len(journal.read_bytes().splitlines()) < 4:
        assert first.poll() is None
        time.sleep(0.001)
    os.killpg(first.pid, signal.SIGSTOP)
    stage.rename(moved)
    others = [*PACK, str(folders.more_images), str(out), "--size", "16", "--quiet"]
    second = subprocess.run(others, check=False, timeout=300)
    os.killpg(first.pid, signal.SIGCONT)
    _, errors = first.communicate(timeout=300)
    assert (second.returncode, first.returncode) == (0, 1)
    assert re.match(SENTENCE.replace("^", "^pack: "), errors.splitlines()[-1]), errors
    assert "Traceback" not in errors
    assert store_bytes(out) == store_bytes(folders.theirs)
    assert verify(out).problems == []
    out.rename(tmp_path / "theirs")
    moved.rename(stage)
    assert subprocess.run([*words, "--quiet"], check=False, timeout=300).returncode == 0
    pack(images, tmp_path / "fresh", size=32, workers=1)
    assert store_bytes(out) == store_bytes(tmp_path / "fresh")
