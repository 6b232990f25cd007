"""Transforms of a loader run on its threads: what is done to each row by itself in parts, the rest with whole batches."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Tune

from reader import (
    Compose,
    ImageBatch,
    MemmapDataset,
    MemmapLoader,
    RandomHorizontalFlip,
    RandomResizedCrop,
    compiled,
    system,
)
from reader.transforms import CutMix, MixUp, MultiCrop, RandAugment, RandomApply, RandomErasing


@pytest.fixture
def train(shared_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store)


@pytest.fixture(autouse=True)
def lengths(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Cut batches into parts of a few rows; gives the length of each crop's batch, and whether it ran on a thread of parts.

    Without the compiled part, which takes whole batches.
    """
    monkeypatch.setattr(compiled, "_function", lambda: None)
    tune(transform_part_bytes=20_000, least_transform_part_bytes=1)
    found, original = [], RandomResizedCrop.boxes

    def boxes(crop: RandomResizedCrop, batch: Any) -> torch.Tensor:
        found.append((len(batch), threading.current_thread().name.startswith("Dummy")))
        return original(crop, batch)

    monkeypatch.setattr(RandomResizedCrop, "boxes", boxes)
    return found


def epoch(train: MemmapDataset, transform: Any, **options: Any) -> list[Any]:
    loader = MemmapLoader(train, 30, shuffle="full", transform=transform, **options)
    with loader:
        for _ in loader:
            pass
        return list(loader)


@pytest.mark.parametrize(
    "transform",
    [
        RandomResizedCrop(24),
        Compose([RandomResizedCrop(24), RandomHorizontalFlip(), RandAugment(), RandomErasing(0.5)]),
        Compose([RandomResizedCrop(24), Compose([RandomHorizontalFlip(), MixUp(num_classes=3)]), RandomErasing(1)]),
        Compose([RandomApply([CutMix(num_classes=3)]), lambda batch: batch, RandomResizedCrop(24)]),
        MultiCrop(2, 1, global_size=24, local_size=8),
    ],
)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_any_number_of_threads_gives_the_same(train: MemmapDataset, transform: Any, prefetch: int) -> None:
    expected = epoch(train, transform, threads=1)
    for threads in (2, 3):
        for found, batch in zip(epoch(train, transform, threads=threads, prefetch=prefetch), expected, strict=True):
            for a, b in zip(found, batch, strict=True):
                assert all(map(torch.equal, a, b)) if isinstance(a, list) else torch.equal(a, b)


def test_rows_go_in_parts_and_what_needs_the_batch_gets_it(train: MemmapDataset, lengths: list[Any]) -> None:
    full = []

    def looked(batch: ImageBatch) -> ImageBatch:
        full.append((len(batch), threading.current_thread().name))
        return batch

    epoch(train, Compose([RandomResizedCrop(24), looked, RandomResizedCrop(24)]), threads=2)
    assert {*full} == {(30, threading.current_thread().name)}
    # 30 rows of 3072 bytes in 6 parts, of 1728 in 4
    assert {*lengths} == {(5, True), (7, True), (8, True)}
    lengths.clear()
    # which one it is holds for a batch
    epoch(train, RandomApply([RandomResizedCrop(32), MixUp(num_classes=3)], p=1), threads=2)
    assert {*lengths} == {(30, False)}
    lengths.clear()
    epoch(train, RandomResizedCrop(24), threads=1)
    assert {*lengths} == {(30, False)}


def test_modes_of_the_loop_reach_the_threads(train: MemmapDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, original = [], RandomHorizontalFlip.__call__

    def call(self: RandomHorizontalFlip, batch: ImageBatch) -> ImageBatch:
        seen.append(torch.is_inference_mode_enabled())
        return original(self, batch)

    monkeypatch.setattr(RandomHorizontalFlip, "__call__", call)
    with torch.inference_mode():
        epoch(train, RandomHorizontalFlip(), threads=2)
    assert {*seen} == {True}


def test_an_error_in_a_thread_names_the_rows_and_ends_the_loop(train: MemmapDataset) -> None:
    with pytest.raises(ValueError, match="takes 1 or 3|value is"):
        epoch(train, RandomErasing(1, value=(1, 2)), threads=2)


def test_threads_default_to_the_cpus_that_are_ours(train: MemmapDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system.os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(system, "_cgroup_cpus", lambda: 5.5)
    assert MemmapLoader(train, 8).threads == 6
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert MemmapLoader(train, 8, rank=1, world_size=4).threads == 1
    assert MemmapLoader(train, 8, threads=3).threads == 3


@pytest.mark.parametrize("threads", [0, -1, 1.5, "two"])
def test_other_numbers_of_threads_are_refused(train: MemmapDataset, threads: Any) -> None:
    with pytest.raises(ValueError, match=r"threads is .*expected"):
        MemmapLoader(train, 8, threads=threads)
