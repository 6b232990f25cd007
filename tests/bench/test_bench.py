"""`pack bench`: what it reports, records and refuses, and that a trace's spans are those of the run."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import multiprocessing
import re
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
from packer.cli.commands.bench import text
from reader import ColorJitter, MemmapDataset, MemmapLoader, RaggedBatch, RandomHorizontalFlip, system
from reader.bench import (
    BY_THREADS,
    COPIES,
    IN_ORDER,
    NO_WORKERS,
    PINNED_COPIES,
    WORKERS,
    BenchReport,
    FirstRows,
    Section,
    TorchLoader,
    Trace,
    Way,
    _advice,
    _usual_size,
    compare,
    disk_ways,
    lack_of_shared_memory,
    loader_turns,
    loop_ms,
    measure,
    record,
    record_store,
    section_of,
    slice_copies,
    slices,
    take,
)
from reader.format.errors import NotMeasured
from reader.loading.gathering import Gathering
from reader.system import MEMORY_FILE_SYSTEMS

# Pages are dropped from the cache, which those that are not on the disk yet stay in.
pytestmark = pytest.mark.usefixtures("real_syncs")

LOADER = "MemmapLoader, full"
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
    table = [line for line in out if line.startswith((" ", "copying", "MemmapLoader", "DataLoader")) and ".." in line]
    assert len(table) == 7
    assert len({len(line) for line in table}) == 1
    assert any(line.startswith("from memory: 90 rows, 2 rounds") for line in out)
    assert any(line.startswith('residency "auto" is "cache" here: 276.5 kB of rows') for line in out)
    names = Counter(event.get("name") for event in json.loads(trace.read_text())["traceEvents"])
    # 90 rows in batches of 16, small enough to be gathered as one group
    assert (names["pixpack.gather"], names["pixpack.transform"], names["pixpack.step"]) == (1, 6, 6)
    assert out[-1].startswith("in the trace the loop waited ")


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
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event.get("name") == "pixpack.step" for event in events) == 9
    assert set(report["loop_ms"]) == {"step", "wait"}
    height, width, _ = report["row_shape"]
    shown = " ".join(text(_report_of(report), None).split())
    assert f"72 rows of up to uint8[{height}, {width}, 3], " in shown
    assert re.match(
        r"MemmapLoader gives a training loop [\d,]+ images/s from memory \(torch's DataLoader over this store: [\d,]+\):"
        r" a model that takes fewer does not wait for images\. /",
        shown,
    )


@pytest.mark.parametrize("order", ["full", "sequential"])
def test_each_turn_counts_the_bytes_of_the_rows_that_it_had(
    ragged_store: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = MemmapDataset(ragged_store, as_tuple=False)
    store = data.store
    assert isinstance(store, RaggedBatch)
    bytes_of = store.shapes.prod(1)
    counted: list[tuple[int, int]] = []
    images = FirstRows.images

    def counting(part: FirstRows, rows: np.ndarray) -> float:
        counted.append((rows.size, int(bytes_of[rows].sum())))
        return images(part, rows)

    monkeypatch.setattr(FirstRows, "images", counting)
    part = FirstRows(data, 7, 72)
    turns = loader_turns(part, order, torch.device("cpu"))
    next(turns)
    turns.close()
    ((count, size_bytes),) = counted
    assert size_bytes / count == pytest.approx(float(bytes_of.float().mean()), rel=0.2)
    monkeypatch.undo()
    for rows in (np.arange(72), np.array([int(bytes_of.argmax())]), np.array([[int(bytes_of.argmin())] * 2] * 3)):
        assert part.images(rows) * part.row_bytes == pytest.approx(int(bytes_of[rows].sum()))
    ends = [FirstRows(data, 7, count).end for count in range(1, 73)]
    assert [FirstRows(data, 7, 1).within(end).count for end in ends] == list(range(1, 73))
    assert FirstRows(data, 7, 7).within(0).count == 7


def test_the_limit_copies_all_bytes_of_the_rows_in_order(ragged_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = MemmapDataset(ragged_store, as_tuple=False)
    monkeypatch.setattr("reader.bench._COPY_BYTES", 10_000)
    part = FirstRows(data, 7, 60)
    pixels = data.opened_store.pixels[: part.end]
    count = part.end // 10_000
    pairs = list(itertools.islice(slices(part), 2 * count))
    np.testing.assert_array_equal(np.concatenate([source for _, source in pairs[:count]]), pixels[: count * 10_000])
    assert pairs[count][1].ctypes.data == pixels.ctypes.data
    # as much memory as the loader's buffers have, and no more than a slice of it is left out
    copies = {copy.ctypes.data for copy, _ in pairs}
    assert 0 <= 4 * part.batch_bytes - 10_000 * len(copies) < 10_000


@pytest.mark.parametrize("streamed_bytes", [0, 1 << 40], ids=["past the caches", "memcpy"])
def test_a_turn_of_the_limit_copies_each_slice(
    ragged_store: Path, streamed_bytes: int, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(streamed_batch_bytes=streamed_bytes)
    monkeypatch.setattr("reader.bench._COPY_BYTES", 10_000)
    part = FirstRows(MemmapDataset(ragged_store, as_tuple=False), 7, 60)
    pairs = list(itertools.islice(slices(part), 8))
    assert not any((copy == source).all() for copy, source in pairs)
    monkeypatch.setattr("reader.bench.slices", lambda part: itertools.cycle(pairs))
    assert next(slice_copies(part)) > 0
    for copy, source in pairs:
        np.testing.assert_array_equal(copy, source)


def test_the_disk_is_read_as_far_as_complete_rows_of_own_sizes_reach(
    ragged_store: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(small_store_bytes=1 << 16)
    monkeypatch.setattr(system, "file_system", lambda path: "ext4")
    monkeypatch.setattr("reader.bench.drop", lambda path, size_bytes: dropped.append(size_bytes))
    dropped: list[int] = []
    data = MemmapDataset(ragged_store, as_tuple=False)
    assert isinstance(data.store, RaggedBatch)
    part, limits, loader = disk_ways(FirstRows(data, 4, 4), "full", seconds=0)
    assert 4 <= part.count < 72
    assert all(way() > 0 for way in (limits | loader).values())
    assert dropped[1:] == [int(data.store.offsets[part.count])] * 3


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


def test_the_trace_of_a_small_store_shows_a_pipeline(shared_store: Path) -> None:
    assert len(_spans(record_store(shared_store), "step")) == 12


def test_a_turn_of_batches_that_take_long_ends_by_its_time(shared_store: Path, tune: Tune) -> None:
    tune(bench_turn_seconds=0.0)
    # batches as large as a group
    tune(batch_group_bytes=1)
    host = torch.device("cpu")
    with FirstRows(MemmapDataset(shared_store, as_tuple=False), 1, 1).loader("full", host, 2048) as loader:
        batches = iter(loader)
        assert take(batches, 1024, host) == []
        tune(bench_turn_seconds=60.0)
        assert len(take(batches, 1024, host)) == 1024


@pytest.mark.usefixtures("all_rounds")
@pytest.mark.parametrize(("turn_seconds", "rounds"), [(0.001, 6), (3.0, 2), (1.0, 4), (100.0, 2)])
def test_slow_rounds_are_few(
    turn_seconds: float, rounds: int, shared_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = FirstRows(MemmapDataset(shared_store, as_tuple=False), 16, 90)
    now = [0.0]
    monkeypatch.setattr("reader.bench.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def turn() -> float:
        now[0] += turn_seconds
        return 1.0

    shares: list[float] = []
    others = {"MemmapLoader, full": turn, "c": turn}
    section = compare("memory", part, {"a": turn}, others, 0.0, lambda _, share: shares.append(share))
    assert section.rounds == rounds
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
    memory = report.sections[0]
    slow = dataclasses.replace(memory.ways[-1], gigabytes_per_second=0.0000125)
    section = dataclasses.replace(memory, ways=(*memory.ways[:-1], slow))
    shown = text(dataclasses.replace(report, sections=(section,)), None)
    assert "90 rows of uint8[32, 32, 3], 276.5 kB on " in " ".join(shown.split())
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
    counted: list[int] = []

    def counting(batches: Any, least: int, device: torch.device) -> list[torch.Tensor]:
        rows = take(batches, least, device)
        counted.append(len(rows))
        return rows

    monkeypatch.setattr("reader.bench.take", counting)
    part = FirstRows(MemmapDataset(shared_store, as_tuple=False), 80, 90)
    turns = loader_turns(part, "full", torch.device("cpu"))
    for _ in range(2):
        made.clear()
        counted.clear()
        next(turns)  # of an epoch of its own
        assert sum(made) == sum(counted) + 2 * made[0]
    turns.close()


def test_a_share_is_taken_within_a_round_and_of_the_faster_limit(shared_store: Path) -> None:
    rates = {"a": [100.0, 10.0, 100.0], "b": [50.0, 20.0, 50.0], LOADER: [50.0, np.nan, 80.0]}
    section = section_of("disk", FirstRows(MemmapDataset(shared_store, as_tuple=False), 16, 90), ("a", "b"), rates)
    ways = {way.name: way for way in section.ways}
    assert (ways["a"].of_limit, ways["b"].of_limit) == (1.0, 0.5)
    assert (ways[LOADER].of_limit, ways[LOADER].images_per_second) == (0.65, 65.0)


@pytest.mark.parametrize(
    ("limit", "loader", "title"),
    [
        pytest.param(
            [100, 90, 110], [95, 90, 99], "MemmapLoader, full, reads at 0.95 of the limit (0.91 to 0.99).", id="idle"
        ),
        pytest.param(
            [100] * 3, [110] * 3, "MemmapLoader, full, reads at 1.10 of the limit (1.10 to 1.10).", id="as fast"
        ),
        pytest.param(
            [2659] * 3,
            [13331] * 3,
            "MemmapLoader, full, was 5.0 times as fast as what limits it",
            id="below the loader",
        ),
        pytest.param([100, 40, 100], [95, 38, 95], "the limit varied from 0.52 to 1.00 of its median", id="varies"),
        pytest.param(
            [100] * 3,
            [95, 30, 99],
            "MemmapLoader, full, varied around 0.95 of the limit (0.43 to 0.98)",
            id="ours varies",
        ),
    ],
)
def test_the_title_is_true_on_a_busy_machine(
    limit: list[float], loader: list[float], title: str, shared_store: Path
) -> None:
    part = FirstRows(MemmapDataset(shared_store, as_tuple=False), 16, 90)
    section = section_of("memory", part, (COPIES,), {COPIES: limit, LOADER: loader})
    busy = f"The machine is busy, so shares of the limit mean little: {title}. Measure again when it is idle."
    assert section.title == (title if title.endswith(".") else busy)


def test_a_loader_that_is_not_the_first_shows_too_that_the_limit_is_none(shared_store: Path) -> None:
    part = FirstRows(MemmapDataset(shared_store, as_tuple=False), 16, 90)
    rates = {COPIES: [10.0], LOADER: [9.0], "MemmapLoader, sequential": [15.0]}
    title = section_of("memory", part, (COPIES,), rates).title
    assert "MemmapLoader, sequential, was 1.5 times as fast" in title


@pytest.mark.parametrize("columns", [60, 79, 100])
def test_no_line_of_a_table_is_wider_than_a_terminal(report: BenchReport, columns: int) -> None:
    """Of the widest names and figures."""
    wide = dataclasses.replace(
        report.sections[0].ways[0],
        images_per_second=9_999_999.0,
        gigabytes_per_second=999.9,
        of_limit=99.99,
        of_limit_p10=99.99,
        of_limit_p90=999.99,
    )
    names = {
        "memory": [
            COPIES,
            *(f"MemmapLoader, {order}" for order in ("full", "block", "sequential")),
            NO_WORKERS,
            WORKERS,
        ],
        "device": [PINNED_COPIES, "MemmapLoader, sequential"],
        "disk": [IN_ORDER, BY_THREADS, "MemmapLoader, sequential"],
        "network": ["obstore alone, the same ranges", "MemmapLoader, sequential"],
    }
    sections = tuple(
        Section(
            name=section,
            title="The machine is busy, so shares of the limit mean little: " + 20 * "word ",
            rows=99_999_999,
            rounds=999,
            limits=(ways[0],),
            limit_p10=0.01,
            limit_p90=99.99,
            ways=tuple(dataclasses.replace(wide, name=way) for way in ways),
        )
        for section, ways in names.items()
    )
    lines = text(dataclasses.replace(report, sections=sections), columns).splitlines()
    # its sentences wrap, nothing of a table does
    for figure in (r"  9,999,999\b", r"  999\.9 GB/s", r"  +(0\.01\.\.99\.99|99\.99\.\.999\.99)$"):
        rows = [line for line in lines if re.search(figure, line)]
        assert len(rows) == sum(map(len, names.values()))
        assert max(map(len, rows)) <= columns


def test_advice_comes_only_from_what_was_measured(report: BenchReport, shared_store: Path) -> None:
    part = FirstRows(MemmapDataset(shared_store, as_tuple=False), 16, 90)
    rates = {COPIES: [9.0], LOADER: [9.0], NO_WORKERS: [6.0], WORKERS: [2.0]}
    slow = section_of("memory", part, (COPIES,), rates)
    disk = section_of("disk", part, (IN_ORDER,), {IN_ORDER: [1e6], "MemmapLoader, block": [9e5]})
    workers = "Workers slow this store down: a DataLoader without is 3.0 times as fast as with two."
    cold = "The page cache holds 12% of the store: the first epoch reads the rest at the disk's speed"
    assert _advice([slow], 1.0, "cache") == (workers,)
    assert _advice([slow, disk], 0.12, "cache") == (f"{cold}, here 2.8 GB/s.", workers)
    assert _advice([], 0.12, "cache") == (f"{cold}.",)
    larger = "The store does not fit in free memory: every epoch reads it at the disk's speed, here 2.8 GB/s."
    assert _advice([disk], 0.12, "disk") == (larger,)


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
    assert [way.name for way in disk.ways] == [IN_ORDER, BY_THREADS, "MemmapLoader, block"]
    assert 20 <= disk.rows <= memory.rows
    pixels = large_store / "_tensordict/pixels.memmap"
    assert system.cached_share(pixels, disk.rows * 700 * 700 * 3) == 1.0


def test_a_store_whose_pages_stay_or_that_is_in_memory_says_why_the_disk_was_not_measured(
    large_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = FirstRows(MemmapDataset(large_store, as_tuple=False), 4, 4)
    monkeypatch.setattr(system, "file_system", lambda path: "tmpfs")
    with pytest.raises(NotMeasured, match="on a file system in memory"):
        disk_ways(part, "block", seconds=0.1)
    monkeypatch.setattr(system, "file_system", lambda path: "ext4")
    monkeypatch.setattr(system, "cached_share", lambda path, first_bytes=None: 1.0)
    with pytest.raises(NotMeasured, match="stay in the page cache"):
        disk_ways(part, "block", seconds=0.1)


def test_workers_without_room_in_shared_memory_are_left_out() -> None:
    assert lack_of_shared_memory(1 << 50, 2).startswith("/dev/shm has ")
    assert lack_of_shared_memory(1, 2) == ""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_turn_of_a_data_loader_reads_as_many_rows_as_it_counts(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers read no batch of another turn, before or after."""
    counted: list[np.ndarray] = []

    def images(part: FirstRows, rows: np.ndarray) -> float:
        counted.append(rows)
        return 1.0

    monkeypatch.setattr(FirstRows, "images", images)
    monkeypatch.setattr(FirstRows, "batch_bytes", 1 << 30)
    read = torch.zeros(1, dtype=torch.int64).share_memory_()

    class Counting(torch.utils.data.Dataset[int]):
        def __getitem__(self, row: int) -> int:
            read.add_(1)
            return row

    loader = TorchLoader(Counting(), workers)
    part = FirstRows(Counting(), 4, 50)  # type: ignore[arg-type]
    for turn in range(1, 4):
        assert loader.turn(part) > 0
        least, ahead = (8, 5) if workers else (2, 1)
        assert counted[-1].shape == (least, 4)
        assert int(counted[-1].max()) < 50
        if not workers:
            assert int(read) == turn * (least + ahead) * 4


def test_what_was_not_measured_is_named(report: BenchReport) -> None:
    shown = text(dataclasses.replace(report, not_measured={"disk": "it is gone."}, advice=("Do this.",)), None)
    assert "\nnot measured: disk: it is gone.\n" in shown
    assert shown.endswith("\nDo this.")


# -- the trace


def test_spans_are_those_of_the_run(shared_store: Path) -> None:
    loader = MemmapLoader(
        MemmapDataset(shared_store, as_tuple=False),
        90,
        shuffle="full",
        transform=ColorJitter(0.4),
        as_tuple=False,
    )
    found = record(loader, batches=5)
    threads = {stage: {_thread(span) for span in _spans(found, stage)} for stage in ("gather", "transform", "step")}
    assert [len(_spans(found, stage)) for stage in threads] == [1, 1, 1]
    assert threads["gather"] == threads["transform"] != threads["step"]
    assert all(span["dur"] >= 0 for stage in threads for span in _spans(found, stage))


def test_a_loop_waits_for_a_slow_transform_and_a_loader_for_a_slow_loop(
    shared_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = MemmapDataset(shared_store, as_tuple=False).subset(np.arange(80))

    def slow(self: Any, batch: Any) -> Any:
        time.sleep(0.01)
        return batch

    monkeypatch.setattr(RandomHorizontalFlip, "__call__", slow)

    def recorded(transform: Any, step_ms: float) -> Trace:
        # groups of one: else all of this store is one
        loader = MemmapLoader(data, 10, transform=transform, sampler=range(80), as_tuple=False, threads=1)
        return record(loader, batches=8, step_ms=step_ms)

    waits_for_batches, waits_for_room = recorded(RandomHorizontalFlip(), 0), recorded(None, 40)
    for found in (waits_for_batches, waits_for_room):
        assert len(_spans(found, "gather")) == 8
    assert _feeder_ms(waits_for_batches, "transform") >= 80
    assert loop_ms(waits_for_batches)["wait"] > 0.8 * 80
    assert loop_ms(waits_for_room)["step"] >= 320
    # the first batches fill the queue
    assert _feeder_ms(waits_for_room, "wait") > 0.5 * 320
    # for the first batch it waits as long as the machine takes to start
    first = min(_spans(waits_for_room, "step"), key=lambda span: span["ts"])
    waits = [span for span in _spans(waits_for_room, "wait") if _thread(span) == _thread(first)]
    assert sum(span["dur"] for span in waits if span["ts"] > first["ts"]) / 1e3 < 0.5 * 320


def test_reads_ahead_have_threads_of_their_own(shared_store: Path) -> None:
    found = record_store(shared_store, batch_size=30, order="sequential", residency="disk")
    readers = {_thread(span) for span in _spans(found, "read")}
    assert readers
    assert not readers & {_thread(span) for stage in ("gather", "step") for span in _spans(found, stage)}


def test_what_the_loop_did_is_of_its_thread_and_of_our_names_alone() -> None:
    def event(name: str, category: str, tid: int, dur: float) -> dict[str, Any]:
        return {"ph": "X", "name": name, "cat": category, "pid": 9, "tid": tid, "ts": 0, "dur": dur}

    events = [
        event("pixpack.step", "user_annotation", 9, 500),
        event("pixpack.step", "user_annotation", 9, 250),
        event("pixpack.wait", "user_annotation", 9, 40),
        event("pixpack.wait", "user_annotation", 10, 1000),
        # as torch documents the events of a CUDA device
        event("pixpack.step", "gpu_user_annotation", 7, 500),
        event("step", "user_annotation", 9, 9000),
        event("aten::index_select", "cpu_op", 9, 300),
        {"ph": "M", "name": "thread_name", "pid": 9, "tid": 10, "args": {}},
    ]
    assert loop_ms({"traceEvents": events}) == {"step": 0.75, "wait": 0.04}


def _spans(trace: Trace, stage: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("name") == f"pixpack.{stage}" and "dur" in event]


def _thread(span: dict[str, Any]) -> tuple[int, int]:
    return span["pid"], span["tid"]


def _feeder_ms(trace: Trace, stage: str) -> float:
    (feeder,) = {_thread(span) for span in _spans(trace, "gather")}
    return sum(span["dur"] for span in _spans(trace, stage) if _thread(span) == feeder) / 1e3


def _report_of(shown: dict[str, Any]) -> BenchReport:
    """Make a report of what --json prints of it."""
    sections = [Section(**section | {"ways": [Way(**way) for way in section["ways"]]}) for section in shown["sections"]]
    fields = {name: shown[name] for name in BenchReport.__dataclass_fields__}
    return BenchReport(**fields | {"sections": sections})
