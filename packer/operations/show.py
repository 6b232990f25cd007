"""A contact sheet of a store, for a person. Reads the raw file with numpy; needs no torch.

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
from packer.options import TILES
from packer.store.sealed.ragged_rows import StoredRows, mapped_tensor
from packer.store.state import check_finished
from reader.format.manifest import Manifest
from reader.format.row_values import RowValues
from reader.format.shown import shown

_TILE = 128
# boxes and masks need to be made out
_TILE_WITH_LABELS = 256
_MARGIN = 6
_CAPTION = 16
# more than a tile has room for; text is measured again for each character that is left out
_CAPTION_CHARACTERS = 120
_TILES_A_LINE = 8
_PAPER, _INK = (250, 250, 248), (60, 60, 60)


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
    manifest = check_finished(out)
    pixels, targets = StoredRows(Path(out), manifest), mapped_tensor(Path(out), manifest, "targets")
    chosen = list(rows) if rows is not None else spread(manifest.rows, count)
    if wrong := next((row for row in chosen if row >= manifest.rows), None):
        raise OptionsError(f"row {wrong} is out of range: the store has rows 0 to {manifest.rows - 1}.")
    overlay, columns = Overlay(out, manifest), min(_TILES_A_LINE, len(chosen))
    side = _TILE if overlay.is_empty else _TILE_WITH_LABELS
    height, width = manifest.common_sides or (side, side)
    tile = _scaled(width, height, side)
    step_x, step_y = tile[0] + _MARGIN, tile[1] + _CAPTION + _MARGIN
    lines = -(-len(chosen) // columns)
    sheet = Image.new("RGB", (columns * step_x + _MARGIN, lines * step_y + _MARGIN), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    checks = RowValues(manifest)
    for number, row in enumerate(chosen):
        checks.check_targets(str(overlay.out), row, targets[row : row + 1])
        x, y = _MARGIN + number % columns * step_x, _MARGIN + number // columns * step_y
        values = pixels[row]
        picture = Image.fromarray(values[:, :, 0] if manifest.channels == 1 else values)
        image = overlay.tint(picture.convert("RGB"), row)
        # small rows (32 x 32) are shown as the squares they are
        scale = side / max(image.size)
        resample = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
        image = image.resize(_scaled(*image.size, side), resample)
        overlay.draw(image, row, scale)
        sheet.paste(image, (x + (tile[0] - image.width) // 2, y + (tile[1] - image.height) // 2))
        label = _label(manifest, targets, row)
        draw.text((x, y + tile[1] + 2), _fitted(label, tile[0], font), _INK, font)
    return sheet


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
