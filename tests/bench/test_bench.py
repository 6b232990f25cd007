"""`pack bench`: what it reports, records and refuses, and that a timeline's spans are those of the run."""

from __future__ import annotations

import dataclasses
import gc
import json
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune, make_tree, tuned

from packer import pack
from packer.cli.app import run
from packer.cli.bench_table import text
from reader import MemmapDataset, MemmapLoader, system
from reader.bench.disk import BY_THREADS, IN_ORDER, disk_ways
from reader.bench.measure import (
    COPIES,
    NO_WORKERS,
    WORKERS,
    BenchReport,
    _advice,
    _in_turns,
    _usual_size,
    measure,
    section_of,
)
from reader.bench.row_bytes import RowBytes
from reader.bench.timeline import Timeline, record, record_store, timeline_of
from reader.bench.ways import FirstRows, Loader, SliceCopies, TorchLoader
from reader.format.errors import NotMeasured
from reader.loading.host_batches import Gathering
from reader.system import MEMORY_FILE_SYSTEMS

# Pages are dropped from the cache, which those that are not on the disk yet stay in.
pytestmark = pytest.mark.usefixtures("real_syncs")

QUICK = ["--seconds", "0.2", "--batch-size", "16"]


@pytest.fixture(autouse=True, scope="module")
def _few_rounds() -> Iterator[None]:
    """Time two rounds, where a user's bench times six or more."""
    with tuned(bench_rounds_seconds=0.0):
        yield


@pytest.fixture
def all_rounds(tune: Tune) -> None:
    """Time as many rounds as for a user."""
    tune(bench_rounds_seconds=10.0)


@pytest.fixture(scope="module")
def report(shared_store: Path) -> BenchReport:
    return measure(shared_store, batch_size=16, seconds=0.2)


def test_every_way_stands_beside_the_limit(report: BenchReport) -> None:
    memory = report.sections[0]
    loaders = [f"MemmapLoader, {order}" for order in ("full", "block", "sequential")]
    assert [way.name for way in memory.ways] == [COPIES, *loaders, NO_WORKERS, WORKERS]
    assert (memory.rows, memory.limits, memory.ways[0].of_limit) == (90, (COPIES,), 1.0)
    for way in memory.ways:
        assert way.images_per_second > 0
        assert way.gigabytes_per_second == pytest.approx(way.images_per_second * 3072 / 1e9, abs=1e-3)
        assert way.of_limit_p10 <= way.of_limit <= way.of_limit_p90
    assert report.first_batch_ms > 0
    assert report.not_measured == {"disk": "276.5 kB of rows are too few to distinguish the disk from the page cache."}
    assert (report.rows, report.batch_size, report.row_shape) == (90, 16, (32, 32, 3))


def test_what_auto_chooses_is_reported_with_its_reason(shared_store: Path) -> None:
    found = measure(shared_store, batch_size=16, seconds=0.1, order="full")
    assert found.residency == "cache"
    assert "276.5 kB of rows" in found.residency_reason or "is memory itself" in found.residency_reason


def test_measuring_leaves_no_process_and_no_thread(shared_store: Path) -> None:
    gc.collect()
    before, children = set(threading.enumerate()), set(multiprocessing.active_children())
    measure(shared_store, batch_size=16, seconds=0.1, order="full")
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)  # our feeder and the queues of torch's workers end by themselves, a moment after their iterator
    assert set(multiprocessing.active_children()) <= children
    assert set(threading.enumerate()) <= before


def test_json_is_the_report(shared_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(shared_store), "--json", "--order", "block", *QUICK]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert list(found) == list(BenchReport.__dataclass_fields__)
    assert [way["name"] for way in found["sections"][0]["ways"]][1:3] == ["MemmapLoader, block", NO_WORKERS]
    assert captured.err == ""


def test_loaders_that_the_user_did_not_make_warn_of_nothing(
    shared_store: Path, caplog: pytest.LogCaptureFixture, tune: Tune
) -> None:
    tune(shuffle_block_bytes=8 * 32 * 32 * 3, shuffle_window_blocks=2)
    measure(shared_store, batch_size=16, order="block", seconds=0.1)
    assert not caplog.text
    MemmapLoader(MemmapDataset(shared_store), 16, shuffle="block")
    assert "its rows are ordered class by class" in caplog.text


def test_the_table_is_aligned_and_says_what_auto_chooses(
    shared_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    assert run(["bench", str(shared_store), "--trace", str(trace), "--normalize", "--step-ms", "1", *QUICK]) == 0
    out = capsys.readouterr().out.splitlines()
    table = [line for line in out if line.startswith(("from memory", "copying", "MemmapLoader", "DataLoader"))]
    assert len(table) == 7
    assert len({len(line) for line in table if ".." in line}) == 1
    assert any(line.startswith('residency "auto" is "cache" here: 276.5 kB of rows') for line in out)
    names = Counter(event.get("name") for event in json.loads(trace.read_text())["traceEvents"])
    # 90 rows in batches of 16, small enough to be gathered as one group
    assert (names["pixpack.gather"], names["pixpack.transform"], names["pixpack.step"]) == (1, 6, 6)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["missing"], 1, "missing does not exist."),
        (["OUT", "--batch-size", "91"], 2, "the batch size is 91, expected 1 to 90"),
        (["OUT", "--device", "toaster"], 2, "device is 'toaster'"),
        (["OUT", "--device", "meta"], 2, "device is 'meta', expected cpu or cuda."),
        (["OUT", "--step-ms", "nan"], 2, "nan is not in the range 0<=x<=60000"),
        (["OUT", "--seconds", "nan"], 2, "nan is not in the range 0.1<=x<=3600"),
        (["OUT", "--trace", "nowhere/p.json"], 2, "--trace nowhere/p.json cannot be written"),
        (["OUT", "--trace", "."], 2, "--trace . cannot be written"),
        (["OUT", "--trace", "/dev/full", *QUICK], 28, "/dev/full: No space left on device"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    arguments: list[str],
    code: int,
    sentence: str,
    shared_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["bench", *(str(shared_store) if word == "OUT" else word for word in arguments)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    # a machine that is slow enough reports how far the command is
    assert [sentence in line for line in captured.err.splitlines() if line.startswith("pack: ")] == [True]


# -- rows with sizes of their own


@pytest.fixture(scope="module")
def ragged_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """72 rows of many sizes."""
    folder = tmp_path_factory.mktemp("ragged")
    pack(make_tree(folder / "images", each=24), folder / "out", fit="none", workers=2)
    return folder / "out"


def test_rows_with_sizes_of_their_own_are_timed_and_recorded(
    ragged_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--trace", str(tmp_path / "trace.json"), "--normalize"]
    assert run(["bench", str(ragged_store), "--json", "--seconds", "0.2", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    memory = report["sections"][0]
    loaders = [f"MemmapLoader, {order}" for order in ("full", "block", "sequential")]
    assert [way["name"] for way in memory["ways"]] == [COPIES, *loaders, NO_WORKERS, WORKERS]
    # of the bytes that the images have, neither of the largest nor of pages
    mean = MemmapDataset(ragged_store).store.pixels.nbytes / 72
    for way in memory["ways"]:
        assert way["gigabytes_per_second"] == pytest.approx(way["images_per_second"] * mean / 1e9, rel=1e-3)
    assert (report["has_own_sizes"], report["batch_size"], memory["rows"]) == (True, 8, 72)
    assert sum(span["stage"] == "step" for span in report["timeline"]["spans"]) == 9
    height, width, _ = report["row_shape"]
    shown = text(report)
    assert f"72 rows of up to uint8[{height}, {width}, 3], " in shown


@pytest.mark.parametrize("order", ["full", "sequential"])
def test_each_turn_counts_the_bytes_of_the_rows_that_it_had(
    ragged_store: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = MemmapDataset(ragged_store, as_tuple=False)
    bytes_of = data.store.shapes.prod(1)
    taken: list[int] = []
    monkeypatch.setattr(RowBytes, "images", lambda self, rows: taken.append(int(bytes_of[rows].sum())) or 1.0)
    loader = Loader(FirstRows(data, 7, 72), order, torch.device("cpu"))
    loader.turn()
    before = loader._taken
    loader.close()
    assert taken[0] <= before * 7 * int(bytes_of.max())
    assert taken[0] / (before * 7) == pytest.approx(float(bytes_of.float().mean()), rel=0.2)
    monkeypatch.undo()
    rows = RowBytes(data)
    assert rows.images(np.arange(72)) * rows.mean == pytest.approx(int(bytes_of.sum()))
    assert [rows.count_within(rows.end(count)) for count in range(73)] == list(range(73))
    copies = SliceCopies(FirstRows(data, 7, 72))
    assert sum(copies._copy() for _ in range(10)) == int(bytes_of[:70].sum())


def test_the_disk_is_read_as_far_as_complete_rows_of_own_sizes_reach(
    ragged_store: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(small_store_bytes=1 << 16)
    monkeypatch.setattr(system, "file_system", lambda path: "ext4")
    monkeypatch.setattr("reader.bench.disk.drop", lambda path, size_bytes: dropped.append(size_bytes))
    dropped: list[int] = []
    data = MemmapDataset(ragged_store, as_tuple=False)
    count, ways = disk_ways(data, 4, "full", seconds=0)
    assert 4 <= count < 72
    assert all(way() > 0 for way in ways.values())
    assert dropped[1:] == [int(data.store.offsets[count])] * 3


# -- soon done, and reported meanwhile


@pytest.mark.parametrize(
    ("rows", "row_bytes", "size"),
    [
        pytest.param(1, 150_528, 1, id="one row"),
        pytest.param(15, 150_528, 1, id="fewer than two batches of eight"),
        pytest.param(200, 150_528, 16, id="small"),
        pytest.param(2047, 150_528, 128, id="not quite enough"),
        pytest.param(2048, 150_528, 256, id="enough"),
        pytest.param(10_000, 3 << 20, 64, id="large rows"),
        pytest.param(10_000, 1 << 30, 1, id="rows larger than a batch"),
    ],
)
def test_the_usual_batch_gives_eight_batches_an_epoch_and_fits_in_memory(rows: int, row_bytes: int, size: int) -> None:
    class Data:
        manifest = SimpleNamespace(row_bytes=row_bytes)

        def __len__(self) -> int:
            return rows

    assert _usual_size(Data()) == size  # type: ignore[arg-type]


def test_the_timeline_of_a_small_store_shows_a_pipeline(shared_store: Path) -> None:
    found = record_store(shared_store)
    assert sum(span.stage == "step" for span in found.spans) == 12


def test_a_turn_of_batches_that_take_long_ends_by_its_time(shared_store: Path, tune: Tune) -> None:
    tune(bench_turn_seconds=0.0)
    # batches as large as a group
    tune(batch_group_bytes=1)
    loader = Loader(FirstRows(MemmapDataset(shared_store, as_tuple=False), 1, 1), "full", torch.device("cpu"))
    loader._taken, loader._iterator = 0, iter(loader._loader)
    loader._take(1024)
    assert loader._taken == 0
    tune(bench_turn_seconds=60.0)
    loader._take(1024)
    assert loader._taken == 1024
    loader.close()


@pytest.mark.usefixtures("all_rounds")
@pytest.mark.parametrize(("turn_seconds", "rounds"), [(0.001, 6), (3.0, 2), (1.0, 4), (100.0, 2)])
def test_slow_rounds_are_few(turn_seconds: float, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("reader.bench.measure.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def turn() -> float:
        now[0] += turn_seconds
        return 1.0

    shares: list[float] = []
    rates = _in_turns({"a": turn, "b": turn, "c": turn}, 0.0, shares.append)
    assert [len(found) for found in rates.values()] == [rounds] * 3
    assert shares == sorted(shares)


@pytest.mark.usefixtures("all_rounds")
def test_each_stage_is_reported_when_it_begins(shared_store: Path) -> None:
    reported: list[tuple[str, float]] = []
    measure(shared_store, seconds=0.1, order="full", progress=lambda stage, share: reported.append((stage, share)))
    first = dict(reversed(reported))
    assert list(dict.fromkeys(stage for stage, _ in reported)) == ["disk", "memory"]
    assert first == {"disk": 0.0, "memory": 0.0}
    assert reported[-1] == ("memory", 1.0)


def test_sizes_are_given_in_a_unit_that_fits(report: BenchReport) -> None:
    found = dataclasses.asdict(report)
    slow = found["sections"][0]["ways"][-1]
    slow["gigabytes_per_second"] = 0.0000125
    shown = text(found)
    assert "90 rows of uint8[32, 32, 3], 276.5 kB on " in shown
    assert " 12.5 kB/s " in next(line for line in shown.splitlines() if line.startswith(WORKERS))


# -- fair and honest


def test_a_turn_of_the_loader_ends_with_as_many_batches_made_as_taken(
    shared_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wait at its end, the queue would be refilled during the turn of another way."""
    made: list[int] = []
    gathered = Gathering.begin

    def count(self: Gathering, groups: list[Any], ahead: Any) -> Any:
        time.sleep(0.002)
        made.append(len(groups))
        return gathered(self, groups, ahead)

    monkeypatch.setattr(Gathering, "begin", count)
    part = FirstRows(MemmapDataset(shared_store, as_tuple=False), 80, 90)
    loader = Loader(part, "full", torch.device("cpu"))
    for _ in range(2):
        made.clear()
        loader.turn()  # of an epoch of its own
        assert sum(made) == loader._taken + loader._loader.prefetch * made[0]
    loader.close()


def test_a_share_is_taken_within_a_round_and_of_the_faster_limit(shared_store: Path) -> None:
    rates = {"a": [100.0, 10.0, 100.0], "b": [50.0, 20.0, 50.0], "ours": [50.0, np.nan, 80.0]}
    section = section_of("disk", MemmapDataset(shared_store, as_tuple=False), 90, ("a", "b"), rates)
    ways = {way.name: way for way in section.ways}
    assert (ways["a"].of_limit, ways["b"].of_limit) == (1.0, 0.5)
    assert (ways["ours"].of_limit, ways["ours"].images_per_second) == (0.65, 65.0)


def test_advice_comes_only_from_what_was_measured(report: BenchReport, shared_store: Path) -> None:
    data = MemmapDataset(shared_store, as_tuple=False)
    slow = section_of("memory", data, 90, (COPIES,), {COPIES: [9.0], NO_WORKERS: [6.0], WORKERS: [2.0]})
    disk = section_of("disk", data, 90, (IN_ORDER,), {IN_ORDER: [1e6], "MemmapLoader from the disk, block": [9e5]})
    workers = "Workers slow this store down: a DataLoader without is 3.0 times as fast as with two."
    cold = "The page cache holds 12% of the store: the first epoch reads the rest at the disk's speed"
    assert _advice([slow], 1.0, "cache") == [workers]
    assert _advice([slow, disk], 0.12, "cache") == [f"{cold}, here 2.8 GB/s.", workers]
    assert _advice([], 0.12, "cache") == [f"{cold}."]
    beaten = section_of("memory", data, 90, (COPIES,), {COPIES: [9.0], "MemmapLoader, full": [12.0]})
    level = section_of("memory", data, 90, (COPIES,), {COPIES: [9.0], "MemmapLoader, full": [9.5]})
    assert "other programs were at work" in _advice([beaten], 1.0, "cache")[0]
    assert _advice([level], 1.0, "cache") == []
    assert "in block order at 90% of the disk's speed" in _advice([disk], 0.12, "disk")[0]


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 rows of 700 x 700: 35 MB, enough to distinguish the disk from the page cache."""
    folder = tmp_path_factory.mktemp("large")
    pack(make_tree(folder / "images"), folder / "out", size=700, workers=2)
    return folder / "out"


def test_the_disk_is_read_with_its_pages_dropped_and_they_are_brought_back(large_store: Path) -> None:
    if system.file_system(large_store) in MEMORY_FILE_SYSTEMS:
        pytest.skip("this folder is in memory")
    found = measure(large_store, batch_size=4, seconds=0.2, order="block")
    assert found.not_measured == {}
    memory, disk = found.sections
    assert [way.name for way in disk.ways] == [IN_ORDER, BY_THREADS, "MemmapLoader from the disk, block"]
    assert 20 <= disk.rows <= memory.rows
    pixels = large_store / "_tensordict/pixels.memmap"
    assert system.cached_share(pixels, disk.rows * 700 * 700 * 3) == 1.0


def test_a_store_whose_pages_stay_or_that_is_in_memory_says_why_the_disk_was_not_measured(
    large_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = MemmapDataset(large_store, as_tuple=False)
    monkeypatch.setattr(system, "file_system", lambda path: "tmpfs")
    with pytest.raises(NotMeasured, match="on a file system in memory"):
        disk_ways(data, 4, "block", seconds=0.1)
    monkeypatch.setattr(system, "file_system", lambda path: "ext4")
    monkeypatch.setattr(system, "cached_share", lambda path, first_bytes=None: 1.0)
    with pytest.raises(NotMeasured, match="stay in the page cache"):
        disk_ways(data, 4, "block", seconds=0.1)


def test_workers_without_room_in_shared_memory_are_left_out() -> None:
    assert TorchLoader.why_not(1 << 50, 2).startswith("/dev/shm has ")
    assert TorchLoader.why_not(1, 2) == ""


def test_what_was_not_measured_is_named(report: BenchReport) -> None:
    shown = text(dataclasses.asdict(report) | {"not_measured": {"disk": "it is gone."}, "advice": ["Do this."]})
    assert "\nnot measured: disk: it is gone.\n" in shown
    assert shown.endswith("\nDo this.")


# -- the timeline


def test_spans_are_those_of_the_run(shared_store: Path) -> None:
    loader = MemmapLoader(
        MemmapDataset(shared_store, as_tuple=False),
        90,
        shuffle="full",
        transform=lambda batch: batch.images.float(),
        as_tuple=False,
    )
    found = record(loader, batches=5)
    assert found.lanes == ("caller", "feeder")
    counts = Counter((span.lane, span.stage) for span in found.spans if span.stage != "wait")
    assert counts == {("feeder", "gather"): 1, ("feeder", "transform"): 1, ("caller", "step"): 1}
    assert all(0 <= span.start_ms <= span.stop_ms for span in found.spans)


def test_a_loop_waits_for_a_slow_transform_and_a_loader_for_a_slow_loop(shared_store: Path) -> None:
    data = MemmapDataset(shared_store, as_tuple=False).subset(np.arange(80))

    def slow(batch: Any) -> Any:
        time.sleep(0.01)
        return batch

    def timeline(transform: Any, step_ms: float) -> Timeline:
        # groups of one: else all of this store is one
        loader = MemmapLoader(data, 10, transform=transform, sampler=range(80), as_tuple=False)
        return record(loader, batches=8, step_ms=step_ms)

    waits_for_batches, waits_for_room = timeline(slow, 0), timeline(None, 10)
    for found in (waits_for_batches, waits_for_room):
        assert sum(span.stage == "gather" for span in found.spans) == 8
    assert waits_for_batches.busy_ms("feeder", "transform") >= 80
    assert waits_for_batches.busy_ms("caller", "wait") > 0.8 * 80
    assert waits_for_room.busy_ms("caller", "step") >= 80
    # the first batches fill the queue
    assert waits_for_room.busy_ms("feeder", "wait") > 0.5 * 80
    assert waits_for_room.busy_ms("caller", "wait") < 0.5 * 80


def test_reads_ahead_have_lanes_of_their_own(shared_store: Path) -> None:
    found = record_store(shared_store, batch_size=30, order="sequential", residency="disk")
    readers = [lane for lane in found.lanes if lane.startswith("reader")]
    assert readers
    assert sum(span.stage == "read" for span in found.spans) >= 1
    assert {span.lane for span in found.spans if span.stage == "read"} == set(readers)


def test_a_trace_of_a_device_is_sorted_by_stream() -> None:
    """No CUDA device has made such a trace for us yet: these are events as torch documents them."""

    def event(name: str, category: str, pid: int, tid: int, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": ts, "dur": dur}

    events = [
        event("pixpack.step", "user_annotation", 9, 9, 3000, 500),
        event("pixpack.gather", "user_annotation", 9, 10, 1000, 500),
        event("pixpack.copy", "user_annotation", 9, 10, 1600, 20),
        event("pixpack.copy", "gpu_user_annotation", 0, 13, 1700, 700),
        event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 0, 13, 1700, 700),
        event("elementwise_kernel", "kernel", 0, 7, 3100, 100),
        # of the numbers of rows that are gathered there
        event("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 0, 7, 3300, 100),
        event("step", "user_annotation", 9, 9, 0, 9000),
        event("aten::index_select", "cpu_op", 9, 10, 1100, 300),
        {"ph": "M", "name": "thread_name", "pid": 9, "tid": 10, "args": {}},
    ]
    found = timeline_of(events)
    assert found.lanes == ("caller", "feeder", "copy stream", "stream")
    assert [(span.lane, span.stage, span.start_ms, span.stop_ms) for span in found.spans] == [
        ("feeder", "gather", 0, 0.5),
        ("feeder", "copy", 0.6, 0.62),
        ("copy stream", "copy", 0.7, 1.4),
        ("caller", "step", 2, 2.5),
        ("stream", "compute", 2.1, 2.2),
        ("stream", "copy", 2.3, 2.4),
    ]
