"""MemmapDataset: indexing, subsets, what ImageFolder has, pickling, and torch's DataLoader around it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_tree
from torch.utils.data import ConcatDataset, DataLoader, Subset

from packer import pack
from reader import (
    Compose,
    MemmapDataset,
    MemmapLoader,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    StoreError,
)


@pytest.fixture
def train(shared_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store, as_tuple=False)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (90, "row 90 is out of range: .* has 90 rows"),
        (-91, "row -91 is out of range"),
        ([0, 90], "row 90 is out of range"),
        ([[1]], r"the index is \[\[1\]\], expected an integer, a slice, a list of rows or a mask of 90 rows"),
        ([0.5], r"the index is \[0.5\], expected an integer"),
        ([True, False], r"the index is \[True, False\], expected an integer"),
        *((index, f"the index is .*{index}.*, expected an integer, a slice") for index in ("7", True, 3.7, None)),
        *((index, "expected an integer, a slice") for index in (torch.tensor(3.7), np.float64(3.0))),
        *((index, r"row \d+ is out of range") for index in (2**63, [2**63], np.array([2**64 - 1], np.uint64))),
    ],
)
def test_wrong_rows_are_refused(train: MemmapDataset, index: Any, text: str) -> None:
    with pytest.raises(IndexError, match=text):
        train[index]


@pytest.mark.parametrize("index", [torch.tensor(7), np.int32(7)], ids=repr)
def test_a_number_of_torch_or_numpy_is_a_row(train: MemmapDataset, index: Any) -> None:
    assert torch.equal(train[index].pixels, train[7].pixels)


def test_it_has_what_image_folder_has(train: MemmapDataset) -> None:
    assert train.classes == ["class0", "class1", "class2"]
    assert train.class_to_idx == {"class0": 0, "class1": 1, "class2": 2}
    assert train.targets == [0] * 30 + [1] * 30 + [2] * 30
    assert train.samples[31] == ("class1/001.jpg", 1)
    assert train.imgs == train.samples
    assert train.samples is train.samples  # read once, so that a loop over samples[i] is no loop over the file
    assert train.source(31)["path"] == "class1/001.jpg"
    assert train.source(-1) == json.loads((train.path / "samples.jsonl").read_text().splitlines()[-1])
    assert train.manifest.rows == len(train) == 90
    with pytest.raises(IndexError):
        train.source(90)


def test_a_subset_keeps_store_rows(train: MemmapDataset) -> None:
    part = train.subset([40, 2, 7]).subset([2, 0])
    assert len(part) == 2
    assert part[[0, 1]].rows.tolist() == [7, 40]
    assert train.targets[:1] == [0]
    assert part.targets == [0, 1]
    assert part.samples[1] == train.samples[40]
    assert part.source(1)["path"] == train.samples[40][0]
    assert train.subset(slice(10, 20))[:].pixels.data_ptr() == train.store.pixels[10:].data_ptr()
    part = train.subset(train.store.targets == 1)
    assert (part.targets, part.classes) == ([1] * 30, train.classes)
    assert part.store is train.store
    assert part.split(0.5, stratify=True)[0].targets == [1] * 15
    assert "30 rows of uint8[32, 32, 3], 3 classes" in repr(part)
    assert train.subset(slice(None, None, -1)).targets == train.targets[::-1]
    with pytest.raises(ValueError, match="as_pil and target_transform need as_tuple=True"):
        MemmapDataset(train.path, target_transform=int, as_tuple=False)


@pytest.mark.parametrize("stratify", [False, True])
def test_split_is_repeatable(train: MemmapDataset, stratify: bool) -> None:
    a, b = train.split(0.9, seed=3, stratify=stratify)
    assert len(a) == 81
    assert train.split(0.9, seed=3, stratify=stratify)[1][:].rows.tolist() == b[:].rows.tolist()
    assert train.split(0.9, seed=4, stratify=stratify)[1][:].rows.tolist() != b[:].rows.tolist()
    if stratify:
        assert [b.targets.count(c) for c in range(3)] == [3, 3, 3]


def test_wrong_splits_are_refused(train: MemmapDataset) -> None:
    for fraction in (0, 1, 1.5, float("nan"), "x"):
        with pytest.raises(ValueError, match=f"fraction is {fraction!r}, expected a number between 0 and 1"):
            train.split(fraction)
    for stratify in (False, True):
        assert [len(part) for part in train.subset([]).split(0.5, stratify=stratify)] == [0, 0]


def test_numpy_shares_the_stores_memory(train: MemmapDataset) -> None:
    pixels = train.numpy()
    assert pixels.shape == (90, 32, 32, 3)
    assert np.shares_memory(pixels, train.store.pixels.numpy())
    with pytest.raises(ValueError, match="read-only"):
        pixels[0] = 0


def test_it_pickles_to_a_path(train: MemmapDataset) -> None:
    data = pickle.dumps(train)
    assert len(data) < 1000
    again = pickle.loads(data)
    assert torch.equal(again[[4, 80]].pixels, train[[4, 80]].pixels)
    part = pickle.loads(pickle.dumps(train.subset([5, 3])))
    assert part[:].rows.tolist() == [5, 3]


def test_a_pickle_of_a_replaced_store_is_refused(store: Path, golden: Path) -> None:
    data = pickle.dumps(MemmapDataset(store, as_tuple=False))
    shutil.rmtree(store)
    shutil.copytree(golden, store)
    with pytest.raises(StoreError, match="was packed again since this dataset was pickled"):
        pickle.loads(data)


@pytest.fixture
def golden() -> Path:
    return Path(__file__).parents[1] / "golden" / "v1.0"


def test_as_tuple_and_transforms_are_image_folders(shared_store: Path) -> None:
    assert type(MemmapDataset(shared_store)[35][1]) is int
    seen = []

    def transform(image: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(image.shape))
        return image.float() / 255

    changed = MemmapDataset(shared_store, transform=transform, target_transform=lambda t: t + 10)
    image, target = changed[35]
    assert image.dtype == torch.float32
    assert target == 11
    images, targets = next(iter(DataLoader(changed, batch_size=4)))
    assert images.dtype == torch.float32
    assert targets.tolist() == [10] * 4
    assert seen == [(3, 32, 32)] * 5
    for index in ([35, 2], slice(35, 37)):
        images, targets = changed[index]
        assert images.dtype == torch.float32
        assert targets.tolist()[0] == 11


# -- torch's own DataLoader


def _where_it_is(batch: Any) -> tuple[bool, Any]:
    return batch.pixels.is_shared(), batch


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_worker_gathers_straight_into_shared_memory(train: MemmapDataset) -> None:
    def loader(workers: int) -> DataLoader[Any]:
        context = "fork" if workers else None
        return DataLoader(
            train, batch_size=45, num_workers=workers, collate_fn=_where_it_is, multiprocessing_context=context
        )

    # asked before it is sent: torch copies what is elsewhere
    assert [is_shared for is_shared, _ in loader(0)] == [False, False]
    assert [is_shared for is_shared, _ in loader(1)] == [True, True]
    assert torch.equal(torch.cat([batch.pixels for _, batch in loader(1)]), train.store.pixels)


def test_torchs_wrappers_reach_a_spawned_worker(shared_store: Path) -> None:
    pairs = MemmapDataset(shared_store)
    both = ConcatDataset([pairs, Subset(pairs, [5, 80])])
    loader = torch.utils.data.DataLoader(both, batch_size=100, num_workers=1, multiprocessing_context="spawn")
    images, targets = next(iter(loader))
    assert images.shape == (92, 3, 32, 32)
    assert targets.tolist() == [*pairs.targets, pairs.targets[5], pairs.targets[80]]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"size": 32, "fit": "pad"}, ["pixels", "targets", "content"]),
        ({"fit": "none"}, ["pixels", "targets", "offsets", "shapes"]),
    ],
)
def test_a_store_cut_short_is_named_by_every_gather(
    options: dict[str, Any], names: list[str], images: Path, tmp_path: Path
) -> None:
    pack(images, tmp_path / "out", workers=1, **options)
    for name in names:
        store = Path(shutil.copytree(tmp_path / "out", tmp_path / name))
        data = MemmapDataset(store, as_tuple=False)
        os.truncate(store / f"_tensordict/{name}.memmap", 3)
        for gather in (
            lambda data=data: data[1],
            lambda data=data: data[[1, 2]],
            lambda data=data: data.__getitems__([3]),
            lambda data=data: next(iter(DataLoader(data, 24, num_workers=1, multiprocessing_context="fork"))),
            lambda data=data: next(iter(MemmapLoader(data, 8, as_tuple=False))),
        ):
            with pytest.raises(StoreError, match=rf"{name}\.memmap has 3 bytes, it had \d+ when it was opened\. Copy"):
                gather()


@pytest.mark.parametrize("as_tuple", [False, True])
def test_batches_of_a_dataloader_are_recycled_and_kept_ones_never_overwritten(
    shared_store: Path, as_tuple: bool
) -> None:
    train = MemmapDataset(shared_store, as_tuple=as_tuple)
    loader = DataLoader(train, batch_size=20, shuffle=True, drop_last=True)
    kept = []
    for step, batch in enumerate(batch for _ in range(6) for batch in loader):
        images = batch[0] if as_tuple else batch.images
        if step % 4 == 1:
            view = images[7].numpy()[:, 3:]
            kept.append((view, view.copy()))
        else:
            images.fill_(step)  # what shares memory with another batch is seen
        del batch, images
    assert len(kept) == 6
    assert all(np.array_equal(view, then) for view, then in kept)
    assert train._pool.allocated <= 2 + len(kept)


def test_lists_of_rows_do_not_stay_in_memory(train: MemmapDataset) -> None:
    for _ in DataLoader(train, batch_size=30):
        pass
    assert train._pool.allocated <= 2
    train[list(range(80))]
    train.subset([3, 4, 8])[:]
    assert train._pool.allocated == 2


@pytest.mark.skipif(not hasattr(Exception, "add_note"), reason="errors have notes from Python 3.11 on")
@pytest.mark.parametrize("read", [lambda d: d[1], lambda d: d.__getitems__([0, 1]), list, lambda d: d[:2]])
def test_an_error_of_a_transform_names_its_row(shared_store: Path, read: Any) -> None:
    def failing(image: Any) -> Any:
        if image.sum() == sums[1]:
            raise ValueError("no")
        return image

    data = MemmapDataset(shared_store).subset([5, 7])
    sums = [image.sum() for image, _ in data]
    data.transform = failing
    with pytest.raises(ValueError, match="no") as caught:
        read(data)
    assert caught.value.__notes__ == [f"The transform failed on these rows of {data.path}: [7]"]


def test_a_source_is_never_that_of_another_store(tmp_path: Path, store: Path) -> None:
    data = MemmapDataset(store)
    path = data.source(0)["path"]
    shutil.copytree(store, tmp_path / "same")
    store.rename(tmp_path / "old")
    (tmp_path / "same").rename(store)
    assert data.source(0)["path"] == path
    shutil.rmtree(store)
    make_tree(tmp_path / "others", classes=1)
    pack(tmp_path / "others", store, size=32)
    for _ in range(2):
        with pytest.raises(StoreError, match="was packed again since this dataset was opened"):
            data.source(1)
    shutil.rmtree(store)
    with pytest.raises(StoreError):
        data.source(1)


@pytest.mark.parametrize("index", [slice(5, 5), []])
def test_no_rows_are_an_empty_batch_and_no_batch_of_samples(shared_store: Path, index: Any) -> None:
    recipe = Compose([RandomResizedCrop(16), RandomHorizontalFlip(1), RandomVerticalFlip(1), Normalize([0.5], [0.5])])
    images, targets = MemmapDataset(shared_store, transform=recipe)[index]
    assert (tuple(images.shape), tuple(targets.shape)) == ((0, 3, 16, 16), (0,))
    for options in ({"as_pil": True}, {"transform": lambda image: image}):
        with pytest.raises(ValueError, match="there are no rows to join"):
            MemmapDataset(shared_store, **options)[index]


def test_samples_of_several_sizes_are_refused(shared_store: Path) -> None:
    data = MemmapDataset(shared_store, transform=lambda image: image[:, : 4 + int(image[0, 0, 0]) % 5])
    with pytest.raises(RuntimeError, match="equal size"):
        data[0:20]


def test_a_share_may_be_a_number_of_numpy(train: MemmapDataset) -> None:
    first, rest = train.split(np.float32(0.5), seed=0)
    assert len(first) == len(rest) == 45
