"""Boxes and masks of a store's rows, drawn over their pictures in the colors of their classes."""

from __future__ import annotations

import colorsys
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from packer.store.sealed.ragged_rows import StoredRows, mapped_tensor
from reader.format.manifest import Manifest, TensorSpec
from reader.format.row_values import has_boxes
from reader.format.shown import shown

_PALE = 0.5
# of a name in Pillow's own font, with its background
_NAME_HEIGHT = 13
_NAME_CHARACTERS = 60
# More hide the picture, and take seconds to draw.
_MOST_BOXES = 1000
# the golden ratio: neighbors among class numbers get hues far from each other
_HUE_STEP = 0.618034


class Overlay:
    """What is over the rows of one store; draws nothing where it has neither boxes nor masks."""

    def __init__(self, out: str | os.PathLike[str], manifest: Manifest) -> None:
        self._classes: Sequence[str] = manifest.classes
        names = {"boxes", "box_count", "box_targets", "masks"} & set(manifest.extras)
        self._tensors = {name: mapped_tensor(Path(out), manifest, f"extras/{name}") for name in names}
        self.out = out
        self._has_boxes = has_boxes(manifest)
        self._own = StoredRows(Path(out), manifest) if manifest.has_own_masks else None
        # an extra of this name may be a user's own column
        is_mask = manifest.extras.get("masks") == TensorSpec("uint8", (manifest.height, manifest.width))
        self._has_masks = self._own is not None or is_mask

    @property
    def is_empty(self) -> bool:
        """Whether the store has neither boxes nor masks."""
        return not self._has_boxes and not self._has_masks

    def tint(self, image: Image.Image, row: int) -> Image.Image:
        """Lay a row's mask over its picture, an RGB image of the row's size; value 0 stays clear."""
        if not self._has_masks:
            return image
        mask = self._tensors["masks"][row] if self._own is None else self._own.mask(row)
        colors = np.array([_color(value) for value in range(256)])[mask]
        opacity = _PALE * (mask > 0)[..., None]
        mixed = np.asarray(image) * (1 - opacity) + colors * opacity
        return Image.fromarray(mixed.astype(np.uint8))

    def draw(self, image: Image.Image, row: int, scale: float) -> None:
        """Draw a row's boxes into its picture, which is scaled by this."""
        if not self._has_boxes:
            return
        draw, font = ImageDraw.Draw(image), ImageFont.load_default()
        count = max(0, min(int(self._tensors["box_count"][row]), _MOST_BOXES))
        targets = self._tensors["box_targets"][row]
        # a box that a stranger wrote may be anywhere, or nowhere
        most = np.float32(max(image.size))
        corners_of = np.nan_to_num(self._tensors["boxes"][row, :count] * scale).clip(-most, 2 * most)
        boxes = [(corners.tolist(), int(target)) for corners, target in zip(corners_of, targets, strict=False)]
        for (x0, y0, x1, y1), target in boxes:
            draw.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=_color(target + 1), width=2)
        taken: list[tuple[float, ...]] = []
        for corners, target in boxes:
            name = self._classes[target] if 0 <= target < len(self._classes) else ""
            name = shown(name, most=_NAME_CHARACTERS).encode("latin-1", "replace").decode("latin-1")
            width = draw.textlength(name, font) + 4
            if name and width < corners[2] - corners[0]:
                label = _free_corner(corners, width, taken)
                taken.append(label)
                draw.rectangle(label, fill=_color(target + 1))
                draw.text((label[0] + 2, label[1] + 1), name, "black", font)


def _free_corner(box: Sequence[float], width: float, taken: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Return where in a box its name stands: the first corner where no other name does, else the upper left one."""
    x0, y0, x1, y1 = box
    corners = [(x, y) for y in (y0, max(y0, y1 - 1 - _NAME_HEIGHT)) for x in (x0, x1 - 1 - width)]
    labels = [(x, y, x + width, y + _NAME_HEIGHT) for x, y in corners]

    def is_free(a: tuple[float, ...]) -> bool:
        return not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in taken)

    return next(filter(is_free, labels), labels[0])


def _color(number: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(number * _HUE_STEP % 1, 0.75, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)
