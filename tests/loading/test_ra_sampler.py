"""RASampler gives the rows that torchvision's references and timm give, and a loader augments each repetition otherwise."""

from __future__ import annotations

import math

import pytest
import torch

from reader import MemmapDataset, MemmapLoader, RandomErasing, RASampler


def by_lists(count: int, replicas: int, rank: int, seed: int, repetitions: int) -> list[int]:
    """Return an epoch's rows as the algorithm is published, list by list."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    repeated = [row for row in order for _ in range(repetitions)]
    total = math.ceil(count * repetitions / replicas) * replicas
    repeated += repeated[: total - len(repeated)]
    return repeated[rank:total:replicas][: math.floor(count // 256 * 256 / replicas)]


@pytest.mark.parametrize(("count", "replicas", "repetitions"), [(256, 1, 3), (1000, 2, 3), (700, 3, 4), (600, 5, 1)])
def test_rows_are_those_of_the_published_algorithm(count: int, replicas: int, repetitions: int) -> None:
    for rank in range(replicas):
        sampler = RASampler(range(count), replicas, rank, seed=3, repetitions=repetitions)
        for epoch in (0, 2):
            sampler.set_epoch(epoch)
            expected = by_lists(count, replicas, rank, 3 + epoch, repetitions)
            assert list(sampler) == expected
            assert len(sampler) == len(expected)


def test_a_loader_augments_each_repetition_otherwise_and_sets_the_epoch(train: MemmapDataset) -> None:
    loader = MemmapLoader(
        train, 6, sampler=RASampler(train, repetitions=2), as_tuple=False, transform=RandomErasing(1.0, value="random")
    )
    epochs = [list(loader) for _ in range(2)]
    rows = [torch.cat([batch.rows for batch in epoch]) for epoch in epochs]
    assert [len(found) for found in rows] == [90, 90]
    assert torch.equal(rows[0][::2], rows[0][1::2])
    assert not torch.equal(rows[0], rows[1])
    pixels = epochs[0][0].pixels
    assert all(not torch.equal(pixels[n], pixels[n + 1]) for n in (0, 2, 4))


def test_what_is_no_number_of_repetitions_is_refused(train: MemmapDataset) -> None:
    with pytest.raises(ValueError, match="repetitions is 0, expected 1 or more"):
        RASampler(train, repetitions=0)
