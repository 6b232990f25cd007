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
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reader.buffers import BufferPool
from reader.format.errors import StoreError
from reader.memory.raw_file import GAP_BYTES, READ_BYTES, RawFile, ReadMemory, read_all
from reader.memory.read_ahead import ReadAhead
from reader.memory.spans import Runs, Spans
from reader.order import BlockOrder
from reader.rows import Rows, Steps

ROW_BYTES = 24
ROWS = 500


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ahead") / "rows"
    path.write_bytes(contents().tobytes())
    return path


def contents() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8)


def spans_of(rows: Rows, row_bytes: int = ROW_BYTES) -> Spans:
    """Return where rows of one size are in their file."""
    return Spans(rows * row_bytes, np.full(len(rows), row_bytes))


def places_of(rows: Rows, row_bytes: int = ROW_BYTES) -> Rows:
    """Return where each row begins if they are one after the other."""
    return np.arange(len(rows)) * row_bytes


def taken(reader: ReadAhead, rows: Rows) -> np.ndarray:
    """Return the rows of the reader's next step."""
    out = torch.zeros(len(rows) * ROW_BYTES, dtype=torch.uint8)
    reader.read(spans_of(rows), out, places_of(rows))
    return out.numpy().reshape(-1, ROW_BYTES)


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
# windows that end within a batch: of short plans hypothesis may try none
@example(rows=[*range(60, 0, -1)], batch=7, chunk=20, window=10, past_cache=False)
def test_any_plan_gives_the_rows_it_names(
    rows_file: Path, rows: list[int], batch: int, chunk: int, window: int, past_cache: bool
) -> None:
    order = np.array(rows, dtype=np.int64)
    steps = steps_of([order[i : i + batch] for i in range(0, len(order), batch)])
    reader = ReadAhead(
        [rows_file],
        spans_of,
        chunk_bytes=chunk * ROW_BYTES,
        window_end=lambda position: (position // window + 1) * window,
        past_cache=past_cache,
    )
    got = [taken(reader, step.batches[0]) for step in reader.ahead(iter(steps))]
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
    file = RawFile(path, past_cache=True)
    file.close()
    if not file.is_direct:
        pytest.skip("no O_DIRECT on the file system of the temporary folder")
    return path, rows


def _no_memory(size_bytes: int) -> torch.Tensor:
    raise AssertionError


def read_in_steps(
    path: Path, order: np.ndarray, *, batch: int = 8, chunk: int = 30, window: int = 1 << 30
) -> list[np.ndarray]:
    """Return the rows of all steps, each in the memory it was read into."""
    pool = BufferPool(batch * LARGE_ROW_BYTES, keep=3)
    reader = ReadAhead(
        [path],
        lambda rows: spans_of(rows, LARGE_ROW_BYTES),
        chunk_bytes=chunk * LARGE_ROW_BYTES,
        window_end=lambda position: (position // window + 1) * window,
        past_cache=True,
        row_bytes=LARGE_ROW_BYTES,
        lease=pool.lease,
    )
    got = []
    try:
        for step in reader.ahead(iter(steps_of([order[i : i + batch] for i in range(0, len(order), batch)]))):
            spans = spans_of(step.batches[0], LARGE_ROW_BYTES)
            rows, _ = reader.bring(spans, places_of(step.batches[0], LARGE_ROW_BYTES), _no_memory)
            got.append(rows.numpy().reshape(-1, LARGE_ROW_BYTES))
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
    into, read_into = list[int](), RawFile.read_into

    def counted(file: RawFile, memories: Sequence[memoryview], start: int, size: int) -> None:
        into.append(size // LARGE_ROW_BYTES)
        read_into(file, memories, start, size)

    monkeypatch.setattr(RawFile, "read_into", counted)
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
    spans = spans_of(np.array(rows, dtype=np.int64), row_bytes)
    runs = Runs.holding(spans, align=align, most_gap_bytes=GAP_BYTES)
    reads, places = runs.reads(READ_BYTES, align), runs.find(spans)
    assert places is not None
    touched: list[tuple[int, int, int]] = []  # in memory: start, stop, distance to the file's offset
    for start, size, place in reads:
        assert size <= READ_BYTES
        assert (place - start) % align == 0
        touched.append((place - place % align, place + size + -(place + size) % align, place - start))
    assert [start for start, _, _ in reads] == sorted(start for start, _, _ in reads)
    assert touched[0][0] >= 0
    assert touched[-1][1] <= runs.size_bytes
    for (_, stop, distance), (start, _, next_distance) in itertools.pairwise(touched):
        assert start >= stop or distance == next_distance, "overlapping blocks must hold the same bytes of the file"
    held = np.full(runs.size_bytes, -1)
    if runs.size_bytes < 1 << 21:
        for start, size, place in reads:
            assert (held[place : place + size] == -1).all()
            held[place : place + size] = np.arange(start, start + size)
        for begin, place in zip(spans.begins.tolist(), places.tolist(), strict=True):
            assert (held[place : place + row_bytes] == np.arange(begin, begin + row_bytes)).all()


@settings(max_examples=200)
@given(
    held=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), max_size=20),
    asked=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), min_size=1, max_size=8),
    align=st.sampled_from([1, 8]),
)
def test_runs_say_where_spans_are_or_that_they_are_not_all_there(
    held: list[tuple[int, int]], asked: list[tuple[int, int]], align: int
) -> None:
    def spans(pairs: list[tuple[int, int]]) -> Spans:
        return Spans(*np.array(pairs, np.int64).reshape(-1, 2).T)

    runs, file = Runs.holding(spans(held), align=align), np.arange(240)
    memory = np.full(runs.size_bytes, -1)
    for start, size, place in runs.reads(16, align):
        memory[place : place + size] = file[start : start + size]
    there = {byte for begin, size in held for byte in range(begin, begin + size)}
    places = runs.find(spans(asked))
    if places is None:
        # an empty span is somewhere only where it begins in a run, or ends one
        assert any(size == 0 or not {*range(begin, begin + size)} <= there for begin, size in asked)
    else:
        for (begin, size), place in zip(asked, places.tolist(), strict=True):
            assert memory[place : place + size].tolist() == file[begin : begin + size].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_a_window_of_blocks_is_read_in_large_pieces(seed: int) -> None:
    row_bytes, block = 150_528, (8 << 20) // 150_528
    order = BlockOrder(100_000, block, 32, seed=seed, epoch=0)
    end = order.window_end(0)
    spans = spans_of(order.rows(0, end), row_bytes)
    reads = Runs.holding(spans, most_gap_bytes=GAP_BYTES).reads(READ_BYTES // row_bytes * row_bytes)
    assert sum(size for _, size, _ in reads) == end * row_bytes == 32 * block * row_bytes
    # each block is a read of its own; neighbours that both are in the window are one stretch of the file
    assert len(reads) <= 33
    assert min(size for _, size, _ in reads[:-1]) > 7 << 20


def test_rows_that_are_contiguous_are_one_read() -> None:
    spans = spans_of(np.random.default_rng(0).permutation(50) + 7, 150_528)
    assert Runs.holding(spans).reads(READ_BYTES) == [(7 * 150_528, 50 * 150_528, 0)]


@pytest.mark.parametrize("call", ["preadv", "fstat", "open", "read_all"])
def test_a_file_that_another_host_has_replaced_is_named(
    rows_file: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """NFS keeps no file that is open on another host than the one that removes it."""
    file = RawFile(rows_file, past_cache=False)

    def stale(*_: Any) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle")

    asking: dict[str, Any] = {
        "preadv": lambda: file.read(memoryview(bytearray(28)), [(0, 28, 0)]),
        "fstat": lambda: file.check_size(70),
        "open": lambda: file.opened,
        "read_all": lambda: read_all(rows_file, 28, past_cache=False),
    }

    def gone() -> None:
        # for this call alone: pytest makes the same ones
        with monkeypatch.context() as patch:
            patch.setattr(os, "open" if call == "read_all" else call, stale)
            asking[call]()

    with pytest.raises(StoreError, match=r"rows was packed again since it was opened\. Open the dataset again"):
        gone()


def first_rows_of(path: Path) -> ReadAhead:
    """Return what reads the first 20 rows of a file in a step, which has begun."""
    reader = ReadAhead(
        [path],
        spans_of,
        chunk_bytes=8 * ROW_BYTES,
        window_end=lambda _: ROWS,
        past_cache=False,
    )
    next(reader.ahead(iter(steps_of([np.arange(20)]))))
    return reader


def test_a_file_cut_short_is_named(rows_file: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(rows_file.read_bytes()[: 10 * ROW_BYTES + 5])
    with pytest.raises(
        StoreError, match=r"short ends at byte 245: it was cut short while it was read\. Copy the store"
    ):
        read_all(short, ROW_BYTES * ROWS, past_cache=False)
    reader = first_rows_of(short)
    with pytest.raises(StoreError, match="short ends at byte 245"):
        taken(reader, np.arange(20))
    reader.close()


def test_a_read_error_names_the_file(rows_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match=r"Input/output error: '.*rows'"):
        read_all(rows_file, ROW_BYTES * ROWS, past_cache=False)


def test_all_of_the_file_is_read(rows_file: Path) -> None:
    assert read_all(rows_file, ROW_BYTES * ROWS, past_cache=True).numpy().tobytes() == contents().tobytes()


@pytest.mark.parametrize("row_bytes", [3, 784, 1536, 150_528, 151_875])
def test_reads_past_the_cache_bring_the_same_rows(tmp_path: Path, row_bytes: int) -> None:
    count = 9_000_000 // row_bytes if row_bytes > 3 else 5_000
    rows = np.random.default_rng(1).integers(0, 256, (count, row_bytes), dtype=np.uint8)
    path = tmp_path / "rows"
    path.write_bytes(rows.tobytes())
    file = RawFile(path, past_cache=True)
    if not file.is_direct:
        file.close()
        pytest.skip("no O_DIRECT on the file system of the temporary folder")
    wanted = np.concatenate([np.arange(0, count, 7), [count - 1, 0, 1]])
    spans = spans_of(wanted, row_bytes)
    runs = Runs.holding(spans, align=file.align, most_gap_bytes=GAP_BYTES)
    memory, places = ReadMemory(runs.size_bytes), runs.find(spans)
    file.read(memory.room, runs.reads(READ_BYTES, file.align))
    file.close()
    assert places is not None
    assert np.array_equal(memory.bytes.numpy()[places[:, None] + np.arange(row_bytes)], rows[wanted])
    assert read_all(path, count * row_bytes, past_cache=True).numpy().tobytes() == rows.tobytes()


def test_a_file_cut_short_between_two_reads_past_the_cache_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(4096 * 10))
    file = RawFile(path, past_cache=True)
    os.truncate(path, 4096 * 5 + 100)
    with pytest.raises(StoreError, match="rows ends at byte 20580: it was cut short"):
        file.read(ReadMemory(40 * 1024).room, [(0, 40 * 1024, 0)])
    file.close()


def test_a_pass_starts_no_thread_of_an_executor_whose_callbacks_would_lose_an_interrupt(
    rows_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", None)
    reader = first_rows_of(rows_file)
    out = taken(reader, np.arange(20))
    reader.close()
    assert np.array_equal(out, contents()[:20])
    assert read_all(rows_file, ROW_BYTES * ROWS, past_cache=False).numpy().tobytes() == contents().tobytes()
