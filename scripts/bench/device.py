"""Benchmarks of sending batches to a device, and of computing there. Without a GPU, those that need one are skipped."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tensordict import TensorDict
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, default_collate

import pixpack
from pixpack.transforms import ColorJitter, Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop
from scripts.bench.data import drain, imported, made_once, photographs, random_data
from scripts.bench.harness import Lab, Skip, Way, bench, require
from scripts.bench.reading import RowsAtOnce, as_it_is

SIDE, BATCH, STEP_SECONDS = 224, 256, 0.03
# height x width and batches of the slides "How to efficiently send images to GPU"
SIZES, BATCHES = ((384, 384), (640, 480), (1280, 960)), (8, 16, 32, 64)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def best_device() -> torch.device:
    """Return a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def needs_gpu() -> torch.device:
    """Return the GPU; raises Skip without one."""
    if not torch.cuda.is_available():
        raise Skip("no GPU")
    return torch.device("cuda")


Batches = Iterator[torch.Tensor]


class Stages:
    """The timeline of each thread, as letters: r read, c collate, > copy to the device, # step, a dot for waiting."""

    def __init__(self) -> None:
        self.spans, self.started = list[tuple[str, float, float]](), time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, letter: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.spans.append((letter, start - self.started, time.perf_counter() - self.started))

    def drawn(self) -> str:
        """Draw the work in each 5 ms, from the third step on."""
        first = [start for letter, start, _ in self.spans if letter == "#"][2]
        places = {
            place: letter
            for letter, start, stop in self.spans
            for place in range(round((start - first) / 0.005), round((stop - first) / 0.005))
        }
        return "".join(places.get(place, ".") for place in range(min(100, max(places) + 1)))


class SevenLoaders:
    """Loaders of the same batches, uint8[B, H, W, C] on a device, which report their stages."""

    def __init__(self, files: list[Path], pixels: np.ndarray, orders: list[np.ndarray], device: torch.device) -> None:
        self.files, self.pixels, self.orders, self.device = files, pixels, orders, device

    def naive(self, stage: Stages) -> Batches:
        return self._singly(stage, lambda row: np.array(Image.open(self.files[row])))

    def mapped(self, stage: Stages) -> Batches:
        return self._singly(stage, lambda row: np.array(self.pixels[row]))

    def at_once(self, stage: Stages) -> Batches:
        for rows in self.orders:
            with stage("r"):
                batch = torch.from_numpy(self.pixels[rows])
            yield self._sent(stage, batch)

    def pinned(self, stage: Stages) -> Batches:
        buffer = torch.empty(len(self.orders[0]), *self.pixels.shape[1:], dtype=torch.uint8, pin_memory=True)
        for rows in self.orders:
            # the buffer must not be refilled while it is still being copied
            torch.cuda.synchronize()
            with stage("r"):
                np.take(self.pixels, rows, axis=0, out=buffer.numpy(), mode="clip")
            yield self._sent(stage, buffer)

    def workers(self, stage: Stages, ahead: int = 1) -> Batches:
        kept: dict[str, Any] = {"num_workers": 2, "prefetch_factor": ahead, "pin_memory": self.device.type == "cuda"}
        loader = DataLoader(RowsAtOnce(self.pixels), batch_sampler=self.orders, collate_fn=as_it_is, **kept)
        return (self._sent(stage, batch) for batch in loader)

    def queue(self, stage: Stages) -> Batches:
        return self.workers(stage, 4)

    def prefetched(self, stage: Stages) -> Batches:
        """Send the next batch on a separate stream before this one is handed out."""
        side_stream, current, batches = torch.cuda.Stream(), torch.cuda.current_stream(), self.queue(stage)

        def ahead() -> torch.Tensor | None:
            with torch.cuda.stream(side_stream):
                return next(batches, None)

        ready = ahead()
        while ready is not None:
            current.wait_stream(side_stream)
            ready.record_stream(current)
            batch, ready = ready, ahead()
            yield batch

    def _singly(self, stage: Stages, read: Callable[[int], np.ndarray]) -> Batches:
        for rows in self.orders:
            with stage("r"):
                items = [read(row) for row in rows]
            with stage("c"):
                batch = default_collate(items)
            yield self._sent(stage, batch)

    def _sent(self, stage: Stages, batch: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cpu":
            return batch
        with stage(">"):
            return batch.to(self.device, non_blocking=True)


@bench(
    "Seven loaders, from naive to prefetching on the GPU, for a step of 30 ms: how long does a batch of 256 take?",
    "ms a batch",
    rounds=5,
    claim="From naive to prefetching on the GPU, each of seven loaders is faster than the one before it.",
    holds=lambda rate: all(a < b for a, b in itertools.pairwise(r for way, r in rate.items() if way[0].isdigit())),
)
def seven_loaders(lab: Lab) -> Iterator[Way]:
    count, side, size = lab.pick((1024, SIDE, BATCH), (32, 32, 8))
    device, generator = best_device(), np.random.default_rng(0)
    images = photographs(lab, count, (side, side))
    pack = partial(pixpack.pack, images, size=side, exact=True, max_rejects=0)
    data = pixpack.MemmapDataset(made_once(lab.work / f"seven-{count}", pack))
    orders = [generator.permutation(count)[:size] for _ in range(8)]
    seven = SevenLoaders(sorted(images.rglob("*.jpg")), data.numpy(), orders, device)
    part = data.subset(np.concatenate(orders))
    ours = lab.stack.enter_context(pixpack.MemmapLoader(part, size, device=device, residency="cache"))
    ways: dict[str, Callable[[Stages], Batches]] = {
        "1 naive: Pillow, item by item": seven.naive,
        "2 mapped, item by item": seven.mapped,
        "3 fast collate": seven.at_once,
        "4 pinned": seven.pinned,
        "5 workers": seven.workers,
        "6 workers, queue": seven.queue,
        "7 GPU prefetch": seven.prefetched,
        "MemmapLoader": lambda stage: (images.movedim(-3, -1) for images, _ in ours),
    }
    step, timelines = _spin(device), []
    for name, way in ways.items():
        if device.type == "cpu" and name[0] in "47":
            lab.notes.append(f"{name}: not run, no GPU")
            continue
        first = next(way(Stages())).cpu().numpy()
        require(np.array_equal(first, seven.pixels[orders[0]]), f"{name}: the first batch is not those rows.")
        timelines.append(f"{name.partition(':')[0]:24}{_with_steps(way, step).drawn()}")
        yield Way(name, partial(_with_steps, way, step), len(orders))
    legend = (
        "5 ms a letter, from the third step on: r read, c collate, > copy, # step, . waiting (workers read beside it)."
    )
    lab.notes.append("```text\n" + "\n".join(timelines) + f"\n```\n\n{legend}")


def _with_steps(way: Callable[[Stages], Batches], step: Callable[[], None]) -> Stages:
    """Take all batches, with a step of the network after each."""
    stage = Stages()
    for batch in way(stage):
        with stage("#"):
            step()
        del batch
    return stage


def _spin(device: torch.device) -> Callable[[], None]:
    """Return a step of 30 ms without work on the host."""
    if device.type == "cpu":
        return lambda: time.sleep(STEP_SECONDS)
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(100_000_000)  # lets the clocks rise
    started.record()
    torch.cuda._sleep(100_000_000)
    ended.record()
    torch.cuda.synchronize()
    return partial(torch.cuda._sleep, round(100_000_000 * 1e3 * STEP_SECONDS / started.elapsed_time(ended)))


@bench(
    "Do images arrive sooner as bytes that the device converts, or as floats that the host has made?",
    "ms",
    claim="Images sent as uint8 and converted on the device arrive sooner than floats, the more so the larger they are.",
)
def bus_bytes(lab: Lab) -> Iterator[Way]:
    device = needs_gpu()
    for height, width in lab.pick(SIZES, SIZES[:1]):
        for batch in lab.pick(BATCHES, BATCHES[:1]):
            source = torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8).pin_memory()
            floats, step = source.float().pin_memory(), _training_step(device)

            def as_bytes(source: torch.Tensor = source) -> torch.Tensor:
                return source.to(device, non_blocking=True).float().div_(255)

            def as_floats(source: torch.Tensor = source, floats: torch.Tensor = floats) -> torch.Tensor:
                torch.div(source, 255, out=floats)
                return floats.to(device, non_blocking=True)

            require(
                torch.allclose(as_bytes(), as_floats(), rtol=0, atol=1e-6), "the two ways do not give the same images."
            )
            group = f"{batch} of {height} x {width}"
            for where, use in {"": drain, ", in training": step}.items():
                base = f"{group}, floats{where}"
                yield Way(base, lambda call=as_floats, use=use: use(call()), base=base)
                yield Way(f"{group}, uint8{where}", lambda call=as_bytes, use=use: use(call()), base=base)


def _training_step(device: torch.device, model: nn.Module | None = None) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a step of a network under autocast, which returns its loss."""
    model = (model or network(3, (32, 64))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(images)
        loss = nn.functional.cross_entropy(scores.float(), torch.arange(len(images), device=device) % 10)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def network(channels: int, widths: tuple[int, ...], *first: nn.Module, classes: int = 10, seed: int = 0) -> nn.Module:
    """Return a small network of strided convolutions after the modules in `first`."""
    torch.manual_seed(seed)
    layers = [*first]
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


@bench(
    "What does it cost to move a nest of 64 tensors to a device?",
    "us",
    rounds=20,
    claim="A nest of tensors is moved faster by a tree library written in C than by a recursive function or torch's pytree.",
)
def nested_moves(lab: Lab) -> Iterator[Way]:
    nest = {f"key{k}": [torch.full((8,), 4 * k + n) for n in range(4)] for k in range(16)}
    flat = TensorDict({f"{key}.{n}": tensor for key, values in nest.items() for n, tensor in enumerate(values)})

    def by_module(name: str, package: str, function: str, move: Callable[[Any], Any]) -> Callable[[], Any]:
        walk = getattr(imported(name, package), function)
        return lambda: walk(move, nest)

    for device in {"cpu", best_device().type}:
        move = partial(torch.Tensor.to, device=device, non_blocking=True)
        makers: dict[str, Callable[[], Callable[[], Any]]] = {
            "a recursive function": lambda move=move: partial(_recursively, nest, move),
            "pixpack to_device": lambda device=device: partial(pixpack.to_device, nest, device),
            "torch's pytree": lambda move=move: partial(pytree.tree_map, move, nest),
            "optree": partial(by_module, "optree", "optree", "tree_map", move),
            "dm-tree": partial(by_module, "tree", "dm-tree", "map_structure", move),
        }
        for name, way in lab.runnable(makers):
            moved = way()
            same = all(torch.equal(a.cpu(), b) for key in nest for a, b in zip(moved[key], nest[key], strict=True))
            require(same, f"{name} does not give every tensor its place.")
            yield Way(f"{name}, to {device}", way, base=f"a recursive function, to {device}")
        yield Way(f"tensordict, to {device}", partial(flat.to, device), base=f"a recursive function, to {device}")


def _recursively(nest: Any, move: Callable[[Any], Any]) -> Any:
    if isinstance(nest, dict):
        return {key: _recursively(value, move) for key, value in nest.items()}
    if isinstance(nest, list | tuple):
        return type(nest)(_recursively(value, move) for value in nest)
    return move(nest) if isinstance(nest, torch.Tensor) else nest


@bench(
    "From a file to the first shuffled batch on the device: torch.load(map_location), or a store?",
    "ms",
    rounds=7,
    claim="torch.load(map_location) brings saved data straight to a device; DataParallel moves nested batches by itself.",
)
def first_on_device(lab: Lab) -> Iterator[Way]:
    rows, side, size = lab.pick((4_096, SIDE, BATCH), (64, 32, 8))
    device, store = best_device(), random_data(lab, rows, side)
    expected = torch.from_numpy(store.numpy())
    saved = made_once(lab.work / f"saved-{rows}x{side}.pt", lambda path: torch.save(expected.clone(), path))
    order = torch.randperm(rows)[:size]

    def loaded(**options: Any) -> torch.Tensor:
        pixels = torch.load(saved, **options)
        return pixels[order.to(pixels.device)].to(device)

    def ours() -> torch.Tensor:
        data = pixpack.MemmapDataset(store.path)
        residency = "gpu" if device.type == "cuda" else "auto"
        with pixpack.MemmapLoader(data, size, sampler=order.tolist(), device=device, residency=residency) as loader:
            images, _ = next(iter(loader))
            return images.movedim(-3, -1).clone()

    ways = {
        f"torch.load(map_location={device.type!r})": partial(loaded, map_location=device),
        "torch.load(mmap=True)": partial(loaded, mmap=True),
        "MemmapLoader": ours,
    }
    for name, way in ways.items():
        require(torch.equal(way().cpu(), expected[order]), f"{name}: the first batch is not those rows.")
        yield Way(name, way)
    if device.type == "cpu":
        lab.notes.append("DataParallel moving a nest by itself: not run, no GPU")
        return
    nest = {"images": [torch.zeros(8, 3, 224, 224)] * 2, "label": {"y": torch.zeros(8)}}
    parallel = nn.DataParallel(_Same().to(device), device_ids=[0])
    require(
        all(tensor.is_cuda for tensor in pytree.tree_leaves(parallel(nest))), "DataParallel leaves a part of the nest."
    )
    yield Way("DataParallel, a nest", partial(parallel, nest), base="DataParallel, a nest")
    yield Way("to_device, a nest", partial(pixpack.to_device, nest, device), base="DataParallel, a nest")


class _Same(nn.Module):
    def forward(self, nest: Any) -> Any:
        return nest


@bench(
    "Where do augmentations belong: on the CPU, on the GPU, or on both?",
    "images/s",
    rounds=5,
    claim="Augmentations keep uint8, and are done faster on the GPU than on the CPU or on both.",
)
def augment(lab: Lab) -> Iterator[Way]:
    rows, side, crop, size = lab.pick((1024, 256, SIDE, 128), (32, 48, 32, 8))
    device, data = best_device(), random_data(lab, rows, side)
    moved, jitter, normalize = (
        (RandomResizedCrop(crop), RandomHorizontalFlip()),
        ColorJitter(0.4, 0.4, 0.4),
        Normalize(*IMAGENET),
    )

    def epoch(transform: Any, where: torch.device | str, then: Callable[[torch.Tensor], Any]) -> Callable[[], None]:
        loader = pixpack.MemmapLoader(data, size, shuffle="full", transform=transform, device=where, residency="cache")
        lab.stack.enter_context(loader)
        require(next(iter(loader))[0].dtype == torch.uint8, "the augmentations do not keep uint8.")
        return lambda: drain(then(images) for images, _ in loader)

    chain, on_gpu = Compose([*moved, jitter]), normalize.to(device)
    yield Way("no augmentation", epoch(None, "cpu", lambda images: images), rows)
    yield Way("CPU: crop, flip", epoch(Compose([*moved]), "cpu", lambda images: images), rows)
    yield Way("CPU: crop, flip, jitter", epoch(chain, "cpu", lambda images: images), rows)
    on_cpu = Normalize(*IMAGENET)
    yield Way("all on the CPU, floats sent", epoch(chain, "cpu", lambda images: on_cpu(images).to(device)), rows)
    if device.type == "cpu":
        lab.notes.append("All on the GPU, and crop on the CPU with the rest on the GPU: not run, no GPU")
        return
    yield Way("all on the GPU", epoch(chain, device, on_gpu), rows)
    both = Compose([*moved])
    yield Way(
        "crop, flip on the CPU, the rest on the GPU", epoch(both, "cpu", lambda images: on_gpu(images.to(device))), rows
    )


def _compile(lab: Lab, function: Any) -> Any:
    if not torch.cuda.is_available() and not (shutil.which("g++") or shutil.which("clang++")):
        raise Skip("torch.compile needs a C++ compiler")
    # a pool of compilers would outlive the measurement
    torch._inductor.config.compile_threads = 1
    return torch.compile(function, backend=lab.pick("inductor", "eager"))


@bench(
    "Does torch.compile fuse pointwise operations into one kernel, and is that faster?",
    "ms",
    claim="Pointwise operations are fused into one kernel, which saves passes over memory and launches.",
)
def kernels(lab: Lab) -> Iterator[Way]:
    from torch._inductor import metrics

    device = best_device()
    images = torch.randint(0, 256, (*lab.pick((64, 3, SIDE, SIDE), (2, 3, 8, 8)),), dtype=torch.uint8, device=device)
    chains: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
        "x * a + b, sin, cos, sigmoid": (_pointwise, torch.randn(lab.pick(16 << 20, 64), device=device)),
        "Normalize to bfloat16": (Normalize(*IMAGENET, torch.bfloat16).to(device), images),
    }
    for name, (function, given) in chains.items():
        compiled = _compile(lab, function)
        metrics.reset()
        torch.testing.assert_close(compiled(given), function(given), rtol=2e-2, atol=2e-2)
        yield Way(f"{name}, one by one", partial(function, given), base=f"{name}, one by one")
        columns = {"kernels": metrics.generated_kernel_count}
        yield Way(f"{name}, torch.compile", partial(compiled, given), base=f"{name}, one by one", columns=columns)


def _pointwise(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(torch.cos(torch.sin(x * 1.5 + 0.5)))


@bench(
    "Is a training step at least 30 % faster under torch.compile?",
    "ms a step",
    claim="torch.compile makes a model at least 30 % faster.",
    holds=lambda rate: rate["torch.compile"] > 1.3 * rate["as it is"],
)
def compiled_step(lab: Lab) -> Iterator[Way]:
    device, (size, side) = best_device(), lab.pick((32, 96), (2, 16))
    images = torch.randint(0, 256, (size, 3, side, side), dtype=torch.uint8, device=device)
    widths = lab.pick((32, 64, 128, 256), (8,))
    eager, compiled = network(3, widths, Normalize(*IMAGENET)), _compile(lab, network(3, widths, Normalize(*IMAGENET)))
    steps = {"as it is": _training_step(device, eager), "torch.compile": _training_step(device, compiled)}
    losses = [float(step(images)) for step in steps.values()]
    require(abs(losses[0] - losses[1]) < 1e-2, f"compiled, the network has another loss: {losses}.")
    for name, step in steps.items():
        yield Way(name, partial(step, images))


@bench(
    "How near does a GPU's loader come to the bus, to the device's memory, and to a step that waits for none?",
    "images/s",
)
def gpu(lab: Lab) -> Iterator[Way]:
    device, (rows, side, crop, size) = needs_gpu(), lab.pick((16_384, 256, SIDE, BATCH), (64, 48, 32, 8))
    data = random_data(lab, rows, side)
    source = torch.from_numpy(data.numpy()[:size]).pin_memory()
    there = torch.empty_like(source, device=device)
    copies = rows // size
    bus = "copying a pinned batch: the bus"
    yield Way(bus, lambda: [there.copy_(source, non_blocking=True) for _ in range(copies)], rows)

    def loader_of(**options: Any) -> pixpack.MemmapLoader:
        return lab.stack.enter_context(pixpack.MemmapLoader(data, size, drop_last=True, device=device, **options))

    for order in ("full", "block"):
        loader = loader_of(shuffle=order, residency="cache")
        images, _ = next(iter(loader))
        rows_of_step = np.asarray(loader.rows(0, 0))
        same = np.array_equal(images.movedim(-3, -1).cpu().numpy(), data.numpy()[rows_of_step])
        require(same, f"{order}: the first batch is not those rows.")
        yield Way(f"MemmapLoader, {order}, from the page cache", lambda loader=loader: drain(loader), rows)
    resident, order = torch.from_numpy(data.numpy()).to(device), torch.randperm(rows, device=device).split(size)
    gather = "gathering rows on the device"
    yield Way(gather, lambda: drain(resident.index_select(0, piece) for piece in order), rows, base=gather)
    on_device = loader_of(shuffle="full", residency="gpu")
    yield Way('MemmapLoader, full, residency "gpu"', lambda: drain(on_device), rows, base=gather)
    widths = lab.pick((64, 128, 256, 512), (8,))
    step = _training_step(device, _compile(lab, network(3, widths, Normalize(*IMAGENET))))
    crops = loader_of(
        shuffle="full", residency="cache", transform=Compose([RandomResizedCrop(crop), RandomHorizontalFlip()])
    )
    batch, _ = next(iter(crops))
    alone = "steps on a resident batch"
    yield Way(alone, lambda: [step(batch) for _ in range(copies)], rows, base=alone)
    yield Way("steps with loading, crop and flip", lambda: [step(images) for images, _ in crops], rows, base=alone)
