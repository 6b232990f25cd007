"""Benchmarks beside other libraries: each packs the same photographs, then reads the same rows. Installs none of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import MemoryMappedTensor, tensorclass
from torch.utils.data import DataLoader

import pixpack
from scripts.bench.data import drain, imported, photographs, torchvision
from scripts.bench.harness import Lab, Way, bench, require
from scripts.bench.reading import ResizedFolder

SIDE, BATCH, WORKERS = 224, 256, 2

# Each call gives an epoch of (uint8[B, H, W, C], rows).
Epochs = Callable[[], Iterable[Any]]


class Rows(ResizedFolder):
    """(uint8[side, side, 3], row) of each photograph, resized by Pillow; `size` is that of a batch."""

    def __init__(self, images: Path, side: int, size: int) -> None:
        super().__init__(images, side)
        self.size = size

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return super().__getitem__(row), row


class Peer(NamedTuple):
    """A function that packs into a folder, or None where the JPEGs themselves are read, and one that opens the folder."""

    pack: Callable[[Path], Any] | None
    open: Callable[[Path], Epochs]


def ffcv(rows: Rows) -> Peer:
    """Raw pixels in a .beton, read with os_cache; full shuffle. Later batches overwrite the memory of earlier ones."""
    fields, writer = imported("ffcv.fields", "ffcv"), imported("ffcv.writer", "ffcv")
    basics, images = imported("ffcv.fields.basics", "ffcv"), imported("ffcv.fields.rgb_image", "ffcv")
    loader, to_tensor = imported("ffcv.loader", "ffcv"), imported("ffcv.transforms", "ffcv").ToTensor

    def pack(out: Path) -> None:
        written = {"pixels": fields.RGBImageField(write_mode="raw"), "row": fields.IntField()}
        writer.DatasetWriter(str(out / "rows.beton"), written, num_workers=WORKERS).from_indexed_dataset(rows)

    def opened(out: Path) -> Epochs:
        pipelines = {"pixels": [images.SimpleRGBImageDecoder(), to_tensor()], "row": [basics.IntDecoder(), to_tensor()]}
        order = {"order": loader.OrderOption.RANDOM, "os_cache": True, "drop_last": False, "pipelines": pipelines}
        found = loader.Loader(str(out / "rows.beton"), rows.size, num_workers=WORKERS, **order)
        return lambda: found

    return Peer(pack, opened)


def litdata(rows: Rows) -> Peer:
    """Raw tensors in chunks of 64 MB, shuffled inside the chunks."""
    library = imported("litdata", "litdata")

    def pack(out: Path) -> None:
        options = {"num_workers": WORKERS, "chunk_bytes": "64MB", "start_method": "fork"}
        library.optimize(rows.__getitem__, list(range(len(rows))), output_dir=str(out), **options)

    def opened(out: Path) -> Epochs:
        data = library.StreamingDataset(str(out), shuffle=True)
        # two workers read more slowly
        found = library.StreamingDataLoader(data, batch_size=rows.size, num_workers=0)
        return lambda: found

    return Peer(pack, opened)


def streaming(rows: Rows) -> Peer:
    """Mosaic Streaming: MDS shards of arrays, shuffled over all of them."""
    torchvision()  # streaming imports it
    library = imported("streaming", "mosaicml-streaming")

    def pack(out: Path) -> None:
        columns = {"pixels": f"ndarray:uint8:{rows.side},{rows.side},3", "row": "int"}
        with library.MDSWriter(out=str(out), columns=columns) as writer:
            for pixels, row in _by_workers(rows):
                writer.write({"pixels": pixels.numpy(), "row": row})

    def opened(out: Path) -> Epochs:
        order = {"shuffle": True, "shuffle_algo": "naive", "num_canonical_nodes": 1}
        data = library.StreamingDataset(local=str(out), batch_size=rows.size, **order)
        found = library.StreamingDataLoader(data, batch_size=rows.size, num_workers=WORKERS)
        return lambda: ((batch["pixels"], batch["row"]) for batch in found)

    return Peer(pack, opened)


def webdataset(rows: Rows) -> Peer:
    """Tars of .npy, shuffled in a buffer of 5,000 rows in each worker."""
    library = imported("webdataset", "webdataset")

    def pack(out: Path) -> None:
        with library.ShardWriter(f"{out}/%06d.tar", maxcount=-(-len(rows) // 20), verbose=0) as writer:
            for pixels, row in _by_workers(rows):
                writer.write({"__key__": f"{row:08}", "npy": pixels.numpy(), "cls": row})

    def opened(out: Path) -> Epochs:
        shards = sorted(map(str, out.glob("*.tar")))
        samples = library.WebDataset(shards, shardshuffle=len(shards)).shuffle(5000).decode().to_tuple("npy", "cls")
        return lambda: library.WebLoader(samples.batched(rows.size), batch_size=None, num_workers=WORKERS)

    return Peer(pack, opened)


@tensorclass
class MappedRows:
    """The tutorial's tensorclass: uint8[N, H, W, C] and int64[N]."""

    pixels: torch.Tensor
    rows: torch.Tensor


def tutorial(rows: Rows) -> Peer:
    """tensordict's tutorial: MemoryMappedTensors filled by a DataLoader, and read by one with a pinning collate."""

    def mapped(out: Path, how: str) -> MappedRows:
        make, count = getattr(MemoryMappedTensor, how), len(rows)
        pixels = make(shape=(count, rows.side, rows.side, 3), dtype=torch.uint8, filename=out / "pixels")
        return MappedRows(pixels, make(shape=(count,), dtype=torch.int64, filename=out / "rows"), batch_size=[count])

    def pack(out: Path) -> None:
        data, start = mapped(out, "empty"), 0
        for pixels, numbers in DataLoader(rows, batch_size=64, num_workers=WORKERS):
            data[start : start + len(numbers)] = MappedRows(pixels, numbers, batch_size=[len(numbers)])
            start += len(numbers)

    def opened(out: Path) -> Epochs:
        # two workers read more slowly
        found = DataLoader(mapped(out, "from_filename"), rows.size, shuffle=True, collate_fn=_pinned)
        return lambda: ((batch.pixels, batch.rows) for batch in found)

    return Peer(pack, opened)


def imagefolder(rows: Rows) -> Peer:
    """torchvision's ImageFolder in a DataLoader, which decodes and resizes the JPEGs in every epoch; full shuffle."""
    datasets, v2 = (found := torchvision()).datasets, found.transforms.v2

    class Numbered(datasets.ImageFolder):
        def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
            return super().__getitem__(row)[0].movedim(0, -1), row

    def opened(images: Path) -> Epochs:
        data = Numbered(images, v2.Compose([v2.Resize((rows.side, rows.side)), v2.PILToTensor()]))
        loader = DataLoader(data, rows.size, shuffle=True, num_workers=WORKERS)
        return lambda: loader

    return Peer(None, opened)


def ours(rows: Rows) -> Peer:
    """A store, by MemmapLoader; full shuffle."""

    def opened(out: Path) -> Epochs:
        data = pixpack.MemmapDataset(out / "store")
        loader = pixpack.MemmapLoader(data, rows.size, shuffle="full", as_tuple=False)
        return lambda: ((batch.pixels, batch.rows) for batch in loader)

    images = rows.files[0].parents[1]
    options: dict[str, Any] = {"size": rows.side, "fit": "squash", "workers": WORKERS, "max_rejects": 0}
    return Peer(lambda out: pixpack.pack(images, out / "store", **options), opened)


PEERS: dict[str, Callable[[Rows], Peer]] = {
    "pixpack": ours,
    "FFCV": ffcv,
    "LitData": litdata,
    "Mosaic Streaming": streaming,
    "WebDataset": webdataset,
    "tensordict's tutorial": tutorial,
    "ImageFolder": imagefolder,
}


@bench(
    "How fast do libraries pack the same photographs into rows of 224 x 224, and read them shuffled from memory in"
    " batches of 256?",
    "images/s",
    rounds=5,
)
def peers(lab: Lab) -> Iterator[Way]:
    count, side, size = lab.pick((4096, SIDE, BATCH), (60, 64, 16))
    images = photographs(lab, count)
    rows = Rows(images, side, size)
    for name, peer in lab.runnable({name: partial(make, rows) for name, make in PEERS.items()}):
        out = images
        if peer.pack:
            out = _emptied(lab.work / f"rows-{name}")
            peer.pack(out)
        epoch, seen = peer.open(out), []
        for pixels, numbers in epoch():
            numbers = torch.as_tensor(numbers).flatten()
            levels = np.abs(np.asarray(pixels[0]).astype(int) - rows[int(numbers[0])][0]).mean()
            require(levels < 2, f"{name}: row {numbers[0]} differs by {levels:.1f} levels.")
            seen += numbers.tolist()
        require(sorted(seen) == list(range(count)), f"{name}: an epoch does not bring each row once.")
        size_bytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        columns = {"kB an image": size_bytes / count / 1000}
        read = partial(_read, epoch)
        # an epoch that is not timed brings back the memory that other ways have taken
        yield Way(f"{name}: read", read, count, read, "pixpack: read", columns)
        if peer.pack:
            again = lab.work / f"packing-{name}"
            yield Way(f"{name}: pack", partial(peer.pack, again), count, partial(_emptied, again), "pixpack: pack")


def _by_workers(rows: Rows) -> Iterator[tuple[torch.Tensor, int]]:
    for pixels, numbers in DataLoader(rows, batch_size=64, num_workers=WORKERS):
        yield from zip(pixels, numbers.tolist(), strict=True)


def _read(epoch: Epochs) -> None:
    drain(epoch())


def _emptied(out: Path) -> Path:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return out


def _pinned(batch: Any) -> Any:
    return batch.pin_memory() if torch.cuda.is_available() else batch
