"""How near do batches on a CUDA device come to their limits: the bus, the device's memory, a training step that waits for none?

    python -m scripts.benchmarks.reading.bench_gpu                         all parts, on a store of random rows made for it
    python -m scripts.benchmarks.reading.bench_gpu --only loading training
    python -m scripts.benchmarks.reading.bench_gpu --device cpu --quick    shows that the code runs; measures nothing

Each part times its limit in the same rounds, ratios are taken round by round, and what is timed is compared with the store
first. Parts:

    loading    shuffles "full" and "block" to the device, against copying pinned buffers there; with the cores that they take
    training   a step of ResNet-50 in bfloat16, channels_last, compiled, with loading, RandomResizedCrop and flip, against the
               same step on a batch that stays on the device; once more on two cores of the host
    waiting    steps of 20 ms in which the device is busy and the host is not, with loading, against the same steps without
    resident   a full shuffle of a store on the device, against the gather alone
    pinned     rows of a pinned copy of the store, sent by MemmapLoader or copied one by one, against copying pinned buffers

Without a CUDA device every part says "not measured: no GPU".
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from reader import Compose, ImageBatch, MemmapDataset, MemmapLoader, RandomHorizontalFlip, RandomResizedCrop
from reader.bench import DEVICE_TURN_BYTES, FirstRows, Turn, loader_turns, pinned_copies, slice_copies
from reader.device.transfer import pin
from scripts import environment
from scripts.benchmarks.reading._gpu_step import TrainingStep, spin
from scripts.common.arguments import bench_parser
from scripts.common.figures import BenchmarkError, machine, publish, ratios, spread, table
from scripts.common.timing import collection_paused, in_turns, seconds_over
from scripts.samples.stores import random_store

LIMIT = "limit"
# Rows are larger than what a network takes, as for a random crop they must be.
SIDE, CROP = 256, 224
QUICK_SIDE, QUICK_CROP = 48, 40
STEP_MS = 20.0
NO_GPU = "not measured: no GPU"


def main() -> int:
    options = parse()
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
        torch.set_num_threads(options.cores)
    report: dict[str, Any] = {"benchmark": "bench_gpu", "device": options.device, "quick": options.quick}
    report |= {"cores": options.cores, "machine": machine(options.work), "parts": {}}
    if options.device != "cpu" and not torch.cuda.is_available():
        report["parts"] = dict.fromkeys(options.only, NO_GPU)
    else:
        data = MemmapDataset(random_store(options.work, options.rows, options.side), as_tuple=False)
        report |= {"gpu": gpu(options.device), "rows": options.rows, "batch_size": options.batch_size}
        for name in options.only:
            print(f"bench_gpu: {name}", file=sys.stderr, flush=True)
            report["parts"][name] = PARTS[name](data, torch.device(options.device), options)
    print(text(report["parts"]))
    publish(report, options.output)
    return 0


def parse() -> argparse.Namespace:
    work = Path(tempfile.gettempdir()) / "pixpack-gpu"
    parser = bench_parser(__doc__, batch_size=256, rows=16_384, rounds=7, work=work)
    parser.add_argument(
        "--only", nargs="*", choices=PARTS, default=list(PARTS), metavar="PART", help="none: the store is made, no more"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cores", type=int, default=0, help="of the host; 0: all")
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    options.side, options.crop = SIDE, CROP
    if options.quick:
        options.rows, options.batch_size, options.rounds = 48, 8, 1
        options.side, options.crop = QUICK_SIDE, QUICK_CROP
    options.work.mkdir(parents=True, exist_ok=True)
    return options


def gpu(device: str) -> dict[str, Any]:
    if device == "cpu":
        return {}
    found = torch.cuda.get_device_properties(device)
    return {"name": found.name, "memory": found.total_memory, "cuda": torch.version.cuda}


# -- parts


def loading(data: MemmapDataset, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    part = FirstRows(data, options.batch_size, len(data), DEVICE_TURN_BYTES)
    ways: dict[str, Turn] = {
        LIMIT: (pinned_copies(part, device) if device.type == "cuda" else slice_copies(part)).__next__
    }
    loaders, cores = [], dict[str, list[float]]()
    for order in ("full", "block"):
        given: dict[str, Any] = {"shuffle": order, "device": device, "residency": "cache", "as_tuple": False}
        check(MemmapLoader(data, options.batch_size, **given), data)
        loaders.append(loader_turns(part, order, device))
        name = f"MemmapLoader, {order}"
        ways[name] = functools.partial(with_cores, loaders[-1].__next__, cores.setdefault(name, []))
    found = compared(ways, options.rounds)
    for loader in loaders:
        loader.close()
    for name, busy in cores.items():
        found[name]["host_cores"] = spread(busy, 2)
    return found


def training(data: MemmapDataset, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    step = TrainingStep(data.manifest, device, is_quick=options.quick)
    with MemmapLoader(
        data,
        options.batch_size,
        shuffle="full",
        drop_last=True,
        device=device,
        residency="cache",
        transform=Compose([RandomResizedCrop(options.crop), RandomHorizontalFlip()]),
        as_tuple=False,
    ) as loader:
        batches = endless(loader)
        resident = next(batches)
        steps = 2 if options.quick else 20
        ways = {
            LIMIT: lambda: step.rate(lambda: resident, steps),
            "with loading, crop and flip": lambda: step.rate(lambda: next(batches), steps),
        }
        found = compared(ways, options.rounds)
        batches.close()
    if not options.cores and not options.quick:
        found["on 2 cores"] = again_on_two_cores(options)
    return found


def waiting(data: MemmapDataset, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    size, count, step = options.batch_size, 2 if options.quick else 30, spin(STEP_MS, device)
    with MemmapLoader(
        data, size, shuffle="full", drop_last=True, device=device, residency="cache", as_tuple=False
    ) as loader:
        batches = endless(loader)
        ways = {
            LIMIT: lambda: rate(step, count, size, device),
            "with loading": lambda: rate(lambda: (next(batches), step()), count, size, device),
        }
        found = compared(ways, options.rounds)
        batches.close()
    return found


def resident(data: MemmapDataset, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    where = "gpu" if device.type == "cuda" else "ram"
    loader = MemmapLoader(
        data, options.batch_size, shuffle="full", drop_last=True, device=device, residency=where, as_tuple=False
    )
    check(MemmapLoader(data, options.batch_size, shuffle="full", device=device, residency=where, as_tuple=False), data)
    batches, count = endless(loader), 2 if options.quick else 200
    pixels = loader.resident.place.memory if loader.resident else data.store.pixels.view(-1)
    words = pixels.view(len(data), -1).view(torch.int64)
    rows = torch.randperm(len(data))[: options.batch_size].to(device)
    ways = {
        LIMIT: lambda: rate(lambda: words.index_select(0, rows), count, options.batch_size, device),
        "MemmapLoader, store on the device": lambda: rate(lambda: next(batches), count, options.batch_size, device),
    }
    found = compared(ways, options.rounds)
    batches.close()
    return found


def pinned(data: MemmapDataset, device: torch.device, options: argparse.Namespace) -> dict[str, Any] | str:
    if device.type != "cuda":
        return NO_GPU
    part, size = FirstRows(data, options.batch_size, len(data), DEVICE_TURN_BYTES), options.batch_size
    loader = MemmapLoader(data, size, shuffle="full", drop_last=True, device=device, residency="ram", as_tuple=False)
    batches = endless(loader)
    store = data.store.pixels.clone()
    unpin = pin(store.view(-1).numpy(), device)
    there = torch.empty(size, *store.shape[1:], dtype=torch.uint8, device=device)
    order = torch.randperm(len(data)).tolist()

    def one_by_one() -> None:
        for slot, row in enumerate(order[:size]):
            there[slot].copy_(store[row], non_blocking=True)

    ways = {
        LIMIT: pinned_copies(part, device).__next__,
        "MemmapLoader, from a pinned copy": lambda: rate(lambda: next(batches), 20, size, device),
        "copied row by row": lambda: rate(one_by_one, 20, size, device),
    }
    found = compared(ways, options.rounds)
    torch.cuda.synchronize(device)
    batches.close()
    unpin()
    return found


PARTS: dict[str, Callable[..., Any]] = {
    "loading": loading,
    "training": training,
    "waiting": waiting,
    "resident": resident,
    "pinned": pinned,
}


# -- timing


def compared(ways: dict[str, Turn], rounds: int) -> dict[str, Any]:
    """Time ways in turns, after a round that does not count; returns images/s, and ratios to the first way of the same round."""
    with collection_paused():
        rates = in_turns(ways, rounds, untimed=1)
    first = next(iter(rates.values()))
    return {
        name: {
            "images_per_second": spread(found, 0),
            "of_first": ratios(found, first),
        }
        for name, found in rates.items()
    }


def rate(call: Callable[[], Any], count: int, size: int, device: torch.device) -> float:
    """Return images/s of calls that give a batch each, until the device has ended them."""
    call()
    return count * size / seconds_over(lambda _: call(), range(count), device)


def with_cores(turn: Turn, cores: list[float]) -> float:
    """Take a turn; note how many cores of the host were busy in it."""
    cpu, started = time.process_time(), time.perf_counter()
    found = turn()
    cores.append((time.process_time() - cpu) / (time.perf_counter() - started))
    return found


def endless(loader: Any) -> Any:
    """Yield batches, epoch after epoch."""
    while True:
        yield from loader


def again_on_two_cores(options: argparse.Namespace) -> Any:
    words = [sys.executable, "-m", "scripts.benchmarks.reading.bench_gpu", "--only", "training", "--cores", "2"]
    words += ["--device", options.device]
    words += ["--rows", str(options.rows), "--batch-size", str(options.batch_size), "--rounds", str(options.rounds)]
    done = subprocess.run([*words, "--work", options.work], capture_output=True, text=True, env=environment())
    if done.returncode:
        return f"failed: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])["parts"]["training"]


def check(loader: MemmapLoader, data: MemmapDataset) -> None:
    """Raise BenchmarkError if an epoch's batches are not the rows of the store."""
    seen = []
    for batch in loader:
        rows = batch.rows.cpu()
        if not same(batch, data, rows):
            raise BenchmarkError(f"a batch of {loader!r} is not the rows that it names.")
        seen += rows.tolist()
    loader.close()
    if sorted(seen) != list(range(len(data))):
        raise BenchmarkError(f"an epoch of {loader!r} does not hold each row once.")


def same(batch: ImageBatch, data: MemmapDataset, rows: torch.Tensor) -> bool:
    return torch.equal(batch.pixels.cpu(), data.store.pixels.index_select(0, rows))


def text(parts: dict[str, Any]) -> str:
    """Draw the report for a person."""
    lines = [["part", "way", "images/s", "of the first", "p10..p90"]]
    for part, found in parts.items():
        if isinstance(found, str):
            lines.append([part, found, "", "", ""])
            continue
        for way, figures in found.items():
            if isinstance(figures, dict) and "of_first" in figures:
                ratio = figures["of_first"]
                rate_found = f"{figures['images_per_second']['median']:,.0f}"
                lines.append(
                    [part, way, rate_found, f"{ratio['median']:.3f}", f"{ratio['p10']:.3f}..{ratio['p90']:.3f}"]
                )
    return table(lines)


if __name__ == "__main__":
    sys.exit(main())
