"""Draws images with boxes, and COCO's and YOLO's labels of them, for the programs that detect. Runs none of them."""

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
    """Draw root/images/<split>/*.jpg and root/images/<split>.json, and pack each split into root/packed/<split>.

    root/labels/<split>/*.txt and root/boxes.yaml say the same of them as YOLO's programs read it.
    """
    splits = "".join(f"{split}: images/{split}\n" for split in counts)
    names = "".join(f"  {n}: {name}\n" for n, name in enumerate(CLASSES))
    for split, count in counts.items():
        folder = root / "images" / split
        yolo = root / "labels" / split
        folder.mkdir(parents=True)
        yolo.mkdir(parents=True)
        rng = np.random.default_rng(count)
        found: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": []}
        found["categories"] = [{"id": n, "name": name} for n, name in enumerate(CLASSES, 1)]
        for number in range(count):
            width, height = (int(side) for side in rng.integers(64, 129, 2))
            image = Image.fromarray(rng.integers(96, 160, (height, width, 3)).astype(np.uint8))
            found["images"].append({"id": number, "file_name": f"{number:04}.jpg", "width": width, "height": height})
            drawn = [_draw(image, rng) for _ in range(rng.integers(1, _MOST_BOXES + 1))]
            (yolo / f"{number:04}.txt").write_text("".join(_line(shape, width, height) for shape in drawn))
            found["annotations"] += [shape | {"image_id": number} for shape in drawn]
            image.save(folder / f"{number:04}.jpg")
        for number, shape in enumerate(found["annotations"]):
            shape["id"] = number
        labels = folder.with_suffix(".json")
        labels.write_text(json.dumps(found), encoding="ascii")
        pack(folder, root / "packed" / split, fit="none", boxes=labels)
    (root / "boxes.yaml").write_text(f"path: {root.absolute()}\n{splits}names:\n{names}")


def _draw(image: Image.Image, rng: np.random.Generator) -> dict[str, Any]:
    """Draw one shape; returns COCO's annotation of it."""
    side, kind = int(rng.integers(16, 33)), int(rng.integers(len(CLASSES)))
    left, top = (int(rng.integers(0, length - side)) for length in image.size)
    pen, color = ImageDraw.Draw(image), tuple(map(int, rng.integers(0, 256, 3)))
    (pen.rectangle if CLASSES[kind] == "crate" else pen.ellipse)((left, top, left + side - 1, top + side - 1), color)
    return {"category_id": kind + 1, "bbox": [left, top, side, side], "area": side * side, "iscrowd": 0}


def _line(shape: dict[str, Any], width: int, height: int) -> str:
    """Return YOLO's line of a shape: class, center x, center y, width, height, in shares of the image."""
    left, top, across, down = shape["bbox"]
    shares = (left + across / 2) / width, (top + down / 2) / height, across / width, down / height
    return f"{shape['category_id'] - 1} {' '.join(f'{share:.6f}' for share in shares)}\n"
