"""A requantized tree and a requantized store: the same pixels, sources untouched, resumable, refusals before writing."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import Child
from conftest import ffmpeg_or_skip, interrupted, make_splits, make_tree, photo, store_bytes
from PIL import Image

from packer import OptionsError, PackError, pack
from packer.cli.app import run
from packer.clock import StageClock
from packer.errors import DiskFullError
from packer.operations.info import describe
from packer.operations.requantize import RequantizeJob, requantize
from packer.operations.verify import verify
from packer.options import MAX_PIXELS
from packer.pixels.requantize import Recoded, Recoder
from packer.report import Progress
from packer.store.blocks import Task
from packer.store.lock import Lock
from reader import IncompleteStoreError, MemmapDataset
from reader.format.samples import read_json_lines


@pytest.fixture(autouse=True)
def _needs_ffmpeg() -> None:
    ffmpeg_or_skip()


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Class folders of JPEGs of all kinds: turned by EXIF, gray, CMYK, named .JPEG, and a PNG, a broken one, a text."""
    root = make_tree(tmp_path / "mixed", each=3, size=(120, 90))
    for orientation in range(2, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        photo(90, 60, orientation).save(root / f"class0/turned{orientation}.JPEG", quality=90, exif=exif)
    photo(70, 90, 20).convert("L").save(root / "class1/gray.jpeg", quality=90)
    photo(70, 90, 21).convert("CMYK").save(root / "class1/print.jpg", quality=90)
    photo(70, 90, 22).save(root / "class2/drawn.png")
    intact = (root / "class2/000.jpg").read_bytes()
    (root / "class2/cut.jpg").write_bytes(intact[: len(intact) // 2])
    (root / "class2/notes.txt").write_text("not an image")
    return root


def test_both_ways_give_the_same_pixels(mixed: Path, tmp_path: Path) -> None:
    # rows so small that DCT scaling would be used
    tree = requantize(mixed, tmp_path / "tree", quality=6)
    two = pack(tmp_path / "tree", tmp_path / "two", size=20, exact=True)
    one = pack(mixed, tmp_path / "one", size=20, requantize=6)
    first, second = MemmapDataset(tmp_path / "one", as_tuple=False), MemmapDataset(tmp_path / "two", as_tuple=False)
    assert (tree.requantized, tree.kept, tree.rejected, tree.ignored) == (17, 2, 1, 1)
    assert (one.rows, one.rejected, two.rows, two.rejected) == (19, 1, 19, 0)
    stems = [[os.path.splitext(path)[0] for path, _ in store.samples] for store in (first, second)]
    assert stems[0] == stems[1]
    assert np.array_equal(first.numpy(), second.numpy())
    assert first.targets == second.targets
    plain = pack(mixed, tmp_path / "plain", size=20, exact=True)
    assert plain.rows == 19
    assert not np.array_equal(first.numpy(), MemmapDataset(tmp_path / "plain").numpy())


def test_the_store_says_what_was_requantized_and_by_what(mixed: Path, tmp_path: Path) -> None:
    pack(mixed, tmp_path / "out", size=48, requantize=6)
    store = MemmapDataset(tmp_path / "out", as_tuple=False)
    samples = {line["path"]: line for line in read_json_lines(tmp_path / "out/samples.jsonl")}
    assert {path: line["kept"] for path, line in samples.items() if not line["requantized"]} == {
        "class1/print.jpg": "FFmpeg decodes it as gbrap",
        "class2/drawn.png": "it is no JPEG",
    }
    assert samples["class0/turned6.JPEG"]["exif_orientation"] == 6
    assert samples["class0/turned6.JPEG"]["bytes"] == (mixed / "class0/turned6.JPEG").stat().st_size
    assert (store.manifest.options["requantize"], store.manifest.options["exact"]) == (6, True)
    assert set(store.manifest.decoders["ffmpeg"]) == {"av", "ffmpeg", "machine"}
    assert verify(tmp_path / "out", redecode=30, images=mixed).problems == []


def test_a_store_without_it_says_nothing_of_it(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=32)
    manifest = MemmapDataset(tmp_path / "out").manifest
    assert "requantize" not in manifest.options
    assert "ffmpeg" not in manifest.decoders
    assert not any("requantized" in line for line in read_json_lines(tmp_path / "out/samples.jsonl"))


def test_the_number_of_workers_changes_no_byte(mixed: Path, tmp_path: Path) -> None:
    for workers in (1, 3):
        pack(mixed, tmp_path / f"out{workers}", size=48, requantize=3, workers=workers)
        requantize(mixed, tmp_path / f"tree{workers}", quality=3, workers=workers)
    assert store_bytes(tmp_path / "out1") == store_bytes(tmp_path / "out3")
    assert store_bytes(tmp_path / "tree1") == store_bytes(tmp_path / "tree3")


def test_resuming_a_pack_with_another_quality_is_refused(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=32, requantize=3)
    with pytest.raises(PackError, match=r"other options \(requantize=3, now requantize=4\)"):
        pack(images, tmp_path / "out", size=32, requantize=4, resume=True)
    # a pack without it is another pack too, in both directions
    with pytest.raises(PackError, match="other options"):
        pack(images, tmp_path / "out", size=32, exact=True, resume=True)


def test_names_and_folders_stay_and_sources_are_untouched(mixed: Path, tmp_path: Path) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in mixed.rglob("*") if path.is_file()}
    report = requantize(mixed, tmp_path / "tree", quality=8)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    names = {str(p.relative_to(tmp_path / "tree")) for p in (tmp_path / "tree").rglob("*") if p.is_file()}
    jpegs = {p.relative_to(mixed).with_suffix(".jpg") for p in before if p.suffix in (".jpg", ".jpeg", ".JPEG")}
    expected = {str(p) for p in jpegs} - {"class2/cut.jpg"} | {"class2/drawn.png", "requantized.jsonl"}
    assert names == expected
    assert (tmp_path / "tree/class2/drawn.png").read_bytes() == (mixed / "class2/drawn.png").read_bytes()
    lines = {line["path"]: line for line in list(read_json_lines(tmp_path / "tree/requantized.jsonl"))[1:]}
    sizes = [(line["bytes"], line["bytes_after"]) for line in lines.values() if "to" in line]
    assert (report.bytes_before, report.bytes_after) == (sum(a for a, _ in sizes), sum(b for _, b in sizes))
    assert report.bytes_after < report.bytes_before
    assert report.reasons == {lines["class2/cut.jpg"]["reason"]: 1}


def test_orientation_is_all_the_exif_that_stays(mixed: Path, tmp_path: Path) -> None:
    requantize(mixed, tmp_path / "tree", quality=8)
    for orientation in range(2, 9):
        with Image.open(tmp_path / f"tree/class0/turned{orientation}.jpg") as image:
            assert dict(image.getexif()) == {0x0112: orientation}
            assert image.size == (90, 60)
    with Image.open(tmp_path / "tree/class0/000.jpg") as image:
        assert dict(image.getexif()) == {}


def test_splits_keep_their_folders(tmp_path: Path) -> None:
    make_splits(tmp_path / "images", ("train", "val"), classes=2, each=2)
    assert requantize(tmp_path / "images", tmp_path / "tree", quality=3).requantized == 8
    assert (tmp_path / "tree/val/class1/001.jpg").is_file()


@pytest.mark.parametrize(
    ("size", "expected"), [("30", (30, 45)), ("100", (60, 90)), ("20x50", (50, 20))], ids=["short", "larger", "HxW"]
)
def test_size_is_of_the_upright_picture_and_never_enlarges_by_one_number(
    size: str, expected: tuple[int, int], mixed: Path, tmp_path: Path
) -> None:
    requantize(mixed, tmp_path / "tree", quality=3, size=size)
    with Image.open(tmp_path / "tree/class0/turned6.jpg") as image:
        assert image.size == expected[::-1]
    with Image.open(tmp_path / "tree/class0/turned3.jpg") as image:
        assert image.size == (expected if size == "20x50" else expected[::-1])


def test_fidelity_is_reported_and_falls_with_the_quality(images: Path, tmp_path: Path) -> None:
    fine, coarse = (requantize(images, tmp_path / f"q{q}", quality=q, fidelity=8) for q in (2, 25))
    assert fine.compared == coarse.compared == 8
    assert fine.psnr is not None
    assert coarse.psnr is not None
    assert fine.psnr > coarse.psnr
    assert (fine.ssim or 0) > (coarse.ssim or 1)
    assert coarse.lowest_ssim is not None
    assert coarse.lowest_ssim[0] <= (coarse.ssim or 0)
    none = requantize(images, tmp_path / "none", quality=3, fidelity=0)
    assert (none.compared, none.psnr, none.ssim, none.lowest_ssim) == (0, None, None, None)


def test_two_images_of_one_name_are_named_before_anything_is_written(images: Path, tmp_path: Path) -> None:
    photo(30, 30, 1).save(images / "class1/003.png")
    with pytest.raises(OptionsError, match=r"class1/003.jpg and class1/003.png would both become class1/003.jpg"):
        requantize(images, tmp_path / "tree", quality=3)
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize(("images", "dest"), [("a", "a/b"), ("a/b", "a"), ("a", "a"), ("link", "a/b")])
def test_trees_in_one_another_are_refused(images: str, dest: str, tmp_path: Path) -> None:
    make_tree(tmp_path / "a/b", each=1)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    before = store_bytes(tmp_path / "a")
    with pytest.raises(OptionsError, match="is in"):
        requantize(tmp_path / images, tmp_path / dest, quality=3)
    assert store_bytes(tmp_path / "a") == before


def test_a_folder_of_the_stages_name_with_other_things_is_refused(images: Path, tmp_path: Path) -> None:
    (tmp_path / "tree.packing").mkdir()
    (tmp_path / "tree.packing/mine.txt").touch()
    with pytest.raises(
        OptionsError, match=r"tree.packing is not empty \(it holds mine.txt\), and \S*tree is made there"
    ):
        requantize(images, tmp_path / "tree", quality=3)
    assert [path.name for path in (tmp_path / "tree.packing").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    "name", ["class0/000.jpg", "_tensordict/pixels.memmap", ".packing/.packing/journal", ".packing/mine.txt"]
)
def test_a_stage_that_no_run_has_left_is_refused_and_stays(name: str, images: Path, tmp_path: Path) -> None:
    file = tmp_path / "tree.packing" / name
    (tmp_path / "tree.packing/.packing").mkdir(parents=True)
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    for resume in (False, True):
        with pytest.raises(OptionsError, match=r"tree\.packing is not empty \(it holds "):
            requantize(images, tmp_path / "tree", quality=4, resume=resume)
    assert file.read_text() == "mine"
    assert not (tmp_path / "tree").exists()


def test_the_stage_of_another_run_is_neither_dest_nor_images(images: Path, tmp_path: Path) -> None:
    stage = tmp_path / "tree.packing"
    interrupted(requantize, images, tmp_path / "tree", quality=4, workers=1)
    (stage / "requantized.jsonl").write_text("{}\n")
    before = store_bytes(stage)
    for resume in (False, True):
        with pytest.raises(OptionsError, match=r"tree\.packing is where \S*/tree is made\. Give that as DEST"):
            requantize(images, stage, quality=4, resume=resume)
    with pytest.raises(OptionsError, match=r"IMAGES \S* is in \S*tree\.packing, where \S*/tree is made"):
        requantize(stage / "class0", tmp_path / "tree", quality=4, resume=True)
    assert store_bytes(stage) == before


def test_a_stage_that_is_moved_while_images_are_made_is_not_made_again(images: Path, tmp_path: Path) -> None:
    stage = tmp_path / "tree.packing"

    def move(report: Progress) -> None:
        if report.done and stage.exists():
            stage.rename(tmp_path / "moved")

    with pytest.raises(PackError, match=r"tree\.packing was renamed, removed or replaced"):
        requantize(images, tmp_path / "tree", quality=4, progress=move)
    assert not stage.exists()
    (tmp_path / "moved").rename(stage)
    assert requantize(images, tmp_path / "tree", quality=4, resume=True).requantized == 24


def test_dest_is_finished_also_where_the_folder_above_cannot_be_synced(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = os.fsync

    def fsync(descriptor: int) -> None:
        if (tmp_path / "tree").exists() and os.path.samestat(os.fstat(descriptor), os.stat(tmp_path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DiskFullError, match=r"tree is finished and can be used, but \S* cannot be synced"):
        requantize(images, tmp_path / "tree", quality=4)
    monkeypatch.undo()
    assert requantize(images, tmp_path / "tree", quality=4, resume=True).resumed_from == 24


def test_what_came_to_dest_while_a_run_was_interrupted_stays_and_is_named_before_any_work(
    images: Path, tmp_path: Path
) -> None:
    interrupted(requantize, images, tmp_path / "tree", quality=3, workers=1)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/mine.txt").touch()
    before = store_bytes(tmp_path / "tree.packing")
    with pytest.raises(
        PackError, match=r"tree also holds mine.txt, which is not of what is made there\. Move it away, and"
    ):
        requantize(images, tmp_path / "tree", quality=3, resume=True)
    assert store_bytes(tmp_path / "tree.packing") == before
    (tmp_path / "tree/mine.txt").unlink()
    assert requantize(images, tmp_path / "tree", quality=3, resume=True).requantized == 24
    assert not (tmp_path / "tree.packing").exists()


def test_a_url_and_the_folder_where_one_is(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionsError, match="^DEST s3://bucket/tree is a URL, expected a folder"):
        requantize(images, "s3://bucket/tree", quality=3)
    (tmp_path / "tree").mkdir()
    monkeypatch.chdir(tmp_path / "tree")
    assert requantize(images, ".", quality=3).requantized == 24
    requantize(images, tmp_path / "whole", quality=3)
    assert store_bytes(tmp_path / "tree") == store_bytes(tmp_path / "whole")


def test_a_folder_with_other_things_is_refused(images: Path, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/mine.txt").touch()
    for resume in (False, True):
        with pytest.raises(
            OptionsError, match=r"is not empty \(it holds mine.txt\) and was not made by pack requantize"
        ):
            requantize(images, tmp_path / "tree", quality=3, resume=resume)
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["mine.txt"]


def _stop_in_the_middle(pipe: Connection, images: Path, tree: Path) -> None:
    """Requantize until a block is in the journal and the next ones are not; then wait to be killed."""
    os.setsid()
    journal = tree.with_name(f"{tree.name}.packing") / ".packing/journal"

    def progress(_: object) -> None:
        if journal.exists() and journal.read_bytes().count(b"\n") > 1:
            pipe.send("in the middle")
            time.sleep(600)

    requantize(images, tree, quality=4, workers=1, progress=progress)


def test_a_killed_run_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", each=60)
    running = Child(_stop_in_the_middle, images, tmp_path / "tree")
    assert running.received() == "in the middle"
    os.killpg(running.process.pid, signal.SIGKILL)
    assert running.ended() == -signal.SIGKILL
    assert not (tmp_path / "tree").exists()
    assert not [path for path in (tmp_path / "tree.packing").glob("[!.]*/*") if path.name.startswith(".")]
    command = f"pack requantize {images} {tmp_path / 'tree'} -q 4 --resume"
    for folder in (tmp_path / "tree", tmp_path / "tree.packing"):
        with pytest.raises(IncompleteStoreError, match=rf"is at \d+ of 180 images, .*\. Resume with: {command}$"):
            describe(folder)
    with pytest.raises(OptionsError, match="holds an earlier run. Resume it with resume=True"):
        requantize(images, tmp_path / "tree", quality=4)
    report = requantize(images, tmp_path / "tree", quality=4, resume=True)
    assert 0 < report.resumed_from < 180
    requantize(images, tmp_path / "whole", quality=4)
    assert store_bytes(tmp_path / "tree") == store_bytes(tmp_path / "whole")
    assert not (tmp_path / "tree.packing").exists()


def test_an_image_that_kills_its_worker_costs_that_image(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = (images / "class1/004.jpg").read_bytes()
    recode = Recoder.recode

    def killed(self: Recoder, data: bytes) -> Recoded:
        if data == evil:
            os.kill(os.getpid(), signal.SIGKILL)
        return recode(self, data)

    monkeypatch.setattr(Recoder, "recode", killed)
    monkeypatch.setenv("PIXPACK_START_METHOD", "fork")
    report = requantize(images, tmp_path / "tree", quality=4, workers=2)
    assert (report.requantized, report.rejected) == (23, 1)
    assert "killed by SIGKILL" in next(iter(report.reasons))


def test_resume_does_what_is_new_or_changed_and_takes_away_what_no_longer_holds(mixed: Path, tmp_path: Path) -> None:
    requantize(mixed, tmp_path / "tree", quality=4)
    shutil.copy(mixed / "class0/000.jpg", mixed / "class0/new.jpg")
    (mixed / "class0/001.jpg").write_text("broken now")
    photo(50, 40, 9).save(mixed / "class1/print.jpg")  # was kept as .jpg, CMYK
    shutil.copy(mixed / "class2/drawn.png", mixed / "class2/002.jpg")  # a PNG by its content now
    (tmp_path / "tree/class2/001.jpg").unlink()
    report = requantize(mixed, tmp_path / "tree", quality=4, resume=True)
    # 20 before: but 4 that changed or are gone, and the broken one
    assert (report.inputs, report.resumed_from, report.rejected, report.kept) == (21, 15, 2, 2)
    requantize(mixed, tmp_path / "again", quality=4)
    assert store_bytes(tmp_path / "tree") == store_bytes(tmp_path / "again")


# -- one line that is right in every state


def test_resume_begins_continues_and_finds_nothing_to_do(mixed: Path, tmp_path: Path) -> None:
    first = requantize(mixed, tmp_path / "tree", quality=4, resume=True)
    assert (first.resumed_from, first.requantized, first.rejected) == (0, 17, 1)
    before = store_bytes(tmp_path / "tree")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "tree").rglob("*.jpg")}
    again = requantize(mixed, tmp_path / "tree", quality=4, resume=True)
    assert (again.resumed_from, again.requantized, again.rejected) == (19, 17, 1)
    assert store_bytes(tmp_path / "tree") == before
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_a_run_that_another_one_ends_before_it_has_the_lock_finds_what_that_made(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    with monkeypatch.context() as patch:
        patch.setattr("packer.operations.requantize.write_atomically", _killed)
        with pytest.raises(KeyboardInterrupt):
            requantize(images, tree, quality=4)

    def locked(stage: Path, **options: Any) -> Lock:
        monkeypatch.setattr("packer.store.destination.Lock", Lock)
        requantize(images, tree, quality=4, resume=True)
        (stage / ".packing").mkdir(parents=True)
        return Lock(stage, **options)

    monkeypatch.setattr("packer.store.destination.Lock", locked)
    assert requantize(images, tree, quality=4, resume=True).resumed_from == 24
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "tree"]


def test_rejects_that_are_tried_again_are_no_further_images(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (images / "class0/000.jpg").write_text("broken")
    monkeypatch.setattr("packer.operations.requantize.write_atomically", _killed)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            requantize(images, tmp_path / "tree", quality=4, resume=True)
        with pytest.raises(IncompleteStoreError, match=r"is at 24 of 24 images, interrupted or still running\."):
            describe(tmp_path / "tree")


def _killed(path: Path, content: bytes) -> None:
    raise KeyboardInterrupt


def test_the_command_with_resume_reports_rejects_every_time(mixed: Path, tmp_path: Path) -> None:
    words = ["requantize", str(mixed), str(tmp_path / "tree"), "-q", "3", "--max-rejects", "0", "--resume", "--quiet"]
    assert [run(words) for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("names", [[], ["lock"], ["lock", "journal"]])
@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_ended_before_its_journal_is_started_over(
    images: Path, tmp_path: Path, names: list[str], resume: bool
) -> None:
    (tmp_path / "tree/.packing/.packing").mkdir(parents=True)
    for name in names:
        (tmp_path / "tree/.packing/.packing" / name).touch()
    assert requantize(images, tmp_path / "tree", quality=4, resume=resume).requantized == 24
    requantize(images, tmp_path / "whole", quality=4)
    assert store_bytes(tmp_path / "tree") == store_bytes(tmp_path / "whole")


def test_what_is_in_dest_by_the_time_that_it_was_renamed_stays(images: Path, tmp_path: Path) -> None:
    """A worker that takes away what an earlier run made of a source looks first whether DEST is the folder that was locked."""
    dest = tmp_path / "tree"
    (dest / ".packing/.packing").mkdir(parents=True)
    lock = dest / ".packing/.packing/lock"
    lock.write_bytes(b"of another command")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/a.jpg").write_text("no image")
    (dest / "a.jpg").write_text("of somebody else")
    job = RequantizeJob(str(tmp_path / "broken"), str(dest), 5, None, MAX_PIXELS, lock=(str(lock), b"mine"))
    with pytest.raises(
        PackError,
        match=rf"^{dest} was renamed, removed or replaced while this command worked on it, .* Move the folder back, or choose"
        " another, and",
    ):
        job.worker(None, StageClock("begin")).decode(Task(0, 0, ["a.jpg"], [], [], {}))
    assert (dest / "a.jpg").read_text() == "of somebody else"


def test_info_says_of_an_unfinished_run_what_it_is(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(requantize, mixed, tmp_path / "tree", quality=4, workers=1)
    assert run(["info", str(tmp_path / "tree")]) == 1
    said = rf"pack: {tmp_path}/tree is incomplete: its requantizing is at \d+ of \d+ images, .*\. Resume with: pack "
    assert re.match(f"{said}requantize ", capsys.readouterr().err)


def test_an_unfinished_pack_is_no_earlier_run(images: Path, tmp_path: Path) -> None:
    (tmp_path / "out/.packing").mkdir(parents=True)
    (tmp_path / "out/.packing/journal").write_text("00000000 {}\n")
    (tmp_path / "there").mkdir()
    interrupted(pack, images, tmp_path / "there", size=32, workers=1)
    before = store_bytes(tmp_path)
    interrupted(pack, images, tmp_path / "new", size=32, workers=1)
    before = store_bytes(tmp_path)
    unfinished = r"Choose another DEST: \S*/{} is incomplete: its pack is at \d+ of 24 images"
    for out, said in (
        ("out", r"is not empty \(it holds .packing\)"),
        ("there", unfinished.format("there")),
        ("new", unfinished.format("new")),
    ):
        for resume in (False, True):
            with pytest.raises(OptionsError, match=said):
                requantize(images, tmp_path / out, quality=4, resume=resume)
    assert store_bytes(tmp_path) == before


def test_a_folder_of_dest_on_another_disk_is_written_and_nothing_in_it_is_lost(images: Path, tmp_path: Path) -> None:
    tree, folder = tmp_path / "tree", tmp_path / "tree/class1"
    requantize(images, tree, quality=4)
    whole = store_bytes(tree)
    shutil.rmtree(folder)
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", folder], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (folder / "mine.txt").write_text("mine")
        assert requantize(images, tree, quality=4, resume=True).resumed_from == 16
        mine = store_bytes(tree / "class1").pop("mine.txt")
        assert store_bytes(tree) == whole | {"class1/mine.txt": mine}
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_folder_of_images_that_is_mounted_in_dest_is_refused(images: Path, tmp_path: Path) -> None:
    requantize(images, tmp_path / "tree", quality=4)
    shutil.rmtree(tmp_path / "tree/class1")
    (tmp_path / "tree/class1").mkdir()
    before = store_bytes(images)
    if subprocess.run(["mount", "--bind", images / "class1", tmp_path / "tree/class1"], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with pytest.raises(OptionsError, match=r"tree/class1 is a folder of IMAGES, mounted there"):
            requantize(images, tmp_path / "tree", quality=4, resume=True)
    finally:
        subprocess.run(["umount", tmp_path / "tree/class1"], check=True)
    assert store_bytes(images) == before


def test_results_of_another_folder_are_not_mixed_with_those_of_this_one(images: Path, tmp_path: Path) -> None:
    requantize(images, tmp_path / "tree", quality=4)
    before = store_bytes(tmp_path / "tree")
    other = make_tree(tmp_path / "other", each=8, size=(50, 40))
    with pytest.raises(OptionsError, match=r"holds 24 images made of others than those in .*/other: none of their"):
        requantize(other, tmp_path / "tree", quality=4, resume=True)
    assert store_bytes(tmp_path / "tree") == before
    # the same images elsewhere, with other times: they are done again
    shutil.copytree(images, tmp_path / "moved", copy_function=shutil.copyfile)
    requantize(tmp_path / "moved", tmp_path / "tree", quality=4, resume=True)
    assert {k: v for k, v in store_bytes(tmp_path / "tree").items() if k.endswith(".jpg")} == {
        k: v for k, v in before.items() if k.endswith(".jpg")
    }


def test_a_folder_of_dest_that_leads_elsewhere_is_refused(images: Path, tmp_path: Path) -> None:
    requantize(images, tmp_path / "tree", quality=4)
    shutil.rmtree(tmp_path / "tree/class1")
    (tmp_path / "tree/class1").symlink_to(images / "class1")
    before = store_bytes(images)
    with pytest.raises(PackError, match=r"tree/class1 is a symbolic link to .*/images/class1"):
        requantize(images, tmp_path / "tree", quality=4, resume=True)
    assert store_bytes(images) == before


def test_a_dest_in_a_store_or_at_the_end_of_a_broken_link_is_refused(images: Path, store: Path, tmp_path: Path) -> None:
    before = store_bytes(store)
    with pytest.raises(OptionsError, match="is in the store"):
        requantize(images, store / "new", quality=4)
    with pytest.raises(OptionsError, match=r"is not empty \(it holds _tensordict\)"):
        requantize(images, store, quality=4, resume=True)
    assert store_bytes(store) == before
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(OptionsError, match="is a symbolic link to nowhere, which does not exist"):
        requantize(images, tmp_path / "link", quality=4)
    # one that leads to a free folder is the user's own way to put results on another disk
    (tmp_path / "nowhere").mkdir()
    assert requantize(images, tmp_path / "link", quality=4).requantized == 24
    assert (tmp_path / "nowhere/class0/000.jpg").is_file()


def test_a_name_as_long_as_names_may_be_is_no_error(images: Path, tmp_path: Path) -> None:
    long = f"{'é' * 125}x.jpg"
    shutil.copy(images / "class0/000.jpg", images / "class0" / long)
    assert requantize(images, tmp_path / "tree", quality=4).requantized == 25
    assert (tmp_path / "tree/class0" / long).read_bytes() == (tmp_path / "tree/class0/000.jpg").read_bytes()
    assert not [name for name in os.listdir(tmp_path / "tree/class0") if name.startswith(".")]


def test_a_path_that_is_too_long_is_one_sentence(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["requantize", str(images), str(tmp_path / ("d" * 300)), "-q", "4"]) == 2
    assert "cannot be made: File name too long. Choose another DEST." in capsys.readouterr().err
    deep = tmp_path / "/".join(["d" * 250] * ((4085 - len(str(tmp_path))) // 251))
    deep = deep / ("e" * (4084 - len(str(deep)) - 1))
    assert run(["requantize", str(images), str(deep), "-q", "4", "--quiet"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "File name too long (ENAMETOOLONG). Choose a folder with a shorter path, or shorten the name." in error


@pytest.mark.parametrize(("other", "what"), [({"quality": 5}, "quality"), ({"size": 20}, "size")])
def test_resuming_a_tree_with_other_options_is_refused(
    other: dict[str, int], what: str, images: Path, tmp_path: Path
) -> None:
    requantize(images, tmp_path / "tree", quality=4)
    with pytest.raises(OptionsError, match=f"was started with another {what}"):
        requantize(images, tmp_path / "tree", **{"quality": 4, **other}, resume=True)


def test_the_command(mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["requantize", str(mixed), str(tmp_path / "tree"), "-q", "3", "--max-rejects", "1"]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path / 'tree'}: 17 of 20 images requantized in " in out
    assert "kept as they are 2 (see requantized.jsonl):" in out
    assert "fidelity  PSNR " in out
    assert run(["requantize", str(mixed), str(tmp_path / "more"), "-q", "3", "--json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out)["kept_reasons"] == {"FFmpeg decodes it as gbrap": 1, "it is no JPEG": 1}
    assert captured.err == "pack: 1 of 20 inputs was rejected, more than --max-rejects 1%.\n"


@pytest.mark.parametrize("quality", ["1", "32", "0"])
def test_a_quality_that_ffmpeg_does_not_know_is_refused(
    quality: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["requantize", str(images), str(tmp_path / "tree"), "-q", quality]) == 2
    assert f"--quality is {quality}, expected 2 (best) to 31 (smallest)" in capsys.readouterr().err
    with pytest.raises(OptionsError, match=rf"^quality is {quality}, expected 2"):
        requantize(images, tmp_path / "tree", quality=int(quality))
    assert run([str(images), str(tmp_path / "out"), "--size", "32", "--requantize", quality]) == 2
    assert f"--requantize is {quality}, expected" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 28), (errno.EROFS, 1)])
def test_a_full_disk_has_an_exit_code_of_its_own(
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    code: int,
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "tree/requantized.jsonl"))

    monkeypatch.setattr("packer.operations.requantize.write_atomically", refused)
    assert run(["requantize", str(images), str(tmp_path / "tree"), "-q", "3", "--fidelity", "0"]) == code
    said = capsys.readouterr().err
    assert f"requantized.jsonl cannot be read or written: {os.strerror(number)}" in said
    assert "ontinue with --resume" in said


def test_without_ffmpeg_nothing_is_started(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setenv("PATH", "")
    assert run(["requantize", str(images), str(tmp_path / "tree"), "-q", "3"]) == 1
    assert run([str(images), str(tmp_path / "out"), "--size", "32", "--requantize", "3"]) == 1
    assert capsys.readouterr().err.count("pip install 'pixpack[ffmpeg]'") == 2
    assert not (tmp_path / "tree").exists()
    assert not (tmp_path / "out").exists()


def test_the_program_alone_gives_the_same_store(mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ffmpeg_or_skip("PyAV")
    ffmpeg_or_skip("program")
    pack(mixed, tmp_path / "here", size=48, requantize=6)
    monkeypatch.setitem(sys.modules, "av", None)
    pack(mixed, tmp_path / "program", size=48, requantize=6)
    one, other = MemmapDataset(tmp_path / "here", as_tuple=False), MemmapDataset(tmp_path / "program", as_tuple=False)
    assert np.array_equal(one.numpy(), other.numpy())
    assert one.manifest.decoders["ffmpeg"] != other.manifest.decoders["ffmpeg"]


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_file_in_dest_that_no_run_has_made_is_neither_replaced_nor_removed(
    is_broken: bool, images: Path, tmp_path: Path
) -> None:
    requantize(images, tmp_path / "tree", quality=4)
    (tmp_path / "tree/class0/new.jpg").write_text("mine")
    shutil.copy(images / "class1/000.jpg", images / "class0/new.jpeg")
    if is_broken:
        (images / "class0/new.jpeg").write_text("broken")
    report = requantize(images, tmp_path / "tree", quality=4, resume=True)
    assert (report.rejected, report.resumed_from) == (1, 24)
    assert ("is in no record of pack requantize: move it away" in next(iter(report.reasons))) is not is_broken
    assert (tmp_path / "tree/class0/new.jpg").read_text() == "mine"
    (tmp_path / "tree/class0/new.jpg").unlink()
    assert requantize(images, tmp_path / "tree", quality=4, resume=True).rejected == is_broken


def test_what_runs_have_made_and_no_record_names_is_theirs(images: Path, tmp_path: Path) -> None:
    """A source was away for a run, or a line of the record is damaged: the same bytes are made again."""
    requantize(images, tmp_path / "tree", quality=4)
    before, away = store_bytes(tmp_path / "tree"), images / "class0/000.jpg"
    away.rename(tmp_path / "away.jpg")
    requantize(images, tmp_path / "tree", quality=4, resume=True)
    (tmp_path / "away.jpg").rename(away)
    assert requantize(images, tmp_path / "tree", quality=4, resume=True).rejected == 0
    assert store_bytes(tmp_path / "tree") == before
    record = tmp_path / "tree/requantized.jsonl"
    record.write_text("\n".join(record.read_text().splitlines()[:5]) + "\n{damaged\n")
    assert requantize(images, tmp_path / "tree", quality=4, resume=True).rejected == 0
    assert store_bytes(tmp_path / "tree") == before
