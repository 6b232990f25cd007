"""Rows read ahead from a file: right in any plan, large reads where rows are together, errors that name the file."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune
from hypothesis import given, settings
from hypothesis import strategies as st

from reader.buffers import BufferPool
from reader.format.errors import StoreError
from reader.memory import row_file
from reader.memory.read_ahead import ReadAhead
from reader.memory.row_file import RowFile, plan_reads, read_all
from reader.order import BlockOrder
from reader.rows import Steps

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


@settings(max_examples=60)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=200),
    batch=st.integers(1, 50),
    chunk=st.integers(1, 120),
    window=st.integers(1, 90),
    past_cache=st.booleans(),
)
def test_any_plan_gives_the_rows_it_names(
    rows_file: Path, rows: list[int], batch: int, chunk: int, window: int, past_cache: bool
) -> None:
    order = np.array(rows, dtype=np.int64)
    steps = steps_of([order[i : i + batch] for i in range(0, len(order), batch)])
    reader = ReadAhead(
        rows_file,
        ROW_BYTES,
        iter(steps),
        chunk_rows=chunk,
        window_end=lambda position: (position // window + 1) * window,
        past_cache=past_cache,
    )
    got = []
    for step in reader:
        out = torch.zeros((len(step.batches[0]), ROW_BYTES), dtype=torch.uint8)
        reader.take(out)
        got.append(out.numpy())
    reader.close()
    assert np.array_equal(np.concatenate(got), contents()[order])


LARGE_ROW_BYTES = 16 << 10
LARGE_ROWS = 40


@pytest.fixture(scope="module")
def large_rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A file whose rows are read past the page cache each to a place of its own, and its rows."""
    path = tmp_path_factory.mktemp("large") / "rows"
    rows = np.random.default_rng(0).integers(0, 256, (LARGE_ROWS, LARGE_ROW_BYTES), dtype=np.uint8)
    path.write_bytes(rows.tobytes())
    file = RowFile(path, LARGE_ROW_BYTES, past_cache=True)
    file.close()
    if not file.is_direct:
        pytest.skip("no O_DIRECT on the file system of the temporary folder")
    return path, rows


def read_in_steps(
    path: Path, order: np.ndarray, *, batch: int = 8, chunk: int = 30, window: int = 1 << 30
) -> list[np.ndarray]:
    """Return the rows of all steps, each in the memory it was read into."""
    pool = BufferPool(batch * LARGE_ROW_BYTES, keep=3)
    reader = ReadAhead(
        path,
        LARGE_ROW_BYTES,
        iter(steps_of([order[i : i + batch] for i in range(0, len(order), batch)])),
        chunk_rows=chunk,
        window_end=lambda position: (position // window + 1) * window,
        past_cache=True,
        lease=pool.lease,
    )
    got = []
    try:
        for _ in reader:
            rows = reader.next_rows()
            assert rows is not None
            got.append(rows.numpy())
    finally:
        reader.close()
    return got


@settings(max_examples=60)
@given(
    rows=st.lists(st.integers(0, LARGE_ROWS - 1), min_size=1, max_size=120),
    batch=st.integers(1, 30),
    chunk=st.integers(1, 60),
    window=st.integers(1, 50),
)
def test_rows_are_read_straight_into_the_memory_of_their_step(
    large_rows: tuple[Path, np.ndarray], rows: list[int], batch: int, chunk: int, window: int
) -> None:
    path, contents = large_rows
    got = read_in_steps(path, np.array(rows), batch=batch, chunk=chunk, window=window)
    assert np.array_equal(np.concatenate(got), contents[rows])


@pytest.mark.parametrize("together", [1, 3, 64])
def test_rows_of_a_large_read_go_to_many_offsets_by_way_of_little_memory(
    large_rows: tuple[Path, np.ndarray], together: int, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, contents = large_rows
    tune(staged_read_bytes=together * LARGE_ROW_BYTES)
    into, read_into = list[int](), RowFile.read_into

    def counted(file: RowFile, memories: Sequence[memoryview], row: int, count: int) -> None:
        into.append(count)
        read_into(file, memories, row, count)

    monkeypatch.setattr(RowFile, "read_into", counted)
    # every row but 5 and 6, which are read with the others, and some twice
    order = np.random.default_rng(2).permutation(np.delete(np.arange(LARGE_ROWS), [5, 6]).repeat(2))
    assert np.array_equal(np.concatenate(read_in_steps(path, order, chunk=100)), contents[order])
    assert min(together, 10) <= max(into) <= together


def test_a_read_that_brings_less_is_continued_where_it_ended(
    large_rows: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, contents = large_rows
    read = os.preadv
    # half a row, one row, and one and a half
    halves = itertools.cycle((1, 2, 3))

    def less(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        most, given = next(halves) * LARGE_ROW_BYTES // 2, []
        for buffer in buffers:
            given += [buffer[:most]] if most else []
            most -= len(buffer[:most])
        return read(descriptor, given, offset)

    monkeypatch.setattr(os, "preadv", less)
    order = np.random.default_rng(1).permutation(LARGE_ROWS)
    assert np.array_equal(np.concatenate(read_in_steps(path, order)), contents[order])


def test_a_file_cut_short_while_its_rows_are_scattered_is_named(
    large_rows: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    short = tmp_path / "short"
    short.write_bytes(large_rows[1][:10].tobytes()[:-5])
    with pytest.raises(StoreError, match=r"short ends at byte 163835: it was cut short while it was read"):
        read_in_steps(short, np.arange(20))


@settings(max_examples=200)
@given(
    rows=st.lists(st.integers(0, 300), min_size=1, max_size=80),
    row_bytes=st.sampled_from([1, 3, 784, 1024, 4096, 100_000, 150_528, 9 << 20]),
    align=st.sampled_from([1, 512, 4096]),
)
def test_reads_bring_each_row_once_and_none_reaches_into_another(rows: list[int], row_bytes: int, align: int) -> None:
    reads, slots, count = plan_reads(np.array(rows, dtype=np.int64), row_bytes, align)
    held: dict[int, int] = {}
    touched: list[tuple[int, int, int]] = []  # in memory: start, stop, distance to the file's offset
    for row, size, slot in reads:
        assert size * row_bytes <= max(row_file.READ_BYTES, row_bytes)
        assert (slot - row) * row_bytes % align == 0
        assert not any(slot + i in held for i in range(size))
        held |= {slot + i: row + i for i in range(size)}
        first, last = slot * row_bytes, (slot + size) * row_bytes
        touched.append((first - first % align, last + -last % align, (slot - row) * row_bytes))
    assert [held[int(slot)] for slot in slots] == rows
    assert [row for row, _, _ in reads] == sorted(row for row, _, _ in reads)
    assert touched[0][0] >= 0
    assert touched[-1][1] <= count * row_bytes + align
    for (_, stop, distance), (start, _, next_distance) in itertools.pairwise(touched):
        assert start >= stop or distance == next_distance, "overlapping blocks must hold the same bytes of the file"


@pytest.mark.parametrize("seed", range(3))
def test_a_window_of_blocks_is_read_in_large_pieces(seed: int) -> None:
    row_bytes, block = 150_528, (8 << 20) // 150_528
    order = BlockOrder(100_000, block, 32, seed=seed, epoch=0)
    end = order.window_end(0)
    reads, _, _ = plan_reads(order.rows(0, end), row_bytes)
    assert sum(count for _, count, _ in reads) == end == 32 * block
    # each block is a read of its own; neighbours that both are in the window are one stretch of the file
    assert len(reads) <= 33
    assert min(count for _, count, _ in reads[:-1]) * row_bytes > 7 << 20


def test_rows_that_are_contiguous_are_one_read() -> None:
    reads, _, _ = plan_reads(np.random.default_rng(0).permutation(50) + 7, 150_528)
    assert reads == [(7, 50, 0)]


@pytest.mark.parametrize("call", ["preadv", "fstat", "open", "read_all"])
def test_a_file_that_another_host_has_replaced_is_named(
    rows_file: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """NFS keeps no file that is open on another host than the one that removes it."""
    file = RowFile(rows_file, 7, past_cache=False)

    def stale(*_: Any) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle")

    asking: dict[str, Any] = {
        "preadv": lambda: file.read(memoryview(bytearray(28)), [(0, 4, 0)]),
        "fstat": lambda: file.check_size(70),
        "open": lambda: file.opened,
        "read_all": lambda: read_all(rows_file, 7, 4, past_cache=False),
    }

    def gone() -> None:
        # for this call alone: pytest makes the same ones
        with monkeypatch.context() as patch:
            patch.setattr(os, "open" if call == "read_all" else call, stale)
            asking[call]()

    with pytest.raises(StoreError, match=r"rows was packed again since it was opened\. Open the dataset again"):
        gone()


def test_a_file_cut_short_is_named(rows_file: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(rows_file.read_bytes()[: 10 * ROW_BYTES + 5])
    with pytest.raises(
        StoreError, match=r"short ends at byte 245: it was cut short while it was read\. Copy the store"
    ):
        read_all(short, ROW_BYTES, ROWS, past_cache=False)
    reader = ReadAhead(
        short, ROW_BYTES, iter(steps_of([np.arange(20)])), chunk_rows=8, window_end=lambda _: ROWS, past_cache=False
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
        read_all(rows_file, ROW_BYTES, ROWS, past_cache=False)


def test_all_of_the_file_is_read(rows_file: Path) -> None:
    assert np.array_equal(read_all(rows_file, ROW_BYTES, ROWS, past_cache=True).numpy(), contents())


@pytest.mark.parametrize("row_bytes", [3, 784, 1536, 150_528])
def test_reads_past_the_cache_bring_the_same_rows(tmp_path: Path, row_bytes: int) -> None:
    count = 9_000_000 // row_bytes if row_bytes > 3 else 5_000
    rows = np.random.default_rng(1).integers(0, 256, (count, row_bytes), dtype=np.uint8)
    path = tmp_path / "rows"
    path.write_bytes(rows.tobytes())
    file = RowFile(path, row_bytes, past_cache=True)
    if not file.is_direct:
        file.close()
        pytest.skip("no O_DIRECT on the file system of the temporary folder")
    wanted = np.concatenate([np.arange(0, count, 7), [count - 1, 0, 1]])
    reads, slots, slot_count = plan_reads(wanted, row_bytes, file.align)
    memory = row_file.RowMemory(slot_count, row_bytes)
    file.read(memory.bytes, reads)
    file.close()
    assert np.array_equal(memory.rows.numpy()[slots], rows[wanted])
    assert np.array_equal(read_all(path, row_bytes, count, past_cache=True).numpy(), rows)


def test_rows_that_share_no_factor_with_a_block_are_read_through_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(10 * 151_875))
    file = RowFile(path, 151_875, past_cache=True)
    assert not file.is_direct
    file.close()


def test_a_file_cut_short_between_two_reads_past_the_cache_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(4096 * 10))
    file = RowFile(path, 1024, past_cache=True)
    os.truncate(path, 4096 * 5 + 100)
    with pytest.raises(StoreError, match="rows ends at byte 20580: it was cut short"):
        file.read(row_file.RowMemory(40, 1024).bytes, [(0, 40, 0)])
    file.close()


def test_a_pass_starts_no_thread_of_an_executor_whose_callbacks_would_lose_an_interrupt(
    rows_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", None)
    reader = ReadAhead(
        rows_file, ROW_BYTES, iter(steps_of([np.arange(20)])), chunk_rows=8, window_end=lambda _: ROWS, past_cache=False
    )
    next(iter(reader))
    out = torch.zeros((20, ROW_BYTES), dtype=torch.uint8)
    reader.take(out)
    reader.close()
    assert np.array_equal(out.numpy(), contents()[:20])
    assert np.array_equal(read_all(rows_file, ROW_BYTES, ROWS, past_cache=False).numpy(), contents())
