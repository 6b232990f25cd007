"""Boxes and masks of a store's rows, drawn over their pictures in the colours of their classes."""

from __future__ import annotations

import colorsys
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from packer.ragged import RaggedRows
from reader.manifest import Manifest

_PALE = 0.5
# the golden ratio: neighbours among class numbers get hues far from each other
_HUE_STEP = 0.618034


class Overlay:
    """What lies over the rows of one store; draws nothing where it has neither boxes nor masks."""

    def __init__(self, out: str | os.PathLike[str], manifest: Manifest) -> None:
        self._classes: Sequence[str] = manifest.classes
        names = {"boxes", "box_count", "box_targets", "masks"} & set(manifest.extras)
        self._tensors: dict[str, npt.NDArray[Any]] = {}
        for name in names:
            spec = manifest.extras[name]
            shape = (manifest.rows, *spec.row_shape)
            path = Path(out) / manifest.tensor_paths()[f"extras/{name}"]
            self._tensors[name] = np.memmap(path, spec.dtype, "r", shape=shape) if all(shape) else np.empty(shape)
        self._has_boxes = {"boxes", "box_count"} <= names and self._tensors["boxes"].ndim == 3
        self._own = RaggedRows(Path(out), manifest) if manifest.has_own_masks else None
        self._has_masks = self._own is not None or ("masks" in names and self._tensors["masks"].ndim == 3)

    @property
    def is_empty(self) -> bool:
        """Whether the store has neither boxes nor masks."""
        return not self._has_boxes and not self._has_masks

    def tint(self, image: Image.Image, row: int) -> Image.Image:
        """Lay a row's mask over its picture, an RGB image of the row's size; value 0 stays clear."""
        if not self._has_masks:
            return image
        mask = self._tensors["masks"][row] if self._own is None else self._own.mask(row)
        colours = np.array([_colour(value) for value in range(256)])[mask]
        share = _PALE * (mask > 0)[..., None]
        mixed = np.asarray(image) * (1 - share) + colours * share
        return Image.fromarray(mixed.astype(np.uint8))

    def draw(self, image: Image.Image, row: int, scale: float) -> None:
        """Draw a row's boxes into its picture, which is scaled by this."""
        if not self._has_boxes:
            return
        draw, font = ImageDraw.Draw(image), ImageFont.load_default()
        count = int(self._tensors["box_count"][row])
        targets = self._tensors["box_targets"][row] if "box_targets" in self._tensors else [-1] * count
        for corners, target in zip(self._tensors["boxes"][row, :count] * scale, targets, strict=False):
            x0, y0, x1, y1 = corners.tolist()
            colour = _colour(int(target) + 1)
            draw.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=colour, width=2)
            name = self._classes[target] if 0 <= target < len(self._classes) else ""
            name = name.encode("latin-1", "replace").decode("latin-1")
            if name and draw.textlength(name, font) < x1 - x0 - 4:
                draw.rectangle((x0, y0, x0 + draw.textlength(name, font) + 4, y0 + 13), fill=colour)
                draw.text((x0 + 2, y0 + 1), name, "black", font)


def _colour(number: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(number * _HUE_STEP % 1, 0.75, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)
