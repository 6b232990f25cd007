"""From a complete journal to a store: write every small file, sync, and commit by the manifest, last.

Reads the journal as a stream, so memory does not grow with the number of rows; targets and extras were known from the list
of inputs, and the journal says which inputs became rows. Everything here can be done again after an
interruption and gives the same bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from packer import journal as journals
from packer.boxes import BoxRows
from packer.checksums import crc32_combine, sha256_file
from packer.durable import sync_folder, write_atomically, write_synced
from packer.inputs import Column, Inputs
from packer.options import CHANNELS
from packer.tasks import Result, encode_line
from packer.worker import Job
from reader.files import naming
from reader.manifest import (
    MANIFEST,
    OWN_MASKS,
    OWN_SIZES,
    PAGE_BYTES,
    PIXELS,
    REJECTED,
    SAMPLES,
    Block,
    FileEntry,
    Manifest,
    TensorSpec,
    encode_manifest,
)
from reader.metadata import metadata_files, metadata_names

TARGETS = "_tensordict/targets.memmap"
CONTENT = "_tensordict/content.memmap"
OFFSETS = "_tensordict/offsets.memmap"
SHAPES = "_tensordict/shapes.memmap"
MASK_OFFSETS = "_tensordict/mask_offsets.memmap"
EXTRAS = "_tensordict/extras"
MASKS = f"{EXTRAS}/masks.memmap"

# What an input's lines take beside its path: 249 and 161 bytes of thumbnails (2026-11-21), and room for long numbers, EXIF
# and warnings.
_JOURNAL_BYTES, _SAMPLE_BYTES = 300, 200
# The manifest, each meta.json and the lock: a disk gives whole pages.
_FEW_FILES_BYTES = 32 << 10


def seal(
    out: Path, header: dict[str, Any], job: Job, inputs: Inputs, blocks: Iterable[Result] | None = None
) -> Manifest | None:
    """Turn committed blocks, those of OUT's journal or the given ones, into a finished store; None where they hold no row.

    The manifest is written after everything it names is synced; no journal is touched. What became of boxes is added to the
    notes of the inputs.
    """
    folders = [out / "_tensordict", out]
    if _extra_specs(inputs, job):
        (out / EXTRAS).mkdir(exist_ok=True)
        folders.insert(0, out / EXTRAS)
    written = _Written(out, job, inputs)
    for result in (result for result, _ in journals.read_blocks(out)) if blocks is None else blocks:
        written.add(result)
    files = written.close()
    pixels = files[PIXELS].size_bytes
    if written.inputs != header["inputs"]:
        raise journals.JournalError(
            f"{out / journals.JOURNAL} holds {written.inputs} of {header['inputs']} inputs: it was damaged. Go on with --resume."
        )
    if not written.rows:
        return None
    _settle(out / PIXELS, written.pixel_bytes, pixels)
    if job.masks_path:
        size_bytes = written.rows * job.mask_bytes
        _settle(out / MASKS, size_bytes, size_bytes)
        files[MASKS] = FileEntry(size_bytes, sha256_file(out / MASKS))
    manifest = _manifest(written, files, header, job, inputs)
    for name, content in metadata_files(manifest).items():
        write_synced(out / name, content)
    for folder in folders:
        sync_folder(folder)
    write_atomically(out / MANIFEST, encode_manifest(manifest, written.blocks))
    inputs.notes += written.notes()
    return manifest


def expected_sizes(job: Job, inputs: Inputs) -> dict[str, int]:
    """Return the most bytes that each file of a pack will take, by its name below OUT; those of text are an estimate."""
    count, rows = len(inputs), len(inputs) - len(inputs.refused)
    # what is not ASCII is escaped, twice in the journal: "é" is \\\\u00e9
    path_bytes = sum(len(path) if path.isascii() else 7 * len(path) for path in inputs.paths)
    class_bytes = sum(map(len, inputs.classes)) + 4 * len(inputs.classes)
    sizes = {
        PIXELS: rows * job.row_bytes,
        journals.JOURNAL: count * _JOURNAL_BYTES + path_bytes + class_bytes,
        SAMPLES: count * _SAMPLE_BYTES + path_bytes,
        MANIFEST: class_bytes + _FEW_FILES_BYTES,
        TARGETS: rows * TensorSpec(inputs.targets.dtype, inputs.targets.row_shape).row_bytes,
    }
    if job.geometry.has_content:
        sizes[CONTENT] = 16 * rows
    if job.geometry.has_own_sizes:
        sizes |= {OFFSETS: 8 * rows, SHAPES: 12 * rows} | (
            {MASK_OFFSETS: 8 * rows} if _has_own_masks(inputs, job) else {}
        )
    return sizes | {
        f"{EXTRAS}/{name}.memmap": rows * spec.row_bytes for name, spec in _extra_specs(inputs, job).items()
    }


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


def remove_working_folder(out: Path) -> None:
    """Take the scaffold away, once the manifest is safe and nothing in it is open."""
    shutil.rmtree(out / journals.FOLDER, ignore_errors=True)
    sync_folder(out)


class _Written:
    """The per-row files while the journal streams by, and what adds up over it."""

    def __init__(self, out: Path, job: Job, inputs: Inputs) -> None:
        self._job, self._all = job, inputs
        self.rows = self.inputs = self.rejected = self.pixel_count = self.pixel_bytes = self.crc32 = 0
        self.height, self.width = (0, 0) if job.geometry.has_own_sizes else job.geometry.sides
        # of a dataset that does not name its classes
        self.class_count = 0
        self.sums = [0] * CHANNELS[job.channels]
        self.square_sums = [0] * CHANNELS[job.channels]
        self.blocks: list[Block] = []
        self._columns = {TARGETS: inputs.targets}
        self._columns |= {f"{EXTRAS}/{name}.memmap": column for name, column in inputs.extras.items()}
        self._boxes = inputs.boxes and BoxRows(inputs.boxes, job.geometry)
        names = [SAMPLES, REJECTED, *self._columns] + ([CONTENT] if job.geometry.has_content else [])
        names += [OFFSETS, SHAPES] if job.geometry.has_own_sizes else []
        names += [MASK_OFFSETS] if _has_own_masks(inputs, job) else []
        names += [f"{EXTRAS}/{name}.memmap" for name in (inputs.boxes.specs() if inputs.boxes else ())]
        self._files = {name: _Digested(out / name) for name in names}

    def add(self, result: Result) -> None:
        """Append one block."""
        files, size_bytes = self._files, result.places * self._job.row_bytes
        if result.rows:
            offset = files[SAMPLES].size_bytes
            self.blocks.append(Block(self.rows, self.rows + result.rows, result.crc32, offset, size_bytes))
            self.crc32 = crc32_combine(self.crc32, result.crc32, size_bytes)
        files[SAMPLES].write("".join(result.samples).encode("ascii"))
        files[REJECTED].write("".join(map(self._reject_line, result.rejects)).encode("ascii"))
        rows = self._accepted(result)
        for name, column in self._columns.items():
            is_read = name == TARGETS and self._all.identity
            chosen = self._read_targets(result, column) if is_read else column.chosen(rows)
            files[name].write(chosen.encoded())
        if self._boxes:
            for name, data in self._boxes.encoded(rows, result.samples).items():
                files[f"{EXTRAS}/{name}.memmap"].write(data)
        if CONTENT in files:
            files[CONTENT].write(Column.of("int32", result.content, 4).encoded())
        if SHAPES in files:
            self._add_shapes(result)
        self.rows += result.rows
        self.pixel_bytes += size_bytes
        self.inputs += result.inputs
        self.rejected += len(result.rejects)
        self.pixel_count += result.pixel_count
        self.sums = [a + b for a, b in zip(self.sums, result.sums, strict=True)]
        self.square_sums = [a + b for a, b in zip(self.square_sums, result.square_sums, strict=True)]

    def _add_shapes(self, result: Result) -> None:
        """Append where each row of a block begins, and its mask, and its height, width and channels."""
        channels = CHANNELS[self._job.channels]
        masks = self._files.get(MASK_OFFSETS)
        of_a_pixel = channels + (masks is not None)
        areas = [h * w for h, w in result.shapes]
        begins = list(itertools.accumulate((area * of_a_pixel for area in areas), initial=self.pixel_bytes))[:-1]
        self._files[OFFSETS].write(Column.of("int64", begins).encoded())
        if masks is not None:
            behind = (begin + area * channels for begin, area in zip(begins, areas, strict=True))
            masks.write(Column.of("int64", behind).encoded())
        self._files[SHAPES].write(Column.of("int32", ((h, w, channels) for h, w in result.shapes), 3).encoded())
        self.height = max([self.height, *(height for height, _ in result.shapes)])
        self.width = max([self.width, *(width for _, width in result.shapes)])

    def _accepted(self, result: Result) -> Sequence[int]:
        """Return which inputs of a block became rows."""
        inputs = range(self.inputs, self.inputs + result.inputs)
        if not result.rejects:
            return inputs
        rejected = {reject["input"] for reject in result.rejects}
        return [index for index in inputs if index not in rejected]

    def _reject_line(self, reject: dict[str, Any]) -> str:
        line = self._all.line(reject["input"])
        known = {"path": reject["path"], "reason": reject["reason"]}
        return encode_line(known if line is None else known | {"line": line})

    def _read_targets(self, result: Result, column: Column) -> Column:
        """Return the targets of a dataset's items, which stand in the lines of samples.jsonl alone."""
        targets = [json.loads(line)["target"] for line in result.samples]
        if column.count is None:
            self.class_count = max([self.class_count, *(target + 1 for target in targets)])
        else:
            self.class_count = column.count
        return Column.of(column.dtype, targets, column.count)

    def notes(self) -> list[str]:
        """Say what became of boxes."""
        return self._boxes.notes() if self._boxes else []

    def numbered_classes(self) -> tuple[str, ...]:
        """Name the classes of a dataset that does not."""
        return () if self._all.target_kind == "regression" else tuple(map(str, range(self.class_count)))

    def close(self) -> dict[str, FileEntry]:
        """Sync all files; returns their entries, the pixels' among them."""
        entries = {name: file.close() for name, file in self._files.items()}
        filling = -self.pixel_bytes % PAGE_BYTES if SHAPES in self._files else 0
        crc32 = crc32_combine(self.crc32, zlib.crc32(bytes(filling)), filling)
        return entries | {PIXELS: FileEntry(self.pixel_bytes + filling, f"crc32:{crc32:08x}")}


class _Digested:
    """A file that knows its size and sha256 by the time it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 (closed by `close`, in order)
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        """Append; an error of the disk names the file."""
        with naming(self._path):
            self._file.write(data)
        self._digest.update(data)
        self.size_bytes += len(data)

    def close(self) -> FileEntry:
        """Sync and close; returns what the manifest says of the file."""
        with naming(self._path), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        return FileEntry(self.size_bytes, f"sha256:{self._digest.hexdigest()}")


def _manifest(
    written: _Written, files: dict[str, FileEntry], header: dict[str, Any], job: Job, inputs: Inputs
) -> Manifest:
    mean, std = channel_statistics(written.pixel_count, written.sums, written.square_sums)
    fields: dict[str, Any] = {
        "rows": written.rows,
        "height": written.height,
        "width": written.width,
        "channels": CHANNELS[job.channels],
        "target_kind": inputs.target_kind,
        "target_count": inputs.targets.count,
        "has_content": job.geometry.has_content,
        "extras": _extra_specs(inputs, job),
        "classes": tuple(header["classes"]) or written.numbered_classes(),
        "mean": tuple(mean),
        "std": tuple(std),
        "inputs": written.inputs,
        "rejected": written.rejected,
        "options": header["options"],
        "decoders": header["decoders"],
        "further_targets": inputs.further_targets,
        "reader_features": _features(inputs, job),
    }
    return Manifest(**fields, files=files | _metadata_entries(fields, files))


def _extra_specs(inputs: Inputs, job: Job) -> dict[str, TensorSpec]:
    specs = {name: TensorSpec(column.dtype, column.row_shape) for name, column in inputs.extras.items()}
    if inputs.boxes:
        specs |= {name: TensorSpec(*spec) for name, spec in inputs.boxes.specs().items()}
    if job.masks_path:
        specs["masks"] = TensorSpec("uint8", (job.geometry.height, job.geometry.width))
    return specs


def _has_own_masks(inputs: Inputs, job: Job) -> bool:
    return inputs.masks is not None and job.geometry.has_own_sizes


def _features(inputs: Inputs, job: Job) -> tuple[str, ...]:
    if not job.geometry.has_own_sizes:
        return ()
    return (OWN_SIZES, OWN_MASKS) if _has_own_masks(inputs, job) else (OWN_SIZES,)


def _metadata_entries(fields: dict[str, Any], files: dict[str, FileEntry]) -> dict[str, FileEntry]:
    """Return the entries of the meta.json files, which depend on the shapes alone."""
    blank = dict.fromkeys(metadata_names(has_extras=bool(fields["extras"])), FileEntry(0, ""))
    contents = metadata_files(Manifest(**fields, files=files | blank))
    return {
        name: FileEntry(len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")
        for name, content in contents.items()
    }


def _settle(path: Path, used_bytes: int, size_bytes: int) -> None:
    """Give back what was allocated for inputs that became no row; what is there behind the rows is zeros."""
    with naming(path), open(path, "r+b") as file:
        file.truncate(used_bytes)
        file.truncate(size_bytes)
        os.fsync(file.fileno())
