"""Pictures of a store for a person: a contact sheet, or single rows as PNG. Reads the raw file with numpy; needs no torch.

What is over the rows, boxes and masks: `packer.operations.overlay`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from packer.errors import OptionsError
from packer.operations.overlay import Overlay
from packer.option_names import Option
from packer.options import TILES, TILES_A_LINE
from packer.store.sealed.ragged_rows import EqualRows, FrameRows, RaggedRows, mapped_tensor, stored_rows
from packer.store.state import check_finished
from reader.format.manifest import PIXELS, Manifest
from reader.format.row_values import RowValues
from reader.format.shown import shown

_TILE = 128
# boxes and masks need to be made out
_TILE_WITH_LABELS = 256
_MARGIN = 6
_CAPTION = 16
# more than a tile has room for; text is measured again for each character that is left out
_CAPTION_CHARACTERS = 120
_CLASSES = 100
_PAPER, _INK = (250, 250, 248), (60, 60, 60)

_RowPixels = npt.NDArray[np.uint8] | RaggedRows | FrameRows


def contact_sheet(
    out: str | os.PathLike[str],
    *,
    rows: Sequence[int] | None = None,
    count: int = TILES,
    columns: int = TILES_A_LINE,
) -> Image.Image:
    """Draw rows as tiles with captions, boxes and masks, aspect kept; without rows, `count` of them spread evenly over the store.

    Raises:
        StoreError: OUT is not a complete store.
        IndexError: a row is out of range.
    """
    store = _open(out)
    chosen = list(rows) if rows is not None else spread(store[0].rows, count)
    return _sheet(Overlay(out, store[0]), *store, chosen, min(columns, len(chosen)))


def class_sheet(out: str | os.PathLike[str], count: int) -> Image.Image:
    """Draw a line for each class, of up to count of its rows, evenly spread; of more than 100 classes, 100 evenly spread.

    Raises:
        StoreError: OUT is not a complete store.
        OptionsError: its rows have no classes.
    """
    manifest, pixels, targets = _open(out)
    if manifest.target_kind == "regression" or not manifest.classes:
        raise OptionsError(f"{out} has no classes to draw a line of. Leave {Option('per_class')} out.")
    chosen: list[int | None] = []
    for index in spread(len(manifest.classes), _CLASSES):
        own = np.flatnonzero(targets[:, index] if manifest.target_kind == "multi-hot" else targets == index)
        line = [int(own[i]) for i in spread(len(own), count)]
        chosen += [*line, *[None] * (count - len(line))] if line else []
    return _sheet(Overlay(out, manifest), manifest, pixels, targets, chosen, count)


def _sheet(
    overlay: Overlay,
    manifest: Manifest,
    pixels: _RowPixels,
    targets: npt.NDArray[Any],
    chosen: Sequence[int | None],
    columns: int,
) -> Image.Image:
    """Draw rows as labeled tiles, so many in a line; None leaves a gap."""
    side = _TILE if overlay.is_empty else _TILE_WITH_LABELS
    height, width = manifest.common_sides or (side, side)
    tile = _scaled(width, height, side)
    step_x, step_y = tile[0] + _MARGIN, tile[1] + _CAPTION + _MARGIN
    lines = -(-len(chosen) // columns)
    sheet = Image.new("RGB", (columns * step_x + _MARGIN, lines * step_y + _MARGIN), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    values = RowValues(manifest)
    for number, row in enumerate(chosen):
        if row is None:
            continue
        values.check_targets(str(overlay.out), row, targets[row : row + 1])
        x, y = _MARGIN + number % columns * step_x, _MARGIN + number // columns * step_y
        image = overlay.tint(_row_image(manifest, pixels, row).convert("RGB"), row)
        # small rows (32 x 32) are shown as the squares they are
        scale = side / max(image.size)
        resample = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
        image = image.resize(_scaled(*image.size, side), resample)
        overlay.draw(image, row, scale)
        sheet.paste(image, (x + (tile[0] - image.width) // 2, y + (tile[1] - image.height) // 2))
        label = _label(manifest, targets, row)
        draw.text((x, y + tile[1] + 2), _fitted(label, tile[0], font), _INK, font)
    return sheet


def row_image(out: str | os.PathLike[str], row: int) -> Image.Image:
    """Return one row as it is stored.

    Raises:
        StoreError: OUT is not a complete store.
        IndexError: the row is out of range.
    """
    manifest, pixels, _ = _open(out)
    return _row_image(manifest, pixels, row)


def png(image: Image.Image) -> bytes:
    """Return a picture as the bytes of a PNG."""
    written = io.BytesIO()
    image.save(written, format="PNG")
    return written.getvalue()


def spread(rows: int, count: int) -> list[int]:
    """Return up to count rows, evenly spread.

    Example:
        >>> spread(10, 3)
        [1, 5, 8]
    """
    count = min(rows, count)
    return [(2 * i + 1) * rows // (2 * count) for i in range(count)]


def _scaled(width: int, height: int, side: int) -> tuple[int, int]:
    """Return (width, height) of which the longer one is a tile's side."""
    scale = side / max(width, height)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _open(out: str | os.PathLike[str]) -> tuple[Manifest, _RowPixels, npt.NDArray[Any]]:
    """Return a store's manifest, what gives uint8[H, W, C] of a row by its number, and the targets."""
    manifest = check_finished(out)
    shape = (manifest.rows, manifest.height, manifest.width, manifest.channels)
    rows = stored_rows(Path(out), manifest)
    pixels = np.memmap(Path(out) / PIXELS, np.uint8, "r", shape=shape) if isinstance(rows, EqualRows) else rows
    return manifest, pixels, mapped_tensor(Path(out), manifest, "targets")


def _row_image(manifest: Manifest, pixels: _RowPixels, row: int) -> Image.Image:
    if not 0 <= row < manifest.rows:
        raise IndexError(f"row {row} is out of range: the store has rows 0 to {manifest.rows - 1}.")
    values = np.asarray(pixels[row])
    return Image.fromarray(values[:, :, 0] if manifest.channels == 1 else values)


def _label(manifest: Manifest, targets: npt.NDArray[Any], row: int) -> str:
    if manifest.target_kind == "class":
        index = int(targets[row])
        return manifest.classes[index] if 0 <= index < len(manifest.classes) else f"row {row}"
    if manifest.target_kind == "multi-hot":
        names = (manifest.classes[i] for i in np.flatnonzero(targets[row])[:_CAPTION_CHARACTERS])
        return ", ".join(names) or "none"
    return ", ".join(f"{value:g}" for value in targets[row][:_CAPTION_CHARACTERS])


def _fitted(text: str, width: int, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    """Shorten text to a tile's width; what the built-in font lacks is shown as a question mark."""
    text = shown(text, most=_CAPTION_CHARACTERS)
    text = text.encode("latin-1", "replace").decode("latin-1")
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "..") > width:
        text = text[:-1]
    return text + ".."
