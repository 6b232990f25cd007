"""A source that goes away is no broken image: the pack stops unsealed, and the same command continues when it is back.

Real folders are moved away or emptied, as mount points are, and calls made to fail, in the middle of a pack.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import shutil
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Tune, content_bytes, harm_at, interrupted, store_bytes
from PIL import Image

from packer import PackError, ScanError, pack, pack_dataset, update
from packer.cli import app
from packer.errors import SourceError
from packer.operations.plan import plan
from packer.report import Progress
from packer.sources import local as sources
from reader.format.manifest import MANIFEST

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers inherit by fork what is done to their calls")


@pytest.fixture(autouse=True)
def _forked_small_blocks(tune: Tune) -> None:
    """Blocks of 2 inputs, and forked workers."""
    tune(least_block_inputs=2)


def once_at(done: int, act: Callable[[], object]) -> Callable[[Progress], None]:
    """Make a progress callback that acts once, when so many inputs are packed."""
    acts = iter([act])

    def report(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done >= done and (found := next(acts, None)):
            found()

    return report


# -- a folder, a list, archives that are moved away


def _as_folder(images: Path) -> Path:
    """Also with masks."""
    return labels_of(images, images.with_name("masks")).with_name(images.name)


def _as_list(images: Path) -> Path:
    lines = [f"{path.relative_to(images.parent)}" for path in sorted(images.rglob("*.jpg"))]
    listed = images.parent / "list.csv"
    listed.write_text("\n".join(["path", *lines]) + "\n")
    return listed


def _as_tar(images: Path) -> Path:
    images.with_name("a").mkdir()
    with tarfile.open(images.parent / "a/all.tar", "w") as tar:
        tar.add(images, "all")
    return images.parent / "a/all.tar"


def _as_zip(images: Path) -> Path:
    images.with_name("a").mkdir()
    with zipfile.ZipFile(images.parent / "a/all.zip", "w") as file:
        for path in sorted(images.rglob("*.jpg")):
            file.write(path, path.relative_to(images.parent))
    return images.parent / "a/all.zip"


@pytest.mark.parametrize(
    ("make", "moved"),
    [
        (_as_folder, "images"),
        (_as_folder, "masks"),
        (_as_list, "images"),
        (_as_tar, "a"),
        (_as_tar, "a/all.tar"),
        (_as_zip, "a/all.zip"),
    ],
)
def test_sources_that_are_moved_away_stop_the_pack_unsealed_and_it_continues_to_the_same_bytes(
    images: Path,
    tmp_path: Path,
    make: Callable[[Path], Path],
    moved: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, out = make(images), tmp_path / "out"
    options = {"size": 32, "masks": tmp_path / "masks" if moved == "masks" else None}
    pack(source, tmp_path / "full", **options)
    away, was_moved = tmp_path / "away", tmp_path / "was-moved"

    def move() -> None:
        if not was_moved.exists():
            was_moved.touch()
            (tmp_path / moved).rename(away)

    # while its block is not decoded, none behind it is written, and no worker has room for all that is left
    harm_at(images / "class0/002.jpg", move, monkeypatch)
    # an archive that a worker has open when it is renamed has another ctime then
    text = r"(cannot be read: .*gone|was changed since it was listed).*give the same command again"
    with pytest.raises(SourceError, match=text) as caught:
        pack(source, out, workers=2, **options)
    assert "\n" not in str(caught.value)
    assert not (out / MANIFEST).exists()
    with pytest.raises((PackError, ScanError)):  # still away: nothing that was packed is lost
        pack(source, out, **options)
    away.rename(tmp_path / moved)
    pack(source, out, **options)
    assert content_bytes(out) == content_bytes(tmp_path / "full")


def test_a_store_is_not_replaced_by_one_of_a_source_that_went_away(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(images, out, size=32)
    before = store_bytes(out)
    for begin in (functools.partial(pack, size=16, overwrite=True), functools.partial(update)):
        with pytest.raises(SourceError, match="is gone"):
            begin(images, out, workers=1, progress=once_at(4, lambda: images.rename(tmp_path / "away")))
        assert store_bytes(out) == before
        (tmp_path / "away").rename(images)
        shutil.rmtree(tmp_path / "out.packing")
    assert update(images, out).rows == 24
    assert store_bytes(out) == before


def emptied(folder: Path) -> None:
    """Leave what is left of a mount point whose disk is away."""
    folder.rename(folder.with_name("away"))
    folder.mkdir()


@pytest.mark.parametrize("below", ["", "class1", "linked"])
@pytest.mark.parametrize("as_list", [False, True])
def test_a_folder_that_is_empty_meanwhile_stops_the_pack(
    images: Path, tmp_path: Path, below: str, as_list: bool
) -> None:
    disk, out = images / below, tmp_path / "out"
    if below == "linked":  # files of the folder are links to files of the disk
        disk = tmp_path / "disk"
        (images / "class1").rename(disk)
        (images / "class1").mkdir()
        for path in disk.iterdir():
            (images / "class1" / path.name).symlink_to(path)
    source = _as_list(images) if as_list else images
    # a worker may look between the two steps
    with pytest.raises(SourceError, match=f"{disk.name} is (empty, its disk may not be mounted|gone)"):
        pack(source, out, size=32, workers=1, max_rejects="100%", progress=once_at(4, lambda: emptied(disk)))
    assert not (out / MANIFEST).exists()


def labels_of(images: Path, folder: Path) -> Path:
    """Write a mask and a YOLO file for each image."""
    for path in images.rglob("*.jpg"):
        name = folder / path.relative_to(images)
        name.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            Image.new("L", image.size, 7).save(name.with_suffix(".png"))
        name.with_suffix(".txt").write_text("0 .5 .5 .2 .2\n")
    return folder


def test_a_file_that_is_deleted_while_its_folder_stays_is_a_reject(images: Path, tmp_path: Path) -> None:
    gone = images / "class2/007.jpg"
    report = pack(images, tmp_path / "out", size=32, workers=1, max_rejects=1, progress=once_at(2, gone.unlink))
    assert (report.rows, report.reasons) == (23, {"there is no such file": 1})


# -- calls that fail


class Failing:
    """Makes calls on paths fail with an errno, in workers too: so many times, or always."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._counter, self._monkeypatch = folder / "failed", monkeypatch

    def fail(self, call: str, name: str, code: int, times: int = 1 << 30) -> None:
        self._counter.touch()
        module = io if call == "io.open" else os
        call = call.removeprefix("io.")
        original = getattr(module, call)

        def failing(path: Any, *rest: Any, **named: Any) -> Any:
            text = os.readlink(f"/proc/self/fd/{path}") if call == "read" else str(path)
            if text.endswith(name) and self._counter.stat().st_size < times:
                with open(self._counter, "ab", buffering=0) as file:
                    file.write(b"x")
                raise OSError(code, os.strerror(code), text)
            return original(path, *rest, **named)

        self._monkeypatch.setattr(module, call, failing)


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(tmp_path, monkeypatch)


@pytest.mark.parametrize("call", ["open", "read"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_an_error_of_the_system_stops_the_pack_unsealed_and_an_empty_file_lets_it_continue(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    path = images / "class1/003.jpg"
    text = rf"class1/003.jpg cannot be read: .* \({errno.errorcode[code]}\)\. Packed images are kept: .*when an empty one takes"
    with monkeypatch.context() as patch:
        Failing(tmp_path, patch).fail(call, "class1/003.jpg", code)
        with pytest.raises(SourceError, match=text):
            pack(images, tmp_path / "out", size=32, workers=1, max_rejects="100%")
    assert not (tmp_path / "out" / MANIFEST).exists()
    path.unlink()
    path.touch()
    report = pack(images, tmp_path / "out", size=32, max_rejects="100%")
    assert (report.rows, report.reasons, report.changed_paths) == (23, {"the file is empty": 1}, [])
    assert report.resumed_from > 0


def test_a_file_without_rights_is_a_reject_and_a_folder_without_stops_the_pack(
    images: Path, tmp_path: Path, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing.fail("open", "class1/003.jpg", errno.EACCES)
    report = pack(images, tmp_path / "one", size=32, workers=1, max_rejects=1)
    assert report.reasons == {"it cannot be read: Permission denied": 1}
    lister = os.getpid()
    monkeypatch.setattr(os, "access", lambda path, mode: os.getpid() == lister)
    with pytest.raises(SourceError, match=f"{images} is gone, or access to it is denied"):
        pack(images, tmp_path / "out", size=32, workers=1, max_rejects="100%")


@pytest.mark.parametrize(
    ("call", "name", "options"),
    [
        ("scandir", "images", {}),
        ("scandir", "images/class1", {}),
        ("stat", "images", {}),
        ("stat", "images/class1", {}),
        ("scandir", "labels/class1", {"masks": "labels"}),
        ("scandir", "labels/class1", {"boxes": "labels"}),
        ("io.open", "labels/class1/003.txt", {"boxes": "labels"}),
    ],
)
def test_an_error_of_the_system_while_inputs_are_listed_is_one_sentence(
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    failing: Failing,
    call: str,
    name: str,
    options: dict[str, str],
) -> None:
    labels_of(images, tmp_path / "labels")
    words = [word for key, value in options.items() for word in (f"--{key}", str(tmp_path / value))]
    failing.fail(call, name, errno.ESTALE)
    assert app.run([str(images), str(tmp_path / "out"), "--size", "32", "--max-rejects", "100%", *words]) == 1
    caught = capsys.readouterr().err
    assert f"{name} cannot be read: Stale file handle (ESTALE). Give the same command again" in caught
    assert caught.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_class_that_cannot_be_listed_does_not_renumber_the_others(
    images: Path, tmp_path: Path, failing: Failing
) -> None:
    failing.fail("scandir", "class1", errno.EACCES)
    with pytest.raises(
        ScanError, match="class1 cannot be listed: Permission denied. Allow it, or move that folder away"
    ):
        pack(images, tmp_path / "out", size=32, max_rejects="100%")


def test_a_folder_that_fails_while_splits_are_looked_for_is_not_passed_over(
    images: Path, tmp_path: Path, failing: Failing
) -> None:
    for split in ("train", "val"):
        shutil.copytree(images, tmp_path / "splits" / split)
    failing.fail("scandir", "val", errno.EIO, times=1)
    with pytest.raises(SourceError, match=r"val cannot be read: Input/output error \(EIO\)"):
        pack(tmp_path / "splits", tmp_path / "out", size=32)


def test_sources_that_cannot_be_read_any_more_are_not_taken_for_changed_ones(
    images: Path, tmp_path: Path, failing: Failing
) -> None:
    out = tmp_path / "out"
    interrupted(pack, images, out, size=32, workers=1, inputs=4)
    before = (tmp_path / "out.packing/.packing/journal").read_bytes()
    failing.fail("stat", "class0/000.jpg", errno.ESTALE)
    with pytest.raises(SourceError, match=r"class0/000.jpg cannot be read: Stale file handle \(ESTALE\)"):
        pack(images, out, size=32)
    assert (tmp_path / "out.packing/.packing/journal").read_bytes() == before


def test_headers_that_cannot_be_read_leave_no_plan_and_no_pack(images: Path, tmp_path: Path, failing: Failing) -> None:
    failing.fail("open", "class1/003.jpg", errno.EIO)
    for call in (plan, functools.partial(pack, out=tmp_path / "out", fit="none")):
        with pytest.raises(SourceError, match=r"class1/003.jpg cannot be read: Input/output error"):
            call(images, workers=1)


def test_a_read_without_answer_stops_the_pack_rather_than_reject_the_image(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tune: Tune
) -> None:
    tune(worker_seconds=1)
    original = sources.LocalSource.read

    def read(self: Any, **limits: Any) -> Any:
        if self.path.endswith("class1/003.jpg"):
            time.sleep(600)
        return original(self, **limits)

    monkeypatch.setattr(sources.LocalSource, "read", read)
    with pytest.raises(SourceError, match=r"class1/003.jpg cannot be read: no answer came within 1 seconds"):
        pack(images, tmp_path / "out", size=32, workers=1, max_rejects="100%")


class Folder:
    """Items of files, as torchvision's ImageFolder has them."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.paths = sorted(root.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file:
            return Image.open(file).convert("RGB"), index % 3


class Half:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset) // 2

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def test_items_of_a_dataset_whose_folder_went_away_are_no_rejects(images: Path, tmp_path: Path) -> None:
    away, out = tmp_path / "away", tmp_path / "out"
    items = Half(Folder(images))
    with pytest.raises(SourceError, match="is gone"):
        pack_dataset(items, out, size=32, workers=1, progress=once_at(2, lambda: images.rename(away)))
    away.rename(images)
    (images / "class0/007.jpg").unlink()
    report = pack_dataset(items, out, size=32, workers=1, max_rejects="50%")
    assert report.rejected == 1
