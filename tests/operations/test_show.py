"""`pack show`: boxes and masks are drawn where they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from packer import pack
from packer.operations.show import contact_sheet

_GRAY = (128, 128, 128)


def test_boxes_and_masks_are_drawn_over_the_picture(tmp_path: Path) -> None:
    # a gray image of 64 x 64, a box from (8, 8) to (40, 40), and a mask from line 48 on
    for folder in ("images/a", "masks/a"):
        (tmp_path / folder).mkdir(parents=True)
    Image.new("RGB", (64, 64), _GRAY).save(tmp_path / "images/a/0.png")
    mask = Image.new("L", (64, 64))
    mask.paste(1, (0, 48, 64, 64))
    mask.save(tmp_path / "masks/a/0.png")
    boxes = {
        "images": [{"id": 1, "file_name": "a/0.png", "width": 64, "height": 64}],
        "categories": [{"id": 1, "name": "kettle"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [8, 8, 32, 32]}],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    labels: dict[str, Any] = {"boxes": tmp_path / "boxes.json", "masks": tmp_path / "masks"}
    pack(tmp_path / "images", tmp_path / "out", size=64, **labels)
    sheet = contact_sheet(tmp_path / "out")

    def pixel(x: int, y: int) -> object:
        """The sheet's pixel: a tile begins at (6, 6), and shows each pixel of the row as 4 x 4."""
        return sheet.getpixel((6 + x, 6 + y))

    assert pixel(200, 16) == pixel(80, 120) == _GRAY
    edge, tint = pixel(158, 120), pixel(120, 240)
    assert isinstance(edge, tuple)
    assert isinstance(tint, tuple)
    assert max(edge) == 255
    assert tint == tuple((level + color) // 2 for level, color in zip(_GRAY, edge, strict=True))
