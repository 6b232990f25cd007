"""Full disks and contended ones, on a real small file system: a clean error with the missing bytes, and a way to continue."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import make_tree, store_bytes

from packer import PackError, pack
from packer.cli.app import run

# Some file systems report a full disk where a file is synced.
pytestmark = pytest.mark.usefixtures("real_syncs")

# 24 rows of 64 x 64 x 3
NEED = 24 * 64 * 64 * 3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty tmpfs, to be mounted with a size by `resize`; skipped where this user may not mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this user may not mount a tmpfs: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def resize(disk: Path, size_bytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size_bytes // 1024 + 1}k", disk], check=True)


@pytest.mark.parametrize("share", [5, 95, 110])
def test_a_disk_too_small_is_reported_before_decoding_and_the_pack_resumes(
    disk: Path, tmp_path: Path, share: int, capsys: pytest.CaptureFixture[str]
) -> None:
    images = make_tree(tmp_path / "images")
    command = [str(images), str(disk / "out"), "--size", "64", "--json"]
    resize(disk, NEED * share // 100)
    assert run(command) == 28
    errors = capsys.readouterr().err
    match = re.search(r"out\.packing needs (\d+) more bytes, its disk has (\d+) free: (\d+) are missing", errors)
    assert match, errors
    needed, free, missing = map(int, match.groups())
    assert missing == needed - free > 0
    assert errors.count("\n") == 1
    # the header alone: no block was decoded
    assert (disk / "out.packing/.packing/journal").read_bytes().count(b"\n") == 1
    resize(disk, 4 * NEED)
    assert run([*command]) == 0
    pack(images, tmp_path / "full", size=64)
    assert store_bytes(disk / "out") == store_bytes(tmp_path / "full")


# -- the limit of open files


def test_a_source_that_nothing_more_can_open_is_no_reject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = make_tree(tmp_path / "images")
    opened = os.open

    def open_few(path: object, *arguments: int) -> int:
        if str(path).endswith("003.jpg"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return opened(path, *arguments)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_few)
        with pytest.raises(PackError, match=r"003\.jpg cannot be opened: .* \(EMFILE\), of which .* fewer workers"):
            pack(images, tmp_path / "out", size=32, workers=1)
    assert pack(images, tmp_path / "out", size=32).rows == 24
