"""OUT appears when it is finished, and is replaced, in one step; whatever else is in its way stays as it is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import interrupted, make_splits, make_tree, photo, store_bytes

from packer import OptionsError, PackError, PackReport, merge, pack, pull, seal_parts, subset, update, verify
from packer.cli.app import run
from reader import IncompleteStoreError, MemmapDataset, StoreError

Call = Callable[[Path, Path], Any]


@pytest.fixture(params=["exchange", "two renames"])
def names_change(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Replace by an exchange of names, or on a system that has none, as over NFS."""
    if request.param == "two renames":
        monkeypatch.setattr("ctypes.CDLL", None)
    return str(request.param)


def stop_in(split: str, stage: str = "pack") -> Callable[[Any], None]:
    def stop(progress: Any) -> None:
        if (progress.split, progress.stage) == (split, stage):
            raise KeyboardInterrupt

    return stop


def sizes(out: Path, *splits: str) -> set[int]:
    """Return how many rows the stores of these splits have."""
    return {len(MemmapDataset(out / split)) for split in splits or ("train", "val")}


# -- the table: what OUT holds, what the stage holds, what is asked for, and what becomes of it

MADE, CONTINUED, CONFIRMED = "made", "continued", "confirmed"
CALLS: dict[str, Call] = {
    "pack": lambda root, out: pack(root / "images", out, size=32, workers=1),
    "overwrite": lambda root, out: pack(root / "images", out, size=32, workers=1, overwrite=True),
    "update": lambda root, out: update(root / "images", out, workers=1),
    "part": lambda root, out: pack(root / "images", out, size=32, workers=1, part="1/2"),
    "seal": lambda root, out: seal_parts(out),
    "merge": lambda root, out: merge([root / "store"] * 2, out),
    "merge over": lambda root, out: merge([root / "store"] * 2, out, overwrite=True),
    "pull": lambda root, out: pull((root / "store").as_uri(), out),
    "splits": lambda root, out: pack(root / "splits", out, size=32, workers=1),
}
OUTS: dict[str, Call] = {
    "nothing": lambda root, out: None,
    "a folder": lambda root, out: out.mkdir(),
    "dropped files": lambda root, out: [out.mkdir(), (out / ".DS_Store").touch(), (out / "lost+found").mkdir()],
    "a file of others": lambda root, out: [out.mkdir(), (out / "mine").touch()],
    "a manifest of others": lambda root, out: [
        out.mkdir(),
        (out / "manifest.json").write_text('{"name": "my web app"}'),
    ],
    "the store": lambda root, out: shutil.copytree(root / "store", out),
    "another store": lambda root, out: shutil.copytree(root / "small", out),
    "a store and a file": lambda root, out: [shutil.copytree(root / "store", out), (out / "mine").touch()],
    "splits": lambda root, out: pack(root / "splits", out, size=32, workers=1),
}
STAGES: dict[str, Call] = {
    "nothing": lambda root, out: None,
    "this pack": lambda root, out: interrupted(pack, root / "images", out, size=32, workers=1, overwrite=True),
    "another pack": lambda root, out: interrupted(pack, root / "images", out, size=24, workers=1, overwrite=True),
    "an update": lambda root, out: interrupted(update, root / "images", out, workers=1),
    "a part": lambda root, out: pack(root / "images", out, size=32, part="1/2"),
    "rests of a copy": lambda root, out: [
        (out.with_name("out.packing") / name).mkdir(parents=True) for name in (".packing", "_tensordict")
    ],
    "files of others": lambda root, out: [
        out.with_name("out.packing").mkdir(),
        (out.with_name("out.packing") / "mine").touch(),
    ],
}
TABLE = [
    ("nothing", "nothing", "pack merge pull part overwrite splits", MADE),
    ("nothing", "nothing", "update", "out does not exist"),
    ("nothing", "nothing", "seal", "holds no part of a pack"),
    ("a manifest of others", "nothing", "pack overwrite", "is not empty .* and is no store"),
    ("a file of others", "nothing", "update", "out is not a pixpack store: it has no manifest.json"),
    ("nothing", "this pack", "update", "out is incomplete: its pack, at"),
    ("a folder", "nothing", "pack merge pull part overwrite splits", MADE),
    ("dropped files", "nothing", "pack merge pull part splits", MADE),
    ("a file of others", "nothing", "pack overwrite merge pull part splits", r"out is not empty \(it holds mine\)"),
    ("the store", "nothing", "pack pull part", CONFIRMED),
    ("the store", "nothing", "overwrite update", MADE),
    ("the store", "nothing", "merge", r"out already holds a store\. Replace it with overwrite=True"),
    (
        "the store",
        "nothing",
        "splits",
        r"a store of other splits: none, now train, val\. .* or move .*/out away",
    ),
    ("another store", "nothing", "pack part", r"is finished, but with other options \(size=16, now size=32\)"),
    ("another store", "nothing", "pull", "holds another store than"),
    ("another store", "nothing", "overwrite update", MADE),
    ("another store", "nothing", "merge over", MADE),
    ("a store and a file", "nothing", "overwrite update merge_over", "out also holds mine, which would be deleted"),
    (
        "splits",
        "nothing",
        "pack overwrite merge",
        r"other splits: train, val, now none\. .* move .*/out/train away",
    ),
    ("splits", "nothing", "splits", CONFIRMED),
    ("nothing", "this pack", "pack overwrite", CONTINUED),
    (
        "nothing",
        "this pack",
        "merge",
        r"out\.packing is of another command\. Remove it, or: .* is incomplete: its pack, .* Continue with: pack .* --size 32$",
    ),
    ("nothing", "this pack", "pull", "Choose another OUT: .*is incomplete: its pack, at"),
    ("nothing", "this pack", "part", r"is being packed as a whole, without part\. Resume with"),
    ("nothing", "this pack", "merge_over", MADE),
    ("nothing", "this pack", "splits", "was started with other splits"),
    ("a folder", "this pack", "pack", CONTINUED),
    ("nothing", "another pack", "pack", r"was started with other options \(size=24, now size=32\)\. Continue"),
    ("nothing", "another pack", "overwrite", MADE),
    ("the store", "another pack", "pack pull", CONFIRMED),
    ("another store", "this pack", "overwrite", CONTINUED),
    ("another store", "this pack", "update", r"holds a store whose replacement, at .* --overwrite"),
    ("another store", "this pack", "pack", "is finished, but with other options"),
    ("another store", "an update", "update", CONTINUED),
    ("another store", "an update", "overwrite merge_over", MADE),
    ("nothing", "a part", "pack splits pull merge", r"holds parts of a pack\. Continue with part='i/n'"),
    ("nothing", "a part", "overwrite", MADE),
    ("nothing", "rests of a copy", "pack merge", MADE),
    ("nothing", "files of others", "pack overwrite merge", r"out\.packing is not empty \(it holds mine\)"),
]


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, as a tree and as splits; a store of them, and one of smaller rows."""
    root = tmp_path_factory.mktemp("things")
    make_tree(root / "images")
    make_splits(root / "splits", ("train", "val"), each=2)
    pack(root / "images", root / "store", size=32, workers=1)
    pack(root / "images", root / "small", size=16, workers=1)
    return root


@pytest.mark.parametrize(
    ("out", "stage", "asked", "becomes"),
    [
        (out, stage, asked.replace("_", " "), becomes)
        for out, stage, names, becomes in TABLE
        for asked in (["merge over"] if names == "merge over" else names.split())
    ],
)
def test_what_becomes_of_out(
    out: str, stage: str, asked: str, becomes: str, things: Path, tmp_path: Path, small_blocks: None
) -> None:
    target = tmp_path / "out"
    if stage == "an update" or out not in ("a folder", "dropped files"):
        OUTS[out](things, target)
        STAGES[stage](things, target)
    else:
        STAGES[stage](things, target)
        OUTS[out](things, target)
    before = store_bytes(tmp_path)
    if becomes not in (MADE, CONTINUED, CONFIRMED):
        with pytest.raises((OptionsError, PackError, StoreError), match=becomes):
            CALLS[asked](things, target)
        kept = store_bytes(tmp_path)
        for found in (before, kept):
            found.pop("out.packing/.packing/lock", None)
        assert kept == before
        return
    report = CALLS[asked](things, target)
    if isinstance(report, PackReport):
        finished = report.inputs if becomes == CONFIRMED else 0
        assert report.resumed_from == (finished if becomes != CONTINUED else report.resumed_from or -1)
    if becomes == CONFIRMED:
        assert store_bytes(tmp_path) == before
    elif asked != "part":
        assert [*target.rglob(".packing")] == []
        assert os.listdir(tmp_path) == ["out"]
        CALLS["merge over" if asked == "merge" else asked](things, tmp_path / "fresh") if asked != "update" else None
        size = 16 if asked == "update" and out == "another store" else 32
        assert {MemmapDataset(store, as_tuple=False)[0].pixels.shape[0] for store in finished_in(target)} == {size}
        if (tmp_path / "fresh").exists():
            dropped = {name for name in store_bytes(target) if ".DS_Store" in name}
            assert {n: b for n, b in store_bytes(target).items() if n not in dropped} == store_bytes(tmp_path / "fresh")


def finished_in(out: Path) -> list[Path]:
    return [path.parent for path in out.rglob("manifest.json")]


# -- more rejects than allowed


def break_some(folder: Path, count: int) -> None:
    for path in sorted(folder.rglob("*.jpg"))[:count]:
        path.write_bytes(b"broken")


@pytest.mark.parametrize("way", ["overwrite", "update"])
@pytest.mark.parametrize("of", ["one", "splits"])
def test_more_rejects_than_allowed_leave_the_old_store_and_the_line_that_allows_them_decodes_nothing(
    way: str, of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = tmp_path / "images", tmp_path / "out"
    if of == "splits":
        make_splits(images, ("train", "val"), each=4)
    else:
        make_tree(images)
    pack(images, out, size=32)
    before = store_bytes(out)
    break_some(images / "val" if of == "splits" else images, 5)
    words = (
        ["update", str(images), str(out)] if way == "update" else [str(images), str(out), "--size=32", "--overwrite"]
    )
    for _ in range(2):
        assert run([*words, "--max-rejects", "4"]) == 3
        assert store_bytes(out) == before
        said = capsys.readouterr().err
        assert said.startswith("pack: 5 of 24 inputs were rejected, more than --max-rejects 4.")
        assert ", usable as before. To replace " in said
        assert said.endswith(", decoding nothing again: the same command with --max-rejects 5\n")
    assert run([*words, "--max-rejects", "5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["is_in_place"], report["rows"], report["resumed_from"]) == (True, 19, 24)
    pack(images, tmp_path / "fresh", size=32, max_rejects=5)
    assert store_bytes(out) == store_bytes(tmp_path / "fresh")
    assert sorted(os.listdir(tmp_path)) == ["fresh", "images", "out"]


# -- splits


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    """Train and val, packed into out; then each has one image more, and train another class list than before."""
    make_splits(tmp_path / "images", ("train", "val"), each=4)
    pack(tmp_path / "images", tmp_path / "out", size=32)
    for split in ("train", "val"):
        photo(40, 40, 5).save(tmp_path / "images" / split / "class2" / "new.jpg")
    return tmp_path / "images"


def test_new_splits_appear_together_and_info_names_the_line_until_then(
    splits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, stage = tmp_path / "new", tmp_path / "new.packing"
    with pytest.raises(KeyboardInterrupt):
        pack(splits, out, size=32, progress=stop_in("val"))
    assert not out.exists()
    for split in ("train", "val"):
        with pytest.raises(IncompleteStoreError, match="is incomplete: its command is still running"):
            MemmapDataset(out / split)
    for path in (out, stage, out / "train"):
        assert run(["info", str(path)]) == 1
        assert capsys.readouterr().err.endswith(f"Continue with: pack {splits} {out} --size 32\n")
    (splits / "train").rename(splits / "test")
    with pytest.raises(PackError, match="was started with other splits"):
        pack(splits, out, size=32)
    (splits / "test").rename(splits / "train")
    assert pack(splits, out, size=32).splits["train"].resumed_from == 13
    assert sorted(os.listdir(out)) == ["train", "val"]
    assert not stage.exists()


def test_splits_are_replaced_together_and_a_new_one_comes_with_them(
    splits: Path, tmp_path: Path, names_change: str
) -> None:
    out = tmp_path / "out"
    (out / "val").chmod(0o750)
    make_tree(splits / "test", each=2)
    (splits / "train" / "class1" / "001.jpg").unlink()
    with pytest.raises(PackError, match="already holds a store"):
        pack(splits, out, size=32)
    with pytest.raises(KeyboardInterrupt):
        update(splits, out, progress=stop_in("test"))
    assert (sorted(os.listdir(out)), sizes(out)) == (["train", "val"], {12})
    report = update(splits, out)
    # those that were sealed beside their place waited for the other
    found = {name: (part.rows, part.resumed_from, part.gone) for name, part in report.splits.items()}
    assert found == {"train": (12, 12, 1), "val": (13, 13, 0), "test": (6, 0, 0)}
    assert (report.rows, report.inputs, report.kept, report.gone) == (31, 31, 23, 1)
    assert (out / "val").stat().st_mode & 0o777 == 0o750
    pack(splits, tmp_path / "fresh", size=32)
    assert store_bytes(out) == store_bytes(tmp_path / "fresh")
    merge([out, tmp_path / "fresh"], out, overwrite=True)
    assert sizes(out) == {24, 26}
    assert sorted(os.listdir(tmp_path)) == ["fresh", "images", "out"]


def test_a_split_that_cannot_be_made_leaves_all_of_them(splits: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = store_bytes(out)
    break_some(splits / "val", 13)
    with pytest.raises(PackError, match="all 13 inputs were rejected"):
        pack(splits, out, size=32, overwrite=True)
    shutil.rmtree(tmp_path / "out.packing")
    shutil.copytree(out, tmp_path / "more")
    with open(tmp_path / "more/val/_tensordict/pixels.memmap", "r+b") as file:
        file.write(b"flipped")
    with pytest.raises(PackError, match="more/val is damaged"):
        merge([out, tmp_path / "more"], out, overwrite=True)
    assert store_bytes(out) == before
    assert sorted(os.listdir(tmp_path)) == ["images", "more", "out"]


# -- what comes to OUT meanwhile


@pytest.mark.parametrize("moment", ["before the stage is made", "before it is locked"])
def test_a_command_that_finishes_out_first_is_named(
    moment: str, things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, flock, others = tmp_path / "out", fcntl.flock, [lambda: CALLS["pack"](things, tmp_path / "out")]

    def finish_first(progress: Any = None) -> None:
        while others and (progress is None or progress.stage == "sizes"):
            others.pop()()

    if moment == "before it is locked":
        monkeypatch.setattr(fcntl, "flock", lambda *given: (finish_first(), flock(*given)))
    progress = finish_first if moment == "before the stage is made" else None
    with pytest.raises(PackError, match=r"out was finished by another process just now\. Give the command again"):
        pack(things / "images", out, fit="none", workers=1, progress=progress)
    assert store_bytes(tmp_path / "out") == store_bytes(things / "store")
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("holds", ["a file", "a folder with a file", "a link"])
def test_whatever_takes_the_name_of_a_new_store_keeps_it(holds: str, things: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make: dict[str, Callable[[], object]] = {
        "a file": lambda: out.write_text("mine"),
        "a folder with a file": lambda: (out.mkdir(), (out / "mine").write_text("mine")),
        "a link": lambda: out.symlink_to(things / "images"),
    }

    def late(progress: Any) -> None:
        if progress.stage == "seal" and not os.path.lexists(out):
            make[holds]()

    with pytest.raises(PackError, match="out was renamed, removed or replaced while this command worked on it"):
        pack(things / "images", out, size=32, progress=late)
    assert out.is_symlink() or "mine" in (out.read_text() if out.is_file() else [*os.listdir(out), "mine"])
    (tmp_path / "moved").symlink_to(out) if out.is_symlink() else out.rename(tmp_path / "moved")
    out.unlink(missing_ok=True)
    assert pack(things / "images", out, size=32).resumed_from == 24


def test_what_comes_to_out_while_it_is_replaced_stays(splits: Path, tmp_path: Path, names_change: str) -> None:
    """A split, or a file: the line continues without it."""
    out = tmp_path / "out"

    def comes(progress: Any) -> None:
        if (progress.split, progress.stage) == ("val", "pack") and not (out / "test").exists():
            pack(splits / "val", out / "test", size=16)
            (out / "mine.txt").write_text("mine")

    with pytest.raises(PackError, match=r"out also holds mine\.txt, which would be deleted"):
        pack(splits, out, size=32, overwrite=True, progress=comes)
    assert (sizes(out), (out / "mine.txt").read_text(), sizes(out, "test")) == ({12}, "mine", {13})
    (out / "mine.txt").unlink()
    with pytest.raises(PackError, match=r"other splits: train, val, test, now train, val\. .* move .*/out/test away"):
        pack(splits, out, size=32, overwrite=True)
    (out / "test").rename(tmp_path / "test")
    assert pack(splits, out, size=32, overwrite=True).resumed_from == 26
    assert sizes(out) == {13}


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


# -- as names change


def test_an_end_as_names_change_leaves_the_old_store_or_the_new_one(
    things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each rename on a system that exchanges no names: tests/crash has the other calls."""
    out, rename = tmp_path / "out", os.rename
    monkeypatch.setattr("ctypes.CDLL", None)
    for moment in range(5):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(things / "small", out)
        left = [moment]

        def dying(one: Any, other: Any, left: list[int] = left) -> None:
            is_ours = "tmp" not in Path(one).suffix and not (one == out and (tmp_path / "out.packing") == other)
            for step in range(2 if is_ours else 0):
                if left[0] == 0:
                    raise KeyboardInterrupt
                left[0] -= 1
                if step == 0:
                    rename(one, other)
            if not is_ours:
                rename(one, other)

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(os, "rename", dying)
            CALLS["overwrite"](things, out)
        found = {name: data for name, data in store_bytes(out).items() if ".packing" not in name}
        assert found in (store_bytes(things / "small"), store_bytes(things / "store"), {})
        # any command takes the old one back where there is none between two renames
        with contextlib.suppress(PackError):
            CALLS["pack"](things, out)
        assert len(MemmapDataset(out)) == 24
        CALLS["overwrite"](things, out)
        assert store_bytes(out) == store_bytes(things / "store")
        assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("kind", ["pack", "splits", "merge", "pull"])
def test_an_end_as_files_move_into_a_folder_that_is_there_is_finished_by_the_next_command(
    kind: str, things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rename = tmp_path / "out", os.rename
    CALLS[kind](things, tmp_path / "fresh")
    for moment in range(1, 8):
        out.mkdir(mode=0o700)
        inode, moved = out.stat().st_ino, []

        def dying(one: Any, other: Any, moved: list[Path] = moved, moment: int = moment) -> None:
            rename(one, other)
            moved += [other] * (Path(other).parent == out)
            if len(moved) == moment:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(os, "rename", dying)
            CALLS[kind](things, out)
        names = ["train", "val"] if kind == "splits" else ["."]
        missing = [name for name in names if not (out / name / "manifest.json").exists()]
        for name in names:
            if name not in missing:  # its manifest came last
                MemmapDataset(out / name)
        if missing:
            with pytest.raises(IncompleteStoreError):
                MemmapDataset(out / missing[0])
            with pytest.raises(IncompleteStoreError, match="is incomplete: "):
                verify(out)
        with contextlib.suppress(PackError):  # a merge finds OUT finished
            CALLS[kind](things, out)
        assert store_bytes(out) == store_bytes(tmp_path / "fresh")
        assert (out.stat().st_ino, out.stat().st_mode & 0o777) == (inode, 0o700)
        shutil.rmtree(out)
        if len(moved) < moment:
            break
    assert moment == (3 if kind == "splits" else 6)


def test_what_is_put_into_a_folder_that_is_being_filled_stays(things: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in ("meta.json", "manifest.json", "train"):
        out.mkdir()
        interrupted(pack, things / "images", out, size=32, workers=1, inputs=4)
        (out / name).write_text("mine")
        with pytest.raises(OptionsError, match=rf"out is not empty \(it holds {name}\)"):
            pack(things / "images", out, size=32)
        assert (out / name).read_text() == "mine"
        (out / name).unlink()
        assert pack(things / "images", out, size=32).resumed_from >= 4
        shutil.rmtree(out)


# -- which folder it is


@pytest.mark.parametrize("way", ["update", "overwrite", "subset"])
def test_a_folder_that_is_replaced_keeps_its_mode(way: str, images: Path, tmp_path: Path, names_change: str) -> None:
    """Also while it is made: what was private is not readable meanwhile."""
    out, stage, kept = tmp_path / "out", tmp_path / "out.packing", list[int]()
    pack(images, out, size=32)
    out.chmod(0o700)

    def seen(progress: Any) -> None:
        kept.append((stage if stage.exists() else out).stat().st_mode & 0o777)

    calls: dict[str, Callable[[], object]] = {
        "update": lambda: update(images, out, progress=seen),
        "overwrite": lambda: pack(images, out, size=16, overwrite=True, progress=seen),
        "subset": lambda: subset(out, out, rows=[0], overwrite=True),
    }
    calls[way]()
    assert {*kept, out.stat().st_mode & 0o777} == {0o700}


def test_a_name_too_long_for_the_folder_that_it_is_made_in_is_refused(
    things: Path, tmp_path: Path, names_change: str
) -> None:
    for size in (244, 300):
        with pytest.raises(OptionsError, match=f"has a name of {size} bytes, expected 243 at most"):
            CALLS["pack"](things, tmp_path / ("x" * size))
    for asked in ("pack", "overwrite"):
        CALLS[asked](things, tmp_path / ("x" * 243))
    assert [len(name) for name in os.listdir(tmp_path)] == [243]


@pytest.mark.parametrize("asked", ["pack", "overwrite", "update", "merge", "pull"])
def test_it_is_made_where_the_system_says_that_a_path_through_a_link_leads(
    asked: str, things: Path, tmp_path: Path
) -> None:
    (tmp_path / "far/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/deep")
    for out in ("out", "far/out") if asked in ("overwrite", "update") else ("out",):
        OUTS["another store"](things, tmp_path / out)
    before = store_bytes(tmp_path / "out")
    CALLS[asked](things, tmp_path / "link/../out")
    assert store_bytes(tmp_path / "out") == before
    assert (tmp_path / "far/out/manifest.json").is_file()
    assert sorted(os.listdir(tmp_path)) == ["far", "link", "out"]


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


def test_a_mount_point_is_filled_and_never_replaced(mounted: Path, things: Path, tmp_path: Path) -> None:
    images, seen = things / "images", set[str]()
    interrupted(pack, images, mounted, size=32, workers=1, inputs=4)
    assert os.listdir(mounted) == [".packing"]
    with pytest.raises(IncompleteStoreError, match="pack info"):
        MemmapDataset(mounted)
    assert pack(images, mounted, size=32).resumed_from >= 4
    assert store_bytes(mounted) == store_bytes(things / "store")
    assert pack(images, mounted, size=32).resumed_from == 24
    with pytest.raises(PackError, match="out cannot be replaced: its file system does not rename it"):
        pack(images, mounted, size=16, overwrite=True, progress=lambda progress: seen.add(progress.stage))
    assert "pack" not in seen
    assert store_bytes(mounted) == store_bytes(things / "store")
    assert not (tmp_path / "out.packing").exists()


@pytest.mark.parametrize("way", ["overwrite", "update"])
@pytest.mark.parametrize(("here", "given"), [("out", "."), ("out.packing", "../out")])
def test_out_is_given_from_inside_itself(
    way: str, here: str, given: str, things: Path, tmp_path: Path, names_change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that a command works in has another name, or is gone, once it is replaced."""
    shutil.copytree(things / "store", tmp_path / "out")
    if here == "out.packing":
        STAGES["an update" if way == "update" else "this pack"](things, tmp_path / "out")
    monkeypatch.chdir(tmp_path / here)
    assert CALLS[way](things, Path(given)).rows == 24
    monkeypatch.chdir(tmp_path)
    assert store_bytes(tmp_path / "out") == store_bytes(things / "store")
    assert os.listdir(tmp_path) == ["out"]


def test_a_reader_says_of_an_out_that_is_not_there_that_it_is_in_the_making(things: Path, tmp_path: Path) -> None:
    STAGES["this pack"](things, tmp_path / "out")
    for path in (tmp_path / "out", tmp_path / "out.packing"):
        with pytest.raises(IncompleteStoreError, match=f"to resume it: pack info {path}$"):
            MemmapDataset(path)
    with pytest.raises(StoreError, match="does not exist"):
        MemmapDataset(tmp_path / "other")


# -- links


# A place of ours below the folder that holds OUT, what is there before, and what is asked for.
LINKS = [
    ("out.packing", "nothing", "pack"),
    ("out.packing", "the store", "overwrite"),
    ("out.packing", "the store", "merge over"),
    ("out/.packing", "a folder", "pack"),
    ("out/.packing", "the store", "overwrite"),
    ("out.packing.old", "the store", "update"),
    ("out.packing/_tensordict/extras", "this pack", "pack"),
    ("out.packing/.packing/lock", "this pack", "pack"),
    ("out.packing/.packing/parts/1-of-2", "nothing", "part"),
    ("out.packing/.packing/parts/1-of-2", "nothing", "seal"),
]


@pytest.mark.parametrize(("link", "before", "asked"), LINKS)
def test_a_link_at_a_path_of_ours_is_refused_and_followed_nowhere(
    link: str, before: str, asked: str, things: Path, tmp_path: Path, small_blocks: None
) -> None:
    (OUTS | STAGES)[before](things, tmp_path / "out")
    path, others = tmp_path / link, tmp_path / "others"
    others.mkdir()
    (others / "theirs").write_text("theirs")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(others / "theirs" if path.name == "lock" else others)
    found = store_bytes(tmp_path)
    with pytest.raises(PackError, match=rf"{path} is a symbolic link to {others}.*, where pack keeps its own files"):
        CALLS[asked](things, tmp_path / "out")
    assert store_bytes(tmp_path) == found
    assert path.is_symlink()
