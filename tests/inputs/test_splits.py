"""Folders of splits: which names are splits, what is left out beside and inside them, as a folder, a zip, a tar or a URL."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_tree, photo, touch

from packer import ScanError, pack
from packer.cli.app import run
from packer.inputs.splits import split_folders
from reader import MemmapDataset


def _has_image(name: str) -> bool:
    return name not in ("annotations", "labels")


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train", "val", "valid", "test"], ["train", "val", "valid", "test"]),
        (["training", "validation", "testing"], ["training", "validation", "testing"]),
        (["dev", "eval", "train"], ["train", "dev", "eval"]),
        (["TEST", "Train"], ["Train", "TEST"]),
        (["train"], ["train"]),
        (["train", "annotations"], ["train"]),
        (["train", "val", "annotations", "labels"], ["train", "val"]),
        (["val", "test", "annotations"], ["val", "test"]),
        # a class may have such a name
        (["train", "plane"], [""]),
        (["val", "dev", "plane"], [""]),
        (["cat", "dog"], [""]),
        ([], [""]),
    ],
)
def test_these_folders_are_splits(names: list[str], splits: list[str]) -> None:
    assert split_folders(names, _has_image) == split_folders(reversed(names), _has_image) == splits


def test_two_folders_of_one_split_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScanError, match=r"^Train and train and val name one split twice\. Rename one of them"):
        split_folders(["train", "Train", "val"], _has_image)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Splits as they are found in the wild, beside what belongs to neither."""
    images = tmp_path / "images"
    make_tree(images / "train", classes=2, each=3)
    make_tree(images / "Validation", classes=2, each=2)
    for n, path in enumerate(sorted((images / "Validation").rglob("*.jpg"))):
        photo(60, 50, 900 + n).save(path)
    photo(30, 30, 1).save(images / "logo.png")
    touch(images, "annotations/instances.json", "README.md", "train/class0/.ipynb_checkpoints/x.jpg", ".DS_Store")
    touch(images, "train/@eaDir/y.jpg", "Validation/class0/._000.jpg")
    return images


def test_splits_are_found_beside_other_folders_and_the_first_line_says_so(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(mixed), str(tmp_path / "out"), "--size", "16"]) == 0
    captured = capsys.readouterr()
    assert f"{tmp_path}/out/Validation: 4 rows of 16 x 16 x 3, 2 classes" in captured.out
    assert "left out beside the splits: annotations, logo.png" in captured.err
    assert ".ipynb_checkpoints" in captured.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["Validation", "train"]
    assert len(MemmapDataset(tmp_path / "out/Validation")) == 4


# -- every command that takes a store takes the folder of splits


@pytest.fixture
def packed(mixed: Path, tmp_path: Path) -> Path:
    pack(mixed, tmp_path / "out", size=16)
    return tmp_path / "out"


def test_a_split_whose_pack_has_not_finished_is_not_passed_over(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (packed / "test/.packing").mkdir(parents=True)
    for words in (["verify"], ["info"], ["subset", "--fraction", "0.5"]):
        out = [str(packed.parent / "half")] if words[0] == "subset" else []
        assert run([words[0], str(packed), *out, *words[1:]]) == 1
        assert f"{packed / 'test'} " in capsys.readouterr().err


def test_merge_joins_split_by_split_in_one_class_list(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tree(tmp_path / "more/train", classes=3, each=1)
    pack(tmp_path / "more", tmp_path / "other", size=16)
    assert run(["merge", str(packed), str(tmp_path / "other"), str(tmp_path / "all")]) == 0
    train, val = (MemmapDataset(tmp_path / "all" / split) for split in ("train", "Validation"))
    # the list of both, though the validation images came from one of them alone
    assert train.classes == val.classes == ["class0", "class1", "class2"]
    assert (len(train), len(val)) == (9, 4)
    assert run(["merge", str(packed), str(tmp_path / "other/train"), str(tmp_path / "bad")]) == 1
    assert "cannot be merged: one is a store, the other a folder of splits" in capsys.readouterr().err
