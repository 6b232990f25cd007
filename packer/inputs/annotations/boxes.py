"""Boxes: as the label files have them, and as they are in the rows. Fixes what can be fixed, counts all that it changes.

A box follows its picture: EXIF orientation, resize, crop, padding. Reads no file and no pixel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from packer.pixels.geometry import Geometry
from packer.sample_lines import Sample
from packer.text import counted

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NAMED = 3
# Label files round: a box that reaches out of its picture by less than this is none to speak of.
_ROUNDING_PIXELS = 1.0
# What a note says of several boxes -> of one; none of these sentences holds a name of the user's.
_SINGULAR = {"have": "has", "are": "is", "reach": "reaches", "their": "its", "they": "it", "were": "was"}


@dataclass(frozen=True)
class Boxes:
    """The boxes of all inputs, one input's after the other's.

    counts:  int64[n], boxes of each input
    corners: float64[M, 4] x0, y0, x1, y1
    targets: int64[M] class indices
    frames:  float64[n, 2] width and height in which an input's corners are measured; 1, 1: they are fractions of the picture;
             0, 0: pixels of the picture, whatever its size
    most:    the most boxes that any input of the complete pack has; a split has no other K than its neighbors
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
        boxes = _ranges(self._starts[index], self.counts[index])
        counts, frames = self.counts[index], self.frames[index]
        return Boxes(counts, self.corners[boxes], self.targets[boxes], frames, self.most)

    def in_rows(self, geometry: Geometry) -> BoxRows:
        """Return what brings them into rows."""
        return BoxRows(self, geometry)

    def encoded(self) -> bytes:
        """Return all that label files say, to see whether they still say the same."""
        parts = (self.counts, self.corners, self.targets, self.frames, np.int64(self.most))
        return b"".join(part.tobytes() for part in parts)

    def specs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return dtype and row shape of each tensor that they become."""
        k = self.most
        return {"boxes": ("float32", (k, 4)), "box_targets": ("int64", (k,)), "box_count": ("int32", ())}

    @cached_property
    def _starts(self) -> Ints:
        return np.cumsum(self.counts) - self.counts


@dataclass
class _Change:
    """How many boxes or pictures something is true of, and the first few pictures."""

    boxes: int = 0
    pictures: int = 0
    names: list[str] = field(default_factory=list)


class BoxRows:
    """Brings boxes into rows, a block of inputs after the other, and remembers what had to be changed."""

    def __init__(self, boxes: Boxes, geometry: Geometry) -> None:
        self._boxes, self._geometry = boxes, geometry
        self._found: dict[str, _Change] = {}

    def encoded(self, inputs: Sequence[int], samples: list[str]) -> dict[str, bytes]:
        """Return the bytes of `boxes`, `box_targets` and `box_count` of inputs that became rows, whose lines are `samples`."""
        lines = [Sample.decode(line) for line in samples]
        pictures = np.array(
            [(s.width, s.height, s.decoding.get("exif_orientation", 1)) for s in lines], np.int64
        ).reshape(-1, 3)
        boxes = self._boxes.chosen(inputs)
        owners = np.repeat(np.arange(len(lines)), boxes.counts)
        corners, is_kept = self._in_rows(boxes, owners, pictures, [line.path for line in lines])
        return self._packed(corners[is_kept], boxes.targets[is_kept], owners[is_kept], len(lines))

    def notes(self) -> list[str]:
        """Say what became of boxes beside being moved, one sentence for each kind of change."""
        sentences = {
            "order": "have their corners in the wrong order, which is fixed",
            "outside": "reach outside their picture and are cut to it",
            "empty": "have no area inside their picture and are left out",
            "hidden": "have no area in the row and are left out",
            "scaled": "are scaled, as their picture has another size than the label file says",
            "turned": "are turned as EXIF turns their picture",
        }
        notes = []
        for kind, sentence in sentences.items():
            if found := self._found.get(kind):
                more = " and others" if found.pictures > len(found.names) else ""
                boxes, images = counted(found.boxes, "box", "boxes"), counted(found.pictures, "image", "images")
                if found.boxes == 1:
                    sentence = re.sub(r"\b[a-z]+\b", lambda word: _SINGULAR.get(word[0], word[0]), sentence)
                notes.append(f"{boxes} of {images} {sentence}: {', '.join(found.names)}{more}.")
        return notes

    def _in_rows(self, boxes: Boxes, owners: Ints, pictures: Ints, names: list[str]) -> tuple[Floats, Flags]:
        """Return corners in row pixels, and which boxes stay."""
        sizes, orientations = pictures[:, :2], pictures[:, 2]

        def note(kind: str, is_so: Flags) -> None:
            """Count the boxes for which it is so under a kind of change."""
            self._add(kind, owners[is_so], names)

        stored = np.where(orientations[:, None] >= 5, sizes[:, ::-1], sizes)
        # a label file that gives the size after turning was made from upright pictures
        is_upright = (boxes.frames == sizes).all(1) & (boxes.frames != stored).any(1)
        framed = np.where(is_upright[:, None], sizes, stored)
        frames = np.where(boxes.frames == 0, framed, boxes.frames)
        turns = np.where(is_upright, 1, orientations)
        corners = boxes.corners * np.tile(framed / frames, 2)[owners]
        is_swapped: Flags = np.any(corners[:, :2] > corners[:, 2:], axis=1)
        note("order", is_swapped)
        corners = _ordered(corners)
        cut = corners.clip(0, np.tile(framed, 2)[owners])
        note("outside", (np.abs(cut - corners) > _ROUNDING_PIXELS).any(1) & (_areas(cut) > 0))
        is_scaled: Flags = ((frames != framed) & (frames != 1)).any(axis=1)
        note("scaled", is_scaled[owners])
        note("turned", (turns > 1)[owners])
        moved = moved_to_rows(cut, owners, np.column_stack([sizes, turns]), self._geometry)
        rows = [self._geometry.row_size(self._geometry.resized(*size)) for size in sizes.tolist()]
        inside = moved.clip(0, np.tile(np.array(rows, np.float64).reshape(-1, 2), 2)[owners])
        full, left = _areas(moved), _areas(inside)
        is_kept = left > 0
        note("empty", full == 0)
        note("hidden", (full > 0) & ~is_kept)
        return inside, is_kept

    def _add(self, kind: str, owners: Ints, names: list[str]) -> None:
        """Count boxes of these pictures, one entry a box."""
        if len(owners):
            found = self._found.setdefault(kind, _Change())
            pictures = np.unique(owners)
            found.boxes += len(owners)
            found.pictures += len(pictures)
            found.names += [names[i] for i in pictures[: _NAMED - len(found.names)]]

    def _packed(self, corners: Floats, targets: Ints, owners: Ints, rows: int) -> dict[str, bytes]:
        """Lay boxes into rows of K slots; free ones hold zeros, and target -1."""
        k = self._boxes.most
        counts = np.bincount(owners, minlength=rows)
        slots = np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]
        laid, laid_targets = np.zeros((rows, k, 4), "<f4"), np.full((rows, k), -1, "<i8")
        laid[owners, slots], laid_targets[owners, slots] = corners, targets
        return {
            "boxes": laid.tobytes(),
            "box_targets": laid_targets.tobytes(),
            "box_count": counts.astype("<i4").tobytes(),
        }


def moved_to_rows(corners: Floats, owners: Ints, pictures: Ints, geometry: Geometry) -> Floats:
    """Move corners from pictures as they are stored into rows, float64[M, 4], cut nowhere.

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


def _areas(corners: Floats) -> Floats:
    areas: Floats = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    return areas


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """Join ranges: starts 5, 0 and counts 2, 3 -> 5, 6, 0, 1, 2."""
    before = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(starts - before, counts)
