"""Rows of one store on their way into another: their pixels, checked, and what the store says of each, its classes renumbered.

Reads and checks; writes nothing.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.errors import PackError
from packer.operations.row_checks import wrong_rows
from packer.pixels.statistics import ChannelSums, RaggedBlock
from packer.store.sealed.checked_rows import CheckedPixels, Ints, damage, line_spans, read_spans
from packer.store.sealed.ragged_rows import FrameRows, row_extents, tensor_rows
from packer.store.state import check_finished
from reader.format.blocks import read_blocks
from reader.format.errors import StoreError
from reader.format.head import FORMAT_VERSION
from reader.format.manifest import PIXELS, SAMPLES, Manifest, read_manifest
from reader.format.row_values import RowValues
from reader.format.samples import Sample
from reader.format.tensors import TEXT_SPEC, TEXTS_FILE, TensorSpec
from reader.tuning import tuning

_REMEDY = "Copy the store again, or pack again."


@dataclass(frozen=True)
class Selection:
    """Rows of a store, int64[n], in the order in which they are taken.

    numbers: tensor -> the new number of each class; tensors whose numbers stay are left out.
    """

    path: Path
    manifest: Manifest
    rows: Ints
    numbers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def open_for_copy(store: str | os.PathLike[str]) -> tuple[Path, Manifest]:
    """Check the structure of a store whose rows will be copied.

    Raises:
        PackError: it is none, or a newer pixpack's.
    """
    try:
        path, manifest = Path(store), check_finished(store)
    except StoreError as e:
        raise PackError(str(e)) from None
    if manifest.version > FORMAT_VERSION or manifest.writer_features:
        raise PackError(
            f"{path} has format {'.'.join(map(str, manifest.version))}, of which a copy by this pixpack might lose something."
            " Use a newer one."
        )
    return path, manifest


def class_targets(path: Path, manifest: Manifest) -> Ints:
    """Return the class of each row, int64[N], -1 where it has none; compared with its digest.

    Raises:
        PackError: it cannot be read, or is not what was packed.
    """
    name = manifest.tensor_paths()["targets"]
    try:
        what, targets = damage(path, manifest, [name]), np.fromfile(path / name, "<i8")
    except OSError as e:
        raise PackError(f"{path / name} cannot be read: {e.strerror}.") from None
    if what:
        check_same(path, manifest)
        raise PackError(f"{what} {_REMEDY}")
    try:
        RowValues(manifest).check_targets(str(path), 0, targets)
    except StoreError as e:
        raise PackError(str(e)) from None
    return targets


def check_same(path: Path, manifest: Manifest) -> None:
    """See that a store still is the one that it was.

    Raises:
        PackError: it is another, or gone.
        OSError: that cannot be seen.
    """
    try:
        is_same = read_manifest(path).digest == manifest.digest
    except StoreError:
        is_same = False
    if not is_same:
        raise PackError(f"{path} was replaced or removed while it was copied. Do it again.")


class CopySource:
    """A store whose rows are copied, a run at a time: rows in their order that are all in one of its blocks.

    Holds what the store says of the chosen rows, and of no others.
    """

    def __init__(self, selection: Selection) -> None:
        self.path, self.rows, self._selection = selection.path, selection.rows, selection
        manifest = self.manifest = selection.manifest
        # the chosen rows, each once and rising: what is known of them stands in this order
        self._chosen = np.unique(selection.rows)
        self._offsets, self._bytes, self._sides = row_extents(selection.path, manifest, self._chosen)
        common = manifest.kind.common_sides(manifest.largest)
        self.largest = common or tuple(self._sides.max(axis=0).tolist())
        # of the rows unpacked
        self.sizes: Ints = self._bytes[self._at(selection.rows)]
        # how the rows are kept: "", raw, "zstd" or "jpeg:95"
        self.form = manifest.form
        if self.form:
            self._frames = FrameRows(selection.path, manifest)
            spans = tensor_rows(selection.path, manifest, "frames", self._chosen)
            self._offsets, self._bytes = spans[:, 0], spans[:, 1] - spans[:, 0]

    def check(self) -> None:
        """Compare the small files with their digests, and what they say of the rows, and of their blocks, with each other."""
        check_same(self.path, self.manifest)
        if what := damage(self.path, self.manifest, self.manifest.files.keys() - {PIXELS}):
            raise PackError(f"{what} {_REMEDY}")
        blocks = read_blocks(self.path)
        numbers = np.unique(np.searchsorted([block.start for block in blocks], self._chosen, side="right") - 1)
        of_chosen = None if len(numbers) == len(blocks) else numbers
        if wrong := next(wrong_rows(self.path, self.manifest, blocks, of_chosen), None):
            where = f", row {wrong.rows[0]}" if wrong.rows else ""
            raise PackError(
                f"{self.path}/{wrong.file}{where}: {wrong.what}. pack verify {self.path} names all there is."
            )

    def runs(self) -> list[int]:
        """Return where among the chosen rows each run ends; none has more bytes than its block, however often rows come in it."""
        numbers = self._pixels.numbers(self.rows)
        ends, sums = [0], np.cumsum(self._bytes[self._at(self.rows)])
        for end in [*(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(self.rows)]:
            most = self._pixels.blocks[numbers[end - 1]].size_bytes
            while int(sums[end - 1]) - (done := int(sums[ends[-1] - 1]) if ends[-1] else 0) > most:
                ends.append(int(np.searchsorted(sums, done + most, side="right")))
            ends.append(end)
        return ends[1:]

    def tasks(self) -> Iterator[tuple[int, list[int]]]:
        """Yield runs of the rows that one thread reads, none so small that handing it over costs more: (begin, ends)."""
        begin, ends, size_bytes, last, least = 0, [], 0, 0, tuning().copied_run_bytes
        sizes = np.concatenate([[0], np.cumsum(self.sizes)])
        for end in self.runs():
            ends.append(end)
            size_bytes += int(sizes[end] - sizes[last])
            last = end
            if size_bytes >= least:
                yield begin, ends
                begin, ends, size_bytes = end, [], 0
        if ends:
            yield begin, ends

    def read(
        self, rows: Ints, block_room: ReadBuffer, rows_room: ReadBuffer
    ) -> tuple[npt.NDArray[np.uint8], int | None]:
        """Read a run, masks behind its rows included, as uint8[n] in either scratch; and its block's number, if it is all of it.

        A complete block is not compared with its checksum yet: see `compare`. Of another the bytes are checked.

        Raises:
            PackError: they are not what was packed.
        """
        number = int(self._pixels.numbers(rows[:1])[0])
        block, begin = self._pixels.blocks[number], self._pixels.begins[number]
        at = self._at(rows)
        begins, sizes = self._offsets[at] - begin, self._bytes[at]
        total = int(sizes.sum())
        if self._pixels.is_known(number) and 2 * total < block.size_bytes:
            data = rows_room.room(total)
            ends = np.cumsum(sizes)
            for first, start, stop in zip(begins.tolist(), (ends - sizes).tolist(), ends.tolist(), strict=True):
                self._pixels.read_into(begin + first, data[start:stop])
            return data, None
        data = block_room.room(block.size_bytes)
        self._pixels.read_into(begin, data)
        is_together = bool((begins[1:] == begins[:-1] + sizes[:-1]).all())
        if is_together and total == len(data):
            return data, number
        self.compare(number, zlib.crc32(data.data))
        if is_together:
            return data[int(begins[0]) : int(begins[0]) + total], None
        pieces = [data[first : first + size] for first, size in zip(begins.tolist(), sizes.tolist(), strict=True)]
        return np.concatenate(pieces, out=rows_room.room(total)), None

    def compare(self, number: int, crc32: int) -> None:
        """Compare a block's checksum; raises PackError."""
        if not self._pixels.compare(number, crc32):
            block = self._pixels.blocks[number]
            last = block.stop - 1
            rows = f"row {last} is" if block.start == last else f"rows {block.start} to {last} are"
            raise PackError(
                f"{self.path} is damaged: {rows} not what was packed."
                f" Leave them out (pack subset --rows), or pack again; pack verify {self.path} names all there are."
            )

    @property
    def stored_bytes(self) -> int:
        """Bytes that the chosen rows have in the file."""
        return self.size_bytes(self.rows)

    def size_bytes(self, rows: Ints) -> int:
        """Return the bytes that rows have in the file."""
        return int(self._bytes[self._at(rows)].sum())

    def unpacked(self, rows: Ints, data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], tuple[bytes, ...]]:
        """Return the pixels of compressed rows whose frames are data, masks behind them included, and the frames one by one.

        Raises:
            PackError: one is damaged.
        """
        ends = np.cumsum(self._bytes[self._at(rows)]).tolist()
        frames = tuple(data[start:stop].tobytes() for start, stop in zip([0, *ends], ends, strict=False))
        try:
            made = [self._frames.unpacked(row, frame) for row, frame in zip(rows.tolist(), frames, strict=True)]
        except StoreError as e:
            raise PackError(str(e)) from None
        return np.concatenate(made), frames

    def sides(self, rows: Ints) -> list[tuple[int, int]]:
        """Return height and width of each row."""
        return [(height, width) for height, width in self._sides[self._at(rows)].tolist()]

    def row_bytes(self, rows: Ints) -> list[int]:
        """Return the bytes of each row, unpacked, with its mask."""
        of_a_pixel = self.manifest.channels + self.manifest.has_own_masks
        return [height * width * of_a_pixel for height, width in self.sides(rows)]

    def sums(self, rows: Ints, data: npt.NDArray[np.uint8]) -> tuple[list[int], list[int]]:
        """Return sums and sums of squares per channel of rows whose pixels are data, masks left out."""
        channels, width = self.manifest.channels, self.manifest.width
        if not self.manifest.has_own_sizes:  # lines of all rows have one length: all at once
            equal = ChannelSums(channels)
            equal.add(data.data, width * channels)
            return equal.take()
        block, begin = RaggedBlock(channels), 0
        for size_bytes, (height, _) in zip(self.row_bytes(rows), self.sides(rows), strict=True):
            pixel_bytes = size_bytes * channels // (channels + self.manifest.has_own_masks)
            block.add(data[begin : begin + pixel_bytes].data, height)
            begin += size_bytes
        return block.take()

    def values(self, name: str, rows: Ints, spec: TensorSpec) -> npt.NDArray[Any]:
        """Return a tensor's rows, [n, *row_shape] as spec wants them: classes are renumbered, and boxes given more room."""
        own, values = self.manifest.tensors[name], tensor_rows(self.path, self.manifest, name, rows)
        if name in self._selection.numbers:
            values = _renumbered(values, self._selection.numbers[name], spec)
        if values.shape[1:] != spec.row_shape:  # boxes: free slots hold zeros, and target -1
            wider = np.full((len(rows), *spec.row_shape), -1 if name.endswith("targets") else 0, values.dtype)
            wider[:, : own.row_shape[0]] = values
            values = wider
        return values

    def texts(self, rows: Ints, columns: Sequence[str]) -> tuple[bytes, Ints]:
        """Return the texts of rows one after the other, of each row all columns, and the bytes of each, int64[n, columns]."""
        spans = np.stack([self.values(f"extras/{name}", rows, TEXT_SPEC) for name in columns], axis=1)
        lengths = spans[..., 1] - spans[..., 0]
        return read_spans(self.path / TEXTS_FILE, spans[..., 0].ravel(), lengths.ravel()).tobytes(), lengths

    @property
    def text_bytes(self) -> int:
        """Bytes that the texts of the chosen rows have."""
        spans = (self.values(f"extras/{name}", self.rows, TEXT_SPEC) for name in self.manifest.texts)
        return sum(int((of_column[:, 1] - of_column[:, 0]).sum()) for of_column in spans)

    def lines(self, rows: Ints, spec: TensorSpec) -> bytes:
        """Return the lines of rows in samples.jsonl; spec is that of the targets to be."""
        spans = self._line_spans[self._at(rows)]
        found = read_spans(self.path / SAMPLES, spans[:, 0], spans[:, 1] - spans[:, 0]).tobytes()
        if "targets" not in self._selection.numbers:
            return found
        samples = [Sample.decode(line) for line in found.splitlines()]
        targets = np.array([sample.target for sample in samples])
        new = _renumbered(targets, self._selection.numbers["targets"], spec).tolist()
        moved = (replace(sample, target=target).encode() for sample, target in zip(samples, new, strict=True))
        return "".join(moved).encode("ascii")

    def close(self) -> None:
        """Let the file of rows go, if it was opened."""
        if "_pixels" in self.__dict__:
            self._pixels.close()

    def _at(self, rows: Ints) -> Ints:
        """Return where chosen rows stand among those that are known."""
        return np.searchsorted(self._chosen, rows)

    @cached_property
    def _line_spans(self) -> Ints:
        return line_spans(self.path, self.manifest, self._pixels.blocks, self._chosen)

    @cached_property
    def _pixels(self) -> CheckedPixels:
        return CheckedPixels(self.path)


class ReadBuffer:
    """Memory that a thread reads into again and again; a fresh array would cost a page fault every 4 KiB."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def room(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return uint8[size_bytes], the same memory each time."""
        if len(self._memory) < size_bytes:
            self._memory = np.empty(size_bytes, np.uint8)
        return self._memory[:size_bytes]


def _renumbered(values: npt.NDArray[Any], numbers: tuple[int, ...], spec: TensorSpec) -> npt.NDArray[Any]:
    """Give classes their new numbers: class indices, where -1 stays, or the columns of a multi-hot target."""
    if spec.dtype == "uint8":
        wider = np.zeros((len(values), *spec.row_shape), np.uint8)
        wider[:, numbers] = values
        return wider
    return np.append(np.array(numbers, np.int64), -1)[values]
