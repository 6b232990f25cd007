"""One store made of rows of others: pixels by threads, each run at its offset; what a store says of each row follows in order.

Rows are cut into the blocks that a pack of as many would have. Knows nothing of the folder it writes to but that it is empty.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import itertools
import os
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.checksums import crc32_combine
from packer.inputs.sample_notes import SampleNotes
from packer.operations.copying.row_sources import CopySource, ReadBuffer, Selection, check_same
from packer.pixels.layout import expected_share
from packer.progress import notify
from packer.report import Progress
from packer.store.blocks import block_inputs
from packer.store.disk_space import allocate, check_room
from packer.store.files import sync_names, write_at
from packer.store.journal import CommitLog
from packer.store.row_files import DigestedFile, channel_statistics, joint_mask_values
from packer.store.seal import commit_manifest, set_size
from packer.store.sealed.checked_rows import Ints
from packer.system import BINARY
from packer.workers.frame_writer import FrameWriter, packed_rows, with_errors
from reader.format.blocks import Block
from reader.format.filesystem import error_path
from reader.format.head import COMPRESSED_ROWS, JPEG_ROWS, READER_FEATURES
from reader.format.manifest import PIXELS, REJECTED, SAMPLES, FileEntry, FurtherTarget, Manifest
from reader.format.tensors import FRAMES_SPEC, TEXTS_FILE, Compression, TensorSpec, reader_features_of
from reader.system import available_cpus

_MOST_THREADS = 4
# Blocks that are read beside the one whose lines are written.
_AHEAD = 2
# What an error says to do once it is fixed.
AGAIN = "do it again"
# Tensors that are not copied: pixels are written at their offset, the others follow from it.
_OFFSETS = ("pixels", "offsets", "mask_offsets", "frames")


@dataclass(frozen=True)
class CopyPlan:
    """A store to be: rows of others, one selection after the other, which are alike in all that is not given here."""

    selections: list[Selection]
    classes: tuple[str, ...]
    target_count: int | None
    extras: Mapping[str, TensorSpec]
    further_targets: Mapping[str, FurtherTarget]
    options: Mapping[str, object]
    decoders: Mapping[str, object]
    labels: Mapping[str, object]
    # how the rows are kept, "" (raw), "zstd" or "jpeg:95"; frames of stores that have this form are copied
    form: str
    texts: tuple[str, ...] = ()
    # whether this one lists what the stores rejected too
    has_rejects: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Copied:
    """What is known of pixels that were written: sums is [2, C], of values and of their squares.

    frames: the rows packed, where they are still to be written; crc32 is that of the pixels in any case. errors: what each row
    has lost by that, where it has.
    """

    crc32: int
    sums: npt.NDArray[Any]
    rows: int = 0
    frames: tuple[bytes, ...] = ()
    errors: tuple[int, ...] = ()


class StoreCopy:
    """One store being made; where each row goes to is known from the start."""

    def __init__(
        self,
        plan: CopyPlan,
        sources: list[CopySource],
        log: CommitLog,
    ) -> None:
        self._plan, self._log, self._out, self._check = plan, log, log.store, log.check
        self._like = plan.selections[0].manifest
        self._noted = SampleNotes()
        self._sources, self._mine = sources, threading.local()
        self._bounds = [0, *itertools.accumulate(len(selection.rows) for selection in plan.selections)]
        self._rows = self._bounds[-1]
        self._ends = np.cumsum(np.concatenate([source.sizes for source in self._sources]))
        used = int(self._ends[-1])
        self._pixel_bytes = self._like.kind.file_bytes(used)
        # what the file of rows takes, of frames that are still to be packed an estimate
        self._file_bytes = self._pixel_bytes
        if plan.form:
            are_packed = all(source.form == plan.form for source in sources)
            stored = sum(source.stored_bytes for source in sources)
            stored = stored if are_packed else int(used * expected_share(plan.form))
            self._file_bytes = self._like.kind.file_bytes(stored, plan.form)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The bytes that each file will have, by its name below OUT; of text an estimate."""
        sizes = {path: self._rows * spec.row_bytes for path, spec in self._tensors.values()}
        lines = (
            selection.manifest.files[SAMPLES].size_bytes * len(selection.rows) for selection in self._plan.selections
        )
        rows = (selection.manifest.rows for selection in self._plan.selections)
        if self._plan.texts:
            sizes[TEXTS_FILE] = sum(source.text_bytes for source in self._sources)
        sizes[SAMPLES] = sum(of_chosen // count for of_chosen, count in zip(lines, rows, strict=True))
        return sizes | {PIXELS: self._file_bytes}

    def run(self) -> Manifest:
        """Write all files, then the manifest."""
        for source in self._sources:
            source.check()
        self._check()
        for path, _ in self._tensors.values():
            (self._out / path).parent.mkdir(parents=True, exist_ok=True)
        pixels = self._out / PIXELS
        with error_path(pixels):
            os.close(os.open(pixels, os.O_WRONLY | os.O_CREAT, 0o666))
        sync_names(self._out)
        check_room(self._out, self.sizes, AGAIN)
        allocate(pixels, self._file_bytes, lambda done: notify(Progress("allocate", done, self._file_bytes)))
        self._check()
        with contextlib.ExitStack() as held:
            names = [path for path, _ in self._tensors.values()] + [SAMPLES, REJECTED]
            names += [TEXTS_FILE] if self._plan.texts else []
            files = {}
            for name in names:
                files[name] = DigestedFile(self._out / name)
                held.callback(files[name].release)
            writer = FrameWriter(pixels) if self._plan.form else None
            if writer is not None:
                held.callback(writer.close)
            return self._written(pixels, files, writer)

    def _written(self, pixels: Path, files: dict[str, DigestedFile], writer: FrameWriter | None) -> Manifest:
        blocks: list[Block] = []
        crc32 = pixel_count = 0
        sums = np.zeros((2, self._like.channels), object)
        for start, stop, found in self._blocks(pixels, writer):
            block = Block(start, stop, found.crc32, files[SAMPLES].size_bytes, self._span_bytes(start, stop))
            values = self._values(start, stop)
            if writer is not None:
                of_frames, size_bytes, values["frames"] = writer.take()
                block = replace(block, crc32=of_frames, size_bytes=size_bytes, pixels_crc32=found.crc32)
            blocks.append(block)
            crc32 = crc32_combine(crc32, block.crc32, block.size_bytes)
            if self._plan.texts:
                values |= self._add_texts(start, stop, files[TEXTS_FILE])
            sums += found.sums
            pixel_count += self._pixel_count(values, stop - start)
            for name, (path, spec) in self._tensors.items():
                assert (values[name].dtype, values[name].shape[1:]) == (np.dtype(spec.dtype), spec.row_shape), name
                files[path].write(values[name].astype(values[name].dtype.newbyteorder("<"), copy=False).tobytes())
            lines = with_errors(self._lines(start, stop), found.errors)
            self._noted.add(lines.decode("ascii"))
            files[SAMPLES].write(lines)
            self._check()
            notify(Progress("copy", stop, self._rows))
        for source in self._sources if self._plan.has_rejects else ():
            with error_path(source.path / REJECTED):
                files[REJECTED].write((source.path / REJECTED).read_bytes())
        for source in self._sources:
            check_same(source.path, source.manifest)
        used = self._offset(self._rows)
        if writer is not None:
            writer.close()
            used = writer.size_bytes
        filling = bytes(self._like.kind.file_bytes(used, self._plan.form) - used)
        self._check()
        set_size(pixels, used, used + len(filling))
        crc32 = crc32_combine(crc32, zlib.crc32(filling), len(filling))
        entries = {name: file.close() for name, file in files.items()}
        entries[PIXELS] = FileEntry(used + len(filling), f"crc32:{crc32:08x}")
        mean, std = channel_statistics(pixel_count, *sums.tolist())
        return commit_manifest(self._log, self._fields(mean, std), entries, blocks)

    def _fields(self, mean: list[float], std: list[float]) -> dict[str, object]:
        like, plan = self._like, self._plan
        rejected = sum(selection.manifest.rejected for selection in plan.selections) if plan.has_rejects else 0
        features = {*like.reader_features} - {COMPRESSED_ROWS, JPEG_ROWS} | {*reader_features_of(plan.form)}
        height, width = np.max([source.largest for source in self._sources], axis=0).tolist()
        return {
            "rows": self._rows,
            "height": height,
            "width": width,
            "channels": like.channels,
            "target_kind": like.target_kind,
            "target_count": plan.target_count,
            "has_content": like.has_content,
            "extras": plan.extras,
            "classes": plan.classes,
            "mean": tuple(mean),
            "std": tuple(std),
            "inputs": self._rows + rejected,
            "rejected": rejected,
            "options": plan.options,
            "decoders": plan.decoders,
            "further_targets": plan.further_targets,
            "labels": plan.labels,
            # of some rows of a store they may be fewer: FORMAT.md allows it
            "mask_values": joint_mask_values(selection.manifest.mask_values for selection in plan.selections),
            "reader_features": tuple(name for name in READER_FEATURES if name in features),
            "texts": plan.texts,
            "compression": Compression.of(plan.form, self._offset(self._rows), self._noted.squared_error),
        }

    # -- pixels

    def _blocks(self, pixels: Path, writer: FrameWriter | None) -> Iterator[tuple[int, int, _Copied]]:
        """Write all pixels; yields each block's rows [start, stop) and what is known of them, in order."""
        cut = block_inputs(self._rows, max(1, self._pixel_bytes // self._rows))
        none = _Copied(0, np.zeros((2, self._like.channels), object))
        start, stop, found = 0, 0, none
        for piece in self._pieces(pixels, cut):
            size_bytes = self._span_bytes(stop, stop + piece.rows)
            if writer is not None:
                writer.add(piece.frames)
            crc32 = crc32_combine(found.crc32, piece.crc32, size_bytes)
            found = _Copied(crc32, found.sums + piece.sums, errors=found.errors + piece.errors)
            stop += piece.rows
            if stop % cut == 0 or stop == self._rows:
                yield start, stop, found
                start, found = stop, none

    def _pieces(self, pixels: Path, cut: int) -> Iterator[_Copied]:
        """Write runs of rows, several at once; yields what is known of each piece of a block, in order."""
        waiting: collections.deque[concurrent.futures.Future[list[_Copied]]] = collections.deque()
        # without pwrite, the position in the file is shared by all threads
        threads = min(_MOST_THREADS, available_cpus()) if hasattr(os, "pwrite") else 1
        with error_path(pixels):
            descriptor = os.open(pixels, os.O_WRONLY | BINARY)
        pool = concurrent.futures.ThreadPoolExecutor(threads)
        try:
            for source, base_row in zip(self._sources, self._bounds, strict=False):
                for first, runs in source.tasks():
                    waiting.append(pool.submit(self._write, descriptor, source, base_row, first, runs, cut))
                    yield from _results(waiting, threads + _AHEAD)
                yield from _results(waiting, 0)
                source.close()  # however many stores there are, one is open
        finally:
            pool.shutdown(cancel_futures=True)
            with error_path(pixels):
                os.close(descriptor)

    def _write(
        self, descriptor: int, source: CopySource, base_row: int, first: int, runs: list[int], cut: int
    ) -> list[_Copied]:
        """Copy runs of rows from a source's first-th on, whose row 0 goes to `base_row`; returns what is known, by block."""
        if not hasattr(self._mine, "scratch"):
            self._mine.scratch = ReadBuffer(), ReadBuffer()
        pieces: list[_Copied] = []
        for last in runs:
            data, number = source.read(source.rows[first:last], *self._mine.scratch)
            crc32, done = 0, 0
            for start, stop in _cut(base_row + first, base_row + last, cut):
                rows = source.rows[start - base_row : stop - base_row]
                size_bytes = source.size_bytes(rows)
                part = data[done : done + size_bytes]
                part_crc32 = zlib.crc32(part.data)
                pieces.append(self._piece(descriptor, source, rows, part, part_crc32, start))
                crc32, done = crc32_combine(crc32, part_crc32, size_bytes), done + size_bytes
            if number is not None:
                source.compare(number, crc32)
            first = last
        return pieces

    def _piece(
        self,
        descriptor: int,
        source: CopySource,
        rows: Ints,
        data: npt.NDArray[np.uint8],
        crc32: int,
        start: int,
    ) -> _Copied:
        """Write rows of a source whose bytes there are data; or pack them, where they will be written one after the other."""
        form, pixels = self._plan.form, data
        packed: tuple[bytes, ...] = ()
        errors: tuple[int, ...] = ()
        if source.form:
            pixels, packed = source.unpacked(rows, data)
        if form and form != source.form:
            sizes, sides = source.row_bytes(rows), source.sides(rows)
            packed, pixels, errors = packed_rows(form, self._like.channels, pixels, sizes, sides)
        if source.form or errors:
            crc32 = zlib.crc32(pixels.data)
        if not form:
            packed = ()
            with error_path(self._out / PIXELS):
                write_at(descriptor, pixels.data, self._offset(start))
        return _Copied(crc32, np.array(source.sums(rows, pixels), object), len(rows), packed, errors)

    # -- what a store says of each row

    @cached_property
    def _tensors(self) -> dict[str, tuple[str, TensorSpec]]:
        """Return path and spec of each tensor beside the pixels."""
        specs = {name: spec for name, spec in self._like.tensors.items() if name not in ("pixels", "frames")}
        if self._plan.form:
            specs["frames"] = FRAMES_SPEC
        if self._plan.target_count is not None:
            specs["targets"] = TensorSpec(specs["targets"].dtype, (self._plan.target_count,))
        specs |= {f"extras/{name}": spec for name, spec in self._plan.extras.items()}
        return {name: (f"_tensordict/{name}.memmap", spec) for name, spec in specs.items()}

    def _values(self, start: int, stop: int) -> dict[str, npt.NDArray[Any]]:
        """Return every tensor of rows [start, stop), as the file has it."""
        values = {}
        for name, (_, spec) in self._tensors.items():
            if name not in _OFFSETS and name.removeprefix("extras/") not in self._plan.texts:
                pieces = [source.values(name, rows, spec) for source, rows in self._of(start, stop)]
                values[name] = np.concatenate(pieces)
        if "offsets" in self._tensors:
            shapes = values["shapes"].astype(np.int64)
            values["offsets"] = self._ends[start:stop] - self._sizes(start, stop)
            values["mask_offsets"] = values["offsets"] + shapes.prod(axis=1)
        return values

    def _add_texts(self, start: int, stop: int, file: DigestedFile) -> dict[str, npt.NDArray[Any]]:
        """Append the texts of rows [start, stop); returns where each column's are, by the name of its tensor."""
        sizes = []
        for source, rows in self._of(start, stop):
            data, lengths = source.texts(rows, self._plan.texts)
            ends = file.size_bytes + np.cumsum(lengths).reshape(lengths.shape)
            sizes.append(np.stack([ends - lengths, ends], axis=-1))
            file.write(data)
        spans = np.concatenate(sizes)
        return {f"extras/{name}": spans[:, n] for n, name in enumerate(self._plan.texts)}

    def _pixel_count(self, values: dict[str, npt.NDArray[Any]], rows: int) -> int:
        """Count the pixels that are image."""
        if "shapes" in values:
            return int(values["shapes"][:, :2].astype(np.int64).prod(axis=1).sum())
        if "content" in values:
            y0, x0, y1, x1 = values["content"].astype(np.int64).T
            return int(((y1 - y0) * (x1 - x0)).sum())
        return rows * self._like.height * self._like.width

    def _lines(self, start: int, stop: int) -> bytes:
        _, spec = self._tensors["targets"]
        return b"".join(source.lines(rows, spec) for source, rows in self._of(start, stop))

    # -- offsets

    def _of(self, start: int, stop: int) -> Iterator[tuple[CopySource, Ints]]:
        """Yield the sources of rows [start, stop) and which of their rows these are."""
        for source, first, last in zip(self._sources, self._bounds, self._bounds[1:], strict=False):
            if first < stop and start < last:
                yield source, source.rows[max(start, first) - first : min(stop, last) - first]

    def _offset(self, row: int) -> int:
        return int(self._ends[row - 1]) if row else 0

    def _span_bytes(self, start: int, stop: int) -> int:
        return self._offset(stop) - self._offset(start)

    def _sizes(self, start: int, stop: int) -> Ints:
        return np.diff(self._ends[start:stop], prepend=self._offset(start))


def _results(waiting: collections.deque[concurrent.futures.Future[list[_Copied]]], most: int) -> Iterator[_Copied]:
    """Yield what the first of those that wait have found, until no more than so many wait."""
    while len(waiting) > most:
        yield from waiting.popleft().result()


def _cut(start: int, stop: int, cut: int) -> Iterator[tuple[int, int]]:
    """Cut [start, stop) at multiples of cut: 5, 12, 4 -> (5, 8), (8, 12)."""
    while start < stop:
        end = min(stop, start - start % cut + cut)
        yield start, end
        start = end
