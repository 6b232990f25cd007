"""Boxes from label files, moved into rows: each follows its picture through EXIF orientation, resize, crop and padding.

A box is clipped to its row, and left out if it has no area there. Reads no file and no pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from packer.pixels.geometry import Geometry
from packer.sample_lines import Sample

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Boxes:
    """The boxes of all inputs, in the order of the inputs.

    counts:  int64[n], boxes of each input
    corners: float64[M, 4] x0, y0, x1, y1
    targets: int64[M] class indices
    frames: float64[n, 2] width and height that an input's corners refer to; 1, 1: fractions of the picture; 0, 0: its pixels
    most: the largest number of boxes of any input of the complete pack: all splits have the same K
    """

    counts: Ints
    corners: Floats
    targets: Ints
    frames: Floats
    most: int

    @classmethod
    def grouped(cls, owners: Ints, corners: Floats, targets: Ints, frames: Floats) -> Boxes:
        """Collect boxes that come in any order; owners: int64[M], the input of each."""
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=len(frames))
        return cls(counts, corners[order], targets[order], frames, int(counts.max(initial=1)))

    def chosen(self, inputs: Sequence[int]) -> Boxes:
        """Return the boxes of these inputs, in this order."""
        index = np.asarray(inputs, np.int64)
        counts = self.counts[index]
        # starts 5, 0 and counts 2, 3 -> 5, 6, 0, 1, 2
        boxes = np.arange(counts.sum()) + np.repeat(self._starts[index] - (np.cumsum(counts) - counts), counts)
        return Boxes(counts, self.corners[boxes], self.targets[boxes], self.frames[index], self.most)

    def encoded(self) -> bytes:
        """Return the boxes as bytes, for a digest of the label files."""
        parts = (self.counts, self.corners, self.targets, self.frames, np.int64(self.most))
        return b"".join(part.tobytes() for part in parts)

    def specs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return dtype and row shape of the tensors of boxes."""
        k = self.most
        return {"boxes": ("float32", (k, 4)), "box_targets": ("int64", (k,)), "box_count": ("int32", ())}

    def in_rows(self, inputs: Sequence[int], samples: list[str], geometry: Geometry) -> dict[str, bytes]:
        """Return the bytes of `boxes`, `box_targets` and `box_count` for the inputs that became rows."""
        boxes, lines = self.chosen(inputs), [Sample.decode(line) for line in samples]
        known = [(line.width, line.height, line.decoding.get("exif_orientation", 1)) for line in lines]
        pictures = np.array(known, np.int64).reshape(-1, 3)
        owners = np.repeat(np.arange(len(lines)), boxes.counts)
        corners = boxes._placed(owners, pictures, geometry)
        is_kept = (corners[:, :2] < corners[:, 2:]).all(axis=1)
        owners = owners[is_kept]
        counts = np.bincount(owners, minlength=len(lines))
        slots = np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]
        # free slots hold zeros, and target -1
        laid, targets = np.zeros((len(lines), self.most, 4), "<f4"), np.full((len(lines), self.most), -1, "<i8")
        laid[owners, slots], targets[owners, slots] = corners[is_kept], boxes.targets[is_kept]
        found = {"boxes": laid, "box_targets": targets, "box_count": counts.astype("<i4")}
        return {name: array.tobytes() for name, array in found.items()}

    def _placed(self, owners: Ints, pictures: Ints, geometry: Geometry) -> Floats:
        """Return corners in pixels of the rows, clipped to picture and row; pictures: as in `moved_to_rows`."""
        sizes, turns = pictures[:, :2], pictures[:, 2:]
        stored = np.where(turns >= 5, sizes[:, ::-1], sizes)
        # a label file with the size after EXIF orientation was made from upright pictures
        is_upright = (self.frames == sizes).all(1, keepdims=True) & (self.frames != stored).any(1, keepdims=True)
        framed = np.where(is_upright, sizes, stored)
        frames = np.where(self.frames == 0, framed, self.frames)
        corners = _ordered(self.corners * np.tile(framed / frames, 2)[owners]).clip(0, np.tile(framed, 2)[owners])
        moved = moved_to_rows(corners, owners, np.hstack([sizes, np.where(is_upright, 1, turns)]), geometry)
        rows = [geometry.row_size(geometry.resized(*size)) for size in sizes.tolist()]
        return moved.clip(0, np.tile(np.array(rows, np.float64).reshape(-1, 2), 2)[owners])

    @cached_property
    def _starts(self) -> Ints:
        return np.cumsum(self.counts) - self.counts


def moved_to_rows(corners: Floats, owners: Ints, pictures: Ints, geometry: Geometry) -> Floats:
    """Move corners from stored pictures into rows, float64[M, 4], without clipping.

    Args:
        owners: int64[M], the picture of each box.
        pictures: int64[n, 3], upright width and height, and the EXIF orientation that was undone, 1 to 8.
    """
    resized = np.array([geometry.resized(*size) for size in pictures[:, :2].tolist()], np.float64).reshape(-1, 2)
    origins = np.array([geometry.origin((int(w), int(h))) for w, h in resized], np.float64).reshape(-1, 2)
    upright = _upright(corners, pictures[owners])
    return upright * np.tile(resized / pictures[:, :2], 2)[owners] - np.tile(origins, 2)[owners]


def _upright(corners: Floats, pictures: Ints) -> Floats:
    """Turn corners as EXIF orientation turns their picture (TIFF 6.0, tag 274): swap x and y, then mirror."""
    turns = pictures[:, 2, None]
    corners = np.where(turns >= 5, corners[:, [1, 0, 3, 2]], corners)
    for axis, mirrored in ((0, (2, 3, 6, 7)), (1, (3, 4, 7, 8))):
        pair = [axis, axis + 2]
        corners[:, pair] = np.where(
            np.isin(turns, mirrored), pictures[:, axis, None] - corners[:, pair], corners[:, pair]
        )
    return _ordered(corners)


def _ordered(corners: Floats) -> Floats:
    """Put the upper left corner first."""
    return np.hstack([np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])])
