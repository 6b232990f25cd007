"""Boxes: from label files through EXIF, resize, crop and padding to the row; what is wrong is counted, clipped or rejected."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import interrupted, make_tree, photo
from PIL import Image, ImageDraw

from packer import PackError, ScanError, pack
from packer.operations.verify import verify
from packer.sample_lines import read_json_lines
from reader import MemmapDataset, MemmapLoader, RandomHorizontalFlip

FITS = ("crop", "pad", "squash", "inside")
# of EXIF 2.32, tag 274
ORIENTATIONS = range(1, 9)


def coco(
    path: Path, images: dict[str, tuple[int, int] | None], boxes: list[tuple[str, list[Any]]], **more: Any
) -> Path:
    """Write a COCO file: images with their (width, height), and boxes x, y, width, height, all of the category cat."""
    ids = {name: number for number, name in enumerate(images, start=10)}
    records = [
        {"id": ids[name], "file_name": name} | ({} if size is None else {"width": size[0], "height": size[1]})
        for name, size in images.items()
    ]
    annotations = [
        {"id": n, "image_id": ids.get(name, 9), "category_id": 7, "bbox": box} for n, (name, box) in enumerate(boxes)
    ]
    content = {"images": records, "annotations": annotations, "categories": [{"id": 7, "name": "cat"}]} | more
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def boxes_of(out: Path) -> list[list[list[float]]]:
    extras = MemmapDataset(out).store.extras
    assert extras is not None
    return [extras["boxes"][row, :n].tolist() for row, n in enumerate(extras["box_count"].tolist())]


# -- where they go


def placed(size: tuple[int, int], fit: str, row: int) -> tuple[float, float, float, float]:
    """Return scale and offset, across and down, of a picture in a square row, by the definition of each fit."""
    width, height = size
    if fit == "squash":
        return row / width, row / height, 0, 0
    if fit == "crop":  # torchvision's Resize(row), CenterCrop(row)
        long = int(row * max(size) / min(size))
        new = (row, long) if width <= height else (long, row)
        return new[0] / width, new[1] / height, -round((new[0] - row) / 2.0), -round((new[1] - row) / 2.0)
    new = tuple(min(row, max(1, round(row * side / max(size)))) for side in size)
    left, top = ((row - new[0]) // 2, (row - new[1]) // 2) if fit == "pad" else (0, 0)
    return new[0] / width, new[1] / height, left, top


def rectangle(images: Path, orientation: int) -> Image.Image:
    """Draw a white rectangle from 90, 50 to 170, 130 and store it as one of images, to be turned by EXIF."""
    image, exif = Image.new("RGB", (300, 200)), Image.Exif()
    ImageDraw.Draw(image).rectangle((90, 50, 169, 129), fill="white")
    exif[0x0112] = orientation
    image.save(images / f"{orientation}.png", exif=exif)
    return image


@pytest.mark.parametrize("fit", FITS)
def test_a_drawn_rectangle_is_in_the_row_where_its_box_says(fit: str, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for orientation in ORIENTATIONS:
        rectangle(tmp_path / "images", orientation)
    names: dict[str, tuple[int, int] | None] = {f"{orientation}.png": (300, 200) for orientation in ORIENTATIONS}
    labels = coco(tmp_path / "coco.json", names, [(name, [90, 50, 80, 80]) for name in names])
    pack(tmp_path / "images", tmp_path / "out", size=100, fit=fit, boxes=labels, workers=1)
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    for row, boxes in enumerate(boxes_of(tmp_path / "out")):
        ys, xs = np.nonzero(train.numpy()[row, :, :, 0] > 127)
        assert np.abs(np.subtract(boxes[0], [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])).max() < 0.6
    assert len({tuple(boxes[0]) for boxes in boxes_of(tmp_path / "out")}) > 3


def test_boxes_of_upright_pictures_are_not_turned(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(40, 20, 1).save(tmp_path / "images" / "a.jpg", exif=exif)
    box = [2, 4, 10, 20]
    # the size after turning says so
    sized = coco(tmp_path / "sized.json", {"a.jpg": (20, 40)}, [("a.jpg", box)])
    pack(tmp_path / "images", tmp_path / "sized", boxes=sized, workers=1)
    silent = coco(tmp_path / "silent.json", {"a.jpg": None}, [("a.jpg", box)])
    pack(tmp_path / "images", tmp_path / "turned", boxes=silent, workers=1)
    assert boxes_of(tmp_path / "sized") == [[[2, 4, 12, 24]]]
    assert boxes_of(tmp_path / "turned") == [[[0, 2, 16, 12]]]


# -- COCO


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Six PNGs of 60 x 40 in one folder."""
    (tmp_path / "flat").mkdir()
    for n in range(6):
        photo(60, 40, n).save(tmp_path / "flat" / f"{n}.png")
    return tmp_path / "flat"


def flat_sizes() -> dict[str, tuple[int, int] | None]:
    return {f"{n}.png": (60, 40) for n in range(6)}


def test_a_coco_file_becomes_boxes_targets_and_counts(flat: Path, tmp_path: Path) -> None:
    categories = [{"id": 90, "name": "toothbrush"}, {"id": 3, "name": "car"}]
    annotations = [
        {"image_id": 12, "category_id": 90, "bbox": [20, 10, 20, 20]},
        {"image_id": 10, "category_id": 3, "bbox": [10, 0, 40, 40]},
        {"image_id": 12, "category_id": 3, "bbox": [10, 0, 10, 40], "iscrowd": 0},
        {"image_id": 12, "category_id": 3, "bbox": [10, 0, 10, 40], "iscrowd": 1},
    ]
    labels = coco(tmp_path / "c.json", flat_sizes(), [], annotations=annotations, categories=categories)
    report = pack(flat, tmp_path / "out", size=20, boxes=labels, workers=2)
    assert (report.rows, report.classes, report.notes) == (6, 2, [])
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert train.classes == ["car", "toothbrush"]
    assert train.store.targets.tolist() == [-1] * 6
    extras = train.store.extras
    assert {name: (str(value.dtype), tuple(value.shape)) for name, value in extras.items()} == {
        "boxes": ("torch.float32", (6, 2, 4)),
        "box_targets": ("torch.int64", (6, 2)),
        "box_count": ("torch.int32", (6,)),
    }
    assert extras["box_count"].tolist() == [1, 0, 2, 0, 0, 0]
    assert extras["box_targets"][[0, 2, 3]].tolist() == [[0, -1], [1, 0], [-1, -1]]
    # 60 x 40 -> 30 x 20, of which the crop takes 5 to 25
    assert extras["boxes"][2].tolist() == [[5, 5, 15, 15], [0, 0, 5, 20]]
    assert extras["boxes"][[0, 3]].tolist() == [[[0, 0, 20, 20], [0] * 4], [[0] * 4] * 2]
    batch = next(iter(MemmapLoader(train, 6, transform=RandomHorizontalFlip(1), as_tuple=False)))
    assert batch.extras["boxes"][2].tolist() == [[5, 5, 15, 15], [15, 0, 20, 20]]
    assert verify(tmp_path / "out").problems == []


def test_boxes_are_clipped_to_picture_and_crop_and_those_without_area_left_out(flat: Path, tmp_path: Path) -> None:
    # the crop keeps x from 10 to 50
    boxes = {
        "0.png": [0, 0, 20, 20],
        "1.png": [2, 0, 8, 20],  # beside the crop
        "2.png": [40, 30, -20, -20],  # corners in the wrong order
        "3.png": [-20, 10, 40, 60],  # reaches out
        "4.png": [10, 10, 0, 10],  # no area
        "gone.png": [0, 0, 9, 9],
    }
    sizes = flat_sizes() | {"gone.png": None, "5.png": (120, 80)}
    labels = coco(tmp_path / "c.json", sizes, [*boxes.items(), ("5.png", [40, 20, 40, 40]), ("?", [0, 0, 1, 1])])
    pack(flat, tmp_path / "out", size=40, boxes=labels, workers=1)
    assert boxes_of(tmp_path / "out") == [
        [[0, 0, 10, 20]], [], [[10, 10, 30, 30]], [[0, 10, 10, 40]], [], [[10, 10, 30, 30]]
    ]  # fmt: skip


def test_images_are_found_by_the_end_of_their_path_and_must_be_one(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", each=1)
    (images / "class1" / "000.jpg").rename(images / "class1" / "one.jpg")
    names = {"data/images/class0/000.jpg": None, "one.jpg": None, "class2/000.jpg": None}
    labels = coco(tmp_path / "c.json", names, [(name, [0, 0, 30, 30]) for name in names])
    pack(images, tmp_path / "out", size=32, boxes=labels, workers=1)
    assert [len(boxes) for boxes in boxes_of(tmp_path / "out")] == [1, 1, 1]
    # class folders are no classes beside those of the boxes
    assert MemmapDataset(tmp_path / "out").classes == ["cat"]
    coco(labels, {"000.jpg": None}, [])
    with pytest.raises(ScanError, match="names '000.jpg', which may be class0/000.jpg or class2/000.jpg"):
        pack(images, tmp_path / "other", size=32, boxes=labels)


def test_classes_are_imposed_by_name(flat: Path, tmp_path: Path) -> None:
    labels = coco(tmp_path / "c.json", flat_sizes(), [("0.png", [20, 10, 20, 20])])
    (tmp_path / "names").write_text("dog\ncat\n")
    pack(flat, tmp_path / "out", size=32, boxes=labels, classes=str(tmp_path / "names"), workers=1)
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert (train.classes, train.store.extras["box_targets"][0].tolist()) == (["dog", "cat"], [1])
    (tmp_path / "names").write_text("dog\n")
    with pytest.raises(ScanError, match="has the class 'cat' that classes does not list"):
        pack(flat, tmp_path / "other", size=32, boxes=labels, classes=str(tmp_path / "names"))


def test_a_table_may_have_numbers_beside_boxes_but_no_second_class_list(flat: Path, tmp_path: Path) -> None:
    labels = coco(tmp_path / "c.json", flat_sizes(), [("flat/1.png", [20, 10, 20, 20]), ("1.png", [20, 10, 20, 20])])
    (tmp_path / "m.csv").write_text("path,target,age\nflat/1.png,0.5,3\nflat/0.png,1.5,4\n")
    pack(tmp_path / "m.csv", tmp_path / "out", size=32, boxes=labels, workers=1)
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert sorted(train.store.extras.keys()) == ["box_count", "box_targets", "boxes"]
    assert train.store.extras["box_count"].tolist() == [1, 0]
    (tmp_path / "m.csv").write_text("path,target\nflat/1.png,bird\n")
    with pytest.raises(ScanError, match="A store has one class list"):
        pack(tmp_path / "m.csv", tmp_path / "other", size=32, boxes=labels)


# -- the same bytes, whatever happens


def stopped(images: Path, out: Path, **options: Any) -> None:
    """Pack until a few blocks are done, then stop."""
    interrupted(pack, images, out, **options, inputs=16)


def test_splits_have_room_for_as_many_boxes_as_any_of_them_needs(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / "images" / split).mkdir(parents=True)
        photo(60, 40, 1).save(tmp_path / "images" / split / f"{split}.png")
    boxes = [("val/val.png", [5 * n, 5, 30, 30]) for n in range(3)] + [("train.png", [20, 0, 9, 9])]
    names: dict[str, tuple[int, int] | None] = {"train.png": None, "val/val.png": None}
    options = {"size": 32, "boxes": coco(tmp_path / "c.json", names, boxes), "workers": 1}
    pack(tmp_path / "images", tmp_path / "out", **options)
    stores = [MemmapDataset(tmp_path / "out" / split, as_tuple=False) for split in ("train", "val")]
    assert [store.manifest.extras["boxes"].row_shape for store in stores] == [(3, 4)] * 2
    assert [store.store.extras["box_count"].tolist() for store in stores] == [[1], [3]]
    # one more box in a val image is another K for train, too
    coco(tmp_path / "c.json", names, [*boxes, ("val/val.png", [1, 1, 8, 8])])
    with pytest.raises(PackError, match=r"train is finished, but with other options"):
        pack(tmp_path / "images", tmp_path / "out", **options)


# -- YOLO


def yolo(flat: Path, folder: Path, files: dict[str, str], classes: str | None = "cat\ndog\n") -> Path:
    """Write label files below a folder; those of images that are not named hold nothing."""
    texts = {f"{n}.txt": "" for n in range(6)} | files | ({} if classes is None else {"classes.txt": classes})
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("folder", ["labels", "flat"])
def test_yolo_files_beside_the_images_or_apart_become_boxes(folder: str, flat: Path, tmp_path: Path) -> None:
    labels = yolo(flat, tmp_path / folder, {"1.txt": "1 0.5 0.5 0.5 0.5\n\n0 0.25 0.5 0.5 1\n"})
    report = pack(flat, tmp_path / "out", size="40x60", boxes=labels, workers=1)
    assert (report.rows, report.notes) == (6, [])
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert boxes_of(tmp_path / "out")[:2] == [[], [[15, 10, 45, 30], [0, 0, 30, 40]]]
    assert (train.classes, train.store.extras["box_targets"][1].tolist()) == (["cat", "dog"], [1, 0])
    assert verify(tmp_path / "out").problems == []


def test_yolo_finds_labels_where_its_own_layout_has_them(tmp_path: Path) -> None:
    for split in ("train", "val"):
        make_tree(tmp_path / "data" / split / "images", classes=1, each=1)
        label = tmp_path / "data" / split / "labels" / "class0" / "000.txt"
        label.parent.mkdir(parents=True)
        label.write_text("0 0.5 0.5 0.5 0.5")
    (tmp_path / "data" / "classes.txt").write_text("cat")
    pack(tmp_path / "data", tmp_path / "out", size=32, boxes=tmp_path / "data", workers=1)
    assert [len(boxes_of(tmp_path / "out" / split)[0]) for split in ("train", "val")] == [1, 1]


# what ultralytics' own files hold beside the names, which is ignored
DATA_YAML = "path: ../datasets/pets  # root\ntrain: images/train\nval: images/val\nnc: 3\n"
NAMES = {"list": "names: [no, 'dog: small', 3]\n", "numbered": "names:\n  1: 'dog: small'\n  0: no\n  2: 3\n"}


@pytest.mark.parametrize("where", ["labels", "above", "--classes"])
@pytest.mark.parametrize("names", NAMES.values(), ids=list(NAMES))
def test_names_of_classes_come_from_data_yaml(names: str, where: str, flat: Path, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    labels = yolo(flat, tmp_path / "data/labels", {"1.txt": "2 0.5 0.5 0.5 0.5"}, classes=None)
    folder = {"labels": labels, "above": labels.parent, "--classes": tmp_path}[where] / "data.yaml"
    folder.write_text(DATA_YAML + names)
    report = pack(flat, tmp_path / "out", size=32, boxes=labels, classes=str(folder) if where == "--classes" else None)
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert (train.classes, report.notes) == (["no", "dog: small", "3"], [])
    assert train.store.extras["box_targets"][1].tolist() == [2]


def test_images_of_which_labels_say_nothing_are_noted(flat: Path, tmp_path: Path) -> None:
    labels = yolo(flat, tmp_path / "labels", {"8.txt": "", "1.txt": "3 0.5 0.5 0.5 0.5"}, classes=None)
    (labels / "0.txt").unlink()
    report = pack(flat, tmp_path / "out", size=32, boxes=labels, workers=1)
    assert report.notes == [f"{labels} says nothing of 1 of 6 images, 0.png first: they have no boxes."]
    assert MemmapDataset(tmp_path / "out").classes == ["0", "1", "2", "3"]


# -- what is wrong with them

BBOX = "annotation 1 of c.json has the bbox %s; expected x, y, width, height"
# an annotation of 1.png, or the lines of 1.txt -> why the image is rejected
SENSELESS: list[tuple[dict[str, Any] | str, str]] = [
    ({"bbox": [1, 2, 3]}, BBOX % "[1, 2, 3]"),
    ({"bbox": [1, 2, 3, None]}, BBOX % "[1, 2, 3, None]"),
    ({}, BBOX % None),
    ({"bbox": [10**400, 2, 3, 4]}, BBOX % f"[1{'0' * 78}"),
    ({"bbox": [1, 2, 3, 4], "category_id": 8}, "annotation 1 of c.json has the category_id 8, which is no category there"),
    ("0 0.5 0.5 0.5 0.5\n0 0.5 0.5 0.5\n", "line 2 of 1.txt is '0 0.5 0.5 0.5'"),
    ("0 0.1 0.1 0.2 0.1 0.2 0.2\n", "line 1 of 1.txt is '0 0.1 0.1 0.2 0.1 0.2 0.2'"),
    ("0 0.5 0.5 0.5 wide\n", "line 1 of 1.txt is '0 0.5 0.5 0.5 wide'"),
    ("0 0.5 0.5 0.5 nan\n", "line 1 of 1.txt is '0 0.5 0.5 0.5 nan'"),
    ("0.5 0.5 0.5 0.5 1\n", "line 1 of 1.txt is '0.5 0.5 0.5 0.5 1'"),
    ("\n2 0.5 0.5 0.5 0.5\n", "line 2 of 1.txt is '2 0.5 0.5 0.5 0.5'"),
    ("-1 0.5 0.5 0.5 0.5\n", "line 1 of 1.txt is '-1 0.5 0.5 0.5 0.5'"),
]  # fmt: skip


@pytest.mark.parametrize(("label", "reason"), SENSELESS)
def test_an_image_whose_label_makes_no_sense_is_rejected(label: Any, reason: str, flat: Path, tmp_path: Path) -> None:
    if isinstance(label, str):
        labels, reason = yolo(flat, tmp_path / "labels", {"1.txt": label}), reason + EXPECTED
    else:
        annotations = [{"image_id": 11, "category_id": 7} | label]
        labels = coco(tmp_path / "c.json", flat_sizes(), [], annotations=annotations)
    report = pack(flat, tmp_path / "out", size=32, boxes=labels, workers=1)
    assert (report.rows, report.reasons) == (5, {reason: 1})
    assert [line["path"] for line in read_json_lines(tmp_path / "out" / "rejected.jsonl")] == ["1.png"]


EXPECTED = "; expected class x y width height, the class below 2"
NO_MORE = '"annotations": [], "categories": []}'
# a file of labels, its text, what ends the pack before it begins
WRONG: list[tuple[str, str | bytes | None, str]] = [
    ("c.json", None, "c.json' cannot be read: No such file or directory. Expected COCO's json"),
    ("c.json", '{"images": [],\n\n oh', "c.json is not JSON: .*: line 3"),
    ("c.json", '{"images": []}', "c.json has no list 'annotations'. Expected COCO's json"),
    ("c.json", "[]", "c.json has no list 'images'"),
    ("c.json", '{"images": [3], ' + NO_MORE, "image 1 of .*c.json is 3. Expected an id and a file"),
    (
        "c.json",
        '{"images": [], "annotations": [], "categories": [{"id": 1}]}',
        "category 1 of .*Expected an id and a name",
    ),
    (
        "c.json",
        '{"images": [], "annotations": [], "categories": [{"id": 3, "name": "cat"}, {"id": 3, "name": "dog"}]}',
        "two categories with the id 3, 'cat' and 'dog'",
    ),
    (
        "c.json",
        '{"images": [{"id": 0, "file_name": "0.png"}, {"id": 0, "file_name": "1.png"}], ' + NO_MORE,
        "two images with the id 0, '1.png' the second",
    ),
    (
        "c.json",
        '{"images": [{"id": 0, "file_name": "0.png"}], "annotations": [{"image_id": "0"}], "categories": []}',
        "no annotation of .*c.json is for an image that it lists: the first has the image_id '0', the first image the id 0",
    ),
    (
        "c.json",
        '{"images": [{"id": 0, "file_name": "other.png"}], ' + NO_MORE,
        "c.json lists none of the 6 images, 0.png among them, by its file_name",
    ),
    ("labels/other.txt", "", "has a label file for none of the 6 images. Expected 0.txt for 0.png."),
    ("labels/data.yaml", "names: {0: cat, 2: dog}", "data.yaml numbers a class 2. Expected 0 to 1, each once"),
    ("labels/data.yaml", "names: [cat, cat]", "data.yaml names the class 'cat' twice"),
    ("labels/data.yaml", "names: [cat, [dog]]", "data.yaml holds no list of class names"),
    ("labels/data.yaml", "- cat\n- dog\n", "data.yaml has no names of classes. Expected 'names:'"),
    ("labels/data.yaml", "[" * 20_000, "data.yaml cannot be read"),
    ("labels/data.yaml", b"\xff\xfe\x00", "data.yaml cannot be read"),
]


@pytest.mark.parametrize(("name", "text", "message"), WRONG, ids=lambda value: repr(value)[:30])
def test_labels_that_make_no_sense_end_the_pack_before_it_begins(
    name: str, text: str | bytes | None, message: str, flat: Path, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ScanError, match=message) as caught:
        pack(flat, tmp_path / "out", size=32, boxes=path if path.suffix == ".json" else path.parent)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_without_pyyaml_a_data_yaml_names_it(flat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = yolo(flat, tmp_path / "labels", {}, classes=None)
    (labels / "data.yaml").write_text("names: [cat, dog]")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(
        ScanError, match=r"data.yaml needs PyYAML: pip install 'pixpack\[yaml\]', or give classes a file"
    ):
        pack(flat, tmp_path / "out", size=32, boxes=labels)
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    assert pack(flat, tmp_path / "out", size=32, boxes=labels, classes=str(tmp_path / "names.txt")).rows == 6
