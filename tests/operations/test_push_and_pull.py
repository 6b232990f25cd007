"""Stores pushed and pulled: the same bytes, nothing replaced by default, and right again after any death.

Against moto's S3 server on loopback where moto and s3fs are installed, against folders, and in memory.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from children import Child
from conftest import interrupted, make_splits, make_tree, store_bytes
from test_remote import fsspec, s3, s3_server  # noqa: F401 (fixtures)

from packer import OptionsError, PackError, pack, pull, push
from packer.cli.app import run
from packer.store.state import check_finished
from reader import IncompleteStoreError, StoreError
from reader.format.manifest import MANIFEST, PIXELS, read_manifest


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    """Objects in this process's memory."""
    yield
    fsspec.filesystem("memory").rm("/", recursive=True)


@pytest.fixture(params=["memory", "file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store is pushed to."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/stores/out"
    return "memory://stores/out" if request.param == "memory" else f"file://{tmp_path}/far/out"


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three stores of other rows, the third of rows with sizes of their own, which no test may change."""
    root, stores = tmp_path_factory.mktemp("three"), []
    for n, options in enumerate(({"size": 32}, {"size": 24}, {"fit": "none", "max_size": 40})):
        make_tree(root / f"images{n}", each=2 + n)
        pack(root / f"images{n}", root / f"store{n}", workers=1, **options)
        stores.append(root / f"store{n}")
    return stores


def names_at(url: str) -> list[str]:
    """All files at a URL."""
    files, root = fsspec.core.url_to_fs(url)
    files.invalidate_cache()
    return sorted(os.path.relpath(path, root) for path in files.find(root))


def pulled(url: str, folder: Path) -> dict[str, bytes]:
    """The bytes of the store at a URL, which is pulled to a place that is free again afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    pull(url, folder)
    found = store_bytes(folder)
    shutil.rmtree(folder)
    return found


# -- right in every state


def test_a_store_pushed_and_pulled_is_the_same_bytes(store: Path, tmp_path: Path, url: str) -> None:
    first = push(store, url)
    assert (first.copied_bytes, first.kept_bytes) == (first.store_bytes, 0)
    assert names_at(url) == sorted(store_bytes(store))
    again = push(store, url)
    assert (again.copied_bytes, again.kept_bytes) == (0, first.store_bytes)
    assert pull(url, tmp_path / "back").copied_bytes == first.store_bytes
    assert store_bytes(tmp_path / "back") == store_bytes(store)
    assert pull(url, tmp_path / "back").copied_bytes == 0


def test_another_store_is_refused_and_replaced_with_overwrite(three: list[Path], tmp_path: Path, url: str) -> None:
    push(three[0], url)
    with pytest.raises(
        OptionsError, match="holds another store. Replace it with overwrite=True, or choose another URL"
    ):
        push(three[1], url)
    assert pulled(url, tmp_path / "back") == store_bytes(three[0])
    push(three[1], url, overwrite=True)
    assert pulled(url, tmp_path / "back") == store_bytes(three[1])


def test_anything_else_at_the_url_is_refused_and_stays(three: list[Path], tmp_path: Path, url: str) -> None:
    push(three[0], f"{url}/train")
    with pytest.raises(OptionsError, match=r"also holds train\. Choose another URL"):
        push(three[1], url, overwrite=True)
    shutil.copytree(three[0], tmp_path / "out/val")
    with pytest.raises(OptionsError, match=r"also holds .*\. Choose another URL"):
        push(tmp_path / "out", url)
    assert names_at(url) == sorted(f"train/{name}" for name in store_bytes(three[0]))


def test_a_path_is_no_url(store: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="far is a path, expected a URL such as s3://bucket/out"):
        push(store, str(tmp_path / "far"))
    assert not (tmp_path / "far").exists()


# -- deaths


def _killed(pipe: Connection, at: int, words: list[str]) -> None:
    """Run the command, killed before it changes something at the URL for the n-th time."""
    changes, files = itertools.count(), fsspec.get_filesystem_class("file")

    def dying(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any) -> Any:
            if next(changes) >= at:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments)

        return changed

    for name in ("put_file", "rm_file", "pipe_file"):
        setattr(files, name, dying(getattr(files, name)))
    sys.exit(run(words))


def killed_push(store: Path, url: str, at: int) -> bool:
    """Push with --overwrite in a process that is killed at its n-th change; returns whether it was."""
    code = Child(_killed, at, ["push", str(store), url, "--overwrite"]).ended()
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("replaces", [False, True])
def test_a_push_killed_anywhere_leaves_no_store_or_a_whole_one_and_the_same_command_ends_it(
    three: list[Path], tmp_path: Path, replaces: bool
) -> None:
    for at in itertools.count():
        url = f"file://{tmp_path}/far{at}"
        if replaces:
            push(three[0], url)
        if not killed_push(three[2], url, at):
            break
        if MANIFEST in names_at(url):
            assert (replaces, at) == (True, 0)
            assert pulled(url, tmp_path / "back") == store_bytes(three[0])
        else:
            with pytest.raises(PackError, match="holds no complete store"):
                pull(url, tmp_path / "back")
        push(three[2], url, overwrite=True)
        assert pulled(url, tmp_path / "back") == store_bytes(three[2])
    assert at > 5


def test_a_killed_push_of_splits_never_leaves_two_with_different_classes(tmp_path: Path) -> None:
    stores = {}
    for name, classes in (("old", 2), ("new", 3)):
        for split in ("train", "val"):
            make_tree(tmp_path / f"{name}/{split}", classes=classes, each=1)
        pack(tmp_path / name, tmp_path / f"{name}.out", size=16)
        stores[name] = tmp_path / f"{name}.out"
    for at in itertools.count():
        far = tmp_path / f"far{at}"
        push(stores["old"], f"file://{far}")
        if not killed_push(stores["new"], f"file://{far}", at):
            break
        found = {path.parent.name: read_manifest(path.parent).classes for path in far.glob(f"*/{MANIFEST}")}
        assert len(set(found.values())) <= 1
        if len(found) < 2:
            with pytest.raises(PackError, match="holds no complete store"):
                pull(f"file://{far}", tmp_path / "back")
        push(stores["new"], f"file://{far}", overwrite=True)
        assert store_bytes(far) == store_bytes(stores["new"])
    assert at > 10


# -- pull


@pytest.mark.parametrize("number", [0, 2])
def test_an_interrupted_pull_is_no_store_and_is_continued_block_by_block(
    three: list[Path], tmp_path: Path, number: int
) -> None:
    store, back, memory = three[number], tmp_path / "back", fsspec.filesystem("memory")
    push(store, "memory://stores/out")
    damaged = f"/stores/out/{PIXELS}"
    intact = memory.cat_file(damaged)
    memory.pipe_file(damaged, bytes([intact[0] ^ 1]) + intact[1:])
    with pytest.raises(PackError, match=r"pixels.memmap does not match the manifest there"):
        pull("memory://stores/out", back)
    with pytest.raises(IncompleteStoreError, match=r"its pull was interrupted or is still running\."):
        check_finished(back)
    memory.pipe_file(damaged, intact)
    report = pull("memory://stores/out", back)
    assert report.copied_bytes < report.store_bytes
    assert store_bytes(back) == store_bytes(store)


def _killed_writing(pipe: Connection, at: int, words: list[str]) -> None:
    """Run the command, killed before it writes through a descriptor, as a journal is, or renames, for the n-th time."""
    calls = itertools.count()

    def killed(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            if next(calls) >= at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return called

    os.write, os.replace, os.rename = killed(os.write), killed(os.replace), killed(os.rename)
    sys.exit(run(words))


def test_a_continued_pull_that_is_killed_is_still_a_pull(three: list[Path], tmp_path: Path) -> None:
    far, back = tmp_path / "far", tmp_path / "back"
    push(three[0], f"file://{far}")
    shutil.copy(far / PIXELS, tmp_path / "intact")
    (far / PIXELS).write_bytes(bytes((far / PIXELS).stat().st_size))
    with pytest.raises(PackError, match="does not match the manifest there"):
        pull(f"file://{far}", back)
    shutil.copy(tmp_path / "intact", far / PIXELS)
    for at in itertools.count():
        if (code := Child(_killed_writing, at, ["pull", f"file://{far}", str(back), "--json"]).ended()) == 0:
            break
        assert code == -signal.SIGKILL
        with pytest.raises(IncompleteStoreError, match=r"its pull was interrupted or is still running\."):
            check_finished(back)
    assert store_bytes(back) == store_bytes(three[0])


def test_a_pull_of_splits_goes_on_after_each_kill(tmp_path: Path) -> None:
    make_splits(tmp_path / "images", ("train", "val"), each=3)
    pack(tmp_path / "images", tmp_path / "out", size=32, workers=1)
    far, back = tmp_path / "far", tmp_path / "back"
    push(tmp_path / "out", f"file://{far}")
    words = ["pull", f"file://{far}", str(back), "--json"]
    ends = [*itertools.takewhile(bool, (Child(_killed_writing, at, words).ended() for at in itertools.count()))]
    assert set(ends) == {-signal.SIGKILL}
    assert len(ends) > 2
    for split in ("train", "val"):
        assert store_bytes(back / split) == store_bytes(tmp_path / "out" / split)
    assert sorted(path.name for path in back.iterdir()) == ["train", "val"]


@pytest.mark.parametrize("name", ["samples.jsonl", PIXELS])
def test_damage_is_neither_pushed_nor_pulled(store: Path, tmp_path: Path, name: str) -> None:
    push(store, "memory://stores/out")
    memory, path = fsspec.filesystem("memory"), f"/stores/out/{name}"
    data = bytearray(memory.cat_file(path))
    data[7] ^= 1
    memory.pipe_file(path, bytes(data))
    with pytest.raises(PackError, match=r"does not match the manifest there\. Push the store again"):
        pull("memory://stores/out", tmp_path / "back")
    os.chmod(store / name, 0o644)
    (store / name).write_bytes(bytes(data))
    with pytest.raises(PackError, match=r"is damaged\. See what is: pack verify"):
        push(store, "memory://stores/other")
    assert MANIFEST not in names_at("memory://stores/other")
    # nor does it take the place of another
    make_tree(tmp_path / "images", classes=1, each=2)
    pack(tmp_path / "images", tmp_path / "good", size=32, workers=1)
    push(tmp_path / "good", "memory://stores/good")
    with pytest.raises(PackError, match=r"is damaged\. See what is: pack verify"):
        push(store, "memory://stores/good", overwrite=True)
    assert MANIFEST in names_at("memory://stores/good")


def test_pull_refuses_a_path_that_is_taken(images: Path, three: list[Path], tmp_path: Path) -> None:
    push(three[0], "memory://stores/out")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/mine.txt").touch()
    shutil.copytree(three[1], tmp_path / "other")
    interrupted(pack, images, tmp_path / "unfinished", size=32, workers=1, inputs=4)
    for name, says in (("taken", "is not empty"), ("other", "holds another store"), ("unfinished", "is incomplete")):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(OptionsError, match=says):
            pull("memory://stores/out", tmp_path / name)
        assert sorted(tmp_path.rglob("*")) == before


def test_zeros_behind_the_last_row_are_zeros_whatever_an_unfinished_pull_had_there(
    three: list[Path], tmp_path: Path
) -> None:
    push(three[2], "memory://stores/out")
    (tmp_path / "back.packing/_tensordict").mkdir(parents=True)
    (tmp_path / "back.packing/.packing").mkdir()
    (tmp_path / "back.packing" / PIXELS).write_bytes(b"\xff" * 10_000_000)
    pull("memory://stores/out", tmp_path / "back")
    assert store_bytes(tmp_path / "back") == store_bytes(three[2])


def test_room_is_looked_for_before_anything_is_pulled(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    push(store, f"file://{tmp_path}/far")
    with monkeypatch.context() as patch:
        patch.setattr("packer.store.disk_space.free_bytes", lambda path: 1000)
        assert run(["pull", f"file://{tmp_path}/far", str(tmp_path / "back")]) == 28
    assert "has 1000 free" in (error := capsys.readouterr().err)
    assert "give the same command again" in error
    assert not (tmp_path / "back.packing").exists()
    assert run(["pull", f"file://{tmp_path}/far", str(tmp_path / "back")]) == 0
    assert store_bytes(tmp_path / "back") == store_bytes(store)


def test_a_store_that_is_damaged_at_the_url_is_one_sentence(three: list[Path], tmp_path: Path, url: str) -> None:
    with pytest.raises(PackError, match=r"holds no complete store: there is no manifest.json"):
        pull(url, tmp_path / "back")
    push(three[0], url)
    files, root = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{root}/{MANIFEST}", b'{"hello": 1}')
    with pytest.raises(StoreError):
        pull(url, tmp_path / "back")
    push(three[0], url, overwrite=True)
    assert pulled(url, tmp_path / "back") == store_bytes(three[0])


def test_the_commands_push_and_pull(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/far"
    assert run(["push", str(store), url]) == 0
    assert f"{store} is at {url}: " in capsys.readouterr().out
    assert run(["pull", url, str(tmp_path / "back"), "--json"]) == 0
    assert '"kept_bytes": 0' in capsys.readouterr().out
    assert run(["push", str(tmp_path / "nothing"), url]) == 1
