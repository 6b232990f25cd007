"""Where rows are read from: the choice and its reason, the same batches from everywhere, stores larger than memory."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Tune, make_tree, memory_cgroup

import packer
from reader import MemmapDataset, MemmapLoader, system
from reader.buffers import BufferPool
from reader.format.errors import StoreError
from reader.format.manifest import PIXELS
from reader.memory.raw_file import RawFile, begin_reads
from reader.memory.spans import Spans
from scripts.samples.stores import sparse_store

# Pages are dropped from the cache, which those that are not on the disk yet stay in.
pytestmark = pytest.mark.usefixtures("real_syncs")


@pytest.fixture
def train(shared_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store, as_tuple=False)


def test_memory_that_is_read_into_is_used_again_in_the_next_epoch(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", classes=2, each=20)
    packer.pack(tmp_path / "images", tmp_path / "out", size=96, workers=1)
    data = MemmapDataset(tmp_path / "out", as_tuple=False)
    with MemmapLoader(data, 8, shuffle="full", residency="disk", as_tuple=False) as loader:
        for _ in range(4):
            for batch in loader:
                assert torch.equal(batch.pixels, data.store.pixels[batch.rows])
        pool = loader._gathering._ahead_pool
        # the 5 steps of an epoch are read together, while the loop has the last batch of the epoch before
        assert pool is not None
        assert pool.allocated <= 7
    assert loader._gathering._ahead_pool is None


def test_a_store_cut_short_under_the_loader_is_named(store: Path) -> None:
    data = MemmapDataset(store, as_tuple=False)
    loader = MemmapLoader(data, 8, residency="disk", as_tuple=False)
    os.truncate(store / PIXELS, 40 * data.manifest.row_bytes)
    with pytest.raises(StoreError, match=r"pixels\.memmap (ends at byte|has) 122880"):
        list(loader)


def test_targets_cut_short_under_the_loader_are_named(store: Path) -> None:
    loader = MemmapLoader(MemmapDataset(store, as_tuple=False), 8, residency="disk", as_tuple=False)
    os.truncate(store / "_tensordict/targets.memmap", 0)
    with pytest.raises(StoreError, match=r"targets\.memmap has 0 bytes, it had 720"):
        list(loader)


# -- the choice


def test_a_cold_epoch_of_the_cache_reads_ahead_and_a_warm_one_does_not(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch, tune: Tune
) -> None:
    tune(small_store_bytes=0)
    loader, read_pieces = MemmapLoader(train, 8, shuffle="full", residency="cache", as_tuple=False), RawFile.read_pieces
    for cold in (True, False):
        reads: list[int] = []
        monkeypatch.setattr(system, "cached_share", lambda path, cold=cold: 0.0 if cold else 1.0)
        monkeypatch.setattr(
            RawFile,
            "read_pieces",
            lambda *given, reads=reads: reads.append(len(given[2].memories)) or read_pieces(*given),
        )
        for batch in loader:
            assert torch.equal(batch.pixels, train.store.pixels[batch.rows])
        # all batches of a step are read to one memory
        assert {*reads} == ({1} if cold else set())


# -- what the machine tells


def test_the_cached_share_of_a_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(64 << 20))
    descriptor = os.open(path, os.O_RDWR)
    with contextlib.closing(os.fdopen(descriptor, "rb")):
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if system.cached_share(path) > 0.5:
            pytest.skip("the file system of the temporary folder keeps or hides what is cached")
        assert system.cached_share(path) < 0.1, "looking must not fill the cache"
        os.pread(descriptor, 32 << 20, 0)
        assert 0.3 < system.cached_share(path) < 0.8
        os.pread(descriptor, 32 << 20, 32 << 20)
        assert system.cached_share(path) > 0.95


def test_a_disk_that_answers_before_the_call_returns_is_not_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(64 << 20))
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if not Path("/proc/thread-self/io").exists() or system.cached_share(path) > 0.5:
        pytest.skip("the system does not count what is read from disks, or keeps or hides what is cached")
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda descriptor, into, at, flags: preadv(descriptor, into, at))
    assert system.cached_share(path) < 0.1
    path.read_bytes()
    assert system.cached_share(path) == 1.0


@pytest.mark.parametrize(
    ("kind", "is_network"),
    [("ext4", False), ("fuseblk", False), ("tmpfs", False), ("nfs4", True), ("smb3", True), ("fuse.sshfs", True)],
)
def test_file_systems_behind_a_network_are_known(kind: str, is_network: bool) -> None:
    assert system.is_network(kind) is is_network


def test_the_file_system_of_a_folder_is_named(tmp_path: Path) -> None:
    assert system.file_system(Path("/proc/self/status")) == "proc"
    assert system.file_system(tmp_path) not in ("proc", "unknown")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
@pytest.mark.parametrize("size_bytes", [2 << 20, 5_000_000])
def test_all_of_a_large_buffer_may_be_in_huge_pages_also_where_malloc_has_memory_to_reuse(size_bytes: int) -> None:
    used = [np.ones(size_bytes // 2, np.uint8) for _ in range(8)]
    del used
    pool = BufferPool(keep=1)
    for lease in [pool.lease(size_bytes) for _ in range(4)]:
        address = lease.data_ptr()
        assert address % (2 << 20) == 0
        end = address + size_bytes - 1
        assert "hg" in _flags(address)
        assert "hg" in _flags(end | ((2 << 20) - 1))


def _flags(address: int) -> list[str]:
    """Return what /proc/self/smaps calls VmFlags, of the memory at an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            start, stop = (int(bound, 16) for bound in line.split(" ")[0].split("-"))
            inside = start <= address < stop
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("no such memory")


def test_memory_is_bounded_by_the_machine() -> None:
    assert 0 < system.available_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_IN_CGROUP = """
import sys
sys.path.insert(0, sys.argv[1])
open(sys.argv[2] + "/cgroup.procs", "w").write("0")
from reader import MemmapDataset, MemmapLoader
def read(way):
    loader = MemmapLoader(MemmapDataset(sys.argv[3]), 64, shuffle="block")
    rows = sum(len(targets) for _, targets in loader)
    print(way, loader.order, loader.residency, rows, sep=", ", flush=True)
read("past the cache")
raw_file._open_direct = lambda path: (-1, 1)
read("through the cache")
"""


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    with memory_cgroup(500 << 20) as group:
        yield group


@pytest.mark.slow
def test_a_store_larger_than_its_cgroup_is_read_and_nothing_is_killed(small_cgroup: Path, tmp_path: Path) -> None:
    store = sparse_store(tmp_path / "store", 8_000)
    words = [Path(__file__).resolve().parents[2], small_cgroup, store]
    done = subprocess.run([sys.executable, "-c", _IN_CGROUP, *words], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{way}, block, disk, 8000" for way in ("past the cache", "through the cache")]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["past the cache", "through the cache"])
def test_what_was_read_from_a_disk_is_let_go(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(64 << 20))
    if way == "through the cache":
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    file = RawFile(path, past_cache=True)
    with open(path, "rb+") as written:
        os.fsync(written.fileno())
        os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if system.cached_share(path) > 0.5:
        pytest.skip("the file system of the temporary folder keeps or hides what is cached")
    begin_reads(file, Spans(np.array([0]), np.array([64 << 20])), [np.zeros(64 << 20, np.uint8)]).wait()
    file.close()
    assert system.cached_share(path) < 0.1
