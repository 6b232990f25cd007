"""A buffer comes back exactly when its last user is gone, and spans are copied to their places."""

from __future__ import annotations

import multiprocessing
from collections import deque
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune, tuned
from hypothesis import given, settings
from hypothesis import strategies as st

from reader.buffers import BufferPool
from reader.compiled import span_copier
from reader.memory import spans as copying
from reader.memory import threads
from reader.memory.spans import Spans, begin_copy
from reader.memory.threads import Copies
from reader.rows import Rows, is_run


def gather(source: torch.Tensor, rows: Rows, out: torch.Tensor) -> torch.Tensor:
    """Copy source[rows] to out, and return it."""
    if (copies := begin_gather(source, rows, out)) is not None:
        copies.wait()
    return out


def begin_gather(source: torch.Tensor, rows: Rows, out: torch.Tensor) -> Copies | None:
    """Begin to copy source[rows] to out, both of rows of one size and contiguous."""
    width = out[0].nbytes if len(out) else 1
    spans, places = Spans(rows * width, np.full(len(rows), width)), np.arange(len(rows)) * width
    held, into = (tensor.view(-1).view(torch.uint8) for tensor in (source, out))
    return begin_copy(held.numpy(), spans, into, places)


def test_a_dropped_lease_is_reused_and_a_kept_one_never() -> None:
    pool = BufferPool(keep=4)
    first = pool.lease(1000)
    address = first.data_ptr()
    second = pool.lease(1000)
    assert second.data_ptr() != address
    del first
    assert pool.lease(1000).data_ptr() == address
    assert pool.allocated == 2


def test_idle_buffers_are_bounded() -> None:
    pool = BufferPool(keep=2)
    leases = [pool.lease(100) for _ in range(6)]
    del leases
    again = [pool.lease(100) for _ in range(3)]
    assert pool.allocated == 7
    assert len(again) == 3


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([], True), ([4], True), ([4, 5, 6], True), ([4, 6], False), ([3, 2], False), ([1, 3, 3], False)],
)
def test_runs_are_recognised(rows: list[int], expected: bool) -> None:
    assert is_run(np.array(rows, dtype=np.int64)) is expected


@settings(max_examples=100)
@given(
    spans=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 99)), max_size=30),
    gap=st.integers(0, 9),
    is_built=st.booleans(),
)
def test_spans_of_any_size_go_to_their_places_alone(spans: list[tuple[int, int]], gap: int, is_built: bool) -> None:
    source = np.random.default_rng(0).integers(0, 250, 1000, np.uint8)
    sizes = np.array([size for _, size in spans], np.int64)
    places = np.cumsum(sizes + gap) - sizes
    out, expected = (np.full(int((sizes + gap).sum()) + gap, 255, np.uint8) for _ in range(2))
    for (begin, size), place in zip(spans, places.tolist(), strict=True):
        expected[place : place + size] = source[begin : begin + size]
    with tuned(own_copy_bytes=0, copy_thread_bytes=200, memcpy_bytes=64), pytest.MonkeyPatch.context() as patch:
        if not is_built:
            patch.setattr(copying, "span_copier", lambda: None)
        begins = np.array([begin for begin, _ in spans], np.int64)
        copies = begin_copy(source, Spans(begins, sizes), torch.from_numpy(out), places)
        if copies is not None:
            copies.wait()
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("start", [0, 1, 8, 40])
@pytest.mark.parametrize("width", [1, 63, 190, 192, 640, 4097])
@pytest.mark.parametrize("is_built", [True, False])
def test_a_batch_that_the_caches_do_not_hold_is_written_past_them(
    width: int, start: int, is_built: bool, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(own_copy_bytes=0, copy_thread_bytes=1, streamed_batch_bytes=1)
    if is_built and span_copier() is None:
        pytest.skip("the compiled part is not built here")
    calls = list[int]()

    def counted(*arguments: Any) -> None:
        calls.append(len(arguments[1]))
        assert arguments[-1] is True
        copy_spans = span_copier()
        assert copy_spans is not None
        copy_spans(*arguments)

    monkeypatch.setattr(copying, "span_copier", lambda: counted if is_built else None)
    source = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (31, width), np.uint8))
    # every other one: not contiguous
    rows = np.random.default_rng(1).integers(0, 31, 58)[::2]
    around = torch.full((start + 29 * width + 64,), 7, dtype=torch.uint8)
    copies = begin_gather(source, rows, around[start:-64].view(29, width))
    assert copies is not None
    copies.wait()
    assert torch.equal(around[start:-64].view(29, width), source[torch.from_numpy(rows)])
    assert {*around[:start].tolist(), *around[-64:].tolist()} == {7}
    assert sum(calls) == (29 if is_built else 0)
    # no thread has most of it
    assert max(calls, default=0) < 20


def test_a_small_batch_is_one_copy_of_each_source(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[tuple[Any, ...]]()
    monkeypatch.setattr(copying, "span_copier", lambda: lambda *arguments: calls.append(arguments))
    source = torch.arange(90, dtype=torch.uint8).view(9, 10)
    assert begin_gather(source, np.array([7, 2, 2]), torch.zeros((3, 10), dtype=torch.uint8)) is None
    [(_, begins, sizes, places, _, past_caches)] = calls
    assert (begins.tolist(), sizes.tolist(), places.tolist()) == ([70, 20, 20], [10] * 3, [0, 10, 20])
    assert past_caches is False


_NUMBERS = np.array([0, 2])


@pytest.mark.parametrize(
    ("begins", "sizes", "places"),
    [
        ([0, 4], [1, 9], [0, 0]),
        ([0, 10], [1, 3], [0, 0]),
        ([0, -1], [1, 1], [0, 0]),
        ([0, 1 << 62], [1, 1], [0, 0]),
        ([0, 0], [1, -1], [0, 0]),
        ([0, 1], [1, 1 << 62], [0, 0]),
        ([0, 1], [1, (1 << 63) - 1], [0, 0]),
        ([0, 0], [1, 3], [0, 4]),
        ([0, 0], [1, 1], [0, -(1 << 63)]),
    ],
)
def test_a_span_that_is_not_there_is_not_copied(begins: list[int], sizes: list[int], places: list[int]) -> None:
    if (copy_spans := span_copier()) is None:
        pytest.skip("the compiled part is not built here")
    source, out = np.ones(12, np.uint8), np.zeros(6, np.uint8)
    with pytest.raises(ValueError, match="span 1 is outside of source or out"):
        copy_spans(source, *(np.array(each) for each in (begins, sizes, places)), out, False)
    assert out.sum() <= 1
    wrong = (_NUMBERS[:1], _NUMBERS, _NUMBERS), (_NUMBERS, _NUMBERS.astype(np.int32), _NUMBERS)
    for arrays in wrong:
        with pytest.raises(ValueError, match="expected as many begins, sizes and places, int64 each"):
            copy_spans(source, *arrays, out, False)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 100, 4097, 2_500_000, 38_535_168])
def test_a_lease_of_any_size_takes_a_fourth_more_at_most(size: int) -> None:
    pool = BufferPool(keep=1)
    lease = pool.lease(size)
    assert lease.shape == (size,)
    [loan] = pool._leases.values()
    assert size <= loan.memory.nbytes <= max(size, 1.25 * size)


def test_a_large_lease_among_small_ones_costs_no_further_buffer() -> None:
    sizes = [*range(90_000, 100_000, 500), 5_000_000, *range(90_000, 100_000, 500)]
    pool = BufferPool(keep=2, keep_bytes=40 * 100_000)
    held = deque[torch.Tensor](maxlen=20)
    for _ in range(3):
        for size in sizes:
            held.append(pool.lease(size))
    first = pool.allocated
    for size in sizes:
        held.append(pool.lease(size))
    assert pool.allocated == first <= 2 * 20 + 1


def test_a_short_last_batch_takes_the_idle_buffer_of_a_whole_one() -> None:
    pool = BufferPool(keep=2)
    for size in (256_000, 160_000, 256_000, 160_000, 1):
        assert len(pool.lease(size)) == size
    assert pool.allocated == 1


def test_an_interrupt_while_memory_is_allocated_speaks_of_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("reader.buffers.allocated", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        BufferPool(keep=1).lease(100)
    assert raised.value.__context__ is None


def test_a_forked_process_does_not_wait_for_the_threads_of_another() -> None:
    go = SimpleQueue[None]()
    pieces = threads.on_threads("test", 1, go.get, [()])
    child = multiprocessing.get_context("fork").Process(target=pieces.cancel, daemon=True)
    child.start()
    child.join(500)
    exitcode = child.exitcode
    go.put(None)
    pieces.wait()
    assert exitcode == 0


def test_an_error_of_a_piece_is_raised_where_it_is_waited_for(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(own_copy_bytes=0, copy_thread_bytes=1000)
    monkeypatch.setattr(copying, "span_copier", lambda: lambda *_: {}["no such piece"])
    with pytest.raises(KeyError, match="no such piece"):
        gather(torch.ones((9, 1000)), np.arange(9), torch.zeros((9, 1000)))


def test_a_forked_process_copies_with_threads_of_its_own(tune: Tune) -> None:
    tune(own_copy_bytes=0, copy_thread_bytes=1000)
    source, rows, out = torch.ones((9, 1000)), np.arange(9), torch.zeros((9, 1000))
    gather(source, rows, out)
    child = multiprocessing.get_context("fork").Process(target=gather, args=(source, rows, out))
    child.start()
    child.join(500)
    assert child.exitcode == 0
