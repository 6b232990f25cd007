"""The per-row files of a store, written while the journal is read, and the sums over all rows.

Knows how a block is written to each of them, except pixels and masks, which workers write.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from packer.checksums import crc32_combine
from packer.inputs.samples import Column, Inputs
from packer.pixels.layout import RowLayout
from packer.sample_lines import Reject, Sample
from packer.sources.base import NO_STATE, State
from packer.store.tasks import RejectedInput, Result
from reader.format.blocks import Block
from reader.format.filesystem import error_path
from reader.format.manifest import PIXELS, REJECTED, SAMPLES, FileEntry, TensorSpec

TENSORS = "_tensordict"
TARGETS = f"{TENSORS}/targets.memmap"
CONTENT = f"{TENSORS}/content.memmap"
OFFSETS = f"{TENSORS}/offsets.memmap"
SHAPES = f"{TENSORS}/shapes.memmap"
MASK_OFFSETS = f"{TENSORS}/mask_offsets.memmap"
FRAMES = f"{TENSORS}/frames.memmap"
EXTRAS = f"{TENSORS}/extras"
MASKS = f"{EXTRAS}/masks.memmap"


class RowFiles:
    """Writes the per-row files while the journal is read, and keeps the sums over all rows."""

    def __init__(self, out: Path, layout: RowLayout, inputs: Inputs) -> None:
        self._layout, self._all = layout, inputs
        self.rows = self.inputs = self.rejected = self.pixel_count = self.crc32 = 0
        # bytes of the rows in their file, and of their pixels: equal for raw rows
        self.pixel_bytes = self.unpacked_bytes = 0
        self.height, self.width = layout.size or (0, 0)
        # of a dataset without class names
        self.class_count = 0
        # see `add_sources`
        self.sources = 0
        self.sums = [0] * layout.channel_count
        self.square_sums = [0] * layout.channel_count
        self.blocks: list[Block] = []
        # from lossy compression, over all rows
        self.squared_error = 0
        # the different sets of mask values among all blocks with rows
        self._mask_values: set[tuple[int, ...]] = set()
        self._columns = {TARGETS: inputs.targets}
        self._columns |= {f"{EXTRAS}/{name}.memmap": column for name, column in inputs.extras.items()}
        names = [SAMPLES, REJECTED, *self._columns]
        names += [f"{TENSORS}/{name}.memmap" for name in layout.tensor_bytes]
        names += [f"{EXTRAS}/{name}.memmap" for name in (inputs.boxes.specs() if inputs.boxes else ())]
        self._files = {name: DigestedFile(out / name) for name in names}

    def add(self, result: Result) -> None:
        """Append one block."""
        files, unpacked_bytes = self._files, self._layout.size_bytes(result.rows, result.shapes)
        if result.rows:
            offset, stop = files[SAMPLES].size_bytes, self.rows + result.rows
            self.blocks.append(Block(self.rows, stop, result.crc32, offset, result.size_bytes))
            self.crc32 = crc32_combine(self.crc32, result.crc32, result.size_bytes)
            self._mask_values.add(tuple(result.mask_values))
        lines = "".join(result.samples)
        if self._layout.quality:
            self.squared_error += sum(Sample.decode(line).decoding.get("squared_error", 0) for line in result.samples)
        files[SAMPLES].write(lines.encode("ascii"))
        files[REJECTED].write("".join(map(self._reject_line, result.rejects)).encode("ascii"))
        paths = self._all.paths[self.inputs : self.inputs + result.inputs]
        masks = result.mask_sources or [NO_STATE] * len(result.sources)
        self.sources = add_sources(self.sources, zip(paths, result.sources, masks, strict=True))
        self._add_tensors(result)
        self.rows += result.rows
        self.pixel_bytes += result.size_bytes
        self.unpacked_bytes += unpacked_bytes
        self.inputs += result.inputs
        self.rejected += len(result.rejects)
        self.pixel_count += result.pixel_count
        self.sums = [a + b for a, b in zip(self.sums, result.sums, strict=True)]
        self.square_sums = [a + b for a, b in zip(self.square_sums, result.square_sums, strict=True)]

    def _add_tensors(self, result: Result) -> None:
        """Append a block's rows to all tensors except the pixels."""
        files, rows = self._files, self._accepted(result)
        for name, column in self._columns.items():
            is_read = name == TARGETS and self._all.identity
            chosen = self._read_targets(result, column) if is_read else column.chosen(rows)
            files[name].write(chosen.encoded())
        if self._all.boxes:
            for name, data in self._all.boxes.in_rows(rows, result.samples, self._layout.geometry).items():
                files[f"{EXTRAS}/{name}.memmap"].write(data)
        if CONTENT in files:
            files[CONTENT].write(Column.from_rows("int32", result.content, 4).encoded())
        if SHAPES in files:
            self._add_shapes(result)
        if FRAMES in files:
            ends = list(itertools.accumulate(result.frames, initial=self.pixel_bytes))
            files[FRAMES].write(Column.from_rows("int64", itertools.pairwise(ends), 2).encoded())

    def _add_shapes(self, result: Result) -> None:
        """Append the offsets of a block's rows and masks, and their height, width and channels."""
        channels = self._layout.channel_count
        areas = [h * w for h, w in result.shapes]
        sizes = (area * self._layout.pixel_bytes for area in areas)
        begins = list(itertools.accumulate(sizes, initial=self.unpacked_bytes))[:-1]
        self._files[OFFSETS].write(Column.from_rows("int64", begins).encoded())
        if MASK_OFFSETS in self._files:
            behind = (begin + area * channels for begin, area in zip(begins, areas, strict=True))
            self._files[MASK_OFFSETS].write(Column.from_rows("int64", behind).encoded())
        self._files[SHAPES].write(Column.from_rows("int32", ((h, w, channels) for h, w in result.shapes), 3).encoded())
        self.height, self.width = map(max, zip((self.height, self.width), *result.shapes, strict=True))

    def _accepted(self, result: Result) -> Sequence[int]:
        """Return which inputs of a block became rows."""
        inputs = range(self.inputs, self.inputs + result.inputs)
        if not result.rejects:
            return inputs
        rejected = {reject.input for reject in result.rejects}
        return [index for index in inputs if index not in rejected]

    def _reject_line(self, reject: RejectedInput) -> str:
        return Reject(reject.path, reject.reason, self._all.line(reject.input)).encode()

    def _read_targets(self, result: Result, column: Column) -> Column:
        """Return the targets of a dataset's items, which are only in the lines of samples.jsonl."""
        targets = [Sample.decode(line).target for line in result.samples]
        if column.count is None:
            self.class_count = max([self.class_count - 1, *targets]) + 1
        else:
            self.class_count = column.count
        return Column.from_rows(column.dtype, targets, column.count)

    def numbered_classes(self) -> tuple[str, ...]:
        """Name the classes of a dataset without class names."""
        return () if self._all.target_kind == "regression" else tuple(map(str, range(self.class_count)))

    @property
    def mask_values(self) -> tuple[int, ...]:
        """The values of the masks."""
        return joint_mask_values(self._mask_values)

    def release(self) -> None:
        """Close all files without syncing them: they are closed already, or no longer needed."""
        for file in self._files.values():
            file.release()

    def close(self) -> dict[str, FileEntry]:
        """Sync all files; returns their entries, the pixels' among them."""
        entries = {name: file.close() for name, file in self._files.items()}
        filling = self._layout.file_bytes(self.pixel_bytes) - self.pixel_bytes
        crc32 = crc32_combine(self.crc32, zlib.crc32(bytes(filling)), filling)
        return entries | {PIXELS: FileEntry(self.pixel_bytes + filling, f"crc32:{crc32:08x}")}


def row_names(layout: RowLayout) -> list[str]:
    """Name the files that workers write rows to."""
    return [PIXELS, MASKS] if layout.has_mask_file else [PIXELS]


def add_sources(digest: int, sources: Iterable[tuple[str, State, State]]) -> int:
    """Add to a digest, below 2**256, the path of each source, its state and that of its mask.

    A sum: the digests of parts add up to that of all. Labels record it as 64 hex digits.

    Example:
        >>> state = (9, 1, 2)
        >>> swapped = [[("a", state, state), ("b", (9, 1, 3), state)], [("a", (9, 1, 3), state), ("b", state, state)]]
        >>> len({add_sources(0, one) for one in swapped})
        2
    """
    for path, source, mask in sources:
        # a journal has lists, the file system gives tuples
        numbers = ",".join(map(str, (*source, *mask)))
        known = hashlib.sha256(f"{path}\0{numbers}".encode("utf-8", "surrogatepass"))
        digest += int.from_bytes(known.digest(), "big")
    return digest % (1 << 256)


def extra_specs(inputs: Inputs, layout: RowLayout) -> dict[str, TensorSpec]:
    """Return dtype and shape of the store's extras: further columns, boxes, and masks of the rows' size."""
    specs = {name: TensorSpec(column.dtype, column.row_shape) for name, column in inputs.extras.items()}
    if inputs.boxes:
        specs |= {name: TensorSpec(*spec) for name, spec in inputs.boxes.specs().items()}
    if layout.has_mask_file:
        specs["masks"] = TensorSpec("uint8", (layout.geometry.height, layout.geometry.width))
    return specs


def joint_mask_values(parts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Join the mask values of several blocks or stores; () if one has not recorded them.

    Example:
        >>> joint_mask_values([(0, 3), (0, 1)]), joint_mask_values([(0, 3), ()])
        ((0, 1, 3), ())
    """
    parts = [*parts]
    return tuple(sorted(set().union(*parts))) if all(parts) else ()


def channel_statistics(count: int, sums: Iterable[int], square_sums: Iterable[int]) -> tuple[list[float], list[float]]:
    """Return mean and population std per channel, scaled to [0, 1], from exact integer sums of uint8 values.

    Example:
        >>> channel_statistics(2, [255], [255 * 255])
        ([0.5], [0.5])
    """
    mean, std = [], []
    for total, squares in zip(sums, square_sums, strict=True):
        mean.append(total / (255 * count))
        std.append(math.sqrt(count * squares - total * total) / (255 * count))
    return mean, std


class DigestedFile:
    """A file that knows its size and sha256 by the time it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 (closed by `close`, in order)
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        """Append; an error of the disk names the file."""
        with error_path(self._path):
            self._file.write(data)
        self._digest.update(data)
        self.size_bytes += len(data)

    def release(self) -> None:
        """Close the file without syncing it when it is not needed; errors were reported already."""
        with contextlib.suppress(OSError):
            self._file.close()

    def close(self) -> FileEntry:
        """Sync and close; returns the file's entry of the manifest."""
        with error_path(self._path), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        return FileEntry(self.size_bytes, f"sha256:{self._digest.hexdigest()}")
