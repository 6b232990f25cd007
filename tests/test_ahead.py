"""Rows read ahead from a file: right in any plan, large reads where rows lie together, errors that name the file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reader import ahead
from reader.ahead import ReadAhead, plan_reads, read_all
from reader.manifest import StoreError
from reader.order import Steps

ROW_BYTES = 24
ROWS = 500


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ahead") / "rows"
    path.write_bytes(contents().tobytes())
    return path


def contents() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8)


def steps_of(batches: list[np.ndarray]) -> list[Steps]:
    starts = np.concatenate([[0], np.cumsum([len(b) for b in batches])]).tolist()
    return [Steps([b], [s], [e]) for b, s, e in zip(batches, starts, starts[1:], strict=False)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=200),
    batch=st.integers(1, 50),
    chunk=st.integers(1, 120),
    window=st.integers(1, 90),
    forget=st.booleans(),
)
def test_any_plan_gives_the_rows_it_names(
    rows_file: Path, rows: list[int], batch: int, chunk: int, window: int, forget: bool
) -> None:
    order = np.array(rows, dtype=np.int64)
    steps = steps_of([order[i : i + batch] for i in range(0, len(order), batch)])
    reader = ReadAhead(
        rows_file,
        ROW_BYTES,
        iter(steps),
        chunk_rows=chunk,
        window_end=lambda position: (position // window + 1) * window,
        forget=forget,
    )
    got = []
    for step in reader:
        out = torch.zeros((len(step.batches[0]), ROW_BYTES), dtype=torch.uint8)
        reader.take(out)
        got.append(out.numpy())
    reader.close()
    assert np.array_equal(np.concatenate(got), contents()[order])


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.integers(0, 300), min_size=1, max_size=80), row_bytes=st.sampled_from([1, 4096, 100_000, 9 << 20])
)
def test_reads_cover_each_row_once_in_file_order(rows: list[int], row_bytes: int) -> None:
    reads, slots, count = plan_reads(np.array(rows, dtype=np.int64), row_bytes)
    held = {}
    for row, size, slot in reads:
        assert size * row_bytes <= max(ahead._READ_BYTES, row_bytes)
        held |= {slot + i: row + i for i in range(size)}
    assert [held[int(slot)] for slot in slots] == rows
    assert sorted(held) == list(range(count))
    assert [row for row, _, _ in reads] == sorted(row for row, _, _ in reads)
    assert count <= 2 * len(set(rows))


def test_rows_that_lie_together_are_one_read() -> None:
    reads, _, _ = plan_reads(np.random.default_rng(0).permutation(50) + 7, 150_528)
    assert reads == [(7, 50, 0)]


def test_a_file_cut_short_is_named(rows_file: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(rows_file.read_bytes()[: 10 * ROW_BYTES + 5])
    with pytest.raises(
        StoreError, match=r"short ends at byte 245: it was cut short while it was read\. Copy the store"
    ):
        read_all(short, ROW_BYTES, ROWS, forget=False)
    reader = ReadAhead(
        short, ROW_BYTES, iter(steps_of([np.arange(20)])), chunk_rows=8, window_end=lambda _: ROWS, forget=False
    )
    next(iter(reader))
    with pytest.raises(StoreError, match="short ends at byte 245"):
        reader.take(torch.zeros((20, ROW_BYTES), dtype=torch.uint8))
    reader.close()


def test_a_read_error_names_the_file(rows_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match=r"Input/output error: '.*rows'"):
        read_all(rows_file, ROW_BYTES, ROWS, forget=False)


def test_the_whole_file_is_read(rows_file: Path) -> None:
    assert np.array_equal(read_all(rows_file, ROW_BYTES, ROWS, forget=True).numpy(), contents())
