"""A MemmapDataset in a program that was written for torchvision's ImageFolder: the same samples, batches and attributes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import photo, torchvision_or_skip
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset, default_collate, random_split
from torch.utils.data._utils.collate import default_convert

from packer import pack
from reader import MemmapDataset, StoreError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 PNGs of 32 x 32 in 3 class folders, and beside them the store of the same pixels."""
    root = tmp_path_factory.mktemp("folder")
    for n in range(12):
        path = root / "images" / f"class{n % 3}" / f"{n:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(32, 32, n).save(path)
    pack(root / "images", root / "out", size=32, workers=1)
    return root


@pytest.fixture
def pair(folder: Path) -> tuple[Any, MemmapDataset]:
    """ImageFolder with uint8 tensors, and ours."""
    torchvision = torchvision_or_skip()
    to_tensor = torchvision.transforms.PILToTensor()
    return torchvision.datasets.ImageFolder(str(folder / "images"), to_tensor), MemmapDataset(folder / "out")


def same(one: Any, other: Any) -> bool:
    """Whether two batches hold the same: tensors, numbers and strings, in whatever kind of sequence or mapping."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def filtered(rows: Any) -> Any:
    return default_collate([row for n, row in enumerate(rows) if n != 1])


def columns(rows: Any) -> Any:
    images, targets = zip(*rows, strict=True)
    return torch.stack(images), list(targets)


COLLATES = {
    "default": default_collate,
    "filtered": filtered,
    "columns": columns,
    "rows": list,
    "convert": lambda rows: default_convert(list(rows)),
}
PARTS: dict[str, Any] = {
    "all": lambda data: data,
    "Subset": lambda data: Subset(data, [7, 3, 3, 0, 11]),
    "Subset of a Subset": lambda data: Subset(Subset(data, range(10)), [9, 2, 4]),
    "random_split": lambda data: random_split(data, [5, 7], torch.Generator().manual_seed(3))[1],
    "ConcatDataset": lambda data: ConcatDataset([data, Subset(data, [4, 2])]),
}


# one of each is enough in workers
CASES = [(part, collate, 0) for part in PARTS for collate in COLLATES]
CASES += [("all", "rows", 2), ("Subset", "default", 2), ("ConcatDataset", "columns", 2)]


@pytest.mark.parametrize(("part", "collate", "workers"), CASES)
def test_batches_are_those_of_image_folder(pair: Any, part: str, collate: str, workers: int) -> None:
    theirs, ours = (
        list(DataLoader(PARTS[part](data), batch_size=4, num_workers=workers, collate_fn=COLLATES[collate]))
        for data in pair
    )
    assert len(theirs) == len(ours)
    for one, other in zip(theirs, ours, strict=True):
        assert same(one, other)


def test_fast_collate_of_timm_gives_what_it_gives_of_image_folder(pair: Any) -> None:
    torchvision_or_skip()
    fast_collate = pytest.importorskip(
        "timm.data.loader", reason="timm is not installed: pip install timm"
    ).fast_collate
    theirs, ours = (list(DataLoader(data, batch_size=5, collate_fn=fast_collate)) for data in pair)
    assert all(map(same, theirs, ours))


def test_attributes_are_those_of_image_folder(pair: Any, folder: Path) -> None:
    theirs, ours = pair
    for name in ("classes", "class_to_idx", "targets"):
        assert getattr(ours, name) == getattr(theirs, name)
    below = [(os.path.relpath(path, theirs.root), target) for path, target in theirs.samples]
    assert ours.samples == ours.imgs == below
    assert (type(ours.root), ours.root) == (str, str(folder / "out"))
    assert (ours.transform, ours.target_transform) == (None, None)
    path, _ = ours.samples[5]
    assert torch.equal(ours.loader(path), ours[5][0])
    image = MemmapDataset(folder / "out", as_pil=True).loader(path)
    assert np.array_equal(image, theirs.loader(theirs.samples[5][0]))
    with pytest.raises(KeyError, match="no row of .* came from 'nothing.png'"):
        ours.loader("nothing.png")


def test_a_subclass_that_reads_samples_by_the_loader_works(folder: Path) -> None:
    class WithPaths(MemmapDataset):
        def __getitem__(self, index: Any) -> Any:
            path, target = self.samples[index]
            return self.loader(path), target, path

    data = WithPaths(folder / "out")
    image, target, path = data[4]
    assert torch.equal(image, MemmapDataset(folder / "out")[4][0])
    assert (target, path) == data.samples[4][::-1]


def test_as_pil_gives_programs_with_pil_transforms_what_image_folder_gives(folder: Path) -> None:
    v1 = torchvision_or_skip().transforms
    recipe = v1.Compose([v1.Resize(40), v1.CenterCrop(28), v1.ColorJitter(0), v1.ToTensor(), v1.Normalize(0.5, 0.25)])
    theirs = torchvision_or_skip().datasets.ImageFolder(str(folder / "images"), recipe)
    ours = MemmapDataset(folder / "out", transform=recipe, as_pil=True)
    assert isinstance(MemmapDataset(folder / "out", as_pil=True)[0][0], Image.Image)
    for data in (ours, pickle.loads(pickle.dumps(ours)), ours.subset(range(12))):
        for one, other in zip(DataLoader(theirs, batch_size=5), DataLoader(data, batch_size=5), strict=True):
            assert same(one, other)
    images, targets = MemmapDataset(folder / "out", as_pil=True)[2:4]
    assert [image.mode for image in images] == ["RGB"] * 2
    assert targets.tolist() == ours.targets[2:4]


@pytest.mark.parametrize(("channels", "mode"), [("gray", "L"), ("rgba", "RGBA")])
def test_as_pil_knows_gray_and_transparent_images(folder: Path, tmp_path: Path, channels: str, mode: str) -> None:
    pack(folder / "images", tmp_path / "out", size=32, channels=channels, workers=1)
    image, _ = MemmapDataset(tmp_path / "out", as_pil=True)[3]
    pixels = MemmapDataset(tmp_path / "out")[3][0]
    assert image.mode == mode
    assert np.array_equal(np.asarray(image).reshape(32, 32, -1), pixels.movedim(0, -1))


def test_a_split_is_one_of_the_stores_in_a_folder(folder: Path, tmp_path: Path) -> None:
    for name in ("train", "val"):
        (tmp_path / "images" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "images" / name).symlink_to(folder / "images")
    pack(tmp_path / "images", tmp_path / "out", size=32, workers=1)
    val = MemmapDataset(tmp_path / "out", split="val")
    assert val.path == tmp_path / "out" / "val"
    assert pickle.loads(pickle.dumps(val)).path == val.path
    for split in ("test", "validation", "..", "val/../train"):
        with pytest.raises(StoreError, match="has no split '.*': it holds train, val"):
            MemmapDataset(tmp_path / "out", split=split)
    with pytest.raises(StoreError, match="is one store, without splits. Leave split='train' out"):
        MemmapDataset(val.path, split="train")
    with pytest.raises(StoreError, match="has no split 'train': it holds no store"):
        MemmapDataset(tmp_path, split="train")
    with pytest.raises(StoreError, match="holds 2 stores"):
        MemmapDataset(tmp_path / "out")


def test_transforms_of_torchvision_see_the_image_in_a_row(folder: Path) -> None:
    v2 = torchvision_or_skip().transforms.v2
    data = MemmapDataset(folder / "out")
    (rows,) = DataLoader(data, batch_size=12, collate_fn=lambda rows: rows)
    image, target = v2.RandomHorizontalFlip(1.0)(rows[3])
    assert torch.equal(image, data[3][0].flip(-1))
    assert target == data[3][1]


def test_rows_of_a_batch_pickle(folder: Path) -> None:
    for as_tuple in (True, False):
        data = MemmapDataset(folder / "out", as_tuple=as_tuple)
        rows = pickle.loads(pickle.dumps(data.__getitems__([3, 1])))
        assert len(rows) == 2
        assert torch.equal(rows[1][0] if as_tuple else rows[1].images, MemmapDataset(folder / "out")[1][0])
