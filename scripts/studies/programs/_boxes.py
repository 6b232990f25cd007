"""Draws images with boxes, and COCO's json of them, for the programs that detect. Runs none of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from packer import pack

CLASSES = ("crate", "ball")
_MOST_BOXES = 3


def make_boxes(root: Path, counts: dict[str, int]) -> None:
    """Draw root/images/<split>/*.jpg and root/images/<split>.json, and pack each split into root/packed/<split>."""
    for split, count in counts.items():
        folder = root / "images" / split
        folder.mkdir(parents=True)
        rng = np.random.default_rng(count)
        found: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": []}
        found["categories"] = [{"id": n, "name": name} for n, name in enumerate(CLASSES, 1)]
        for number in range(count):
            width, height = (int(side) for side in rng.integers(64, 129, 2))
            image = Image.fromarray(rng.integers(96, 160, (height, width, 3)).astype(np.uint8))
            found["images"].append({"id": number, "file_name": f"{number:04}.jpg", "width": width, "height": height})
            for _ in range(rng.integers(1, _MOST_BOXES + 1)):
                found["annotations"].append(_draw(image, len(found["annotations"]), number, rng))
            image.save(folder / f"{number:04}.jpg")
        labels = folder.with_suffix(".json")
        labels.write_text(json.dumps(found), encoding="ascii")
        pack(folder, root / "packed" / split, fit="none", boxes=labels)


def _draw(image: Image.Image, number: int, image_number: int, rng: np.random.Generator) -> dict[str, Any]:
    """Draw one shape; returns COCO's annotation of it."""
    side, kind = int(rng.integers(16, 33)), int(rng.integers(len(CLASSES)))
    left, top = (int(rng.integers(0, length - side)) for length in image.size)
    pen, colour = ImageDraw.Draw(image), tuple(map(int, rng.integers(0, 256, 3)))
    (pen.rectangle if CLASSES[kind] == "crate" else pen.ellipse)((left, top, left + side - 1, top + side - 1), colour)
    box = {"bbox": [left, top, side, side], "area": side * side, "iscrowd": 0}
    return {"id": number, "image_id": image_number, "category_id": kind + 1, **box}
