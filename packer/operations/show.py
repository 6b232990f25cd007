"""Draws a contact sheet of a store: its rows as tiles, with their boxes and masks. Needs no torch."""

from __future__ import annotations

import colorsys
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from packer.errors import OptionsError
from packer.options import TILES
from packer.store.sealed_rows import StoredRows, mapped_tensor
from packer.store.state import check_finished
from reader.format.manifest import Manifest, TensorSpec
from reader.format.row_values import RowValues, has_boxes
from reader.format.shown import shown

_TILE = 128
# large enough to make out boxes and masks
_TILE_WITH_LABELS = 256
_MARGIN = 6
_CAPTION = 16
# Of Pillow's built-in font, and of a caption with its background.
_CHARACTER_WIDTH, _NAME_HEIGHT = 6, 13
_TILES_A_LINE = 8
_PAPER, _INK = (250, 250, 248), (60, 60, 60)
_PALE = 0.5
# More boxes hide the picture, and take seconds to draw.
_MOST_BOXES = 1000
# the golden ratio: neighbors among class numbers get hues far from each other
_HUE_STEP = 0.618034


def contact_sheet(
    out: str | os.PathLike[str],
    *,
    rows: Sequence[int] | None = None,
    count: int = TILES,
) -> Image.Image:
    """Draw rows as tiles with captions, boxes and masks, aspect kept; without rows, `count` of them spread evenly over the store.

    Raises:
        StoreError: OUT is not a complete store.
        OptionsError: a row is out of range.
    """
    manifest, path = check_finished(out), Path(out)
    pixels, targets = StoredRows(path, manifest), mapped_tensor(path, manifest, "targets")
    chosen = list(rows) if rows is not None else spread(manifest.rows, count)
    if wrong := next((row for row in chosen if row >= manifest.rows), None):
        raise OptionsError(f"row {wrong} is out of range: the store has rows 0 to {manifest.rows - 1}.")
    extras = {name: mapped_tensor(path, manifest, f"extras/{name}") for name in manifest.extras}
    # an extra of this name may be another program's
    is_masked = manifest.extras.get("masks") == TensorSpec("uint8", manifest.largest) or manifest.has_own_masks
    has_labels = is_masked or has_boxes(manifest)
    columns, side = min(_TILES_A_LINE, len(chosen)), _TILE_WITH_LABELS if has_labels else _TILE
    height, width = manifest.common_sides or (side, side)
    tile = _scaled(width, height, side)
    step_x, step_y = tile[0] + _MARGIN, tile[1] + _CAPTION + _MARGIN
    lines = -(-len(chosen) // columns)
    sheet = Image.new("RGB", (columns * step_x + _MARGIN, lines * step_y + _MARGIN), _PAPER)
    draw, checks = ImageDraw.Draw(sheet), RowValues(manifest)
    for number, row in enumerate(chosen):
        checks.check_targets(str(out), row, targets[row : row + 1])
        x, y = _MARGIN + number % columns * step_x, _MARGIN + number // columns * step_y
        values = pixels.pixels(row, pixels.stored(row))
        image = Image.fromarray(values[:, :, 0] if manifest.channels == 1 else values).convert("RGB")
        if is_masked:
            image = _tinted(image, pixels.mask(row) if manifest.has_own_masks else extras["masks"][row])
        # small rows (32 x 32) are shown as the squares they are
        scale = side / max(image.size)
        resample = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
        image = image.resize(_scaled(*image.size, side), resample)
        if has_boxes(manifest):
            boxes = extras["boxes"][row, : max(0, int(extras["box_count"][row]))]
            _draw_boxes(image, boxes * scale, extras["box_targets"][row], manifest.classes)
        sheet.paste(image, (x + (tile[0] - image.width) // 2, y + (tile[1] - image.height) // 2))
        draw.text((x, y + tile[1] + 2), _fitted(_label(manifest, targets, row), tile[0]), _INK)
    return sheet


def spread(rows: int, count: int) -> list[int]:
    """Return up to count rows, evenly spread.

    Example:
        >>> spread(10, 3)
        [1, 5, 8]
    """
    count = min(rows, count)
    return [(2 * i + 1) * rows // (2 * count) for i in range(count)]


def _scaled(width: int, height: int, side: int) -> tuple[int, int]:
    """Return (width, height) whose longer one is a tile's side."""
    scale = side / max(width, height)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _tinted(image: Image.Image, mask: npt.NDArray[np.uint8]) -> Image.Image:
    """Lay a mask over its picture; value 0 stays clear."""
    colors = np.array([_color(value) for value in range(256)])[mask]
    opacity = _PALE * (mask > 0)[..., None]
    return Image.fromarray((np.asarray(image) * (1 - opacity) + colors * opacity).astype(np.uint8))


def _draw_boxes(
    image: Image.Image, boxes: npt.NDArray[Any], targets: npt.NDArray[np.int64], classes: Sequence[str]
) -> None:
    """Draw boxes, in pixels of the picture, and class names if they fit."""
    draw = ImageDraw.Draw(image)
    # a box of another program may be anywhere, or nan
    most = np.float32(max(image.size))
    corners = np.nan_to_num(boxes[:_MOST_BOXES]).clip(-most, 2 * most).tolist()
    for (x0, y0, x1, y1), target in zip(corners, targets.tolist(), strict=False):
        color = _color(target + 1)
        draw.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=color, width=2)
        name = _fitted(classes[target] if 0 <= target < len(classes) else "", int(x1 - x0))
        if name:
            draw.rectangle((x0, y0, x0 + draw.textlength(name) + 4, y0 + _NAME_HEIGHT), fill=color)
            draw.text((x0 + 2, y0 + 1), name, "black")


def _label(manifest: Manifest, targets: npt.NDArray[Any], row: int) -> str:
    if manifest.target_kind == "class":
        index = int(targets[row])
        return manifest.classes[index] if 0 <= index < len(manifest.classes) else f"row {row}"
    if manifest.target_kind == "multi-hot":
        names = [name for name, value in zip(manifest.classes, targets[row], strict=False) if value]
        return ", ".join(names[:_TILE]) or "none"
    return ", ".join(f"{value:g}" for value in targets[row][:_TILE])


def _fitted(text: str, width: int) -> str:
    """Shorten text to a width in pixels; a question mark replaces characters that the built-in font lacks."""
    most = width // _CHARACTER_WIDTH - len("...")
    return shown(text, most=most).encode("latin-1", "replace").decode("latin-1") if most > 0 else ""


def _color(number: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(number * _HUE_STEP % 1, 0.75, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)
