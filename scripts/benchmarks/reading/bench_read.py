"""How near does MemmapLoader come to the speed of copying memory, and how far is it ahead of what people use instead?

    python -m scripts.benchmarks.reading.bench_read --rows 20000 --batch-size 256 --rounds 40

Seven ways read a store whose pages are all in the page cache, in one process, in turns of a few batches, --rounds times.
reader/bench.py says why the clocks of the limit, the loader and the DataLoader are fair:

    limit          consecutive bytes of the store's pixels, copied into as much memory as the loader uses, with as many threads,
                   each of which takes the next piece when it is done with one, from the same mapping
    loader         MemmapLoader(shuffle=--order), prefetch thread, queue, targets and recycling included; the loop does nothing
                   with a batch and drops it
    store[idx]     random rows of the tensorclass; the order is made before, untimed
    DataLoader     torch's, with 0 and 2 workers, over a numpy memmap with __getitems__ and no collation; likewise
    loader concat  the loader over `concat` of one half of the store and the other half of a second one, which has the same files
    loader ram     the loader with residency "ram": the rows are copied into memory of this process first; left out where a copy
                   takes more than half of the free memory

Every way does at least one untimed batch of its kind first. Ratios are taken within a round; the order of ways moves on by one
each round. Beside it: whole epochs, iter() and the thread's start included, and the time from iter() to the first batch of a
new loader, whose buffers are new then, too.

Checked: the store passes `pack verify`; a batch of each way equals those rows of the raw file; an epoch of the loader brings
every row exactly once, its batches too are compared. Without --store, photographs (as in
bench_pack.py) are packed again and again under other names until there are --rows rows; that store stays in --work.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import packer
from packer.operations.verify import verify
from reader import MemmapDataset, MemmapLoader, StoreError, system
from reader.bench import ORDERS, FirstRows, TorchLoader, loader_turns, slice_copies, slices
from reader.format.manifest import PIXELS, read_manifest
from reader.memory.residency import COPY_SHARE
from reader.system import available_cpus
from scripts.benchmarks.reading._read_ways import RawRows, StoreIndex, joined_halves, touch
from scripts.common.arguments import READ_WORK, bench_parser
from scripts.common.figures import (
    BenchmarkError,
    machine,
    photographs,
    rate_cells,
    ratio_cells,
    ratios,
    repeat_files,
    spread,
    table,
)
from scripts.common.program import reported
from scripts.common.timing import collection_paused, drain, in_turns, seconds, timed

WORKERS = 2
IN_RAM, JOINED = "loader ram", "loader concat"
CHECKED_EVERY = 16
EPOCHS = FIRST_BATCHES = 7
# An epoch of fewer shows no pipeline.
LEAST_BATCHES = 4


def main() -> int:
    options = parse()
    torch.set_num_threads(options.threads)

    def measured(_: Path) -> dict[str, Any]:
        given = options.store
        store = verified_store(given) if given else cached_store(options.work, options.rows, options.size)
        return measure(store, options)

    return reported("bench_read", measured, text=text, json=options.json)


def parse() -> argparse.Namespace:
    counts = {"rows": 20_000, "size": 224, "batch_size": 256, "rounds": 40, "threads": available_cpus()}
    parser = bench_parser(__doc__, **counts, json=None, store=None, work=READ_WORK)
    parser.add_argument("--order", choices=ORDERS, default="full", help="the loader's order (default: full)")
    return parser.parse_args()


# -- the store


def cached_store(work: Path, rows: int, size: int, images: Path | None = None) -> Path:
    """Return the store of rows x size that an earlier run has left in work, or pack it now, of images or photographs."""
    out = work / f"store-{rows}x{size}"
    if is_reusable(out, rows, size):
        return out
    print(f"bench_read: packing {rows} rows into {out}, {rows * size * size * 3 / 1e9:.2f} GB", file=sys.stderr)
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="images-", dir=work) as folder:
        found = photographs(images, Path(folder), size)
        repeat_files(found, Path(folder) / "images", rows, link=True)
        packer.pack(Path(folder) / "images", out, size=size, max_rejects=0, overwrite=out.exists())
    return verified_store(out)


def is_reusable(out: Path, rows: int, size: int) -> bool:
    """Say whether a store is there, undamaged, and has this shape."""
    try:
        found = read_manifest(out)
        return (found.rows, found.height, found.width) == (rows, size, size) and not verify(out).problems
    except StoreError:
        return False


def verified_store(out: Path) -> Path:
    """Read every byte of a store, which also brings it into the page cache.

    Raises:
        BenchmarkError: it is damaged.
        StoreError: it is no store.
    """
    problems = verify(out).problems
    if problems:
        raise BenchmarkError(f"{out} does not pass `pack verify`: {problems[0]}.")
    return out


# -- measuring


def measure(store: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Check everything once, then time all ways in turns."""
    # beside it, where hard links lead to it
    with tempfile.TemporaryDirectory(prefix=".bench-read-", dir=store.absolute().parent) as work:
        return timed_ways(store, options, Path(work))


def timed_ways(store: Path, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Do as `measure`, with a folder for files."""
    data, size = MemmapDataset(store, as_tuple=False), options.batch_size
    if size * (LEAST_BATCHES + 1) > len(data):
        raise BenchmarkError(f"{len(data)} rows are {len(data) // size} batches, too few. Use a smaller --batch-size.")
    # before anything else: workers are forked while this process has no other thread at work
    raw_rows = RawRows(store, data.manifest)
    torch_loaders = {f"DataLoader {workers}": TorchLoader(raw_rows, workers) for workers in (0, WORKERS)}
    described, part, host = machine(store), FirstRows(data, size, len(data)), torch.device("cpu")
    touch(data.numpy())
    joined = joined_halves(data, work)
    loaders = {
        name: loader_turns(FirstRows(d, size, len(d)), options.order, host)
        for name, d in (("loader", data), (JOINED, joined))
    }
    if data.store.pixels.nbytes <= system.available_bytes() * COPY_SHARE:
        loaders[IN_RAM] = loader_turns(FirstRows(data, size, len(data), residency="ram"), options.order, host)
    ways = {"limit": slice_copies(part).__next__, "store[idx]": StoreIndex(part).turn}
    ways |= {name: loader.__next__ for name, loader in loaders.items()}
    ways |= {name: partial(torch_loader.turn, part) for name, torch_loader in torch_loaders.items()}
    raw = np.memmap(store / PIXELS, np.uint8, "r", shape=tuple(data.store.pixels.shape))
    compared = (
        check_batches(data, raw_rows, raw, size) + check_epoch(data, raw, options) + check_epoch(joined, raw, options)
    )
    with collection_paused():
        rates = in_turns(ways, options.rounds, untimed=2)
    for loader in loaders.values():
        loader.close()
    pairs = [("loader", name) for name in ways if name not in loaders] + [(JOINED, "loader")]
    pairs += [("store[idx]", "limit")] + [(name, "limit") for name in loaders if name == IN_RAM]
    epochs = time_epochs(data, options)
    gigabyte = data.manifest.row_bytes / 1e9
    return {
        "benchmark": "bench_read",
        "machine": described,
        "rows": len(data),
        "row_shape": list(data.store.pixels.shape[1:]),
        "batch_size": size,
        "order": options.order,
        "threads": torch.get_num_threads(),
        "rounds": options.rounds,
        "images_per_second": {name: spread(found, 1) for name, found in rates.items()},
        "gigabytes_per_second": {n: round(float(np.median(rates[n])) * gigabyte, 2) for n in ("limit", "loader")},
        "ratio": {f"{ours}/{other}": ratios(rates[ours], rates[other]) for ours, other in pairs},
        "epoch_images_per_second": spread(epochs, 1),
        "first_batch_ms": spread(time_first_batches(data, options), 2),
        "checks": {"verified": True, "epoch_rows_once": len(data), "compared_batches": compared},
    }


def text(report: dict[str, Any]) -> str:
    """Draw the report for a person."""
    titles = {
        "limit": "limit: copying consecutive slices",
        "loader": f"MemmapLoader, {report['order']}",
        JOINED: f"MemmapLoader, {report['order']}, of two stores joined by concat",
        IN_RAM: f"MemmapLoader, {report['order']}, residency ram",
        "store[idx]": "store[idx] of the tensorclass",
        "DataLoader 0": "DataLoader over np.memmap, 0 workers",
        f"DataLoader {WORKERS}": f"DataLoader over np.memmap, {WORKERS} workers",
    }
    lines = [["", "images/s", "min..max", "loader/it", "p10..p90"]]
    for name, title in titles.items():
        if name not in report["images_per_second"]:
            continue
        of = ratio_cells(report["ratio"].get(f"loader/{name}"))
        lines.append([title, *rate_cells(report["images_per_second"][name]), *of])
    in_ram, of_joined = (ratio_cells(report["ratio"].get(name)) for name in (f"{IN_RAM}/limit", f"{JOINED}/loader"))
    speed, first, epoch = (report[n] for n in ("gigabytes_per_second", "first_batch_ms", "epoch_images_per_second"))
    shape = "x".join(map(str, report["row_shape"]))
    return (
        f"{report['rows']} rows of {shape}, batch {report['batch_size']}, {report['threads']} threads,"
        f" {report['rounds']} rounds: medians; ratios are medians of the ratios of each round\n{table(lines)}\n"
        f"copied: {speed['limit']} GB/s the limit, {speed['loader']} GB/s the loader\n"
        f"residency ram, of the limit: {in_ram[0] or 'not timed: too little memory'} {in_ram[1]}\n"
        f"two stores joined by concat, of the loader of one: {of_joined[0]} {of_joined[1]}\n"
        f"whole epochs: {epoch['median']:,.0f} images/s, start included ({epoch['min']:,.0f}..{epoch['max']:,.0f})\n"
        f"first batch: {first['median']} ms after iter() of a new loader (at most {first['max']})\n"
        f"checked: {report['checks']['epoch_rows_once']} rows each once in an epoch,"
        f" {report['checks']['compared_batches']} batches equal to the raw file, the store verified"
    )


def time_epochs(data: MemmapDataset, options: argparse.Namespace) -> list[float]:
    """Return images/s of whole epochs, each from iter() to its end."""
    with MemmapLoader(data, options.batch_size, shuffle=ORDERS[options.order]) as loader:
        return [len(data) / seconds(partial(drain, loader)) for _ in range(EPOCHS)]


def time_first_batches(data: MemmapDataset, options: argparse.Namespace) -> list[float]:
    """Return the milliseconds from iter() of a new loader to its first batch."""
    found = []
    for epoch in range(FIRST_BATCHES):
        with MemmapLoader(data, options.batch_size, shuffle=ORDERS[options.order]) as loader:
            loader.set_epoch(epoch)
            # the iterator is dropped after the clock
            _, taken = timed(lambda loader=loader: (iterator := iter(loader), next(iterator)))
            found.append(taken * 1e3)
    return found


# -- checks


def check_batches(data: MemmapDataset, raw_rows: RawRows, raw: np.ndarray, size: int) -> int:
    """Compare a random batch of each way but MemmapLoader with those rows of the raw file; returns how many.

    Raises:
        BenchmarkError: they differ.
    """
    rows = np.random.default_rng(0).permutation(len(data))[:size]
    copy, source = next(slices(FirstRows(data, size, len(data))))
    np.copyto(copy, source)
    count = len(copy) // data.manifest.row_bytes
    found = {
        "store[idx]": (data.store[torch.from_numpy(rows)].pixels, rows),
        "DataLoader": (raw_rows.__getitems__(rows)[0].pixels, rows),
        "limit": (copy[: raw[:count].nbytes].reshape(raw[:count].shape), np.arange(count)),
    }
    for name, (pixels, expected) in found.items():
        if not np.array_equal(pixels, raw[expected]):
            raise BenchmarkError(f"{name}: a batch is not the rows of the raw file that it says it is.")
    return len(found)


def check_epoch(data: MemmapDataset, raw: np.ndarray, options: argparse.Namespace) -> int:
    """Read one epoch, also its short last batch; returns how many batches were compared with the raw file.

    Raises:
        BenchmarkError: a row is missing or came twice, or a batch has wrong pixels or targets.
    """
    seen, compared = np.zeros(len(raw), np.int64), 0
    first, _ = data.opened_store.parts[0]
    targets = np.asarray(MemmapDataset(first.path).targets)
    with MemmapLoader(data, options.batch_size, shuffle=ORDERS[options.order], as_tuple=False) as loader:
        for step, batch in enumerate(loader):
            # those of a second store count behind the first one's
            rows = batch.rows.numpy() % len(raw)
            np.add.at(seen, rows, 1)
            if step % CHECKED_EVERY == 0 or step == len(loader) - 1:
                compared += 1
                same = np.array_equal(batch.pixels, raw[rows]) and np.array_equal(batch.targets, targets[rows])
                if not same:
                    raise BenchmarkError(
                        f"step {step} of the loader is not the rows of the raw file that it says it is."
                    )
    if not (seen == 1).all():
        raise BenchmarkError(f"{(seen != 1).sum()} of {len(seen)} rows did not come exactly once.")
    return compared


if __name__ == "__main__":
    sys.exit(main())
