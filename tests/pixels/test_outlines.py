"""Polygons and RLE of label files: the boxes around them, and the masks that --masks boxes draws of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import photo, store_bytes
from PIL import Image
from test_boxes import FITS, SIDES, boxes_of, coco, flat, flat_sizes, stopped, yolo  # noqa: F401
from test_masks import masks_of

from packer import OptionsError, PackError, ScanError, pack, update
from packer.errors import OutlineError
from packer.operations.verify import verify
from packer.options import PackOptions
from packer.pixels.outlines import box_around, draw, drawing, outline_of
from reader import MemmapDataset
from reader.format.manifest import read_manifest

SQUARE = [10, 5, 30, 5, 30, 25, 10, 25]
# a C on its back, 5 wide and 4 high: two columns, then one pixel below each of two, then one column
RUNS = [0, 8, 3, 1, 3, 1, 0, 4]
COMPRESSED = "083I04"


def drawn(outline: Any, size: tuple[int, int], frame: tuple[float, float] | None = None) -> Any:
    return draw(drawing([(1, outline)], frame or size), size)


# -- by hand


def test_a_polygon_covers_the_pixels_between_its_sides() -> None:
    expected = np.zeros((40, 60), np.uint8)
    expected[5:25, 10:30] = 1
    assert np.array_equal(drawn([SQUARE], (60, 40)), expected)
    assert np.array_equal(drawn([[10, 5, 10, 25, 30, 25, 30, 5]], (60, 40)), expected)
    # in shares, as YOLO has it, and of another size than the label file says
    shares = [[number / side for number, side in zip(SQUARE, (60, 40) * 4, strict=True)]]
    assert np.array_equal(drawn(shares, (60, 40), (1, 1)), expected)
    assert np.array_equal(drawn([SQUARE], (120, 80), (60, 40)), expected.repeat(2, 0).repeat(2, 1))
    assert drawn([SQUARE], (60, 40), (0, 0)).sum() == 400
    # a triangle, the pixels on its longest side included, as pycocotools has them
    assert drawn([[0, 0, 8, 8, 0, 8]], (10, 8)).sum(1).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    # out of the picture
    assert drawn([[-50, -50, 100, -50, 100, 100, -50, 100]], (7, 5)).all()
    assert not drawn([[70, 5, 90, 5, 90, 25]], (60, 40)).any()


def test_rle_runs_down_the_columns_in_turns_of_nothing_and_object() -> None:
    expected = [[1, 1, 0, 0, 1], [1, 1, 0, 0, 1], [1, 1, 0, 0, 1], [1, 1, 1, 1, 1]]
    assert drawn({"size": [4, 5], "counts": RUNS}, (5, 4)).tolist() == expected
    assert drawn({"size": [4, 5], "counts": COMPRESSED}, (5, 4)).tolist() == expected
    twice = drawn({"size": [4, 5], "counts": RUNS}, (10, 8), (5, 4))
    assert np.array_equal(twice, np.array(expected).repeat(2, 0).repeat(2, 1))


def test_the_last_outline_is_on_top() -> None:
    text = drawing([(3, [SQUARE]), (7, [[20, 0, 40, 0, 40, 40, 20, 40]])], (60, 40))
    mask = draw(text, (60, 40))
    assert (mask[10, 15], mask[10, 25], mask[10, 35], mask[30, 15]) == (3, 7, 7, 0)


def test_boxes_enclose_outlines() -> None:
    assert box_around([SQUARE, [5, 6, 7, 8, 9, 40]]) == (5, 5, 30, 40)
    assert box_around({"size": [4, 5], "counts": [4, 2, 14]}) == (1, 0, 2, 2)
    assert box_around({"size": [4, 5], "counts": [20]}) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("segmentation", "text"),
    [
        ([[1, 2, 3, 4]], r"the polygon \[1, 2, 3, 4\]; expected x, y of three points or more"),
        ([[1, 2, 3, 4, 5, 6, 7]], "expected x, y of three points"),
        ([[1, 2, 3, 4, 5, float("nan")]], "expected x, y of three points"),
        ([1, 2, 3, 4, 5, 6], "the polygon 1; expected"),
        ({"counts": "x"}, "the RLE .* expected its size, height and width"),
        ({"size": [4, 5], "counts": 3}, "the RLE"),
        ("polygon", "the segmentation 'polygon'; expected polygons or RLE"),
    ],
)
def test_what_is_no_outline_is_reported(segmentation: Any, text: str) -> None:
    with pytest.raises(OutlineError, match=text):
        outline_of(segmentation)


@pytest.mark.parametrize(
    ("outline", "text"),
    [
        ({"size": [4, 5], "counts": [3, 4]}, "an RLE whose counts do not add up to its 5 x 4 pixels"),
        ({"size": [4, 5], "counts": [-3, 23]}, "do not add up"),
        ({"size": [4, 5], "counts": "zz\u00e9"}, "do not add up"),
        ({"size": [1 << 20, 1 << 20], "counts": [1 << 40]}, "an RLE of 1048576 x 1048576 pixels"),
        ([[0, 0, 1e12, 0, 1e12, 1e12]], "its coordinates are of another unit"),
    ],
)
def test_what_cannot_be_drawn_is_reported(outline: Any, text: str) -> None:
    with pytest.raises(OutlineError, match=text):
        drawn(outline, (5, 4))


def test_masks_are_those_of_pycocotools_pixel_by_pixel() -> None:
    reference = pytest.importorskip("pycocotools.mask")
    random = np.random.default_rng(0)
    for trial in range(500):
        width, height = random.integers(2, 80, 2).tolist()
        points = random.uniform(-0.3, 1.3, (int(random.integers(3, 12)), 2)) * [width, height]
        polygons = [points.ravel().tolist(), np.round(points + 3).ravel().tolist()][: 1 + trial % 2]
        rle = reference.merge(reference.frPyObjects(polygons, height, width))
        expected = reference.decode(rle)
        assert np.array_equal(drawn(polygons, (width, height)), expected)
        compressed = {"size": [height, width], "counts": rle["counts"].decode()}
        assert np.array_equal(drawn(compressed, (width, height)), expected)
        x0, y0, x1, y1 = box_around(compressed)
        assert not expected.any() or [x0, y0, x1 - x0, y1 - y0] == reference.toBbox(rle).tolist()


# -- boxes of label files


def test_a_yolo_polygon_line_gives_the_box_around_it(flat: Path, tmp_path: Path) -> None:  # noqa: F811
    text = "1 0.25 0.25 0.75 0.25 0.5 0.75\n0 0.5 0.5 0.5 0.5\n0 0.1 0.1 0.2 0.1 0.2 0.2 0.1 0.2\n"
    labels = yolo(flat, tmp_path / "labels", {"1.txt": text, "2.txt": "0 0.1 0.1 0.2 0.1 0.2\n"})
    report = pack(flat, tmp_path / "out", size="40x60", boxes=labels, workers=1, max_rejects=1)
    assert boxes_of(tmp_path / "out")[1] == [
        pytest.approx(box) for box in ([15, 10, 45, 30], [15, 10, 45, 30], [6, 4, 12, 8])
    ]
    assert list(report.reasons) == [
        "line 1 of 2.txt is '0 0.1 0.1 0.2 0.1 0.2'; expected class x y width height, or class and x y of three corners or"
        " more, the class below 2"
    ]


def test_keypoints_of_a_pose_dataset_are_no_polygon(flat: Path, tmp_path: Path) -> None:  # noqa: F811
    labels = yolo(flat, tmp_path / "labels", {"1.txt": "1 0.5 0.5 0.5 0.5 0.1 0.9 0.2 0.8\n"})
    (tmp_path / "data.yaml").write_text("kpt_shape: [2, 2]\nnames: [cat, dog]\n")
    report = pack(flat, tmp_path / "out", size="40x60", boxes=labels, workers=1)
    assert boxes_of(tmp_path / "out")[1] == [[15, 10, 45, 30]]
    assert report.notes == [
        f"{tmp_path}/data.yaml has a kpt_shape: of each line the box is read, and the keypoints are left out."
    ]


def segmented(path: Path, sizes: dict[str, Any], outlines: list[tuple[str, int, Any]], **more: Any) -> Path:
    """Write a COCO file of outlines, without a bbox, of the categories cat (7) and dog (9)."""
    ids = {name: number for number, name in enumerate(sizes, start=10)}
    annotations = [
        {"image_id": ids[name], "category_id": category, "segmentation": outline} | more
        for name, category, outline in outlines
    ]
    categories = [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}]
    return coco(path, sizes, [], annotations=annotations, categories=categories)


def rle_of(outline: Any, size: tuple[int, int]) -> dict[str, Any]:
    column = drawn(outline, size).T.ravel().astype(int)
    changes = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist(), len(column)]
    return {"size": [size[1], size[0]], "counts": [0] * int(column[0]) + np.diff(changes).tolist()}


def test_a_coco_annotation_without_a_bbox_has_the_box_of_its_outline(flat: Path, tmp_path: Path) -> None:  # noqa: F811
    empty = {"size": [40, 60], "counts": "P\\n1"}
    outlines: list[tuple[str, int, Any]] = [
        ("0.png", 7, [SQUARE]),
        ("1.png", 9, rle_of([SQUARE], (60, 40))),
        ("2.png", 7, empty),
        ("3.png", 7, []),
        ("4.png", 7, [[1, 2]]),
        ("5.png", 7, {"size": [9, 9], "counts": [81]}),
    ]
    labels = segmented(tmp_path / "c.json", flat_sizes(), outlines)
    report = pack(flat, tmp_path / "out", size="40x60", boxes=labels, workers=1, max_rejects=9)
    assert boxes_of(tmp_path / "out")[:2] == [[[10, 5, 30, 25]]] * 2
    assert sorted(report.reasons) == [
        "annotation 3 of c.json has an RLE whose counts do not add up to its 60 x 40 pixels",
        "annotation 4 of c.json has the bbox None; expected x, y, width, height",
        "annotation 5 of c.json has the polygon [1, 2]; expected x, y of three points or more",
        "annotation 6 of c.json has an RLE of 9 x 9 pixels, its image is listed with 60 x 40",
    ]


# -- masks


@pytest.mark.parametrize("fit", [*FITS, "none"])
def test_drawn_masks_are_turned_and_placed_as_masks_of_files_are(fit: str, tmp_path: Path) -> None:
    for folder in ("images", "masks", "upright"):
        (tmp_path / folder).mkdir()
    sizes, outlines = {}, []
    for orientation in SIDES:
        exif, name = Image.Exif(), f"{orientation}.jpg"
        exif[0x0112] = orientation
        photo(90, 50, orientation).save(tmp_path / "images" / name, exif=exif)
        sizes[name] = (90, 50)
        star = [5 + orientation, 4, 70, 8.5, 45, 22, 60, 45, 20, 30.25]
        outlines += [(name, 9, [star]), (name, 7, rle_of([[40, 10, 85, 10, 85, 40, 40, 40]], (90, 50)))]
        mask = draw(drawing([(2, [star]), (1, outlines[-1][2])], (90, 50)), (90, 50))
        Image.fromarray(mask).save(tmp_path / "masks" / f"{orientation}.png")
    labels = segmented(tmp_path / "c.json", sizes, outlines)
    options: dict[str, Any] = {"fit": fit, "workers": 1, "boxes": labels}
    options |= {"max_size": 36} if fit == "none" else {"size": 36}
    for name, masks in (("drawn", "boxes"), ("files", tmp_path / "masks")):
        pack(tmp_path / "images", tmp_path / name, masks=masks, **options)
    stores = [store_bytes(tmp_path / name) for name in ("drawn", "files")]
    assert [stores[0].pop("manifest.json") == stores[1].pop("manifest.json"), stores[0] == stores[1]] == [False, True]
    assert read_manifest(tmp_path / "drawn").options["masks"] == "boxes"
    assert verify(tmp_path / "drawn").problems == []


def test_outlines_of_upright_pictures_are_not_turned(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(60, 40, 1).save(tmp_path / "images/a.jpg", exif=exif)
    outline = [[5, 10, 35, 10, 35, 20, 5, 20]]
    expected = drawn(outline, (40, 60))
    # a label file that gives the size after turning
    labels = segmented(tmp_path / "c.json", {"a.jpg": (40, 60)}, [("a.jpg", 7, outline)])
    pack(tmp_path / "images", tmp_path / "coco", boxes=labels, masks="boxes", workers=1)
    shares = " ".join(str(n / side) for n, side in zip(outline[0], (40, 60) * 4, strict=True))
    (tmp_path / "labels/a.txt").write_text(f"0 {shares}\n")
    labelled: dict[str, Any] = {"boxes": tmp_path / "labels", "masks": "boxes", "workers": 1}
    pack(tmp_path / "images", tmp_path / "yolo", upright_labels=True, **labelled)
    pack(tmp_path / "images", tmp_path / "turned", **labelled)
    assert np.array_equal(masks_of(tmp_path / "coco")[0], expected)
    assert np.array_equal(masks_of(tmp_path / "yolo")[0], expected)
    # drawn on the picture as it is stored, 60 x 40, in which y goes from 1/6 to 1/3 of 40
    stored = drawn([[n * s for n, s in zip(outline[0], (60 / 40, 40 / 60) * 4, strict=True)]], (60, 40))
    assert np.array_equal(masks_of(tmp_path / "turned")[0], np.rot90(stored, -1))


def test_crowds_are_in_masks_and_boxes_without_an_outline_are_not_and_both_are_counted(
    flat: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    labels = segmented(tmp_path / "c.json", flat_sizes(), [("0.png", 9, rle_of([SQUARE], (60, 40)))], iscrowd=1)
    content = json.loads(labels.read_text())
    content["annotations"].append({"image_id": 11, "category_id": 7, "bbox": [1, 1, 9, 9]})
    labels.write_text(json.dumps(content))
    report = pack(flat, tmp_path / "out", boxes=labels, masks="boxes", workers=1)
    assert report.notes == [
        "1 box around a crowd (iscrowd) is left out; the masks have their pixels.",
        f"1 box of {labels} without polygon or RLE: not in the masks.",
        "the masks have the values 0, 2.",
    ]
    masks = masks_of(tmp_path / "out")
    assert np.array_equal(masks[0], 2 * drawn([SQUARE], (60, 40)))
    assert not masks[1:].any()


@pytest.fixture
def outlined(images: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """24 images, each with two outlines; options to pack them."""
    paths = [str(path.relative_to(images)) for path in sorted(images.rglob("*.jpg"))]
    (images / "class1/003.jpg").write_text("broken")
    outlines: list[tuple[str, int, Any]] = []
    for n, name in enumerate(paths):
        outlines += [(name, 7, [[n, 0, 30, 10, 10, 30 + n]]), (name, 9, [[20, n, 40, n, 40, 40, 20, 40]])]
    labels = segmented(tmp_path / "c.json", dict.fromkeys(paths), outlines)
    return images, {"size": 32, "boxes": labels, "masks": "boxes", "max_rejects": "50%"}


def test_workers_resuming_and_order_give_the_same_bytes(outlined: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    images, options = outlined
    stopped(images, tmp_path / "resumed", workers=1, **options)
    for name, more in (("one", {"workers": 1}), ("two", {"workers": 2}), ("resumed", {"resume": True})):
        pack(images, tmp_path / name, **options, **more)
    assert store_bytes(tmp_path / "one") == store_bytes(tmp_path / "two") == store_bytes(tmp_path / "resumed")
    pack(images, tmp_path / "shuffled", shuffle=3, **options)
    one, other = (
        {path: mask.tobytes() for (path, _), mask in zip(MemmapDataset(out).samples, masks_of(out), strict=True)}
        for out in (tmp_path / "one", tmp_path / "shuffled")
    )
    assert one == other
    # other outlines are another pack
    stopped(images, tmp_path / "other", workers=1, **options)
    labels = options["boxes"]
    labels.write_text(labels.read_text().replace("[[20, 23,", "[[21, 23,"))
    with pytest.raises(PackError, match="was started with other input files"):
        pack(images, tmp_path / "other", resume=True, workers=1, **options)


def test_an_update_keeps_rows_and_draws_the_masks_again(outlined: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    images, options = outlined
    pack(images, tmp_path / "out", workers=1, **options)
    labels = options["boxes"]
    labels.write_text(labels.read_text().replace("[[20, 23,", "[[5, 3,"))
    report = update(images, tmp_path / "out", boxes=labels, masks="boxes", workers=1, max_rejects="50%")
    pack(images, tmp_path / "again", workers=1, **options)
    assert report.kept == 23
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "again")
    # masks of files mean something else
    (tmp_path / "masks/class0").mkdir(parents=True)
    Image.new("L", (9, 9)).save(tmp_path / "masks/class0/000.png")
    with pytest.raises(PackError, match=r"was packed with other options \(with masks='boxes', now without\)"):
        update(images, tmp_path / "out", boxes=labels, masks=tmp_path / "masks", workers=1)


def test_masks_of_outlines_want_boxes_with_outlines_and_few_classes(flat: Path, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(
        OptionsError, match=r"masks='boxes' draws the outlines .* A folder of masks so named is ./boxes"
    ):
        pack(flat, tmp_path / "out", masks="boxes")
    labels = coco(tmp_path / "c.json", flat_sizes(), [("0.png", [1, 1, 9, 9])])
    with pytest.raises(ScanError, match="c.json has no polygon and no RLE, of which masks are drawn"):
        pack(flat, tmp_path / "out", boxes=labels, masks="boxes")
    files = yolo(flat, tmp_path / "labels", {"1.txt": "0 .1 .1 .2 .1 .2 .2"}, "".join(f"c{n}\n" for n in range(256)))
    with pytest.raises(ScanError, match="labels has 256 classes, and a mask has room for 255"):
        pack(flat, tmp_path / "out", boxes=files, masks="boxes")
    words = PackOptions(boxes="/c.json", masks="boxes").words()
    assert words == ["--boxes", "/c.json", "--masks", "boxes"]
