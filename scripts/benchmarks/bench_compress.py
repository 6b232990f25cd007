"""How much smaller are compressed rows, what does packing them cost, and how near does reading come to threads that only unpack?

    python -m scripts.benchmarks.bench_compress IMAGES --size 224
    python -m scripts.benchmarks.bench_compress IMAGES --size 224 --form jpeg:95

Packs IMAGES raw and compressed, one after the other, then reads in turns: a MemmapLoader of the compressed store, one of the raw
store, and as many threads that unpack the same frames from memory and do nothing else. Prints one JSON object last.
"""

from __future__ import annotations

import concurrent.futures
import json
import statistics
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

from packer import pack
from reader import MemmapDataset, MemmapLoader, frames
from reader.format.manifest import PIXELS
from reader.format.tensors import ZSTD, codec_of
from scripts.benchmarks.arguments import bench_parser
from scripts.benchmarks.timing import in_turns, seconds

_ROUNDS = 5
_PIECE_ROWS = 16


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__, size=224, batch_size=64, workers=None)
    parser.add_argument("images", metavar="IMAGES")
    parser.add_argument("--form", default=ZSTD, help="as --compress of pack has it; default: zstd")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        raw, packed = Path(folder, "raw"), Path(folder, "packed")
        packing_seconds = [
            pack(given.images, out, size=given.size, workers=given.workers, compress=form).seconds
            for out, form in ((raw, False), (packed, given.form))
        ]
        found = _reading(raw, packed, given.batch_size)
        ratio = (packed / PIXELS).stat().st_size / (raw / PIXELS).stat().st_size
    packing = round(packing_seconds[0] / packing_seconds[1], 3)
    report = {"form": given.form, "ratio": round(ratio, 4), "pack_raw_to_compressed": packing, **found}
    print(json.dumps(report | {"threads": torch.get_num_threads(), **frames.versions(codec_of(given.form))}))


def _reading(raw: Path, packed: Path, batch_size: int) -> dict[str, float]:
    """Return images/s of each way, and the median ratio of the loader to threads that only unpack."""
    data = MemmapDataset(packed)
    limit, lost = _Unpacking(packed, data), 0
    for (one, _), (other, _) in zip(
        MemmapLoader(data, batch_size), MemmapLoader(MemmapDataset(raw), batch_size), strict=True
    ):
        lost += int(((one.int() - other.int()) ** 2).sum())
    compression = data.manifest.compression
    assert compression is not None
    assert lost == compression.squared_error
    with (
        MemmapLoader(data, batch_size, shuffle="full") as loader,
        MemmapLoader(MemmapDataset(raw), batch_size) as plain,
    ):
        ways = {"compressed": lambda: list(loader), "raw": lambda: list(plain), "only_unpacking": limit}
        taken = in_turns({name: partial(seconds, way) for name, way in ways.items()}, _ROUNDS)
    rates = {name: [len(data) / value for value in values] for name, values in taken.items()}
    ratios = [a / b for a, b in zip(rates["compressed"], rates["only_unpacking"], strict=True)]
    medians = {f"{name}_images_per_second": round(statistics.median(values), 1) for name, values in rates.items()}
    bytes_per_second = statistics.median(rates["only_unpacking"]) * data.manifest.row_bytes / torch.get_num_threads()
    return medians | {
        "loader_to_unpacking": round(statistics.median(ratios), 3),
        "unpacked_gigabytes_per_second_and_core": round(bytes_per_second / 1e9, 3),
        "psnr_db": round(compression.psnr, 2) if compression.squared_error else None,
    }


class _Unpacking:
    """All frames of a store in memory, unpacked by threads into memory that is there."""

    def __init__(self, store: Path, data: MemmapDataset) -> None:
        self._frames = memoryview((store / PIXELS).read_bytes())
        self._table = np.fromfile(store / "_tensordict/frames.memmap", "<i8").reshape(-1, 2).tolist()
        assert data.manifest.compression is not None
        self._sides, self._codec = data.manifest.sides, data.manifest.compression.codec
        self._pool = concurrent.futures.ThreadPoolExecutor(torch.get_num_threads())
        self._rows = np.ones((len(data), data.manifest.row_bytes), np.uint8)

    def __call__(self) -> None:
        list(self._pool.map(self._piece, range(0, len(self._rows), _PIECE_ROWS)))

    def _piece(self, first: int) -> None:
        rows = self._rows[first : first + _PIECE_ROWS]
        height, width, channels = self._sides
        packed = [self._frames[begin:end] for begin, end in self._table[first : first + _PIECE_ROWS]]
        shapes = np.full((len(rows), 2), (height, width))
        assert frames.unpack_rows(packed, shapes, channels, rows.reshape(-1), codec=self._codec) is None


if __name__ == "__main__":
    main()
