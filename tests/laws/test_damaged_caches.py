"""A cache of a URL that is damaged, another user's, or on a disk that is full: right rows, or one sentence."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Tune
from kinds import MakeStore, spread
from range_server import serving
from rights import modes_hold
from torch.utils.data import DataLoader

from packer import pack_dataset
from reader import MemmapDataset, StoreError
from reader.format.head import with_digest

ROWS = 30

# file below the folder of a store in a cache -> what may become of it
DAMAGE: dict[str, list[Callable[[Path], object]]] = {
    name: [Path.unlink, lambda path: os.truncate(path, path.stat().st_size // 2)]
    for name in ("_tensordict/pixels.memmap", "_tensordict/targets.memmap", "meta.json", ".remote/marks")
} | {
    ".remote/marks": [Path.unlink, lambda path: os.truncate(path, 0), lambda path: os.truncate(path, 1)],
    ".remote/manifest.json": [lambda path: os.truncate(path, 0), lambda path: path.write_bytes(bytes(900))],
}


def read(url: str, cache: Path, store: Path) -> None:
    """Compare all rows through a cache with those of the store."""
    rows, remote = [5, 0, 12, 3, 9], MemmapDataset(url, cache=cache)
    assert torch.equal(remote[rows][0], MemmapDataset(store)[rows][0])
    assert torch.equal(remote[rows][1], MemmapDataset(store)[rows][1])
    # its fetcher ends
    del remote
    gc.collect()


@pytest.fixture(scope="module")
def caches(store_of: MakeStore, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A cache that holds some blocks of a store, and one that holds all; no test may change them."""
    store, folder = store_of("crop"), tmp_path_factory.mktemp("caches")
    read(store.as_uri(), folder / "some", store)
    shutil.copytree(folder / "some", folder / "all")
    assert MemmapDataset(store.as_uri(), cache=folder / "all").store is not None
    gc.collect()
    return {False: folder / "some", True: folder / "all"}


@pytest.mark.parametrize(
    ("name", "number", "is_complete"),
    spread([*DAMAGE], range(3), [False, True], known=lambda name, number, _: number < len(DAMAGE[name])),
)
def test_a_damaged_cache_is_dropped_with_a_line_and_made_again(
    name: str,
    number: int,
    is_complete: bool,
    caches: dict[bool, Path],
    store_of: MakeStore,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    store, cache = store_of("crop"), Path(shutil.copytree(caches[is_complete], tmp_path / "cache"))
    (root,) = cache.iterdir()
    DAMAGE[name][number](root / name)
    capfd.readouterr()
    read(store.as_uri(), cache, store)
    lines = capfd.readouterr().err.splitlines()
    assert [line.startswith(f"cache {root} is damaged: {root / name}") for line in lines] == [True], lines
    # an incomplete one is no store of its own
    assert not (root / "manifest.json").exists()
    read(store.as_uri(), cache, store)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("count", "context"),
    [
        (1, None),
        (ROWS, None),
        (ROWS - 1, "fork"),
        *(pytest.param(ROWS - 1, context, marks=pytest.mark.nightly) for context in (None, "spawn")),
        *(
            pytest.param(count, context, marks=pytest.mark.nightly)
            for count in (1, ROWS)
            for context in ("fork", "spawn")
        ),
    ],
)
def test_a_job_reads_right_rows_while_another_makes_its_cache_again(
    count: int, context: str | None, blocks_of_a_row: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """count: of rows that are in the cache; context: of the workers that read, where the process itself does not."""
    url, cache, expected = blocks_of_a_row.as_uri(), tmp_path / "cache", MemmapDataset(blocks_of_a_row)[:][0]
    job = MemmapDataset(url, cache=cache)

    def check(count: int) -> None:
        options = {} if context is None else {"num_workers": 1, "multiprocessing_context": context}
        (batch,) = DataLoader(job, batch_size=ROWS, sampler=range(count), **options)
        assert torch.equal(batch[0], expected[:count])

    check(count)
    (root,) = cache.iterdir()
    (root / "meta.json").unlink()
    other = MemmapDataset(url, cache=cache)
    assert "is removed, and rebuilt" in capfd.readouterr().err
    assert torch.equal(other[count - 1][0], expected[count - 1])
    check(count)
    check(ROWS)
    assert torch.equal(other[:][0], expected)
    # where what is mapped is of the dropped cache, it is not taken for whole
    with contextlib.suppress(StoreError):
        assert torch.equal(job.store.pixels.movedim(-1, 1), expected)


def test_what_was_left_of_a_cache_keeps_its_bytes_for_who_has_it_open(store_of: MakeStore, tmp_path: Path) -> None:
    """As of a process that was killed while it dropped a cache which another one reads."""
    store, cache = store_of("crop"), tmp_path / "cache"
    read(store.as_uri(), cache, store)
    (root,) = cache.iterdir()
    (root / ".remote" / "manifest.json").unlink()
    for name in (".remote/marks", "_tensordict/pixels.memmap"):
        before = (root / name).read_bytes()
        with open(root / name, "rb") as file:
            MemmapDataset(store.as_uri(), cache=cache)
            gc.collect()
            assert file.read() == before
        read(store.as_uri(), cache, store)
        (root / ".remote" / "manifest.json").unlink()


def test_a_damaged_cache_without_a_network_is_kept_and_named(store_of: MakeStore, tmp_path: Path, tune: Tune) -> None:
    tune(cached_store_seconds=0.1)
    with serving(store_of("crop")) as server:
        assert MemmapDataset(server.url, cache=tmp_path / "cache").store is not None
        gc.collect()
    (root,) = (tmp_path / "cache").iterdir()
    (root / ".remote" / "marks").unlink()
    with pytest.raises(StoreError, match=r"cache \S+ is damaged: \S+/marks is missing; and http\S+ cannot be reached"):
        MemmapDataset(server.url, cache=tmp_path / "cache")
    assert (root / "manifest.json").exists()


def test_a_cache_of_another_user_is_one_sentence(store_of: MakeStore, tmp_path: Path) -> None:
    store, cache = store_of("crop"), tmp_path / "cache"
    read(store.as_uri(), cache, store)
    (root,) = cache.iterdir()
    for path in (root, *sorted(set(root.rglob("*")) - {root / ".remote" / "new"})):
        mode = path.stat().st_mode
        path.chmod(0)
        try:
            with modes_hold(), pytest.raises(StoreError) as caught:
                MemmapDataset(store.as_uri(), cache=cache)
        finally:
            path.chmod(mode)
        assert str(caught.value) == (
            f"cache {path} may not be read and written by this user: user {os.getuid()} owns it. Choose another folder, or"
            f" have its owner remove {root}"
        )
    read(store.as_uri(), cache, store)


def test_what_another_user_has_in_a_shared_cache_for_a_while_is_left_alone(store_of: MakeStore, tmp_path: Path) -> None:
    store, cache = store_of("crop"), tmp_path / "cache"
    read(store.as_uri(), cache, store)
    (root,) = cache.iterdir()
    # as of pack show, and of a file that is fetched
    others = [root / ".remote" / "face.abc", root / ".remote" / ".marks.1.1", root / "_tensordict" / ".x.memmap.1.1"]
    others[0].mkdir()
    for path in others[1:]:
        path.touch()
    for path in others:
        path.chmod(0)
    with modes_hold():
        read(store.as_uri(), cache, store)
    assert all(path.exists() for path in others)
    others[0].chmod(0o700)


def test_the_cache_of_a_newer_pixpack_is_kept(store_of: MakeStore, tmp_path: Path) -> None:
    store, cache = Path(shutil.copytree(store_of("crop"), tmp_path / "store")), tmp_path / "cache"
    read(store.as_uri(), cache, store)
    (root,) = cache.iterdir()
    head, _, blocks = (store / "manifest.json").read_bytes().partition(b',\n  "blocks": [')
    fields, lines = json.loads(head + b"\n}"), blocks[: blocks.index(b"\n  ]")].decode()
    newer = with_digest(fields | {"reader_features": ["later"]}, lines)
    digest = json.loads(newer)["digest"]
    (store / "manifest.json").write_bytes(newer)
    (root / ".remote" / "manifest.json").write_bytes(newer)
    root = root.rename(cache / f"{digest.removeprefix('sha256:')[:16]}.store")
    before = sorted(root.rglob("*"))
    with pytest.raises(StoreError, match=r"reading this store needs later, unknown here\. Update pixpack\."):
        MemmapDataset(store.as_uri(), cache=cache)
    assert sorted(root.rglob("*")) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder]).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def many_blocks(tmp_path: Path, tune: Tune) -> Path:
    """A store of 1,200 blocks of a row."""
    tune(block_bytes=192)
    images = np.random.default_rng(0).integers(0, 256, (1200, 8, 8, 3), dtype=np.uint8)
    pack_dataset([(image, n % 3) for n, image in enumerate(images)], tmp_path / "store", size=8)
    return tmp_path / "store"


@pytest.fixture
def blocks_of_a_row(tmp_path: Path, tune: Tune) -> Path:
    """A store of some blocks of a row each."""
    tune(block_bytes=192)
    images = np.random.default_rng(0).integers(1, 256, (ROWS, 8, 8, 3), dtype=np.uint8)
    pack_dataset([(image, n % 3) for n, image in enumerate(images)], tmp_path / "store", size=8)
    return tmp_path / "store"


@pytest.mark.parametrize("is_complete", [False, True], ids=["some", "all"])
def test_the_names_of_samples_are_fetched_again_where_their_file_was_cut_short(
    is_complete: bool, store_of: MakeStore, tmp_path: Path
) -> None:
    store, cache = store_of("crop"), tmp_path / "cache"
    remote, local = MemmapDataset(store.as_uri(), cache=cache), MemmapDataset(store)
    assert remote.source(3) == local.source(3)
    if is_complete:
        assert remote.store is not None
    (path,) = cache.glob("*/samples.jsonl")
    for size_bytes in (path.stat().st_size // 2, 0):
        os.truncate(path, size_bytes)
        assert MemmapDataset(store.as_uri(), cache=cache).source(3) == local.source(3)
        assert path.read_bytes() == (store / "samples.jsonl").read_bytes()


@pytest.mark.parametrize("is_open", [False, True], ids=["before opening", "before reading"])
def test_a_full_disk_is_one_sentence(is_open: bool, many_blocks: Path, small_disk: Path) -> None:
    filling, cache = small_disk / "filling", small_disk / "cache"
    # storing into a page that the disk has no room for is a signal
    child = os.fork()
    if not child:
        os._exit(_read_on_a_full_disk(many_blocks, cache, filling, is_open))
    assert os.waitpid(child, 0)[1] == 0
    assert re.fullmatch(
        r"cache \S+ (needs \S+ kB to open the store, .* are free|cannot be written: No space left on device)\."
        r" Free some space there(, or give a smaller cache_size)?\.",
        (small_disk.parent / "message").read_text(),
    )
    filling.unlink()
    remote = MemmapDataset(many_blocks.as_uri(), cache=cache)
    assert torch.equal(remote[[1199, 3, 700]][0], MemmapDataset(many_blocks)[[1199, 3, 700]][0])


def _read_on_a_full_disk(store: Path, cache: Path, filling: Path, is_open: bool) -> int:
    """Fill the disk before a cache is opened, or before its last row is read; returns 0 where a StoreError names it."""
    remote = MemmapDataset(store.as_uri(), cache=cache) if is_open else None
    with open(filling, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        (remote or MemmapDataset(store.as_uri(), cache=cache))[1199]
    except StoreError as e:
        (filling.parents[1] / "message").write_text(str(e))
        return 0
    return 1
