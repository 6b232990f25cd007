"""Several views of each image, for contrastive learning."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reader.described import Described
from reader.store import ImageBatch, RaggedBatch
from reader.transforms.composition import Compose, Transform, checked_transforms, distinct
from reader.transforms.labels import refuse_labels
from reader.transforms.random import integer
from reader.transforms.random_crops import RandomResizedCrop


class MultiView(Described):
    """Call several transforms with the same images; each draws separately, even if it is listed twice.

    A call with a batch returns (views, targets). views is a list of the results, [B, C, h, w], as DataLoader collates samples
    that are lists of images. It must be last, alone or in a Compose.

    Args:
        transforms: one transform of batches for each view, such as Compose([...]).

    Raises:
        ValueError: there are none, or MixUp or CutMix is among them: views have no targets of their own.
        TypeError: one cannot be called.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> views, targets = MultiView([RandomResizedCrop(32)] * 2)(batch)
        >>> len(views), torch.equal(*views)
        (2, False)
    """

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = distinct(checked_transforms(transforms))
        for number, view in enumerate(self.transforms):
            if getattr(view, "needs_full_batch", False):
                raise ValueError(
                    f"view {number} mixes images and their targets, and {type(self).__name__} gives one column of targets for"
                    " all views. Leave MixUp and CutMix to the loop."
                )

    def __call__(self, batch: ImageBatch | RaggedBatch) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the views and the targets.

        Raises:
            ValueError: the rows have boxes or masks.
        """
        refuse_labels(self, batch)
        result = [view(batch) for view in self.transforms]
        return [view.images if isinstance(view, ImageBatch) else view for view in result], batch.targets


class MultiCrop(MultiView):
    """Take several random crops of each image, with separate draws: DINO's multi-crop, SimCLR's two views.

    A call with a batch returns (views, targets). views is a list of uint8[B, C, size, size], the global ones first, as
    DataLoader collates samples that are lists of images. It must be last, alone or in a Compose.

    Args:
        global_crops, local_crops: number of views of each kind.
        global_size, local_size: pixels, or (height, width).
        global_scale, local_scale: lowest and highest area of the box, as a share of the image's.
        interpolation: "bilinear", or "bicubic" (as DINO).
        global_transform, local_transform: the transform of each view, or a list with one for each view.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: there is no view, the number of transforms differs, or MixUp or CutMix is among them.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> views, targets = MultiCrop(2, 6, global_size=32, local_size=16)(batch)
        >>> len(views), views[0].shape, views[7].shape
        (8, torch.Size([2, 3, 32, 32]), torch.Size([2, 3, 16, 16]))
    """

    def __init__(
        self,
        global_crops: int = 2,
        local_crops: int = 6,
        *,
        global_size: int | tuple[int, int] = 224,
        local_size: int | tuple[int, int] = 96,
        global_scale: tuple[float, float] = (0.4, 1.0),
        local_scale: tuple[float, float] = (0.05, 0.4),
        interpolation: str = "bilinear",
        global_transform: Transform | Sequence[Transform] | None = None,
        local_transform: Transform | Sequence[Transform] | None = None,
        seed: int = 0,
    ) -> None:
        global_crops, local_crops = integer("global_crops", global_crops, 0), integer("local_crops", local_crops, 0)
        large = RandomResizedCrop(global_size, global_scale, interpolation=interpolation, seed=seed)
        small = RandomResizedCrop(local_size, local_scale, interpolation=interpolation, seed=seed)
        views = _views(global_crops, global_transform, large) + _views(local_crops, local_transform, small)
        super().__init__(views)


def _views(count: int, transform: Transform | Sequence[Transform] | None, crop: RandomResizedCrop) -> list[Transform]:
    """Return the crop and the transform of each view."""
    each = list(transform) if isinstance(transform, Sequence) else [transform] * count
    if len(each) != count:
        raise ValueError(f"there are {len(each)} transforms for {count} crops, expected one, or one for each of them.")
    return [Compose([crop] if changed is None else [crop, changed]) for changed in each]
