"""A file or folder of a store without read permission: opening the store names it, in one sentence."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from kinds import MakeStore
from rights import modes_hold

from packer import PackError, subset, verify
from packer.cli.app import run
from reader import MemmapDataset, StoreError

WAYS: dict[str, Callable[[Path, Path], object]] = {
    "read": lambda store, _: MemmapDataset(store)[0],
    "verify": lambda store, _: verify(store),
    "subset": lambda store, out: subset(store, out, rows=[0]),
    "info": lambda store, _: run(["info", str(store)]),
    "show": lambda store, out: run(["show", str(store), "--output", str(out.parent / "sheet.png")]),
}


@pytest.mark.parametrize("kind", ["labels-own-sizes", "jpeg", "table"])
@pytest.mark.parametrize("way", WAYS)
def test_what_may_not_be_read_is_named(
    kind: str, way: str, store_of: MakeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Path(shutil.copytree(store_of(kind), tmp_path / "store"))
    for path in (store, *store.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(0)
        try:
            with modes_hold():
                message = refused(lambda: WAYS[way](store, tmp_path / "out"), capsys)
        finally:
            path.chmod(mode)
        if path == store and f"Path '{store}' is not readable" in message:
            continue
        named = re.fullmatch(r"(\S+) cannot be read: Permission denied\. Its owner may allow it.*", message)
        assert named, message
        assert Path(named[1]).is_relative_to(path)


def refused(use: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the message that refuses a store, from an error or a command."""
    try:
        code = use()
    except (StoreError, PackError) as e:
        return str(e)
    assert code
    return capsys.readouterr().err.strip().removeprefix("pack: ")


def test_a_split_that_may_not_be_read_is_named(store_of: MakeStore, tmp_path: Path) -> None:
    out = Path(shutil.copytree(store_of("splits"), tmp_path / "out"))
    uses: list[Callable[[], object]] = [
        lambda: MemmapDataset(out, split="train"),
        lambda: verify(out),
        lambda: subset(out, tmp_path / "copy", fraction=0.5),
    ]
    (out / "train").chmod(0)
    try:
        with modes_hold():
            for use in uses:
                with pytest.raises((StoreError, PackError), match=r"/out/train\S* cannot be read: Permission denied"):
                    use()
    finally:
        (out / "train").chmod(0o755)
