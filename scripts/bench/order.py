"""Benchmarks of the order of an epoch: its cost and its randomness."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from reader.shuffling import BlockOrder, permuted
from scripts.bench.data import in_child
from scripts.bench.harness import Lab, Way, bench, require

GROUP, BATCH = 1000, 256
# Positions that MemmapLoader asks for at a time, and its blocks of 8 MiB, of rows of 224 x 224 x 3.
CHUNK, BLOCK_ROWS, WINDOW_BLOCKS = 1 << 16, 55, 32

Order = Callable[[int], Iterator[np.ndarray]]


def randperm(count: int) -> Iterator[np.ndarray]:
    yield torch.randperm(count).numpy()


def numpy_permutation(count: int) -> Iterator[np.ndarray]:
    yield np.random.default_rng(0).permutation(count)


def groups(count: int) -> Iterator[np.ndarray]:
    """Groups in random order, each shuffled inside."""
    generator = np.random.default_rng(0)
    starts = generator.permutation(-(-count // GROUP)) * GROUP
    rows = starts[:, None] + np.arange(GROUP)
    shuffled = generator.permuted(rows, axis=1, out=rows).reshape(-1)
    yield shuffled[shuffled < count]


def full(count: int) -> Iterator[np.ndarray]:
    for start in range(0, count, CHUNK):
        yield permuted(count, start, min(count, start + CHUNK), seed=0)


def block(count: int, window_blocks: int = WINDOW_BLOCKS) -> Iterator[np.ndarray]:
    order = BlockOrder(count, BLOCK_ROWS, window_blocks, seed=0, epoch=0)
    for start in range(0, count, CHUNK):
        yield order.rows(start, min(count, start + CHUNK))


ORDERS: dict[str, Order] = {
    "torch.randperm": randperm,
    "numpy permutation": numpy_permutation,
    "groups of 1,000, shuffled inside": groups,
    'MemmapLoader "full"': full,
    'MemmapLoader "block"': block,
}


@bench(
    "What does the order of an epoch cost, from 100,000 to 100 million rows?",
    claim="Random numbers for an epoch of a big array are slow; groups in random order, shuffled inside, are fast.",
)
def epoch_order(lab: Lab) -> Iterator[Way]:
    for count in lab.pick((10**5, 10**6, 10**7, 10**8), (10**4,)):
        for name, order in ORDERS.items():
            if count <= 10**6:
                require(_has_each_row(np.concatenate([*order(count)])), f"{name} does not have each row once.")
        turns = [
            {name: in_child(_one_epoch, order, count) for name, order in ORDERS.items()} for _ in range(lab.pick(3, 1))
        ]
        for name in ORDERS:
            first, whole, mib = (
                statistics.median(values) for values in zip(*(turn[name] for turn in turns), strict=True)
            )
            columns = {"to the first batch, ms": 1e3 * first, "whole epoch, ms": 1e3 * whole, "MiB": round(mib)}
            yield Way(f"{count:,} rows: {name}", columns=columns)


@bench(
    "How random is an order of ImageNet's rows, sorted by class, in batches of 256?",
    claim="Groups in random order, shuffled inside, can stand for a permutation of all rows.",
)
def randomness(lab: Lab) -> Iterator[Way]:
    rows, classes = lab.pick((1_281_167, 1_000), (20_000, 100))
    labels = np.arange(rows) * classes // rows
    orders = {name: order for name, order in ORDERS.items() if order not in (randperm, block)}
    for window in (1, 4, 8, 32, 128, 512):
        megabytes = window * BLOCK_ROWS * 224 * 224 * 3 / 1e6
        orders[f'MemmapLoader "block", windows of {megabytes:,.0f} MB'] = partial(block, window_blocks=window)
    for name, order in orders.items():
        found = np.concatenate([*order(rows)])
        require(_has_each_row(found), f"{name} does not have each row once.")
        batches = labels[found][: rows // BATCH * BATCH].reshape(-1, BATCH)
        seen = statistics.fmean(len(np.unique(batch)) for batch in batches)
        # 1: as far apart as independent rows, a third of the store
        neighbors = 3 * np.abs(np.diff(found)).mean() / rows
        moved = 3 * np.abs(found - np.arange(rows)).mean() / rows
        columns = {"neighbors apart": round(neighbors, 3), "moved": round(moved, 3), "classes a batch": round(seen, 1)}
        yield Way(name, columns=columns)


def _has_each_row(order: np.ndarray) -> bool:
    return np.array_equal(np.sort(order), np.arange(len(order)))


def _one_epoch(order: Order, count: int) -> tuple[float, float, float]:
    """Return seconds to the first batch and of the epoch, and the rise of peak memory in MiB."""
    # the first run touches pages of its libraries
    for _ in order(10_000):
        pass
    Path("/proc/self/clear_refs").write_text("5")
    before, started = _peak_mib(), time.perf_counter()
    pieces = order(count)
    piece = next(pieces)
    first = time.perf_counter() - started
    for piece in pieces:
        del piece
    return first, time.perf_counter() - started, _peak_mib() - before


def _peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
