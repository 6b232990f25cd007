"""What loops and indexing give: plain tuples, by name where rows have several targets; ImageBatches where asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Tune, devices, make_tree, photo
from PIL import Image
from test_boxes import coco
from torch.utils.data import DataLoader, Subset

from packer import pack
from reader import ImageBatch, MemmapDataset, MemmapLoader, RaggedBatch, RandomResizedCrop

COUNT = 6


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images, a mask and one or two boxes each, and a list with two target columns and a further one."""
    root = tmp_path_factory.mktemp("sources")
    for folder in ("images", "masks"):
        (root / folder).mkdir()
    lines = ["path,kind,color,weight"]
    for n in range(COUNT):
        photo(40 + n, 50, n).save(root / "images" / f"{n}.png")
        Image.new("L", (40 + n, 50), n).save(root / "masks" / f"{n}.png")
        lines.append(f"{n}.png,{'ab'[n % 2]},{'rg'[n // 3]},{n / 4}")
    (root / "images" / "list.csv").write_text("\n".join(lines) + "\n")
    boxes = [(f"{n}.png", [3.0 * k, 5.0, 20.0, 15.0]) for n in range(COUNT) for k in range(n % 2 + 1)]
    coco(root / "coco.json", {f"{n}.png": (40 + n, 50) for n in range(COUNT)}, boxes)
    return root


def own_rows(images: Path, out: Path) -> Path:
    pack(make_tree(images, each=8), out, fit="none", workers=1)
    return out


@pytest.fixture(scope="module")
def own_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 rows with sizes of their own."""
    root = tmp_path_factory.mktemp("own")
    return own_rows(root / "images", root / "out")


def test_boxes_and_masks_come_by_name(sources: Path, tmp_path: Path) -> None:
    pack(sources / "images", tmp_path / "out", size=32, boxes=sources / "coco.json", masks=sources / "masks", workers=1)
    train, batches = MemmapDataset(tmp_path / "out"), MemmapDataset(tmp_path / "out", as_tuple=False)
    names = {"targets", "boxes", "box_count", "box_targets", "masks"}
    image, named = train[1]
    assert (image.shape, set(named), named["targets"]) == ((3, 32, 32), names, batches[1].targets.item())
    assert torch.equal(named["boxes"], batches[1].extras["boxes"])
    for images, found in (train[1:4], train[[1, 2, 3]], next(iter(DataLoader(train.subset([1, 2, 3]), 3)))):
        assert type(found) is dict
        assert set(found) == names
        assert torch.equal(images, batches[1:4].images)
        assert torch.equal(found["masks"], batches[1:4].extras["masks"])
    workers = DataLoader(train, 3, num_workers=2)
    assert torch.equal(torch.cat([found["boxes"] for _, found in workers]), batches.store.extras["boxes"])
    crop = RandomResizedCrop(16)
    (images, found), batch = (
        next(iter(MemmapLoader(train, 4, seed=0, transform=crop, as_tuple=t))) for t in (True, False)
    )
    assert torch.equal(images, batch.images)
    assert all(torch.equal(found[name], batch.extras[name]) for name in names - {"targets"})


def test_rows_with_sizes_of_their_own_come_as_a_list_until_a_transform_makes_one_size(own_sizes: Path) -> None:
    own = MemmapDataset(own_sizes)
    assert own[3][0].shape != own[4][0].shape
    for images, targets in (own[3:6], own[[3, 4, 5]], next(iter(MemmapLoader(own.subset([3, 4, 5]), 3)))):
        assert type(images) is list
        assert [image.dtype for image in images] == [torch.uint8] * 3
        assert all(torch.equal(image, own[n][0]) for image, n in zip(images, (3, 4, 5), strict=True))
        assert targets.tolist() == own.targets[3:6]
    images, _ = next(iter(MemmapLoader(own, 4, transform=RandomResizedCrop(16))))
    assert images.shape == (4, 3, 16, 16)
    batch = next(iter(MemmapLoader(own, 4, as_tuple=False)))
    assert isinstance(batch, RaggedBatch)
    for images, _ in DataLoader(own, 5, num_workers=2):
        assert type(images) is list


def test_masks_of_rows_with_sizes_of_their_own_are_a_list(sources: Path, tmp_path: Path) -> None:
    pack(sources / "images", tmp_path / "out", fit="none", masks=sources / "masks", workers=1)
    own = MemmapDataset(tmp_path / "out")
    images, named = next(iter(MemmapLoader(own, COUNT)))
    assert [mask.shape for mask in named["masks"]] == [image.shape[1:] for image in images]
    assert [int(mask.max()) for mask in named["masks"]] == list(range(COUNT))
    assert torch.equal(own[2][1]["masks"], named["masks"][2])
    images, named = next(iter(MemmapLoader(own, COUNT, transform=RandomResizedCrop(16))))
    assert named["masks"].shape == (COUNT, 16, 16)


def test_what_else_a_transform_returns_goes_to_the_loop_as_it_is(shared_store: Path) -> None:
    train = MemmapDataset(shared_store)
    seen = []

    def transform(batch: Any) -> Any:
        seen.append(type(batch))
        return {"mine": batch.images.float()}

    assert set(next(iter(MemmapLoader(train, 4, transform=transform)))) == {"mine"}
    assert set(seen) == {ImageBatch}


def stamp(batch: Any) -> tuple[int, int, int]:
    return tuple(batch.origin.reshape(-1, 3)[0].tolist())


RESIDENCIES = ["cache", "disk", "gpu"]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("residency", "prefetch"), [*((name, 2) for name in RESIDENCIES), ("cache", 0)])
def test_a_batch_says_its_epoch_position_and_seed(
    shared_store: Path, device: str, residency: str, prefetch: int, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = MemmapDataset(shared_store)
    if residency == "gpu":  # on a CPU its own memory stands for a device's
        tune(shuffle_block_bytes=3 * train.manifest.row_bytes, shuffle_window_blocks=2)
        monkeypatch.setattr("reader.loading.gathering.ROW_DEVICES", ("cpu", "cuda"))
    options: dict[str, Any] = {"shuffle": "block", "seed": 5, "device": device, "as_tuple": False}
    loader = MemmapLoader(train, 20, residency=residency, prefetch=prefetch, **options)
    for epoch in range(2):
        assert [stamp(batch) for batch in loader] == [(epoch, position, 5) for position in (0, 20, 40, 60, 80)]
    loader.load_state_dict(loader.state_dict() | {"position": 40})
    assert stamp(next(iter(loader))) == (2, 40, 5)


def test_samplers_of_two_ranks_never_stand_at_one_position(shared_store: Path) -> None:
    train = MemmapDataset(shared_store)
    positions = []
    for rank in range(2):
        options: dict[str, Any] = {"sampler": [7] * 30, "rank": rank, "world_size": 2, "as_tuple": False}
        for batch in MemmapLoader(train, 8, **options):
            positions += batch.origin[:, 1].tolist()
    assert len(set(positions)) == len(positions) == 60


@pytest.mark.parametrize("workers", [0, 2])
def test_the_dataloader_collates_nothing(shared_store: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    train = MemmapDataset(shared_store)

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a single item was asked for")

    monkeypatch.setattr(MemmapDataset, "__getitem__", refused)
    monkeypatch.setattr(torch, "stack", refused)
    for images, targets in DataLoader(Subset(train, range(60)), 16, num_workers=workers):
        assert (images.shape[1:], targets.dtype) == ((3, 32, 32), torch.int64)
