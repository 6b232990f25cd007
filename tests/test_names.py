"""What a network file system remembers of names, sizes and bytes is asked again where another host may have changed it."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from packer.errors import LockedError, PackError
from packer.store import journal as journals
from packer.store.lock import LOCK, Lock
from reader.format.check import check_file
from reader.format.errors import StoreError
from reader.format.filesystem import refresh_names, retry_missing

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders are opened, files locked by flock")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were opened: that is when an NFS client asks its server."""
    paths: list[str] = []
    original = os.open

    def recording(path: Any, *arguments: Any, **options: Any) -> int:
        paths.append(os.fspath(path))
        return original(path, *arguments, **options)

    monkeypatch.setattr(os, "open", recording)
    return paths


def test_every_folder_on_the_way_is_asked_from_above(tmp_path: Path, opened: list[str]) -> None:
    (tmp_path / "a").mkdir()
    refresh_names(tmp_path / "a/missing/name")
    assert opened[-3:] == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a/missing")]
    assert opened[0] == "/"


def test_what_is_remembered_as_missing_is_looked_for_once_more(tmp_path: Path, opened: list[str]) -> None:
    path = tmp_path / "journal"
    path.touch()

    def look() -> str:
        if str(tmp_path) not in opened:
            raise FileNotFoundError(path)
        return "found"

    assert retry_missing(path, look) == "found"
    path.unlink()
    with pytest.raises(FileNotFoundError):
        retry_missing(path, path.stat)


def test_a_journal_that_another_host_has_just_started_is_seen(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".packing").mkdir()
    log = journals.CommitLog(tmp_path, lambda: None)
    log.begin(journals.Header())
    log.close()
    opened.clear()
    find_header = journals.find_header

    def remembered(out: Path) -> Any:
        if str((out / journals.JOURNAL).parent) not in opened:
            raise FileNotFoundError(out)
        return find_header(out)

    monkeypatch.setattr(journals, "find_header", remembered)
    assert journals.header_of(tmp_path)


def test_a_size_that_is_remembered_is_not_taken_for_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pixels"
    path.write_bytes(b"1")
    before = path.lstat()
    path.write_bytes(b"12345")
    monkeypatch.setattr(Path, "lstat", lambda self: before)
    check_file(path, 5)
    with pytest.raises(StoreError, match="pixels is 5 bytes, the manifest says 6"):
        check_file(path, 6)


def test_a_lock_whose_name_is_only_remembered_holds_nothing(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder on another host has removed it: the name is still remembered here, until its folder is opened."""
    (tmp_path / ".packing").mkdir()
    stat, flock, held = os.stat, fcntl.flock, []

    def removed_before(descriptor: int, kind: int) -> None:
        (tmp_path / LOCK).unlink()
        opened.clear()
        held.append(descriptor)
        flock(descriptor, kind)

    def remembering(path: Any, **options: Any) -> os.stat_result:
        is_old = held and path == tmp_path / LOCK and str(tmp_path / journals.FOLDER) not in opened
        return os.fstat(held[0]) if is_old else stat(path, **options)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    monkeypatch.setattr(os, "stat", remembering)
    with pytest.raises(FileNotFoundError, match="the lock was removed meanwhile"):
        Lock(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_not_taken_for_another_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / ".packing").mkdir()

    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(
        PackError, match=rf"lock cannot be locked: .* \({errno.errorcode[number]}\)\. It needs"
    ) as caught:
        Lock(tmp_path)
    assert not isinstance(caught.value, LockedError)
