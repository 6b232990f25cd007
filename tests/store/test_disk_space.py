"""Full disks and contended ones, on a real small file system: a clean error with the missing bytes, and a way to continue."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PACK, make_tree, store_bytes

from packer import PackError, Progress, pack, update
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


def test_a_disk_that_another_program_fills_meanwhile_costs_nothing_lost(disk: Path, tmp_path: Path) -> None:
    """The rows' space is taken up front; what is written at the end still needs some, and finds none."""
    images = make_tree(tmp_path / "images")
    resize(disk, NEED + 200 * 1024)
    filler = (
        "import os, sys; sys.path.insert(0, '.')\n"
        "from packer.report import Progress\nfrom packer.cli.app import run\nimport packer.packing.build, packer.cli.app\n"
        "original = packer.packing.build.allocate\n"
        "def allocate(*a):\n    original(*a)\n"
        f"    with open({str(disk / 'filler')!r}, 'wb', buffering=0) as f:\n"
        "        try:\n            while True: f.write(bytes(4096))\n        except OSError: pass\n"
        "packer.packing.build.allocate = allocate\nsys.exit(run(sys.argv[1:]))\n"
    )
    arguments = [str(images), str(disk / "out"), "--size", "64", "--json"]
    done = subprocess.run([sys.executable, "-c", filler, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 28, done.stderr
    assert re.search(r"/out\S* needs \d+ more bytes, its disk has \d+ free: [1-9]\d* are missing", done.stderr), (
        done.stderr
    )
    assert not (disk / "out/manifest.json").exists()
    (disk / "filler").unlink()
    done = subprocess.run([*PACK, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    subprocess.run([*PACK, str(images), str(tmp_path / "full"), "--size", "64", "--quiet"], check=True)
    assert store_bytes(disk / "out") == store_bytes(tmp_path / "full")


# -- the limit of open files


def test_too_few_open_files_are_reported_as_such(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images")
    command = [*PACK, str(images), str(tmp_path / "out"), "--size", "32", "--workers", "3"]
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 14; exec {shlex.join(command)}"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert (
        "cannot be opened: Too many open files (EMFILE), of which this process may have 14 (ulimit -n)" in done.stderr
    )
    assert "pixels.memmap" not in done.stderr
    done = subprocess.run([*command], capture_output=True, text=True, timeout=300)
    assert "packed 24 of 24 images" in done.stdout


def test_a_source_that_nothing_more_can_open_is_no_reject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = make_tree(tmp_path / "images")
    opened = os.open

    def open_few(path: object, *arguments: int) -> int:
        if str(path).endswith("003.jpg"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return opened(path, *arguments)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_few)
        patch.setenv("PIXPACK_START_METHOD", "fork")  # with it
        with pytest.raises(PackError, match=r"003\.jpg cannot be opened: .* \(EMFILE\), of which .* fewer workers"):
            pack(images, tmp_path / "out", size=32, workers=1)
    assert pack(images, tmp_path / "out", size=32).rows == 24


# -- a disk that becomes read-only


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A folder where ext4 is mounted, and the file by which it takes an error and becomes read-only; skipped without rights.

    mount refuses to make a file system read-only while a pack has files of it open to write.
    """
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    folder.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 64 << 20)
    for command in (["mkfs.ext4", "-q", "-F", image], ["mount", "-o", "loop,errors=remount-ro", image, folder]):
        if shutil.which(command[0]) is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no ext4 can be mounted here")
    try:
        device = os.path.basename(
            os.path.realpath(f"/sys/dev/block/{os.major(folder.stat().st_dev)}:{os.minor(folder.stat().st_dev)}")
        )
        trigger = Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
        if not trigger.exists():
            pytest.skip("this kernel makes no errors of ext4")
        yield folder, trigger
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("way", ["new", "overwrite", "update"])
def test_a_disk_that_becomes_read_only_in_the_middle_is_one_sentence_and_the_pack_resumes(
    way: str, failing_disk: tuple[Path, Path], tmp_path: Path
) -> None:
    images, (disk, trigger) = make_tree(tmp_path / "images"), failing_disk
    out = disk / "out"
    if way != "new":
        pack(images, out, size=48)
        shutil.rmtree(images)
        make_tree(images, each=9)
    old = store_bytes(disk)

    def fail(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done >= 4 and not failed:
            failed.append(trigger.write_text("1"))

    def ask(**options: Any) -> None:
        if way == "update":
            update(images, out, **options)
        else:
            pack(images, out, size=48, overwrite=way == "overwrite", **options)

    failed: list[int] = []
    with pytest.raises(PackError, match=r"^\S+ cannot be .*(EROFS|EIO)\)\. Give the same command again once it can\.$"):
        ask(workers=1, progress=fail)
    with pytest.raises(PackError, match=r"lock cannot be read or written: .* \(EROFS\)|cannot be made: .* \(EROFS\)"):
        ask()
    subprocess.run(["umount", disk], check=True)
    subprocess.run(["e2fsck", "-pf", tmp_path / "disk.img"], capture_output=True)
    subprocess.run(["mount", "-o", "loop,errors=remount-ro", tmp_path / "disk.img", disk], check=True)
    if way != "new":
        assert store_bytes(out) == {
            name.removeprefix("out/"): content for name, content in old.items() if name.startswith("out/")
        }
    ask()
    pack(images, tmp_path / "whole", size=48)
    assert store_bytes(out) == store_bytes(tmp_path / "whole")
