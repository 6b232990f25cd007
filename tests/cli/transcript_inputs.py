"""Images, lists, labels and archives for transcripts. Each image has one color, so that all decoders give the same pixels."""

from __future__ import annotations

import json
import tarfile
import zipfile
from pathlib import Path

from PIL import Image

CLASSES = {"ant": (32, 24), "bee": (24, 32), "cow": (40, 40)}


def make_inputs(root: Path) -> Path:
    """Make all of them in a folder, and return it."""
    for number, (name, size) in enumerate(CLASSES.items()):
        for n in range(4):
            _save(root / "images" / name / f"{n}.png", size, (40 * number, 60 * n, 20))
            _save(root / "photos" / name / f"{n}.jpg", size, (40 * number, 60 * n, 20))
    for split, counts in {"train": 3, "val": 1}.items():
        for number, name in enumerate(CLASSES):
            for n in range(counts):
                _save(root / "splits" / split / name / f"{n}.png", (16, 16), (9 * number, n, len(split)))
    _make_lists(root)
    _make_labels(root)
    _make_archives(root)
    return root


def _save(
    path: Path, size: tuple[int, int], color: tuple[int, ...] | int, mode: str = "RGB", **options: object
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path, **options)


def _make_lists(root: Path) -> None:
    rows = [(f"{name}/{n}", name, n / 4, f"{name} number {n}") for name in CLASSES for n in range(4)]
    lines = ["id,label,score,weight,caption", *(f"{i},{c},{s},{2 * s},{t}" for i, c, s, t in rows)]
    (root / "list.csv").write_text("\n".join(lines) + "\n")
    (root / "classes.txt").write_text("\n".join([*CLASSES, "dog"]) + "\n")
    (root / "reversed.txt").write_text("\n".join(reversed(CLASSES)) + "\n")


def _make_labels(root: Path) -> None:
    """Make 3 photographs with two boxes each, as COCO and YOLO files, and with masks."""
    photos = []
    annotations = []
    for number in range(3):
        name = f"{number}.png"
        _save(root / "boxed" / name, (40, 40), (9, 50 * number, 99))
        _save(root / "masks" / name, (40, 40), number, "L")
        (root / "yolo").mkdir(exist_ok=True)
        (root / "yolo" / f"{number}.txt").write_text("0 0.5 0.5 0.5 0.5\n1 0.25 0.25 0.1 0.1\n")
        photos.append({"id": number, "file_name": name, "width": 40, "height": 40})
        for category, box in enumerate([(10, 10, 20, 20), (8, 8, 4, 4)], start=1):
            annotations.append({"image_id": number, "category_id": category, "bbox": box})
    categories = [{"id": 1, "name": "wing"}, {"id": 2, "name": "leg"}]
    coco = {"images": photos, "annotations": annotations, "categories": categories}
    (root / "boxes.json").write_text(json.dumps(coco))


def _make_archives(root: Path) -> None:
    with zipfile.ZipFile(root / "images.zip", "w") as archive:
        for path in sorted((root / "images").rglob("*.png")):
            archive.write(path, path.relative_to(root / "images"))
    for shard in range(2):
        with tarfile.open(root / f"shard-{shard}.tar", "w") as tar:
            for n in range(3):
                image = root / "shards" / f"{shard}{n}.png"
                _save(image, (16, 16), (30 * n + shard,) * 3)
                image.with_suffix(".cls").write_text(str(n))
                for path in (image, image.with_suffix(".cls")):
                    tar.add(path, path.name)
