"""Benchmarks of reading: loops over an epoch, batches, workers, the disk, a link, and ImageFolder."""

from __future__ import annotations

import concurrent.futures
import itertools
import mmap
import os
import pickle
import random
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate

import pixpack
from pixpack.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop
from scripts.bench.data import (
    drain,
    imported,
    in_child,
    made_once,
    photographs,
    random_data,
    require_epoch,
    torchvision,
)
from scripts.bench.harness import Lab, Skip, Way, bench, require, say
from scripts.samples.stores import sparse_store

SIDE, BATCH = 224, 256
READ_BYTES = 8 << 20


class RowsAtOnce(Dataset):
    """Rows of an array or a tensor, a whole batch at a time."""

    def __init__(self, rows: np.ndarray | torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.as_tensor(self.rows[indices])


class ResizedFolder(Dataset):
    """uint8[side, side, 3] of each JPEG of a folder, by Pillow."""

    def __init__(self, root: Path, side: int) -> None:
        self.files, self.side = sorted(root.rglob("*.jpg")), side

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> np.ndarray:
        with Image.open(self.files[index]) as image:
            return np.array(image.convert("RGB").resize((self.side, self.side), Image.Resampling.BILINEAR))


def as_it_is(batch: Any) -> Any:
    """Collate an item that is a batch already."""
    return batch


@bench(
    "Which loop over 300,000 numbers in batches of 300 is the fastest?",
    "ms an epoch",
    rounds=5,
    claim="Of a loop in pure Python, a DataLoader with workers, tf.data and numpy, numpy's is the fastest.",
    holds=lambda rate: rate["numpy, permutation.reshape"] == max(r for way, r in rate.items() if "pixpack" not in way),
)
def loops(lab: Lab) -> Iterator[Way]:
    count, size = lab.pick(300_000, 3_000), 300
    numbers, listed, generator = torch.arange(count), list(range(count)), np.random.default_rng()

    def python_loop() -> Iterable[Any]:
        order = random.sample(listed, k=count)
        return (order[i : i + size] for i in range(0, count, size))

    def index_loop() -> Iterable[Any]:
        order = torch.randperm(count)
        return (numbers[order[i : i + size]] for i in range(0, count, size))

    def tensorflow_loop() -> Iterable[Any]:
        tf = imported("tensorflow", "tensorflow")
        data = tf.data.Dataset.range(count).shuffle(count, reshuffle_each_iteration=True)
        return data.batch(size).prefetch(tf.data.AUTOTUNE)

    kept: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 16, "pin_memory": torch.cuda.is_available()}
    by_workers = {n: DataLoader(numbers, size, shuffle=True, num_workers=n, **kept) for n in lab.pick((2, 10), (2,))}
    at_once = DataLoader(RowsAtOnce(numbers), size, shuffle=True, collate_fn=as_it_is)
    epochs: dict[str, Callable[[], Iterable[Any]]] = {
        "list, random.sample": python_loop,
        "DataLoader": partial(DataLoader, numbers, size, shuffle=True),
        **{f"DataLoader, {n} workers": lambda loader=loader: loader for n, loader in by_workers.items()},
        "DataLoader, __getitems__": lambda: at_once,
        "one index a batch": index_loop,
        "numpy, permutation.reshape": lambda: generator.permutation(listed).reshape(-1, size),
    }
    for _, data in lab.runnable({"tf.data": tensorflow_loop}):
        epochs["tf.data"] = lambda data=data: data
    for name, epoch in epochs.items():
        found = np.sort(np.fromiter(itertools.chain.from_iterable(np.asarray(batch) for batch in epoch()), np.int64))
        require(np.array_equal(found, np.arange(count)), f"{name} does not bring each number once.")
        yield Way(name, lambda epoch=epoch: drain(epoch()))
    data = random_data(lab, count, 1)
    loader = lab.stack.enter_context(pixpack.MemmapLoader(data, size, shuffle="full"))
    require_epoch(loader, data, "MemmapLoader")
    yield Way("pixpack MemmapLoader, images and targets", lambda: drain(loader))


@bench(
    "What do 100 items cost one by one, and what as one index?",
    "us",
    rounds=30,
    claim="100 __getitem__ calls cost 122 us, one batched index 3.42 us: 36 times less.",
    holds=lambda rate: rate["torch.arange, one index"] > 10 * rate["torch.arange, one by one"],
)
def one_index(lab: Lab) -> Iterator[Way]:
    numbers, first = torch.arange(300_000), torch.arange(100)
    yield Way("torch.arange, one by one", lambda: torch.stack([numbers[i] for i in range(100)]))
    yield Way("torch.arange, one index", lambda: numbers[first])
    rows = lab.pick(20_000, 300)
    for side in (1, lab.pick(SIDE, 32)):
        data = random_data(lab, rows, side)
        index = np.random.default_rng(0).permutation(rows)[:100].tolist()
        singly = torch.stack([data[i][0] for i in index])
        require(torch.equal(singly, data[index][0]), "100 rows one by one are not the rows of one index.")
        name = f"MemmapDataset, {side} x {side}"
        yield Way(f"{name}, one by one", lambda data=data, index=index: [data[i] for i in index])
        yield Way(f"{name}, one index", lambda data=data, index=index: data[index], base=f"{name}, one by one")


@bench(
    "What does putting images together into a batch of 256 cost?",
    "ms",
    rounds=20,
    claim="Collating images into a batch is a slow step of its own that can be made fast.",
    holds=lambda rate: rate["MemmapDataset, the collate alone"] > 10 * rate["default_collate alone"],
)
def collate(lab: Lab) -> Iterator[Way]:
    rows, side, size = lab.pick((20_000, SIDE, BATCH), (256, 32, 16))
    data = random_data(lab, rows, side)
    orders = itertools.cycle(torch.randperm(rows)[: rows // size * size].view(-1, size).tolist())
    pixels, targets = torch.from_numpy(data.numpy()), data.targets

    def items() -> list[Any]:
        return [(pixels[i], targets[i]) for i in next(orders)]

    picked, one = items(), next(orders)
    together, ours = default_collate([(pixels[i], targets[i]) for i in one]), default_collate(data.__getitems__(one))
    require(torch.equal(together[0], ours[0].movedim(-3, -1)), "the two ways do not give the same batch.")
    yield Way("default_collate alone", lambda: default_collate(picked))
    yield Way("items one by one, then default_collate", lambda: default_collate(items()))
    batch = data.__getitems__(one)
    yield Way("MemmapDataset, the collate alone", lambda: default_collate(batch))
    yield Way("MemmapDataset.__getitems__, then the collate", lambda: default_collate(data.__getitems__(next(orders))))


@bench(
    "How many files does a batch of 256 open, and how many pages does it fault in?",
    claim="A folder opens too many files and faults in memory all the time; one mapped file does neither.",
)
def faults(lab: Lab) -> Iterator[Way]:
    photos, rows, side, size = lab.pick((2_560, 10_240, SIDE, BATCH), (32, 256, 128, 16))
    folder, data = ResizedFolder(photographs(lab, photos), side), random_data(lab, rows, side)
    ways: dict[str, Callable[[], Iterable[Any]]] = {
        "JPEG folder, DataLoader": partial(DataLoader, folder, size, shuffle=True),
        "JPEG folder, 2 workers": partial(DataLoader, folder, size, shuffle=True, num_workers=2),
        "MemmapDataset, DataLoader": partial(DataLoader, data, size, shuffle=True),
        "MemmapDataset, 2 workers": partial(DataLoader, data, size, shuffle=True, num_workers=2),
        "MemmapLoader": partial(pixpack.MemmapLoader, data, size, shuffle="full"),
    }
    for name, way in ways.items():
        # in a separate process: an audit hook cannot be removed
        page_faults, opened = in_child(_faults_and_files, way)
        yield Way(name, columns={"page faults a batch": round(page_faults), "files opened a batch": round(opened, 1)})


def _faults_and_files(way: Callable[[], Iterable[Any]]) -> tuple[float, float]:
    """Count page faults and opened files per batch of the second epoch; files opened by Python code, even in forked workers."""
    import multiprocessing

    opened = multiprocessing.get_context("fork").Value("q", 0)

    def count(event: str, _: Any) -> None:
        if event == "open":
            with opened.get_lock():
                opened.value += 1

    def page_faults() -> int:
        found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_minflt + usage.ru_majflt for usage in found)

    sys.addaudithook(count)
    loader = way()
    drain(loader)
    files, pages, batches = opened.value, page_faults(), sum(1 for _ in loader)
    return (page_faults() - pages) / batches, (opened.value - files) / batches


@bench(
    "Which num_workers and prefetch_factor make DataLoader(MemmapDataset) fastest, and how far is it from MemmapLoader?",
    "images/s",
    rounds=3,
    claim="num_workers reads in parallel and prefetch_factor queues ahead: both make loading faster.",
    holds=lambda rate: max(r for way, r in rate.items() if "prefetch" in way) > rate["DataLoader, no workers"],
)
def workers(lab: Lab) -> Iterator[Way]:
    rows, side, size = lab.pick((20_000, SIDE, BATCH), (256, 32, 32))
    data = random_data(lab, rows, side)
    ours = lab.stack.enter_context(pixpack.MemmapLoader(data, size, shuffle="full"))
    require_epoch(ours, data, "MemmapLoader")
    yield Way("MemmapLoader", lambda: drain(ours), rows)
    loader = DataLoader(data, size, shuffle=True)
    require_epoch(loader, data, "DataLoader")
    yield Way("DataLoader, no workers", lambda: drain(loader), rows)
    for number in lab.pick((1, 2, 4, 8), (2,)):
        for factor in (2, 4, 16):
            kept: dict[str, Any] = {"num_workers": number, "prefetch_factor": factor, "persistent_workers": True}
            theirs = DataLoader(data, size, shuffle=True, **kept)
            yield Way(f"{number} workers, prefetch {factor}", partial(drain, theirs), rows)


@bench(
    "What does each of 8 DataLoader workers hold of its own, whatever the rows?",
    claim="A dataset is copied into each worker and eats RAM.",
)
def worker_memory(lab: Lab) -> Iterator[Way]:
    number, most = lab.pick((8, 10_000_000), (1, 10_000))
    made = {rows: made_once(lab.work / f"sparse-{rows}", partial(sparse_store, rows=rows)) for rows in (1000, most)}
    small = pixpack.MemmapDataset(made[1000])
    # as in ImageFolder; an empty dataset shows the memory of a worker without one
    paths = [(f"train/n{i % 1000:08}/n{i % 1000:08}_{i}.JPEG", i % 1000) for i in range(lab.pick(200_000, 1000))]
    datasets: dict[str, tuple[Any, bool]] = {
        **{f"MemmapDataset, {rows:,} rows": (pixpack.MemmapDataset(out), False) for rows, out in made.items()},
        f"a list of {len(paths):,} paths, read to the end": (paths, True),
        "a numpy memmap of 1,000 rows, read to the end": (RowsAtOnce(small.numpy()), True),
    }
    for start in lab.pick(("fork", "spawn"), ("fork",)):
        empty, _ = _worker_memory(range(1_000_000), start, number, False)
        for name, (data, to_the_end) in datasets.items():
            own, seconds = _worker_memory(data, start, number, to_the_end)
            columns = {"own MB of a worker": round((own - empty) / 1e6, 1), "first batch, s": round(seconds, 2)}
            yield Way(f"{name}, {start}", columns={**columns, "pickled, bytes": len(pickle.dumps(data))})


def _worker_memory(data: Any, start: str, workers: int, to_the_end: bool) -> tuple[float, float]:
    """Return the mean of the workers' Private_Dirty in bytes, and the seconds until the first batch."""
    kept: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": start, "persistent_workers": True}
    loader = DataLoader(data, 16, shuffle=to_the_end, collate_fn=as_it_is, **kept)
    started = time.perf_counter()
    batches = iter(loader)
    next(batches)
    seconds = time.perf_counter() - started
    # a worker has reached its memory after its share of rows; for others, 20 batches suffice
    drain(
        itertools.islice(batches, len(loader) - 1 - 2 * workers if to_the_end else min(20 * workers, len(loader) - 2))
    )
    found = [_own_bytes(worker.pid) for worker in batches._workers]
    batches._shutdown_workers()
    return sum(found) / len(found), seconds


def _own_bytes(pid: int) -> int:
    """Return the memory that a process shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * int(text.partition("Private_Dirty:")[2].split()[0])


@bench("How near does MemmapLoader come to copying memory, and how far is it from what people use instead?", "images/s")
def read(lab: Lab) -> Iterator[Way]:
    rows, side, size = lab.pick((20_000, SIDE, BATCH), (256, 64, 32))
    data, threads = random_data(lab, rows, side), torch.get_num_threads()
    pixels, order = data.numpy(), torch.randperm(rows)
    require(np.shares_memory(pixels, data.numpy()), "numpy() copies.")
    # as much memory as the loader uses
    buffers = [np.ones((size, *pixels.shape[1:]), np.uint8) for _ in range(4)]
    step = -(-size // (2 * threads))
    pool = lab.stack.enter_context(concurrent.futures.ThreadPoolExecutor(threads))

    def copy(start: int) -> None:
        source = pixels[start : start + step]
        np.copyto(buffers[start // size % 4][start % size :][: len(source)], source[: size - start % size])

    yield Way(
        "copying slices in order by as many threads: the limit",
        lambda: drain(pool.map(copy, range(0, rows, step))),
        rows,
    )
    for name, shuffle in {"full shuffle": "full", "block order": "block", "in order": False}.items():
        loader = lab.stack.enter_context(pixpack.MemmapLoader(data, size, shuffle=shuffle))
        require_epoch(loader, data, name)
        yield Way(f"MemmapLoader, {name}", partial(drain, loader), rows)
    mapped = torch.from_file(str(_pixel_file(data)), False, pixels.size, dtype=torch.uint8).view(pixels.shape)
    pieces = order.split(size)
    require(np.array_equal(mapped[pieces[0]].numpy(), pixels[pieces[0].numpy()]), "the mapped file has other rows.")
    yield Way("torch.from_file, an index a batch", lambda: drain(mapped[piece] for piece in pieces), rows)
    yield Way("numpy memmap, an index a batch", lambda: drain(pixels[piece.numpy()] for piece in pieces), rows)
    for number in (0, 2):
        kept: dict[str, Any] = {"num_workers": number, "persistent_workers": number > 0, "collate_fn": as_it_is}
        theirs = DataLoader(RowsAtOnce(pixels), size, shuffle=True, **kept)
        yield Way(f"DataLoader over a numpy memmap, {number} workers", partial(drain, theirs), rows)


@bench("How near does MemmapLoader come to the disk, when nothing of the store is in memory?", "images/s", rounds=3)
def cold(lab: Lab) -> Iterator[Way]:
    rows, side, size = lab.pick((20_000, SIDE, BATCH), (256, 64, 32))
    store = random_data(lab, rows, side).path
    file = _pixel_file(pixpack.MemmapDataset(store))
    os.sync()

    def drop() -> None:
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def from_disk(call: Callable[[], None]) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
        call()
        read_bytes = 512 * (resource.getrusage(resource.RUSAGE_SELF).ru_inblock - before)
        # a file system without counts of blocks, such as tmpfs, is no disk
        require(
            lab.quick or read_bytes > 0.9 * file.stat().st_size,
            "the rows were in memory. Give --work a folder on a disk.",
        )

    ways: dict[str, Callable[[], None]] = {
        "the disk: 4 threads, 8 MiB at a time, in order": partial(_read_directly, file),
        **{f"MemmapLoader, {name}": partial(_cold_epoch, store, size, shuffle) for name, shuffle in _ORDERS.items()},
        "page faults of a numpy memmap, full shuffle": partial(_fault_in, file, rows, size),
    }
    for name, way in ways.items():
        yield Way(name, partial(from_disk, way), rows, before=drop)


_ORDERS = {"in order": False, "block order": "block", "full shuffle": "full"}


def _read_directly(file: Path) -> None:
    """Read a file past the page cache, by 4 threads with separate memory."""
    size, descriptor = file.stat().st_size, os.open(file, os.O_RDONLY | os.O_DIRECT)

    def read(starts: range) -> None:
        memory = mmap.mmap(-1, READ_BYTES)
        for start in starts:
            os.preadv(descriptor, [memory], start)

    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            drain(pool.map(read, [range(n * READ_BYTES, size, 4 * READ_BYTES) for n in range(4)]))
    except OSError as e:
        raise Skip(f"{file} cannot be read past the page cache: {e.strerror}") from e
    finally:
        os.close(descriptor)


def _cold_epoch(store: Path, size: int, shuffle: Any) -> None:
    with pixpack.MemmapLoader(pixpack.MemmapDataset(store), size, shuffle=shuffle, residency="disk") as loader:
        drain(loader)


def _fault_in(file: Path, rows: int, size: int) -> None:
    mapped = np.memmap(file, np.uint8, "r").reshape(rows, -1)
    order = np.random.default_rng(0).permutation(rows)
    drain(mapped[order[start : start + size]] for start in range(0, rows, size))


@bench(
    "How many images/s does a loop get from ImageFolder and a DataLoader at its best, and from a store?",
    "images/s",
    rounds=5,
)
def imagefolder(lab: Lab) -> Iterator[Way]:
    found, (count, size, batch) = torchvision(), lab.pick((1_500, 224, 128), (32, 48, 8))
    v2, images = found.transforms.v2, photographs(lab, count)
    say("imagefolder: packing")
    report = pixpack.pack(images, lab.work / "train", fit="none", max_size=512, overwrite=True)
    pixpack.pack(images, lab.work / "val", size=size, crop_fraction=0.875, overwrite=True)
    # more workers than CPUs are tried too
    warnings.filterwarnings("ignore", message="This DataLoader will create")

    recipe = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    cut = v2.Compose([v2.Resize(int(size / 0.875)), v2.CenterCrop(size), v2.PILToTensor()])
    folder = partial(found.datasets.ImageFolder, str(images))

    def loader_of(data: Any, shuffle: bool, workers: int) -> DataLoader:
        pin = torch.cuda.is_available()
        return DataLoader(data, batch, shuffle, num_workers=workers, persistent_workers=True, pin_memory=pin)

    training = partial(loader_of, folder(recipe), True)
    workers = _fastest(training, lab, count)
    theirs = {"training": training(workers), "validation": loader_of(folder(cut), False, workers)}
    train, val = (pixpack.MemmapDataset(lab.work / kind) for kind in ("train", "val"))
    crops = Compose([RandomResizedCrop(size), RandomHorizontalFlip()])
    ours = {
        "training": pixpack.MemmapLoader(train, batch, shuffle="full", transform=crops),
        "validation": pixpack.MemmapLoader(val, batch),
    }
    (images_here, targets), (images_there, expected) = (next(iter(each["validation"])) for each in (ours, theirs))
    levels = (images_here.int() - images_there.int()).abs().float().mean((1, 2, 3)).median().item()
    require(
        levels < 1 and torch.equal(targets, expected), f"validation images differ by {levels:.2f} levels in the median."
    )
    seconds = {}
    for kind, loader in theirs.items():
        require_epoch(loader, train, f"ImageFolder, {kind}")
        require_epoch(ours[kind], train, f"pixpack, {kind}")
        base = f"{kind}: ImageFolder, DataLoader of {workers} workers"
        for name, batches in {base: loader, f"{kind}: pixpack": ours[kind]}.items():
            seconds[name] = timeit(partial(drain, batches), number=1)
            yield Way(name, partial(drain, batches), count, base=base)
    gain = seconds[base := next(iter(seconds))] - seconds["training: pixpack"]
    on_tensors = v2.Compose(recipe.transforms[:2])
    for kind, transform in {"as_pil": recipe, "tensors": on_tensors}.items():
        rows = loader_of(pixpack.MemmapDataset(train.path, transform, as_pil=transform is recipe), True, workers)
        yield Way(f"the recipe by {kind}, the same DataLoader", partial(drain, rows), count, base=base)
    source = sum(path.stat().st_size for path in images.rglob("*.jpg"))
    lab.notes.append(f"{count:,} photographs of {source / count / 1000:.0f} kB, batches of {batch} on the CPU.")
    lab.notes.append(
        f"Cost: {report.store_bytes / source:.1f} times the disk of the JPEGs (`--fit none --max-size 512`);"
        f" {100_000 / count * report.seconds / 60:.1f} minutes to pack 100,000 of them on {len(os.sched_getaffinity(0))} cores;"
        f" packing is paid back after {report.seconds / max(gain, 1e-9):.1f} epochs."
    )


def _fastest(loader_of: Callable[[int], DataLoader], lab: Lab, count: int) -> int:
    """Return the number of workers for the fastest DataLoader."""
    cpus, rates = len(os.sched_getaffinity(0)), {}
    for workers in lab.pick(sorted({max(1, cpus - 1), cpus, cpus + 1, 2 * cpus}), [1]):
        say(f"imagefolder: trying {workers} workers")
        loader = loader_of(workers)
        drain(loader)  # starts the workers, and reads the files
        rates[workers] = count / timeit(partial(drain, loader), number=1)
    tried = ", ".join(f"{workers}: {rate:,.0f}" for workers, rate in rates.items())
    lab.notes.append(f"DataLoader workers tried, images/s: {tried}.")
    return max(rates, key=lambda workers: rates[workers])


def _pixel_file(data: pixpack.MemmapDataset) -> Path:
    return data.path / "_tensordict" / "pixels.memmap"
