"""`compare` finds the faults that moved programs had: another CenterCrop, a second crop, other classes, rows and targets."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_tree, photo, torchvision_or_skip
from torch.utils.data import Dataset, IterableDataset, Subset

from packer import pack
from packer.cli.app import run
from reader import MemmapDataset, RandomResizedCrop, ResizeCenterCrop, compare, from_torchvision

SIZE, COVER = 56, 64
A_DATASET = "expected a dataset of (image, target) with a length and rows by number"
AN_IMAGE = "expected a PIL image, an array [H, W, C] or a tensor [C, H, W]"


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


class _Streamed(IterableDataset[Any]):
    """A dataset without rows by number, which says how many it has."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        yield from ((picture(n), n) for n in range(3))


def rows_that_show(differences: list[str], what: str) -> int:
    """Count the rows of which it was said."""
    return sum(int(sentence.partition(" of ")[0]) for sentence in differences if sentence.endswith(what))


def recipe() -> Any:
    v2 = torchvision_or_skip().transforms.v2
    return v2.Compose([v2.Resize(COVER), v2.CenterCrop(SIZE)])


def test_a_store_of_the_recipe_is_the_folder(folder: Callable[..., Any], cropped: Path, whole: Path) -> None:
    for store in (MemmapDataset(cropped), MemmapDataset(whole, transform=recipe(), as_pil=True)):
        report = compare(folder(), store, rows=100)
        assert (report.counts, report.compared, report.differences, report.notes) == ((18, 18), 18, [], [])
        assert (report.worst, report.mean, report.equal) == (0, 0, 1)


def test_a_crop_that_resizes_in_place_of_cutting_is_found(folder: Callable[..., Any], whole: Path) -> None:
    report = compare(folder(), MemmapDataset(whole, transform=ResizeCenterCrop(SIZE)))
    assert report.equal == 0
    assert report.mean > 10
    assert rows_that_show(report.differences, "as if b lacked a crop") > 9


def test_a_crop_of_cropped_rows_is_found_by_its_pixels_and_by_its_step(
    folder: Callable[..., Any], cropped: Path
) -> None:
    report = compare(folder(), MemmapDataset(cropped, transform=recipe()))
    assert report.differences[0].startswith("b is cropped twice: by pack with --crop-fraction 0.875")
    assert "CenterCrop(size=(56, 56))" in report.differences[0]
    assert rows_that_show(report.differences, "as if it were cropped twice") > 9
    assert [note.startswith("b is resized twice: by pack (rows of 56 x 56 by --fit crop") for note in report.notes] == [
        True
    ]
    # the pixels alone show it too, where nothing says what was done to them
    plain = [*MemmapDataset(cropped, transform=recipe())]
    assert rows_that_show(compare([*folder()], plain).differences, "as if it were cropped twice") > 9


def test_pixels_that_are_drawn_at_random_are_not_compared_but_their_crops_are_named(
    folder: Callable[..., Any], cropped: Path
) -> None:
    report = compare(folder(), MemmapDataset(cropped, transform=RandomResizedCrop(SIZE)))
    assert (report.compared, report.worst) == (0, None)
    assert report.notes == ["pixels were not compared: b draws at random. Give it the recipe of validation"]
    assert "b is cropped twice" in report.differences[0]


def test_normalized_images_are_compared_with_normalized_ones_alone(folder: Callable[..., Any], cropped: Path) -> None:
    v2 = torchvision_or_skip().transforms.v2
    floats = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)]
    images = folder()
    images.transform = v2.Compose([*recipe().transforms, *floats])
    assert compare(images, MemmapDataset(cropped)).notes[-1].startswith("pixels were not compared: a is normalized")
    both = compare(images, MemmapDataset(cropped, transform=from_torchvision(v2.Compose(floats[1:]))))
    assert both.compared == 18
    assert both.mean < 0.01
    assert both.notes[-1] == "both are normalized: what a's values span counts as 255 levels"


def test_differences_of_normalized_images_are_in_levels() -> None:
    levels = [torch.from_numpy(picture(n).copy()).movedim(-1, 0).float() for n in range(6)]
    other = [(image + 4 * (torch.arange(image.shape[-1]) % 2)).clamp(0, 255) for image in levels]

    def normalized(images: list[torch.Tensor], std: float) -> list[tuple[torch.Tensor, int]]:
        return [((image / 255 - 0.45) / std, n) for n, image in enumerate(images)]

    plain = compare([*zip(levels, range(6), strict=True)], [*zip(other, range(6), strict=True)])
    report = compare(normalized(levels, 0.22), normalized(other, 0.22))
    assert report.mean == pytest.approx(plain.mean, rel=0.2)
    assert report.worst == pytest.approx(4, rel=0.2)
    assert report.differences == plain.differences == []
    # of another std they are not alike
    [said] = compare(normalized(levels, 0.22), normalized(levels, 0.5)).differences
    assert said.startswith(
        "6 of 6 rows, row 0 of a first: b has the values of a on another scale, as another Normalize"
    )


def test_floats_of_0_to_255_are_levels() -> None:
    levels = [(torch.from_numpy(picture(n).copy()).movedim(-1, 0), n) for n in range(4)]
    floats = [(image.float(), target) for image, target in levels]
    shares = [(image / 255, target) for image, target in floats]
    for a, b in ((levels, floats), (floats, shares), (shares, levels)):
        report = compare(a, b)
        assert (report.compared, report.differences, report.notes) == (
            4,
            [],
            ["the two name no image alike, so rows are paired by position"],
        )
        assert report.worst < 1e-3
    # a black image is of any range
    black = torch.zeros(3, 48, 48)
    assert compare([*floats, (black, 4)], [*levels, (black.byte(), 4)]).worst == 0
    normalized = [((image - 0.5) / 0.2, target) for image, target in shares]
    assert "b is normalized" in compare(floats, normalized).notes[-1]


def target(box: float = 4.0, name: str = "boxes", label: int = 1) -> dict[str, Any]:
    return {name: torch.tensor([[0.0, 0.0, box, 8.0]]), "labels": torch.tensor([label]), "size": (4, 8)}


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (target(), target(4.0000001), ""),
        (target(), target(5.0), "another target['boxes']"),
        (target(), target(label=2), "another target['labels']"),
        (
            target(),
            target(name="masks"),
            "another target, which has boxes, labels, size in a, masks, labels, size in b",
        ),
        (target(), 3, "another target"),
        ((torch.tensor([1, 2]), "ant"), [torch.tensor([1, 2]), "ant"], ""),
        ((torch.tensor([1, 2]), "ant"), (torch.tensor([1, 2]), "bee"), "another target: ant in a, bee in b"),
        (torch.tensor(3), 4, "another target: 3 in a, 4 in b"),
        ((torch.tensor([1, 2]), "ant"), (torch.tensor([1, 2]),), "another target"),
        ([{"bbox": [1, 2]}], [{"bbox": [1, 3]}], "another target['bbox']: 2 in a, 3 in b"),
        (torch.zeros(2, 2), np.zeros((2, 2)), ""),
        (torch.zeros(2, 2), np.zeros((2, 3)), "another target"),
        ("ant", "ant", ""),
        ((1.0, 2.0), torch.tensor([1.0, 2.0]), ""),
    ],
)
def test_targets_of_every_kind_are_compared(a: Any, b: Any, said: str) -> None:
    report = compare([(picture(0), a)], [(picture(0), b)])
    assert report.targets == 1
    assert [sentence.partition(" first: ")[2] for sentence in report.differences] == ([said] if said else [])


def test_each_size_of_difference_has_its_meaning() -> None:
    a = [(picture(n).astype(int), n) for n in range(8)]
    changes = (0, 0, 0, 1, 2, 2, 30, 90)
    b = [
        (image + change * np.where(image < 128, 1, -1), target)
        for (image, target), change in zip(a, changes, strict=True)
    ]
    report = compare(a, b)
    assert report.equal == 3 / 8
    assert report.sizes == [
        "1 of 8 rows, mean difference 0 to 1: rounding, or another JPEG decoder",
        "2 of 8 rows, mean difference 1 to 10: another filter, a resize in between, or a shift by a pixel",
    ]
    assert report.differences == [
        "1 of 8 rows, row 6 of a first: another crop, or another image",
        "1 of 8 rows, row 7 of a first: another image",
    ]
    assert "\n".join(report.sizes) in str(report)


def picture(seed: int) -> np.ndarray:
    return np.asarray(photo(48, 48, seed))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda image: image[..., ::-1], "the channels of a in reverse order"),
        (lambda image: image[:, ::-1], "b is a mirrored"),
        (lambda image: np.rot90(image), "b is a turned by 90 degrees"),
        (lambda image: image[::-1], "b is a upside down"),
        (lambda image: image.transpose(1, 0, 2), "b is a with rows and columns swapped"),
        (lambda image: (image * 0.8).astype(np.uint8), "b has the values of a on another scale"),
        (lambda image: image[:40, :30], "another size, [C, H, W] = [3, 48, 48] in a and [3, 40, 30] in b. Give both"),
        (lambda image: picture(99), "another image"),
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
    assert moved.differences == ["other order of classes: number 0 is ant in a, cow in b"]
    # the same numbers mean other classes then
    assert (
        "3 of 3 rows, row 0 of a first: another target: ant in a, cow in b"
        in compare(Named(rows, ["ant", "bee", "cow"]), Named(rows, ["cow", "ant", "bee"])).differences
    )
    lacking = compare(Named(rows, ["ant", "bee", "cow"]), Named(rows, ["ant", "bee", "dog"])).differences
    assert lacking[:2] == ["a lacks 1 class: dog", "b lacks 1 class: cow"]


def test_targets_are_compared_by_number_where_one_of_the_two_names_no_classes() -> None:
    rows = [(picture(n), n) for n in range(3)]
    for a, b in ((rows, Named(rows, ["ant", "bee", "cow"])), (Named(rows, ["ant", "bee", "cow"]), rows)):
        report = compare(a, b)
        assert (report.classes, report.targets, report.differences) == (0, 3, [])
        assert "no difference in counts, targets and cuts" in str(report)
    # names of classes that are no text
    assert compare(Named(rows, range(3)), Named(rows, range(3))).classes == 3  # type: ignore[arg-type]


def test_what_was_not_compared_is_not_said_to_be_the_same() -> None:
    assert str(compare([], [])).splitlines()[:2] == ["0 rows compared", "no difference in counts"]
    drawn = _Given(lambda row: (torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8), row))
    assert "no difference in counts and targets" in str(compare(drawn, drawn))


def test_rows_are_paired_by_path_and_counted() -> None:
    rows, paths = [(picture(n), 0) for n in range(3)], ["x/ant/0.png", "x/ant/1.png", "x/ant/2.png"]
    shuffled = Named([rows[2], rows[0]], ["ant"], ["ant/2.png", "ant/0.png"])
    report = compare(Named(rows, ["ant"], paths), shuffled)
    assert (report.compared, report.equal) == (2, 1)
    assert report.differences == ["a has 3 rows, b has 2", "b lacks 1 image: ant/1.png"]


def test_rows_that_pack_made_smaller_are_said_to_be_resized_twice(images: Path, folder: Callable[..., Any]) -> None:
    pack(images, images.parent / "small", fit="none", max_size=100)
    report = compare(folder(), MemmapDataset(images.parent / "small", transform=recipe(), as_pil=True))
    assert report.notes[0].startswith("b is resized twice: by pack (rows of up to 100 x 100 by --fit none)")
    # a little softer, and no other view
    assert 0 < report.mean < 10
    assert report.differences == []


@pytest.mark.parametrize(
    ("options", "notes"),
    [
        (
            {},
            ["values of b differ because it was packed without --exact: 18 of 18 rows are JPEGs that were decoded at"],
        ),
        # half of a JPEG is less than twice the row
        ({"size": 32}, []),
        ({"exact": True, "compress": "jpeg:90"}, ["values of b differ because it was packed with --compress jpeg:90"]),
        ({"requantize": 8}, ["values of b differ because it was packed with --requantize 8"]),
        ({"exact": True, "compress": True}, []),
    ],
)
def test_options_of_the_pack_that_change_values_are_named(
    images: Path, tmp_path: Path, options: dict[str, Any], notes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pack(images, tmp_path / "out", **{"size": 20, **options})
    assert run(["compare", str(images), str(tmp_path / "out")]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(said) == len(notes)
    assert all(line.startswith(f"note: {note}") for line, note in zip(said, notes, strict=True))


def test_a_subset_of_torch_is_paired_by_path(folder: Callable[..., Any], cropped: Path) -> None:
    report = compare(Subset(folder(), [17, 3]), MemmapDataset(cropped).subset([3, 17]))
    assert (report.compared, report.equal, report.differences) == (2, 1, [])


@pytest.mark.parametrize(
    ("a", "rows", "error", "said"),
    [
        ([1], 0, ValueError, "rows is 0, expected an integer of 1 or more."),
        ([1], True, ValueError, "rows is True, expected an integer of 1 or more."),
        ([1], "64", ValueError, "rows is '64', expected an integer of 1 or more."),
        ("images/", 4, TypeError, f"a is a str, {A_DATASET}. Open it: MemmapDataset('images/')."),
        ({"a": 1}, 4, TypeError, f"a is a dict, {A_DATASET}."),
        (iter([1]), 4, TypeError, f"a is a list_iterator, {A_DATASET}."),
        (_Streamed(), 4, TypeError, f"a is a _Streamed, {A_DATASET}."),
        ([{"image": 1}], 4, TypeError, "row 0 of a is a dict, expected (image, target)."),
        ([("cat.jpg", 0)], 4, TypeError, f"row 0 of a: the image is a str, {AN_IMAGE}."),
        ([(None, 0)], 4, TypeError, f"row 0 of a: the image is a NoneType, {AN_IMAGE}."),
        (
            [(torch.zeros(2, 3, 8, 8), 0)],
            4,
            TypeError,
            f"row 0 of a: the image has the shape [2, 3, 8, 8], {AN_IMAGE}.",
        ),
        ([(torch.zeros(3, 0, 8), 0)], 4, TypeError, f"row 0 of a: the image has the shape [3, 0, 8], {AN_IMAGE}."),
        ([(torch.full((3, 8, 8), torch.nan), 0)], 4, TypeError, "row 0 of a: the image has values that are not finite"),
    ],
)
def test_wrong_arguments_are_refused(a: Any, rows: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        compare(a, [(picture(0), 0)], rows)


def test_integers_that_are_no_levels_are_not_called_normalized() -> None:
    deep = [(np.full((8, 8, 3), 40_000, np.uint16), 0)]
    assert compare(deep, [(picture(0)[:8, :8], 0)]).notes[-1] == (
        "pixels were not compared: a has integers of 40000 to 40000. Make them levels of 0 to 255"
    )


@pytest.mark.parametrize(
    "given",
    [
        {"samples": [{"path": "0.png"}] * 2},
        {"samples": [("0.png", 0)]},
        {"samples": torch.zeros(2)},
        {"samples": 6},
        {"classes": 10},
        {"classes": {0: "ant"}},
        {"classes": lambda: ["ant"]},
    ],
)
def test_attributes_that_are_no_sequence_of_paths_or_names_are_not_looked_at(given: dict[str, Any]) -> None:
    rows = Named([(picture(n), 0) for n in range(2)], ["ant"])
    odd = Named([*rows], ["ant"])
    vars(odd).update(given)
    report = compare(odd, rows)
    assert (report.equal, report.differences) == (1, [])


def test_classes_and_paths_may_be_in_arrays() -> None:
    rows, paths = [(picture(n), n) for n in range(2)], ["ant/0.png", "bee/1.png"]
    given = Named(rows[::-1], ["ant", "bee"], paths[::-1])
    given.classes, given.samples = np.array(given.classes), np.array(given.samples)  # type: ignore[assignment]
    report = compare(given, Named(rows, ["ant", "bee"], paths))
    assert (report.classes, report.targets, report.equal, report.differences) == (2, 2, 1, [])


def test_a_subset_of_a_dataset_without_a_length_is_compared() -> None:
    class Endless(Dataset[Any]):
        def __getitem__(self, row: int) -> Any:
            return picture(row), row

    assert compare(Subset(Endless(), [1, 2]), [(picture(n), n) for n in (1, 2)]).equal == 1


def test_a_gray_image_is_not_one_of_three_channels() -> None:
    gray = [(_image(n, 1), n) for n in range(3)]
    report = compare(gray, [(image.expand(3, -1, -1), n) for image, n in gray])
    assert (report.equal, report.differences) == (1, ["3 of 3 rows, row 0 of a first: 1 channel in a, 3 in b"])


# -- the command


def test_the_command_compares_what_pillow_decodes_whole(
    images: Path, cropped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", str(images), str(cropped)]) == 0
    said = capsys.readouterr().out
    assert f"a is {images}, b is {cropped}\n18 rows compared: 100% are equal" in said


def test_the_command_exits_1_where_the_folder_changed(
    images: Path, cropped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = Path(shutil.copytree(images, tmp_path / "changed"))
    (changed / "class1" / "000.jpg").unlink()
    shutil.copy(changed / "class0" / "000.jpg", changed / "class2" / "000.jpg")
    assert run(["compare", str(changed), str(cropped)]) == 1
    said = capsys.readouterr().out
    assert "a lacks 1 image: class1/000.jpg" in said
    assert "1 of 17 rows" in said


def test_the_command_refuses_images_of_another_store(
    images: Path, cropped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", str(images / "class0"), str(cropped)]) == 2
    assert "has no image of" in capsys.readouterr().err
    assert run(["compare", str(cropped), str(images)]) == 2
    said = capsys.readouterr().err
    assert run(["compare", str(cropped), str(images.parent / "nothing")]) == 1
    assert "Give the images first" not in capsys.readouterr().err
    assert f"{cropped} is a store, and {images} is not. Give the images first: pack compare {images} {cropped}" in said


def test_images_that_pack_rejected_are_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = make_tree(tmp_path / "images", each=2)
    (images / "class0" / "broken.jpg").write_text("x")
    pack(images, tmp_path / "out", size=32, max_rejects=1)
    assert run(["compare", str(images), str(tmp_path / "out")]) == 0
    (images / "class0" / "000.jpg").write_text("x")
    assert run(["compare", str(images), str(tmp_path / "out")]) == 1
    assert "class0/000.jpg cannot be compared" in capsys.readouterr().err


class _Given(Dataset[Any]):
    """Rows that a function gives."""

    def __init__(self, row: Callable[[int], Any]) -> None:
        self._row = row

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> Any:
        return self._row(row)


def _image(row: int, channels: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (channels, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(row))


def test_a_flip_of_some_images_is_drawn_at_random() -> None:
    torch.manual_seed(0)
    flipped = _Given(lambda row: (_image(row).flip(2) if torch.rand(()) < 0.5 else _image(row), row))
    for _ in range(10):
        report = compare(flipped, _Given(lambda row: (_image(row), row)), rows=40)
        assert (report.compared, report.targets, report.differences) == (0, 40, [])
        assert report.notes[-1] == "pixels were not compared: a draws at random. Give it the recipe of validation"
        assert str(report).startswith("0 rows compared\n")


@pytest.mark.parametrize("row", [{"image": 1}, (1, 2, 3), "image", 7], ids=str)
def test_rows_that_are_no_pair_are_refused(row: Any) -> None:
    with pytest.raises(TypeError, match=r"row 0 of b is a .*, expected \(image, target\)"):
        compare(_Given(lambda n: (_image(n), n)), _Given(lambda n: row))


def test_other_channels_and_targets_that_were_rounded() -> None:
    report = compare(_Given(lambda n: (_image(n), n / 10)), _Given(lambda n: (_image(n, 4), torch.tensor(n / 10))))
    assert report.differences == ["40 of 40 rows, row 0 of a first: 3 channels in a, 4 in b"]
    assert report.targets == 40
    nothing = compare(_Given(lambda n: (_image(n), None)), _Given(lambda n: (_image(n), n)))
    assert "no difference in counts and cuts" in str(nothing)
    assert any(note.startswith("targets were not compared") for note in nothing.notes)
