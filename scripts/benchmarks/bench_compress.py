"""How much smaller are compressed rows, what does packing them cost, and how near does reading come to threads that only unpack?

    python -m scripts.benchmarks.bench_compress IMAGES --size 224

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
from scripts.benchmarks.arguments import bench_parser
from scripts.benchmarks.timing import in_turns, seconds

_ROUNDS = 5
_PIECE_ROWS = 16


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__, size=224, batch_size=64, workers=None)
    parser.add_argument("images", metavar="IMAGES")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        raw, packed = Path(folder, "raw"), Path(folder, "packed")
        packing_seconds = [
            pack(given.images, out, size=given.size, workers=given.workers, compress=out is packed).seconds
            for out in (raw, packed)
        ]
        found = _reading(raw, packed, given.batch_size)
        ratio = (packed / PIXELS).stat().st_size / (raw / PIXELS).stat().st_size
    report = {"ratio": round(ratio, 4), "pack_raw_to_compressed": round(packing_seconds[0] / packing_seconds[1], 3), **found}
    print(json.dumps(report | {"threads": torch.get_num_threads(), **frames.versions()}))


def _reading(raw: Path, packed: Path, batch_size: int) -> dict[str, float]:
    """Return images/s of each way, and the median ratio of the loader to threads that only unpack."""
    data = MemmapDataset(packed)
    limit = _Unpacking(packed, data)
    for (one, _), (other, _) in zip(
        MemmapLoader(data, batch_size), MemmapLoader(MemmapDataset(raw), batch_size), strict=True
    ):
        assert torch.equal(one, other)
    with (
        MemmapLoader(data, batch_size, shuffle="full") as loader,
        MemmapLoader(MemmapDataset(raw), batch_size) as plain,
    ):
        ways = {"compressed": lambda: list(loader), "raw": lambda: list(plain), "only_unpacking": limit}
        taken = in_turns({name: partial(seconds, way) for name, way in ways.items()}, _ROUNDS)
    rates = {name: [len(data) / value for value in values] for name, values in taken.items()}
    ratios = [a / b for a, b in zip(rates["compressed"], rates["only_unpacking"], strict=True)]
    medians = {f"{name}_images_per_second": round(statistics.median(values), 1) for name, values in rates.items()}
    return medians | {"loader_to_unpacking": round(statistics.median(ratios), 3)}


class _Unpacking:
    """All frames of a store in memory, unpacked by threads into memory that is there."""

    def __init__(self, store: Path, data: MemmapDataset) -> None:
        self._frames = memoryview((store / PIXELS).read_bytes())
        self._table = np.fromfile(store / "_tensordict/frames.memmap", "<i8").reshape(-1, 2).tolist()
        self._sides = data.manifest.sides
        self._pool = concurrent.futures.ThreadPoolExecutor(torch.get_num_threads())
        self._rows = np.ones((len(data), data.manifest.row_bytes), np.uint8)

    def __call__(self) -> None:
        list(self._pool.map(self._piece, range(0, len(self._rows), _PIECE_ROWS)))

    def _piece(self, first: int) -> None:
        own, rows = frames.unpacker(), self._rows[first : first + _PIECE_ROWS]
        height, width, channels = self._sides
        for row, (begin, end) in zip(rows, self._table[first : first + _PIECE_ROWS], strict=True):
            assert own.unpack(self._frames[begin:end], row) == ""
        frames.restore(rows.reshape(len(rows), height, width * channels), channels, own.spare(rows.size))


if __name__ == "__main__":
    main()
