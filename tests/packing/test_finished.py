"""One command line that is right in every state of OUT: it starts, continues, or confirms a finished store."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PACK, Tune, harm_at, interrupted, make_splits, make_tree, photo, store_bytes
from PIL import Image

from packer import PackError, pack, pack_dataset, seal_parts, update
from packer.operations.verify import verify
from packer.packing import build
from packer.packing.source_check import SourcesReport
from packer.pixels.decode import Decoder
from reader.format.manifest import MANIFEST, PIXELS, read_manifest


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch, tune: Tune) -> None:
    """Blocks of 2 inputs, and workers that inherit what a test does."""
    tune(least_block_inputs=2)
    if sys.platform == "linux":
        monkeypatch.setenv("PIXPACK_START_METHOD", "fork")


def run(*words: Any) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run([*PACK, *map(str, words)], capture_output=True, text=True, timeout=120)


def test_one_line_is_right_in_every_state(images: Path, tmp_path: Path) -> None:
    line = [images, tmp_path / "out", "--size", "32", "--json"]
    (tmp_path / "out").mkdir()  # an empty folder, as none
    kept = []
    for resumed in (False, True):
        done = run(*line)
        assert (done.returncode, done.stderr) == (0, "")
        assert (json.loads(done.stdout)["resumed_from"] == 24) is resumed
        kept.append(store_bytes(tmp_path / "out"))
    assert kept[0] == kept[1]
    pack(images, tmp_path / "whole", size=32)
    interrupted(pack, images, tmp_path / "begun", size=32, workers=1, inputs=4)
    assert pack(images, tmp_path / "begun", size=32).resumed_from >= 4
    assert store_bytes(tmp_path / "begun") == store_bytes(tmp_path / "whole")


def test_too_many_rejects_are_3_again_and_nothing_is_decoded(images: Path, tmp_path: Path) -> None:
    (images / "class0/003.jpg").write_text("no image")
    line = [images, tmp_path / "out", "--size", "32"]
    assert run(*line).returncode == 3
    before = store_bytes(tmp_path / "out")
    again = run(*line)
    assert again.returncode == 3
    assert "already finished; nothing was done" in again.stdout
    assert "1 of 24 inputs was rejected, more than --max-rejects 1%." in again.stderr
    assert store_bytes(tmp_path / "out") == before
    assert run(*line, "--max-rejects", 1).returncode == 0


def _grown(images: Path) -> None:
    with open(images / "class1/003.jpg", "ab") as file:
        file.write(b"more")


def _replaced_by_another_name(images: Path) -> None:
    (images / "class1/003.jpg").rename(images / "class1/new.jpg")


def _moved_to_another_class(images: Path) -> None:
    (images / "class1/003.jpg").rename(images / "class2/003b.jpg")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_grown, r"other sources: class1/003\.jpg \(had \d+ bytes, now \d+\)"),
        (_replaced_by_another_name, r"other inputs: gone: class1/003\.jpg; new: class1/new\.jpg"),
        (_moved_to_another_class, r"other inputs: gone: class1/003\.jpg; new: class2/003b\.jpg"),
        (
            lambda images: (images / "class1/003.jpg").unlink(),
            r"another number of inputs \(24, now 23\): gone: class1/003",
        ),
        (
            lambda images: (images / "class1").rename(images / "other"),
            r"other classes \(3, now 3\): gone: class1; new: other",
        ),
    ],
)
def test_a_finished_store_of_other_inputs_says_what_differs_and_what_to_run(
    images: Path, tmp_path: Path, change: Callable[[Path], Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(images, tmp_path / "out", size=32)
    change(images)
    monkeypatch.setattr(build.Build, "run", None)  # nothing is decoded
    command = f"pack update {images} {tmp_path / 'out'}"
    with pytest.raises(PackError, match=rf"out is finished, but with {what}.*\. Bring it up to date: {command}\.$"):
        pack(images, tmp_path / "out", size=32)


def test_the_command_that_is_named_makes_the_store_what_is_asked_for(images: Path, tmp_path: Path) -> None:
    line = [images, tmp_path / "out", "--size", "32"]
    run(*line)
    _grown(images)
    _replaced_by_another_name(images)
    refused = run(*line)
    assert refused.returncode == 1
    command = shlex.split(refused.stderr.rpartition("Bring it up to date: ")[2].strip().removesuffix("."))
    assert run(*command[1:]).returncode == 0
    assert run(*line).returncode == 0


@pytest.mark.parametrize("kind", ["class", "regression", "extra", "order"])
def test_other_labels_of_a_list_are_named(images: Path, tmp_path: Path, kind: str) -> None:
    rows = [
        {"path": str(path.relative_to(images)), "target": f"c{n % 3}" if kind == "class" else n / 7, "extra": n}
        for n, path in enumerate(sorted(images.rglob("*.jpg")))
    ]
    listed = tmp_path / "list.jsonl"

    def write() -> None:
        listed.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def again() -> Any:
        return pack(listed, tmp_path / "out", size=32, root=images)

    write()
    again()
    assert again().resumed_from == 24
    text = {
        "class": r"other labels: class0/005\.jpg \(was 2, now 1\)",
        "regression": r"other labels: class0/005\.jpg \(was \[0\.71\d*\], now \[0\.5\]\)",
        "extra": "other values of extra",
        "order": r"another order: class0/006\.jpg is where class0/005\.jpg was",
    }[kind]
    if kind == "order":
        rows[5:7] = [rows[6], rows[5]]
    elif kind == "extra":
        rows[5]["extra"] = 500
    else:
        rows[5]["target"] = "c1" if kind == "class" else 0.5
    write()
    with pytest.raises(PackError, match=rf"{text}.*pack update {listed} {tmp_path / 'out'} --root {images}\.$"):
        again()


def test_other_boxes_are_named(images: Path, tmp_path: Path) -> None:
    for path in sorted(images.rglob("*.jpg")):
        path.with_suffix(".txt").write_text("0 .5 .5 .2 .2\n")
    for _ in range(2):
        pack(images, tmp_path / "out", size=32, boxes=images)
    (images / "class1/003.txt").write_text("0 .5 .5 .4 .2\n")
    text = r"with other options for labels \(boxes: other contents\)"
    with pytest.raises(PackError, match=rf"{text}\. .* --boxes {images}\.$"):
        pack(images, tmp_path / "out", size=32, boxes=images)


def test_a_missing_file_that_is_back_after_the_seal_is_what_update_repairs(images: Path, tmp_path: Path) -> None:
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.jpg"))
    (tmp_path / "list.csv").write_text("\n".join(["path", *names]) + "\n")
    options: dict[str, Any] = {"size": 32, "root": images, "max_rejects": 2}
    for name in ("class0/003.jpg", "class2/007.jpg"):
        (images / name).rename(tmp_path / name.replace("/", "-"))
    pack(tmp_path / "list.csv", tmp_path / "out", **options)
    assert pack(tmp_path / "list.csv", tmp_path / "out", **options).notes == []
    (tmp_path / "class0-003.jpg").rename(images / "class0/003.jpg")
    again = pack(tmp_path / "list.csv", tmp_path / "out", **options)
    command = f"pack update {tmp_path / 'list.csv'} {tmp_path / 'out'} --root {images}"
    text = f"1 input of {tmp_path / 'out'} was rejected as missing and is there now (class0/003.jpg)"
    assert again.notes == [f"{text}. Bring it up to date: {command}."]
    assert update(tmp_path / "list.csv", tmp_path / "out", root=images, max_rejects=1).rows == 23


# -- archives, shuffled rows, splits, parts, datasets


@pytest.mark.parametrize("options", [{"shuffle": 3}, {"fit": "none", "size": None}, {"fit": "pad"}])
def test_other_kinds_of_rows_are_confirmed_too(images: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    options = {"size": 32, **options}
    (images / "class0/003.jpg").write_text("no image")
    pack(images, tmp_path / "out", max_rejects=1, **options)
    assert pack(images, tmp_path / "out", max_rejects=1, **options).resumed_from == 24
    _grown(images)
    with pytest.raises(PackError, match=r"other sources: class1/003\.jpg"):
        pack(images, tmp_path / "out", **options)


def test_splits_are_confirmed_continued_and_started(tmp_path: Path) -> None:
    make_splits(tmp_path / "images", ("train", "val", "test"), classes=2, each=4)
    pack(tmp_path / "images", tmp_path / "whole", size=32)
    line: dict[str, Any] = {"size": 32, "workers": 1}

    def stop(progress: Any) -> None:
        if progress.split == "val" and progress.stage == "pack" and progress.done >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(tmp_path / "images", tmp_path / "out", progress=stop, **line)
    # train is finished, val begun, test not there
    pack(tmp_path / "images", tmp_path / "out", **line)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "whole")
    assert pack(tmp_path / "images", tmp_path / "out", **line).resumed_from == 24


def test_of_splits_of_which_one_is_there_the_others_are_made_and_all_change_together(tmp_path: Path) -> None:
    make_splits(tmp_path / "images", ("train", "val"), classes=2, each=4)

    def stop(progress: Any) -> None:
        if progress.split == "val":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(tmp_path / "images", tmp_path / "out", size=32, progress=stop)
    pack(tmp_path / "images", tmp_path / "out", size=32)
    before = store_bytes(tmp_path / "out")
    shutil.rmtree(tmp_path / "out/val")
    pixels = (tmp_path / "out/train" / PIXELS).stat().st_ino
    report = pack(tmp_path / "images", tmp_path / "out", size=32)
    assert [part.resumed_from for part in report.splits.values()] == [8, 0]
    assert store_bytes(tmp_path / "out") == before
    assert (tmp_path / "out/train" / PIXELS).stat().st_ino == pixels, "not copied"


def test_a_part_after_the_seal_is_done(images: Path, tmp_path: Path) -> None:
    (images / "class0/003.jpg").write_text("no image")
    line: dict[str, Any] = {"size": 32, "max_rejects": 1}
    for part in ("1/2", "2/2", "2/2"):
        pack(images, tmp_path / "out", part=part, **line)
    seal_parts(tmp_path / "out", max_rejects=1)
    before = store_bytes(tmp_path / "out")
    for part in ("1/2", "2/2"):
        assert pack(images, tmp_path / "out", part=part, **line).resumed_from == 24
    assert run(images, tmp_path / "out", "--size", 32, "--part", "1/2").returncode == 3
    assert store_bytes(tmp_path / "out") == before
    with pytest.raises(PackError, match=r"is finished, but with other options \(fit='crop', now fit='pad'\)"):
        pack(images, tmp_path / "out", part="1/2", fit="pad", **line)
    _grown(images)
    with pytest.raises(PackError, match=r"other sources: class1/003\.jpg"):
        pack(images, tmp_path / "out", part="1/2", **line)


def test_a_dataset_is_confirmed(images: Path, tmp_path: Path) -> None:
    items = [(photo(40, 30, n), n % 2) for n in range(6)]
    for _ in range(2):
        report = pack_dataset(items, tmp_path / "out", workers=1)
    assert report.resumed_from == 6
    with pytest.raises(
        PackError, match=r"another number of inputs \(6, now 5\).* Pack the dataset again with overwrite=True"
    ):
        pack_dataset(items[:5], tmp_path / "out", workers=1)


# -- the replacement of a store


def test_overwrite_is_right_in_every_state(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    line: dict[str, Any] = {"overwrite": True, "workers": 1}
    pack(images, tmp_path / "small", size=16)
    pack(images, tmp_path / "large", size=32)
    small, large = store_bytes(tmp_path / "small"), store_bytes(tmp_path / "large")

    assert pack(images, out, size=16, **line).resumed_from == 0  # no OUT
    assert pack(images, out, size=16, **line).resumed_from == 0  # a store of the same is replaced too
    interrupted(pack, images, out, size=32, **line, inputs=4)
    assert store_bytes(out) == small
    assert pack(images, out, size=32, **line).resumed_from >= 4  # a replacement that was begun
    assert store_bytes(out) == large
    assert not (tmp_path / "out.packing").exists()

    interrupted(pack, images, out, size=24, **line, inputs=4)
    assert pack(images, out, size=16, **line).resumed_from == 0  # one of other options is started over
    assert store_bytes(out) == small

    _grown(images)
    assert pack(images, out, size=16, **line).resumed_from == 0  # other inputs
    assert pack(images, out, size=16, **line).resumed_from == 0

    interrupted(pack, images, tmp_path / "new", size=32, workers=1, inputs=4)
    assert pack(images, tmp_path / "new", size=16, **line).resumed_from == 0  # an unfinished OUT of other options
    with open(out / "_tensordict/pixels.memmap", "ab") as file:
        file.write(b"x")
    assert pack(images, out, size=16, **line).resumed_from == 0  # a damaged store
    (out / MANIFEST).unlink()


def test_splits_are_confirmed_and_overwrite_packs_all_of_them_anew(tmp_path: Path) -> None:
    make_splits(tmp_path / "images", ("train", "val"), classes=2, each=4)
    line: dict[str, Any] = {"size": 32, "workers": 1}
    pack(tmp_path / "images", tmp_path / "out", **line)
    assert pack(tmp_path / "images", tmp_path / "out", **line).resumed_from == 16
    with open(tmp_path / "images/val/class0/001.jpg", "ab") as file:
        file.write(b"more")
    report = pack(tmp_path / "images", tmp_path / "out", **line, overwrite=True)
    assert [part.resumed_from for part in report.splits.values()] == [0, 0]


def test_rows_of_own_sizes_are_cut_as_a_fresh_pack_cuts_them_where_another_was_started(
    images: Path, tmp_path: Path
) -> None:
    make_tree(tmp_path / "more", classes=1, each=40, size=(300, 200))
    interrupted(pack, tmp_path / "more", tmp_path / "out", fit="none", workers=1, inputs=2)
    pack(images, tmp_path / "out", fit="none", overwrite=True)
    pack(images, tmp_path / "whole", fit="none")
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "whole")


def test_nothing_is_decoded_for_a_store_that_is_there(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(images, tmp_path / "out", size=32)

    def row(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Decoder, "row", row)
    monkeypatch.setattr(build.Build, "run", row)
    assert pack(images, tmp_path / "out", size=32).resumed_from == 24


# -- contents


def _same_size(images: Path) -> None:
    data = bytearray((images / "class1/003.jpg").read_bytes())
    data[-20] ^= 1
    (images / "class1/003.jpg").write_bytes(data)


def test_an_update_that_was_begun_is_continued_and_one_of_other_bytes_is_made(
    images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (images / "class0/005.jpg").write_text("no image")
    pack(images, out, size=32, max_rejects=1)
    pixels = out / "_tensordict/pixels.memmap"
    inode = pixels.stat().st_ino

    interrupted(update, images, out, workers=1, max_rejects=1, inputs=4)
    assert update(images, out, max_rejects=1).kept == 23  # one that was begun is continued
    assert pixels.stat().st_ino != inode

    _same_size(images)  # the sizes are the same, the bytes are not
    assert update(images, out, max_rejects=1).kept == 22
    photo(40, 30, 5).save(images / "class0/005.jpg")  # what was rejected is repaired
    assert update(images, out).rows == 24


def test_an_image_that_ended_its_worker_is_tried_by_a_worker_again(images: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        harm_at(images / "class0/005.jpg", lambda: os._exit(9), patch)
        pack(images, tmp_path / "out", size=32, max_rejects=1)
    assert update(images, tmp_path / "out").rows == 24


def test_verify_names_sources_that_differ_are_gone_or_new(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (images / "class0/005.jpg").write_text("no image")
    pack(images, out, size=32, max_rejects=1)
    first = run("verify", out, "--images", images)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.endswith(" read and compared, 23 sources are what was packed.\n")

    _same_size(images)
    (images / "class2/000.jpg").unlink()
    photo(40, 30, 0).save(images / "class2/new.jpg")
    found = run("verify", out, "--images", images)
    assert found.returncode == 1
    assert found.stderr.splitlines() == [
        f"pack: {out}: class1/003.jpg is not what was packed",
        f"pack: {out}: class2/000.jpg is gone",
        f"pack: note: 1 image of {images} not in {out}: class2/new.jpg",
        f"pack: {out} is intact; of 23 sources, other than packed: 1, gone: 1. Bring it up to date:"
        f" pack update {images} {out}",
    ]
    sources = json.loads(run("verify", out, "--images", images, "--json").stdout)["sources"]
    assert sources == {
        "compared": 23,
        "differ": ["class1/003.jpg"],
        "gone": ["class2/000.jpg"],
        "new": ["class2/new.jpg"],
    }


def test_verify_compares_the_sources_of_splits_and_archives(tmp_path: Path) -> None:
    make_splits(tmp_path / "images", ("train", "val"), classes=2, each=4)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        for path in sorted((tmp_path / "images").rglob("*.jpg")):
            file.write(path, path.relative_to(tmp_path / "images"))
    for source in (tmp_path / "images", tmp_path / "all.zip"):
        out = tmp_path / f"out-{source.name}"
        pack(source, out, size=32)
        report = verify(out, images=source)
        assert report.sources == SourcesReport(16)
        if source.is_dir():
            _same_size(source / "val")
            assert verify(out, images=source).sources == SourcesReport(16, differ=["val/class1/003.jpg"])
            continue
        with zipfile.ZipFile(source, "w") as file:
            for path in sorted((tmp_path / "images").rglob("*.jpg"))[1:]:
                file.write(path, path.relative_to(tmp_path / "images"))
        found = verify(out, images=source).sources
        assert found is not None
        assert found.gone == ["train/all.zip/train/class0/000.jpg"]


def test_a_dataset_has_no_sources_to_compare(tmp_path: Path) -> None:
    pack_dataset([(photo(40, 30, n), n % 2) for n in range(3)], tmp_path / "out", workers=1)
    with pytest.raises(ValueError, match="was packed from a dataset, whose items are no files: leave images out"):
        verify(tmp_path / "out", images=tmp_path)


# -- options of labels that are forgotten


def _list_of_labels(images: Path, path: Path) -> Path:
    names = sorted(str(image.relative_to(images)) for image in images.rglob("*.jpg"))
    rows = [f"{name},l{n % 3},b{n % 2}" for n, name in enumerate(names)]
    rows[3] = f"{names[3]},?,?"
    path.write_text("\n".join(["path,label,breed", *rows, ""]))
    return path


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("classes", "classes"),
        ("missing", r"missing='\?'"),
        ("target_column", "target_column='breed'"),
        ("classes target_column", "classes and target_column='breed'"),
    ],
)
def test_a_forgotten_option_of_labels_is_named(images: Path, tmp_path: Path, option: str, named: str) -> None:
    path, out = _list_of_labels(images, tmp_path / "list.csv"), tmp_path / "out"
    (tmp_path / "classes.txt").write_text("b1\nl2\nb0\nl1\nl0\n?\n")
    given = {"size": 32, "root": images, "classes": str(tmp_path / "classes.txt")}
    given |= {"missing": ["?"], "target_column": "breed"}
    pack(path, out, **given)
    again = "them" if " and " in named else "it"
    text = rf"out is finished, but was packed with {named}\. Give {again} again, choose another OUT, or replace it with"
    with pytest.raises(PackError, match=text):
        pack(path, out, **{name: value for name, value in given.items() if name not in option.split()})
    assert pack(path, out, **given).resumed_from == 24


def test_forgotten_classes_of_a_folder_are_named(images: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("class2\nclass1\nclass0\n")
    pack(images, tmp_path / "out", size=32, classes=str(tmp_path / "classes.txt"))
    with pytest.raises(PackError, match=r"was packed with classes\. Give it again"):
        pack(images, tmp_path / "out", size=32)


def test_forgotten_boxes_and_masks_are_named_and_so_are_added_ones(images: Path, tmp_path: Path) -> None:
    for path in sorted(images.rglob("*.jpg")):
        path.with_suffix(".txt").write_text("0 .5 .5 .2 .2\n")
        mask = tmp_path / "masks" / path.relative_to(images).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            Image.new("L", image.size).save(mask)
    given: dict[str, Any] = {"boxes": images, "masks": tmp_path / "masks"}
    pack(images, tmp_path / "out", size=32, **given)
    with pytest.raises(PackError, match=r"was packed with boxes\. Give it again"):
        pack(images, tmp_path / "out", size=32, masks=given["masks"])
    with pytest.raises(PackError, match=r"was packed with boxes and masks\. Give them again"):
        pack(images, tmp_path / "out", size=32)
    pack(images, tmp_path / "bare", size=32)
    with pytest.raises(PackError, match=r"was packed without boxes\. Leave it out"):
        pack(images, tmp_path / "bare", size=32, boxes=images)


def test_a_column_that_the_store_was_packed_without_is_named(images: Path, tmp_path: Path) -> None:
    names = sorted(str(image.relative_to(images)) for image in images.rglob("*.jpg"))
    (tmp_path / "list.csv").write_text("\n".join(["path,kind", *(f"{name},k" for name in names), ""]))
    pack(images, tmp_path / "out", size=32)
    with pytest.raises(PackError, match=r"was packed without target_column\. Leave it out"):
        pack(tmp_path / "list.csv", tmp_path / "out", size=32, root=images, target_column="kind")


def test_forgotten_options_of_an_unfinished_pack_are_named(images: Path, tmp_path: Path) -> None:
    for path in sorted(images.rglob("*.jpg")):
        path.with_suffix(".txt").write_text("0 .5 .5 .2 .2\n")
    (tmp_path / "classes.txt").write_text("class0\nclass1\nclass2\n")
    for name, given, text in (
        ("a", {"boxes": images}, r"other options \(with boxes, now without\)"),
        (
            "b",
            {"classes": str(tmp_path / "classes.txt")},
            r"other options for labels \(with classes, now without\)",
        ),
    ):
        interrupted(pack, images, tmp_path / name, size=32, workers=1, **given, inputs=4)
        with pytest.raises(PackError, match=rf"was started with {text}"):
            pack(images, tmp_path / name, size=32)


def test_a_store_of_more_images_says_what_an_update_removes(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=32)
    with pytest.raises(PackError, match=r"It was packed from other images: choose another OUT, or replace it with"):
        pack(images / "class0", tmp_path / "out", size=32)
    for path in sorted(images.rglob("*.jpg"))[:11]:
        path.unlink()
    with pytest.raises(PackError, match=r"An update removes 11 of its 24 rows; if these are other images, choose") as e:
        pack(images, tmp_path / "out", size=32)
    command = str(e.value).rpartition("Bring it up to date: ")[2].rstrip(".")
    assert command == f"pack update {images} {tmp_path / 'out'} --max-gone 11"


def test_the_update_that_a_gone_class_needs_keeps_the_numbers_of_the_others(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=32)
    shutil.rmtree(images / "class0")
    with pytest.raises(PackError, match=r"other classes \(3, now 2\): gone: class0") as e:
        pack(images, tmp_path / "out", size=32)
    command = shlex.split(str(e.value).rpartition("Bring it up to date: ")[2].rstrip("."))
    assert run(*command[1:], "--quiet").returncode == 0
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.rows, manifest.classes) == (16, ("class0", "class1", "class2"))
