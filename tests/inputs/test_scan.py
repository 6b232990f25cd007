"""Which inputs are found, in which order: ImageFolder's rules, checked against the real one where it can be imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import make_tree, torchvision_or_skip, touch

from packer.errors import ScanError
from packer.inputs.class_lists import load_classes
from packer.inputs.scan import scan

ODD_NAMES = (
    "b/z.jpg",
    "b/A.JPG",
    "b/sub/1.png",
    "b/sub-2/1.png",
    "b/sub/deeper/x.webp",
    "a b/ü.jpeg",
    "a b/10.jpg",
    "a b/9.jpg",
    "Z/notes.txt",
    "Z/x.tiff",
    "10/a.jpg",
    "9/a.ppm",
)


def test_classes_order_and_targets_are_image_folders(tmp_path: Path) -> None:
    reference = torchvision_or_skip().datasets.ImageFolder(str(touch(tmp_path, *ODD_NAMES)))
    inputs = scan(tmp_path)[""]
    assert list(inputs.classes) == reference.classes
    assert [str(tmp_path / path) for path in inputs.paths] == [path for path, _ in reference.samples]
    assert inputs.targets.tolist() == reference.targets
    assert inputs.ignored == 1


def test_folders_that_link_to_each_other_are_listed_once_in_each_class(tmp_path: Path) -> None:
    """Each path that repeats no folder would be 13,700 for 7 folders."""
    count = 7
    images = touch(tmp_path, *(f"c{i}/a.jpg" for i in range(count)))
    for i in range(count):
        for j in range(count):
            if i != j:
                (images / f"c{i}/to{j}").symlink_to(f"../c{j}", target_is_directory=True)
    inputs = scan(images)[""]
    packed = [path for i, path in enumerate(inputs.paths) if i not in inputs.refused]
    assert len(packed) == count * count
    assert len(inputs.refused) <= count**3
    assert any("is listed already" in reason for reason in inputs.refused.values())


def test_a_folder_keeps_its_own_name_where_a_link_leads_there_too_and_a_link_to_the_root_is_a_loop(
    tmp_path: Path,
) -> None:
    images = touch(tmp_path, "a/real/1.jpg", "b/2.jpg")
    (images / "a" / "alias").symlink_to("real", target_is_directory=True)
    (images / "a" / "other").symlink_to("../b", target_is_directory=True)
    (images / "b" / "all").symlink_to("..", target_is_directory=True)
    inputs = scan(images)[""]
    assert inputs.paths[:] == ["a/alias", "a/other/2.jpg", "a/other/all", "a/real/1.jpg", "b/2.jpg", "b/all"]
    assert list(inputs.refused) == [0, 2, 5]
    assert all("it is a folder that is listed already" in reason for reason in inputs.refused.values())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: p / "missing", "missing does not exist. Expected a folder of images"),
        (lambda p: touch(p, "file.jpg") / "file.jpg", "is a file. Expected a folder of images"),
        (lambda p: p, r"holds no image \(0 files seen\). Expected .*<class>"),
    ],
)
def test_what_cannot_be_scanned_is_named(tmp_path: Path, make: Any, text: str) -> None:
    with pytest.raises(ScanError, match=text):
        scan(make(tmp_path))


def test_a_store_is_no_folder_of_images(shared_store: Path) -> None:
    with pytest.raises(ScanError, match=r"is a store, packed already. Expected a folder of images; pack subset .* OUT"):
        scan(shared_store)


def test_a_class_list_can_be_imposed(tmp_path: Path, shared_store: Path) -> None:
    images = make_tree(tmp_path / "images", classes=2, each=1)
    assert load_classes(str(shared_store)) == ("class0", "class1", "class2")
    (tmp_path / "list.txt").write_text("class1\nother\nclass0\n")
    inputs = scan(images, classes=load_classes(str(tmp_path / "list.txt")))[""]
    assert inputs.targets.tolist() == [2, 0]
    with pytest.raises(ScanError, match="has the class 'class0' that classes does not list"):
        scan(images, classes=("class1",))


def test_a_class_list_of_a_damaged_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"classes": ["a", "b"]}')
    with pytest.raises(ScanError, match=r"classes=.* cannot be read: .*manifest\.json"):
        load_classes(str(tmp_path))


def test_shuffle_is_a_permutation_fixed_by_the_seed(tmp_path: Path) -> None:
    inputs = scan(touch(tmp_path, *(f"a/{n}.jpg" for n in range(20)), "stray.jpg"))[""]
    one, again, other = inputs.shuffled(1), inputs.shuffled(1), inputs.shuffled(2)
    assert one.paths[:] == again.paths[:] != other.paths[:]
    assert sorted(one.paths) == sorted(inputs.paths)
    assert [one.paths[i] for i in one.refused] == ["stray.jpg"]
