"""A requantized tree and a requantized store: the same pixels, sources untouched, resumable, refusals before writing."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from children import Child
from conftest import ffmpeg_or_skip, make_tree, photo, store_bytes
from PIL import Image
from redecoding import rows_of_other_sources

from packer import OptionsError, pack
from packer.cli.app import run
from packer.errors import LockedError
from packer.operations.requantize import requantize
from packer.operations.verify import verify
from packer.pixels.ffmpeg import Recoded, Recoder
from packer.report import Progress
from packer.sample_lines import read_json_lines
from reader import MemmapDataset


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
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", mixed) == []


def test_the_number_of_workers_changes_no_byte(mixed: Path, tmp_path: Path) -> None:
    for workers in (1, 3):
        pack(mixed, tmp_path / f"out{workers}", size=48, requantize=3, workers=workers)
        requantize(mixed, tmp_path / f"tree{workers}", quality=3, workers=workers)
    assert store_bytes(tmp_path / "out1") == store_bytes(tmp_path / "out3")
    assert store_bytes(tmp_path / "tree1") == store_bytes(tmp_path / "tree3")


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
    with pytest.raises(OptionsError, match="or inside it|is not empty"):
        requantize(tmp_path / images, tmp_path / dest, quality=3)
    assert store_bytes(tmp_path / "a") == before


def test_a_folder_with_other_things_is_refused(images: Path, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/mine.txt").touch()
    with pytest.raises(OptionsError, match="is not empty and was not made by pack requantize"):
        requantize(images, tmp_path / "tree", quality=3)
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["mine.txt"]


def _stop_in_the_middle(pipe: Connection, images: Path, tree: Path) -> None:
    """Requantize some images, then wait to be killed."""
    os.setsid()

    def progress(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done == 20:
            pipe.send("in the middle")
            time.sleep(600)

    requantize(images, tree, quality=4, workers=1, progress=progress)


def test_a_record_that_was_cut_off_costs_its_last_lines(images: Path, tmp_path: Path) -> None:
    requantize(images, tmp_path / "tree", quality=4)
    before, record = store_bytes(tmp_path / "tree"), tmp_path / "tree/requantized.jsonl"
    record.write_text("\n".join(record.read_text().splitlines()[:5]) + '\n{"path":"class')
    assert requantize(images, tmp_path / "tree", quality=4).resumed_from == 4
    assert store_bytes(tmp_path / "tree") == before


def test_two_runs_do_not_write_one_folder(images: Path, tmp_path: Path) -> None:
    running = Child(_stop_in_the_middle, images, tmp_path / "tree")
    assert running.received() == "in the middle"
    with pytest.raises(LockedError, match="another pack requantize writes"):
        requantize(images, tmp_path / "tree", quality=4)
    os.killpg(running.process.pid, signal.SIGKILL)
    running.ended()


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
    report = requantize(images, tmp_path / "tree", quality=4, workers=2)
    assert (report.requantized, report.rejected) == (23, 1)
    assert report.reasons == {"it ended the process that decoded it": 1}


def test_the_same_line_does_what_is_new_or_changed_and_takes_away_what_no_longer_holds(
    mixed: Path, tmp_path: Path
) -> None:
    first = requantize(mixed, tmp_path / "tree", quality=4)
    assert (first.resumed_from, first.requantized, first.rejected) == (0, 17, 1)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "tree").rglob("*.jpg")}
    assert requantize(mixed, tmp_path / "tree", quality=4).resumed_from == 19
    assert {path: path.stat().st_mtime_ns for path in times} == times
    shutil.copy(mixed / "class0/000.jpg", mixed / "class0/new.jpg")
    (mixed / "class0/001.jpg").write_text("broken now")
    (mixed / "class0/002.jpg").unlink()
    photo(50, 40, 9).save(mixed / "class1/print.jpg")  # was kept as .jpg, CMYK
    (tmp_path / "tree/class2/001.jpg").unlink()
    report = requantize(mixed, tmp_path / "tree", quality=4)
    # 19 before: but 1 that is gone, 2 that changed, and 1 whose result is gone
    assert (report.inputs, report.resumed_from, report.rejected, report.kept) == (20, 15, 2, 1)
    requantize(mixed, tmp_path / "again", quality=4)
    assert store_bytes(tmp_path / "tree") == store_bytes(tmp_path / "again")


def test_files_of_one_size_and_mtime_that_change_places_are_seen(tmp_path: Path) -> None:
    for name, level in (("a", 20), ("b", 220)):
        (tmp_path / "images" / name).mkdir(parents=True)
        stream = io.BytesIO()
        Image.new("RGB", (64, 64), (level,) * 3).save(stream, "JPEG", quality=95)
        (tmp_path / f"images/{name}/0.jpg").write_bytes(stream.getvalue().ljust(2000, b"\0"))
        os.utime(tmp_path / f"images/{name}/0.jpg", (10**9, 10**9))
    requantize(tmp_path / "images", tmp_path / "tree", quality=4)
    one, other = (tmp_path / f"images/{name}/0.jpg" for name in "ab")
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    requantize(tmp_path / "images", tmp_path / "tree", quality=4)
    levels = [Image.open(tmp_path / f"tree/{name}/0.jpg").getpixel((0, 0))[0] for name in "ab"]
    assert levels[0] > 200 > 40 > levels[1]


@pytest.mark.parametrize(
    ("other", "what"), [({"quality": 5}, "quality: 4, now 5"), ({"size": 30}, "size: None, now 30")]
)
def test_other_options_are_refused(other: dict[str, int], what: str, images: Path, tmp_path: Path) -> None:
    requantize(images, tmp_path / "tree", quality=4)
    with pytest.raises(OptionsError, match=f"was made with another {what}"):
        requantize(images, tmp_path / "tree", **{"quality": 4, **other})


def test_the_command(mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["requantize", str(mixed), str(tmp_path / "tree"), "-q", "3", "--max-rejects", "1"]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path / 'tree'}: 17 of 20 images requantized in " in out
    assert "kept as they are 2 (see requantized.jsonl):" in out
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


def test_without_ffmpeg_nothing_is_started(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert run(["requantize", str(images), str(tmp_path / "tree"), "-q", "3"]) == 1
    assert run([str(images), str(tmp_path / "out"), "--size", "32", "--requantize", "3"]) == 1
    assert capsys.readouterr().err.count("pip install 'pixpack[ffmpeg]'") == 2
    assert not (tmp_path / "tree").exists()
    assert not (tmp_path / "out").exists()
