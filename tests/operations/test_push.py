"""Stores pushed and pulled: the same bytes, nothing overwritten by default, and right again after any death.

Against moto's S3 server on loopback where moto and s3fs are installed, against folders, and in memory.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from children import Child
from conftest import PACK, Tune, interrupted, make_tree, store_bytes
from test_remote import fsspec, s3, s3_server  # noqa: F401 (fixtures)

from packer import OptionsError, PackError, ScanError, pack, pull, push
from packer.cli.app import run
from packer.errors import DiskFullError
from packer.store.remote.at_url import RECORD, PushRecord, inspect_url
from packer.store.remote.objects import LocalObjects, RemoteObjects, open_objects
from packer.store.state import check_finished
from reader import IncompleteStoreError, MemmapDataset, StoreError
from reader.format.at_url import encode_pointer, read_pointer
from reader.format.manifest import MANIFEST, PIXELS, read_manifest


def _killed(pipe: Connection, at: int, words: list[str]) -> None:
    """Run the command, killed before it changes something at the URL for the n-th time."""
    changes = itertools.count()

    def dying(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any) -> Any:
            if next(changes) >= at:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments)

        return changed

    for kind in (LocalObjects, RemoteObjects):
        for name in ("put", "create", "send", "remove"):
            setattr(kind, name, dying(getattr(kind, name)))
    sys.exit(run(words))


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch, tune: Tune) -> Iterator[None]:
    """Objects in this process's memory; packs with forked workers and blocks of 2 inputs."""
    monkeypatch.setenv("PIXPACK_START_METHOD", "fork")
    tune(least_block_inputs=2)
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
    return list(open_objects(url).below(""))


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


def test_an_interrupted_push_leaves_no_store_and_is_resumed(
    store: Path, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    with monkeypatch.context() as patch:
        for kind in (LocalObjects, RemoteObjects):
            original = kind.send

            def send(self: Any, path: Path, name: str, original: Any = original) -> None:
                if len(sent) == 2:
                    raise ConnectionResetError("the peer is gone")
                sent.append(name)
                original(self, path, name)

            patch.setattr(kind, "send", send)
        with pytest.raises(PackError, match=r"cannot be written: the peer is gone\. The same command continues from"):
            push(store, url)
    with pytest.raises(PackError, match=r"holds no store yet: a push to it was interrupted .* pack push OUT"):
        pull(url, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    report = push(store, url)
    assert report.kept_bytes == sum((store / name).stat().st_size for name in sent)
    assert pulled(url, tmp_path / "back") == store_bytes(store)
    assert names_at(url) == sorted(store_bytes(store))


def test_a_file_that_is_gone_from_the_url_is_sent_again(store: Path, tmp_path: Path, url: str) -> None:
    push(store, url)
    open_objects(url).remove("samples.jsonl")
    assert push(store, url).copied_bytes == (store / "samples.jsonl").stat().st_size
    assert pulled(url, tmp_path / "back") == store_bytes(store)


def test_another_store_is_refused_and_replaced_with_overwrite(three: list[Path], tmp_path: Path, url: str) -> None:
    for n, store in enumerate(three):
        if n:
            before = names_at(url)
            with pytest.raises(OptionsError, match=r"holds another store \(sha256:.*Replace it with overwrite=True"):
                push(store, url)
            assert names_at(url) == before
        push(store, url, overwrite=True)
        assert pulled(url, tmp_path / "back") == store_bytes(store)
        # of the store before nothing is left
        folder = f"generations/{read_manifest(store).digest[7:23]}/" if n else ""
        assert names_at(url) == sorted([MANIFEST] * bool(n) + [f"{folder}{name}" for name in store_bytes(store)])
        assert push(store, url, overwrite=True).copied_bytes == 0
        assert push(store, url).copied_bytes == 0


def test_overwrite_removes_what_others_left_beside_the_same_store(store: Path, url: str) -> None:
    push(store, url)
    before = names_at(url)
    # as of a pack that was taken for dead, and went on
    open_objects(url).put(f"generations/{'0' * 16}/samples.jsonl", b"")
    push(store, url)
    assert names_at(url) != before
    push(store, url, overwrite=True)
    assert names_at(url) == before


def test_an_unfinished_push_of_another_store_is_refused_and_replaced_with_overwrite(
    three: list[Path], tmp_path: Path, url: str
) -> None:
    objects = open_objects(url)
    objects.send(three[0] / "samples.jsonl", "samples.jsonl")
    objects.put(RECORD, PushRecord(read_manifest(three[0]).digest, "", {}).to_bytes())
    with pytest.raises(OptionsError, match=r"holds an unfinished push of another store \(sha256:"):
        push(three[1], url)
    push(three[1], url, overwrite=True)
    assert pulled(url, tmp_path / "back") == store_bytes(three[1])
    assert not {"samples.jsonl", RECORD} & set(names_at(url))


@pytest.mark.parametrize("name", ["photo.jpg", "deep/in/photo.jpg", "manifest.json", "samples.jsonl"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_anything_else_at_the_url_is_refused_and_stays(store: Path, url: str, name: str, overwrite: bool) -> None:
    open_objects(url).put(name, b'{"name": "a browser extension"}')
    with pytest.raises(OptionsError, match=rf"is not empty \(it holds {name.partition('/')[0]}\) and holds no store"):
        push(store, url, overwrite=overwrite)
    assert names_at(url) == [name]
    with pytest.raises(PackError):
        pull(url, store.parent / "back")


def test_what_is_foreign_beside_a_store_stays_when_that_is_replaced(
    three: list[Path], tmp_path: Path, url: str
) -> None:
    push(three[0], url)
    mine = ["README.md", "_tensordict/notes.txt", "generations/0123/photo.jpg"]
    for name in mine:
        open_objects(url).put(name, b"mine")
    push(three[1], url, overwrite=True)
    push(three[2], url, overwrite=True)
    assert [name for name in names_at(url) if open_objects(url).read(name) == b"mine"] == sorted(mine)
    assert pulled(url, tmp_path / "back") == store_bytes(three[2])


def test_an_empty_object_that_stands_for_the_folder_is_no_content(store: Path, s3: str) -> None:  # noqa: F811
    import boto3

    boto3.client("s3").put_object(Bucket="pictures", Key="new/", Body=b"")
    push(store, f"{s3}/new")
    with pytest.raises(ScanError, match="one object"):
        push(store, f"{s3}/new/samples.jsonl")


@pytest.mark.parametrize("where", ["{A}", "file://{A}", "file://{A}/", "{A}/new", "{A}/_tensordict", "{link}/new/deep"])
def test_a_push_to_itself_or_into_itself_is_refused(store: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "link").symlink_to(store)
    before = store_bytes(store)
    for overwrite in (False, True):
        with pytest.raises(OptionsError, match="is the store itself|is in the store"):
            push(store, where.format(A=store, link=tmp_path / "link"), overwrite=overwrite)
    assert store_bytes(store) == before
    # a folder around it holds it: that is not a store, and no free place
    with pytest.raises(OptionsError, match="is not empty"):
        push(store, f"file://{tmp_path}", overwrite=True)


@pytest.mark.parametrize("url", ["s3://", "s3:", "s3:/bucket/out", "file:/far/out", "file://far/out", "memory:///"])
def test_a_mistyped_url_is_no_folder_below_the_working_directory(
    store: Path, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    splits = tmp_path / "splits"
    shutil.copytree(store, splits / "train")
    shutil.copytree(store, splits / "val")
    for out in (store, splits):
        with pytest.raises(
            OptionsError, match=f"^{url} is not a URL of a folder. Expected for example s3://bucket/folder"
        ):
            push(out, url)
    with pytest.raises(OptionsError, match="is not a URL of a folder"):
        pull(url, tmp_path / "back")
    assert not any((tmp_path / "here").iterdir())
    push(store, "./s3:/bucket")
    assert store_bytes(tmp_path / "here/s3:/bucket") == store_bytes(store)


def test_a_plain_path_is_a_url_too(store: Path, tmp_path: Path) -> None:
    push(store, str(tmp_path / "new/far"))
    assert store_bytes(tmp_path / "new/far") == store_bytes(store)
    assert len(MemmapDataset(tmp_path / "new/far")) == 90


@pytest.mark.parametrize("ours", [True, False])
def test_a_damaged_manifest_at_the_url_is_a_store_of_other_content(three: list[Path], url: str, ours: bool) -> None:
    push(three[0], url)
    if not ours:
        push(three[1], url, overwrite=True)
    content = open_objects(url).read(MANIFEST)
    open_objects(url).put(MANIFEST, content[:-5])
    with pytest.raises(StoreError, match="was changed after it was written or is cut short"):
        pull(url, three[0].parent / "back")
    with pytest.raises(OptionsError, match=r"holds another store \(damaged"):
        push(three[0], url)
    push(three[0], url, overwrite=True)
    assert pulled(url, three[0].parent / "back") == store_bytes(three[0])


# -- two at once


def test_of_two_pushes_to_a_free_url_the_later_one_is_refused(three: list[Path], url: str) -> None:
    """The second begins between the first one's look and its first file."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (LocalObjects, RemoteObjects):
            original = kind.create

            def create(self: Any, name: str, content: bytes, original: Any = original) -> None:
                patch.undo()
                push(three[1], url)
                original(self, name, content)

            patch.setattr(kind, "create", create)
        # the other push has come to its end: nothing says that it was there, but its store
        with pytest.raises(PackError, match="another pack or push to .* came in between"):
            push(three[0], url)
    assert pulled(url, three[0].parent / "back") == store_bytes(three[1])


@pytest.mark.parametrize("has_old", [False, True])
@pytest.mark.parametrize("at", range(14))
def test_a_push_that_another_one_replaces_on_the_way_mixes_nothing(
    three: list[Path], tmp_path: Path, at: int, has_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one, with --overwrite, comes whole between two steps of the first: before its n-th change at the URL."""
    url, changes = "memory://stores/out", 0
    if has_old:
        push(three[2], url)
    with monkeypatch.context() as patch:
        for name in ("put", "create", "send"):
            original = getattr(RemoteObjects, name)

            def change(self: Any, *arguments: Any, original: Any = original) -> None:
                nonlocal changes
                changes += 1
                if changes == at + 1:
                    patch.undo()
                    push(three[1], url, overwrite=True)
                original(self, *arguments)

            patch.setattr(RemoteObjects, name, change)
        error = ""
        try:
            push(three[0], url, overwrite=has_old)
        except PackError as e:
            error = str(e)
    assert "came in between" in error
    assert pulled(url, tmp_path / "back") == store_bytes(three[1])
    push(three[0], url, overwrite=True)
    assert pulled(url, tmp_path / "back") == store_bytes(three[0])


def test_a_push_that_loses_the_last_race_says_so_and_the_same_command_ends_it(
    three: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one comes whole between the last look and the commit, and removes what it takes for unfinished."""
    url = "memory://stores/out"
    push(three[2], url)
    put = RemoteObjects.put

    def commit(self: Any, name: str, content: bytes) -> None:
        if name == MANIFEST:
            monkeypatch.undo()
            push(three[1], url, overwrite=True)
        put(self, name, content)

    monkeypatch.setattr(RemoteObjects, "put", commit)
    with pytest.raises(PackError, match="came in between"):
        push(three[0], url, overwrite=True)
    with pytest.raises(PackError):
        pull(url, tmp_path / "back")
    push(three[0], url, overwrite=True)
    assert pulled(url, tmp_path / "back") == store_bytes(three[0])


# -- deaths


@pytest.fixture
def far(request: pytest.FixtureRequest) -> tuple[str, int]:
    """A URL of object storage, and at every how many changes of a push to die there. Folders: tests/laws/test_crashes.py."""
    return f"{request.getfixturevalue('s3')}/stores/out", 13


def killed_push(store: Path, url: str, at: int) -> bool:
    """Push with --overwrite in a process that is killed at its n-th change; returns whether it was."""
    code = Child(_killed, at, ["push", str(store), url, "--overwrite"]).ended()
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.nightly
def test_a_push_killed_anywhere_leaves_no_store_and_the_same_command_ends_it(
    three: list[Path], tmp_path: Path, far: tuple[str, int]
) -> None:
    (url, every), at = far, 0
    while killed_push(three[1], url, at):
        if MANIFEST in names_at(url):  # all but the record was done
            assert pulled(url, tmp_path / "back") == store_bytes(three[1])
        else:
            with pytest.raises(PackError):
                pull(url, tmp_path / "back")
        push(three[1], url)
        assert names_at(url) == sorted(store_bytes(three[1]))
        assert pulled(url, tmp_path / "back") == store_bytes(three[1])
        for name in names_at(url):
            open_objects(url).remove(name)
        at += every
    assert at > 10


@pytest.mark.nightly
def test_a_replacement_killed_anywhere_leaves_the_old_store_or_the_new_one(
    three: list[Path], tmp_path: Path, far: tuple[str, int]
) -> None:
    (url, every), at, seen = far, 0, set()
    old, new = store_bytes(three[0]), store_bytes(three[2])
    push(three[0], url)
    while killed_push(three[2], url, at):
        found = pulled(url, tmp_path / "back")
        assert found in (old, new)
        seen.add(found == new)
        push(three[2], url, overwrite=True)
        assert [name for name in names_at(url) if not name.startswith("generations/")] == [MANIFEST]
        assert len(names_at(url)) == 1 + len(new)
        assert pulled(url, tmp_path / "back") == new
        push(three[0], url, overwrite=True)
        at += every
    assert seen == {True, False}
    assert pulled(url, tmp_path / "back") == new


def test_a_death_within_the_making_of_a_file_leaves_no_second_name_of_it(tmp_path: Path) -> None:
    """A rename of one of two names of a file to the other does nothing (rename(2))."""
    objects = LocalObjects(tmp_path)
    objects.create("x", b"first")
    os.link(tmp_path / "x", tmp_path / ".x.tmp")
    objects.put("x", b"second")
    assert (objects.read("x"), objects.top()) == (b"second", ["x"])


def test_a_file_that_two_pushes_send_at_once_gets_its_name_when_it_is_complete(
    three: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has just begun to write it when this one has ended."""
    objects, fsync = LocalObjects(tmp_path), os.fsync

    def other_begins(descriptor: int) -> None:
        fsync(descriptor)
        monkeypatch.undo()
        (tmp_path / ".samples.jsonl.tmp").unlink()
        (tmp_path / ".samples.jsonl.tmp").write_bytes(b"the beginning")

    monkeypatch.setattr(os, "fsync", other_begins)
    with pytest.raises(FileExistsError, match="another process writes it just now"):
        objects.send(three[0] / "samples.jsonl", "samples.jsonl")
    assert objects.top() == [".samples.jsonl.tmp"]
    objects.send(three[0] / "samples.jsonl", "samples.jsonl")
    assert objects.read("samples.jsonl") == (three[0] / "samples.jsonl").read_bytes()


def test_a_replacement_that_was_interrupted_can_be_taken_back(three: list[Path], tmp_path: Path) -> None:
    url = f"file://{tmp_path}/far"
    push(three[0], url)
    assert killed_push(three[1], url, 5)
    # the old store is there, and to push it again is right, and changes nothing
    half = names_at(url)
    assert push(three[0], url).copied_bytes == 0
    assert names_at(url) == half
    with pytest.raises(OptionsError, match=r"holds another store .*, and an unfinished push of this one\. Replace it"):
        push(three[1], url)
    push(three[0], url, overwrite=True)
    assert names_at(url) == sorted(store_bytes(three[0]))


def test_a_third_store_takes_over_from_a_replacement_that_was_interrupted(three: list[Path], tmp_path: Path) -> None:
    url = f"file://{tmp_path}/far"
    push(three[0], url)
    assert killed_push(three[1], url, 5)
    push(three[2], url, overwrite=True)
    assert len(names_at(url)) == 1 + len(store_bytes(three[2]))
    assert pulled(url, tmp_path / "back") == store_bytes(three[2])


# -- generations, and who does not know them


def test_a_generation_is_a_store_of_its_own_and_the_folder_around_it_says_where_it_is(
    three: list[Path], tmp_path: Path
) -> None:
    far = tmp_path / "far"
    push(three[0], str(far))
    push(three[1], str(far), overwrite=True)
    with pytest.raises(StoreError, match=r"that of a URL, whose store is in generations/[0-9a-f]{16}, as pack push"):
        MemmapDataset(far)
    (folder,) = (far / "generations").iterdir()
    assert store_bytes(folder) == store_bytes(three[1])
    assert len(MemmapDataset(folder)) == len(MemmapDataset(three[1]))
    with pytest.raises(OptionsError, match="is in the store"):
        push(three[2], str(folder / "more"))


def test_a_reader_that_does_not_know_generations_says_what_it_lacks(
    three: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads format 1.0 sees a manifest in its form, with a feature that it lacks: never damage."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / MANIFEST).write_bytes(encode_pointer("sha256:" + "0" * 64, "generations/0000000000000000"))
    monkeypatch.setattr("reader.format.head.GENERATIONS", "no feature of this name")
    with pytest.raises(StoreError, match=r"reading this store needs generations, unknown here\. Update pixpack\."):
        read_manifest(tmp_path / "far")


@pytest.mark.parametrize("folder", ["../other", "/etc", "generations/..", "generations/0123", ""])
def test_a_manifest_at_a_url_leads_nowhere_else(folder: str) -> None:
    with pytest.raises(StoreError, match="says generation = .*, expected generations/ and 16 hex digits"):
        read_pointer(encode_pointer("sha256:" + "0" * 64, folder), "s3://bucket/manifest.json")


def test_a_generation_that_is_not_the_one_that_is_named_is_not_pulled(three: list[Path], tmp_path: Path) -> None:
    far = tmp_path / "far"
    push(three[0], str(far))
    push(three[1], str(far), overwrite=True)
    (folder,) = (far / "generations").iterdir()
    intact = (folder / MANIFEST).read_bytes()
    shutil.copyfile(three[2] / MANIFEST, folder / MANIFEST)
    with pytest.raises(PackError, match=r"is not what .*/far/manifest.json names\. Push the store again"):
        pull(str(far), tmp_path / "back")
    for damaged in ((folder / MANIFEST).read_bytes(), intact[:99] + b" " + intact[100:]):
        (folder / MANIFEST).write_bytes(damaged)
        push(three[1], str(far))
        assert pulled(str(far), tmp_path / "back") == store_bytes(three[1])


# -- pull


def test_an_interrupted_pull_is_no_store_and_is_resumed_block_by_block(store: Path, tmp_path: Path) -> None:
    push(store, "memory://stores/out")
    back, memory = tmp_path / "back", fsspec.filesystem("memory")
    damaged = f"/stores/out/{PIXELS}"
    intact = memory.cat_file(damaged)
    memory.pipe_file(damaged, intact[:-1] + bytes([intact[-1] ^ 1]))
    with pytest.raises(PackError, match=r"pixels.memmap, rows \d+ to 89, is not what the manifest there says"):
        pull("memory://stores/out", back)
    with pytest.raises(IncompleteStoreError, match=r"its pull was interrupted or is still running\."):
        check_finished(back)
    with pytest.raises(IncompleteStoreError, match="is incomplete"):
        MemmapDataset(back)
    memory.pipe_file(damaged, intact)
    report = pull("memory://stores/out", back)
    assert 0 < report.copied_bytes < report.store_bytes
    assert store_bytes(back) == store_bytes(store)


def test_rows_of_their_own_sizes_are_pushed_and_pulled_block_by_block(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", fit="none", max_size=50)
    push(tmp_path / "out", "memory://stores/out")
    memory, pixels = fsspec.filesystem("memory"), f"/stores/out/{PIXELS}"
    intact = memory.cat_file(pixels)
    memory.pipe_file(pixels, bytes([intact[0] ^ 1]) + intact[1:])
    with pytest.raises(PackError, match=r"pixels.memmap, rows 0 to 1, is not what the manifest there says"):
        pull("memory://stores/out", tmp_path / "back")
    memory.pipe_file(pixels, intact)
    report = pull("memory://stores/out", tmp_path / "back")
    assert 0 < report.copied_bytes < report.store_bytes
    assert store_bytes(tmp_path / "back") == store_bytes(tmp_path / "out")


@pytest.mark.parametrize("name", ["samples.jsonl", PIXELS])
def test_damage_is_neither_pushed_nor_pulled(store: Path, tmp_path: Path, name: str) -> None:
    push(store, "memory://stores/out")
    memory, path = fsspec.filesystem("memory"), f"/stores/out/{name}"
    data = bytearray(memory.cat_file(path))
    data[7] ^= 1
    memory.pipe_file(path, bytes(data))
    with pytest.raises(PackError, match=r"is not what the manifest there says\. Remove the file there, then push"):
        pull("memory://stores/out", tmp_path / "back")
    memory.rm_file(path)
    push(store, "memory://stores/out")
    assert pulled("memory://stores/out", tmp_path / "again") == store_bytes(store)
    os.chmod(store / name, 0o644)
    (store / name).write_bytes(bytes(data))
    with pytest.raises(StoreError, match=r"is not what the manifest says: nothing of it was sent\. Run: pack verify"):
        push(store, "memory://stores/other")


def test_pull_refuses_a_path_that_is_taken(three: list[Path], store: Path, tmp_path: Path) -> None:
    push(three[0], "memory://stores/out")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/mine.txt").touch()
    with pytest.raises(OptionsError, match=r"is not empty \(it holds mine.txt\)"):
        pull("memory://stores/out", tmp_path / "taken")
    with pytest.raises(OptionsError, match="is a file"):
        pull("memory://stores/out", tmp_path / "taken/mine.txt")
    before = store_bytes(store)
    with pytest.raises(OptionsError, match="holds another store than memory://stores/out"):
        pull("memory://stores/out", store)
    for folder in (store / "new", store / "_tensordict"):
        with pytest.raises(OptionsError, match="is in the store"):
            pull("memory://stores/out", folder)
    assert store_bytes(store) == before
    with pytest.raises(PackError, match="memory://stores/none holds no store: there is no manifest.json. Expected one"):
        pull("memory://stores/none", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_pull_into_the_folder_that_is_pulled_is_refused(store: Path) -> None:
    before = store_bytes(store)
    with pytest.raises(OptionsError, match="is in"):
        pull(f"file://{store}", store / "new")
    assert pull(f"file://{store}", store).copied_bytes == 0
    assert store_bytes(store) == before


def test_a_pull_over_the_url_of_a_generation_never_advises_its_removal(three: list[Path], tmp_path: Path) -> None:
    far = tmp_path / "far/out"
    push(three[0], f"file://{far}")
    push(three[1], f"file://{far}", overwrite=True)
    before = store_bytes(far)
    with pytest.raises(
        OptionsError, match="far/out is file://.*/far/out itself, which is pulled. Choose another OUT.$"
    ):
        pull(f"file://{far}", far)
    assert store_bytes(far) == before


def _bare(stage: Path) -> None:
    (stage / ".packing/pull").mkdir(parents=True)


def _bare_with_lock(stage: Path) -> None:
    (stage / ".packing").mkdir(parents=True)
    (stage / ".packing/lock").write_text("{}")


@pytest.mark.parametrize("begin", [_bare, _bare_with_lock])
def test_a_pull_killed_before_its_first_file_is_resumed(store: Path, tmp_path: Path, begin: Any) -> None:
    push(store, "memory://stores/out")
    begin(tmp_path / "back.packing")
    pull("memory://stores/out", tmp_path / "back")
    assert store_bytes(tmp_path / "back") == store_bytes(store)


def test_a_pull_over_an_unfinished_pack_names_that(images: Path, store: Path, tmp_path: Path) -> None:

    push(store, "memory://stores/out")
    interrupted(pack, images, tmp_path / "out", size=32, workers=1, inputs=12)
    before = sorted(p for p in (tmp_path / "out").rglob("*"))
    with pytest.raises(OptionsError, match=r"is incomplete: its pack is at .* resume=True"):
        pull("memory://stores/out", tmp_path / "out")
    assert sorted(p for p in (tmp_path / "out").rglob("*")) == before


def test_a_pull_into_the_folder_where_one_is_and_to_a_url(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionsError, match="^OUT s3://bucket/back is a URL, expected a folder"):
        pull(str(store), "s3://bucket/back")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    pull(str(store), ".")
    assert store_bytes(tmp_path / "here") == store_bytes(store)


def test_a_link_at_the_path_of_a_pull_is_refused(store: Path, tmp_path: Path) -> None:
    push(store, "memory://stores/out")
    (tmp_path / "other").mkdir()
    _bare(tmp_path / "back.packing")
    (tmp_path / "back.packing/_tensordict").symlink_to(tmp_path / "other")
    with pytest.raises(PackError, match="_tensordict is a symbolic link to .*/other"):
        pull("memory://stores/out", tmp_path / "back")
    assert not any((tmp_path / "other").iterdir())


def test_what_the_system_drops_into_folders_is_in_nobodys_way(store: Path, tmp_path: Path) -> None:
    for folder in ("far", "back"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / ".DS_Store").write_bytes(b"x")
    push(store, str(tmp_path / "far"))
    pull(str(tmp_path / "far"), tmp_path / "back")
    assert {k: v for k, v in store_bytes(tmp_path / "back").items() if k != ".DS_Store"} == store_bytes(store)


def test_an_unfinished_pull_is_continued_from_its_own_url_alone(three: list[Path], tmp_path: Path) -> None:
    for n, store in enumerate(three):
        push(store, f"memory://stores/{n}")
    memory, back = fsspec.filesystem("memory"), tmp_path / "back"
    intact = memory.cat_file(f"/stores/0/{PIXELS}")
    memory.pipe_file(f"/stores/0/{PIXELS}", intact[:-1] + bytes([intact[-1] ^ 1]))
    with pytest.raises(PackError, match="rows"):
        pull("memory://stores/0", back)
    with pytest.raises(OptionsError, match=r"an unfinished pull of another store \(from memory://stores/0\)"):
        pull("memory://stores/1", back)
    # another copy of the same store will do, and so will what has taken its place at the same URL
    shutil.copytree(tmp_path / "back.packing", tmp_path / "again.packing")
    push(three[0], "memory://stores/copy")
    pull("memory://stores/copy", back)
    assert store_bytes(back) == store_bytes(three[0])
    push(three[2], "memory://stores/0", overwrite=True)
    pull("memory://stores/0", tmp_path / "again")
    assert store_bytes(tmp_path / "again") == store_bytes(three[2])


def test_zeros_behind_the_last_row_are_zeros_whatever_an_unfinished_pull_had_there(
    three: list[Path], tmp_path: Path
) -> None:
    push(three[2], "memory://stores/out")
    _bare(tmp_path / "back.packing")
    (tmp_path / "back.packing/_tensordict").mkdir()
    (tmp_path / "back.packing" / PIXELS).write_bytes(b"\xff" * 10_000_000)
    pull("memory://stores/out", tmp_path / "back")
    assert store_bytes(tmp_path / "back") == store_bytes(three[2])


def test_a_store_that_is_replaced_while_it_is_pulled_is_reported_as_such(
    three: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "memory://stores/out"
    push(three[0], url)
    original = RemoteObjects.fetch

    def fetch(self: Any, name: str, path: Path) -> None:
        monkeypatch.undo()
        push(three[1], url, overwrite=True)
        original(self, name, path)

    monkeypatch.setattr(RemoteObjects, "fetch", fetch)
    with pytest.raises(PackError, match=r"was replaced by another store while it was read\. The same command pulls"):
        pull(url, tmp_path / "back")
    pull(url, tmp_path / "back")
    assert store_bytes(tmp_path / "back") == store_bytes(three[1])


def test_room_is_looked_for_before_anything_is_pulled(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    push(store, f"file://{tmp_path}/far")
    with monkeypatch.context() as patch:
        patch.setattr("packer.store.disk_space.free_bytes", lambda path: 1000)
        assert run(["pull", f"file://{tmp_path}/far", str(tmp_path / "back")]) == 28
    assert "has 1000 free" in (error := capsys.readouterr().err)
    assert "give the same command again" in error
    assert not (tmp_path / "back").exists()
    assert run(["pull", f"file://{tmp_path}/far", str(tmp_path / "back")]) == 0
    assert store_bytes(tmp_path / "back") == store_bytes(store)


@pytest.mark.parametrize("has_name", [True, False])
def test_a_disk_that_fills_up_under_a_pull_or_a_push_exits_with_28(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_name: bool
) -> None:
    """fsspec's file systems do not say which file has no room."""
    push(store, "memory://stores/out")

    def full(self: Any, *names: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *([str(tmp_path / "back/x")] if has_name else []))

    with monkeypatch.context() as patch:
        patch.setattr(RemoteObjects, "fetch", full)
        assert run(["pull", "memory://stores/out", str(tmp_path / "back")]) == 28
        patch.setattr(LocalObjects, "send", full)
        assert run(["push", str(store), str(tmp_path / "far")]) == 28
        with pytest.raises(DiskFullError):
            pull("memory://stores/out", tmp_path / "back")
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 2
    assert all("No space left on device (ENOSPC). Free some space and give the same command again." in s for s in error)
    assert run(["push", str(store), str(tmp_path / "far")]) == 0
    assert run(["pull", str(tmp_path / "far"), str(tmp_path / "back")]) == 0
    assert store_bytes(tmp_path / "back") == store_bytes(store)


def test_no_password_of_a_url_is_written_down(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from packer.operations.transfer.pull import _public

    assert _public("sftp://me:secret@host/a@b/c") == "sftp://host/a@b/c"
    assert _public("s3://bucket") == "s3://bucket"


# -- the commands


def test_the_commands_push_and_pull(store: Path, three: list[Path], tmp_path: Path) -> None:
    url = f"file://{tmp_path}/far"
    pushed = subprocess.run([*PACK, "push", str(store), url], capture_output=True, text=True)
    assert (pushed.returncode, pushed.stderr) == (0, "")
    assert f"{store} is at {url}: " in pushed.stdout
    back = subprocess.run([*PACK, "pull", url, str(tmp_path / "back"), "--json"], capture_output=True, text=True)
    assert json.loads(back.stdout)["kept_bytes"] == 0
    assert run(["push", str(three[0]), url]) == 2
    assert run(["push", str(three[0]), url, "--overwrite", "--quiet"]) == 0
    assert run(["pull", url, str(tmp_path / "back")]) == 2
    assert run(["pull", url, str(tmp_path / "other")]) == 0
    assert run(["push", str(store), str(store)]) == 2
    shutil.rmtree(tmp_path / "far")
    failed = subprocess.run([*PACK, "pull", url, str(tmp_path / "again")], capture_output=True, text=True)
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"pack: {url} holds no store: ")
    assert len(failed.stderr.splitlines()) == 1


def test_a_first_push_has_the_names_and_bytes_that_it_always_had(store: Path, tmp_path: Path) -> None:
    """Programs read the plain names by fsspec, and pixpack 0.1 pulls them."""
    push(store, "memory://stores/out")
    memory = fsspec.filesystem("memory")
    found = {path.removeprefix("/stores/out/"): memory.cat_file(path) for path in memory.find("/stores/out")}
    assert found == store_bytes(store)


def test_the_look_at_a_url_is_a_value(store: Path) -> None:
    push(store, "memory://stores/out")
    found = inspect_url(open_objects("memory://stores/out"), "memory://stores/out")
    assert replace(found, content=b"") == replace(found, content=b"", store=read_manifest(store).digest)
    assert not (store / ".packing").exists()


def test_a_pull_leaves_nothing_of_a_store_that_was_at_the_url_before(images: Path, store: Path, tmp_path: Path) -> None:
    url, out = tmp_path / "url", tmp_path / "out"
    pack(images, url, size=32, levels=2)
    (url / "samples.jsonl").unlink()
    with pytest.raises((PackError, StoreError)):
        pull(str(url), out)
    assert (tmp_path / "out.packing/levels").exists()
    shutil.rmtree(url)
    shutil.copytree(store, url)
    pull(str(url), out)
    assert store_bytes(out) == store_bytes(store)
    assert not (out / "levels").exists()


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "PreconditionFailed"])
def test_a_name_that_another_process_is_putting_is_not_put_over(code: str) -> None:
    class Files:
        """Storage that refuses a conditional put, as s3fs says it."""

        def pipe_file(self, path: str, content: bytes, mode: str = "overwrite") -> None:
            assert mode == "create", "it was put over"
            raise OSError(errno.EIO, "conflict") from ValueError(f"An error occurred ({code})")

        def cat_file(self, path: str) -> bytes:
            return b"theirs"

    with pytest.raises(FileExistsError):
        RemoteObjects("s3://b/x", Files(), "b/x").create("record", b"mine")
    # it was put, and the answer was lost
    RemoteObjects("s3://b/x", Files(), "b/x").create("record", b"theirs")
