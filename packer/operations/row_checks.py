"""Checks the files of a store row by row: targets, content, shapes and offsets, blocks, and lines of text.

Digests prove that a file is as it was sealed; these checks prove that its values are valid. Reads each file in pieces, and no
pixel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.progress import tracked
from packer.sample_lines import read_rejects, read_samples_with_offsets
from reader.format.blocks import Block
from reader.format.check import loadable_beside
from reader.format.errors import StoreError
from reader.format.manifest import ITEM_BYTES, MANIFEST, REJECTED, Manifest, TensorSpec
from reader.format.row_values import RowValues, wrong_extents
from reader.format.shown import shown

# Bytes of all tensors except the pixels that are read at once.
_PIECE_BYTES = 4 << 20
# Rows read at once: a parsed line of samples.jsonl takes 800 bytes.
_PIECE_ROWS = 1 << 10
_TARGET_CODES = {"class": "<i8", "regression": "<f4", "multi-hot": "<f4"}
_EXTENTS = ("offsets", "shapes", "mask_offsets", "frames")


class Wrong(NamedTuple):
    """One contradiction: its file, its rows ([start, stop), or None if unknown), and a description."""

    file: str
    rows: tuple[int, int] | None
    what: str


def wrong_rows(root: Path, manifest: Manifest, blocks: list[Block]) -> Iterator[Wrong]:
    """Yield contradictions to the manifest; in rows, only the first.

    Raises:
        OSError: a file cannot be read, or is shorter than the manifest says.
    """
    for name in loadable_beside(root):
        yield Wrong(shown(name), None, "it is not a file of this store, and other programs may load it")
    try:
        yield from itertools.islice(_wrong(root, manifest, blocks), 1)
        if (found := sum(1 for _ in read_rejects(root))) != manifest.rejected:
            yield Wrong(REJECTED, None, f"it has {found} lines, the manifest says {manifest.rejected} rejects")
    except StoreError as e:
        yield Wrong(str(e).partition(",")[0].removeprefix(f"{root}/"), None, str(e).rstrip("."))


def pieces(root: Path, manifest: Manifest, names: list[str]) -> Iterator[tuple[int, dict[str, npt.NDArray[Any]]]]:
    """Yield tensors in pieces of some MB: (the first row, tensor -> values [n, ...])."""
    paths, specs = manifest.tensor_paths(), manifest.tensors
    row_bytes = sum(specs[name].row_bytes for name in names)
    step = min(_PIECE_ROWS, max(1, _PIECE_BYTES // max(1, row_bytes)))
    for start in range(0, manifest.rows, step):
        count = min(step, manifest.rows - start)
        yield start, {name: _read(root / paths[name], specs[name], start, count) for name in names}


def _read(path: Path, spec: TensorSpec, start: int, count: int) -> npt.NDArray[Any]:
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    items = count * (spec.row_bytes // ITEM_BYTES[spec.dtype])
    found = np.fromfile(path, dtype, items, offset=start * spec.row_bytes)
    if len(found) != items:
        raise OSError(5, "it ends before the manifest says", str(path))
    return found.reshape(count, *spec.row_shape)


def _wrong(root: Path, manifest: Manifest, blocks: list[Block]) -> Iterator[Wrong]:
    """Yield rows with invalid values, with a wrong position, or with values that differ from their line."""
    values, extents = RowValues(manifest), _Extents(manifest, blocks)
    names = {*values.tensors, "targets", *(name for name in _EXTENTS if name in manifest.tensors)}
    begins = {block.start: block.samples_offset for block in blocks}
    lines = tracked("check", read_samples_with_offsets(root, manifest), manifest.rows)
    lost = 0
    for start, columns in pieces(root, manifest, sorted(names)):
        if (found := values.wrong_row(columns)) is not None:
            yield Wrong("_tensordict", (start + found[0], start + found[0] + 1), found[1])
        yield from extents.wrong(start, columns)
        targets = columns["targets"]
        own = list(itertools.islice(lines, len(targets)))
        for row, (offset, sample) in enumerate(own, start):
            if begins.get(row, offset) != offset:
                yield Wrong(MANIFEST, (row, row + 1), f"its line begins at byte {offset}, not at {begins[row]}")
            lost += sample.decoding.get("squared_error", 0)
        yield from _other_targets(manifest, start, [sample.target for _, sample in own], targets)
    for _ in lines:  # reading on raises StoreError if there are more lines than rows
        pass
    if not extents.are_all:
        yield Wrong(MANIFEST, None, "its blocks, height and width are not those of the rows")
    if manifest.jpeg and manifest.jpeg.squared_error != lost:
        yield Wrong(MANIFEST, None, f"its squared_error is not that of all lines, {lost}")


class _Extents:
    """Checks the offsets of rows and frames: contiguous, and with the bytes that the blocks record."""

    def __init__(self, manifest: Manifest, blocks: list[Block]) -> None:
        self._manifest = manifest
        self._ends = dict(
            zip((b.stop - 1 for b in blocks), np.cumsum([b.size_bytes for b in blocks]).tolist(), strict=True)
        )
        self._offset = self._frames_end = 0
        self._largest = np.zeros(3, np.int64)

    def wrong(self, start: int, columns: dict[str, npt.NDArray[Any]]) -> Iterator[Wrong]:
        """Yield the errors of the next rows."""
        stored: npt.NDArray[np.int64] | None = None
        if "offsets" in columns:
            offsets, shapes = columns["offsets"], columns["shapes"]
            sizes, wrong = wrong_extents(offsets, shapes, columns.get("mask_offsets"), self._manifest.pixel_bytes)
            stored = self._offset + np.cumsum(sizes)
            wrong |= offsets != stored - sizes
            if wrong.any():
                yield _first_wrong(start, wrong, "_tensordict", "its bytes are not behind those of the row before it")
            self._offset, self._largest = int(stored[-1]), np.maximum(self._largest, shapes.max(axis=0))
        if "frames" in columns:
            begins, stored = columns["frames"].T
            wrong = (begins != np.append(self._frames_end, stored[:-1])) | (stored <= begins)
            if wrong.any():
                yield _first_wrong(start, wrong, "_tensordict", "its frame is not behind that of the row before it")
            self._frames_end = int(stored[-1])
        if stored is None:
            return
        wrong = np.array([self._ends.get(row, end) != end for row, end in enumerate(stored.tolist(), start)])
        if wrong.any():
            yield _first_wrong(start, wrong, MANIFEST, "the blocks have other numbers of bytes than their rows")

    @property
    def are_all(self) -> bool:
        """Whether the rows' bytes, and their largest height and width, equal the manifest's."""
        manifest = self._manifest
        largest = [manifest.height, manifest.width, manifest.channels]
        # for raw rows, the blocks have shown it
        is_full = not manifest.jpeg or self._offset == manifest.pixel_bytes
        return not manifest.has_own_sizes or (is_full and self._largest.tolist() == largest)


def _first_wrong(start: int, wrong: npt.NDArray[np.bool_], file: str, what: str) -> Wrong:
    row = start + int(wrong.argmax())
    return Wrong(file, (row, row + 1), what)


def _other_targets(manifest: Manifest, start: int, lines: list[object], targets: npt.NDArray[Any]) -> Iterator[Wrong]:
    with np.errstate(over="ignore"):
        listed = np.array(lines, _TARGET_CODES[manifest.target_kind]).reshape(len(lines), *targets.shape[1:])
    differ = (listed != targets[: len(listed)]).reshape(len(listed), -1).any(axis=1)
    if differ.any():
        row = start + int(differ.argmax())
        yield Wrong("_tensordict/targets.memmap", (row, row + 1), "the target is not the one in samples.jsonl")
