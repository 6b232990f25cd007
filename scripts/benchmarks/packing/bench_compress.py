"""How much smaller are compressed rows, how near is packing to merely making them, and reading to threads that only unpack?

    python -m scripts.benchmarks.packing.bench_compress IMAGES --size 224
    python -m scripts.benchmarks.packing.bench_compress IMAGES --size 224 --form jpeg:95

Repeats IMAGES to --count files (copies, warm in the page cache), and takes in turns

    packing    decode, resize and crop each image, and compress its row, with nothing written, on as many processes; a pack of
               compressed rows; a raw pack. The two packs also sum, check, write and sync
    reading    a MemmapLoader of the compressed store, shuffle="full"; as many threads that unpack the same frames, in the same
               order, from memory into memory that is there, and do nothing else; a MemmapLoader of the raw store, which copies

Checked: the compressed store has the rows of the raw one, or with a loss the squared error that its manifest gives. Ratios are
medians of the ratios of each round. Linux only: it forks. Prints one JSON object last.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import packer
from packer.inputs.scan import scan
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from reader import MemmapDataset, MemmapLoader, frames
from reader.format.manifest import PIXELS
from reader.format.tensors import ZSTD, codec_of
from scripts.benchmarks.packing._pack_ways import ListedFolder, Task, in_processes
from scripts.common.arguments import bench_parser
from scripts.common.figures import BenchmarkError, machine, photographs, ratios, repeat_files, spread
from scripts.common.program import reported
from scripts.common.timing import collection_paused, drain, in_turns, seconds

_CHANNELS = 3
_PIECE_BYTES = 2 << 20
# Epochs of each way that do not count: the first ones bring memory.
_UNTIMED = 2


def main() -> int:
    """Measure and print."""
    counts = {"count": 2000, "size": 224, "batch_size": 64, "workers": 2, "runs": 3, "rounds": 9}
    parser = bench_parser(__doc__, **counts, json=None)
    parser.add_argument("images", metavar="IMAGES", type=Path)
    parser.add_argument("--form", default=ZSTD, help="as --compress of pack has it; default: zstd")
    options = parser.parse_args()
    return reported("bench_compress", partial(_measured, options), json=options.json)


def _measured(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    job, form = _prepared(options, work), options.form
    raw, packed = work / "raw", work / "packed"
    packing = {
        "nothing_written": lambda: in_processes(job, partial(_make_frames, form=form)),
        "compressed": lambda: _pack_seconds(job, packed, form),
        "raw": lambda: _pack_seconds(job, raw, False),
    }
    packed_rates = _rates(packing, len(job.paths), options.runs, untimed=1)
    return {
        "benchmark": "bench_compress",
        "form": form,
        "machine": machine(work),
        "count": len(job.paths),
        "workers": job.workers,
        "ratio_of_bytes": round((packed / PIXELS).stat().st_size / (raw / PIXELS).stat().st_size, 4),
        "packing": _compared(packed_rates, "compressed", ("nothing_written", "raw")),
        "reading": _reading(raw, packed, options.batch_size, options.rounds),
        "threads": torch.get_num_threads(),
        **frames.versions(codec_of(form)),
    }


def _prepared(options: argparse.Namespace, work: Path) -> ListedFolder:
    found = photographs(options.images, work, options.size)
    made, images = repeat_files(found, work / "images", options.count, link=False), work / "images"
    inputs = scan(images)[""]
    paths, targets = [images / name for name in inputs.paths], inputs.targets.tolist()
    scales = [made[name].dct_scale for name in inputs.paths]
    return ListedFolder(images, work, paths, inputs.paths, targets, scales, options.size, options.workers)


def _make_frames(job: ListedFolder, *, form: str) -> Task:
    """Return what makes file i into a frame, which is dropped."""
    decoder, rows = Decoder(Geometry(job.size, job.size)), frames.packer(form, _CHANNELS)

    def make(i: int) -> None:
        row = decoder.row(job.paths[i].read_bytes())
        rows.pack(np.frombuffer(row.pixels, np.uint8), job.size, job.size)

    return make


def _pack_seconds(job: ListedFolder, out: Path, form: str | bool) -> float:
    options: dict[str, Any] = {"size": job.size, "workers": job.workers, "max_rejects": 0}
    shutil.rmtree(out, ignore_errors=True)
    return seconds(lambda: packer.pack(job.images, out, compress=form, **options))


def _rates(ways: dict[str, Callable[[], float]], count: int, rounds: int, *, untimed: int) -> dict[str, list[float]]:
    """Return images/s of each way, given what takes its seconds."""
    taken = in_turns(ways, rounds, untimed=untimed)
    return {name: [count / value for value in values] for name, values in taken.items()}


def _compared(rates: dict[str, list[float]], way: str, others: tuple[str, ...]) -> dict[str, Any]:
    """Return images/s of each way, and the ratios of one to others."""
    return {
        "images_per_second": {name: spread(found, 1) for name, found in rates.items()},
        "ratio": {f"{way}/{other}": ratios(rates[way], rates[other]) for other in others},
    }


def _reading(raw: Path, packed: Path, batch_size: int, rounds: int) -> dict[str, Any]:
    """Read both stores in turns with threads that only unpack."""
    data, plain = MemmapDataset(packed), MemmapDataset(raw)
    compression = data.manifest.compression
    assert compression is not None
    lost = 0
    for (one, _), (other, _) in zip(MemmapLoader(data, batch_size), MemmapLoader(plain, batch_size), strict=True):
        lost += int(((one.int() - other.int()) ** 2).sum())
    if lost != compression.squared_error:
        raise BenchmarkError(f"the squared error is {lost}, the manifest says {compression.squared_error}.")
    limit = _Unpacking(packed, data)
    with MemmapLoader(data, batch_size, shuffle="full") as loader, MemmapLoader(plain, batch_size) as copies:
        ways = {"compressed": partial(drain, loader), "raw": partial(drain, copies), "only_unpacking": limit}
        with collection_paused():
            timed = {name: partial(seconds, way) for name, way in ways.items()}
            rates = _rates(timed, len(data), rounds, untimed=_UNTIMED)
    unpacked = float(np.median(rates["only_unpacking"])) * data.manifest.row_bytes / torch.get_num_threads()
    return _compared(rates, "compressed", ("only_unpacking", "raw")) | {
        "unpacked_gigabytes_per_second_and_thread": round(unpacked / 1e9, 3),
        "psnr_db": round(compression.psnr, 2) if compression.squared_error else None,
    }


class _Unpacking:
    """All frames of a store in memory, unpacked by threads in a random order into memory that is there."""

    def __init__(self, store: Path, data: MemmapDataset) -> None:
        self._frames = memoryview((store / PIXELS).read_bytes())
        self._table = np.fromfile(store / "_tensordict/frames.memmap", "<i8").reshape(-1, 2)
        assert data.manifest.compression is not None
        self._sides, self._codec = data.manifest.sides, data.manifest.compression.codec
        self._pool = concurrent.futures.ThreadPoolExecutor(torch.get_num_threads())
        self._rows = np.ones((len(data), data.manifest.row_bytes), np.uint8)
        self._piece_rows, self._epoch = max(1, _PIECE_BYTES // data.manifest.row_bytes), 0

    def __call__(self) -> None:
        self._epoch += 1
        order = np.random.default_rng(self._epoch).permutation(len(self._rows))
        list(self._pool.map(partial(self._piece, order), range(0, len(self._rows), self._piece_rows)))

    def _piece(self, order: np.ndarray, first: int) -> None:
        rows = self._rows[first : first + self._piece_rows]
        height, width, channels = self._sides
        spans = self._table[order[first : first + self._piece_rows]].tolist()
        packed = [self._frames[begin:end] for begin, end in spans]
        shapes = np.full((len(rows), 2), (height, width))
        assert frames.unpack_rows(packed, shapes, channels, rows.reshape(-1), codec=self._codec) is None


if __name__ == "__main__":
    sys.exit(main())
