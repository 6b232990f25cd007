"""A store that is replaced while it is pushed: the URL never holds a manifest over the pixels of another store."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Tune, make_tree, store_bytes

from packer import PackError, pack, pull, push, verify
from packer.cli.app import run
from reader import MemmapDataset
from reader.format.errors import StoreError


def _replaced(root: Path) -> None:
    (root / "out").rename(root / "out.old")
    shutil.copytree(root / "other", root / "out")


def _removed(root: Path) -> None:
    shutil.rmtree(root / "out")


@pytest.fixture
def root(tmp_path: Path, tune: Tune) -> Path:
    """The store out, and another of images of the same names and sizes, so that all files but one are as large."""
    tune(least_block_inputs=2)
    pack(make_tree(tmp_path / "images", classes=2, each=4), tmp_path / "out", size=32, workers=1)
    make_tree(tmp_path / "more", classes=2, each=4, size=(90, 70))
    pack(tmp_path / "more", tmp_path / "other", size=32, workers=1)
    return tmp_path


@pytest.mark.parametrize("holds_other", [False, True], ids=["free", "replaced at the URL"])
@pytest.mark.parametrize("change", [_replaced, _removed])
def test_a_store_that_is_replaced_while_it_is_pushed_is_not_committed(
    change: Callable[[Path], None], holds_other: bool, root: Path
) -> None:
    url, changed = f"file://{root}/far", []
    if holds_other:
        pack(root / "images", root / "before", size=16, workers=1)
        push(root / "before", url)

    def progress(done: int, total: int) -> None:
        if not changed:
            changed.append(True)
            change(root)

    with pytest.raises((PackError, FileNotFoundError), match=r"is damaged|No such file"):
        push(root / "out", url, overwrite=holds_other, progress=progress)
    assert changed
    # found before anything is sent, it leaves the other where it was
    with contextlib.nullcontext() if holds_other else pytest.raises(StoreError):
        assert (
            MemmapDataset(url, cache=root / "cache").manifest.digest == MemmapDataset(root / "before").manifest.digest
        )
    if not (root / "out").exists():
        return
    assert run(["push", str(root / "out"), url, "--overwrite"]) == 0
    pull(url, root / "back")
    assert store_bytes(root / "back") == store_bytes(root / "out")
    assert verify(root / "back").problems == []


@pytest.mark.parametrize("change", [_replaced, _removed])
def test_a_store_that_is_replaced_once_all_its_files_are_sent_is_committed_as_it_was(
    change: Callable[[Path], None], root: Path
) -> None:
    url, before = f"file://{root}/far", store_bytes(root / "out")

    def progress(done: int, total: int) -> None:
        if done == total:
            change(root)

    push(root / "out", url, progress=progress)
    pull(url, root / "back")
    assert store_bytes(root / "back") == before
    assert verify(root / "back").problems == []
