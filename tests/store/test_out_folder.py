"""OUT and what is beside it: links in places of ours, what file managers drop, and the rights of files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Tune, interrupted, make_splits, make_tree, store_bytes

from packer import OptionsError, PackError, SourceError, merge, pack, seal_parts, subset, update
from packer.cli.app import run
from packer.store.out_folder import check_no_links
from reader import MemmapDataset


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A store and a journal of another pack, that a link may lead to."""
    images = make_tree(tmp_path / "other-images", each=2)
    pack(images, tmp_path / "others", size=16)
    (tmp_path / "others" / ".packing").mkdir()
    (tmp_path / "others" / ".packing" / "journal").write_text("theirs")
    return tmp_path / "others"


# A place of ours below the folder that holds OUT, what is there before, and what is asked for then.
LINKS: dict[str, tuple[str, str, str]] = {
    "where it is made": ("out.packing", "nothing", "pack"),
    "where a replacement is made": ("out.packing", "store", "overwrite"),
    "the same, update": ("out.packing", "store", "update"),
    "the same, merge": ("out.packing", "store", "merge"),
    "the working folder of a folder that is there": ("out/.packing", "nothing", "pack"),
    "that of a store": ("out/.packing", "store", "overwrite"),
    "that of a replacement": ("out.packing/.packing", "store", "overwrite"),
    "the tensors": ("out.packing/_tensordict", "unfinished", "resume"),
    "the tensors, again": ("out.packing/_tensordict", "unfinished", "overwrite"),
    "the extras": ("out.packing/_tensordict/extras", "unfinished", "resume"),
    "the pixels": ("out.packing/_tensordict/pixels.memmap", "unfinished", "resume"),
    "the lock": ("out.packing/.packing/lock", "unfinished", "resume"),
    "the journal": ("out.packing/.packing/journal", "unfinished", "resume"),
    "a temporary file": ("out.packing/.manifest.json.tmp", "unfinished", "resume"),
    "a file of the store": ("out.packing/samples.jsonl", "unfinished", "resume"),
    "a part": ("out.packing/.packing/parts/1-of-2", "nothing", "part"),
    "a part's journal": ("out.packing/.packing/parts/1-of-2/.packing", "nothing", "part"),
    "a part that is sealed": ("out.packing/.packing/parts/1-of-2", "nothing", "seal"),
    "where the replaced store is between two renames": ("out.packing.old", "store", "overwrite"),
}


@pytest.mark.skipif(os.name == "nt", reason="links")
@pytest.mark.parametrize(("link", "before", "asked"), LINKS.values(), ids=LINKS)
def test_a_link_at_a_path_of_ours_is_refused_and_followed_nowhere(
    link: str, before: str, asked: str, images: Path, others: Path, tmp_path: Path, tune: Tune
) -> None:
    tune(least_block_inputs=2)
    out = tmp_path / "out"
    if before == "store":
        pack(images, out, size=32)
    elif before == "unfinished":
        interrupted(pack, images, out, size=32, workers=1, inputs=4)
    theirs, path = store_bytes(others), tmp_path / link
    target = others / "manifest.json" if path.suffix in (".memmap", ".jsonl", ".tmp") else others
    target = others / ".packing" / "journal" if path.name in ("lock", "journal") else target
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    mine = store_bytes(out) if out.exists() else {}

    ask: dict[str, Callable[[], Any]] = {
        "pack": lambda: pack(images, out, size=32),
        "overwrite": lambda: pack(images, out, size=16, overwrite=True),
        "resume": lambda: pack(images, out, size=32),
        "update": lambda: update(images, out),
        "merge": lambda: merge([others, others], out, overwrite=True),
        "part": lambda: pack(images, out, size=32, part="1/2"),
        "seal": lambda: seal_parts(out),
    }
    with pytest.raises(PackError, match=rf"{path} is a symbolic link to {target}, where pack keeps what is its own"):
        ask[asked]()
    assert store_bytes(others) == theirs
    assert path.is_symlink()
    assert (store_bytes(out) if out.exists() else {}) == mine


@pytest.mark.skipif(os.name == "nt", reason="links")
def test_the_folder_of_a_split_that_is_a_link_is_not_replaced(tmp_path: Path) -> None:
    make_splits(tmp_path / "images", ("train", "val"), each=2)
    out = tmp_path / "out"
    pack(tmp_path / "images", out, size=32)
    (out / "val").rename(tmp_path / "elsewhere")
    (out / "val").symlink_to(tmp_path / "elsewhere")
    before = store_bytes(tmp_path / "elsewhere")
    with pytest.raises(PackError, match=r"out/val is a symbolic link, which cannot be replaced\. Put the folder"):
        update(tmp_path / "images", out)
    assert store_bytes(tmp_path / "elsewhere") == before
    assert (out / "val").is_symlink()


def test_paths_without_links_are_fine_whether_they_exist_or_not(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    check_no_links(tmp_path / "a", tmp_path / "a" / "b" / "file", tmp_path / "none")


@pytest.mark.skipif(os.name == "nt", reason="rights of files")
@pytest.mark.parametrize("umask", [0o002, 0o027])
def test_every_file_of_a_store_has_the_rights_that_the_umask_leaves(umask: int, images: Path, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        pack(images, tmp_path / "out", size=32)
        merge([tmp_path / "out", tmp_path / "out"], tmp_path / "merged")
        interrupted(pack, images, tmp_path / "begun", size=32, workers=1, inputs=4)
    finally:
        os.umask(before)
    for out in ("out", "merged", "begun"):
        files = [path for path in (tmp_path / out).rglob("*") if path.is_file()]
        assert {path.name: path.stat().st_mode & 0o777 for path in files} == {
            path.name: 0o666 & ~umask for path in files
        }


# -- what file managers drop


def drop(*folders: Path) -> None:
    for folder in folders:
        (folder / "@eaDir").mkdir()
        for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._manifest.json"):
            (folder / name).write_text("dropped")


@pytest.mark.parametrize("way", ["update", "overwrite", "merge"])
def test_what_the_system_dropped_into_a_store_goes_with_it_and_is_reported(
    way: str, images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    pack(images, out, size=32)
    before = store_bytes(out)
    drop(out)
    if way == "update":
        report = update(images, out)
    elif way == "overwrite":
        report = pack(images, out, size=16, overwrite=True)
    else:
        pack(images, tmp_path / "other", size=32)
        report = merge([tmp_path / "other"] * 2, out, overwrite=True)
    names = r"\.DS_Store, \._manifest\.json, @eaDir, Thumbs\.db, desktop\.ini"
    assert [note for note in report.notes if note.startswith(f"{out} also held ")] == [
        f"{out} also held {names}, which went with the old store.".replace("\\", "")
    ]
    assert way != "update" or store_bytes(out) == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_what_the_system_dropped_is_in_nobodys_way_elsewhere(images: Path, tmp_path: Path) -> None:
    out, parts = tmp_path / "out", tmp_path / "parts"
    for folder in (out, parts):
        folder.mkdir()
        drop(folder)
    interrupted(pack, images, out, size=32, workers=1, inputs=4)
    pack(images, out, size=32)
    for number in (1, 2):
        pack(images, parts, size=32, part=f"{number}/2")
    seal_parts(parts)
    assert len(MemmapDataset(out)) == len(MemmapDataset(parts)) == 24
    assert (out / ".DS_Store").read_text() == (parts / ".DS_Store").read_text() == "dropped"


def test_what_is_not_the_systems_still_keeps_out(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(images, out, size=32)
    drop(out)
    (out / "notes.txt").touch()
    with pytest.raises((PackError, OptionsError), match=r"out also holds notes\.txt, which would be deleted"):
        update(images, out)


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("way", ["update", "overwrite", "subset"])
def test_a_folder_that_is_replaced_keeps_its_mode(
    way: str, exchanges: bool, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    pack(images, out, size=32)
    out.chmod(0o700)
    if not exchanges:
        monkeypatch.setattr("ctypes.CDLL", None)
    modes = []
    if way == "subset":
        subset(out, out, rows=[0], overwrite=True)
    else:
        call = update if way == "update" else pack
        options: dict[str, Any] = {} if way == "update" else {"size": 16, "overwrite": True}
        stage = tmp_path / "out.packing"
        call(
            images,
            out,
            progress=lambda _: modes.append(stage.stat().st_mode if stage.exists() else out.stat().st_mode),
            **options,
        )
    assert {mode & 0o777 for mode in (*modes, out.stat().st_mode)} == {0o700}


def test_an_out_in_a_folder_that_is_not_there_is_refused(images: Path, tmp_path: Path) -> None:
    for call in (pack, update):
        with pytest.raises(
            OptionsError, match=rf"OUT is {tmp_path}/none/out, and there is no folder {tmp_path}/none\."
        ):
            call(images, tmp_path / "none/out")
    assert not (tmp_path / "none").exists()


def test_a_store_takes_no_pack_into_its_folder(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(images, out, size=32)
    before = store_bytes(out)
    for path in (out / "sub", out / "_tensordict/below", out / "_tensordict"):
        with pytest.raises(OptionsError, match=rf"OUT {path} is in the store {out}\. Choose a folder outside it"):
            pack(images, path, size=16)
    assert store_bytes(out) == before
    started = tmp_path / "begun"
    interrupted(pack, images, started, size=32, workers=1, inputs=4)
    with pytest.raises(OptionsError, match=f"is in the store {started}.packing"):
        pack(images, tmp_path / "begun.packing" / "sub", size=16)
    pack(images, started, size=32)
    assert store_bytes(started) == before


@pytest.mark.parametrize(
    "arguments",
    [["push", "out", ""], ["push", "", "copy"], ["pull", "", "copy"], ["pull", "out", ""], ["images", ""], ["", "new"]],
)
def test_an_empty_path_or_url_is_none(
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    pack(images, tmp_path / "out", size=16)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(arguments) == 2
    assert "it is empty, expected a path or URL." in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_list_whose_folder_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    table = tmp_path / "list.csv"
    table.write_text("path,label\nnowhere/a.jpg,x\nnowhere/b.jpg,y\n")
    expected = rf"{tmp_path}/nowhere is gone; inputs are there: mount or restore it, or correct the paths"
    with pytest.raises(SourceError, match=expected):
        pack(table, tmp_path / "out", size=16)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """A folder on an overlay file system whose lower layer holds the store "out"; skipped where none can be mounted."""
    base = tmp_path / "base"
    base.mkdir()
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", base], capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        for name in ("lower", "upper", "work"):
            (base / name).mkdir()
        pack(make_tree(tmp_path / "before", classes=1, each=3), base / "lower/out", size=16, workers=1)
        layers = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
        done = subprocess.run(
            ["mount", "-t", "overlay", "overlay", "-o", layers, mounted], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"this user may not mount an overlay: {done.stderr.strip()}")
        try:
            yield mounted
        finally:
            subprocess.run(["umount", "-l", mounted], check=True)
    finally:
        subprocess.run(["umount", "-l", base], check=True)


def _replaced_or_refused(out: Path, images: Path) -> None:
    """See that a pack replaces a store, or is refused before it decodes anything and leaves nothing behind."""
    stages: set[str] = set()
    try:
        pack(images, out, size=32, workers=1, overwrite=True, progress=lambda progress: stages.add(progress.stage))
    except PackError:
        assert "pack" not in stages
    else:
        assert MemmapDataset(out, as_tuple=False)[0].pixels.shape == (32, 32, 3)
    assert [path.name for path in out.parent.iterdir() if path.name.startswith(".")] == []


def test_a_store_of_a_lower_layer_is_replaced_or_refused_before_any_work(overlay: Path, images: Path) -> None:
    _replaced_or_refused(overlay / "out", images)


def test_a_store_with_a_long_name_is_replaced_or_refused_before_any_work(images: Path, tmp_path: Path) -> None:
    (tmp_path / "stores").mkdir()
    out = tmp_path / "stores" / ("n" * 245)
    pack(images, out, size=16, workers=1)
    _replaced_or_refused(out, images)


@pytest.mark.parametrize("name", ["_tensordict/notes.txt", "_tensordict/extras/emb.npy"])
def test_a_file_of_others_anywhere_in_a_store_is_not_deleted(name: str, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(images, out, size=32)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("mine")
    with pytest.raises((PackError, OptionsError), match=f"out also holds {name}, which would be deleted"):
        pack(images, out, size=32, overwrite=True)
    with pytest.raises(PackError, match="is not a file of this store"):
        update(images, out)
    assert (out / name).read_text() == "mine"
