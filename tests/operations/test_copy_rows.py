"""`pack subset` and `pack merge`: rows of other stores, the bytes that packing those images alone, or together, would give."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import content_bytes, interrupted, store_bytes
from PIL import Image
from test_boxes import coco
from test_listers import listed
from test_store import write_head
from test_update import flip

from packer import OptionsError, PackError, ScanError, merge, pack, pack_dataset, subset
from packer.cli.app import run
from packer.errors import DiskFullError
from packer.operations.verify import verify
from packer.report import Progress
from packer.store.manifest_file import encode_manifest
from packer.store.state import check_finished
from reader import MemmapDataset
from reader.format.blocks import read_blocks
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST, PIXELS, REJECTED, SAMPLES, read_manifest


def part_of(images: Path, folder: Path, names: Iterable[str]) -> Path:
    """Copy some classes of a folder of images into another."""
    for name in names:
        shutil.copytree(images / name, folder / name)
    return folder


def names_file(path: Path, names: Iterable[str]) -> Path:
    path.write_text("\n".join(names) + "\n")
    return path


def rows_of(out: Path) -> list[tuple[str, str, bytes]]:
    """Return path, class and pixels of each row."""
    data = MemmapDataset(out, as_tuple=False)
    assert verify(out).problems == []
    rows = range(len(data))
    return [(data.source(row)["path"], class_of(data, row), data[row].pixels.numpy().tobytes()) for row in rows]


def class_of(data: MemmapDataset, row: int) -> str:
    target = int(data.targets[row])
    assert data.source(row)["target"] == target
    return data.classes[target] if target >= 0 else ""


# -- subset


@pytest.mark.parametrize("options", [{"size": 32}, {"fit": "none", "max_size": 40}], ids=["crop", "own sizes"])
def test_the_rows_of_some_classes_are_what_packing_these_alone_gives(
    options: dict[str, Any], images: Path, tmp_path: Path
) -> None:
    pack(images, tmp_path / "out", **options)
    pack(part_of(images, tmp_path / "some", ["class0", "class2"]), tmp_path / "alone", **options)
    subset(tmp_path / "out", tmp_path / "chosen", classes=["class0", "class2"])
    assert content_bytes(tmp_path / "chosen") == content_bytes(tmp_path / "alone")


def test_classes_count_in_the_order_in_which_they_are_given(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=32)
    names = names_file(tmp_path / "names.txt", ["class2", "class0"])
    pack(part_of(images, tmp_path / "some", ["class0", "class2"]), tmp_path / "alone", size=32, classes=names)
    subset(tmp_path / "out", tmp_path / "chosen", classes=names)
    assert content_bytes(tmp_path / "chosen") == content_bytes(tmp_path / "alone")


def labels(images: Path, folder: Path) -> dict[str, Any]:
    """Give each image a mask and a box of its own."""
    sizes: dict[str, tuple[int, int] | None] = {}
    for path in sorted(images.rglob("*.jpg")):
        name = str(path.relative_to(images))
        mask = (folder / "masks" / name).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            sizes[name] = image.size
            image.convert("L").save(mask)
    boxes = [(name, [number % 9, 3, 20, 25]) for number, name in enumerate(sizes)]
    return {"masks": folder / "masks", "boxes": coco(folder / "boxes.json", sizes, boxes)}


def without_labels(out: Path) -> dict[str, bytes]:
    """Read every file of a store, of the manifest all but how labels were read."""
    manifest = dataclasses.replace(read_manifest(out), labels={})
    return store_bytes(out) | {MANIFEST: encode_manifest(manifest, read_blocks(out))}


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [
        (slice(3, 17, 2), range(3, 17, 2)),
        (slice(-4, None), range(86, 90)),
        (np.arange(1000) % 7, np.arange(1000) % 7),
        (iter([23, 0]), [23, 0]),
        ({1, 2}, [1, 2]),
    ],
    ids=["slice", "last", "array", "iterator", "set"],
)
def test_rows_come_in_the_order_of_their_numbers(
    rows: Any, numbers: Iterable[int], shared_store: Path, tmp_path: Path
) -> None:
    subset(shared_store, tmp_path / "few", rows=rows)
    full = rows_of(shared_store)
    assert rows_of(tmp_path / "few") == [full[number] for number in numbers]


def test_draws_are_fixed_by_the_seed_and_keep_the_order(shared_store: Path, tmp_path: Path) -> None:
    full = [path for path, _, _ in rows_of(shared_store)]
    found = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert subset(shared_store, tmp_path / name, fraction=0.2, seed=seed).rows == 18
        found[name] = [full.index(path) for path, _, _ in rows_of(tmp_path / name)]
        assert found[name] == sorted(found[name])
    assert found["a"] == found["b"] != found["c"]
    subset(shared_store, tmp_path / "each", per_class=4, rows=slice(0, 63))
    kinds = [name for _, name, _ in rows_of(tmp_path / "each")]
    assert kinds == ["class0"] * 4 + ["class1"] * 4 + ["class2"] * 3
    assert MemmapDataset(tmp_path / "each").classes == ["class0", "class1", "class2"]
    # of rows that come twice each counts
    assert subset(shared_store, tmp_path / "one", rows=[3] * 10 + [9], per_class=1).rows == 1
    assert subset(shared_store, tmp_path / "two", rows=[0] * 6 + [40], per_class=np.int64(2)).rows == 3


def test_a_store_may_be_replaced_by_some_of_its_rows(store: Path) -> None:
    full = rows_of(store)
    data = MemmapDataset(store, as_tuple=False)
    subset(store, store, rows=slice(10, 20), overwrite=True)
    assert rows_of(store) == full[10:20]
    assert data[89].pixels.numpy().tobytes() == full[89][2]  # whoever has the old one open keeps it
    assert os.listdir(store.parent) == [store.name]


def test_rows_without_a_class_are_left_out_where_classes_choose(tmp_path: Path) -> None:
    images = [(np.full((8, 8, 3), n, np.uint8), n % 3 - 1) for n in range(9)]
    pack_dataset(images, tmp_path / "out", workers=1)
    assert MemmapDataset(tmp_path / "out").classes == ["0", "1"]
    assert subset(tmp_path / "out", tmp_path / "each", per_class=9).rows == 6
    assert subset(tmp_path / "out", tmp_path / "one", classes=["1"]).rows == 3
    assert list(MemmapDataset(tmp_path / "one").targets) == [0, 0, 0]
    assert subset(tmp_path / "out", tmp_path / "half", fraction=1).rows == 9


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({}, "nothing says which rows"),
        ({"rows": [90]}, "row 90 is out of range: the store has rows 0 to 89"),
        ({"rows": [-1]}, "row -1 is out of range"),
        ({"rows": ["a"]}, "not a slice, nor row numbers"),
        ({"rows": [1.5]}, "not a slice, nor row numbers"),
        ({"rows": [True, False]}, "not a slice, nor row numbers"),
        ({"rows": np.zeros((2, 2), int)}, "not a slice, nor row numbers"),
        ({"rows": slice(0, 5, 0)}, "not a slice, nor row numbers"),
        ({"rows": [1, 2**70]}, "not a slice, nor row numbers"),
        ({"seed": -1, "fraction": 0.5}, "seed is -1, expected 0 or more"),
        ({"seed": None, "fraction": 0.5}, "seed is None, expected 0 or more"),
        ({"per_class": True}, "per_class is True, expected 1 or more"),
        ({"classes": [3]}, "classes has 3, expected names"),
        ({"rows": 7}, "not a slice, nor row numbers"),
        ({"classes": ["class1", "dog"]}, "has no class 'dog'. It has 3: 'class0', 'class1', 'class2'"),
        ({"classes": ["class1", "class1"]}, "the class 'class1' is named twice"),
        ({"per_class": 0}, "per_class is 0, expected 1 or more"),
        ({"fraction": 0}, "fraction is 0, expected a number above 0"),
        ({"fraction": 1.5}, "fraction is 1.5"),
        ({"fraction": 0.5, "per_class": 3}, "give one of them"),
    ],
)
def test_what_cannot_be_chosen_is_one_sentence(
    chosen: dict[str, Any], sentence: str, shared_store: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionsError, match=sentence):
        subset(shared_store, tmp_path / "out", **chosen)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("chosen", [{"rows": []}, {"fraction": 0.001}, {"rows": slice(5, 5)}])
def test_a_store_of_no_row_is_not_made(chosen: dict[str, Any], shared_store: Path, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="no row of .* is chosen"):
        subset(shared_store, tmp_path / "out", **chosen)


def test_a_class_is_chosen_by_its_name_in_either_spelling(images: Path, tmp_path: Path) -> None:
    (images / "class0").rename(images / "caf\u00e9")
    pack(images, tmp_path / "out", size=16, workers=1)
    assert subset(tmp_path / "out", tmp_path / "some", classes=["cafe\u0301"]).classes == 1


def test_classes_choose_only_where_a_row_has_one(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "boxed", size=32, **labels(images, tmp_path))
    with pytest.raises(OptionsError, match="are those of its boxes"):
        subset(tmp_path / "boxed", tmp_path / "few", classes=["cat"])
    pack_dataset([(np.zeros((8, 8, 3), np.uint8), 0.5)], tmp_path / "number", workers=1)
    with pytest.raises(OptionsError, match="has regression targets"):
        subset(tmp_path / "number", tmp_path / "few", per_class=1)


# -- merge


def test_stores_of_two_halves_are_the_store_of_all(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "full", size=32)
    for name, classes in (("a", ["class0", "class1"]), ("b", ["class2"])):
        pack(part_of(images, tmp_path / f"images-{name}", classes), tmp_path / name, size=32)
    report = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    assert (report.rows, report.classes, report.size[0] > 0) == (24, 3, True)
    assert content_bytes(tmp_path / "both") == content_bytes(tmp_path / "full")
    numbered = f"those of {tmp_path / 'a'}, {tmp_path / 'b'} have new numbers."
    assert report.notes == [f"targets count in one list of 3 classes; {numbered}"]


@pytest.mark.parametrize("options", [{"size": 32}, {"fit": "none"}], ids=["one size", "own sizes"])
def test_boxes_and_masks_are_merged_with_room_for_the_most(
    options: dict[str, Any], images: Path, tmp_path: Path
) -> None:
    sizes: dict[str, tuple[int, int] | None] = {}
    for path in map(Path, listed(images)):
        with Image.open(path) as image:
            sizes[str(path.relative_to(images))] = image.size
    boxes = [(name, [n, 3, 20, 25]) for name in sizes for n in range(3 if name == "class2/007.jpg" else 1)]
    masks = labels(images, tmp_path)["masks"]

    def packed(name: str, folder: Path) -> Path:
        own = {one: size for one, size in sizes.items() if (folder / one).exists()}
        file = coco(tmp_path / f"{name}.json", own, [box for box in boxes if box[0] in own])
        pack(folder, tmp_path / name, **options, boxes=file, masks=masks)
        return tmp_path / name

    full = packed("full", images)
    parts = (("a", ["class0", "class1"]), ("b", ["class2"]))
    halves = [packed(name, part_of(images, tmp_path / f"images-{name}", classes)) for name, classes in parts]
    rooms = [MemmapDataset(half).manifest.extras["boxes"].row_shape for half in halves]
    assert rooms == [(1, 4), (3, 4)]
    merge(halves, tmp_path / "both")
    # the digest of the label file is that of neither
    assert without_labels(tmp_path / "both") == without_labels(full)
    assert read_manifest(tmp_path / "both").labels == {"masks": True}


def test_a_list_with_all_classes_is_kept_as_it_is(images: Path, tmp_path: Path) -> None:
    names = names_file(tmp_path / "names.txt", ["zebra", "class2", "class1", "class0"])
    pack(part_of(images, tmp_path / "few", ["class0", "class2"]), tmp_path / "a", size=32)
    pack(images, tmp_path / "b", size=32, classes=names)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    assert MemmapDataset(tmp_path / "both").classes == ["zebra", "class2", "class1", "class0"]
    assert rows_of(tmp_path / "both") == rows_of(tmp_path / "a") + rows_of(tmp_path / "b")
    merge([tmp_path / "b", tmp_path / "a"], tmp_path / "listed", classes=tmp_path / "b")
    assert MemmapDataset(tmp_path / "listed").classes == ["zebra", "class2", "class1", "class0"]
    with pytest.raises(PackError, match="b has classes that the list given by classes lacks: zebra, class1"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "no", classes=tmp_path / "a")
    with pytest.raises(ScanError, match="cannot be read"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "no", classes=tmp_path / "none")


def test_what_the_stores_rejected_is_listed_for_both(images: Path, tmp_path: Path) -> None:
    first = part_of(images, tmp_path / "first", ["class0"])
    (first / "class0" / "bad.jpg").write_bytes(b"no image")
    pack(first, tmp_path / "a", size=32, max_rejects=1)
    second = part_of(images, tmp_path / "second", ["class0", "class1"])
    (second / "class1" / "worse.jpg").write_bytes(b"nothing")
    pack(second, tmp_path / "b", size=32, max_rejects=1)
    report = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    assert (report.inputs, report.rows, report.rejected) == (26, 24, 2)
    lines = [(tmp_path / name / REJECTED).read_bytes() for name in ("a", "b")]
    assert (tmp_path / "both" / REJECTED).read_bytes() == b"".join(lines)
    assert verify(tmp_path / "both").problems == []
    assert subset(tmp_path / "both", tmp_path / "half", fraction=0.5).rejected == 0


def test_a_store_is_added_to_another_and_replaces_it(store: Path, shared_store: Path, tmp_path: Path) -> None:
    assert run(["merge", str(store), str(shared_store), str(store)]) == 1
    assert run(["merge", str(store), str(shared_store), str(store), "--overwrite"]) == 0
    assert rows_of(store) == rows_of(shared_store) * 2


def test_shuffled_stores_keep_no_seed(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "1", size=32, shuffle=1)
    merge([tmp_path / "1", tmp_path / "1"], tmp_path / "both")
    assert MemmapDataset(tmp_path / "both").manifest.options["shuffle"] is None
    assert rows_of(tmp_path / "both") == rows_of(tmp_path / "1") * 2


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"size": 40}, r"packed with other options \(size=32 and size=40\)"),
        (
            {"size": 32, "resample": "bicubic"},
            r"packed with other options \(resample='bilinear' and resample='bicubic'\)",
        ),
        ({"fit": "none"}, r"packed with other options \(with size=32 and without\)"),
        ({"size": 32, "channels": "gray"}, r"packed with other options \(channels='rgb' and channels='gray'\)"),
    ],
)
def test_stores_that_are_not_alike_are_refused(
    other: dict[str, Any], sentence: str, images: Path, tmp_path: Path, shared_store: Path
) -> None:
    pack(images, tmp_path / "other", **other)
    with pytest.raises(PackError, match=f"{shared_store} and .*other cannot be one store: they were {sentence}"):
        merge([shared_store, tmp_path / "other"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_stores_with_other_tensors_are_refused(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "plain", size=32)
    paths = listed(images)
    (images / "number.csv").write_text("path,target\n" + "".join(f"{path},0.5\n" for path in paths))
    pack(images / "number.csv", tmp_path / "number", size=32)
    with pytest.raises(PackError, match=r"hold different data \(targets: class and regression of 1\)"):
        merge([tmp_path / "plain", tmp_path / "number"], tmp_path / "out")
    with pytest.raises(OptionsError, match="merge takes two stores or more"):
        merge([tmp_path / "plain"], tmp_path / "out")
    with pytest.raises(OptionsError, match="merge takes two stores or more"):
        merge(str(tmp_path / "plain"), tmp_path / "out")
    with pytest.raises(PackError, match="does not exist"):
        merge([tmp_path / "plain", tmp_path / "none"], tmp_path / "out")


def test_stores_of_other_decoders_are_refused(shared_store: Path, store: Path, tmp_path: Path) -> None:
    head = json.loads((store / "manifest.json").read_bytes())
    head["decoders"]["pillow"]["version"] = "1.0"
    write_head(store, head)
    with pytest.raises(PackError, match="packed by other decoders .* Pack one of them again, by the same versions"):
        merge([shared_store, store], tmp_path / "out")


def test_rows_without_a_label_stay_so(images: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    shutil.copytree(images / "class0", flat)
    pack(flat, tmp_path / "a", size=32)
    pack(images, tmp_path / "b", size=32)
    report = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    assert list(MemmapDataset(tmp_path / "both").targets[:9]) == [-1] * 8 + [0]
    assert report.notes == []


def test_a_class_list_for_numbers_is_refused(tmp_path: Path) -> None:
    pack_dataset([(np.zeros((8, 8, 3), np.uint8), 0.5)], tmp_path / "a", workers=1)
    with pytest.raises(OptionsError, match="has regression targets, which have no classes: leave classes out"):
        merge([tmp_path / "a"] * 2, tmp_path / "out", classes=names_file(tmp_path / "names", ["x"]))


# -- what is damaged, in the way, or interrupted


def test_damaged_rows_are_named_and_the_rest_can_be_had(store: Path, shared_store: Path, tmp_path: Path) -> None:
    blocks = read_blocks(store)
    flip(store / PIXELS, blocks[1].start * 32 * 32 * 3)
    with pytest.raises(PackError, match=rf"rows {blocks[1].start} to {blocks[1].stop - 1} are not what was packed"):
        merge([shared_store, store], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    full = [*range(blocks[1].start), *range(blocks[1].stop, 90)]
    subset(store, tmp_path / "out", rows=full)
    assert rows_of(tmp_path / "out") == [rows_of(shared_store)[row] for row in full]


@pytest.mark.parametrize("name", [SAMPLES, "_tensordict/targets.memmap", REJECTED, "_tensordict/meta.json"])
def test_a_damaged_small_file_is_named(name: str, store: Path, tmp_path: Path) -> None:
    path = store / name
    data = path.read_bytes() or b"{}\n"
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(PackError, match=Path(name).name):
        subset(store, tmp_path / "out", rows=[0])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("chosen", [{"classes": ["class1"]}, {"per_class": 2}])
def test_damaged_targets_choose_no_row(chosen: dict[str, Any], store: Path, tmp_path: Path) -> None:
    path = store / "_tensordict/targets.memmap"
    data = bytearray(path.read_bytes())
    data[4:8] = (2**31 - 1).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(PackError, match="has changed since it was packed"):
        subset(store, tmp_path / "out", **chosen)
    assert not (tmp_path / "out").exists()


def test_many_stores_are_not_all_open_at_once(shared_store: Path, tmp_path: Path) -> None:
    code = (
        "import resource, sys\nfrom packer import merge\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "print(merge([sys.argv[1]] * 60, sys.argv[2]).rows)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(shared_store), str(tmp_path / "out")], capture_output=True)
    assert (done.stdout, done.stderr) == (b"5400\n", b"")


def merge_killed(store: Path, out: Path, *overwrite: str) -> None:
    """Merge a store with itself in a process that dies as it copies."""
    code = (
        "import os, sys\nfrom packer import merge\n"
        "def die(progress):\n    if progress.stage == 'copy':\n        os.kill(os.getpid(), 9)\n"
        "merge([sys.argv[1]] * 2, sys.argv[2], overwrite=len(sys.argv) > 3, progress=die)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(store), str(out), *overwrite], capture_output=True)
    assert done.returncode == -signal.SIGKILL


def test_a_killed_copy_is_not_taken_for_a_pack_that_would_replace_the_store(
    shared_store: Path, images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(shared_store, out)
    # whose rows it overwrites
    interrupted(pack, images, out, size=24, overwrite=True)
    merge_killed(shared_store, out, "--overwrite")
    assert os.listdir(tmp_path / "out.packing/.packing") == ["lock"]
    with pytest.raises(PackError, match="is finished, but with other inputs"):
        pack(images, out, size=32)
    assert store_bytes(out) == store_bytes(shared_store)
    # and a pack that does replace it is resumed, though a copy was cut short in its place
    interrupted(pack, images, out, size=32, overwrite=True)
    pack(images, out, size=32, overwrite=True)
    assert len(MemmapDataset(out)) == 24
    assert sorted(os.listdir(tmp_path)) == ["images", "out"]


def test_a_killed_copy_sends_nobody_in_a_circle(shared_store: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stage = shutil.copytree(shared_store, tmp_path / "out.packing")
    (stage / "manifest.json").unlink()
    (stage / ".packing").mkdir()
    with pytest.raises(StoreError, match="is incomplete: it is being made, or its command was interrupted"):
        check_finished(out)
    with pytest.raises(StoreError, match="is incomplete: its command is still running, or was interrupted"):
        MemmapDataset(out, as_tuple=False)
    with pytest.raises(
        PackError, match=r"as a whole, without part, or such .* early: if none runs, remove .*out\.packing"
    ):
        pack(images, out, size=32, part="1/2")


def test_stores_that_would_be_deleted_are_refused(shared_store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(shared_store, out)
    for source, sentence in (
        (tmp_path / "out.packing", "is in .*out.packing, which would be replaced"),
        (out / "_tensordict/in", "is in .*out, which would be replaced"),
    ):
        shutil.copytree(shared_store, source)
        (source / ".packing").mkdir()
        with pytest.raises((OptionsError, PackError), match=sentence):
            subset(source, out, fraction=1, overwrite=True)
        assert store_bytes(source) == store_bytes(shared_store)


def test_a_store_that_is_replaced_while_it_is_copied_is_reported(
    store: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(progress: Progress) -> None:
        if progress.stage == "copy" and progress.done == progress.total:
            pack(images, store, size=32, overwrite=True)

    with pytest.raises(PackError, match="was replaced or removed while it was copied"):
        subset(store, tmp_path / "out", fraction=1, progress=replace)
    assert not (tmp_path / "out").exists()


def stop(progress: Progress) -> None:
    if progress.stage == "copy":
        raise KeyboardInterrupt


@pytest.mark.parametrize("there", ["nothing", "a folder", "a store"])
def test_an_interrupt_leaves_what_was_there_and_nothing_else(there: str, shared_store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if there == "a folder":
        out.mkdir()
    if there == "a store":
        shutil.copytree(shared_store, out)
    before = sorted(tmp_path.rglob("*")), store_bytes(out)
    with pytest.raises(KeyboardInterrupt):
        merge([out if there == "a store" else shared_store, shared_store], out, overwrite=True, progress=stop)
    assert (sorted(tmp_path.rglob("*")), store_bytes(out)) == before


def test_a_full_disk_is_reported_before_anything_is_copied(
    shared_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 5000, 5000))
    with pytest.raises(
        DiskFullError, match="are missing. Free some space and do it again, or choose a folder on another disk"
    ):
        subset(shared_store, tmp_path / "out", fraction=1)
    assert run(["merge", str(shared_store), str(shared_store), str(tmp_path / "out")]) == 28
    assert not (tmp_path / "out").exists()


def test_two_at_once_one_wins(shared_store: Path, tmp_path: Path) -> None:
    sentence = []

    def second(progress: Progress) -> None:
        if progress.stage == "copy" and not sentence:
            with pytest.raises(PackError) as caught:
                merge([shared_store] * 2, tmp_path / "out")
            sentence.append(str(caught.value))

    subset(shared_store, tmp_path / "out", fraction=1, progress=second)
    assert "is being packed by process" in sentence[0]
    assert content_bytes(tmp_path / "out") == content_bytes(shared_store)


# -- the commands


def test_the_commands_say_what_they_made(
    shared_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out")
    assert run(["subset", str(shared_store), out, "--class", "class2", "--class", "class0"]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: 60 rows of 32 x 32 x 3, 2 classes")
    assert run(["subset", str(shared_store), out, "--rows", "0,4-6", "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 4
    monkeypatch.setattr("sys.stdin", iter_text("5 7\n3\n"))
    assert run(["subset", str(shared_store), out, "--rows", "-", "--overwrite", "--quiet"]) == 0
    assert [path for path, _, _ in rows_of(tmp_path / "out")] == [rows_of(shared_store)[n][0] for n in (5, 7, 3)]
    assert run(["merge", out, str(shared_store), str(tmp_path / "both")]) == 0
    assert "93 rows copied in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1 x", "standard input has 'x'"),
        ("", "is empty"),
        ("1,2", "has '1,2'"),
        ("² 1", "has '²'"),
        ("1" * 20, "has '111"),
    ],
)
def test_what_is_no_row_number_on_standard_input_is_named(
    text: str,
    sentence: str,
    shared_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", iter_text(text))
    assert run(["subset", str(shared_store), str(tmp_path / "out"), "--rows", "-"]) == 2
    assert sentence in capsys.readouterr().err


def iter_text(text: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()))


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["subset", "{store}", "{out}", "--rows", "7-"], 2, "expected rows such as 0,7,20-29"),
        (
            ["subset", "{store}", "{out}", "--rows", "0-99999999999999"],
            2,
            "names 100,000,000,000,000 rows, expected up to 10,000,000",
        ),
        (["subset", "{store}", "{out}", "--class", "class0", "--classes", "{store}"], 2, "give one of them"),
        (["subset", "{out}", "{out}", "--fraction", "1"], 1, "does not exist"),
        (["merge", "{store}", "{out}"], 2, "merge takes two stores or more"),
        (["subset", "{store}", "{out}", "--rows", "²"], 2, "expected rows such as 0,7,20-29"),
        (["subset", "{store}", "{out}", "--rows", "9" * 5000], 2, "expected rows such as 0,7,20-29"),
        (["subset", "{store}", "{out}", "--rows", "9-7"], 2, "expected the smaller row first"),
    ],
)
def test_wrong_words_are_one_sentence(
    words: list[str], code: int, sentence: str, shared_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run([word.format(store=shared_store, out=out) for word in words]) == code
    assert sentence in capsys.readouterr().err
    assert not out.exists()
