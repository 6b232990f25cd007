"""Shared by tests of augmentation: batches of pictures, and a test that two samples have the same distribution."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import torch
from conftest import photo, torchvision_or_skip, tuned
from tensordict import TensorDict

from reader import ImageBatch, RaggedBatch
from reader.transforms.view import View


def pictures(count: int = 12, channels: int = 3, size: tuple[int, int] = (24, 20), device: str = "cpu") -> ImageBatch:
    """Make a batch of pictures, (height, width); the first has one level, the second is noise."""
    rows = [np.array(photo(size[1], size[0], seed)) for seed in range(count)]
    pixels = torch.from_numpy(np.stack(rows))[..., :channels].clone()
    pixels[0] = 77
    if count > 1:
        generator = torch.Generator().manual_seed(0)
        pixels[1] = torch.randint(0, 256, pixels[1].shape, dtype=torch.uint8, generator=generator)
    numbers = torch.arange(count)
    return ImageBatch(pixels=pixels, targets=numbers, rows=numbers, batch_size=[count]).to(device)


def many(count: int = 4000, size: tuple[int, int] = (1, 1)) -> ImageBatch:
    """Make a batch of rows whose pixels do not matter, for draws."""
    rows = torch.arange(count)
    pixels = torch.zeros(1, *size, 3, dtype=torch.uint8).expand(count, -1, -1, -1)
    return ImageBatch(pixels=pixels, targets=rows, rows=rows, batch_size=[count])


def by_torch() -> contextlib.AbstractContextManager[None]:
    """Transform without the compiled part."""
    return tuned(compiled_transforms=0)


def labelled(
    count: int = 16, size: tuple[int, int] = (30, 41), box: tuple[int, int, int, int] = (8, 6, 20, 15)
) -> ImageBatch:
    """Give each picture a box of class 7, painted into its mask as 1, and a content; x0, y0, x1, y1."""
    batch, masks = pictures(count, size=size), torch.zeros(count, *size, dtype=torch.uint8)
    x0, y0, x1, y1 = box
    masks[:, y0:y1, x0:x1] = 1
    boxes = torch.zeros(count, 2, 4)
    boxes[:, 0] = torch.tensor(box)
    targets = torch.tensor([7, -1]).repeat(count, 1)
    extras = {"boxes": boxes, "box_count": torch.ones(count, dtype=torch.int32), "box_targets": targets, "masks": masks}
    batch.extras = TensorDict(extras, batch_size=[count])
    batch.content = torch.tensor([1, 2, size[0] - 3, size[1] - 1], dtype=torch.int32).repeat(count, 1)
    return batch


def v2() -> Any:
    """Return torchvision.transforms.v2; skips without it."""
    return torchvision_or_skip().transforms.v2


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> int:
    """Return the largest difference in levels of images of one shape."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == torch.uint8
    return int((ours.int() - theirs.int()).abs().max())


def assert_same_distribution(ours: Any, theirs: Any) -> None:
    """Compare two samples by the Kolmogorov-Smirnov test, which detects a true difference of 0.06 in 4000 of each."""
    a, b = (torch.as_tensor(values, dtype=torch.float64).flatten().sort().values for values in (ours, theirs))
    positions = torch.cat([a, b])
    shares = [torch.searchsorted(values, positions, right=True) / len(values) for values in (a, b)]
    # this far apart by chance in 1 of 10,000 trials
    assert (shares[0] - shares[1]).abs().max() < 2.23 * math.sqrt(1 / len(a) + 1 / len(b))


def resized(
    pixels: torch.Tensor | RaggedBatch,
    boxes: torch.Tensor,
    height: int,
    width: int,
    grids: torch.Tensor | None = None,
    is_cubic: bool = False,
    is_mirrored: torch.Tensor | None = None,
) -> torch.Tensor:
    """Resize int64[B, 4] boxes of images to uint8[B, height, width, C].

    grids: int64[B, 4] top, left, height, width: boxes are resized to that size, and cropped at top and left.
    """
    batch = pixels
    if not isinstance(pixels, RaggedBatch):
        batch = ImageBatch(pixels=pixels, targets=torch.zeros(len(pixels)), batch_size=[len(pixels)])
    interpolation = "bicubic" if is_cubic else "bilinear"
    view = View.from_batch(None, batch).cut(boxes.numpy())
    if grids is None:
        view = view.resized(np.full((len(boxes), 2), [width, height]), (height, width), interpolation)
    else:
        top, left, *_ = grids.unbind(-1)
        view = view.resized(grids[:, [3, 2]].numpy(), None, interpolation)
        view = view.cut(torch.stack([left, top, left + width, top + height], -1).numpy(), (height, width))
    return (view if is_mirrored is None else view.mirrored(is_mirrored.numpy())).batch().pixels
