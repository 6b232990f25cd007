"""The notes' seven loaders, from naive to prefetching on the GPU: who does what when, measured and drawn in one picture.

Batches of 256 rows of 224 x 224 for a step of 30 ms, which stands for a network: on a CUDA device a kernel that takes so long,
without one, and with MemmapLoader, the loop sleeps. The first loader decodes a folder by Pillow and collates item by item;
the others read the same pixels, mapped. Drawn is the fastest of a few rounds, which others on the machine disturbed the least,
after two batches. Pinned memory, and prefetching onto a device, need a GPU; without one there is no
copy to a device either. Checked: each loader's first batch is those rows of the store.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reader import MemmapDataset, MemmapLoader
from reader.bench import record
from scripts.benchmarks.reading._gpu_step import spin
from scripts.common import plot
from scripts.common.timing import in_turns
from scripts.studies.claims._claim import LOADER_NOTES, ClaimResult, best_device, lacking, photo_folder
from scripts.studies.claims.batches._loaders import (
    AHEAD,
    COLLATE,
    COLLATED,
    COPY,
    DEVICE_COPY,
    FAST,
    MODEL,
    NAIVE,
    PARALLEL,
    PINNED,
    PREFETCHED,
    QUEUED,
    READ,
    STEP,
    WORKERS,
    Loaders,
    Recorder,
    Span,
)
from scripts.studies.claims.pictures.folder_or_memmap import packed

CLAIM = "From naive to prefetching on the GPU, each of seven loaders is faster than the one before it."
SOURCE = LOADER_NOTES

ROUNDS, BATCH, SIDE, STEP_MS = 7, 256, 224, 30.0
UNTIMED, DRAWN = 2, 8
COLORS = {READ: plot.LINES[0], COLLATE: plot.LINES[1], COPY: plot.LINES[2], STEP: plot.OTHER}
OURS = "MemmapLoader"
NAMES = (NAIVE, FAST, COLLATED, PINNED, PARALLEL, QUEUED, PREFETCHED, OURS)
NAMED = {"pixpack.gather": (OURS, READ), "pixpack.step": (MODEL, STEP)}
NEEDS_GPU = "needs a GPU"


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return, for each loader, milliseconds a batch and the spans of the fastest round."""
    rows, side, size, step_ms, rounds = (16, 32, 8, 1.0, 1) if quick else (4 * BATCH, SIDE, BATCH, STEP_MS, ROUNDS)
    device = best_device()
    images = photo_folder(work, rows, (side, side))
    data, rng = MemmapDataset(packed(images, (side, side))), np.random.default_rng(0)
    # more than are drawn, so that workers have something to read until the end
    order = [rng.permutation(rows)[:size] for _ in range(UNTIMED + DRAWN + WORKERS * AHEAD)]
    loaders, step = Loaders(images, data, order, device).all(), spin(step_ms, device)
    for name, loader in loaders.items():
        first = next(loader(Recorder(device))).cpu().numpy()
        if not np.array_equal(first, data.numpy()[order[0]]):
            raise RuntimeError(f"{name}: its first batch is not the rows of the store.")
    turns: dict[str, Callable[[], list[Span]]] = {
        name: partial(one_round, loader, step, device) for name, loader in loaders.items()
    }
    turns[OURS] = partial(ours, data, size, step_ms, device)
    found = in_turns(turns, rounds)
    return {
        "batch_size": size,
        "side": side,
        "step_ms": step_ms,
        "device": device.type,
        "loaders": {name: fastest_round(rounds_of) for name, rounds_of in found.items()},
        "not_measured": {name: NEEDS_GPU for name in NAMES if name not in found},
    }


def one_round(
    loader: Callable[[Recorder], Iterator[torch.Tensor]], step: Callable[[], None], device: torch.device
) -> list[Span]:
    recorder = Recorder(device)
    batches = loader(recorder)
    for batch in itertools.islice(batches, UNTIMED + DRAWN):
        with recorder.on_device(MODEL, STEP):
            step()
        del batch
    batches.close()
    return recorder.ended()


def ours(data: MemmapDataset, size: int, step_ms: float, device: torch.device) -> list[Span]:
    """Return the spans of MemmapLoader, by the names that it gives torch.profiler."""
    loader = MemmapLoader(
        data.subset(np.resize(np.arange(len(data)), size * (UNTIMED + DRAWN + 4))),
        size,
        shuffle="full",
        device=device,
        # on a device where the rows all fit, nothing would be sent
        residency="cache",
    )
    spans: list[Span] = []
    for event in record(loader, batches=UNTIMED + DRAWN, step_ms=step_ms)["traceEvents"]:
        category, name = event.get("cat"), str(event.get("name"))
        if category == "user_annotation" and name in NAMED:
            spans.append((*NAMED[name], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6))
        # of copies, what the device did, not how the host began it
        elif category == "gpu_memcpy" and "HtoD" in name:
            spans.append((DEVICE_COPY, COPY, event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6))
    return sorted(spans, key=lambda span: span[2])


def fastest_round(rounds: list[list[Span]]) -> dict[str, Any]:
    """Return milliseconds a batch of each round, and the spans of the fastest after the untimed batches."""
    ends = [[stop for lane, _, _, stop in spans if lane == MODEL] for spans in rounds]
    taken = [1e3 * (its[-1] - its[UNTIMED - 1]) / (len(its) - UNTIMED) for its in ends]
    best = min(range(len(taken)), key=lambda n: taken[n])
    begin, end = ends[best][UNTIMED - 1], ends[best][-1]
    spans = [
        [lane, stage, round(1e3 * (start - begin), 2), round(1e3 * (stop - begin), 2)]
        for lane, stage, start, stop in rounds[best]
        if stop > begin and start < end
    ]
    return {
        "milliseconds_a_batch": [round(value, 2) for value in taken],
        "fastest": round(taken[best], 2),
        "spans": spans,
    }


def conclude(figures: dict[str, Any]) -> ClaimResult:
    found = {name: of["fastest"] for name, of in figures["loaders"].items()}
    seven = [found[name] for name in NAMES if name in found and name != OURS]
    reported = ", ".join(f"{name} {found[name]:.0f}" for name in NAMES if name in found)
    is_falling = all(a > b for a, b in itertools.pairwise(seven))
    first, best, rounds = seven[0], min(seven), len(figures["loaders"][OURS]["milliseconds_a_batch"])
    return ClaimResult(
        f"A batch and its step of {figures['step_ms']:.0f} ms take {first:.0f} ms by the naive loader, {best:.0f} by the best"
        f" of the others here, {found[OURS]:.0f} by MemmapLoader",
        f"Fastest of {rounds} rounds, milliseconds a batch of {figures['batch_size']}, a step of {figures['step_ms']:.0f} ms"
        f" included: {reported}{lacking(figures)}.",
        # those that need a GPU could still break a series that falls
        None if is_falling and figures["not_measured"] else is_falling,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, (axes,) = make()
    figure.subplots_adjust(left=0.17, right=0.9)
    loaders, top, ticks = figures["loaders"], 0.0, {}
    window = 5.2 * loaders[FAST]["fastest"]
    for name in NAMES:
        spans = loaders.get(name, {}).get("spans", [])
        lanes = [*sorted({span[0] for span in spans if span[0] != MODEL}), MODEL]
        for n, lane in enumerate(lanes):
            for stage in COLORS:
                its = [(start, stop - start) for where, what, start, stop in spans if (where, what) == (lane, stage)]
                axes.broken_barh(
                    its, (top + n, 0.86), color=COLORS[stage], edgecolor="white", linewidth=0.6, label=stage
                )
        ticks[name] = top + len(lanes) / 2
        reported = f"{loaders[name]['fastest']:.0f} ms" if spans else ""
        axes.text(
            1.01, ticks[name], reported, transform=axes.get_yaxis_transform(), va="center", size=9.5, weight="bold"
        )
        if not spans:
            axes.text(
                0.01,
                ticks[name],
                NEEDS_GPU,
                transform=axes.get_yaxis_transform(),
                va="center",
                size=9,
                color=plot.GRAY,
            )
        top += len(lanes) + 0.8
    axes.set_xlim(0, window)
    axes.set_ylim(top, -0.4)
    axes.set_yticks(list(ticks.values()), list(ticks))
    axes.tick_params("y", labelcolor=plot.DARK)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"milliseconds, after {UNTIMED} batches; right: milliseconds a batch")
    name_stages(figure, axes, loaders)
    return figure


def name_stages(figure: Any, axes: Any, loaders: dict[str, Any]) -> None:
    """Name the stages that occur below the picture, each once."""
    seen = {span[1] for of in loaders.values() for span in of["spans"]}
    handles = dict(zip(axes.get_legend_handles_labels()[1], axes.get_legend_handles_labels()[0], strict=True))
    shown = [stage for stage in COLORS if stage in seen]
    figure.subplots_adjust(bottom=0.2)
    top = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.04)}
    figure.legend([handles[stage] for stage in shown], shown, ncols=len(shown), frameon=False, fontsize=9, **top)
