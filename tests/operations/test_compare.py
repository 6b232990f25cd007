"""`compare` finds the faults that moved programs had: another CenterCrop, a second crop, other classes, rows and targets."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_splits, make_tree, photo, torchvision_or_skip
from PIL import Image
from torch.utils.data import Subset

from packer import pack
from packer.cli.app import run
from reader import MemmapDataset, ResizeCenterCrop, compare

SIZE, COVER = 56, 64


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("compare") / "images", each=6, size=(120, 90))


@pytest.fixture(scope="module")
def cropped(images: Path) -> Path:
    """Rows that Resize(64) and CenterCrop(56) give."""
    pack(images, images.parent / "cropped", size=SIZE, crop_fraction=SIZE / COVER, exact=True)
    return images.parent / "cropped"


@pytest.fixture(scope="module")
def whole(images: Path) -> Path:
    pack(images, images.parent / "whole", fit="none", exact=True)
    return images.parent / "whole"


@pytest.fixture(scope="module")
def folder(images: Path) -> Callable[..., Any]:
    """ImageFolder with these steps of torchvision, given by a function of its v2; without one the recipe of validation."""
    torchvision = torchvision_or_skip()
    v2 = torchvision.transforms.v2

    def made(*steps: object) -> Any:
        given = steps or (v2.Resize(COVER), v2.CenterCrop(SIZE))
        return torchvision.datasets.ImageFolder(str(images), v2.Compose([*given, v2.PILToTensor()]))

    return made


def recipe() -> Any:
    v2 = torchvision_or_skip().transforms.v2
    return v2.Compose([v2.Resize(COVER), v2.CenterCrop(SIZE)])


def picture(seed: int) -> np.ndarray:
    return np.asarray(photo(48, 48, seed))


def rows_that_show(differences: list[str], what: str) -> int:
    """Count the rows of which it was said."""
    return sum(int(sentence.partition(" of ")[0]) for sentence in differences if sentence.endswith(what))


def test_a_store_of_the_recipe_is_the_folder(folder: Callable[..., Any], cropped: Path, whole: Path) -> None:
    for store in (MemmapDataset(cropped), MemmapDataset(whole, transform=recipe(), as_pil=True)):
        report = compare(folder(), store, rows=100)
        assert (report.rows, report.mean, report.worst, report.differences) == (18, 0, 0, [])


def test_a_missing_crop_and_a_second_crop_are_named(folder: Callable[..., Any], cropped: Path, whole: Path) -> None:
    report = compare(folder(), MemmapDataset(whole, transform=ResizeCenterCrop(SIZE)))
    assert report.mean > 10
    assert rows_that_show(report.differences, "as if b lacked a crop") > 9
    report = compare(folder(), MemmapDataset(cropped, transform=recipe()))
    assert rows_that_show(report.differences, "as if it were cropped twice") > 9


def test_floats_of_0_to_1_are_levels() -> None:
    levels = [(torch.from_numpy(picture(n).copy()).movedim(-1, 0), n) for n in range(4)]
    report = compare(levels, [(image / 255, target) for image, target in levels])
    assert (report.rows, report.differences) == (4, [])
    assert report.worst < 1e-3


def target(box: float = 4.0, name: str = "boxes", label: int = 1) -> dict[str, Any]:
    return {name: torch.tensor([[0.0, 0.0, box, 8.0]]), "labels": torch.tensor([label]), "size": (4, 8)}


@pytest.mark.parametrize(
    ("a", "b", "is_same"),
    [
        (target(), target(4.0000001), True),
        (target(), target(5.0), False),
        (target(), target(label=2), False),
        (target(), target(name="masks"), False),
        (target(), 3, False),
        ((torch.tensor([1, 2]), "ant"), [torch.tensor([1, 2]), "ant"], True),
        ((torch.tensor([1, 2]), "ant"), (torch.tensor([1, 2]), "bee"), False),
        (torch.tensor(3), 4, False),
        ((torch.tensor([1, 2]), "ant"), (torch.tensor([1, 2]),), False),
        (torch.zeros(2, 2), np.zeros((2, 2)), True),
        (torch.zeros(2, 2), np.zeros((2, 3)), False),
        ("ant", "ant", True),
        ((1.0, 2.0), (1, 2), True),
    ],
)
def test_targets_of_every_kind_are_compared(a: Any, b: Any, is_same: bool) -> None:
    report = compare([(picture(0), a)], [(picture(0), b)])
    said = [sentence.partition(" first: ")[2] for sentence in report.differences]
    assert said == ([] if is_same else ["another target"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda image: image[..., ::-1], "the channels of a in reverse order"),
        (lambda image: image[:, ::-1], "b is a mirrored"),
        (lambda image: np.rot90(image), "b is a turned by 90 degrees"),
        (lambda image: image[::-1, ::-1], "b is a turned by 180 degrees"),
        (lambda image: image[:40, :30], "another size, [C, H, W] = [3, 48, 48] in a and [3, 40, 30] in b"),
        (lambda image: picture(99), "another crop, or another image"),
    ],
)
def test_what_was_done_to_pixels_is_named(change: Callable[[np.ndarray], np.ndarray], said: str) -> None:
    a = [(picture(n), n) for n in range(4)]
    report = compare(a, [(np.ascontiguousarray(change(image)), target) for image, target in a])
    assert said in " ".join(report.differences)


class Named(list[Any]):
    """A dataset in memory with what ImageFolder has."""

    def __init__(self, rows: list[Any], classes: list[str], paths: list[str] | None = None) -> None:
        super().__init__(rows)
        self.classes = classes
        if paths is not None:
            self.samples = [(path, target) for path, (_, target) in zip(paths, rows, strict=True)]


def test_classes_are_compared_by_name_and_order() -> None:
    rows = [(picture(n), n) for n in range(3)]
    other = [(image, (target + 1) % 3) for image, target in rows]
    moved = compare(Named(rows, ["ant", "bee", "cow"]), Named(other, ["cow", "ant", "bee"]))
    assert moved.differences == ["class 0 is ant in a, cow in b"]
    # the same numbers mean other classes then
    turned = compare(Named(rows, ["ant", "bee", "cow"]), Named(rows, ["cow", "ant", "bee"]))
    assert turned.differences[1:] == ["3 of 3 rows, row 0 of a first: another target"]
    lacking = compare(Named(rows, ["ant", "bee", "cow"]), Named(rows, ["ant", "bee"]))
    assert lacking.differences[0] == "class 2 is cow in a, None in b"
    # one of the two names no classes: targets are numbers
    assert compare(rows, Named(rows, ["ant", "bee", "cow"])).differences == []


def test_rows_are_paired_by_path_and_counted() -> None:
    rows, paths = [(picture(n), 0) for n in range(3)], ["x/ant/0.png", "x/ant/1.png", "x/ant/2.png"]
    shuffled = Named([rows[2], rows[0]], ["ant"], ["x/ant/2.png", "x/ant/0.png"])
    report = compare(Named(rows, ["ant"], paths), shuffled)
    assert (report.rows, report.worst) == (2, 0)
    assert report.differences == ["a has 3 rows, b has 2", "b lacks 1 images: x/ant/1.png"]


def test_rows_of_one_name_hide_no_wrong_label() -> None:
    rows, names = [(picture(n), n) for n in range(4)], ["ant", "bee", "cow", "dog"]
    wrong = [(image, 3 - target) for image, target in rows]
    for paths in (["a/x.png", "b/x.png", "c/x.png", "d/x.png"], ["x.png"] * 4):
        report = compare(Named(rows, names, paths), Named(wrong, names, paths))
        assert report.differences == ["4 of 4 rows, row 0 of a first: another target"]


def test_a_subset_of_torch_is_paired_by_path(folder: Callable[..., Any], cropped: Path) -> None:
    report = compare(Subset(folder(), [17, 3]), MemmapDataset(cropped).subset([3, 17]))
    assert (report.rows, report.worst, report.differences) == (2, 0, [])


def test_rows_that_are_no_pair_and_normalized_images_are_refused() -> None:
    with pytest.raises(TypeError, match="row 0 is a dict, expected .image, target."):
        compare([{"image": 1}], [{"image": 1}])
    with pytest.raises(ValueError, match="row 0 has floats beyond 0 to 1. Leave Normalize out of both."):
        compare([(torch.full((3, 8, 8), -2.0), 0)], [(torch.zeros(3, 8, 8), 0)])


def test_the_command_compares_what_pillow_decodes_whole(
    images: Path, cropped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", str(images), str(cropped)]) == 0
    said = capsys.readouterr().out
    assert f"a is {images}, b is {cropped}\n18 rows compared: mean difference 0.00" in said


def test_the_command_exits_1_where_the_folder_changed(
    images: Path, cropped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = Path(shutil.copytree(images, tmp_path / "changed"))
    (changed / "class1" / "000.jpg").unlink()
    shutil.copy(changed / "class0" / "000.jpg", changed / "class2" / "000.jpg")
    assert run(["compare", str(changed), str(cropped)]) == 1
    said = capsys.readouterr().out
    assert "a lacks 1 images: class1/000.jpg" in said
    assert "1 of 17 rows" in said


def test_the_command_refuses_images_of_another_store(
    images: Path, cropped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", str(images / "class0"), str(cropped)]) == 2
    assert "has no image of" in capsys.readouterr().err
    assert run(["compare", str(cropped), str(images)]) == 1
    assert f"{images} is not a pixpack store" in capsys.readouterr().err


def test_images_that_pack_rejected_are_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = make_tree(tmp_path / "images", each=2)
    (images / "class0" / "broken.jpg").write_text("x")
    pack(images, tmp_path / "out", size=32, max_rejects=1)
    assert run(["compare", str(images), str(tmp_path / "out")]) == 0
    (images / "class0" / "000.jpg").write_text("x")
    assert run(["compare", str(images), str(tmp_path / "out")]) == 1
    assert "class0/000.jpg cannot be compared" in capsys.readouterr().err


def test_images_that_exif_turns_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images").mkdir()
    exif = Image.Exif()
    for n, exif[0x0112] in enumerate((1, 6, 3)):
        photo(40, 30, n).save(tmp_path / "images" / f"{n}.png", exif=exif)
    pack(tmp_path / "images", tmp_path / "out", fit="none", workers=1)
    assert run(["compare", str(tmp_path / "images"), str(tmp_path / "out")]) == 0
    assert "Images turned upright in b by EXIF: 2. ImageFolder leaves" in capsys.readouterr().out


def test_the_command_names_a_split_that_is_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_splits(tmp_path / "images", ("train", "val"), each=1)
    pack(tmp_path / "images", tmp_path / "out", size=16, workers=1)
    shutil.rmtree(tmp_path / "images/val")
    assert run(["compare", str(tmp_path / "images"), str(tmp_path / "out")]) == 2
    assert f"images has no image of {tmp_path}/out/val. Expected the packed images" in capsys.readouterr().err
