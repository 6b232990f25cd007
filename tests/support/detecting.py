"""Shared by tests of detection: images of different sizes with boxes, as a batch and packed; torchvision with given draws."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from augmenting import pictures
from conftest import photo
from tensordict import TensorDict

from packer import pack
from reader import RaggedBatch

SIZES = ((40, 50), (64, 30), (33, 77), (90, 90), (17, 120), (61, 62))
_SLOTS = 4
CLASSES = ("crate", "ball", "cone")


def detections(count: int = 12, *, device: str = "cpu") -> RaggedBatch:
    """Make a batch of pictures of SIZES, each with 0 to 4 boxes and their classes."""
    generator = torch.Generator().manual_seed(count)
    images = [pictures(2, size=SIZES[n % len(SIZES)]).pixels[n % 2] for n in range(count)]
    boxes, targets = torch.zeros(count, _SLOTS, 4), torch.full((count, _SLOTS), -1)
    counts = torch.arange(count, dtype=torch.int32) % (_SLOTS + 1)
    for n, (height, width, _) in enumerate(image.shape for image in images):
        for slot in range(int(counts[n])):
            corners = torch.rand(2, 2, generator=generator) * torch.tensor([width, height])
            low, high = corners.amin(0), corners.amax(0)
            boxes[n, slot] = torch.cat([low, torch.minimum(high + 2, torch.tensor([float(width), float(height)]))])
            targets[n, slot] = slot % len(CLASSES)
    sizes = torch.tensor([image.numel() for image in images])
    rows = torch.arange(count) + 7
    extras = TensorDict({"boxes": boxes, "box_count": counts, "box_targets": targets}, batch_size=[count])
    batch: RaggedBatch = RaggedBatch(
        pixels=torch.cat([image.reshape(-1) for image in images]),
        targets=torch.full((count,), -1),
        offsets=sizes.cumsum(0) - sizes,
        shapes=torch.tensor([image.shape for image in images], dtype=torch.int32),
        extras=extras,
        rows=rows,
        batch_size=[],
    )
    return batch.to(device)


def gray(batch: RaggedBatch) -> RaggedBatch:
    """Make images of one channel of the same sizes."""
    shapes = batch.shapes.clone()
    shapes[:, 2] = 1
    sizes = shapes.long().prod(1)
    made: RaggedBatch = batch.replace(shapes=shapes, offsets=sizes.cumsum(0) - sizes)
    return made


def with_masks(batch: RaggedBatch) -> RaggedBatch:
    """Put a mask after each image: 1, 2, 3, .. in the order of its pixels, which shows their origin."""
    shapes, parts = batch.shapes.long(), []
    for n, (height, width, _) in enumerate(shapes.tolist()):
        parts += [batch.image(n).reshape(-1), (torch.arange(height * width) % 251).to(torch.uint8)]
    area, counts = shapes[:, 0] * shapes[:, 1], shapes.prod(1)
    offsets = (area + counts).cumsum(0) - area - counts
    made: RaggedBatch = batch.replace(pixels=torch.cat(parts), offsets=offsets, mask_offsets=offsets + counts)
    return made


def boxes_of(batch: RaggedBatch, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return boxes and classes of an image."""
    extras: Any = batch.extras
    count = int(extras["box_count"][n])
    return extras["boxes"][n, :count], extras["box_targets"][n, :count]


def sample(batch: RaggedBatch, n: int) -> tuple[Any, dict[str, Any]]:
    """Return an image in the form of torchvision's transforms, with its boxes and labels."""
    from torchvision import tv_tensors

    image, (boxes, labels) = batch.images[n], boxes_of(batch, n)
    kind: Any = tv_tensors.BoundingBoxes
    sizes = tuple(image.shape[1:])
    return tv_tensors.Image(image.contiguous()), {
        "boxes": kind(boxes, format="XYXY", canvas_size=sizes),
        "labels": labels,
    }


def given_draws(monkeypatch: pytest.MonkeyPatch, values: Iterator[float]) -> None:
    """Make torch.rand and torch.randint, which torchvision uses, return these numbers from 0 to 1 in order."""

    def rand(*shape: Any) -> torch.Tensor:
        count = 1 if not shape or shape[0] == () else int(shape[0])
        return torch.tensor([next(values) for _ in range(count)], dtype=torch.float64)

    def randint(low: int, high: Any = None, size: Any = None) -> torch.Tensor:
        most = high if isinstance(high, int) else low
        return torch.tensor(int(next(values) * most))

    monkeypatch.setattr(torch, "rand", rand)
    monkeypatch.setattr(torch, "randint", randint)


def make_detection_store(root: Path, count: int = 10, **options: Any) -> Path:
    """Pack photographs of SIZES with COCO labels, the first without a box; returns the store."""
    folder = root / "images"
    folder.mkdir(parents=True)
    found: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": []}
    found["categories"] = [{"id": 3 * n + 1, "name": name} for n, name in enumerate(CLASSES)]
    for n in range(count):
        height, width = SIZES[n % len(SIZES)]
        photo(width, height, n).save(folder / f"{n:03}.png")
        found["images"].append({"id": n, "file_name": f"{n:03}.png", "width": width, "height": height})
        for m in range(n % 4):
            shape = {"bbox": [m + 1, m + 2, width // 2, height // 3], "category_id": 3 * (m % len(CLASSES)) + 1}
            found["annotations"].append(shape | {"id": len(found["annotations"]), "image_id": n, "iscrowd": 0})
    labels = root / "boxes.json"
    labels.write_text(json.dumps(found), encoding="ascii")
    pack(folder, root / "out", boxes=labels, workers=1, **({"fit": "none"} | options))
    return root / "out"
