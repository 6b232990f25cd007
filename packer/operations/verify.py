"""Read every byte of a store and compare it with the manifest: structure, digests, then each block's checksum.

Changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from packer.checksums import crc32_combine, sha256_file
from packer.inputs.splits import stores_of
from packer.operations.row_checks import wrong_rows
from packer.pixels.geometry import Geometry
from packer.progress import CountedBytes
from packer.sample_lines import Sample
from packer.store.row_files import CONTENT, FRAMES, MASK_OFFSETS, OFFSETS, SHAPES, TARGETS
from packer.store.sealed_rows import StoredRows, mapped_tensor
from packer.store.state import check_finished
from reader.format.blocks import Block, read_blocks
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST, PAGE_BYTES, PIXELS, REJECTED, SAMPLES, Manifest

# Bytes read at once: they stay in the CPU's cache.
_READ_BYTES = 1 << 20
_WHAT = {
    TARGETS: "the target is not the one in samples.jsonl",
    CONTENT: "the content is not what samples.jsonl implies",
    SHAPES: "the shape is not what samples.jsonl implies",
    OFFSETS: "the offset is not what samples.jsonl implies",
    MASK_OFFSETS: "the offset is not what samples.jsonl implies",
    FRAMES: "the frame is not between those of its neighbors",
    SAMPLES: "the line is damaged, or another row's",
}


@dataclass(frozen=True)
class Problem:
    """One error: the file, the rows ([start, stop), None: not of rows), and a description."""

    file: str
    rows: tuple[int, int] | None
    what: str

    def __str__(self) -> str:
        where = "" if self.rows is None else f", {_named_rows(self.rows)}"
        return f"{self.file}{where}: {self.what}"


@dataclass(frozen=True)
class VerifyReport:
    """The findings of verify; the store is intact if problems is empty.

    Attributes:
        out: the store, or the folder of the stores of splits.
        rows: rows of the store; with splits, this and the following are totals.
        checked_bytes: bytes that were read and compared.
        problems: the errors. Each has a file, its rows as [start, stop) or None, and a description; its str is a sentence. A
            failed checksum names all rows that it covers, if it is not known which are damaged.
        splits: name of a split -> its report; empty without splits.
    """

    out: str
    rows: int
    checked_bytes: int
    problems: list[Problem] = field(default_factory=list)
    splits: dict[str, VerifyReport] = field(default_factory=dict)


def verify(out: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Check a store to the last bit.

    Args:
        out: a store, or the folder of splits.
        progress: called with bytes done and bytes in all.

    Raises:
        StoreError: OUT is not a store, or its structure is already wrong (a file missing, too short, or too long).
    """
    stores = stores_of(out)
    total = sum(_total_bytes(check_finished(store)) for store in stores.values())
    reports: dict[str, VerifyReport] = {}
    for split, store in stores.items():
        before = sum(report.checked_bytes for report in reports.values())

        def report_done(done: int, before: int = before) -> None:
            """Report the bytes done of this store on top of those of the stores before it."""
            if progress is not None:
                progress(before + done, total)

        reports[split] = _verified(store, report_done)
    return reports[""] if "" in reports else _summed(Path(out), reports)


def _summed(out: Path, reports: dict[str, VerifyReport]) -> VerifyReport:
    """Add up the reports of splits; files are named below their folder."""
    every = reports.values()
    problems = [
        dataclasses.replace(problem, file=f"{split}/{problem.file}")
        for split, report in reports.items()
        for problem in report.problems
    ]
    rows, checked = (sum(getattr(report, name) for report in every) for name in ("rows", "checked_bytes"))
    return VerifyReport(str(out), rows, checked, problems, reports)


def _total_bytes(manifest: Manifest) -> int:
    return sum(entry.size_bytes for entry in manifest.files.values())


def _verified(root: Path, progress: Callable[[int], None]) -> VerifyReport:
    """Check one store; progress is called with the bytes done."""
    manifest = check_finished(root)
    blocks = read_blocks(root)
    total = _total_bytes(manifest)
    damaged = list(_small_files(root, manifest))
    # a changed file may hold anything
    problems = damaged or [Problem(*wrong) for wrong in wrong_rows(root, manifest, blocks)]
    done = total - manifest.files[PIXELS].size_bytes
    # a damaged index leads to other frames
    is_decoded = manifest.jpeg and not damaged
    checked = _frames(root, blocks, StoredRows(root, manifest)) if is_decoded else _blocks(root, blocks)
    for problem, size_bytes in checked:
        done += size_bytes
        problems += [problem] if problem else []
        progress(done)
    combined = 0
    for block in blocks:
        combined = crc32_combine(combined, block.crc32, block.size_bytes)
    filling = manifest.files[PIXELS].size_bytes - sum(block.size_bytes for block in blocks)
    combined = crc32_combine(combined, zlib.crc32(bytes(filling)), filling)
    if manifest.files[PIXELS].digest != f"crc32:{combined:08x}":
        problems.append(Problem(MANIFEST, None, "the digest of the pixels is not that of their blocks"))
    return VerifyReport(str(root), manifest.rows, done, problems)


def _small_files(root: Path, manifest: Manifest) -> Iterator[Problem]:
    """Compare the sha256 of all files but the pixels, and trace damage to rows by the values that two files share."""
    small = {name: e for name, e in manifest.files.items() if name != PIXELS}
    read = CountedBytes(sum(entry.size_bytes for entry in small.values()))
    damaged = {name for name, entry in small.items() if sha256_file(root / name, read) != entry.digest}
    wrong: dict[str, set[int]] = {name: set() for name in damaged}
    for name, row in _wrong_rows(root, manifest, damaged):
        wrong[name].add(row)
    if FRAMES in damaged:
        frames = mapped_tensor(root, manifest, "frames")
        gaps = np.flatnonzero(frames[1:, 0] != frames[:-1, 1])
        wrong[FRAMES] = {*gaps.tolist(), *(gaps + 1).tolist()}
    for name in sorted(damaged):
        for rows in _ranges(sorted(wrong[name])):
            yield Problem(name, rows, _WHAT[name])
        if not wrong[name]:
            yield Problem(
                name, None if name == REJECTED else (0, manifest.rows), "its content has changed since it was packed"
            )


def _wrong_rows(root: Path, manifest: Manifest, damaged: set[str]) -> Iterator[tuple[str, int]]:
    """Yield damaged files and their rows that contradict samples.jsonl; for that file, the lines that contradict the others."""
    implied = {TARGETS, CONTENT, SHAPES, OFFSETS, MASK_OFFSETS} & manifest.files.keys()
    is_line = SAMPLES in damaged
    # a damaged line changes the offsets of all rows after it
    names = sorted(implied - damaged - {OFFSETS, MASK_OFFSETS} if is_line else implied & damaged)
    if not (names or is_line):
        return
    sizes = {name: manifest.files[name].size_bytes // manifest.rows for name in names}
    with contextlib.ExitStack() as opened:
        lines = opened.enter_context(open(root / SAMPLES, "rb"))
        files = {name: opened.enter_context(open(root / name, "rb")) for name in names}
        for row, known in enumerate(_implied(manifest, islice(lines, manifest.rows))):
            for name in [name for name, file in files.items() if file.read(sizes[name]) != known.get(name)]:
                yield SAMPLES if is_line else name, row
            if is_line and not known:
                yield SAMPLES, row


def _implied(manifest: Manifest, lines: Iterable[bytes]) -> Iterator[dict[str, bytes]]:
    """Yield what each line of samples.jsonl implies: file -> the bytes of its row there; nothing if it is damaged."""
    targets = struct.Struct("<q" if manifest.target_kind == "class" else f"<{manifest.target_count}f")
    geometry = Geometry.recorded(manifest) if manifest.has_content or manifest.has_own_sizes else None
    offset = 0
    for line in lines:
        try:
            sample = Sample.decode(line)
            known = {TARGETS: targets.pack(*(sample.target if manifest.target_count else [sample.target]))}
            if geometry is not None:
                width, height = geometry.resized(sample.width, sample.height)
                behind = offset + width * height * manifest.channels
                known[CONTENT] = struct.pack("<4i", *geometry.content((width, height)))
                known[SHAPES] = struct.pack("<3i", height, width, manifest.channels)
                known[OFFSETS], known[MASK_OFFSETS] = struct.pack("<q", offset), struct.pack("<q", behind)
                offset = behind + width * height * manifest.has_own_masks
            yield known
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError, struct.error):
            yield {}


def _ranges(rows: Iterable[int]) -> list[tuple[int, int]]:
    """Join neighbors: 3, 4, 5, 9 -> [(3, 6), (9, 10)]."""
    ranges: list[tuple[int, int]] = []
    for row in rows:
        if ranges and ranges[-1][1] == row:
            ranges[-1] = ranges[-1][0], row + 1
        else:
            ranges.append((row, row + 1))
    return ranges


def _blocks(root: Path, blocks: list[Block]) -> Iterator[tuple[Problem | None, int]]:
    """Yield for each block a problem or None, and its bytes."""
    with open(root / PIXELS, "rb") as file:
        for block in blocks:
            crc32, left = 0, block.size_bytes
            rows = (block.start, block.stop)
            while left and (data := file.read(min(left, _READ_BYTES))):
                crc32, left = zlib.crc32(data, crc32), left - len(data)
            if left:
                yield Problem(PIXELS, rows, "the file became shorter while it was read"), block.size_bytes - left
                return
            wrong = crc32 != block.crc32
            yield (Problem(PIXELS, rows, "its pixels are not what was packed") if wrong else None), block.size_bytes
        yield from _filling(file)


def _frames(root: Path, blocks: list[Block], rows: StoredRows) -> Iterator[tuple[Problem | None, int]]:
    """Yield each problem of JPEG rows, and the bytes of each block: compares the stored bytes, and decodes them."""
    with open(root / PIXELS, "rb") as file:
        for block in blocks:
            crc32 = done = 0
            is_named = False
            for row in range(block.start, block.stop):
                try:
                    frame = file.read(min(rows.extent(row)[1], block.size_bytes - done))
                    crc32, done = zlib.crc32(frame, crc32), done + len(frame)
                    rows.pixels(row, frame)
                except StoreError as e:
                    is_named, what = True, str(e).partition(f"row {row}: ")[2].partition(". The store")[0]
                    yield Problem(PIXELS, (row, row + 1), what), 0
            if (crc32, done) != (block.crc32, block.size_bytes) and not is_named:
                yield Problem(PIXELS, (block.start, block.stop), "its pixels are not what was packed"), 0
            # the next block begins where it should
            file.read(block.size_bytes - done)
            yield None, block.size_bytes
        yield from _filling(file)


def _filling(file: IO[bytes]) -> Iterator[tuple[Problem | None, int]]:
    """Yield errors in the bytes after the rows: less than a page, as the blocks were checked."""
    if filling := file.read(PAGE_BYTES):
        yield (Problem(PIXELS, None, "there is something behind its rows") if any(filling) else None), len(filling)


def _named_rows(rows: tuple[int, int]) -> str:
    start, stop = rows
    return f"row {start}" if stop == start + 1 else f"rows {start} to {stop - 1}"
