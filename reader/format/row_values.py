"""Checks of row values by the manifest: classes in the list, content inside the row, shapes inside the pixels.

It takes numpy arrays, but does not import numpy. The values grow with the rows, so opening does not read them: a reader
checks those of a batch; `pack verify` and commands that write stores check all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from reader.format.errors import StoreError
from reader.format.manifest import MOST_JPEG_RATIO, Manifest, TensorSpec
from reader.format.values import INT32_MOST

# A numpy array; this package does not import numpy.
Array: TypeAlias = Any
# A JPEG of noise at quality 100 has 1.6 times the bytes of the row, and 620 bytes of tables.
_MOST_TIMES, _MOST_BEYOND = 4, 4096


class RowValues:
    """Checks the row values of one store, by their names in its manifest."""

    def __init__(self, manifest: Manifest) -> None:
        # tensor -> the name of a value, its minimum and its maximum
        self._ranges = dict(_ranges(manifest))
        self._has_content, self._height, self._width = manifest.has_content, manifest.height, manifest.width
        self._has_shapes, self._channels = manifest.has_own_sizes, manifest.channels

    @property
    def tensors(self) -> list[str]:
        """The tensors with rules, except the offsets, which `wrong_extents` checks."""
        return [*self._ranges, *["content"] * self._has_content, *["shapes"] * self._has_shapes]

    def wrong_row(self, columns: Mapping[str, Array]) -> tuple[int, str] | None:
        """Return the first position with invalid values, and the error; None if all are valid.

        columns: tensor -> numpy array [n, ...] of the same n rows; tensors without rules are ignored.
        """
        for name in self._ranges:
            if (found := self._outside(name, columns[name])) is not None:
                return found
        if self._has_content:
            return self._wrong_content(columns["content"])
        return self._wrong_shape(columns["shapes"]) if self._has_shapes else None

    def check(self, where: str, rows: Array, columns: Mapping[str, Array]) -> None:
        """Check rows of a store that are about to be used.

        Args:
            where: the path of the store.
            rows: int64[n], the rows of the columns in the store.

        Raises:
            StoreError: names the first invalid row.
        """
        if (found := self.wrong_row(columns)) is not None:
            raise _error(where, int(rows[found[0]]), found[1])

    def check_targets(self, where: str, start: int, targets: Array) -> None:
        """Check only targets, of the rows from start on; raises StoreError as `check`."""
        if "targets" in self._ranges and (found := self._outside("targets", targets)) is not None:
            raise _error(where, start + found[0], found[1])

    def _outside(self, name: str, values: Array) -> tuple[int, str] | None:
        what, least, most = self._ranges[name]
        if not values.size or (values.min() >= least and values.max() <= most):
            return None
        position = _first(~((values >= least) & (values <= most)))
        return position, f"{what} is {_listed(values[position])}, expected {least} to {most}"

    def _wrong_content(self, content: Array) -> tuple[int, str] | None:
        y0, x0, y1, x1 = content.T
        wrong = (y0 < 0) | (y0 >= y1) | (y1 > self._height) | (x0 < 0) | (x0 >= x1) | (x1 > self._width)
        if not wrong.any():
            return None
        found = content[position := int(wrong.argmax())].tolist()
        return position, f"its content is {found}, which is not part of {self._height} x {self._width}"

    def _wrong_shape(self, shapes: Array) -> tuple[int, str] | None:
        height, width, channels = shapes.T
        wrong = (height < 1) | (height > self._height) | (width < 1) | (width > self._width)
        wrong |= channels != self._channels
        if not wrong.any():
            return None
        found, most = shapes[position := int(wrong.argmax())].tolist(), [self._height, self._width, self._channels]
        return position, f"its shape is {found}, expected sides of 1 or more up to those of {most}"


def wrong_extents(offsets: Array, shapes: Array, mask_offsets: Array | None, size_bytes: int) -> tuple[Array, Array]:
    """Return the bytes of each row, int64[n], masks included, and which rows are not in the pixels, bool[n].

    Args:
        offsets: int64[n]. shapes: int32[n, 3]. mask_offsets: int64[n] or None.
        size_bytes: size of the pixels.
    """
    sides = shapes.astype("int64")
    areas = sides[:, 0] * sides[:, 1]
    wrong = (sides < 1).any(axis=1) | (sides[:, 2] > _MOST_CHANNELS) | (areas > size_bytes) | (offsets < 0)
    # a wrong row gets size 0: the product of its sides may not fit into 64 bits
    areas = areas * ~wrong
    sizes = areas * sides[:, 2].clip(0, _MOST_CHANNELS)
    if mask_offsets is not None:
        wrong = wrong | (mask_offsets != offsets + sizes)
        sizes = sizes + areas
    return sizes, wrong | (sizes > size_bytes - offsets)


_MOST_CHANNELS = 4


def wrong_frames(frames: Array, sizes: Array, size_bytes: int) -> Array:
    """Return which rows have frames that are not in the file, or cannot hold the row, bool[n].

    Args:
        frames: int64[n, 2], the start and stop byte of each frame.
        sizes: int64[n], bytes of each decoded row.
        size_bytes: size of the file of frames.
    """
    begins, ends = frames[:, 0], frames[:, 1]
    wrong = (begins < 0) | (ends <= begins) | (ends > size_bytes)
    lengths = (ends - begins) * ~wrong
    return wrong | (sizes // MOST_JPEG_RATIO > lengths) | ((lengths - _MOST_BEYOND) // _MOST_TIMES > sizes)


def _ranges(manifest: Manifest) -> Iterator[tuple[str, tuple[str, int, int]]]:
    if manifest.target_kind == "class":
        yield "targets", ("its target", -1, len(manifest.classes) - 1)
    elif manifest.target_kind == "multi-hot":
        yield "targets", ("its target", 0, 1)
    if has_boxes(manifest):
        yield (
            "extras/box_targets",
            ("the class of a box", -1, max(len(manifest.classes) - 1, -1) if manifest.classes else INT32_MOST),
        )
        yield "extras/box_count", ("its count of boxes", 0, manifest.extras["boxes"].row_shape[0])


def has_boxes(manifest: Manifest) -> bool:
    """Return whether a store has boxes, as packed by --boxes: extras of these names may also be a user's columns."""
    specs = [manifest.extras.get(name) for name in ("boxes", "box_targets", "box_count")]
    count = specs[0].row_shape[0] if specs[0] and specs[0].row_shape else 0
    return specs == [TensorSpec("float32", (count, 4)), TensorSpec("int64", (count,)), TensorSpec("int32", ())]


def _error(where: str, row: int, what: str) -> StoreError:
    return StoreError(
        f"{where}: row {row}: {what}. The store is damaged, or was not made by pixpack. Run: pack verify {where}"
    )


def _first(wrong: Array) -> int:
    """Return the first of n positions with a wrong value: bool[n, ...] -> n."""
    return int(wrong.reshape(len(wrong), -1).any(axis=1).argmax())


def _listed(values: Array) -> str:
    """Format a number, or the first few of several."""
    first = values.reshape(-1)[:4].tolist()
    return str(first[0]) if values.ndim == 0 else f"{first}"
