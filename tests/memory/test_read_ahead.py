"""Rows read ahead from a file: right in any plan, large reads where rows are together, errors that name the file."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reader.buffers import BufferPool, allocated, own_memory
from reader.compiled import span_reader
from reader.format.errors import StoreError
from reader.memory import raw_file
from reader.memory.raw_file import GAP_BYTES, RawFile, begin_reads
from reader.memory.read_ahead import ReadAhead
from reader.memory.spans import Spans, pieces_of, runs_of
from reader.rows import Rows, Steps
from reader.shuffling import BlockOrder

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


@contextmanager
def compiled_or_not(is_compiled: bool) -> Iterator[None]:
    """Read by the compiled part, where it is built, or without it."""
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(raw_file, "span_reader", lambda: None)
        yield


def taken(reader: ReadAhead, rows: Rows) -> np.ndarray:
    """Return the rows of the reader's next step."""
    out, _ = reader.load(spans_of(rows), places_of(rows), own_memory)
    return out.numpy().reshape(-1, ROW_BYTES)


def steps_of(batches: list[np.ndarray]) -> list[Steps]:
    starts = np.concatenate([[0], np.cumsum([len(b) for b in batches])]).tolist()
    return [Steps([b], [s], [e]) for b, s, e in zip(batches, starts, starts[1:], strict=False)]


@settings(max_examples=100)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=200),
    batch=st.integers(1, 50),
    group=st.integers(1, 4),
    chunk=st.integers(1, 120),
    window=st.integers(1, 90),
    past_cache=st.booleans(),
    is_compiled=st.booleans(),
    is_batch=st.booleans(),
)
# windows that end within a batch: of short plans hypothesis may try none
@example(
    rows=[*range(60, 0, -1)],
    batch=7,
    group=1,
    chunk=20,
    window=10,
    past_cache=False,
    is_compiled=True,
    is_batch=True,
)
def test_any_plan_gives_the_rows_it_names(
    rows_file: Path,
    rows: list[int],
    batch: int,
    group: int,
    chunk: int,
    window: int,
    past_cache: bool,
    is_compiled: bool,
    is_batch: bool,
) -> None:
    order = np.array(rows, dtype=np.int64)
    each = iter(steps_of([order[i : i + batch] for i in range(0, len(order), batch)]))
    steps = list[Steps]()
    while together := list(itertools.islice(each, group)):
        steps.append(_together(together))
    pool = BufferPool(keep=3)
    with compiled_or_not(is_compiled):
        reader = ReadAhead(
            rows_file,
            spans_of,
            chunk_bytes=chunk * ROW_BYTES,
            window_end=lambda position: (position // window + 1) * window,
            past_cache=past_cache,
            lease=pool.lease,
            is_batch=is_batch,
        )
        got = [taken(reader, np.concatenate(step.batches)) for step in reader.ahead(iter(steps))]
        reader.close()
    assert np.array_equal(np.concatenate(got), contents()[order])


def _together(steps: list[Steps]) -> Steps:
    """Return steps of a batch each as one group."""
    return Steps(
        [each.batches[0] for each in steps], [each.starts[0] for each in steps], [each.positions[0] for each in steps]
    )


FILE = np.random.default_rng(3).integers(0, 256, 51_200, dtype=np.uint8)


@pytest.fixture(scope="module")
def bytes_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bytes") / "pixels"
    path.write_bytes(FILE.tobytes())
    return path


@settings(max_examples=150)
@given(
    spans=st.lists(st.tuples(st.integers(0, 49_000), st.integers(0, 1000)), min_size=1, max_size=40),
    long=st.tuples(st.integers(0, 20_000), st.integers(10_000, 30_000)),
    # of whole blocks of a disk, in memory that begins at one, large parts of a span are read straight to where they go
    unit=st.sampled_from([1, 512]),
    memories=st.integers(1, 5),
    staged_bytes=st.sampled_from([4096, 16 << 10, 2 << 20]),
    past_cache=st.booleans(),
    is_compiled=st.booleans(),
    seed=st.integers(0, 9),
)
def test_spans_of_any_size_go_to_the_memories_that_they_are_for(
    bytes_file: Path,
    spans: list[tuple[int, int]],
    long: tuple[int, int],
    unit: int,
    memories: int,
    staged_bytes: int,
    past_cache: bool,
    is_compiled: bool,
    seed: int,
) -> None:
    """Those that overlap, that come twice, that are empty and that several reads bring too."""
    wanted = [(begin // unit * unit, size // unit * unit) for begin, size in (*spans, *spans[:3], long, long)]
    np.random.default_rng(seed).shuffle(wanted)
    parts = np.array_split(np.array(wanted, np.int64), min(memories, len(wanted)))
    into = [allocated(int(part[:, 1].sum())) for part in parts]
    with compiled_or_not(is_compiled), pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_file, "STAGED_READ_BYTES", staged_bytes)
        with closing(RawFile(bytes_file, past_cache=past_cache)) as file:
            begin_reads(file, Spans(*np.array(wanted, np.int64).T), into).wait()
    for part, memory in zip(parts, into, strict=True):
        expected = [FILE[begin : begin + size] for begin, size in part.tolist()]
        assert memory.tobytes() == np.concatenate(expected).tobytes()


LARGE_ROW_BYTES = 16 << 10
LARGE_ROWS = 40


@pytest.fixture(scope="module")
def large_rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A file whose rows are read past the page cache, and its rows."""
    path = tmp_path_factory.mktemp("large") / "rows"
    rows = np.random.default_rng(0).integers(0, 256, (LARGE_ROWS, LARGE_ROW_BYTES), dtype=np.uint8)
    path.write_bytes(rows.tobytes())
    file = RawFile(path, past_cache=True)
    file.close()
    if file.align == 1:
        pytest.skip("no O_DIRECT on the file system of the temporary folder")
    return path, rows


def _no_memory(size_bytes: int) -> torch.Tensor:
    raise AssertionError


def read_in_steps(path: Path, order: np.ndarray, *, batch: int = 8, chunk: int = 30) -> list[np.ndarray]:
    """Return the rows of all steps, each in the memory it was read into."""
    pool = BufferPool(keep=3)
    reader = ReadAhead(
        path,
        lambda rows: spans_of(rows, LARGE_ROW_BYTES),
        chunk_bytes=chunk * LARGE_ROW_BYTES,
        window_end=lambda _: 1 << 30,
        past_cache=True,
        lease=pool.lease,
    )
    got = []
    try:
        for step in reader.ahead(iter(steps_of([order[i : i + batch] for i in range(0, len(order), batch)]))):
            spans = spans_of(step.batches[0], LARGE_ROW_BYTES)
            rows, _ = reader.load(spans, places_of(step.batches[0], LARGE_ROW_BYTES), _no_memory)
            got.append(rows.numpy().reshape(-1, LARGE_ROW_BYTES))
    finally:
        reader.close()
    return got


@pytest.mark.parametrize("together", [1, 3, 64])
def test_no_read_is_of_more_than_the_memory_that_it_goes_through(
    large_rows: tuple[Path, np.ndarray], together: int, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, contents = large_rows
    tune(staged_read_bytes=together * LARGE_ROW_BYTES)
    sizes, read = list[int](), os.preadv

    def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        sizes.append(sum(map(len, buffers)) // LARGE_ROW_BYTES)
        return read(descriptor, buffers, offset)

    # every row but 5 and 6, which are read with the others, and some twice
    order = np.random.default_rng(2).permutation(np.delete(np.arange(LARGE_ROWS), [5, 6]).repeat(2))
    assert np.array_equal(np.concatenate(read_in_steps(path, order, chunk=100)), contents[order])
    monkeypatch.setattr(os, "preadv", counted)
    with compiled_or_not(False):
        assert np.array_equal(np.concatenate(read_in_steps(path, order, chunk=100)), contents[order])
    assert min(together, 10) <= max(sizes) <= together


def test_a_read_that_brings_less_is_continued_where_it_ended(
    large_rows: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, contents = large_rows
    read = os.preadv
    # half a row, one row, and one and a half
    halves = itertools.cycle((1, 2, 3))

    def less(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return read(descriptor, [buffers[0][: next(halves) * LARGE_ROW_BYTES // 2]], offset)

    monkeypatch.setattr(os, "preadv", less)
    order = np.random.default_rng(1).permutation(LARGE_ROWS)
    with compiled_or_not(False):
        assert np.array_equal(np.concatenate(read_in_steps(path, order)), contents[order])


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_file_cut_short_while_its_rows_are_read_is_named(
    large_rows: tuple[Path, np.ndarray], tmp_path: Path, is_compiled: bool
) -> None:
    short = tmp_path / "short"
    short.write_bytes(large_rows[1][:10].tobytes()[:-5])
    with (
        compiled_or_not(is_compiled),
        pytest.raises(StoreError, match=r"short ends at byte 163835: it was cut short while it was read"),
    ):
        read_in_steps(short, np.arange(20))


_WRONG_READS = {
    "a piece does not fit in staging": [((0, 4097), None), ((10, 4090), None), ((0, -1), None), ((-1, 1), None)],
    "a span is outside of its memory": [
        (None, (0, 9, 0, 0)),
        (None, (0, 8, 0, 1)),
        (None, (0, 8, 0, -1)),
        (None, (0, 8, 1, 0)),
        (None, (0, 8, -1, 0)),
        (None, (0, -1, 0, 0)),
        (None, (0, 1 << 62, 0, 0)),
        (None, (0, 8, 0, (1 << 63) - 1)),
    ],
}


@pytest.mark.parametrize(
    ("message", "read", "span"), [(message, *each) for message, those in _WRONG_READS.items() for each in those]
)
def test_nothing_is_read_to_where_no_memory_is(
    bytes_file: Path, message: str, read: tuple[int, int] | None, span: tuple[int, ...] | None
) -> None:
    if (read_spans := span_reader()) is None:
        pytest.skip("the compiled part is not built here")
    reads, spans = np.array([read or (0, 100)]), np.array([span or (0, 8, 0, 0)])
    guarded = np.zeros(24, np.uint8)
    with open(bytes_file, "rb") as file, pytest.raises(ValueError, match=message):
        read_spans(file.fileno(), reads, 512, 0, np.zeros(4096, np.uint8), spans, (guarded[8:16],))
    assert not guarded.any()


def test_the_compiled_part_refuses_what_are_no_tables(bytes_file: Path) -> None:
    if (read_spans := span_reader()) is None:
        pytest.skip("the compiled part is not built here")
    staging, out, one, span = (
        np.zeros(4096, np.uint8),
        np.zeros(8, np.uint8),
        np.zeros(2, np.int64),
        np.zeros(4, np.int64),
    )
    with open(bytes_file, "rb") as file:
        for reads, align, base, spans in (
            (one[:1], 512, 0, span),
            (one, 0, 0, span),
            (one, 4097, 0, span),
            (one, 512, -1, span),
            (one, 512, 100, span),
            (one, 512, 0, one),
        ):
            with pytest.raises(ValueError, match="expected int64"):
                read_spans(file.fileno(), reads, align, base, staging, spans, (out,))
        out.flags.writeable = False
        with pytest.raises((ValueError, BufferError)):
            read_spans(file.fileno(), one, 512, 0, staging, span, (out,))


@settings(max_examples=200)
@given(
    rows=st.lists(st.integers(0, 300), min_size=1, max_size=80),
    row_bytes=st.sampled_from([1, 3, 784, 1024, 4096, 100_000, 150_528, 9 << 20]),
    align=st.sampled_from([1, 512, 4096]),
)
def test_pieces_hold_each_row_and_none_a_byte_of_another(rows: list[int], row_bytes: int, align: int) -> None:
    spans, most = spans_of(np.array(rows, dtype=np.int64), row_bytes), 2 << 20
    runs = runs_of(spans, GAP_BYTES)
    pieces = pieces_of(runs, most, align)
    for start, size in pieces:
        assert start % align + size + -(start + size) % align <= most
    assert pieces == sorted(pieces)
    for (start, size), (following, _) in itertools.pairwise(pieces):
        assert start + size <= following
    assert sum(size for _, size in pieces) == runs.sizes.sum() <= (len(rows) + len({*rows})) * row_bytes


@pytest.mark.parametrize("seed", range(3))
def test_a_window_of_blocks_is_read_in_large_pieces(seed: int) -> None:
    row_bytes, block = 150_528, (8 << 20) // 150_528
    order = BlockOrder(100_000, block, 32, seed=seed, epoch=0)
    end = order.window_end(0)
    spans = spans_of(order.rows(0, end), row_bytes)
    runs = runs_of(spans, GAP_BYTES)
    assert runs.sizes.sum() == end * row_bytes == 32 * block * row_bytes
    # neighbours that both are in the window are one stretch of the file
    assert len(runs.begins) <= 33
    assert int(runs.sizes.min()) > 7 << 20


@pytest.mark.parametrize("call", ["preadv", "fstat", "open", "contents"])
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
        "contents": lambda: contents_of(rows_file, 28, past_cache=False),
    }

    def gone() -> None:
        # for this call alone: pytest makes the same ones
        with monkeypatch.context() as patch:
            patch.setattr(os, "open" if call == "contents" else call, stale)
            asking[call]()

    with pytest.raises(StoreError, match=r"rows was packed again since it was opened\. Open the dataset again"):
        gone()


def contents_of(path: Path, size_bytes: int, *, past_cache: bool) -> bytes:
    """Return the first bytes of a file, as a copy in memory has them."""
    memory = np.zeros(size_bytes, np.uint8)
    with closing(RawFile(path, past_cache=past_cache)) as file:
        begin_reads(file, Spans(np.array([0]), np.array([size_bytes])), [memory]).wait()
    return memory.tobytes()


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_read_error_names_the_file(rows_file: Path, is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    if is_compiled:
        monkeypatch.setattr(raw_file, "span_reader", lambda: fail)
    else:
        monkeypatch.setattr(os, "preadv", fail)
    with compiled_or_not(is_compiled), pytest.raises(OSError, match=r"Input/output error: '.*rows'"):
        contents_of(rows_file, ROW_BYTES * ROWS, past_cache=False)


def test_the_compiled_part_says_which_error_a_read_had(tmp_path: Path) -> None:
    if (read_spans := span_reader()) is None:
        pytest.skip("the compiled part is not built here")
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        read_spans(folder, np.array([[0, 9]]), 1, 0, np.zeros(9, np.uint8), np.zeros((0, 5), np.int64), ())
    os.close(folder)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_file_cut_short_between_two_reads_past_the_cache_is_named(tmp_path: Path, is_compiled: bool) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(4096 * 10))
    file = RawFile(path, past_cache=True)
    os.truncate(path, 4096 * 5 + 100)
    with compiled_or_not(is_compiled), pytest.raises(StoreError, match="rows ends at byte 20580: it was cut short"):
        begin_reads(file, Spans(np.array([0]), np.array([40 * 1024])), [np.zeros(40 * 1024, np.uint8)]).wait()
    file.close()
