"""What a killed process leaves in a cache or in TMPDIR is removed by the next one, and nothing that a process holds."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from children import Child
from range_server import RangeServer

from reader.format.manifest import MANIFEST
from reader.remote.face import Face
from reader.remote.folder import INSIDE, SOURCE
from reader.remote.leftovers import Scratch, hold, locked_folder, remove_abandoned
from reader.remote.opening import prepared
from reader.remote.presence import RemoteStore


def _face(pipe: Connection, url: str, cache: Path | None, scratch: Path) -> None:
    tempfile.tempdir = str(scratch)
    with Face(url, cache) as face:
        pipe.send(str(face.path))
        time.sleep(300)


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_folder_of_a_killed_command_is_removed_by_the_next_one(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache = tmp_path / "cache" if is_kept else None
    command = Child(_face, range_server.url, cache, tmp_path)
    left = Path(command.received())
    with Face(range_server.url, cache):
        assert (left / MANIFEST).exists()
    command.kill()
    assert (left / MANIFEST).exists()
    with Face(range_server.url, cache) as face:
        assert not left.exists()
        assert (face.path / MANIFEST).exists()
    assert not [*tmp_path.glob("pixpack-*")]


def test_files_that_were_half_written_are_removed(range_server: RangeServer, tmp_path: Path) -> None:
    first = RemoteStore(range_server.url, tmp_path)
    left = [first.root / "_tensordict/.targets.memmap.12.345", first.root / INSIDE / f".{SOURCE}.12.345"]
    for path in left:
        path.write_bytes(b"half")
    RemoteStore(range_server.url, tmp_path).close()
    first.close()
    assert not any(path.exists() for path in left)
    assert (first.root / INSIDE / SOURCE).exists()
    assert (first.root / "_tensordict/targets.memmap").exists()


def test_a_folder_that_vanishes_while_leftovers_are_looked_for_stops_nothing(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks open a store at once, and each removes what a killed command left."""
    root, _ = prepared(range_server.url, tmp_path, None)
    folder, descriptor = locked_folder(root / INSIDE, "face.")
    left = root / "_tensordict/.targets.memmap.12.345"
    left.write_bytes(b"half")
    scandir, seen = os.scandir, []

    def removed_before(path: str | os.PathLike[str] = ".") -> Iterator[os.DirEntry[str]]:
        if Path(path) == folder and not seen:
            seen.append(folder)
            folder.rmdir()
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", removed_before)
        prepared(range_server.url, tmp_path, None)
    os.close(descriptor)
    assert seen
    assert not left.exists()


def test_what_is_held_stays_and_a_link_is_not_followed(tmp_path: Path) -> None:
    folder, descriptor = locked_folder(tmp_path, "held-")
    (tmp_path / "file").write_bytes(b"held")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target").mkdir()
    with open(tmp_path / "file", "rb") as file:
        assert hold(file.fileno(), tmp_path / "file")
        names = [folder, tmp_path / "file", tmp_path / "link", tmp_path / "nothing"]
        remove_abandoned(names)
        assert folder.exists()
        assert (tmp_path / "file").exists()
    os.close(descriptor)
    remove_abandoned(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_file_that_was_removed_before_it_is_held_is_reported(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        (tmp_path / "file").unlink()
        assert not hold(file.fileno(), tmp_path / "file")


def test_folders_of_other_users_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pixpack-url-left_1ab").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        with Scratch("url", tmp_path) as folder:
            assert (tmp_path / "pixpack-url-left_1ab").exists()
            assert folder.parent == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["pixpack-url-left_1ab"]
    with Scratch("url", tmp_path):
        assert not (tmp_path / "pixpack-url-left_1ab").exists()


def test_a_folder_of_a_user_whose_name_is_alike_stays(tmp_path: Path) -> None:
    for name in ("pixpack-url-mine", "pixpack-url-read/store"):
        (tmp_path / name).mkdir(parents=True)
    with Scratch("url", tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pixpack-url-mine", "pixpack-url-read"]
