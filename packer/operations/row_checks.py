"""What a store says of its rows, compared row by row: targets, content, shapes and offsets, blocks, and lines of text.

Digests say that a file is what its writer sealed; this says that it makes sense. Reads each file in pieces and no pixel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.progress import followed
from reader.format.blocks import Block
from reader.format.check import loadable_beside
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST, REJECTED, Manifest
from reader.format.row_values import RowValues, wrong_extents
from reader.format.samples import Sample, read_rejects, read_samples_with_offsets
from reader.format.shown import shown
from reader.format.tensors import ITEM_BYTES, MOST_TEXT_BYTES, TEXTS_FILE, JpegFrames, TensorSpec

# Of all tensors beside the pixels, read at once.
_PIECE_BYTES = 4 << 20
# Lines of samples.jsonl are values of Python, 500 bytes each.
_PIECE_ROWS = 1 << 14
_TARGET_CODES = {"class": "<i8", "regression": "<f4", "multi-hot": "u1"}


class Wrong(NamedTuple):
    """One thing that is wrong: the file, the rows ([start, stop), None: not known), and what."""

    file: str
    rows: tuple[int, int] | None
    what: str


# Rows [start, stop) that are looked at, each from the start of a block to the end of one.
_Runs = list[tuple[int, int]]


def wrong_rows(
    root: Path, manifest: Manifest, blocks: list[Block], chosen: npt.NDArray[np.int64] | None = None
) -> Iterator[Wrong]:
    """Yield what contradicts the manifest, of each kind the first row alone; nothing where all is right.

    chosen: numbers of the blocks whose rows are looked at, rising; None: all, and what they add up to.

    Raises:
        OSError: a file cannot be read, or is shorter than the manifest says.
    """
    for name in loadable_beside(root):
        yield Wrong(shown(name), None, "it is not a file of this store, and other programs may load it")
    runs = [(0, manifest.rows)] if chosen is None else _runs([blocks[number] for number in chosen.tolist()])
    yield from itertools.islice(_wrong_values(root, manifest, runs), 1)
    if "offsets" in manifest.tensors:
        yield from itertools.islice(_wrong_offsets(root, manifest, blocks, runs), 1)
    if "frames" in manifest.tensors:
        yield from itertools.islice(_wrong_frames(root, manifest, blocks, runs), 1)
    if manifest.texts:
        yield from itertools.islice(_wrong_texts(root, manifest, runs), 1)
    try:
        yield from itertools.islice(_wrong_lines(root, manifest, blocks, runs), 1)
        if (found := sum(1 for _ in read_rejects(root))) != manifest.rejected:
            yield Wrong(REJECTED, None, f"it has {found} lines, the manifest says {manifest.rejected} rejects")
    except StoreError as e:
        yield Wrong(str(e).partition(",")[0].removeprefix(f"{root}/"), None, str(e).rstrip("."))


def _runs(blocks: list[Block]) -> _Runs:
    """Join blocks that are one after the other."""
    runs: _Runs = []
    for block in blocks:
        start = runs.pop()[0] if runs and runs[-1][1] == block.start else block.start
        runs.append((start, block.stop))
    return runs


def pieces(
    root: Path, manifest: Manifest, names: list[str], runs: _Runs | None = None
) -> Iterator[tuple[int, dict[str, npt.NDArray[Any]]]]:
    """Yield tensors in pieces of some MB: (the first row, tensor -> values [n, ...]); runs: of these rows alone."""
    if not names:
        return
    paths, specs = manifest.tensor_paths(), manifest.tensors
    row_bytes = sum(specs[name].row_bytes for name in names)
    step = min(_PIECE_ROWS, max(1, _PIECE_BYTES // max(1, row_bytes)))
    for first, stop in [(0, manifest.rows)] if runs is None else runs:
        for start in range(first, stop, step):
            count = min(step, stop - start)
            yield start, {name: _read(root / paths[name], specs[name], start, count) for name in names}


def _read(path: Path, spec: TensorSpec, start: int, count: int) -> npt.NDArray[Any]:
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    items = count * (spec.row_bytes // ITEM_BYTES[spec.dtype])
    found = np.fromfile(path, dtype, items, offset=start * spec.row_bytes)
    if len(found) != items:
        raise OSError(5, "it ends before the manifest says", str(path))
    return found.reshape(count, *spec.row_shape)


def _wrong_values(root: Path, manifest: Manifest, runs: _Runs) -> Iterator[Wrong]:
    values = RowValues(manifest)
    for start, columns in pieces(root, manifest, values.tensors, runs):
        if (found := values.wrong_row(columns)) is not None:
            row = start + found[0]
            yield Wrong("_tensordict", (row, row + 1), found[1])


def _wrong_offsets(root: Path, manifest: Manifest, blocks: list[Block], runs: _Runs) -> Iterator[Wrong]:
    """Yield where rows are not one after the other, or blocks, height and width are not those of the rows."""
    names = ["offsets", "shapes", *(["mask_offsets"] if manifest.has_own_masks else [])]
    offset, largest, stops = 0, np.zeros(3, np.int64), dict(runs)
    starts = np.array([*(block.start for block in blocks), manifest.rows])
    # of frames the blocks do not say where their rows are once unpacked
    begins = None if manifest.compression else np.cumsum([0, *(block.size_bytes for block in blocks)])
    for start, columns in pieces(root, manifest, names, runs):
        offsets, shapes = columns["offsets"], columns["shapes"]
        if start in stops and start:
            offset = int(offsets[0] if begins is None else begins[np.searchsorted(starts, start)])
        sizes, wrong = wrong_extents(offsets, shapes, columns.get("mask_offsets"), manifest.pixel_bytes)
        expected = offset + np.cumsum(sizes) - sizes
        wrong |= offsets != expected
        if wrong.any():
            row = start + int(wrong.argmax())
            yield Wrong("_tensordict", (row, row + 1), "its bytes are not behind those of the row before it")
            return
        first, last = np.searchsorted(starts, (start, start + len(offsets)))
        inside = starts[first:last] - start
        if begins is not None and (offsets[inside] != begins[first:last]).any():
            row = start + int(inside[(offsets[inside] != begins[first:last]).argmax()])
            yield Wrong(MANIFEST, (row, row + 1), "the blocks have other numbers of bytes than their rows")
            return
        offset, largest = int(expected[-1] + sizes[-1]), np.maximum(largest, shapes.max(axis=0))
        stop = start + len(offsets)
        if begins is not None and stop in stops.values() and offset != begins[np.searchsorted(starts, stop)]:
            yield Wrong(MANIFEST, (stop - 1, stop), "the blocks have other numbers of bytes than their rows")
            return
    if runs != [(0, manifest.rows)]:
        return
    end = manifest.pixel_bytes if begins is None else begins[-1]
    if offset != end or largest.tolist() != [manifest.height, manifest.width, manifest.channels]:
        yield Wrong(MANIFEST, None, "its blocks, height and width are not those of the rows")


def _wrong_frames(root: Path, manifest: Manifest, blocks: list[Block], runs: _Runs) -> Iterator[Wrong]:
    """Yield where frames are not one after the other, or blocks do not have the bytes of theirs."""
    end, firsts = 0, {first for first, _ in runs}
    ends = dict(zip((b.stop - 1 for b in blocks), np.cumsum([b.size_bytes for b in blocks]).tolist(), strict=True))
    for start, columns in pieces(root, manifest, ["frames"], runs):
        spans = columns["frames"]
        if start in firsts:
            end = ends.get(start - 1, 0)
        wrong = (spans[:, 0] != np.append(end, spans[:-1, 1])) | (spans[:, 1] <= spans[:, 0])
        for row in range(start, start + len(spans)):
            if wrong[row - start]:
                yield Wrong("_tensordict", (row, row + 1), "its frame is not behind that of the row before it")
                return
            if int(spans[row - start, 1]) != ends.get(row, int(spans[row - start, 1])):
                yield Wrong(MANIFEST, (row, row + 1), "the blocks have other numbers of bytes than their frames")
                return
        end = int(spans[-1, 1])


def _wrong_texts(root: Path, manifest: Manifest, runs: _Runs) -> Iterator[Wrong]:
    """Yield where texts are not one after the other, are too long, or are no UTF-8."""
    end, firsts = 0, {first for first, _ in runs}
    with open(root / TEXTS_FILE, "rb") as file:
        for start, columns in pieces(root, manifest, [f"extras/{name}" for name in manifest.texts], runs):
            if start in firsts and start:
                end = file.seek(max(0, int(columns[f"extras/{manifest.texts[0]}"][0, 0])))
            for row, spans in enumerate(np.stack([*columns.values()], axis=1).tolist(), start):
                for name, (begin, stop) in zip(manifest.texts, spans, strict=True):
                    if begin != end or not 0 <= stop - begin <= MOST_TEXT_BYTES:
                        yield Wrong(
                            TEXTS_FILE, (row, row + 1), f"its {name} does not begin where the text before it ends"
                        )
                        return
                    try:
                        file.read(stop - begin).decode()
                    except UnicodeDecodeError:
                        yield Wrong(TEXTS_FILE, (row, row + 1), f"its {name} is not UTF-8")
                    end = stop
    if runs == [(0, manifest.rows)] and end != manifest.files[TEXTS_FILE].size_bytes:
        yield Wrong(TEXTS_FILE, None, "there is something behind its texts")


def _wrong_lines(root: Path, manifest: Manifest, blocks: list[Block], runs: _Runs) -> Iterator[Wrong]:
    """Yield lines of samples.jsonl that are elsewhere than the blocks say, or have another target than the row."""
    begins = {block.start: block.samples_offset for block in blocks}
    total = sum(stop - first for first, stop in runs)
    lines = followed("check", _lines(root, manifest, begins, runs), total)
    lost = 0
    for start, columns in pieces(root, manifest, ["targets"], runs):
        targets = columns["targets"]
        found = list(itertools.islice(lines, len(targets)))
        for row, (offset, _) in enumerate(found, start):
            if begins.get(row, offset) != offset:
                yield Wrong(MANIFEST, (row, row + 1), f"its line begins at byte {offset}, not at {begins[row]}")
                return
        lost += sum(sample.decoding.get("squared_error", 0) for _, sample in found)
        yield from _other_targets(manifest, start, [sample.target for _, sample in found], targets)
    for _ in lines:  # more than there are rows is an error of theirs
        pass
    if (
        runs == [(0, manifest.rows)]
        and isinstance(manifest.compression, JpegFrames)
        and manifest.compression.squared_error != lost
    ):
        yield Wrong(MANIFEST, None, f"its squared_error is not that of all lines, {lost}")


def _lines(root: Path, manifest: Manifest, begins: dict[int, int], runs: _Runs) -> Iterator[tuple[int, Sample]]:
    for first, stop in runs:
        lines = read_samples_with_offsets(root, manifest, first=first, begin=begins[first])
        yield from lines if stop == manifest.rows else itertools.islice(lines, stop - first)


def _other_targets(manifest: Manifest, start: int, lines: list[object], targets: npt.NDArray[Any]) -> Iterator[Wrong]:
    with np.errstate(over="ignore"):
        listed = np.array(lines, _TARGET_CODES[manifest.target_kind]).reshape(len(lines), *targets.shape[1:])
    differ = (listed != targets[: len(listed)]).reshape(len(listed), -1).any(axis=1)
    if differ.any():
        row = start + int(differ.argmax())
        yield Wrong("_tensordict/targets.memmap", (row, row + 1), "the target is not the one in samples.jsonl")
