"""How many images/s does one training step get on a GPU from a store, and from the loaders that people use?

    python -m scripts.benchmarks.reading.bench_gpu_peers --images DIR
    python -m scripts.benchmarks.reading.bench_gpu_peers --device cpu --quick     shows that the code runs; measures nothing

The step is that of `bench_gpu`: ResNet-50 in bfloat16, channels_last, compiled. Each way gives it uint8[B, 3, 224, 224] of
RandomResizedCrop and RandomHorizontalFlip, shuffled, of the same photographs:

    ImageFolder             torchvision's, in a DataLoader with pinned memory and persistent workers, 8 and 16, v2 on the CPU
    decoded on the device   the files' bytes by as many workers, torchvision's decode_jpeg and v2 on the device
    tensorclass             rows of 256 x 256 as in tensordict's tutorial: a DataLoader of the mapped tensorclass whose collate
                            pins and sends, then v2, one crop for the batch
    FFCV                    as its ImageNet recipe: half the photographs JPEGs, half pixels, of sides of at most 512; a thread
                            for each CPU. Every epoch begins with fresh pinned buffers, a gigabyte for batches of 256: give
                            more --count to have less of that
    MemmapLoader            rows of 256 x 256; rows of own sizes, at most 512; and rows that are on the device

Each round times an epoch of every way, from iter() to the end of its last step, against as many steps on one batch that stays
on the device; ratios are taken within a round. In the epoch NVML says how busy the GPU was and how much energy it took.
Checked: an epoch has each target as often as the folder. A way that fails is reported with the reason. The last line is JSON.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import packer
from reader import Compose, ImageBatch, MemmapDataset, MemmapLoader, RandomHorizontalFlip, RandomResizedCrop
from reader.system import available_cpus
from scripts.benchmarks.reading import _ffcv_way
from scripts.benchmarks.reading._gpu_power import Meter
from scripts.benchmarks.reading._gpu_step import Labeled, TrainingStep
from scripts.benchmarks.reading.bench_gpu import gpu
from scripts.common.arguments import bench_parser
from scripts.common.figures import BenchmarkError, machine, photographs, publish, ratios, repeat_files, spread, table
from scripts.common.timing import collection_paused, in_turns
from scripts.common.torchvision_part import torchvision_v2
from scripts.samples.stores import made_once

LIMIT = "one batch, on the device"
SIDE, CROP, WORKERS = 256, 224, (8, 16)
# Workers that hang fail their way alone; sixteen that each import torch and start CUDA take a while.
WORKER_SECONDS = 90
# Then no round begins.
MOST_SECONDS = 180
QUICK_SIDE, QUICK_CROP, QUICK_WORKERS = 48, 40, (1,)

# Begins an epoch.
Epoch = Callable[[], Iterable[Labeled]]
# images/s, joules an image, percent of the time in which the GPU was busy
Figures = tuple[float, float | None, float | None]


class Files(Dataset):
    """The bytes of each file, uint8[n], and its class."""

    def __init__(self, samples: list[tuple[str, int]]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, target = self._samples[index]
        return torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8), target


def as_lists(samples: list[tuple[torch.Tensor, int]]) -> tuple[list[torch.Tensor], torch.Tensor]:
    return [data for data, _ in samples], torch.tensor([target for _, target in samples])


class Collate:
    """What the source's own pipeline does with a batch: index the whole, pin it, send it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, batch: Any) -> Any:
        return batch.pin_memory().to(self.device) if self.device.type == "cuda" else batch


class Ways:
    """The ways, made of one folder of photographs and the stores that were packed of it."""

    def __init__(self, work: Path, device: torch.device, options: argparse.Namespace) -> None:
        from torchvision.datasets import ImageFolder

        self._device, self._batch_size, self._crop = device, options.batch_size, options.crop
        self._v2, self._images, self._rows, self._own = torchvision_v2(), work / "images", work / "rows", work / "own"
        self._own_side = 2 * options.side
        self._samples = [(str(path), target) for path, target in ImageFolder(str(self._images)).samples]
        self.targets = sorted(target for _, target in self._samples)
        self.manifest = MemmapDataset(self._rows).manifest

    def all(self, workers: Iterable[int]) -> dict[str, Callable[[], Epoch]]:
        """Return what makes each way, by its name."""
        found: dict[str, Callable[[], Epoch]] = {
            f"MemmapLoader, rows of {SIDE} x {SIDE}": lambda: self._ours(self._rows, "cache"),
            "MemmapLoader, rows of own sizes": lambda: self._ours(self._own, "cache"),
        }
        if self._device.type == "cuda":
            found["MemmapLoader, rows on the device"] = lambda: self._ours(self._rows, "gpu")
        for count in workers:
            found[f"ImageFolder, {count} workers"] = lambda count=count: self._folder(count)
            found[f"decoded on the device, {count} workers"] = lambda count=count: self._decoded(count)
        found[f"tensorclass, {max(workers)} workers"] = lambda: self._tensorclass(max(workers))
        found["FFCV, as its ImageNet recipe"] = self._ffcv
        return found

    def resident(self) -> Labeled:
        """Return a batch on the device."""
        images, targets = next(iter(self._ours(self._rows, "cache")()))
        return images.clone(memory_format=torch.preserve_format), targets.clone()

    def _ours(self, store: Path, residency: str) -> Epoch:
        transform = Compose([RandomResizedCrop(self._crop), RandomHorizontalFlip()])
        options: dict[str, Any] = {"shuffle": "full", "residency": residency, "transform": transform}
        loader = MemmapLoader(MemmapDataset(store), self._batch_size, device=self._device, **options)
        return lambda: loader

    def _folder(self, workers: int) -> Epoch:
        from torchvision.datasets import ImageFolder

        v2 = self._v2
        train = v2.Compose([v2.RandomResizedCrop(self._crop), v2.RandomHorizontalFlip(), v2.PILToTensor()])
        loader = self._loader(ImageFolder(str(self._images), train), workers)
        return lambda: self._sent(loader)

    def _decoded(self, workers: int) -> Epoch:
        from torchvision.io import ImageReadMode, decode_jpeg

        v2 = self._v2
        loader = self._loader(Files(self._samples), workers, collate_fn=as_lists)
        train = v2.Compose([v2.RandomResizedCrop(self._crop), v2.RandomHorizontalFlip()])

        def epoch() -> Iterator[Labeled]:
            for files, targets in loader:
                images = decode_jpeg(files, mode=ImageReadMode.RGB, device=str(self._device))
                yield torch.stack([train(image) for image in images]), targets.to(self._device, non_blocking=True)

        return epoch

    def _tensorclass(self, workers: int) -> Epoch:
        v2, data = self._v2, ImageBatch.load_memmap(self._rows)
        train = v2.Compose([v2.RandomResizedCrop(self._crop), v2.RandomHorizontalFlip()])
        # its collate sends to the device: workers that are forked could not
        options = {"multiprocessing_context": "spawn", "pin_memory": False, "collate_fn": Collate(self._device)}
        loader = self._loader(data, workers, **options)
        return lambda: ((train(batch.images), batch.targets) for batch in loader)

    def _ffcv(self) -> Epoch:
        import ffcv  # noqa: F401, where there is none no file is written

        folder, side = self._own.with_name("ffcv"), self._own_side
        made_once(folder, lambda part: _ffcv_way.written(self._images, part / "images.beton", side))
        return _ffcv_way.epochs(folder / "images.beton", self._batch_size, self._crop, self._device)

    def _loader(self, data: Any, workers: int, **options: Any) -> DataLoader:
        common: dict[str, Any] = {"shuffle": True, "num_workers": workers, "persistent_workers": True}
        common |= {"pin_memory": self._device.type == "cuda", "timeout": WORKER_SECONDS}
        return DataLoader(data, self._batch_size, **common | options)

    def _sent(self, loader: DataLoader) -> Iterator[Labeled]:
        for images, targets in loader:
            yield images.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)


def main() -> int:
    options = parse()
    torchvision_v2()
    # it is the point to try more workers than CPUs, too
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    device, workers = torch.device(options.device), QUICK_WORKERS if options.quick else WORKERS
    report: dict[str, Any] = {"benchmark": "bench_gpu_peers", "device": options.device, "quick": options.quick}
    made_once(options.work / f"photographs-{options.count}-{options.side}", lambda folder: pack(folder, options))
    ways = Ways(options.work / f"photographs-{options.count}-{options.side}", device, options)
    report |= {"images": options.count, "batch_size": options.batch_size, "machine": machine(options.work)}
    report |= {"gpu": gpu(options.device), "cores": available_cpus()} | measure(ways, workers, device, options)
    print(text(report["ways"], report["failed"]))
    publish(report, options.output)
    return 0


def parse() -> argparse.Namespace:
    work = Path(tempfile.gettempdir()) / "pixpack-gpu-peers"
    parser = bench_parser(__doc__, images=None, count=8_192, batch_size=256, rounds=4, work=work)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    options.side, options.crop = SIDE, CROP
    if options.quick:
        options.count, options.batch_size, options.rounds = 16, 8, 1
        options.side, options.crop = QUICK_SIDE, QUICK_CROP
    options.count -= options.count % options.batch_size  # an epoch of whole batches has every photograph
    if not options.count:
        parser.error(f"--count is below --batch-size {options.batch_size}, expected some batches.")
    options.work.mkdir(parents=True, exist_ok=True)
    return options


def pack(folder: Path, options: argparse.Namespace) -> None:
    """Fill a folder with links to photographs, and two stores of them."""
    images = folder / "images"
    repeat_files(photographs(options.images, options.work, options.side), images, options.count, link=True)
    packer.pack(images, folder / "rows", size=options.side, max_rejects=0)
    packer.pack(images, folder / "own", fit="none", max_size=2 * options.side, max_rejects=0)


def measure(ways: Ways, workers: Iterable[int], device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Time an epoch of each way in turns; returns spreads by way, with ratios to the limit."""
    step = TrainingStep(ways.manifest, device, is_quick=options.quick)
    steps, batch = options.count // options.batch_size, ways.resident()
    epochs: dict[str, Epoch] = {LIMIT: lambda: (batch for _ in range(steps))}
    failed: dict[str, str] = {}
    for name, make in ways.all(workers).items():
        print(f"bench_gpu_peers: {name}", file=sys.stderr, flush=True)
        try:
            epochs[name] = make()
            check(name, step.epoch(epochs[name]())[1], ways.targets)
        except Exception as e:
            failed[name] = f"{type(e).__name__}: {e}"[:500]
            epochs.pop(name, None)
    meter = Meter(device)

    def turn(epoch: Epoch) -> Figures:
        with meter:
            seconds = step.epoch(epoch())[0]
        joules = None if meter.joules is None else meter.joules / options.count
        return options.count / seconds, joules, meter.percent_busy

    turns = {name: functools.partial(turn, epoch) for name, epoch in epochs.items()}
    with collection_paused():
        found = in_turns(turns, options.rounds, untimed=1, most_seconds=MOST_SECONDS)
    rates = {name: [rate for rate, _, _ in turns] for name, turns in found.items()}
    result = {
        name: {
            "images_per_second": spread(rates[name], 0),
            "of_limit": ratios(rates[name], rates[LIMIT]),
            "joules_per_image": known([joules for _, joules, _ in turns], 4),
            "percent_busy": known([busy for _, _, busy in turns], 1),
        }
        for name, turns in found.items()
    }
    return {"ways": result, "failed": failed, "not_measured": meter.missing}


def known(values: list[float | None], digits: int) -> dict[str, Any] | None:
    """Return the spread of values, None where one is not known."""
    found = [value for value in values if value is not None]
    return spread(found, digits) if len(found) == len(values) else None


def check(name: str, targets: torch.Tensor, expected: list[int]) -> None:
    """Raise BenchmarkError if the targets of an epoch are not those of the folder."""
    if sorted(targets.tolist()) != expected:
        raise BenchmarkError(f"{name}: {len(targets)} targets of an epoch are not those of the {len(expected)} files.")


def text(ways: dict[str, Any], failed: dict[str, str]) -> str:
    """Draw the report for a person."""
    lines = [["way", "images/s", "of the limit", "joules an image", "GPU busy"]]
    for name, found in ways.items():
        joules, busy = found["joules_per_image"], found["percent_busy"]
        cells = [f"{found['images_per_second']['median']:,.0f}", f"{found['of_limit']['median']:.3f}"]
        lines.append(
            [name, *cells, f"{joules['median']:.3f}" if joules else "", f"{busy['median']:.0f} %" if busy else ""]
        )
    return "\n".join([table(lines), *(f"{name} failed: {reason}" for name, reason in failed.items())])


if __name__ == "__main__":
    sys.exit(main())
