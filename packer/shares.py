"""Rows of one store on their way into another: their pixels, checked, and what the store says of each, its classes numbered anew.

Reads and checks; writes nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.ragged import RaggedBlock
from packer.report import PackError
from packer.rowreader import CheckedPixels, Ints, damaged_file, line_begins, read_spans
from packer.tasks import encode_line
from reader.manifest import (
    FORMAT_VERSION,
    PIXELS,
    SAMPLES,
    Manifest,
    StoreError,
    TensorSpec,
    check_store,
    read_manifest,
)


@dataclass(frozen=True)
class Share:
    """Rows of a store, int64[n], in the order in which they are taken.

    numbers: tensor -> the new number of each class; tensors whose numbers stay are left out.
    """

    path: Path
    manifest: Manifest
    rows: Ints
    numbers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def opened(store: str | os.PathLike[str]) -> tuple[Path, Manifest]:
    """Check the structure of a store whose rows will be copied.

    Raises:
        PackError: it is none, or a newer pixpack's.
    """
    try:
        path, manifest = Path(store), check_store(store)
    except StoreError as e:
        raise PackError(str(e)) from None
    if manifest.version > FORMAT_VERSION or manifest.writer_features:
        raise PackError(
            f"{path} has format {'.'.join(map(str, manifest.version))}, of which a copy by this pixpack might lose something."
            " Use a newer one."
        )
    return path, manifest


class Source:
    """A store whose rows are copied, read block by block."""

    def __init__(self, share: Share) -> None:
        self.path, self.rows, self._share = share.path, share.rows, share
        manifest = self._manifest = share.manifest
        self._begins = np.frombuffer(line_begins(share.path), np.int64)
        self._paths = manifest.tensor_paths()
        self.largest = (manifest.height, manifest.width)
        if manifest.has_own_sizes:
            shapes = np.fromfile(share.path / self._paths["shapes"], "<i4").reshape(-1, 3).astype(np.int64)
            self._heights, self._offsets = shapes[:, 0], np.fromfile(share.path / self._paths["offsets"], "<i8")
            of_a_pixel = manifest.channels + manifest.has_own_masks
            self._bytes = shapes[:, 0] * shapes[:, 1] * of_a_pixel
            self.largest = tuple(shapes[share.rows, :2].max(axis=0).tolist())
        else:
            self._bytes = np.full(manifest.rows, manifest.row_bytes)
            self._offsets = np.arange(manifest.rows) * manifest.row_bytes
        self.sizes: Ints = self._bytes[share.rows]
        self._pixels = CheckedPixels(share.path)

    def check(self) -> None:
        """Compare the small files with their digests."""
        if path := damaged_file(self.path, self._manifest):
            raise PackError(
                f"{path} is damaged: its content is not what was packed. Copy the store again, or pack anew."
            )
        self.check_same()

    def check_same(self) -> None:
        """See that this still is the store that it was."""
        try:
            is_same = read_manifest(self.path).digest == self._manifest.digest
        except StoreError:
            is_same = False
        if not is_same:
            raise PackError(f"{self.path} was replaced or removed while it was copied. Do it again.")

    def pixels(self, rows: Ints, into: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Read the bytes of rows, masks behind them included; raises PackError where they are not what was packed."""
        for row in np.unique(rows).tolist():
            if not self._pixels.is_whole(row):
                block = self._pixels.block(row)
                raise PackError(
                    f"{self.path} is damaged: rows {block.start} to {block.stop - 1} are not what was packed."
                    f" Leave them out (pack subset --rows), or pack anew; pack verify {self.path} names all there are."
                )
        return read_spans(self.path / PIXELS, self._offsets[rows], self._bytes[rows], into)

    def add_to(self, block: RaggedBlock, rows: Ints, data: npt.NDArray[np.uint8]) -> None:
        """Count rows with sizes of their own into a block's sums, their masks left out."""
        channels, begin = self._manifest.channels, 0
        for row in rows.tolist():
            size_bytes = int(self._bytes[row])
            pixel_bytes = size_bytes * channels // (channels + self._manifest.has_own_masks)
            block.add(data[begin : begin + pixel_bytes], int(self._heights[row]))
            begin += size_bytes

    def values(self, name: str, rows: Ints, spec: TensorSpec) -> npt.NDArray[Any]:
        """Return a tensor's rows, [n, *row_shape] as spec wants them: classes are numbered anew, and boxes given more room."""
        own = self._manifest.tensors[name]
        sizes = np.full(len(rows), own.row_bytes)
        data = read_spans(self.path / self._paths[name], rows * own.row_bytes, sizes)
        values = data.view(np.dtype(own.dtype).newbyteorder("<")).reshape(len(rows), *own.row_shape)
        if name in self._share.numbers:
            values = _renumbered(values, self._share.numbers[name], spec)
        if values.shape[1:] != spec.row_shape:  # boxes: free places hold zeros, and target -1
            wider = np.full((len(rows), *spec.row_shape), -1 if name.endswith("targets") else 0, values.dtype)
            wider[:, : own.row_shape[0]] = values
            values = wider
        return values

    def lines(self, rows: Ints, spec: TensorSpec) -> bytes:
        """Return the lines of rows in samples.jsonl; spec is that of the targets to be."""
        begins = self._begins[rows]
        found = read_spans(self.path / SAMPLES, begins, self._begins[rows + 1] - begins).tobytes()
        if "targets" not in self._share.numbers:
            return found
        lines = [json.loads(line) for line in found.splitlines()]
        targets = np.array([line["target"] for line in lines])
        new = _renumbered(targets, self._share.numbers["targets"], spec).tolist()
        moved = (encode_line(line | {"target": target}) for line, target in zip(lines, new, strict=True))
        return "".join(moved).encode("ascii")

    def close(self) -> None:
        """Let the file go."""
        self._pixels.close()


def _renumbered(values: npt.NDArray[Any], numbers: tuple[int, ...], spec: TensorSpec) -> npt.NDArray[Any]:
    """Give classes their new numbers: class indices, where -1 stays, or the columns of a multi-hot target."""
    if spec.dtype == "uint8":
        wider = np.zeros((len(values), *spec.row_shape), np.uint8)
        wider[:, numbers] = values
        return wider
    return np.append(np.array(numbers, np.int64), -1)[values]
