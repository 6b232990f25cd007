"""When a store replaces another: not with more rejects than allowed, and those of splits together or not at all."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Tune, make_splits, make_tree, photo, store_bytes
from kinds import spread
from test_update import no_decoder

import reader.format.check
import reader.format.manifest
from packer import LockedError, PackError, PackReport, merge, pack, update
from packer.cli.app import run
from packer.operations.copying import copy_rows
from packer.operations.info import describe
from packer.operations.verify import verify
from packer.packing import build
from packer.store import swap
from packer.store.lock import Lock
from reader import IncompleteStoreError, MemmapDataset
from reader.format.splits import read_swapping

# Packs as the command does, and dies by SIGKILL once it has changed so many names.
DIES = """
import os, signal, sys
from packer.store import swap
from packer.cli.app import run
take_name, left = swap._take_name, [int(sys.argv[1])]
def counted(folder):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return take_name(folder)
swap._take_name = counted
sys.exit(run(sys.argv[2:]))
"""


def break_some(folder: Path, count: int) -> None:
    for path in sorted(folder.rglob("*.jpg"))[:count]:
        path.write_bytes(b"broken")


def ask(way: str, images: Path, out: Path, **options: Any) -> PackReport:
    """Pack or update; an update takes the size from the store."""
    if way == "update":
        return update(images, out, **options)
    return pack(images, out, size=32, **options, **({} if options.get("resume") else {"overwrite": True}))


# -- more rejects than allowed


@pytest.mark.parametrize("way", ["overwrite", "update"])
def test_more_rejects_than_allowed_leave_the_old_store_and_a_resume_accepts_the_new_one(
    way: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    pack(images, out, size=32)
    before = store_bytes(out)
    break_some(images, 5)
    report = ask(way, images, out, max_rejects=4)
    assert (report.too_many_rejects, report.is_in_place, report.rows, report.rejected) == (True, False, 19, 5)
    assert store_bytes(out) == before
    no_decoder(monkeypatch)
    again = ask(way, images, out, max_rejects=4, resume=True)
    assert (again.too_many_rejects, again.is_in_place, again.resumed_from) == (True, False, 24)
    assert store_bytes(out) == before
    report = ask(way, images, out, max_rejects=5, resume=True)
    assert (report.too_many_rejects, report.is_in_place, report.rows, report.resumed_from) == (False, True, 19, 24)
    monkeypatch.undo()
    pack(images, tmp_path / "fresh", size=32, max_rejects=5)
    assert store_bytes(out) == store_bytes(tmp_path / "fresh")
    assert sorted(os.listdir(tmp_path)) == ["fresh", "images", "out"]


def test_the_command_says_which_store_stays_and_how_to_accept_the_new_one(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    pack(images, out, size=32)
    break_some(images, 5)
    words = ["update", str(images), str(out)]
    for resume in ([], ["--resume"]):
        assert run([*words, *resume]) == 3
        printed = capsys.readouterr()
        assert printed.err == (
            f"pack: 5 of 24 inputs were rejected, more than --max-rejects 1%. {out} still holds the old store,"
            " usable as before. To replace it by the new one, decoding nothing again: the same command with --resume"
            " --max-rejects 5\n"
        )
        assert f"{out}: " not in printed.out
        assert "rejected 5 (see rejected.jsonl of the new store, beside OUT):\n       5 x " in printed.out
    assert len(MemmapDataset(out)) == 24
    assert run([*words, "--resume", "--max-rejects", "5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["is_in_place"], report["rows"], report["kept"]) == (True, 19, 19)
    assert len(MemmapDataset(out)) == 19


@pytest.mark.parametrize("way", spread(["update", "overwrite"]))
def test_more_rejects_than_allowed_in_one_split_leave_all_of_them(way: str, splits: Path, tmp_path: Path) -> None:
    before = store_bytes(tmp_path / "out")
    break_some(splits / "val", 3)
    report = ask(way, splits, tmp_path / "out", max_rejects=2)
    assert (report.too_many_rejects, report.is_in_place) == (True, False)
    assert store_bytes(tmp_path / "out" / "train") == {
        name.removeprefix("train/"): content for name, content in before.items() if name.startswith("train/")
    }
    assert len(MemmapDataset(tmp_path / "out" / "val")) == 12
    report = ask(way, splits, tmp_path / "out", max_rejects=3, resume=True)
    assert {name: part.rows for name, part in report.splits.items()} == {"train": 13, "val": 10}
    pack(splits, tmp_path / "fresh", size=32, max_rejects=3)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "fresh")


def test_a_pack_that_replaces_nothing_is_there_with_its_rejects_as_before(images: Path, tmp_path: Path) -> None:
    break_some(images, 5)
    report = pack(images, tmp_path / "out", size=32)
    assert (report.too_many_rejects, report.is_in_place) == (True, True)
    assert len(MemmapDataset(tmp_path / "out")) == 19


# -- splits


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    """Train and val, packed into out; then each has one image more, and train another class list than before."""
    make_splits(tmp_path / "images", ("train", "val"), each=4)
    pack(tmp_path / "images", tmp_path / "out", size=32)
    for split in ("train", "val"):
        photo(40, 40, 5).save(tmp_path / "images" / split / "class2" / "new.jpg")
    return tmp_path / "images"


def killed(way: str, names: int, images: Path, out: Path) -> None:
    """Have a pack die by SIGKILL when it has changed so many names."""
    words = ["update", images, out] if way == "update" else [images, out, "--size", "32", "--overwrite"]
    done = subprocess.run([sys.executable, "-c", DIES, str(names), *map(str, words)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def opened(out: Path) -> set[int]:
    """Return how many rows the splits have that can be opened, which is 12 before and 13 after."""
    rows = set()
    for split in sorted(path for path in out.iterdir() if not path.name.startswith(".")):
        try:
            rows.add(len(MemmapDataset(split)))
        except IncompleteStoreError:
            with pytest.raises(
                IncompleteStoreError, match=r"half replaced: .* do not belong together. Finish it: pack "
            ):
                verify(split)
    return rows


@pytest.mark.skipif(os.name == "nt", reason="kills")
@pytest.mark.parametrize(
    ("way", "names", "exchanges"), spread(["overwrite", "update"], [1, 0], [False, True], every=4, first=1)
)
def test_killed_between_the_names_of_two_splits_neither_is_opened_and_any_pack_command_finishes(
    way: str, names: int, exchanges: bool, splits: Path, tmp_path: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    pack(splits, tmp_path / "fresh", size=32)
    if not exchanges:
        script = DIES.replace("take_name, left =", "swap._exchange = lambda *_: False\ntake_name, left =")
        monkeypatch.setattr(sys.modules[__name__], "DIES", script)
    tune(half_swap_seconds=0)
    killed(way, names, splits, out)
    assert opened(out) == (set() if names else {12})
    no_decoder(monkeypatch)
    for begin in (
        lambda: ask(way, splits, out, resume=True),
        lambda: pack(splits, out, size=32, resume=True),
        lambda: update(splits, out),
    ):
        assert begin().rows == 26
        assert store_bytes(out) == store_bytes(tmp_path / "fresh")
        assert sorted(os.listdir(out)) == ["train", "val"]


@pytest.mark.skipif(os.name == "nt", reason="kills")
def test_a_pack_that_is_refused_finishes_what_a_crash_has_left_of_the_splits_too(splits: Path, tmp_path: Path) -> None:
    killed("overwrite", 1, splits, tmp_path / "out")
    with pytest.raises(PackError, match="already holds a store"):
        pack(splits, tmp_path / "out", size=32)
    assert opened(tmp_path / "out") == {13}


@pytest.mark.skipif(os.name == "nt", reason="kills")
def test_the_command_that_a_half_replaced_store_names_finishes_it(splits: Path, tmp_path: Path, tune: Tune) -> None:
    tune(half_swap_seconds=0)
    killed("update", 1, splits, tmp_path / "out")
    what = rf"{tmp_path}/out is half replaced: train done, val not yet, and they do not belong together\."
    for split in ("train", "val"):
        store = tmp_path / "out" / split
        with pytest.raises(IncompleteStoreError, match=rf"{what} How to finish it: pack info {store}$"):
            MemmapDataset(store)
        expected = rf"{what} Finish it: pack {splits} {tmp_path}/out --size 32 --resume$"
        with pytest.raises(IncompleteStoreError, match=expected):
            describe(store)
    assert run([str(splits), str(tmp_path / "out"), "--size", "32", "--resume", "--quiet"]) == 0
    assert opened(tmp_path / "out") == {13}


@pytest.mark.skipif(os.name == "nt", reason="kills")
@pytest.mark.parametrize("names", spread([0, 1, 2], every=3, first=1))
def test_a_new_split_comes_together_with_the_others(names: int, splits: Path, tmp_path: Path) -> None:
    make_tree(splits / "test", each=2)
    killed("update", names, splits, tmp_path / "out")
    assert (tmp_path / "out" / "test").exists() == (names == 3)
    assert opened(tmp_path / "out") == (set() if names else {12})
    report = update(splits, tmp_path / "out", resume=True)
    assert {name: part.rows for name, part in report.splits.items()} == {"train": 13, "val": 13, "test": 6}
    pack(splits, tmp_path / "fresh", size=32)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "fresh")


def test_an_unfinished_split_beside_a_store_comes_together_with_it(splits: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "val" / "manifest.json").unlink()
    (out / "val" / ".packing" / "parts").mkdir(parents=True)
    lock = Lock(out / "val")
    with pytest.raises(LockedError, match="out/val is being packed by process"):
        pack(splits, out, size=32, overwrite=True)
    lock.close()
    assert len(MemmapDataset(out / "train")) == 12
    report = pack(splits, out, size=32, overwrite=True)
    assert report.rows == 26
    assert sorted(os.listdir(out)) == ["train", "val"]


@pytest.mark.skipif(os.name == "nt", reason="kills")
@pytest.mark.parametrize("names", spread([1, 0]))
def test_merged_splits_replace_others_together(names: int, splits: Path, tmp_path: Path, tune: Tune) -> None:
    out, more = tmp_path / "out", tmp_path / "more"
    pack(splits, more, size=32)
    before = store_bytes(out)
    words = ["merge", str(out), str(more), str(out), "--overwrite"]
    done = subprocess.run([sys.executable, "-c", DIES, str(names), *words], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    tune(half_swap_seconds=0)
    if names:
        with pytest.raises(IncompleteStoreError, match="do not belong together. Finish it: the same command again$"):
            describe(out / "val")
    # the same command finishes it, and does not merge the rows twice
    with pytest.raises(PackError, match="out was half replaced, .* The replacement is complete now: look at it"):
        merge([out, more], out, overwrite=True)
    assert {name: len(MemmapDataset(out / name)) for name in ("train", "val")} == {"train": 25, "val": 25}
    assert sorted(os.listdir(out)) == ["train", "val"]
    assert store_bytes(out) != before


def test_a_merge_that_fails_in_one_split_leaves_all_of_them(
    splits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, more, made = tmp_path / "out", tmp_path / "more", copy_rows._made
    pack(splits, more, size=32)
    before = store_bytes(out)

    def failing(plan: Any, folder: Any, *given: Any) -> Any:
        if folder.final.name == "val":
            raise OSError(5, "Input/output error", str(folder.out))
        return made(plan, folder, *given)

    monkeypatch.setattr(copy_rows, "_made", failing)
    with pytest.raises(PackError, match="Input/output error"):
        merge([out, more], out, overwrite=True)
    assert store_bytes(out) == before
    assert sorted(os.listdir(out)) == ["train", "val"]


def test_a_reader_that_comes_between_the_two_names_waits_for_the_second(
    splits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, take_name, found = tmp_path / "out", swap._take_name, []

    def read_between(folder: Path) -> bool:
        if folder.name == "val":
            # a moment later the second name is there
            monkeypatch.setattr(reader.format.check.time, "sleep", lambda _: take_name(folder) if not found else None)
            found.append(len(MemmapDataset(out / "train")))
            return True
        return take_name(folder)

    monkeypatch.setattr(swap, "_take_name", read_between)
    update(splits, out)
    assert found == [13]
    assert opened(out) == {13}


def test_a_swap_that_another_process_is_at_is_left_to_it(splits: Path, tmp_path: Path) -> None:
    killed("update", 1, splits, tmp_path / "out")
    lock = Lock(tmp_path / "out" / ".val.packing")
    with pytest.raises(LockedError):
        update(splits, tmp_path / "out")
    lock.close()
    assert update(splits, tmp_path / "out").rows == 26


def test_a_working_folder_left_in_the_old_store_is_not_taken_for_the_new_ones(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash may have left the journal of a finished pack; beside the new store it would name the old one as the new."""
    out, exchange = tmp_path / "out", swap._exchange
    monkeypatch.setattr(build, "finish", lambda folders, locks: None)
    pack(images, out, size=32)
    assert (out / ".packing" / "journal").exists()
    monkeypatch.undo()

    def killed_after(one: Path, other: Path) -> bool:
        assert exchange(one, other)
        raise KeyboardInterrupt

    photo(40, 40, 5).save(images / "class2" / "new.jpg")
    monkeypatch.setattr(swap, "_exchange", killed_after)
    with pytest.raises(KeyboardInterrupt):
        update(images, out)
    monkeypatch.undo()
    assert pack(images, out, size=32, resume=True).rows == 25
    assert len(MemmapDataset(out)) == 25


@pytest.mark.parametrize("content", [b"", b"[", b"3", b'["../x"]', b'["", "val"]', b'[".."]'])
def test_a_mark_that_is_none_is_passed_over(content: bytes, store: Path) -> None:
    (store / ".packing").mkdir()
    (store / ".packing" / "swapping").write_bytes(content)
    assert len(MemmapDataset(store)) == 90
    assert list(itertools.islice(read_swapping(store), 1)) == []
