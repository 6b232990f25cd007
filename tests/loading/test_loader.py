"""MemmapLoader: orders, epochs, state, ranks, recycling, threads that end, and errors that surface."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune, devices, make_tree
from torch.utils.data import RandomSampler, Sampler

from packer import pack
from reader import MemmapDataset, MemmapLoader
from reader.buffers import allocated


@pytest.fixture
def train(shared_store: Path) -> MemmapDataset:
    return MemmapDataset(shared_store, as_tuple=False)


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 rows of 224 x 224: a batch of 8 is 1.2 MB."""
    root = tmp_path_factory.mktemp("large")
    make_tree(root / "images", classes=2, each=20, size=(240, 230))
    pack(root / "images", root / "out", size=224)
    return root / "out"


@pytest.fixture
def large(large_store: Path, tune: Tune) -> MemmapDataset:
    """A dataset whose batches are each handed over alone."""
    tune(batch_group_bytes=1 << 20)
    return MemmapDataset(large_store, as_tuple=False)


def rows_of(loader: MemmapLoader) -> list[int]:
    return [row for batch in loader for row in batch.rows.tolist()]


@pytest.mark.parametrize("residency", ["cache", "disk"])
@pytest.mark.parametrize("count", [1, 2, 90])
def test_rows_larger_than_a_window_of_blocks_are_blocks_of_one_row(
    train: MemmapDataset, count: int, residency: str, tune: Tune
) -> None:
    # a window has 2 KB, a row 3 KB, as 300 MB beside 256 MiB
    tune(shuffle_block_bytes=64, window_ahead_bytes=2048)
    rows = [*range(90)][-count:]
    loader = MemmapLoader(train.subset(rows), 1, shuffle="block", residency=residency, as_tuple=False)
    batches = list(loader)
    assert sorted(int(batch.rows) for batch in batches) == rows
    assert all(torch.equal(batch.pixels, train.store.pixels[batch.rows]) for batch in batches)


# -- buffers


@pytest.mark.parametrize("residency", ["cache", "disk"])
def test_abandoned_iterators_leave_no_thread_buffer_or_file(
    large: MemmapDataset, residency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers: list[weakref.ref[Any]] = []

    def recorded(size_bytes: int) -> Any:
        memory = allocated(size_bytes)
        buffers.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr("reader.buffers.allocated", recorded)
    loader = MemmapLoader(large, 8, shuffle="full", prefetch=1, residency=residency, as_tuple=False)
    # starts the threads that copy, which stay
    next(iter(loader))
    for thread in threading.enumerate():
        if thread.name == "pixpack-feeder":
            thread.join(500)
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(150):
        next(iter(loader))
    for thread in threading.enumerate():
        if thread.name == "pixpack-feeder":
            thread.join(500)
    gc.collect()
    assert not any(thread.name == "pixpack-feeder" for thread in threading.enumerate())
    assert len(os.listdir("/proc/self/fd")) == files
    # "disk" keeps what two chunks of these 5 batches are read into for the next epoch
    assert sum(buffer() is not None for buffer in buffers) <= 3 + 10 * (residency == "disk")
    loader.close()
    gc.collect()
    assert not any(buffer() is not None for buffer in buffers)


def test_close_ends_the_thread_and_the_loader_can_be_used_again(train: MemmapDataset) -> None:
    with MemmapLoader(train, 4, prefetch=1, as_tuple=False) as loader:
        iterator = iter(loader)
        next(iterator)
    assert not [t for t in threading.enumerate() if t.name == "pixpack-feeder"]
    assert sorted(rows_of(loader)) == list(range(90))


# -- state and ranks


# -- weights and samplers


ITEMS = {
    "ints": lambda rows: rows,
    "numpy ints": lambda rows: list(np.array(rows)),
    "tensors": lambda rows: list(torch.tensor(rows)),
    "lists": lambda rows: [rows[:4], rows[4:]],
    "tuples of numpy ints": lambda rows: [tuple(np.array(rows[:4])), tuple(np.array(rows[4:]))],
    "lists of tensors": lambda rows: [list(torch.tensor(rows[:4])), list(torch.tensor(rows[4:]))],
    "arrays": lambda rows: [np.array(rows[:4]), np.array(rows[4:], np.uint8)],
    "batches that are tensors": lambda rows: list(torch.tensor(rows).split(4)),
    "empty batches between": lambda rows: [[], rows[:4], [], rows[4:], []],
    "one tensor": torch.tensor,
}


@pytest.mark.parametrize("items", ITEMS)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_sampler_may_give_rows_of_any_kind(train: MemmapDataset, items: str, prefetch: int) -> None:
    class Given(Sampler[Any]):
        def __iter__(self) -> Any:
            yield from ITEMS[items]([7, 3, 80, -1, 5, 3])  # a generator: every epoch another one

    expected = [[7, 3, 80, 89], [5, 3]]
    given = ITEMS[items]([7, 3, 80, -1, 5, 3])
    assert len(MemmapLoader(train, 4, sampler=given)) == (2 if items != "empty batches between" else 5)
    for sampler in (Given(), given):
        loader = MemmapLoader(train, 4, sampler=sampler, prefetch=prefetch, as_tuple=False)
        for _ in range(2):
            assert [batch.rows.tolist() for batch in loader] == expected
        iterator = iter(loader)
        next(iterator)
        fresh = MemmapLoader(train, 4, sampler=sampler, prefetch=prefetch, as_tuple=False)
        fresh.load_state_dict(loader.state_dict())
        assert [batch.rows.tolist() for batch in fresh] == expected[1:]


def test_a_sampler_may_give_more_rows_than_there_are(train: MemmapDataset) -> None:
    loader = MemmapLoader(train, 100, sampler=list(range(90)) * 3, drop_last=True, as_tuple=False)
    assert [len(batch) for batch in loader] == [100, 100]
    assert len(loader) == 2


# -- errors


def test_wrong_epochs_and_devices_are_one_sentence(train: MemmapDataset) -> None:
    for epoch, text in ((-1, "epoch is -1, expected 0 or more"), (1.5, "epoch is 1.5, expected an integer")):
        with pytest.raises(ValueError, match=text):
            MemmapLoader(train, 4, as_tuple=False).set_epoch(epoch)  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device is 'cuda', but this torch sees no CUDA device"):
            MemmapLoader(train, 4, device="cuda", as_tuple=False)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    ("item", "error", "text"),
    [
        (90, IndexError, "row 90 is out of range: .* has 90 rows"),
        ([3, -91], IndexError, "row -91 is out of range: .* has 90 rows"),
        (2.0, TypeError, "integer"),
        (torch.tensor(0.5), TypeError, "integer"),
        ("3", TypeError, "integer"),
        (None, TypeError, "integer"),
        (np.array([[1], [2]]), TypeError, "integer"),
    ],
    ids=["above", "below", "a float", "a float tensor", "text", "nothing", "a table"],
)
def test_a_sampler_that_gives_no_rows_is_one_sentence_at_that_step(
    train: MemmapDataset, item: Any, error: type[Exception], text: str, prefetch: int
) -> None:
    iterator = iter(MemmapLoader(train, 1, sampler=[5, 6, item], prefetch=prefetch, as_tuple=False))
    assert [next(iterator).rows.tolist() for _ in range(2)] == [[5], [6]]
    with pytest.raises(error, match=text) as caught:
        next(iterator)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": "full"},
        {"shuffle": "block"},
        {"weights": []},
        {"residency": "disk"},
        {"rank": 1, "world_size": 2},
    ],
    ids=["in order", "full", "block", "weights", "disk", "ranks"],
)
def test_an_empty_subset_has_no_steps(train: MemmapDataset, options: dict[str, Any]) -> None:
    loader = MemmapLoader(train.subset([]), 4, **options, as_tuple=False)
    assert (len(loader), list(loader)) == (0, [])
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == []
    with pytest.raises(ValueError, match="drop_last leaves nothing: 0 rows are fewer than batch_size 4 x world_size"):
        MemmapLoader(train.subset([]), 4, drop_last=True, **options, as_tuple=False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_size": 0}, "batch_size is 0, expected 1 or more"),
        ({"batch_size": 91, "drop_last": True}, "drop_last leaves nothing: 90 rows"),
        ({"batch_size": 4, "prefetch": -1}, "prefetch is -1"),
        ({"batch_size": 4, "shuffle": "blocks"}, "shuffle is 'blocks', expected False, True, 'full' or 'block'"),
        ({"batch_size": 4, "shuffle": True, "weights": [1.0] * 90}, "each decide the order: give one of them"),
        ({"batch_size": 4, "weights": [1.0] * 89}, r"weights have the shape \[89\], expected one a row: \[90\]"),
        ({"batch_size": 4, "weights": [-1.0] * 90}, "weights must be finite, 0 or more"),
        ({"batch_size": 4, "weights": [1e308] * 90}, "0; their sum must be finite too"),
        ({"batch_size": 91, "drop_last": True, "rank": 1, "world_size": 2}, "batch_size 91 x world_size 2"),
        ({"batch_size": 4, "device": "meta"}, "device is 'meta', expected cpu or cuda"),
        ({"batch_size": 4, "rank": 1}, "rank is 1 and world_size None: give both, or neither"),
        ({"batch_size": 4, "rank": 3, "world_size": 3}, "rank is 3, expected 0 <= rank < world_size = 3"),
        ({"batch_size": 4, "residency": "moon"}, "residency is 'moon'"),
        ({"batch_size": 2.5}, "batch_size is 2.5, expected an integer"),
        ({"batch_size": 4, "seed": 2.5}, "seed is 2.5, expected an integer"),
        ({"batch_size": 4, "prefetch": 2.5}, "prefetch is 2.5, expected an integer"),
        (
            {"batch_size": 4, "sampler": 7},
            "sampler is a int, expected a torch Sampler or BatchSampler, or a list of rows",
        ),
        ({"batch_size": 4, "sampler": iter([1])}, "sampler is a list_iterator, expected a torch Sampler"),
        ({"batch_size": 4, "dataset": [1, 2]}, "dataset is a list, expected a MemmapDataset"),
    ],
)
def test_wrong_arguments_are_one_sentence(train: MemmapDataset, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        MemmapLoader(**{"dataset": train, "as_tuple": False} | arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("prefetch", [0, 2])
def test_after_an_error_the_state_is_at_the_batch_that_could_not_be_made(
    train: MemmapDataset, prefetch: int, device: str
) -> None:
    def breaks(batch: Any) -> Any:
        if 37 in batch.rows:
            raise RuntimeError("row 37")
        return batch

    iterator = iter(
        loader := MemmapLoader(train, 10, transform=breaks, prefetch=prefetch, device=device, as_tuple=False)
    )
    assert [len(batch) for batch in itertools.islice(iterator, 3)] == [10] * 3
    with pytest.raises(RuntimeError, match="row 37"):
        next(iterator)
    assert next(iterator, None) is None
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 30)
    full = MemmapLoader(train, 10, prefetch=prefetch, as_tuple=False)
    full.load_state_dict(state)
    assert next(iter(full)).rows.tolist() == list(range(30, 40))


def test_the_interpreter_ends_in_the_middle_of_an_epoch(shared_store: Path) -> None:
    code = (
        "import sys; from reader import MemmapDataset, MemmapLoader\n"
        "loader = MemmapLoader(MemmapDataset(sys.argv[1]), 8, shuffle=True)\n"
        "iterator = iter(loader); next(iterator); print('seen')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(shared_store)], capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stdout, done.stderr) == (0, "seen\n", "")


def test_repr_names_order_and_residency(train: MemmapDataset) -> None:
    loader = MemmapLoader(train, 16, shuffle=True, seed=7)
    assert "order full, seed 7, rank 0 of 1, residency cache" in repr(loader)


# -- batches of more than a megabyte: a group each, so queue, recycling and errors work batch by batch


def test_a_closed_loader_gives_nothing_that_was_taken_before(train: MemmapDataset, tune: Tune) -> None:
    # groups of three: so many that the thread waits for room, and is there to be closed
    tune(batch_group_bytes=3 * train.manifest.row_bytes)
    loader = MemmapLoader(train, 1, as_tuple=False)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)  # the second of three that came together
    loader.close()
    with pytest.raises(RuntimeError, match="the loader was closed while it was iterated"):
        next(iterator)


def test_several_threads_close_a_loader_that_another_one_iterates(train: MemmapDataset) -> None:
    rows, interval = train.subset(slice(8)), sys.getswitchinterval()

    def meet(start: threading.Barrier, call: Callable[[], object]) -> None:
        start.wait()
        with contextlib.suppress(RuntimeError):
            call()

    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            iterator, start = iter(MemmapLoader(rows, 8, prefetch=1)), threading.Barrier(9)
            calls = [functools.partial(list, iterator), *[iterator.close] * 8]
            threads = [threading.Thread(target=meet, args=(start, call), daemon=True) for call in calls]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(500)
                assert not thread.is_alive()
    finally:
        sys.setswitchinterval(interval)


def test_a_sampler_draws_in_the_callers_thread_and_needs_no_length(large: MemmapDataset) -> None:
    orders = []
    for _ in range(2):
        torch.manual_seed(5)
        iterator = iter(MemmapLoader(large, 8, sampler=RandomSampler(range(40)), as_tuple=False))
        torch.rand(7)  # the caller keeps drawing from the same generator
        orders.append([batch.rows.tolist() for batch in iterator])
    assert orders[0] == orders[1]

    class Endless(Sampler[int]):
        def __iter__(self) -> Any:
            return iter(range(10))

    loader = MemmapLoader(large, 4, sampler=Endless(), as_tuple=False)
    assert [b.rows.tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with pytest.raises(TypeError, match="has no len"):
        len(loader)


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork")
def test_an_iterator_taken_over_a_fork_is_refused_not_hung(large: MemmapDataset) -> None:
    import multiprocessing

    loader = MemmapLoader(large, 8, prefetch=1, as_tuple=False)
    iterator = iter(loader)
    next(iterator)

    def child(pipe: Any) -> None:
        try:
            next(iterator)
        except RuntimeError as e:
            pipe.send(str(e))
        pipe.send(sum(len(batch) for batch in loader))

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
    process.start()
    assert ours.poll(120)
    assert "belongs to the process that was forked" in ours.recv()
    assert ours.poll(120)
    assert ours.recv() == 40
    process.join()


# -- interrupts


# Imports once and forks for each way; the child reads epochs until it is interrupted, and ends as an interpreter of its own.
_EPOCHS = """
import os, sys, time
import reader.loading.loader
from reader import MemmapDataset, MemmapLoader
for way in sys.argv[2:]:
    if not (child := os.fork()):
        residency, prefetch, caller = way.split()
        os.dup2(os.open(way, os.O_WRONLY | os.O_CREAT), 2)
        print(os.getpid(), flush=True)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
loader = MemmapLoader(MemmapDataset(sys.argv[1]), 8, shuffle="full", residency=residency, prefetch=int(prefetch))
is_reported = False
while True:
    for step, batch in enumerate(loader):
        if step == 1 and not is_reported:
            is_reported = True
            print("in the middle", flush=True)
        if caller == "busy":
            time.sleep(0.01)
"""


@pytest.mark.usefixtures("delivered_signals")
def test_ctrl_c_ends_an_epoch(large: MemmapDataset, tmp_path: Path) -> None:
    ways = ["cache 2 busy", "disk 1 waiting", "disk 0 waiting"]
    command = [sys.executable, "-c", _EPOCHS, str(large.path), *ways]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True)
    # it takes some 0.1 s a way; the rest is for machines that do other work as well
    hanging = threading.Timer(120, os.killpg, (process.pid, signal.SIGKILL))
    hanging.start()
    with process:
        assert process.stdout is not None
        for way in ways:
            child = int(process.stdout.readline())
            assert process.stdout.readline() == "in the middle\n"
            os.kill(child, signal.SIGINT)
            assert process.stdout.readline() == f"{-signal.SIGINT}\n", way
            errors = (tmp_path / way).read_text()
            assert "Exception ignored in" not in errors
            # it may come where another exception is being caught
            assert errors.count("Traceback") - errors.count("During handling of the above exception") == 1
            assert errors.endswith("KeyboardInterrupt\n")
    hanging.cancel()
    assert process.returncode == 0


def test_a_feeder_that_ctrl_c_met_at_its_start_makes_no_batch(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    met, sizes = list[threading.Thread](), list[int]()

    def interrupted(thread: threading.Thread) -> None:
        met.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr("reader.buffers.allocated", lambda size: sizes.append(size) or allocated(size))
    loader = MemmapLoader(train, 30)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
    # late: as the interpreter ends, torch's code would abort it
    met[0].start()
    met[0].join()
    assert sizes == []
    assert len(list(loader)) == len(loader)
    assert sizes != []


@pytest.mark.parametrize("prefetch", [0, 2])
def test_after_an_interrupt_the_rest_of_the_epoch_comes_from_the_state(large: MemmapDataset, prefetch: int) -> None:
    interrupts_at = {2: True}

    def step(batch: Any) -> Any:
        if interrupts_at.pop(int(batch.rows[0] in rows[2]) and 2, False):
            raise KeyboardInterrupt
        return batch

    given = {"shuffle": "full", "seed": 1, "as_tuple": False}
    rows = [batch.rows.tolist() for batch in MemmapLoader(large, 8, **given)]
    loader = MemmapLoader(large, 8, **given, prefetch=prefetch, transform=step)
    found, steps = [], iter(loader)

    def drain() -> None:
        while True:
            found.append(next(steps).rows.tolist())

    with pytest.raises(KeyboardInterrupt):
        drain()
    loader.load_state_dict(loader.state_dict())
    assert found + [batch.rows.tolist() for batch in loader] == rows
    with pytest.raises(StopIteration):
        next(steps)


def test_a_thread_closes_a_loader_whose_batch_another_one_makes(large: MemmapDataset) -> None:
    def close(batch: Any) -> Any:
        thread = threading.Thread(target=loader.close)
        thread.start()
        thread.join()
        return batch

    loader = MemmapLoader(large, 8, as_tuple=False, prefetch=0, transform=Gate(close))
    iterator, errors = iter(loader), list[BaseException]()

    def iterate() -> None:
        try:
            list(iterator)
        except RuntimeError as e:
            errors.append(e)

    thread = threading.Thread(target=iterate, daemon=True)
    thread.start()
    thread.join(500)
    assert not thread.is_alive()
    assert "the loader was closed" in str(errors[0])


_STARTS_A_THREAD_AT_THE_EXIT = """
import threading, time
from reader.memory.threads import on_threads

def work():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    time.sleep(0.3)  # the exit waits for this thread
    on_threads("late", 2, int, [()])
    time.sleep(0.3)  # the other thread continues

on_threads("late", 2, work, [()])
"""


def test_the_exit_ends_a_thread_that_starts_meanwhile() -> None:
    subprocess.run([sys.executable, "-c", _STARTS_A_THREAD_AT_THE_EXIT], timeout=500, check=True)


def test_close_wakes_who_waits_for_a_batch(large: MemmapDataset) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def gate(batch: Any) -> Any:
        asked.set()
        goes_on.wait(500)
        return batch

    # the program's function runs in the caller's thread: the feeder waits inside one of ours
    loader = MemmapLoader(large, 8, as_tuple=False, prefetch=1, transform=Gate(gate))
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            next(iter(loader))
        except BaseException as e:
            errors.append(e)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert asked.wait(500)
    closer = threading.Thread(target=loader.close)
    closer.start()
    goes_on.set()
    closer.join(500)
    waiter.join(500)
    assert not waiter.is_alive()
    assert not errors or "was closed while it was iterated" in str(errors[0])


class Gate:
    """Calls a function in the feeder, as a transform of this package."""

    __module__ = "reader.transforms.of_a_test"

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, batch: Any) -> Any:
        return self._call(batch)


def test_the_rows_of_a_step_are_those_that_the_loop_gets(train: MemmapDataset) -> None:
    for shuffle, rank in itertools.product((False, "full", "block"), (0, 1)):
        loader = MemmapLoader(train, 16, shuffle=shuffle, seed=4, rank=rank, world_size=2, as_tuple=False)
        for epoch in range(2):
            steps = [batch.rows.tolist() for batch in loader]
            assert [loader.rows(epoch, step).tolist() for step in range(len(loader))] == steps
    with pytest.raises(IndexError, match="step is 3, expected 0 to 2"):
        loader.rows(0, 3)
    with pytest.raises(ValueError, match="rows come from a sampler, which alone knows them"):
        MemmapLoader(train, 8, sampler=[1, 2]).rows(0, 0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (None, r"the state is None, expected what state_dict\(\) gave: epoch, position, seed"),
        ({}, r"the state is \{\}, expected what state_dict"),
        ({"seed": 2}, "the state is of another seed: it says 2, this loader has 1"),
        ({"rows": 2}, "the state is of another rows"),
        ({"order": 0}, "the state is of another order: it says 0, this loader has 1"),
        ({"store": 1}, "the state is of another store"),
        ({"position": 91}, "the state is at epoch 0, position 91 of 90 rows"),
        ({"position": -1}, "the state is at epoch"),
        ({"epoch": -1}, "the state is at epoch -1"),
    ],
)
def test_another_state_is_refused(train: MemmapDataset, change: Any, text: str) -> None:
    loader = MemmapLoader(train, 4, seed=1, shuffle="full", as_tuple=False)
    state = loader.state_dict() | change if change else change
    with pytest.raises(ValueError, match=text) as caught:
        loader.load_state_dict(state)
    assert "\n" not in str(caught.value)


def test_a_state_of_other_rows_or_weights_is_of_another_store(train: MemmapDataset) -> None:
    def loader(data: MemmapDataset, **options: Any) -> MemmapLoader:
        return MemmapLoader(data, 8, as_tuple=False, **options)

    for first, second in (
        (loader(train.subset(range(40))), loader(train.subset(range(1, 41)))),
        (loader(train, weights=np.ones(90)), loader(train, weights=np.arange(90))),
    ):
        with pytest.raises(ValueError, match="the state is of another store"):
            second.load_state_dict(first.state_dict())
