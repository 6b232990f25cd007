"""The layout of rows in a store's files: all of one size, or each as large as its image. All positions are bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packer.options import CHANNELS
from packer.pixels.geometry import Geometry
from reader.format.manifest import whole_pages

# Share of raw bytes that JPEGs of photographs take, at quality 95 and 100: `python -m scripts.bench row_forms`.
_OF_JPEGS, _OF_BEST_JPEGS, _USUAL_QUALITY = 0.22, 0.5, 95


@dataclass(frozen=True)
class RowLayout:
    """Rows of one size, with masks in a separate file; or as large as their images, each followed by its mask.

    channels: rgb, gray or rgba, as in `packer.options.CHANNELS`.
    quality: 0: raw; else each row is a JPEG, of unknown size before it is encoded; sizes below are of decoded rows.
    """

    geometry: Geometry
    channels: str
    has_masks: bool = False
    quality: int = 0

    @property
    def channel_count(self) -> int:
        """Bytes of a pixel, without its mask."""
        return CHANNELS[self.channels]

    @property
    def pixel_bytes(self) -> int:
        """Bytes that a pixel takes in the file of rows, with its mask if that is in the same file."""
        return self.channel_count + (self.has_masks and not self.has_mask_file)

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of every row, or None if they differ."""
        return self.geometry.common_sides

    @property
    def has_mask_file(self) -> bool:
        """Whether masks are in a separate file."""
        return self.has_masks and not self.geometry.has_own_sizes

    @property
    def tensor_bytes(self) -> dict[str, int]:
        """Bytes of a row in each tensor that follows from the images."""
        has_own_sizes = self.geometry.has_own_sizes
        tensors = {
            "offsets": (8, has_own_sizes),
            "shapes": (12, has_own_sizes),
            "mask_offsets": (8, has_own_sizes and self.has_masks),
            "content": (16, self.geometry.has_content),
            "frames": (16, self.quality),
        }
        return {name: row_bytes for name, (row_bytes, is_there) in tensors.items() if is_there}

    def expected_bytes(self, size_bytes: int) -> int:
        """Estimated bytes of these rows in the file."""
        share = _OF_JPEGS if self.quality <= _USUAL_QUALITY else _OF_BEST_JPEGS
        return self.file_bytes(int(size_bytes * share) if self.quality else size_bytes)

    def size_bytes(self, rows: int, shapes: Iterable[tuple[int, int]] = ()) -> int:
        """Bytes of this many rows; shapes has (height, width) of each if they differ."""
        if self.geometry.has_own_sizes:
            return sum(height * width for height, width in shapes) * self.pixel_bytes
        return rows * self.geometry.height * self.geometry.width * self.channel_count

    def file_bytes(self, used_bytes: int) -> int:
        """Size of a file with this many bytes of rows."""
        return whole_pages(used_bytes) if self.quality or self.geometry.has_own_sizes else used_bytes

    def mask_bytes(self, pixel_bytes: int) -> int:
        """Convert an offset or a size in the file of rows to that in the file of masks, which have one byte a pixel."""
        return pixel_bytes // self.channel_count
