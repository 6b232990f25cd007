"""Rows on a device: the batches are those of the CPU; memory is shared, and let go.

Nothing of it but the copies knows CUDA, so all of it runs on a CPU that plays the device.
"""

from __future__ import annotations

import gc
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import devices, make_tree
from PIL import Image

from packer import pack
from reader import MemmapDataset, MemmapLoader, RandomResizedCrop
from reader.format.errors import StoreError
from reader.loading import gathering

# Of a device's clock: ten milliseconds and more, longer than the host takes for a batch.
_CYCLES = 40_000_000


@pytest.fixture
def train(shared_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store, as_tuple=False)


@pytest.fixture(params=devices())
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device with room for all; the CPU plays one."""
    if request.param == "cpu":
        monkeypatch.setattr(gathering, "ROW_DEVICES", ("cpu", "cuda"))
    return request.param


def test_auto_never_takes_memory_of_the_device(train: MemmapDataset, device: str) -> None:
    asked = MemmapLoader(train, 16, device=device, residency="gpu", as_tuple=False)
    # also where the rows are there already
    auto = MemmapLoader(train, 16, device=device, as_tuple=False)
    assert (asked.residency, auto.residency) == ("gpu", "cache")
    next(iter(asked)).pixels.zero_()
    assert torch.equal(next(iter(asked)).pixels.cpu(), train.store.pixels[:16])


def test_the_transform_knows_epoch_and_device(train: MemmapDataset, device: str) -> None:
    loader = MemmapLoader(
        train,
        30,
        device=device,
        residency="gpu",
        transform=lambda batch: (batch.pixels.float().mean(), batch.rows),
        as_tuple=False,
    )
    for mean, rows in loader:
        assert mean.device.type == device
        assert mean.item() == pytest.approx(train.store.pixels[rows.cpu()].float().mean().item(), rel=1e-5)


def wrong_on_changing_streams(train: MemmapDataset, residency: str) -> int:
    """Count the batches of some epochs that were wrong for a loop that takes each on another stream, one of them late."""
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    loader, taken = (
        MemmapLoader(train, 8, shuffle="block", seed=0, device="cuda", residency=residency, as_tuple=False),
        [],
    )
    for _ in range(10):
        batches, turns = iter(loader), itertools.cycle(streams)
        for stream in itertools.islice(turns, len(loader)):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(_CYCLES if stream == streams[0] else 0)
                batch = next(batches)
                taken.append((batch.rows.clone(), batch.pixels.clone()))
                del batch
    torch.cuda.synchronize()
    plain = MemmapLoader(train, 8, shuffle="block", seed=0, residency="cache", as_tuple=False)
    expected = [batch for _ in range(10) for batch in plain]
    return sum(
        not torch.equal(rows.cpu(), right.rows) or not torch.equal(pixels.cpu(), right.pixels)
        for (rows, pixels), right in zip(taken, expected, strict=True)
    )


@pytest.mark.cuda
def test_a_store_outlives_its_loader_until_the_stream_of_the_loop_has_read_it(train: MemmapDataset) -> None:
    loader, stream = MemmapLoader(train, 30, device="cuda", residency="gpu", as_tuple=False), torch.cuda.Stream()
    assert loader._gathering._resident is not None
    size_bytes = loader._gathering._resident.place.memory.nbytes
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10 * _CYCLES)
        taken = [batch.pixels for batch in loader]
    del loader
    gc.collect()
    # on the stream that the store was allocated for: some of it would be there
    others = [torch.full((size_bytes,), 7, dtype=torch.uint8, device="cuda") for _ in range(3)]
    torch.cuda.synchronize()
    assert torch.equal(torch.cat(taken).cpu(), train.store.pixels)
    del others


@pytest.mark.cuda
@pytest.mark.parametrize("residency", ["cache", "gpu"])
def test_a_loop_may_change_its_stream(train: MemmapDataset, residency: str) -> None:
    assert wrong_on_changing_streams(train, residency) == 0


def waits_for_the_device(loader: MemmapLoader) -> bool:
    """Return whether taking a batch waits for what the loop has launched before, as copies of unpinned memory do."""
    batches = iter(loader)
    for _ in range(3):  # what is allocated once may wait
        next(batches)
    torch.cuda.synchronize()
    torch.cuda._sleep(10 * _CYCLES)
    launched = torch.cuda.Event()
    launched.record()
    next(batches)
    waited = launched.query()
    torch.cuda.synchronize()
    return waited


@pytest.mark.cuda
@pytest.mark.parametrize("residency", ["cache", "disk", "gpu"])
def test_taking_a_batch_does_not_wait_for_the_device(train: MemmapDataset, residency: str) -> None:
    assert not waits_for_the_device(
        MemmapLoader(train, 8, shuffle="block", seed=0, device="cuda", residency=residency, as_tuple=False)
    )


@pytest.mark.cuda
@pytest.mark.parametrize("residency", ["cache", "gpu"])
def test_taking_thousands_of_images_does_not_wait_for_the_device(own_store: Path, residency: str) -> None:
    # more slices than one kernel of torch.cat takes
    many, data = [list(range(40)) * 100] * 5, MemmapDataset(own_store, as_tuple=False)
    assert not waits_for_the_device(
        MemmapLoader(data, 1, sampler=many, device="cuda", residency=residency, as_tuple=False)
    )


# -- residency "ram" for a device


# -- rows with sizes of their own


@pytest.fixture(scope="module")
def own_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 rows of many sizes, with a mask and an extra each."""
    root = tmp_path_factory.mktemp("own")
    (root / "masks").mkdir()
    make_tree(root / "images", classes=2, each=20)
    lines = []
    for n, path in enumerate(sorted((root / "images").rglob("*.jpg"))):
        with Image.open(path) as image:
            lines.append(f"{path.relative_to(root)},{n % 3},{n / 2}\n")
            mask = root / "masks" / path.relative_to(root).with_suffix(".png")
            mask.parent.mkdir(parents=True, exist_ok=True)
            image.convert("L").save(mask)
    (root / "list.csv").write_text("path,label,weight\n" + "".join(lines))
    pack(root / "list.csv", root / "out", fit="none", max_size=90, masks=root / "masks", workers=1)
    return root / "out"


def test_crops_and_parts_of_images_on_the_device(own_store: Path, device: str) -> None:
    data, crop = MemmapDataset(own_store, as_tuple=False), RandomResizedCrop(24, seed=2)
    for part in data.split(0.7):
        loader = MemmapLoader(
            part, 8, device=device, residency="gpu", shuffle=True, seed=0, transform=crop, as_tuple=False
        )
        expected = MemmapLoader(part, 8, residency="cache", shuffle=True, seed=0, transform=crop, as_tuple=False)
        for ours, theirs in zip(loader, expected, strict=True):
            assert torch.equal(ours.rows.cpu(), theirs.rows)
            # other devices resize with floats, the CPU with integers
            most = 0 if device == "cpu" else 1
            assert (ours.pixels.cpu().int() - theirs.pixels.int()).abs().max() <= most
            assert torch.equal(ours.extras["masks"].cpu(), theirs.extras["masks"])


def test_a_damaged_row_of_images_on_the_device_is_named(own_store: Path, tmp_path: Path, device: str) -> None:
    shutil.copytree(own_store, tmp_path / "own")
    offsets = np.memmap(tmp_path / "own/_tensordict/offsets.memmap", np.int64, "r+")
    offsets[4] = 1 << 40
    offsets.flush()
    with pytest.raises(StoreError, match="row 4: it is not within the pixels. The store is damaged"):
        list(
            MemmapLoader(
                MemmapDataset(tmp_path / "own", as_tuple=False), 8, device=device, residency="gpu", as_tuple=False
            )
        )
