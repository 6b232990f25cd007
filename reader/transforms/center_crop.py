"""The deterministic crop of evaluation, for batches: torchvision's Resize and CenterCrop in one, on the batch's device."""

from __future__ import annotations

import math

import torch

from reader.store import ImageBatch, RaggedBatch, replaced
from reader.transforms.annotations import Motion, content_of
from reader.transforms.random import check_batch
from reader.transforms.random_crops import checked_size, cropped_extras, resized_boxes


class CenterCrop:
    """Resize each image, antialiased, until it covers size / fraction, and cut its central size x size pixels.

    What torchvision's Resize(size / fraction) and CenterCrop(size) give, rounding included; `pack --crop-fraction` does the same
    offline. In rows with content the image is the content, so the result has none. Boxes and masks move with the pixels.
    Images of different sizes, a RaggedBatch, become an ImageBatch.

    Args:
        size: pixels, or (height, width).
        fraction: share of the resized image that is kept; 0.875 gives the usual 224 of 256.

    Raises:
        ValueError: size is not 1 or more pixels, or fraction not above 0 and at most 1.

    Example:
        >>> from reader import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> CenterCrop(28, fraction=0.875)(batch).images.shape
        torch.Size([2, 3, 28, 28])
    """

    def __init__(self, size: int | tuple[int, int], fraction: float = 1.0) -> None:
        self.height, self.width = checked_size(size)
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction is {fraction}, expected more than 0, and at most 1.")
        self.fraction = fraction

    def __call__(self, batch: ImageBatch | RaggedBatch) -> ImageBatch:
        """Return uint8[B, height, width, C], without content.

        Raises:
            ValueError: one row instead of a batch.
        """
        check_batch(self, batch, takes_ragged=True)
        y0, x0, y1, x1 = content_of(batch).unbind(-1)
        boxes = torch.stack([x0, y0, x1, y1], dim=-1)
        grids = self._grids(y1 - y0, x1 - x0)
        top, left, new_height, new_width = grids.unbind(-1)
        down, across = new_height / (y1 - y0).float(), new_width / (x1 - x0).float()
        corner = (x0 + left / across)[:, None], (y0 + top / down)[:, None]
        motion = Motion(*corner, across[:, None], down[:, None], self.width, self.height)
        return replaced(
            batch,
            pixels=resized_boxes(batch, boxes, self.height, self.width, grids),
            content=None,
            extras=cropped_extras(batch, motion, boxes, self.height, self.width, grids),
        )

    def _grids(self, height: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
        """Give int64[B, 4] top, left, height, width: what images of int64[B] each are resized to, and where the crop is."""
        cover_height, cover_width = math.floor(self.height / self.fraction), math.floor(self.width / self.fraction)
        # the side that is shorter against the crop decides; for a square crop that is the short side
        is_narrow = cover_width * height >= cover_height * width
        by_width = (cover_width * height // width).clamp(min=cover_height)
        by_height = (cover_height * width // height).clamp(min=cover_width)
        new_height = torch.where(is_narrow, by_width, cover_height)
        new_width = torch.where(is_narrow, cover_width, by_height)
        return torch.stack(
            [_middle(new_height - self.height), _middle(new_width - self.width), new_height, new_width], dim=-1
        )


def _middle(slack: torch.Tensor) -> torch.Tensor:
    """Halve whole numbers as Python's round does: a half goes to the even neighbour."""
    half = slack // 2
    return half + (slack & half & 1)
