"""`pack_dataset`: any map-style dataset of (image, target) becomes a store; what cannot is rejected with its reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import interrupted, make_tree, photo, store_bytes
from PIL import Image
from torch.utils.data import TensorDataset

from packer import OptionsError, PackError, ScanError, pack, pack_dataset
from packer.operations.verify import verify
from packer.sample_lines import read_json_lines
from reader import MemmapDataset


class Items:
    """A dataset of these items; an exception among them is raised."""

    def __init__(self, items: list[Any], **attributes: Any) -> None:
        self._items = items
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        if isinstance(self._items[index], Exception):
            raise self._items[index]
        return self._items[index]


def pixels(seed: int, size: tuple[int, ...] = (12, 16, 3)) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def reasons(out: Path) -> dict[str, str]:
    return {line["path"]: line["reason"] for line in read_json_lines(out / "rejected.jsonl")}


def test_pil_images_arrays_and_tensors_are_the_same_rows(tmp_path: Path) -> None:
    image = pixels(1)
    kinds = [Image.fromarray(image), image, torch.from_numpy(image).permute(2, 0, 1), image[:, ::-1][:, ::-1]]
    report = pack_dataset(Items([(kind, n) for n, kind in enumerate(kinds)]), tmp_path / "out", workers=1)
    assert (report.rows, report.size, report.classes) == (4, (12, 16), 4)
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert all(np.array_equal(row, image) for row in train.numpy())
    assert (train.classes, train.targets) == (["0", "1", "2", "3"], [0, 1, 2, 3])
    assert verify(tmp_path / "out").problems == []


@pytest.mark.parametrize(
    ("targets", "kind", "stored"),
    [
        ([2, -1, 0], "class", torch.tensor([2, -1, 0])),
        ([torch.tensor(1), np.int64(0), None], "class", torch.tensor([1, 0, -1])),
        ([0.5, 2, np.float32(0.1)], "regression", torch.tensor([[0.5], [2], [0.1]])),
        ([torch.tensor([0.5, 1.0]), (2, 3.5), [0.0, 4.0]], "regression", torch.tensor([[0.5, 1], [2, 3.5], [0, 4]])),
        ([np.array([0, 1], np.uint8), [True, False], [0, 0]], "multi-hot", torch.tensor([[0, 1], [1, 0], [0, 0]])),
    ],
)
def test_the_first_target_decides_the_kind_of_all(
    targets: list[Any], kind: str, stored: torch.Tensor, tmp_path: Path
) -> None:
    items = Items([(pixels(n), target) for n, target in enumerate(targets)])
    assert pack_dataset(items, tmp_path / "out", workers=1).target_kind == kind
    found = MemmapDataset(tmp_path / "out").store.targets
    assert torch.equal(found.to(stored.dtype), stored)


def test_items_that_are_none_are_rejected_with_the_reason(tmp_path: Path) -> None:
    good = (pixels(0), 1)
    bad: list[tuple[Any, str]] = [
        (KeyError("lost"), "the dataset raised KeyError: 'lost'"),
        (pixels(1), "it is uint8[12, 16, 3], expected an image and a target"),
        ((torch.rand(3, 12, 16), 1), "its image is float32[3, 12, 16], expected a PIL image, a uint8 array or a uint8"),
        ((pixels(1, (12, 16, 5)), 1), "its image is uint8[12, 16, 5], expected [H, W] or 1, 3 or 4 channels"),
        (("a.jpg", 1), "its image is str, expected a PIL image"),
        ((pixels(1), 2.5), "its target is 2.5, expected class below 2, as of the first item"),
        ((pixels(1), 2), "its target is 2, expected class below 2, as of the first item"),
        ((pixels(1, (8, 8, 3)), 1), "it has 8 x 8 pixels, the first item (16, 12); give a size"),
    ]
    items = Items([good, *(item for item, _ in bad), good], classes=["cat", "dog"])
    report = pack_dataset(items, tmp_path / "out", workers=2)
    assert (report.rows, report.rejected, report.too_many_rejects) == (2, 8, True)
    found = reasons(tmp_path / "out")
    assert sorted(map(int, found)) == list(range(1, 9))
    for number, (_, reason) in enumerate(bad, start=1):
        assert found[str(number)].startswith(reason)


def test_channels_and_resampling_are_as_in_pack(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", each=2)
    opened = []
    for path in sorted(images.rglob("*.jpg")):
        with Image.open(path) as image:
            opened.append((image.convert("RGB"), 0))
    options: dict[str, Any] = {"size": 24, "fit": "inside", "channels": "gray", "resample": "box", "workers": 1}
    pack_dataset(Items(opened), tmp_path / "out", **options)
    pack(images, tmp_path / "folder", **options)
    ours, theirs = (MemmapDataset(tmp_path / name, as_tuple=False).store for name in ("out", "folder"))
    # a folder's JPEGs become gray in one step from YCbCr's own libjpeg, not from RGB: within a level of rounding
    assert (ours.images.int() - theirs.images.int()).abs().max() <= 1
    assert torch.equal(ours.content, theirs.content)


def test_a_dataset_of_tensors_packs_as_it_is(tmp_path: Path) -> None:
    tensors = TensorDataset(torch.from_numpy(pixels(3, (30, 3, 8, 8))), torch.arange(30) % 3)
    pack_dataset(tensors, tmp_path / "tensors", shuffle=5, workers=2)
    train = MemmapDataset(tmp_path / "tensors", as_tuple=False)
    indices = [int(path) for path, _ in train.samples]
    assert sorted(indices) == list(range(30)) != indices
    assert torch.equal(train.store.images, tensors.tensors[0][indices])
    assert train.targets == (torch.arange(30) % 3)[indices].tolist()


def test_dicts_with_image_and_label_pack_with_the_names_of_the_feature(tmp_path: Path) -> None:
    items = [{"image": Image.fromarray(pixels(n)), "label": n % 2, "image_file_path": f"{n}.jpg"} for n in range(4)]
    # as datasets.Features has them: a mapping of columns, and a ClassLabel with names
    features = {"image": object(), "label": SimpleNamespace(names=["cat", "dog"])}
    pack_dataset(Items(items, features=features), tmp_path / "out", workers=1)
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert (train.classes, train.targets) == (["cat", "dog"], [0, 1, 0, 1])
    assert np.array_equal(train.numpy()[3], pixels(3))
    # a label without names, and an item that lacks its label
    mixed = Items([items[0], items[1], {"image": items[2]["image"]}], features={"label": object()})
    pack_dataset(mixed, tmp_path / "plain", workers=1, max_rejects=1)
    assert MemmapDataset(tmp_path / "plain").classes == ["0", "1"]
    assert "it is a dict of image, expected image and label" in reasons(tmp_path / "plain")["2"]


def test_rows_cannot_have_sizes_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="fit 'none' needs to know all sizes before"):
        pack_dataset([(pixels(0), 1)], tmp_path / "out", fit="none")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "the dataset is empty"),
        ([(1, 2)], "the first item cannot be packed: its image is int"),
        ([pixels(0)], "the first item cannot be packed: it is uint8"),
        (
            [(pixels(0), "cat")],
            "the first item cannot be packed: its target is cat, expected a class's number, or a list",
        ),
        ([{"img": 1, "label": 2}], "it is a dict of img, label, expected image and label; rename the column of images"),
        ([(pixels(0), {"a": 1})], "the first item cannot be packed: its target is {'a': 1}, expected"),
        ([(pixels(0), np.zeros((2, 2)))], r"the first item cannot be packed: its target is \[\[0.0, 0.0\], \[0.0"),
    ],
)
def test_a_dataset_that_is_none_ends_the_pack_before_it_begins(items: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ScanError, match=message):
        pack_dataset(Items(items), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_classes_that_are_no_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScanError, match="holds no list of class names"):
        pack_dataset(Items([(pixels(0), 0)], classes=[3, 4]), tmp_path / "out")
    with pytest.raises(OptionsError, match="there are 1 classes, the first target has 2 values"):
        pack_dataset(Items([(pixels(0), [0, 1])]), tmp_path / "out", classes=["a"])


def test_workers_and_interruptions_give_the_same_bytes(tmp_path: Path) -> None:
    items: list[Any] = [(photo(20, 16, n), n % 4) for n in range(40)]
    items[7] = OSError("bad sector")
    dataset = Items(items)

    options: dict[str, Any] = {"size": 16, "max_rejects": "5%"}
    pack_dataset(dataset, tmp_path / "full", workers=1, **options)
    interrupted(pack_dataset, dataset, tmp_path / "out", workers=2, **options, inputs=16)
    with pytest.raises(PackError, match="was started with other inputs"):
        pack_dataset(Items([(photo(20, 16, 99), 0), *items[1:]]), tmp_path / "out", **options)
    report = pack_dataset(dataset, tmp_path / "out", workers=1, **options)
    assert (report.rows, report.resumed_from >= 16) == (39, True)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "full")
    assert pack_dataset(dataset, tmp_path / "out", **options).rows == 39


@pytest.mark.slow
def test_a_dataset_pickles_to_spawned_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.workers.processes.MOST_FORKING_THREADS", 0)
    tensors = TensorDataset(torch.from_numpy(pixels(3, (4, 3, 8, 8))), torch.arange(4))
    pack_dataset(tensors, tmp_path / "out", workers=1)
    assert torch.equal(MemmapDataset(tmp_path / "out").store.images, tensors.tensors[0])
