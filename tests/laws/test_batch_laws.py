"""A batch belongs to its caller; the order of batches depends only on seed and epoch."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune, tuned
from kinds import KINDS, spread
from rows import FilesOf, small_sizes

from reader import MemmapDataset, MemmapLoader, RandomResizedCrop

RESIDENCIES = ("cache", "disk")
# Parts of an image uint8[C, H, W] that a loop may keep.
VIEWS: list[Callable[[torch.Tensor], Any]] = [
    lambda image: image,
    lambda image: image.movedim(0, -1)[2:].numpy(),
    lambda image: image[:, 1:, ::2].numpy()[..., 1:],
    lambda image: memoryview(image.detach().numpy()),
]


@pytest.mark.parametrize(("kind", "where"), spread([*KINDS], [("cache", 0), ("cache", 2), ("disk", 2)]))
def test_a_view_of_a_batch_is_never_overwritten(
    kind: str, where: tuple[str, int], files_of: FilesOf, tune: Tune
) -> None:
    data, (residency, prefetch) = MemmapDataset(files_of(kind).path), where
    tune(**small_sizes(data))
    kept = []
    with MemmapLoader(data, 3, shuffle="block", residency=residency, prefetch=prefetch) as loader:
        for step, (images, _) in enumerate(itertools.chain(loader, loader)):
            view = VIEWS[step % len(VIEWS)](images[step % len(images)])
            kept.append((view, np.asarray(view).copy()))
            del images, view
        gc.collect()
        # new content of a reused buffer shows in everything that shares it
        for images, _ in itertools.chain(loader, loader):
            for image in images:
                image.fill_(7)
    assert len(kept) == 10
    assert all(np.array_equal(np.asarray(view), then) for view, then in kept)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("residency", RESIDENCIES)
@pytest.mark.parametrize("kind", ["crop", "own-sizes", "jpeg", "jpeg-own-sizes", "labels-own-sizes"])
def test_the_memory_of_dropped_batches_is_reused(
    kind: str, residency: str, prefetch: int, files_of: FilesOf, tune: Tune
) -> None:
    data = MemmapDataset(files_of(kind).path)
    tune(**small_sizes(data))
    found, taken = set[int](), []
    with MemmapLoader(data, 3, shuffle="full", residency=residency, prefetch=prefetch) as loader:
        for images, _ in itertools.chain.from_iterable(itertools.repeat(loader, 12)):
            storage = images[0].untyped_storage()
            found.add(storage.data_ptr())
            # freed memory would get the same address again
            taken.append(np.empty(storage.nbytes() + 4096, np.uint8))
    # an epoch has five batches; of sixty, few have their own memory
    assert len(found) <= 5 + prefetch + 5


ORDERS: dict[str, dict[str, Any]] = {
    "full": {"shuffle": "full"},
    "block": {"shuffle": "block"},
    "weights": {"weights": [1.0, 2.0] * 6 + [0.0]},
    "transform": {"shuffle": "full", "transform": RandomResizedCrop(16)},
}
# None of these options affects the order.
VARIANTS: list[dict[str, Any]] = [
    {"prefetch": 0},
    {"prefetch": 3},
    {"batch_size": 1},
    {"batch_size": 13},
    *({"residency": residency} for residency in RESIDENCIES),
]


def passes(path: Path, options: dict[str, Any], epochs: list[int]) -> list[list[tuple[int, bytes]]]:
    """Return the rows of some epochs, and their pixels."""
    data = MemmapDataset(path, as_tuple=False)
    found = []
    with MemmapLoader(data, **{"batch_size": 4, "seed": 3, "as_tuple": False} | options) as loader:
        for epoch in epochs:
            loader.set_epoch(epoch)
            each = [zip(batch.rows.tolist(), batch.pixels, strict=True) for batch in loader]
            found.append([(row, pixels.numpy().tobytes()) for row, pixels in itertools.chain(*each)])
    return found


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_is_of_seed_and_epoch_alone(
    order: str, files_of: FilesOf, process: ProcessPoolExecutor, tune: Tune
) -> None:
    path, options = files_of("crop").path, ORDERS[order]
    sizes = small_sizes(MemmapDataset(path))
    tune(**sizes)
    expected = passes(path, options, [0, 1, 2])
    for variant in VARIANTS:
        assert passes(path, options | variant, [2, 0, 1]) == [expected[2], *expected[:2]], variant
    assert process.submit(passes_there, path, options, [1, 2], sizes).result(120) == expected[1:]
    other = passes(path, options | {"seed": 4}, [0, 1, 2])
    orders = [[row for row, _ in rows] for rows in expected + other]
    assert all(one != two for one, two in itertools.combinations(orders, 2))


def passes_there(path: Path, options: dict[str, Any], epochs: list[int], sizes: dict[str, int]) -> Any:
    """Return `passes` from another process, which has its own environment."""
    with tuned(**sizes):
        return passes(path, options, epochs)
