"""OUT appears when it is finished, and a store is replaced, in one step: not with more rejects than allowed, splits together."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import interrupted, make_splits, make_tree, photo, store_bytes
from kinds import spread
from test_update import no_decoder

from packer import OptionsError, PackError, PackReport, merge, pack, pull, push, seal_parts, update
from packer.cli.app import run
from packer.operations import copy_rows
from packer.store import destination
from reader import IncompleteStoreError, MemmapDataset, StoreError

# Packs as the command does, and dies by SIGKILL before or after the call that gives OUT its name.
DIES = """
import os, signal, sys
from packer.store import destination
from packer.cli.app import run
moment, exchanges = sys.argv[1:3]
exchange, rename = destination._exchange, os.rename
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def exchanged(one, other):
    if exchanges == "no":
        return False
    if moment == "before":
        die()
    assert exchange(one, other)
    die()
def renamed(one, other):
    if str(one).endswith("out") and moment == "before" and not str(other).endswith("out.packing"):
        die()
    rename(one, other)
    if str(one).endswith("out") or (str(other).endswith("out") and moment == "after"):
        die()
destination._exchange = exchanged
if exchanges == "no":
    destination.os.rename = renamed
sys.exit(run(sys.argv[3:]))
"""


def break_some(folder: Path, count: int) -> None:
    for path in sorted(folder.rglob("*.jpg"))[:count]:
        path.write_bytes(b"broken")


def ask(way: str, images: Path, out: Path, **options: Any) -> PackReport:
    """Pack or update; an update takes the size from the store."""
    if way == "update":
        return update(images, out, **options)
    return pack(images, out, size=32, **options, overwrite=True)


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
    again = ask(way, images, out, max_rejects=4)
    assert (again.too_many_rejects, again.is_in_place, again.resumed_from) == (True, False, 24)
    assert store_bytes(out) == before
    report = ask(way, images, out, max_rejects=5)
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
    for _ in range(2):
        assert run(words) == 3
        printed = capsys.readouterr()
        assert printed.err == (
            f"pack: 5 of 24 inputs were rejected, more than --max-rejects 1%. {out} still holds the old store,"
            " usable as before. To replace it by the new one, decoding nothing again: the same command with"
            " --max-rejects 5\n"
        )
        assert f"{out}: " not in printed.out
        assert "rejected 5 (see rejected.jsonl of the new store, beside OUT):\n       5 x " in printed.out
    assert len(MemmapDataset(out)) == 24
    assert run([*words, "--max-rejects", "5", "--json"]) == 0
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
    report = ask(way, splits, tmp_path / "out", max_rejects=3)
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


def killed(way: str, moment: str, exchanges: bool, images: Path, out: Path) -> None:
    """Have a pack die by SIGKILL before OUT has its name, or once it has."""
    words = ["update", images, out] if way == "update" else [images, out, "--size", "32", "--overwrite"]
    given = [moment, "yes" if exchanges else "no", *map(str, words)]
    done = subprocess.run([sys.executable, "-c", DIES, *given], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def opened(out: Path) -> set[int]:
    """Return how many rows the splits have, which is 12 before and 13 after."""
    return {len(MemmapDataset(out / split)) for split in ("train", "val")}


@pytest.mark.skipif(os.name == "nt", reason="kills")
@pytest.mark.parametrize(
    ("way", "moment", "exchanges"),
    spread(["overwrite", "update"], ["before", "after"], [False, True], every=4, first=1),
)
def test_killed_as_they_change_names_both_splits_are_old_or_new_and_a_resume_finishes(
    way: str, moment: str, exchanges: bool, splits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    pack(splits, tmp_path / "fresh", size=32)
    killed(way, moment, exchanges, splits, out)
    if exchanges or moment == "before":
        assert opened(out) == {12 if moment == "before" else 13}
    else:  # between two renames
        assert not out.exists()
        with pytest.raises(IncompleteStoreError, match=rf"pack info {out}/train"):
            MemmapDataset(out / "train")
    no_decoder(monkeypatch)
    # a store that took its name is confirmed; --overwrite would replace it
    is_there = exchanges and moment == "after" and way == "overwrite"
    assert (pack(splits, out, size=32) if is_there else ask(way, splits, out)).rows == 26
    assert store_bytes(out) == store_bytes(tmp_path / "fresh")
    assert sorted(os.listdir(tmp_path)) == ["fresh", "images", "out"]


@pytest.mark.skipif(os.name == "nt", reason="kills")
def test_whoever_gives_up_between_two_renames_has_the_old_store_again(splits: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = store_bytes(out)
    killed("overwrite", "after", False, splits, out)
    assert sorted(os.listdir(tmp_path)) == ["images", "out.packing", "out.packing.old"]
    shutil.rmtree(tmp_path / "out.packing")
    with pytest.raises(PackError, match="is finished, but with other inputs"):
        pack(splits, out, size=32)
    assert store_bytes(out) == before


def test_a_new_split_comes_together_with_the_others(splits: Path, tmp_path: Path) -> None:
    make_tree(splits / "test", each=2)
    with pytest.raises(KeyboardInterrupt):
        update(splits, tmp_path / "out", progress=_stop_in("test"))
    assert sorted(os.listdir(tmp_path / "out")) == ["train", "val"]
    assert opened(tmp_path / "out") == {12}
    report = update(splits, tmp_path / "out")
    assert {name: part.rows for name, part in report.splits.items()} == {"train": 13, "val": 13, "test": 6}
    pack(splits, tmp_path / "fresh", size=32)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "fresh")


def _stop_in(split: str) -> Callable[[Any], None]:
    def stop(progress: Any) -> None:
        if (progress.split, progress.stage) == (split, "pack"):
            raise KeyboardInterrupt

    return stop


def test_new_splits_appear_together(splits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, stage = tmp_path / "new", tmp_path / "new.packing"
    with pytest.raises(KeyboardInterrupt):
        pack(splits, out, size=32, progress=_stop_in("val"))
    assert not out.exists()
    assert sorted(os.listdir(stage)) == [".packing", "train", "val"]
    for split in ("train", "val"):
        with pytest.raises(IncompleteStoreError, match="is incomplete: what makes it is still running"):
            MemmapDataset(out / split)
    for path in (out, stage):
        assert run(["info", str(path)]) == 1
        said = capsys.readouterr().err
        assert said.endswith(f"Resume with: pack {splits} {out} --size 32\n")
    assert pack(splits, out, size=32).splits["train"].resumed_from == 13
    assert sorted(os.listdir(out)) == ["train", "val"]
    assert not stage.exists()


def test_what_was_begun_of_other_splits_is_not_published_with_these(splits: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    with pytest.raises(KeyboardInterrupt):
        pack(splits, out, size=32, progress=_stop_in("val"))
    (splits / "train").rename(splits / "test")
    with pytest.raises(PackError, match="was started with other splits: train is one of them"):
        pack(splits, out, size=32)
    pack(splits, out, size=32, overwrite=True)
    assert sorted(os.listdir(out)) == ["test", "val"]


def test_merged_splits_replace_others_together(splits: Path, tmp_path: Path) -> None:
    out, more = tmp_path / "out", tmp_path / "more"
    pack(splits, more, size=32)
    merge([out, more], out, overwrite=True)
    assert opened(out) == {25}
    assert sorted(os.listdir(tmp_path)) == ["images", "more", "out"]


def test_a_merge_that_fails_in_one_split_leaves_all_of_them(
    splits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, more, made = tmp_path / "out", tmp_path / "more", copy_rows._copied
    pack(splits, more, size=32)
    before = store_bytes(out)

    def failing(plan: Any, making: Any) -> Any:
        if making.folder.name == "val":
            raise OSError(5, "Input/output error", str(making.folder))
        return made(plan, making)

    monkeypatch.setattr(copy_rows, "_copied", failing)
    with pytest.raises(PackError, match="Input/output error"):
        merge([out, more], out, overwrite=True)
    assert store_bytes(out) == before
    assert sorted(os.listdir(tmp_path)) == ["images", "more", "out"]


def test_what_is_beside_splits_that_are_replaced_is_not_taken_away(splits: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(PackError, match=r"out also holds notes\.txt, which would be deleted with the store"):
        update(splits, tmp_path / "out")
    assert opened(tmp_path / "out") == {12}


# -- a foreign OUT


@pytest.mark.skipif(os.name == "nt", reason="renames")
@pytest.mark.parametrize("exchanges", [True, False])
def test_a_store_that_takes_the_name_at_the_last_moment_keeps_it(
    exchanges: bool, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look at OUT and the change of names: what came out is compared, and put back."""
    out, theirs, exchange, rename = tmp_path / "out", tmp_path / "theirs", destination._exchange, os.rename
    pack(images, out, size=32)
    pack(images, theirs, size=16)
    foreign = store_bytes(theirs)

    def taken() -> None:
        if theirs.exists():
            rename(out, tmp_path / "mine")
            rename(theirs, out)

    def late(one: Path, other: Path) -> bool:
        taken()
        return exchange(one, other) if exchanges else False

    monkeypatch.setattr(destination, "_exchange", late)
    with pytest.raises(PackError, match="out was renamed, removed or replaced while this command worked on it"):
        pack(images, out, size=24, overwrite=True)
    assert store_bytes(out) == foreign
    assert len(MemmapDataset(tmp_path / "mine")) == 24
    assert not (tmp_path / "out.packing.old").exists()


@pytest.mark.parametrize("holds", ["a file", "a folder with a file", "a link"])
def test_whatever_takes_the_name_of_a_new_store_keeps_it(
    holds: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rename = tmp_path / "out", destination.Folder._rename
    make = {
        "a file": lambda: out.write_text("mine"),
        "a folder with a file": lambda: (out.mkdir(), (out / "mine").write_text("mine")),
        "a link": lambda: out.symlink_to(tmp_path / "images"),
    }

    def late(to: destination.Folder, folder: Path, name: Path) -> None:
        make[holds]()
        rename(to, folder, name)

    monkeypatch.setattr(destination.Folder, "_rename", late)
    with pytest.raises(PackError, match="out was renamed, removed or replaced while this command worked on it"):
        pack(images, out, size=32)
    assert out.is_symlink() or "mine" in (out.read_text() if out.is_file() else os.listdir(out))
    monkeypatch.undo()
    assert (tmp_path / "out.packing/manifest.json").exists()


@pytest.mark.skipif(os.name == "nt", reason="links")
@pytest.mark.parametrize("leads_somewhere", [True, False])
def test_a_link_where_the_replaced_store_goes_is_never_followed(
    leads_somewhere: bool, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the look for links, as another user of the folder may make it."""
    out, other, aside = tmp_path / "out", tmp_path / "other", tmp_path / "out.packing.old"
    monkeypatch.setattr(destination, "_exchange", lambda one, other: False)
    pack(images, out, size=16)
    before = store_bytes(out)
    if leads_somewhere:
        (other / "folder").mkdir(parents=True)
        (other / "folder/file").write_bytes(b"another's")

    def plant(progress: Any) -> None:
        if progress.stage == "seal" and not aside.is_symlink():
            aside.symlink_to(other)

    with pytest.raises(PackError, match=r"cannot be read or written: Not a directory .*Give the same command again"):
        pack(images, out, size=24, overwrite=True, progress=plant)
    assert store_bytes(out) == before
    assert aside.is_symlink()
    assert other.exists() == leads_somewhere
    aside.unlink()
    assert pack(images, out, size=24).resumed_from == 24
    assert other.exists() == leads_somewhere


# -- what is to be replaced, and nothing else


def test_a_store_that_came_to_an_unfinished_out_is_not_replaced_by_its_end(images: Path, tmp_path: Path) -> None:
    out, mine, url = tmp_path / "out", tmp_path / "mine", tmp_path / "url"
    pack(images, mine, size=16)
    interrupted(pack, images, out, size=32, workers=1, inputs=4)
    shutil.copytree(mine, out)
    with pytest.raises(
        PackError, match=r"out is not what was there when .*out\.packing was begun, and is not replaced"
    ):
        pack(images, out, size=32)
    assert store_bytes(out) == store_bytes(mine)
    shutil.rmtree(out)
    assert pack(images, out, size=32).resumed_from >= 4
    push(out, url.as_uri())

    def stop(*given: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(url.as_uri(), tmp_path / "pulled", progress=stop)
    shutil.copytree(mine, tmp_path / "pulled")
    with pytest.raises(PackError, match="pulled is not what was there when .* was begun, and is not replaced"):
        pull(url.as_uri(), tmp_path / "pulled")
    assert store_bytes(tmp_path / "pulled") == store_bytes(mine)


@pytest.mark.parametrize("exchanges", [True, False])
def test_what_comes_to_out_while_stores_are_made_stays(
    exchanges: bool, splits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A split, a file, or a newer store of a split: the stores change names again, and a resume goes on without it."""
    out, images = tmp_path / "out", make_tree(tmp_path / "one", each=2)
    if not exchanges:
        monkeypatch.setattr(destination, "_exchange", lambda one, other: False)

    def comes(progress: Any) -> None:
        if (progress.split, progress.stage) == ("val", "pack") and not (out / "test").exists():
            pack(images, out / "test", size=16)
            (out / "mine.txt").write_text("mine")

    with pytest.raises(PackError, match=r"out/mine\.txt was changed or put there .*\."):
        pack(splits, out, size=32, overwrite=True, progress=comes)
    assert opened(out) == {12}
    assert (out / "mine.txt").read_text() == "mine"
    assert len(MemmapDataset(out / "test")) == 6
    for name, said in (("test", "out/test is the store of a split"), ("mine.txt", r"out also holds mine\.txt")):
        with pytest.raises(PackError, match=said):
            pack(splits, out, size=32)
        (out / name).rename(tmp_path / name)
    pack(splits, out, size=32)
    assert opened(out) == {13}


@pytest.mark.skipif(os.name == "nt", reason="kills")
def test_what_has_a_name_of_ours_beside_out_is_removed_or_renamed_only_if_out_replaced_it(
    splits: Path, tmp_path: Path
) -> None:
    out, stage, aside = tmp_path / "out", tmp_path / "out.packing", tmp_path / "out.packing.old"
    mine = make_tree(tmp_path / "one", each=2)
    killed("overwrite", "after", True, splits, out)
    for folder in (stage, aside):
        shutil.rmtree(folder, ignore_errors=True)
        pack(mine, tmp_path / "made", size=16)
        (tmp_path / "made").rename(folder)
    with pytest.raises(OptionsError, match=r"out\.packing is not empty"):
        pack(splits, out, size=16, overwrite=True)
    assert [len(MemmapDataset(folder)) for folder in (stage, aside)] == [6, 6]
    for folder in (stage, aside, out):
        shutil.rmtree(folder)
    with pytest.raises(KeyboardInterrupt):
        pack(splits, out, size=32, progress=_stop_in("val"))
    stage.rename(aside)
    pack(mine, out, size=16)
    assert len(MemmapDataset(out)) == 6
    assert sorted(os.listdir(aside)) == [".packing", "train", "val"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_an_interrupt_as_stores_change_names_leaves_the_old_one(
    exchanges: bool, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    pack(images, out, size=16)
    before = store_bytes(out)

    def interrupt(lock: Any, at: Path | None = None) -> None:
        if at is not None:
            raise KeyboardInterrupt

    if not exchanges:
        monkeypatch.setattr(destination, "_exchange", lambda one, other: False)
    with monkeypatch.context() as patch:
        patch.setattr(destination.Lock, "check_replaced", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pack(images, out, size=32, overwrite=True)
    assert store_bytes(out) == before
    assert sorted(os.listdir(tmp_path)) == ["images", "out", "out.packing"]
    assert pack(images, out, size=32).resumed_from == 24


def test_a_split_that_was_updated_while_a_new_one_was_unfinished_is_kept_as_it_is_now(
    splits: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (tmp_path / "kept").mkdir()
    pack(splits / "train", tmp_path / "kept/train", size=32)
    before = store_bytes(tmp_path / "kept/train")
    with pytest.raises(KeyboardInterrupt):
        pack(splits, tmp_path / "kept", size=32, progress=_stop_in("val"))
    photo(40, 40, 6).save(splits / "train" / "class0" / "newer.jpg")
    update(splits / "train", tmp_path / "kept/train")
    pack(splits, tmp_path / "kept", size=32)
    assert len(MemmapDataset(tmp_path / "kept/train")) == 14
    assert store_bytes(tmp_path / "kept/train") != before
    pack(splits, out, size=32, overwrite=True)
    assert store_bytes(tmp_path / "kept") == store_bytes(out)


def test_a_new_split_of_which_all_is_rejected_leaves_nothing_beside_the_others(splits: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    out.mkdir()
    pack(splits / "train", out / "train", size=32)
    break_some(splits / "val", 13)
    with pytest.raises(PackError, match="all 13 inputs were rejected"):
        pack(splits, out, size=32)
    assert (sorted(os.listdir(tmp_path)), os.listdir(out)) == (["images", "kept", "out"], ["train"])
    photo(40, 40, 6).save(splits / "val" / "class0" / "good.jpg")
    pack(splits, out, size=32)
    assert {split: len(MemmapDataset(out / split)) for split in ("train", "val")} == {"train": 13, "val": 1}


def test_a_disk_that_is_full_once_the_new_store_is_there_hinders_nothing(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    pack(images, out, size=16)

    def full(**given: Any) -> str:
        raise OSError(28, "No space left on device", str(given["dir"]))

    monkeypatch.setattr(destination.tempfile, "mkdtemp", full)
    assert pack(images, out, size=32, overwrite=True).is_in_place
    assert sorted(os.listdir(tmp_path)) == ["images", "out"]
    assert not (out / ".packing").exists()


# -- where it is made


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_name_that_cannot_be_synced_is_no_reason_to_resume(
    overwrite: bool, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, fsync = tmp_path / "out", os.fsync
    if overwrite:
        pack(images, out, size=16)

    def failing(descriptor: int) -> None:
        is_published = out.exists() and b'"width": 32' in (out / "manifest.json").read_bytes()
        if is_published and os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        text = rf"{out} is finished and can be used, but {tmp_path} cannot be synced: Input/output error \(EIO\)\. Check that"
        with pytest.raises(PackError, match=text):
            pack(images, out, size=32, overwrite=overwrite)
    assert len(MemmapDataset(out)) == 24
    assert pack(images, out, size=32).resumed_from == 24
    assert sorted(os.listdir(tmp_path)) == ["images", "out"]


def test_it_is_continued_where_it_was_moved(images: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    interrupted(pack, images, tmp_path / "here/out", size=32, workers=1, inputs=4)
    assert os.listdir(tmp_path / "here") == ["out.packing"]
    (tmp_path / "here").rename(tmp_path / "there")
    (tmp_path / "there/out.packing").rename(tmp_path / "there/other.packing")
    assert pack(images, tmp_path / "there/other", size=32).resumed_from >= 4
    pack(images, tmp_path / "fresh", size=32)
    assert store_bytes(tmp_path / "there/other") == store_bytes(tmp_path / "fresh")
    assert os.listdir(tmp_path / "there") == ["other"]


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("way", ["overwrite", "update"])
@pytest.mark.parametrize(("here", "given"), [("out", "."), ("out", "../out"), ("out.packing", "../out")])
def test_out_is_given_from_inside_itself(
    way: str, here: str, given: str, exchanges: bool, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that a command works in has another name, or is gone, once it is replaced."""
    out = tmp_path / "out"
    pack(images, out, size=24)
    if here == "out.packing":
        options = {} if way == "update" else {"size": 16, "overwrite": True}
        interrupted(update if way == "update" else pack, images, out, workers=1, inputs=4, **options)
    if not exchanges:
        monkeypatch.setattr(destination, "_exchange", lambda one, other: False)
    monkeypatch.chdir(tmp_path / here)
    sources = Path("../images") if (tmp_path / "images").exists() else images
    if way == "update":
        report = update(sources, given)
    else:
        report = pack(sources, given, size=16, overwrite=True)
    assert (report.rows, report.rejected) == (24, 0)
    monkeypatch.chdir(tmp_path)
    assert len(MemmapDataset(out)) == 24
    assert not (tmp_path / "out.packing").exists()
    assert not (out / ".packing").exists()


def test_removing_where_it_is_made_gives_up(images: Path, tmp_path: Path) -> None:
    interrupted(pack, images, tmp_path / "out", size=32, workers=1, inputs=4)
    shutil.rmtree(tmp_path / "out.packing")
    assert pack(images, tmp_path / "out", size=24).resumed_from == 0


def test_out_is_not_where_another_is_made(images: Path, tmp_path: Path) -> None:
    interrupted(pack, images, tmp_path / "out", size=32, workers=1, inputs=4)
    with pytest.raises(PackError, match=r"out.packing is where .*/out is made. Give that as OUT: pack\(.*/out', size="):
        pack(images, tmp_path / "out.packing", size=32)
    (tmp_path / "out.packing").rename(tmp_path / "renamed")
    with pytest.raises(
        PackError, match=r"is where a store is made, under another name. Rename it to .*renamed\.packing"
    ):
        pack(images, tmp_path / "renamed", size=32)


def test_a_folder_of_somebody_else_beside_out_is_left_as_it_is(images: Path, tmp_path: Path) -> None:
    (tmp_path / "out.packing").mkdir()
    (tmp_path / "out.packing/mine").write_text("mine")
    for options in ({}, {"overwrite": True}):
        with pytest.raises(OptionsError, match=r"out.packing is not empty \(it holds mine\), and .*/out is made there"):
            pack(images, tmp_path / "out", size=32, **options)
    assert (tmp_path / "out.packing/mine").read_text() == "mine"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """OUT as a mount point, as `docker -v /ssd/out:/out` makes it; skipped where nothing can be mounted."""
    out, disk = tmp_path / "out", tmp_path / "disk"
    for folder in (out, disk):
        folder.mkdir()
    if subprocess.run(["mount", "--bind", disk, out], capture_output=True).returncode:
        pytest.skip("this user may mount nothing")
    try:
        yield out
    finally:
        subprocess.run(["umount", "-l", out], check=True)


def test_a_mount_point_takes_a_store_splits_and_parts(mounted: Path, images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "fresh", size=32)
    interrupted(pack, images, mounted, size=32, workers=1, inputs=4)
    assert os.listdir(mounted) == [".packing"]
    with pytest.raises(IncompleteStoreError, match="pack info"):
        MemmapDataset(mounted)
    assert pack(images, mounted, size=32).resumed_from >= 4
    assert store_bytes(mounted) == store_bytes(tmp_path / "fresh")
    assert pack(images, mounted, size=32).resumed_from == 24
    seen: set[str] = set()
    with pytest.raises(PackError, match="out cannot be replaced: its file system does not rename it"):
        pack(images, mounted, size=16, overwrite=True, progress=lambda progress: seen.add(progress.stage))
    assert "pack" not in seen
    assert store_bytes(mounted) == store_bytes(tmp_path / "fresh")
    assert not (tmp_path / "out.packing").exists()


def test_a_mount_point_that_came_after_the_begin_is_refused_before_any_work(images: Path, tmp_path: Path) -> None:
    out, disk = tmp_path / "out", tmp_path / "disk"
    interrupted(pack, images, out, size=32, workers=1, inputs=4)
    for folder in (out, disk):
        folder.mkdir()
    if subprocess.run(["mount", "--bind", disk, out], capture_output=True).returncode:
        pytest.skip("this user may mount nothing")
    seen: set[str] = set()
    try:
        with pytest.raises(PackError, match="out cannot be replaced: its file system does not rename it"):
            pack(images, out, size=32, progress=lambda progress: seen.add(progress.stage))
    finally:
        subprocess.run(["umount", "-l", out], check=True)
    assert "pack" not in seen
    assert pack(images, out, size=32).resumed_from >= 4


@pytest.mark.parametrize("kind", ["one", "splits", "parts", "merge", "pull"])
def test_a_folder_that_is_there_is_filled(kind: str, images: Path, tmp_path: Path) -> None:
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    out.mkdir(mode=0o700)
    inode = out.stat().st_ino
    if kind == "splits":
        make_splits(tmp_path / "splits", ("train", "val"), each=2)
    source = tmp_path / "splits" if kind == "splits" else images
    pack(source, fresh, size=32)
    if kind == "parts":
        for part in ("1/2", "2/2"):
            pack(images, out, size=32, part=part)
        seal_parts(out)
    elif kind == "merge":
        merge([fresh, fresh], out)
        fresh = tmp_path / "merged"
        merge([tmp_path / "fresh"] * 2, fresh)
    elif kind == "pull":
        push(fresh, (tmp_path / "url").as_uri())
        pull((tmp_path / "url").as_uri(), out)
    else:
        pack(source, out, size=32)
    assert store_bytes(out) == store_bytes(fresh)
    assert (out.stat().st_ino, out.stat().st_mode & 0o777) == (inode, 0o700)


@pytest.mark.skipif(os.name == "nt", reason="kills")
@pytest.mark.parametrize("kind", ["one", "splits", "merge", "parts", "parts of splits", "pull"])
def test_killed_as_files_move_into_a_folder_that_is_there_the_same_command_finishes(
    kind: str, images: Path, tmp_path: Path
) -> None:
    """After each of the renames by which they move; until the last, nothing of it opens as all of it."""
    if kind.endswith("splits"):
        make_splits(tmp_path / "splits", ("train", "val"), each=2)
    source, out, fresh = (
        tmp_path / "splits" if kind.endswith("splits") else images,
        tmp_path / "out",
        tmp_path / "fresh",
    )
    made, words = tmp_path / "made", [str(source), str(out), "--size", "32"]
    pack(source, fresh, size=32)
    if kind == "merge":
        shutil.move(fresh, made)
        merge([made, made], fresh)
        words = ["merge", str(made), str(made), str(out)]
    elif kind == "pull":
        push(fresh, made.as_uri())
        words = ["pull", made.as_uri(), str(out)]
    elif kind.startswith("parts"):
        made.mkdir()
        for part in ("1/2", "2/2"):
            pack(source, made, size=32, part=part)
        words = ["seal", str(out)]
    code = (
        "import os, sys\nfrom packer.cli.app import run\nrename, left = os.rename, [int(sys.argv[1])]\n"
        "def dying(one, other):\n    rename(one, other)\n    left[0] -= str(other).startswith(sys.argv[2] + '/') and"
        " str(one).startswith(sys.argv[2] + '/.packing/') and '/parts/' not in str(one)\n"
        "    left[0] or os.kill(os.getpid(), 9)\nos.rename = dying\nsys.exit(run(sys.argv[3:]))"
    )
    for number in range(1, 10):
        if kind.startswith("parts"):
            shutil.copytree(made, out)
        else:
            out.mkdir()
        killing = [sys.executable, "-c", code, str(number), str(out), *words, *["--quiet"] * (words[0] != "seal")]
        done = subprocess.run(killing, capture_output=True, text=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        if not kind.endswith("splits") and done.returncode and not (out / "manifest.json").exists():
            with pytest.raises(IncompleteStoreError):
                MemmapDataset(out)
        if kind == "merge":
            assert run(words) == 0 or (out / "manifest.json").exists()
        else:
            assert run([*words, *["--quiet"] * (words[0] != "seal")]) == 0
        assert store_bytes(out) == store_bytes(fresh)
        assert not (out / ".packing").exists()
        shutil.rmtree(out)
        if not done.returncode:
            break
    assert number == (4 if kind.endswith("splits") else 7)


@pytest.mark.parametrize("name", ["meta.json", "manifest.json", "_tensordict", "train", "a store"])
def test_what_is_put_into_a_folder_that_is_being_filled_stays_and_so_does_what_is_made(
    name: str, images: Path, tmp_path: Path
) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine"
    out.mkdir()
    mine.mkdir()
    if name == "a store":
        pack(images, mine / "made", size=16)
        mine = mine / "made"
    elif name == "train":
        (mine / name).mkdir()
        (mine / name / "mine.txt").write_text("mine")
    else:
        (mine / name).write_text("mine")
    interrupted(pack, images, out, size=32, workers=1, inputs=4)
    shutil.copytree(mine, out, dirs_exist_ok=True)
    with pytest.raises((OptionsError, PackError), match="out is not empty|out also holds"):
        pack(images, out, size=32)
    shutil.rmtree(out / ".packing")
    assert store_bytes(out) == store_bytes(mine)
    # of incomplete parts, sealed
    shutil.rmtree(out)
    out.mkdir()
    pack(images, out, size=32, part="1/2")
    shutil.copytree(mine, out, dirs_exist_ok=True)
    with pytest.raises(PackError, match="out also holds|already holds|finished by another"):
        seal_parts(out)
    assert (out / ".packing/.packing/parts").is_dir()
    shutil.rmtree(out / ".packing")
    assert store_bytes(out) == store_bytes(mine)


def test_two_names_of_one_folder_are_one_out(images: Path, tmp_path: Path) -> None:
    """Through a link, and relative, the lock is the same."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "direct").symlink_to(tmp_path / "real/out")
    errors: list[str] = []

    def second(progress: Any) -> None:
        if progress.stage == "pack" and not errors:
            for out in (tmp_path / "link/out", tmp_path / "direct", os.path.relpath(tmp_path / "real/out")):
                with pytest.raises(PackError) as caught:
                    pack(images, out, size=16, overwrite=True)
                errors.append(str(caught.value))

    pack(images, tmp_path / "real/out", size=32, progress=second)
    assert ["is being packed by process" in error for error in errors] == [True] * 3
    assert os.listdir(tmp_path / "real") == ["out"]


def test_a_reader_that_opens_while_stores_change_names_sees_the_old_or_the_new(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(images, out, size=16)
    code = (
        "import sys\nfrom reader import MemmapDataset\nprint(flush=True)\nsizes = set()\n"
        "while 40 not in sizes:\n    sizes.add(MemmapDataset(sys.argv[1]).store.pixels.shape[1])\nprint(sorted(sizes))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    for size in (24, 32, 40):
        pack(images, out, size=size, workers=1, overwrite=True)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "40" in said


def test_a_reader_says_of_an_out_that_is_not_there_that_it_is_in_the_making(images: Path, tmp_path: Path) -> None:
    interrupted(pack, images, tmp_path / "out", size=32, workers=1, inputs=4)
    for path in (tmp_path / "out", tmp_path / "out.packing"):
        with pytest.raises(IncompleteStoreError, match=f"how to resume it: pack info {path}$"):
            MemmapDataset(path)
    with pytest.raises(StoreError, match="does not exist"):
        MemmapDataset(tmp_path / "other")
