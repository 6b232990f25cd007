"""Outlines of objects, as label files give them, polygons and COCO's RLE: the box around each, and the mask that they make.

Pixels are those of pycocotools (2.0, `common/maskApi.c`): the same rule fills a polygon, and RLE runs down the columns. Reads no
file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.errors import OutlineError
from reader.format.fields import Json

# Polygons, each x0, y0, x1, y1, ..., or RLE: {"size": [height, width], "counts": text or numbers}
Outline = list[list[float]] | dict[str, Any]
Corners = tuple[float, float, float, float]
Sides = tuple[int, int]

# No side is longer; what is has more digits than a float holds.
_MOST = 2.0**53
# pycocotools fills on a grid so much finer than pixels
_FINE = 5
# More steps along the edges of a polygon than any drawing has: coordinates of another unit.
_MOST_STEPS = 100_000_000
# More pixels than `PackOptions.max_pixels` has by default are no mask of COCO's.
_MOST_PIXELS = 1 << 28


def outline_of(segmentation: object) -> Outline | None:
    """Return what COCO's `segmentation` says, None where it says nothing.

    Raises:
        OutlineError: it is neither polygons nor RLE.
    """
    if segmentation in (None, [], {}):
        return None
    if isinstance(segmentation, dict):
        size, counts = segmentation.get("size"), segmentation.get("counts")
        if not _are_sides(size) or not (isinstance(counts, str) or (isinstance(counts, list) and counts)):
            raise OutlineError(f"the RLE {repr(segmentation)[:80]}; expected its size, height and width, and counts")
        return {"size": size, "counts": counts}
    if not isinstance(segmentation, list):
        raise OutlineError(f"the segmentation {repr(segmentation)[:80]}; expected polygons or RLE")
    for polygon in segmentation:
        if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2 or not all(map(is_finite, polygon)):
            raise OutlineError(f"the polygon {repr(polygon)[:80]}; expected x, y of three points or more")
    return segmentation


def is_finite(value: Json) -> bool:
    """Whether a value of a json is a number that can be a coordinate."""
    return type(value) in (int, float) and abs(value) <= _MOST  # false for nan


def box_around(outline: Outline) -> Corners:
    """Return x0, y0, x1, y1 around polygons; of RLE around its pixels, 0, 0, 0, 0 where it has none.

    Raises:
        OutlineError: the counts of an RLE are none.

    Example:
        >>> box_around([[1, 2, 5, 2, 3, 6.5]]), box_around({"size": [4, 5], "counts": [5, 2, 2, 1, 10]})
        ((1.0, 2.0, 5.0, 6.5), (1.0, 1.0, 3.0, 3.0))
    """
    if isinstance(outline, dict):
        mask = _of_runs(outline)
        ys, xs = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        if not len(xs):
            return 0.0, 0.0, 0.0, 0.0
        return float(xs[0]), float(ys[0]), float(xs[-1]) + 1, float(ys[-1]) + 1
    points = np.array([number for polygon in outline for number in polygon], np.float64).reshape(-1, 2)
    return (*points.min(0).tolist(), *points.max(0).tolist())


def drawing(outlines: Sequence[tuple[int, Outline]], frame: Sequence[float]) -> str:
    """Write down what an image's mask is made of: values and outlines, the last on top, in a frame of this width and height."""
    return json.dumps([*map(float, frame), outlines], separators=(",", ":"))


def frame_of(text: str) -> tuple[float, float]:
    """Return width and height of the frame of a drawing: 1, 1: coordinates are fractions; 0, 0: pixels, whatever the size."""
    width, height, _ = json.loads(text)
    return width, height


def draw(text: str, size: Sides) -> npt.NDArray[np.uint8]:
    """Draw the mask of an image of this width and height, uint8[height, width], 0 where no outline is.

    Raises:
        OutlineError: an outline cannot be drawn.
    """
    width, height = size
    frame_width, frame_height, outlines = json.loads(text)
    scale = np.array([width / (frame_width or width), height / (frame_height or height)])
    # column after column, as both kinds of outlines are
    canvas = np.zeros((width, height), np.uint8)
    for value, outline in outlines:
        if isinstance(outline, dict):
            np.copyto(canvas, value, where=_resized(_of_runs(outline), size).T)
            continue
        for polygon in outline:
            x0, inside = _filled(np.array(polygon, np.float64).reshape(-1, 2) * scale, size)
            np.copyto(canvas[x0 : x0 + len(inside)], value, where=inside)
    return np.ascontiguousarray(canvas.T)


def _filled(points: npt.NDArray[np.float64], size: Sides) -> tuple[int, npt.NDArray[np.bool_]]:
    """Fill a polygon as rleFrPoly does; returns the first column with a pixel, and bool[columns, height] from there on."""
    width, height = size
    u, v = _boundary(points)
    is_step = u[1:] != u[:-1]
    # where the boundary crosses the center of a column of pixels, and the first pixel below that
    xs = (np.where(u[1:] < u[:-1], u[1:], u[1:] - 1)[is_step] + 0.5) / _FINE - 0.5
    ys = np.ceil(((np.minimum(v[1:], v[:-1])[is_step] + 0.5) / _FINE - 0.5).clip(0, height)).astype(np.int64)
    is_center = (np.floor(xs) == xs) & (xs >= 0) & (xs <= width - 1)
    columns, ys = xs[is_center].astype(np.int64), ys[is_center]
    if not len(columns):
        return 0, np.zeros((0, height), np.bool_)
    first, count = int(columns.min()), int(columns.max() - columns.min()) + 1
    # inside and outside change at each crossing, column after column
    changes = np.sort((columns - first) * height + ys)
    runs = np.diff(changes, prepend=0, append=count * height).clip(0)
    inside = np.repeat(np.arange(len(runs)) % 2 == 1, runs)[: count * height]
    return first, inside.reshape(count, height)


def _boundary(points: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return x and y of each step along the edges of a polygon, on the fine grid."""
    fine = np.trunc(_FINE * points + 0.5).clip(-_MOST, _MOST).astype(np.int64)
    x, y = np.vstack([fine, fine[:1]]).T
    xs, xe, ys, ye = x[:-1], x[1:], y[:-1], y[1:]
    dx, dy = np.abs(xe - xs), np.abs(ye - ys)
    is_flat = dx >= dy
    steps = np.maximum(dx, dy)
    if (total := float(steps.sum(dtype=np.float64))) > _MOST_STEPS:
        raise OutlineError(
            f"a polygon's edges are {total / _FINE:.0f} pixels long: its coordinates are of another unit"
        )
    is_turned = np.where(is_flat, xs > xe, ys > ye)
    xs, xe = np.where(is_turned, xe, xs), np.where(is_turned, xs, xe)
    ys, ye = np.where(is_turned, ye, ys), np.where(is_turned, ys, ye)
    slope = np.where(is_flat, ye - ys, xe - xs) / np.maximum(steps, 1)
    # [2, 1] -> edges 0, 0, 0, 1, 1 and along them 0, 1, 2, 0, 1
    edge = np.repeat(np.arange(len(steps)), steps + 1)
    along = np.arange(len(edge)) - np.repeat(np.cumsum(steps + 1) - (steps + 1), steps + 1)
    along = np.where(is_turned[edge], steps[edge] - along, along)
    straight = along + np.where(is_flat, xs, ys)[edge]
    sloped = (np.where(is_flat, ys, xs)[edge] + slope[edge] * along + 0.5).astype(np.int64)
    flat = is_flat[edge]
    return np.where(flat, straight, sloped), np.where(flat, sloped, straight)


def _of_runs(outline: dict[str, Any]) -> npt.NDArray[np.bool_]:
    """Return the mask of an RLE, bool[height, width]: runs of 0 and 1 in turns, down the columns."""
    height, width = outline["size"]
    counts = outline["counts"]
    runs = _decoded(counts) if isinstance(counts, str) else counts
    if height * width > _MOST_PIXELS:
        raise OutlineError(f"an RLE of {width} x {height} pixels")
    if not all(type(run) is int and run >= 0 for run in runs) or sum(runs) != height * width:
        raise OutlineError(f"an RLE whose counts do not add up to its {width} x {height} pixels")
    flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return flat.reshape(width, height).T


def _decoded(text: str) -> list[int]:
    """Decode the compressed counts of an RLE (rleFrString): 5 bits a character, each count but three as a difference."""
    runs: list[int] = []
    value, bits = 0, 0
    for code in text.encode("ascii", "replace"):
        value |= (code - 48 & 31) << bits
        bits += 5
        if code - 48 & 32:
            continue
        if code - 48 & 16:
            value -= 1 << bits
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value, bits = 0, 0
    return runs


def _resized(mask: npt.NDArray[np.bool_], size: Sides) -> npt.NDArray[np.bool_]:
    """Bring a mask to another width and height, each pixel from the nearest one."""
    width, height = size
    if mask.shape == (height, width):
        return mask
    ys = ((np.arange(height) + 0.5) * mask.shape[0] / height).astype(np.int64)
    xs = ((np.arange(width) + 0.5) * mask.shape[1] / width).astype(np.int64)
    return mask[np.ix_(ys, xs)]


def _are_sides(size: object) -> bool:
    return isinstance(size, list) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)
