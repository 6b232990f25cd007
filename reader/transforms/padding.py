"""Padding around images, as torchvision pads: a constant, or the image repeated. uint8 in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from reader.described import Described
from reader.store import ImageBatch, replaced
from reader.transforms.annotations import Motion, moved_content, moved_extras
from reader.transforms.fills import Fill, class_beyond, levels_beyond
from reader.transforms.random import check_batch, integer, numbers

_MODES = ("constant", "edge", "reflect", "symmetric")


@dataclass(frozen=True, init=False)
class Padding:
    """Pixels to add on each side of a row, and what they are.

    Raises:
        ValueError: padding is not 0 or more pixels, or mode is no mode.
    """

    left: int
    top: int
    right: int
    bottom: int
    fill: tuple[float, ...]
    mask_fill: int
    mode: str

    def __init__(self, padding: int | Sequence[int], fill: Fill, mode: str) -> None:
        sides = tuple(integer("padding", side) for side in numbers("padding", padding))
        # (left and right, top and bottom), or all four in torchvision's order
        sides = sides * 4 if len(sides) == 1 else sides * 2 if len(sides) == 2 else sides
        if len(sides) != 4 or min(sides) < 0:
            raise ValueError(f"padding is {padding!r}, expected 0 or more pixels: one number, two or four.")
        if mode not in _MODES:
            raise ValueError(f"padding_mode is {mode!r}, expected one of {', '.join(_MODES)}.")
        for name, side in zip(("left", "top", "right", "bottom"), sides, strict=True):
            object.__setattr__(self, name, side)
        object.__setattr__(self, "fill", levels_beyond(fill) or (0.0,))
        object.__setattr__(self, "mask_fill", class_beyond(fill))
        object.__setattr__(self, "mode", mode)

    def __str__(self) -> str:
        sides = (self.left, self.top, self.right, self.bottom)
        return str(self.left) if len({*sides}) == 1 else str(sides)

    def more(self, width: int, height: int) -> Padding:
        """Add this many pixels on both sides."""
        sides = (self.left + width, self.top + height, self.right + width, self.bottom + height)
        return Padding(sides, {"Image": self.fill, "Mask": self.mask_fill}, self.mode)

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Give height and width of padded rows."""
        return height + self.top + self.bottom, width + self.left + self.right

    def applied(self, batch: ImageBatch) -> ImageBatch:
        """Pad rows, and move boxes, masks and content.

        Raises:
            ValueError: the image is repeated, and there are boxes, or more pixels are to be repeated than it has.
        """
        if not (self.left or self.top or self.right or self.bottom):
            return batch
        height, width = self.size_of(*batch.pixels.shape[1:3])
        if self.mode not in ("constant", "edge") and batch.extras is not None and "boxes" in dict(batch.extras.items()):
            raise ValueError(
                f'padding_mode "{self.mode}" repeats what boxes hold. Take "constant" or "edge" for rows with boxes.'
            )
        motion = Motion(-self.left, -self.top, 1, 1, width, height)
        of_masks = Padding((self.left, self.top, self.right, self.bottom), self.mask_fill, self.mode)
        return replaced(
            batch,
            pixels=self.padded(batch.pixels),
            content=None if batch.content is None else moved_content(batch.content, motion),
            extras=moved_extras(batch.extras, motion, lambda masks: of_masks.padded(masks[..., None])[..., 0]),
        )

    def padded(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pad uint8[B, H, W, C]."""
        if self.mode == "constant":
            return self._filled(pixels)
        height, width = pixels.shape[1:3]
        for most, size in ((max(self.left, self.right), width), (max(self.top, self.bottom), height)):
            if self.mode != "edge" and most >= size + (self.mode == "symmetric"):
                raise ValueError(f"{self} pixels of padding mirror more than the {size} that there are.")
        down = self._source_indices(self.top, self.bottom, height, pixels.device)
        across = self._source_indices(self.left, self.right, width, pixels.device)
        # lines are copied as they are; to gather all pixels takes six times as long
        left, right = across[: self.left], across[self.left + width :]
        lines = torch.cat([pixels.index_select(2, left), pixels, pixels.index_select(2, right)], 2)
        return lines.index_select(1, down)

    def _filled(self, pixels: torch.Tensor) -> torch.Tensor:
        sides = (0, 0, self.left, self.right, self.top, self.bottom)
        if len({*self.fill}) == 1:
            return torch.nn.functional.pad(pixels, sides, value=int(self.fill[0]))
        if len(self.fill) != pixels.shape[-1]:
            raise ValueError(
                f"fill is {self.fill}, expected one level, or one for each of {pixels.shape[-1]} channels."
            )
        channels = zip(pixels.split(1, -1), self.fill, strict=True)
        return torch.cat([torch.nn.functional.pad(each, sides, value=int(level)) for each, level in channels], -1)

    def _source_indices(self, before: int, after: int, size: int, device: torch.device) -> torch.Tensor:
        """Give int64[before + size + after], the pixel of the row that each new one shows."""
        index = torch.arange(-before, size + after, device=device)
        if self.mode == "edge":
            return index.clamp(0, size - 1)
        if self.mode == "reflect":
            # [-2, -1, 0, .., n - 1, n] -> [2, 1, 0, .., n - 1, n - 2]
            index = index.abs()
            return torch.where(index >= size, 2 * (size - 1) - index, index)
        # [-2, -1, 0, .., n - 1, n] -> [1, 0, 0, .., n - 1, n - 1]
        index = torch.where(index < 0, -1 - index, index)
        return torch.where(index >= size, 2 * size - 1 - index, index)


class Pad(Described):
    """Pad each image on all sides. Not random.

    Args:
        padding: pixels on every side, two of them for left and right, and top and bottom, or four: left, top, right, bottom.
        fill: level of constant padding, one for each channel, or a dict of both as torchvision takes it; masks get 255.
        padding_mode: "constant"; "edge" repeats the outermost pixel; "reflect" mirrors the image at it; "symmetric" with it.

    Raises:
        ValueError: padding is not 0 or more pixels, or padding_mode is not one of these.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> Pad(2, padding_mode="reflect")(batch).images.shape
        torch.Size([2, 3, 36, 36])
    """

    def __init__(self, padding: int | Sequence[int], fill: Fill = 0, padding_mode: str = "constant") -> None:
        self.padding = Padding(padding, fill, padding_mode)

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return larger images, padding included; where rows have content, it moves, and stays the image.

        Raises:
            ValueError: the rows have boxes, and padding repeats what they hold.
        """
        check_batch(self, batch)
        return self.padding.applied(batch)
