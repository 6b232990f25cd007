"""A dataset as a notebook shows it: a line about it and a contact sheet of some rows, in one piece of HTML.

Knows how to write a PNG with the standard library alone, as Pillow may be missing. Reads only the rows that it shows.
"""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from reader.format.fields import Json

if TYPE_CHECKING:
    from reader.format.manifest import Manifest
    from reader.store import Batch

TILES = 24
# longest side of a tile in pixels; whole pixels are left out to get there, which is fast and good enough to look at
TILE_PIXELS = 96

_STYLE = "display:inline-block;margin:2px;text-align:center;font-size:11px"
_FIGURE = f'<figure style="{_STYLE}">{{}}<figcaption>{{}}</figcaption></figure>'
_IMAGE = '<img src="data:image/png;base64,{}" width="{}" height="{}" alt="row {}">'


def shown_positions(count: int) -> npt.NDArray[np.int64]:
    """Return which of count rows are shown: up to 24, evenly spread, each once."""
    positions = [(2 * i + 1) * count // (2 * TILES) for i in range(TILES)]
    return np.array([position for position in dict.fromkeys(positions) if position < count], np.int64)


def html_of(title: str, manifest: Manifest, rows: Iterable[Batch]) -> str:
    """Return HTML of some rows of a dataset, each without a batch dimension, as they are stored, with their targets.

    Example:
        >>> from pixpack import MemmapDataset
        >>> MemmapDataset(store_path)._repr_html_().count("<img ")
        24
    """
    tiles = "".join(_tile(manifest, row) for row in rows)
    return f"<p><code>{html.escape(title)}</code></p><div>{tiles}</div>"


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Write uint8[H, W, C] as a PNG; C = 1: gray, 3: RGB, 4: RGBA.

    The format: https://www.w3.org/TR/png-3, sections 5 and 11.2.1; each line starts with its filter, 0: none.
    """
    height, width, channels = pixels.shape
    color_type = {1: 0, 3: 2, 4: 6}[channels]
    lines = np.insert(pixels.reshape(height, width * channels), 0, 0, axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _tile(manifest: Manifest, row: Batch) -> str:
    pixels = row.pixels.numpy()
    step = -(-max(pixels.shape[:2]) // TILE_PIXELS)
    small = pixels[::step, ::step]
    scale = TILE_PIXELS / max(small.shape[:2])
    height, width = (round(side * scale) for side in small.shape[:2])
    image = _IMAGE.format(base64.b64encode(png(small)).decode("ascii"), width, height, row.rows)
    return _FIGURE.format(image, html.escape(_caption(manifest, row.targets.tolist())))


def _caption(manifest: Manifest, target: Json) -> str:
    kind, classes = manifest.target_kind, manifest.classes
    if kind == "regression":
        return ", ".join(f"{value:g}" for value in target)
    if kind == "multi-hot":
        names = classes or map(str, range(len(target)))
        return ", ".join(name for name, has in zip(names, target, strict=True) if has) or "none"
    return classes[target] if 0 <= target < len(classes) else ""


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
