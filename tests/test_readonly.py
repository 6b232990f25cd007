"""Reading never writes: in-place ops on everything that a reader hands out, in every process that reads, change no file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import store_bytes
from torch.utils.data import DataLoader, get_worker_info

from reader import ImageBatch, MemmapDataset, MemmapLoader

HERE = Path(__file__).parent
GOLDEN = HERE / "golden" / "v1.0"
NOBODY = 65534


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The golden store: pixels, targets, content and extras."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "store"))


def test_in_place_ops_stay_in_the_process_also_as_root(store: Path) -> None:
    before = store_bytes(store)
    assert harm_everything(store) > 100
    assert store_bytes(store) == before


def test_in_place_ops_of_a_user_who_owns_the_store_stay_in_the_process(store: Path, tmp_path: Path) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can become another user; as this one, the test above has shown it")
    for path in (store, *store.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    before = store_bytes(store)
    # This clone, its Python and the folders of tests may be below a folder that only root may enter. So root runs all of it
    # once, on another store, and imports whatever that needs; then the process gives up root, for good. The user reaches the
    # store by its working folder.
    warm = shutil.copytree(GOLDEN, tmp_path / "warm")
    script = (
        f"import os, sys; sys.path[:0] = {[str(HERE), str(HERE / 'support')]}\n"
        "from test_readonly import Path, harm_everything\n"
        f"harm_everything(Path({str(warm)!r}))\n"
        f"os.setgroups([]); os.setresgid(*[{NOBODY}] * 3); os.setresuid(*[{NOBODY}] * 3)\n"
        f"print(*os.getresuid(), os.access({str(warm)!r} + '/manifest.json', os.W_OK), os.access('manifest.json', os.W_OK))\n"
        "print(harm_everything(Path('/proc/self/cwd')))"
    )
    done = subprocess.run([sys.executable, "-B", "-c", script], cwd=store, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    user, harmed = done.stdout.splitlines()
    # a user who may write this store, and nothing of root's
    assert user.split() == [*[str(NOBODY)] * 3, "False", "True"]
    assert int(harmed) > 100
    assert store_bytes(store) == before


@pytest.fixture
def read_only_mount(store: Path, tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "mount"
    mount.mkdir()
    done = subprocess.run(["mount", "--bind", store, mount], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this user may not mount: {done.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", mount], check=True, capture_output=True)
        yield mount
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


def test_a_store_on_a_read_only_mount_is_read_like_any_other(read_only_mount: Path, store: Path) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        (read_only_mount / "new").touch()
    before = store_bytes(store)
    assert harm_everything(read_only_mount) > 100
    assert store_bytes(store) == before


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_in_place_ops_in_dataloader_workers_and_on_their_batches_stay_there(store: Path, start: str) -> None:
    before = store_bytes(store)
    batches = DataLoader(
        MemmapDataset(store, as_tuple=False),
        batch_size=2,
        num_workers=2,
        multiprocessing_context=start,
        worker_init_fn=harm_in_worker,
    )
    for batch in batches:
        # what the worker did to its mapping is not even seen in its batches: they are read from the files
        assert torch.equal(batch.pixels, MemmapDataset(store, as_tuple=False)[batch.rows].pixels)
        harm(batch)
    assert store_bytes(store) == before
    assert int(MemmapDataset(store).store.pixels.sum()) > 0


def harm_in_worker(number: int) -> None:
    worker = get_worker_info()
    assert worker is not None
    harm(worker.dataset.store)
    worker.dataset.store.pixels.zero_()


def harm_everything(path: Path) -> int:
    """Do in-place ops on every kind of thing that the reader hands out; returns on how many tensors and arrays."""
    dataset, pairs = MemmapDataset(path, as_tuple=False), MemmapDataset(path, as_tuple=True)
    mask = np.array([True, False, True, True, False])
    indices: list[Any] = [0, -1, slice(1, 4), slice(None, None, 2), [3, 1, 2], torch.tensor([0, 4]), mask, np.int64(2)]
    handed: list[Callable[[], Any]] = [
        lambda: dataset.store,
        lambda: dataset.subset([1, 2])[:],
        lambda: dataset.subset([4, 0])[0],
        lambda: dataset.split(0.6)[0][:],
        *(lambda index=index: dataset[index] for index in indices),
        *(lambda index=index: pairs[index] for index in indices),
        *(lambda data=data: next(iter(DataLoader(data, batch_size=3))) for data in (dataset, pairs)),
    ]
    for shuffle in (False, "full", "block"):
        for residency in ("cache", "disk"):
            for prefetch in (0, 2):
                options: dict[str, Any] = {"shuffle": shuffle, "residency": residency, "prefetch": prefetch}
                handed.append(lambda options=options: next(iter(MemmapLoader(dataset, 2, **options, as_tuple=False))))
    harmed = sum(harm(give()) for give in handed)
    array = dataset.numpy()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    dataset.store.pixels.numpy()[...] = 3
    np.add(dataset[1:3].pixels.numpy(), 1, out=dataset[1:3].pixels.numpy())
    return harmed


def harm(batch: Any) -> int:
    """Change all tensors of a batch, or of a tuple, in place by several ops; returns how many tensors."""
    tensors = list(batch) if isinstance(batch, tuple) else _tensors(batch)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            continue
        tensor.add_(1)
        tensor[...] = 5
        torch.mul(tensor, 2, out=tensor)
        tensor.copy_(torch.full_like(tensor, 3))
        if tensor.ndim:
            tensor.index_fill_(0, torch.tensor([0]), 9)
        tensor.numpy()[...] = 1
        tensor.zero_()
        assert int(tensor.sum()) == 0
    if isinstance(batch, ImageBatch):
        batch.apply_(lambda tensor: tensor.fill_(4))
        batch.zero_()
    return len(tensors)


def _tensors(batch: ImageBatch) -> list[torch.Tensor]:
    found = [batch.pixels, batch.images, batch.targets, batch.content]
    found += [] if batch.extras is None else list(batch.extras.values())
    return [tensor for tensor in found if tensor is not None]
