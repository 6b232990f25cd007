"""Copies of rows in memory: loaders hold what they read, share the same rows, and count what the host's ranks take."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune, devices, make_tree

from packer import pack, subset
from reader import MemmapDataset, MemmapLoader, order, system
from reader.format.manifest import PIXELS
from reader.loading import reading, shared_residency
from reader.memory import residency

# Pages are dropped from the cache, which those that are not on the disk yet stay in.
pytestmark = pytest.mark.usefixtures("real_syncs")

GB = 10**9


@pytest.fixture(scope="module")
def own_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 rows of many sizes."""
    root = tmp_path_factory.mktemp("own")
    make_tree(root / "images", classes=2, each=20, size=(160, 120))
    pack(root / "images", root / "out", fit="none", workers=1)
    return root / "out"


@pytest.fixture(params=["equal rows", "own sizes"])
def data(request: pytest.FixtureRequest, shared_store: Path, own_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store if request.param == "equal rows" else own_store, as_tuple=False)


_DEVICES = [pytest.param("cpu", id="gpu-cpu"), pytest.param("cuda", id="gpu-cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=["ram", *_DEVICES])
def residency_options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Where copies are; the CPU plays a device."""
    if request.param == "cuda":
        return {"residency": "gpu", "device": "cuda"}
    monkeypatch.setattr(reading, "free_bytes", lambda device: GB)
    return {"residency": "ram" if request.param == "ram" else "gpu"}


def held(loader: MemmapLoader) -> Any:
    """Return the copy that a loader reads."""
    if loader.residency != "ram":
        return loader.resident
    assert loader.gathering.rows.copy is not None
    return loader.gathering.rows.copy.each[0]


def check(loader: MemmapLoader) -> None:
    """Compare every row of an epoch with the store's."""
    seen = 0
    for batch in loader:
        for n, row in enumerate(batch.rows.tolist()):
            pixels = batch.image(n) if hasattr(batch, "image") else batch.pixels[n]
            assert torch.equal(pixels.cpu(), loader.dataset.at_rows(None)[[row]].images[0].movedim(0, -1))
            seen += 1
    assert seen == len(loader.dataset)


def units(loader: MemmapLoader) -> int:
    """Return how many bytes of pixels a loader's copy has."""
    copy = held(loader)
    if loader.residency != "gpu":
        return int(copy.nbytes)
    return int(copy.place.memory.nbytes)


def test_loaders_of_the_same_rows_share_one_copy_and_those_of_others_do_not(
    data: MemmapDataset, residency_options: dict[str, Any]
) -> None:
    train, val = data.split(0.8)
    parts = [train, val, data, train, data.split(0.8)[0], data.subset([3, 1, 3]), data.subset([1, 3])]
    made = [MemmapLoader(part, 7, shuffle="full", **residency_options, as_tuple=False) for part in parts]
    copies = [id(held(loader)) for loader in made]
    assert copies[0] == copies[3] == copies[4]
    # in whatever order, and however often
    assert copies[5] == copies[6]
    assert len({*copies}) == 4
    # each has the rows that are read of it
    assert units(made[0]) < units(made[2])
    for loader in made:
        check(loader)


def test_a_store_that_replaced_another_is_copied_though_a_loader_reads_the_old_one(
    store: Path, shared_store: Path, residency_options: dict[str, Any]
) -> None:
    old = MemmapLoader(MemmapDataset(store, as_tuple=False), 7, **residency_options, as_tuple=False)
    before = next(iter(old)).pixels.clone()
    rows = range(len(old.dataset))[::-1]
    subset(shared_store, store, rows=rows, overwrite=True)
    new = MemmapLoader(MemmapDataset(store, as_tuple=False), 7, **residency_options, as_tuple=False)
    check(new)
    assert torch.equal(next(iter(old)).pixels, before)


def test_a_copy_goes_with_the_last_loader_that_reads_it(data: MemmapDataset, residency_options: dict[str, Any]) -> None:
    known = shared_residency._copies if residency_options["residency"] == "ram" else shared_residency._residents
    gc.collect()
    before, half = len(known), data.split(0.5)[0]
    one, other = (MemmapLoader(half, 7, **residency_options, as_tuple=False) for _ in range(2))
    kept = next(iter(other))
    assert len(known) == before + 1
    del one
    gc.collect()
    assert len(known) == before + 1
    # its thread, which reads the copy, would end a moment later
    other.close()
    del other
    gc.collect()
    assert len(known) == before
    assert len(kept.rows) == 7


def test_a_copy_that_could_not_be_read_is_not_kept(store: Path) -> None:
    data = MemmapDataset(store, as_tuple=False)
    gc.collect()
    before, size_bytes = len(shared_residency._copies), (store / PIXELS).stat().st_size
    os.truncate(store / PIXELS, 40 * data.manifest.row_bytes)
    with pytest.raises(ValueError, match="it was cut short while it was read"):
        MemmapLoader(data, 5, residency="ram", as_tuple=False)
    gc.collect()
    assert len(shared_residency._copies) == before
    os.truncate(store / PIXELS, size_bytes)
    assert held(MemmapLoader(data, 5, residency="ram", as_tuple=False)).nbytes == data.manifest.pixel_bytes


def test_loaders_that_threads_make_at_one_time_share_one_copy(shared_store: Path) -> None:
    data, made = MemmapDataset(shared_store, as_tuple=False), []
    parts = [data.subset(slice(None, None, 8)) for _ in range(8)]
    threads = [
        threading.Thread(target=lambda part=part: made.append(MemmapLoader(part, 4, residency="ram", as_tuple=False)))
        for part in parts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(held(loader)) for loader in made}) == 1
    for loader in made:
        check(loader)


# -- what is counted


def test_small_rows_are_on_a_device_once_and_counted_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(tmp_path / "images", classes=2, each=30, size=(12, 10))
    pack(tmp_path / "images", tmp_path / "out", fit="none", workers=1)
    monkeypatch.setattr(reading, "free_bytes", lambda device: GB)
    part = MemmapDataset(tmp_path / "out", as_tuple=False).subset(slice(None, None, 2))
    counted = shared_residency.missing_on(part, torch.device("cpu"))
    loader = MemmapLoader(part, 7, residency="gpu", as_tuple=False)
    # rows of some hundred bytes: no page is counted for each
    assert counted == units(loader) == sum(part[n].pixels.numel() for n in range(len(part)))
    check(loader)


def test_memory_is_counted_for_the_rows_that_are_read(data: MemmapDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    full, part = shared_residency.reads_of(data, 1), shared_residency.reads_of(data.subset([5, 2, 5]), 1)
    rows = [data.at_rows(None)[[row]].images[0].numel() for row in (2, 5)]
    assert full.size_bytes == data.store.pixels.nbytes
    assert part.size_bytes == sum(rows)
    # the store does not fit, the part does
    monkeypatch.setattr(system, "available_bytes", lambda: 100_000)
    with pytest.raises(ValueError, match=r"residency 'ram' needs \d+\.\d [kM]B, but 100\.0 kB of memory are free\."):
        MemmapLoader(data, 4, residency="ram", as_tuple=False)
    loader = MemmapLoader(data.subset([2]), 1, residency="ram", as_tuple=False)
    assert MemmapLoader(data.subset([2]), 1).residency == "cache"
    # what is there already is not counted again
    monkeypatch.setattr(system, "available_bytes", lambda: 0)
    assert held(MemmapLoader(data.subset([2]), 1, residency="ram", as_tuple=False)) is held(loader)
    monkeypatch.setattr(system, "file_system", lambda path: "ext4")
    assert MemmapLoader(data.subset([2]), 1).residency == "disk"


def test_a_device_is_asked_for_the_rows_that_are_read(data: MemmapDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    part = data.subset([2])
    needed = shared_residency.missing_on(part, torch.device("cpu"))
    assert needed < shared_residency.missing_on(data, torch.device("cpu")) / 3
    monkeypatch.setattr(reading, "free_bytes", lambda device: needed)
    with pytest.raises(ValueError, match=r"residency 'gpu': the rows need \d+\.\d [kM]B, and"):
        MemmapLoader(data, 4, residency="gpu", as_tuple=False)
    loader = MemmapLoader(part, 1, residency="gpu", as_tuple=False)
    assert shared_residency.missing_on(part, torch.device("cpu")) == 0
    check(loader)


def test_rows_that_weights_exclude_take_no_memory(data: MemmapDataset, residency_options: dict[str, Any]) -> None:
    weights = torch.zeros(len(data))
    weights[[3, 7, 8]] = torch.tensor([1.0, 0.5, 2.0])
    loader = MemmapLoader(data, 7, weights=weights, **residency_options, as_tuple=False)
    assert units(loader) < units(MemmapLoader(data, 7, **residency_options)) / 3
    seen = [row for batch in loader for row in batch.rows.tolist()]
    assert len(seen) == len(data)
    assert set(seen) == {3, 7, 8}
    # not even by a product that is rounded up to the sum
    cumulative = np.cumsum(weights.numpy(), dtype=np.float64)
    assert set(order.drawn(cumulative, 0, 10_000, seed=0).tolist()) == {3, 7, 8}
    full = [batch.rows.tolist() for batch in MemmapLoader(data, 7, weights=weights, as_tuple=False)]
    assert [row for rows in full for row in rows] == seen


def test_an_excluded_last_row_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_uniform", lambda counters, keys: np.full(len(counters), 1.0))
    assert order.drawn(np.array([0.0, 1.0, 3.0, 3.0, 3.0]), 0, 2, seed=0).tolist() == [2, 2]


def test_ranks_that_share_a_device_are_counted_together(shared_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = MemmapDataset(shared_store, as_tuple=False)
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    needed = shared_residency.missing_on(data, torch.device("cpu"))
    monkeypatch.setattr(reading, "free_bytes", lambda device: needed)
    monkeypatch.setattr(reading, "total_bytes", lambda device: 2 * needed - 1)
    with pytest.raises(
        ValueError,
        match=r"the rows need \S+ kB in each of 2 processes that share the device of \S+ kB, and \S+ kB are free",
    ):
        MemmapLoader(data, 4, residency="gpu", as_tuple=False)
    monkeypatch.setattr(reading, "total_bytes", lambda device: 2 * needed)
    loader = MemmapLoader(data, 4, residency="gpu", as_tuple=False)
    # a launcher that shows each rank a device of its own
    monkeypatch.setattr(reading, "total_bytes", lambda device: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    del loader
    gc.collect()
    assert MemmapLoader(data, 4, residency="gpu", as_tuple=False).residency == "gpu"


@pytest.mark.parametrize("kind", ["torchrun", "Open MPI", "Lightning"])
def test_copies_of_all_ranks_of_this_host_are_counted(
    shared_store: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "torchrun": {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"},
        "Open MPI": {"RANK": "1", "WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
        "Lightning": {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"},
    }[kind]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    data = MemmapDataset(shared_store, as_tuple=False)
    # 276.5 kB of rows: three copies fit
    monkeypatch.setattr(system, "memory_bytes", lambda: 900_000)
    with pytest.raises(ValueError) as raised:
        MemmapLoader(data, 4, residency="ram", as_tuple=False)
    assert str(raised.value).startswith(
        "residency 'ram' needs 276.5 kB in each of 4 processes of this host, which has 900.0 kB, but "
    )
    # all rows on this rank alone
    assert MemmapLoader(data, 4, residency="ram", rank=0, world_size=1).residency == "ram"


def test_ranks_that_meet_on_another_host_are_not_counted(shared_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "node-7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(system, "memory_bytes", lambda: 900_000)
    assert MemmapLoader(MemmapDataset(shared_store), 4, residency="ram").residency == "ram"


@pytest.mark.parametrize("processes, name", [(1, "ram"), (2, "ram"), (3, "cache")])
def test_auto_leaves_copies_of_a_network_store_to_ranks_that_fit_together(
    processes: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "file_system", lambda path: "nfs4")
    monkeypatch.setattr(system, "cached_share", lambda path, offset=None: 0.0)
    monkeypatch.setattr(system, "available_bytes", lambda: 18 * GB)
    monkeypatch.setattr(system, "memory_bytes", lambda: 32 * GB)
    chosen = residency.choose("auto", residency.Reads(Path("pixels"), 8 * GB, processes=processes))
    assert chosen.name == name
    assert ("processes of this host" in chosen.reason) is (processes > 1 and name == "ram")


def test_a_part_whose_rows_are_cached_is_not_taken_for_cold(tmp_path: Path, tune: Tune) -> None:
    make_tree(tmp_path / "images", classes=2, each=20)
    pack(tmp_path / "images", tmp_path / "out", size=512, workers=1)
    data = MemmapDataset(tmp_path / "out", as_tuple=False)
    with open(data.path / PIXELS, "rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if system.cached_share(data.path / PIXELS) > 0.5:
            pytest.skip("the file system of the temporary folder keeps or hides what is cached")
        # every second row, as an epoch of its loader leaves them; the system is not to read their neighbours
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for row in range(0, 40, 2):
            os.pread(file.fileno(), data.manifest.row_bytes, row * data.manifest.row_bytes)
    part = shared_residency.reads_of(data.subset(slice(0, None, 2)), 1)
    # the system may take a page back meanwhile
    assert part.cached_share() > 0.9
    assert shared_residency.reads_of(data.subset(slice(1, None, 2)), 1).cached_share() < 0.1
    assert 0.3 < shared_residency.reads_of(data, 1).cached_share() < 0.7
    tune(small_store_bytes=0)
    assert not residency.is_cold(part.path, part.size_bytes, part.offset)


def test_shuffle_true_counts_the_rows_that_are_read(shared_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "memory_bytes", lambda: 300_000)
    data = MemmapDataset(shared_store, as_tuple=False)
    assert MemmapLoader(data, 4, shuffle=True).order == "block"
    assert MemmapLoader(data.subset(slice(40)), 4, shuffle=True).order == "full"


@pytest.mark.parametrize("device", devices())
def test_a_pinned_copy_of_some_rows_gives_the_same_batches(shared_store: Path, device: str) -> None:
    data = MemmapDataset(shared_store, as_tuple=False)
    for part in (data.subset(slice(50)), data):
        loader = MemmapLoader(part, 8, device=device, residency="ram", as_tuple=False)
        assert loader.gathering.is_pinned is (device == "cuda")
        check(loader)
