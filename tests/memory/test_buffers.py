"""A buffer comes back exactly when its last user is gone, and gather copies what it should."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
from queue import SimpleQueue

import numpy as np
import pytest
import torch
from conftest import Tune
from hypothesis import given
from hypothesis import strategies as st

from reader.buffers import BufferPool
from reader.compiled import row_copier
from reader.memory import gather as copying
from reader.memory.gather import gather, is_run


def test_a_dropped_lease_is_reused_and_a_kept_one_never() -> None:
    pool = BufferPool(1000, keep=4)
    first = pool.lease()
    address = first.data_ptr()
    second = pool.lease()
    assert second.data_ptr() != address
    del first
    assert pool.lease().data_ptr() == address
    assert pool.allocated == 2


@pytest.mark.parametrize("size_bytes", [1, 1000, 4096, 3 << 20])
def test_every_buffer_begins_at_a_cache_line(size_bytes: int) -> None:
    pool = BufferPool(size_bytes, keep=1)
    leases = [pool.lease() for _ in range(4)]
    assert {lease.data_ptr() % 64 for lease in leases} == {0}
    assert {len(lease) for lease in leases} == {size_bytes}


@pytest.mark.parametrize(
    "keep",
    [
        lambda t: t.view(10, 10, 10)[3],
        lambda t: t[5:][2:],
        lambda t: t.numpy(),
        lambda t: t.numpy()[3:][1:],
        lambda t: t.view(torch.int64),
        lambda t: t.view(10, 100).movedim(0, 1)[1].numpy()[::2],
        lambda t: torch.from_numpy(t.numpy()[8:]),
        lambda t: memoryview(t.numpy()),
    ],
)
def test_any_view_keeps_the_lease(keep: object) -> None:
    pool = BufferPool(1000, keep=4)
    lease = pool.lease()
    address = lease.data_ptr()
    view = keep(lease)  # type: ignore[operator]
    del lease
    gc.collect()
    assert pool.lease().data_ptr() != address
    del view
    gc.collect()
    addresses = {pool.lease().data_ptr() for _ in range(1)} | {t.data_ptr() for t in [pool.lease(), pool.lease()]}
    assert address in addresses


def test_idle_buffers_are_bounded() -> None:
    pool = BufferPool(100, keep=2)
    leases = [pool.lease() for _ in range(6)]
    del leases
    again = [pool.lease() for _ in range(3)]
    assert pool.allocated == 7
    assert len(again) == 3


def test_a_lease_may_outlive_its_pool() -> None:
    pool = BufferPool(100, keep=2)
    lease = pool.lease()
    lease.fill_(3)
    del pool
    gc.collect()
    assert lease.sum() == 300


@given(st.integers(1, 40), st.sampled_from([1, 2, 3, 4, 7, 8, 12, 24]), st.data())
def test_gather_equals_indexing(count: int, width: int, data: st.DataObject) -> None:
    source = torch.arange(count * width, dtype=torch.int64).remainder(256).to(torch.uint8).view(count, width)
    rows = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=60)), dtype=np.int64)
    out = torch.full((len(rows), width), 255, dtype=torch.uint8)
    assert torch.equal(gather(source, rows, out), source[torch.from_numpy(rows)])


def test_gather_from_a_slice_that_is_not_aligned() -> None:
    source = torch.arange(255, dtype=torch.uint8)[3:251].view(31, 8)
    rows = np.array([30, 0, 7], dtype=np.int64)
    assert torch.equal(gather(source, rows, torch.empty(3, 8, dtype=torch.uint8)), source[torch.from_numpy(rows)])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([], True), ([4], True), ([4, 5, 6], True), ([4, 6], False), ([3, 2], False), ([1, 3, 3], False)],
)
def test_runs_are_recognised(rows: list[int], expected: bool) -> None:
    assert is_run(np.array(rows, dtype=np.int64)) is expected


def test_a_large_gather_is_cut_into_pieces_that_are_right(tune: Tune) -> None:
    tune(copy_thread_bytes=1000)
    source = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (100, 30, 8), np.uint8))
    for rows in (np.arange(7, 90), np.random.default_rng(1).integers(0, 100, 83)):
        out = torch.zeros((83, 30, 8), dtype=torch.uint8)
        copies = copying.Gatherer(source).begin(rows, out)
        assert copies is not None
        copies.wait()
        assert torch.equal(out, source[torch.from_numpy(rows)])


@pytest.mark.parametrize("width, parts", [(8, 1), (700, 1), (1600, 2), (9000, 9), (9007, 1)])
def test_large_rows_are_copied_in_parts(width: int, parts: int, tune: Tune) -> None:
    tune(copy_thread_bytes=1000, memcpy_bytes=1000)
    source = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (9, width), np.uint8))
    assert copying._parts(source.numpy(), 1000) == parts
    rows = np.array([3, 3, 8, 0, 1, 2, 7])
    assert torch.equal(gather(source, rows, torch.zeros((7, width), dtype=torch.uint8)), source[torch.from_numpy(rows)])


@pytest.mark.parametrize("start", [0, 1, 8, 40])
@pytest.mark.parametrize("width", [1, 63, 190, 192, 640, 4097])
@pytest.mark.parametrize("is_built", [True, False])
def test_a_batch_that_the_caches_do_not_hold_is_written_past_them(
    width: int, start: int, is_built: bool, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(copy_thread_bytes=1, streamed_batch_bytes=1)
    if is_built and row_copier() is None:
        pytest.skip("the compiled part is not built here")
    calls = list[int]()

    def counted(*arrays: np.ndarray) -> None:
        calls.append(len(arrays[1]))
        copy_rows = row_copier()
        assert copy_rows is not None
        copy_rows(*arrays)

    monkeypatch.setattr(copying, "row_copier", lambda: counted if is_built else None)
    source = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (31, width), np.uint8))
    # every other one: not contiguous
    rows = np.random.default_rng(1).integers(0, 31, 58)[::2]
    around = torch.full((start + 29 * width + 64,), 7, dtype=torch.uint8)
    copies = copying.Gatherer(source, is_streamed=True).begin(rows, around[start:-64].view(29, width))
    assert copies is not None
    copies.wait()
    assert torch.equal(around[start:-64].view(29, width), source[torch.from_numpy(rows)])
    assert {*around[:start].tolist(), *around[-64:].tolist()} == {7}
    assert sum(calls) == (29 if is_built else 0)


@pytest.mark.parametrize(("mebibytes", "is_streamed"), [(9, True), (30, False)])
def test_small_batches_and_fresh_memory_are_written_through_the_caches(
    mebibytes: int, is_streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "row_copier", lambda: pytest.fail("it was written past the caches"))
    source = torch.ones((mebibytes, 1 << 20), dtype=torch.uint8)
    out = torch.zeros_like(source)
    copies = copying.Gatherer(source, is_streamed=is_streamed).begin(np.arange(mebibytes), out)
    assert copies is not None
    copies.wait()
    assert out.all()


@pytest.mark.parametrize("rows", [[0, 4], [-1], [1 << 62], [0, -(1 << 63)]])
def test_a_row_that_is_not_there_is_not_copied(rows: list[int]) -> None:
    if (copy_rows := row_copier()) is None:
        pytest.skip("the compiled part is not built here")
    source, numbers = np.ones((4, 3), np.int64), np.array(rows)
    with pytest.raises(ValueError, match=rf"rows\[{len(rows) - 1}\] is not a row of source"):
        copy_rows(source, numbers, np.zeros((len(rows), 3), np.int64))
    cases = ((np.zeros(5, np.int64), np.zeros(7)), (np.zeros(6, np.int32), np.zeros(6)), (numbers[:0], np.zeros(1)))
    for wrong, out in cases:
        with pytest.raises(ValueError, match="expected int64 numbers, and room for as many rows"):
            copy_rows(source, wrong, out)


def test_an_interrupt_while_memory_is_allocated_speaks_of_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BufferPool, "_allocate", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        BufferPool(100, keep=1).lease()
    assert raised.value.__context__ is None


def test_pieces_that_are_not_started_are_skipped_where_one_fails_or_nobody_wants_them() -> None:
    started, go = SimpleQueue[str](), SimpleQueue[None]()

    def piece(name: str) -> None:
        started.put(name)
        go.get()
        if name == "fails":
            raise ValueError("a piece failed")

    pieces = copying.on_threads("test", 1, piece, [("fails",), ("skipped",)])
    go.put(None)
    with pytest.raises(ValueError, match="a piece failed"):
        pieces.wait()
    assert (started.get(), started.empty()) == ("fails", True)
    pieces = copying.on_threads("test", 1, piece, [("begun",), ("skipped",)])
    assert started.get() == "begun"
    pieces.is_cancelled = True
    go.put(None)
    pieces.cancel()
    assert started.empty()
    assert pieces.are_done


def test_a_forked_process_does_not_wait_for_the_threads_of_another() -> None:
    go = SimpleQueue[None]()
    pieces = copying.on_threads("test", 1, go.get, [()])
    child = multiprocessing.get_context("fork").Process(target=pieces.cancel, daemon=True)
    child.start()
    child.join(120)
    exitcode = child.exitcode
    go.put(None)
    pieces.wait()
    assert exitcode == 0


def test_an_error_of_a_piece_is_raised_where_it_is_waited_for(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(copy_thread_bytes=1000)
    monkeypatch.setattr(copying, "_copy", lambda *_: {}["no such piece"])
    with pytest.raises(KeyError, match="no such piece"):
        gather(torch.ones((9, 1000)), np.arange(9), torch.zeros((9, 1000)))


@pytest.mark.parametrize("lacks", ["threads", "an interpreter that goes on"])
def test_without_threads_the_caller_copies(lacks: str, tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    tune(copy_thread_bytes=1000)
    monkeypatch.setattr(copying, "_queues", {})
    if lacks == "threads":
        monkeypatch.setattr("_thread.start_new_thread", refuse)
    else:
        monkeypatch.setattr(copying, "_at_exit", True)
    source = torch.rand((9, 1000))
    assert torch.equal(gather(source, np.arange(9), torch.zeros((9, 1000))), source)


def test_the_copying_threads_end_with_the_process_and_rows_can_be_read_after_them() -> None:
    script = (
        "import atexit, numpy as np, torch\nfrom reader.memory.gather import gather\n"
        "source = torch.rand((64, 100_000))\n"
        "def read(): print(torch.equal(gather(source, np.arange(64), torch.zeros((64, 100_000))), source))\n"
        "atexit.register(read)\nread()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr, done.returncode) == ("True\nTrue\n", "", 0)


def test_a_forked_process_copies_with_threads_of_its_own(tune: Tune) -> None:
    tune(copy_thread_bytes=1000)
    source, rows, out = torch.ones((9, 1000)), np.arange(9), torch.zeros((9, 1000))
    gather(source, rows, out)
    child = multiprocessing.get_context("fork").Process(target=gather, args=(source, rows, out))
    child.start()
    child.join(120)
    assert child.exitcode == 0
