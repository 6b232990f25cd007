"""A source that goes away is no broken image: the pack stops unsealed, and the same command continues when it is back.

Real folders are moved away, real file systems unmounted, and calls made to fail, in the middle of a pack.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Tune, content_bytes, harm_at, interrupt_after, interrupted, make_tree, photo, store_bytes
from PIL import Image

from packer import PackError, ScanError, pack, pack_dataset, update
from packer.cli import app
from packer.errors import SourceError
from packer.operations.plan import plan
from packer.report import Progress
from packer.sources import local as sources
from packer.sources import roots
from packer.sources.roots import Roots
from packer.store import journal as journals
from reader.format.manifest import MANIFEST

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers inherit by fork what is done to their calls")

IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture(autouse=True)
def _forked_small_blocks(monkeypatch: pytest.MonkeyPatch, tune: Tune) -> None:
    """Blocks of 2 inputs, and forked workers."""
    tune(least_block_inputs=2)
    monkeypatch.setenv("PIXPACK_START_METHOD", "fork")


def once_at(done: int, act: Callable[[], object]) -> Callable[[Progress], None]:
    """Make a progress callback that acts once, when so many inputs are packed."""
    acts = iter([act])

    def report(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done >= done and (found := next(acts, None)):
            found()

    return report


def mount(folder: Path) -> None:
    """Mount a tmpfs, or skip."""
    done = subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Mounts that are gone after the test."""
    made: list[Path] = []

    def make(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        mount(folder)
        made.append(folder)
        return folder

    yield make
    for folder in reversed(made):
        while subprocess.run(["umount", "-l", str(folder)], capture_output=True).returncode == 0:
            pass


# -- a folder, a list, archives that are moved away


def _as_folder(images: Path) -> Path:
    return images


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
    [(_as_folder, "images"), (_as_list, "images"), (_as_tar, "a"), (_as_tar, "a/all.tar"), (_as_zip, "a/all.zip")],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_sources_that_are_moved_away_stop_the_pack_unsealed_and_it_continues_to_the_same_bytes(
    images: Path,
    tmp_path: Path,
    make: Callable[[Path], Path],
    moved: str,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, out = make(images), tmp_path / "out"
    pack(source, tmp_path / "full", size=32)
    away, was_moved = tmp_path / "away", tmp_path / "was-moved"

    def move() -> None:
        if not was_moved.exists():
            was_moved.touch()
            (tmp_path / moved).rename(away)

    # while its block is not decoded, none behind it is written, and no worker has room for all that is left
    harm_at(images / "class0/002.jpg", move, monkeypatch)
    text = r"cannot be read: .*(gone|cannot be reached).*give the same command again"
    with pytest.raises(SourceError, match=text) as caught:
        pack(source, out, size=32, workers=workers)
    assert "\n" not in str(caught.value)
    assert not (out / MANIFEST).exists()
    with pytest.raises((PackError, ScanError)):  # still away: nothing that was packed is lost
        pack(source, out, size=32)
    away.rename(tmp_path / moved)
    pack(source, out, size=32)
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


def test_masks_that_are_moved_away_stop_the_pack_unsealed(images: Path, tmp_path: Path) -> None:
    masks, out = tmp_path / "masks", tmp_path / "out"
    for path in sorted(images.rglob("*.jpg")):
        mask = masks / path.relative_to(images).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            Image.new("L", image.size, 7).save(mask)
    pack(images, tmp_path / "full", size=32, masks=masks)
    with pytest.raises(SourceError, match="masks is gone"):
        pack(images, out, size=32, workers=1, masks=masks, progress=once_at(4, lambda: masks.rename(tmp_path / "away")))
    (tmp_path / "away").rename(masks)
    pack(images, out, size=32, masks=masks)
    assert store_bytes(out) == store_bytes(tmp_path / "full")


def test_a_file_that_is_deleted_while_its_folder_stays_is_a_reject(images: Path, tmp_path: Path) -> None:
    gone = images / "class2/007.jpg"
    report = pack(images, tmp_path / "out", size=32, workers=1, max_rejects=1, progress=once_at(2, gone.unlink))
    assert (report.rows, report.reasons) == (23, {"there is no such file": 1})


def test_a_folder_that_replaced_the_listed_one_is_not_taken_for_it(images: Path, tmp_path: Path) -> None:
    def replace() -> None:
        images.rename(tmp_path / "away")
        images.mkdir()

    with pytest.raises(SourceError, match="images is not the one that was listed"):
        pack(images, tmp_path / "out", size=32, workers=1, progress=once_at(2, replace))


def test_a_list_whose_folder_is_not_there_keeps_what_was_packed(images: Path, tmp_path: Path) -> None:
    listed, out = _as_list(images), tmp_path / "out"
    with pytest.raises(SourceError):
        pack(listed, out, size=32, workers=1, progress=once_at(4, lambda: images.rename(tmp_path / "away")))
    before = (tmp_path / "out.packing/.packing/journal").read_bytes()
    with pytest.raises(SourceError, match=f"{images} is gone"):
        pack(listed, out, size=32)
    assert (tmp_path / "out.packing/.packing/journal").read_bytes() == before


# -- file systems that are unmounted


@pytest.mark.skipif(not IS_ROOT, reason="mounts file systems")
@pytest.mark.parametrize("below", ["", "class1", "linked"])
@pytest.mark.parametrize("as_list", [False, True])
def test_a_file_system_that_is_unmounted_stops_the_pack_also_where_its_folder_stays_empty(
    tmp_path: Path, mounted: Callable[[Path], Path], below: str, as_list: bool
) -> None:
    images, out = tmp_path / "images", tmp_path / "out"
    disk = mounted(tmp_path / "disk" if below == "linked" else images / below)
    full = make_tree(tmp_path / "some", each=8)
    shutil.copytree(full, images, dirs_exist_ok=True)
    if below == "linked":  # files of the folder are links to files of the disk
        for path in sorted((images / "class1").iterdir()):
            shutil.move(path, disk / path.name)
            path.symlink_to(disk / path.name)
    source = _as_list(images) if as_list else images
    with pytest.raises(SourceError, match=r"is not the one that was listed|is no longer mounted there"):
        pack(source, out, size=32, workers=1, max_rejects="100%", progress=once_at(4, lambda: unmount(disk)))
    assert not (out / MANIFEST).exists()
    assert [result.rejects for result, _ in journals.read_blocks(tmp_path / "out.packing") if result.rejects] == []


@pytest.mark.skipif(not IS_ROOT, reason="mounts file systems")
def test_a_disk_that_is_unmounted_while_folders_are_listed_is_not_taken_for_an_empty_folder(
    tmp_path: Path, mounted: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_tree(tmp_path / "images")
    photo(40, 30, 0).save(mounted(images / "class1") / "x.jpg")
    original = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("class2"):
            unmount(images / "class1")
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(SourceError, match=f"the disk at {images}/class1 is no longer mounted there"):
        pack(images, tmp_path / "out", size=32)


# -- calls that fail


class Failing:
    """Makes opens, or reads, of files fail in workers with an errno: so many times, or always."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._counter, self._opens, self._reads = folder / "failed", os.open, os.read
        self._monkeypatch = monkeypatch

    def fail(self, name: str, code: int, times: int = 1 << 30, call: str = "open") -> None:
        self._counter.touch()

        def is_hit(path: str) -> bool:
            if not path.endswith(name) or self._counter.stat().st_size >= times:
                return False
            with open(self._counter, "ab", buffering=0) as file:
                file.write(b"x")
            return True

        def opened(path: Any, *rest: Any, **named: Any) -> int:
            if call == "open" and is_hit(os.fspath(path)):
                raise OSError(code, os.strerror(code), path)
            return self._opens(path, *rest, **named)

        def read(descriptor: int, count: int) -> bytes:
            if call == "read" and is_hit(os.readlink(f"/proc/self/fd/{descriptor}")):
                raise OSError(code, os.strerror(code))
            return self._reads(descriptor, count)

        self._monkeypatch.setattr(sources.os, "open", opened)
        self._monkeypatch.setattr(sources.os, "read", read)

    @property
    def count(self) -> int:
        return self._counter.stat().st_size


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(tmp_path, monkeypatch)


@pytest.mark.parametrize("call", ["open", "read"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT])
def test_an_error_of_the_system_stops_the_pack_unsealed(
    images: Path, tmp_path: Path, failing: Failing, call: str, code: int
) -> None:
    failing.fail("class1/003.jpg", code, call=call)
    text = rf"class1/003.jpg cannot be read: .* \({errno.errorcode[code]}\)\. What is"
    with pytest.raises(SourceError, match=text):
        pack(images, tmp_path / "out", size=32, workers=1, max_rejects="100%")
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_an_empty_file_instead_of_an_unreadable_one_lets_the_pack_continue(
    images: Path, tmp_path: Path, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        Failing(tmp_path, patch).fail("class1/003.jpg", errno.EIO)
        with pytest.raises(
            SourceError, match="A single file that stays unreadable is rejected when an empty one takes"
        ):
            pack(images, tmp_path / "out", size=32, workers=1)
    (images / "class1/003.jpg").unlink()
    (images / "class1/003.jpg").touch()
    report = pack(images, tmp_path / "out", size=32, max_rejects=1)
    assert (report.rows, report.reasons, report.changed) == (23, {"the file is empty": 1}, "")
    assert report.resumed_from > 0


def test_what_one_file_has_by_itself_is_a_reject_as_before(images: Path, tmp_path: Path, failing: Failing) -> None:
    failing.fail("class1/003.jpg", errno.EACCES)
    report = pack(images, tmp_path / "out", size=32, workers=1, max_rejects=1)
    assert report.reasons == {"it cannot be read: Permission denied": 1}


def test_access_that_is_withdrawn_from_the_folder_stops_the_pack(
    images: Path, tmp_path: Path, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing.fail(".jpg", errno.EACCES)
    lister = os.getpid()
    monkeypatch.setattr(os, "access", lambda path, mode: os.getpid() == lister)
    with pytest.raises(SourceError, match=f"access to {images} is denied now"):
        pack(images, tmp_path / "out", size=32, workers=1)


def test_a_folder_that_cannot_be_listed_for_an_error_of_the_system_is_no_reject(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, failed = os.scandir, {"class1": errno.EIO}

    def scandir(path: Any) -> Any:
        if (code := failed.get(str(path).rpartition("/")[2])) is not None:
            raise OSError(code, os.strerror(code), str(path))
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(SourceError, match=r"class1 cannot be read: Input/output error \(EIO\)"):
        pack(images, tmp_path / "out", size=32, max_rejects="100%")
    failed["class1"] = errno.EACCES
    report = pack(images, tmp_path / "out", size=32, max_rejects="100%")
    assert report.reasons == {"the folder cannot be listed: Permission denied": 1}


@pytest.mark.parametrize("kind", ["masks", "boxes"])
def test_labels_that_cannot_be_listed_are_not_taken_for_missing(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    labels = tmp_path / "labels"
    for path in sorted(images.rglob("*.jpg")):
        name = labels / path.relative_to(images)
        name.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(name.with_suffix(".png"))
        name.with_suffix(".txt").write_text("0 .5 .5 .2 .2\n")
    original = os.scandir

    def scandir(path: Any) -> Any:
        if os.fspath(path).endswith("labels/class1"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(SourceError, match="labels/class1 cannot be read: Stale file handle"):
        pack(images, tmp_path / "out", size=32, max_rejects="100%", **{kind: labels})  # type: ignore[arg-type]


def test_a_label_file_that_cannot_be_read_is_no_reject(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in sorted(images.rglob("*.jpg")):
        path.with_suffix(".txt").write_text("0 .5 .5 .2 .2\n")
    original = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.match("class1/003.txt"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(SourceError, match=r"class1/003.txt cannot be read: Input/output error"):
        pack(images, tmp_path / "out", size=32, max_rejects="100%", boxes=images)


def test_sources_that_cannot_be_read_any_more_are_not_taken_for_changed_ones(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SourceError):
        pack(images, out, size=32, workers=1, progress=once_at(4, lambda: images.rename(tmp_path / "away")))
    (tmp_path / "away").rename(images)
    before = (tmp_path / "out.packing/.packing/journal").read_bytes()
    original = os.stat

    def stat(path: Any, *rest: Any, **named: Any) -> os.stat_result:
        if str(path).endswith("class0/000.jpg"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return original(path, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(sources.os, "stat", stat)
        with pytest.raises(SourceError, match=r"class0/000.jpg cannot be read: Stale file handle \(ESTALE\)"):
            pack(images, out, size=32)
    assert (tmp_path / "out.packing/.packing/journal").read_bytes() == before


# -- a source that does not answer


def test_a_read_without_answer_stops_the_pack_rather_than_reject_the_image(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tune: Tune
) -> None:
    tune(worker_seconds=1)
    original = sources.LocalSource.read

    def read(self: Any, **limits: Any) -> Any:
        if self.path.endswith("class1/003.jpg"):
            import time

            time.sleep(600)
        return original(self, **limits)

    monkeypatch.setattr(sources.LocalSource, "read", read)
    with pytest.raises(SourceError, match=r"class1/003.jpg cannot be read: no answer came within 1 seconds"):
        pack(images, tmp_path / "out", size=32, workers=1, max_rejects="100%")


# -- a source that is away, or fails, while it is listed


class Listing:
    """Makes calls that look at a path fail so many times with an errno."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch, self.count = monkeypatch, 0

    def fail(self, call: str, name: str, code: int, times: int = 1 << 30) -> None:
        original = getattr(os, call)

        def failing(path: Any, *rest: Any, **named: Any) -> Any:
            if str(path).endswith(name) and self.count < times:
                self.count += 1
                raise OSError(code, os.strerror(code), str(path))
            return original(path, *rest, **named)

        self._monkeypatch.setattr(os, call, failing)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
@pytest.mark.parametrize(
    ("call", "name"), [("scandir", "images"), ("scandir", "class1"), ("stat", "images"), ("stat", "class1")]
)
def test_an_error_of_the_system_while_inputs_are_listed_is_one_sentence(
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    name: str,
    code: int,
) -> None:
    Listing(monkeypatch).fail(call, name, code)
    assert app.run([str(images), str(tmp_path / "lasting"), "--size", "32"]) == 1
    caught = capsys.readouterr().err
    assert f"({errno.errorcode[code]}). Give the same command again" in caught
    assert caught.count("\n") == 1
    assert not (tmp_path / "lasting").exists()


def test_a_folder_that_fails_while_splits_are_looked_for_is_not_passed_over(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.rename(tmp_path / "train")
    (tmp_path / "images").mkdir()
    (tmp_path / "train").rename(images / "train")
    shutil.copytree(images / "train", images / "val")
    Listing(monkeypatch).fail("scandir", "val", errno.EIO, times=1)
    with pytest.raises(SourceError, match=r"val cannot be read: Input/output error \(EIO\)"):
        pack(images, tmp_path / "out", size=32)


@pytest.mark.parametrize("make", [_as_folder, _as_list, _as_tar])
@pytest.mark.parametrize("options", [["--overwrite"], []])
def test_a_source_that_an_unfinished_pack_was_started_from_is_away_and_a_mistyped_one_is_wrong_usage(
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], Path],
    options: list[str],
) -> None:
    source, out = make(images), tmp_path / "out"
    interrupted(pack, source, out, size=32, workers=1, inputs=4)
    source.rename(tmp_path / "away")
    assert app.run([str(source), str(out), "--size", "32", *options]) == 1
    caught = capsys.readouterr().err
    assert f"pack: {source} is missing or empty, and {out} holds an unfinished pack that was begun from it" in caught
    assert "Give the same command again" in caught
    assert app.run([f"{source}x", str(out), "--size", "32", *options]) == 2
    assert app.run([str(source), str(tmp_path / "other"), "--size", "32", *options]) == 2
    (tmp_path / "away").rename(source)
    pack(source, out, size=32)


def test_an_empty_mount_point_is_a_source_that_is_away_also_of_splits_parts_and_replacements(
    images: Path, tmp_path: Path
) -> None:
    splits, out, away = tmp_path / "splits", tmp_path / "out", tmp_path / "away"
    out.mkdir()
    for split in ("train", "val"):
        shutil.copytree(images, splits / split)
    stop = {"workers": 1, "progress": interrupt_after(4)}
    with pytest.raises(KeyboardInterrupt):
        pack(splits, out / "a", size=32, **stop)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        pack(splits, out / "b", size=32, part="1/1", **stop)  # type: ignore[arg-type]
    pack(images, out / "c", size=32)
    with pytest.raises(KeyboardInterrupt):
        pack(splits / "val", out / "c", size=16, overwrite=True, **stop)  # type: ignore[arg-type]
    for name, source, part in (("a", splits, None), ("b", splits, "1/1"), ("c", splits / "val", None)):
        source.rename(away)
        source.mkdir()
        with pytest.raises(SourceError, match="is missing or empty"):
            pack(source, out / name, size=16 if name == "c" else 32, part=part, overwrite=name == "c")
        source.rmdir()
        away.rename(source)


# -- siblings


def test_headers_that_cannot_be_read_leave_no_plan_and_no_pack(images: Path, tmp_path: Path, failing: Failing) -> None:
    failing.fail("class1/003.jpg", errno.EIO)
    with pytest.raises(SourceError, match=r"class1/003.jpg cannot be read: Input/output error"):
        plan(images, workers=1)
    with pytest.raises(SourceError, match=r"class1/003.jpg cannot be read: Input/output error"):
        pack(images, tmp_path / "out", fit="none", workers=1)


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


@pytest.mark.parametrize("wrap", [lambda full: full, Half])
def test_items_of_a_dataset_whose_folder_went_away_are_no_rejects(
    images: Path, tmp_path: Path, wrap: Callable[[Any], Any]
) -> None:
    away, out = tmp_path / "away", tmp_path / "out"
    items = wrap(Folder(images))
    with pytest.raises(SourceError, match="is gone"):
        pack_dataset(items, out, size=32, workers=1, progress=once_at(2, lambda: images.rename(away)))
    away.rename(images)
    (images / "class0/007.jpg").unlink()
    report = pack_dataset(items, out, size=32, workers=1, max_rejects="50%")
    assert report.rejected == 1


def test_a_mount_point_with_a_space_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mounts"
    table.write_text("1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / /my\\040disk rw - tmpfs b rw\n")
    monkeypatch.setattr(roots, "_MOUNTS", str(table))
    known = Roots.of([tmp_path])
    assert known.mounts == (("/", "8:1"), ("/my disk", "0:9"))
    assert known.lost("/my disk/a.jpg") == ""
    table.write_text("1 0 8:1 / / rw - ext4 a rw\n")
    assert known.lost("/my disk/a.jpg") == "the disk at /my disk is no longer mounted there"
