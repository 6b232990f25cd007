"""Who did what when in a run of a MemmapLoader: the loader's names in a trace of torch.profiler, sorted into lanes.

Records a run, or reads any Chrome trace of one in which the loop's own work is named pixpack.step. Never draws.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from reader.bench.measure import checked
from reader.bench.ways import ORDERS
from reader.dataset.dataset import MemmapDataset
from reader.format.errors import BenchError
from reader.format.filesystem import error_path
from reader.loading.loader import MemmapLoader
from reader.store import Batch, RaggedBatch
from reader.transforms.color import Normalize

# What the loader names, and the loop. Waiting: the loop for a batch; the feeder for room in the queue, or for reads.
STAGES = ("network", "read", "gather", "copy", "transform", "step", "wait")

# Enough to see the start, which takes prefetch + 2 of them, and what follows.
BATCHES = 16

_PREFIX = "pixpack."
# Says in a trace when the run began by time.monotonic.
_CLOCK = "pixpack.clock"
# Kinds of threads and streams, and the stage that no kind before has: with prefetch=0 the caller gathers, too.
_KINDS = {
    "caller": "step",
    "feeder": "gather",
    "reader": "read",
    "network": "network",
    "copy stream": "device copy",
    "stream": "device compute",
}


@dataclass(frozen=True)
class Span:
    """A stage of a lane, in milliseconds since the first. Spans of a lane may be inside one another: a wait in a gather."""

    lane: str
    stage: str
    start_ms: float
    stop_ms: float


@dataclass(frozen=True)
class Timeline:
    """The spans of a run, by start. lanes: caller, feeder, readers, streams of the device, each where there is one."""

    lanes: tuple[str, ...]
    spans: tuple[Span, ...]

    @property
    def milliseconds(self) -> float:
        """Length of the run."""
        return max((span.stop_ms for span in self.spans), default=0.0)

    def busy_ms(self, lane: str, stage: str) -> float:
        """Return the time that a lane spent in a stage."""
        return sum(span.stop_ms - span.start_ms for span in self.spans if (span.lane, span.stage) == (lane, stage))


def record_store(
    path: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    device: str = "cpu",
    order: str = "full",
    residency: str = "auto",
    normalize: bool = False,
    step_ms: float = 0.0,
    trace: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Timeline:
    """Record 16 batches of a store read by a new MemmapLoader, see `record`.

    cache: a folder on a local disk, for the blocks of a store at a URL.
    normalize: its transform makes float32 images by the store's own mean and std.

    Raises:
        StoreError: path is not a store.
        BenchError: what was asked for contradicts the store or this machine.
    """
    data = MemmapDataset(path, cache=cache)
    size, where = checked(data, batch_size, device)
    to_floats = Normalize.of(data.manifest).to(where)

    def normalized(batch: Batch) -> torch.Tensor | list[torch.Tensor]:
        return (
            [to_floats(image) for image in batch.images] if isinstance(batch, RaggedBatch) else to_floats(batch.images)
        )

    transform = normalized if normalize else None
    try:
        loader = MemmapLoader(data, size, shuffle=ORDERS[order], device=where, transform=transform, residency=residency)
    except ValueError as e:
        raise BenchError(str(e)) from None
    try:
        return record(loader, batches=BATCHES, step_ms=step_ms, trace=trace)
    finally:
        if data.remote is not None:
            data.remote.close()


def record(
    loader: MemmapLoader, *, batches: int, step_ms: float = 0.0, trace: str | os.PathLike[str] | None = None
) -> Timeline:
    """Take so many batches, or an epoch where that is shorter, under torch.profiler, and close the loader.

    Args:
        step_ms: the loop waits so long with each batch, as for a training step on a device.
        trace: write the Chrome trace there, as JSON.

    Example:
        >>> loader = MemmapLoader(MemmapDataset(store_path), batch_size=30)
        >>> record(loader, batches=3).lanes
        ('caller', 'feeder')
    """
    activities = [ProfilerActivity.CPU]
    if loader.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    # without this the profiler sees the thread alone that started it
    all_threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    remote = loader.dataset.remote
    with profile(activities=activities, experimental_config=all_threads) as profiler:
        with record_function(_CLOCK):
            began = time.monotonic()
        for taken, batch in enumerate(loader, start=1):
            with record_function("pixpack.step"):
                time.sleep(step_ms / 1e3)
                del batch
            if taken == batches:
                break
        # ended in here, the threads' last spans are complete
        loader.close()
        if loader.device.type == "cuda":
            torch.cuda.synchronize(loader.device)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(written))
        if remote is not None:
            _add_requests(written, remote.requests(), began)
        if trace is not None:
            with error_path(trace):
                shutil.copyfile(written, trace)
        return timeline_of(json.loads(written.read_text(encoding="utf-8"))["traceEvents"])


def _add_requests(written: Path, requests: Sequence[tuple[float, float]], began: float) -> None:
    """Add to a trace what another process did, by the one clock of the machine.

    requests: where each began and ended, and `began` when the span of that name did, by time.monotonic.
    """
    trace = json.loads(written.read_text(encoding="utf-8"))
    at = next(event["ts"] for event in trace["traceEvents"] if event.get("name") == _CLOCK and "dur" in event)
    for start, stop in requests:
        event: Event = {"name": "pixpack.network", "cat": "user_annotation", "pid": "fetcher", "tid": "network"}
        event |= {"ts": at + (start - began) * 1e6, "dur": (stop - start) * 1e6}
        trace["traceEvents"].append({"ph": "X"} | event)
    written.write_text(json.dumps(trace), encoding="utf-8")


# What identifies a process and its thread, or a device and its stream.
Thread = tuple[int | str, int | str]


class Event(TypedDict, total=False):
    """An event of a Chrome trace, as far as it is read; times in microseconds."""

    name: str
    cat: str
    ts: float
    dur: float
    pid: int | str
    tid: int | str


def timeline_of(events: Iterable[Event]) -> Timeline:
    """Sort the events of a Chrome trace into lanes; what is neither the loader's, the loop's nor the device's is left out."""
    found = [(stage, event) for event in events if (stage := _stage(event))]
    found.sort(key=lambda item: item[1]["ts"])
    lanes = _lanes(found)
    begin = found[0][1]["ts"] if found else 0.0
    spans = (
        Span(lanes[_thread(event)], stage, (event["ts"] - begin) / 1e3, (event["ts"] - begin + event["dur"]) / 1e3)
        for stage, event in found
    )
    return Timeline(tuple(lanes.values()), tuple(spans))


def _stage(event: Event) -> str:
    """Name what an event is; "" for an event of another program. No trace of a CUDA device has been read yet."""
    category, name = event.get("cat"), str(event.get("name"))
    if category == "user_annotation":
        return name[len(_PREFIX) :] if name.startswith(_PREFIX) and name[len(_PREFIX) :] in STAGES else ""
    if category == "gpu_memcpy" and "HtoD" in name:
        return "copy"
    return "compute" if category in ("kernel", "gpu_memcpy", "gpu_memset") else ""


def _thread(event: Event) -> Thread:
    """Return what identifies a thread, or a stream of a device."""
    return event["pid"], event["tid"]


def _lanes(found: Sequence[tuple[str, Event]]) -> dict[Thread, str]:
    """Name each thread and stream by what it did, in the order of a batch's way."""
    stages: dict[Thread, set[str]] = {}
    for stage, event in found:
        stages.setdefault(_thread(event), set()).add(stage if event["cat"] == "user_annotation" else f"device {stage}")
    for done in stages.values():
        if "device compute" in done:  # numbers of rows travel on the loop's own stream
            done.discard("device copy")
    kinds = {
        thread: next((kind for kind, sign in _KINDS.items() if sign in done), "feeder")
        for thread, done in stages.items()
    }
    names: dict[Thread, str] = {}
    for kind in _KINDS:
        alike = [thread for thread, its in kinds.items() if its == kind]
        names |= {thread: kind if len(alike) == 1 else f"{kind} {n}" for n, thread in enumerate(alike, start=1)}
    return names
