"""Whole recipes: several views of each image, and the default augmentation of torchvision's and timm's training programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from reader.store import ImageBatch, RaggedBatch
from reader.transforms.auto_augment import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from reader.transforms.color import ColorJitter
from reader.transforms.composition import Compose, distinct
from reader.transforms.mixing import RandomErasing
from reader.transforms.random_crops import RandomHorizontalFlip, RandomResizedCrop
from reader.transforms.resize import CenterCrop

# ImageNet's mean in levels: what torchvision's and timm's programs erase with, which do so after Normalize, with 0.
_MEAN = (124, 116, 104)

Transform = Callable[[Any], Any]


class MultiCrop:
    """Cut several random crops of each image, each view with draws of its own: DINO's multi-crop, SimCLR's two views.

    Called with a batch it returns (views, targets): a list of uint8[B, C, size, size], the global ones first, as DataLoader
    collates samples that are lists of images. It stands last, alone or in a Compose.

    Args:
        global_crops, local_crops: how many views of each kind.
        global_size, local_size: pixels, or (height, width).
        global_scale, local_scale: lowest and highest area of the box, as a share of the image's.
        global_transform, local_transform: what changes each view, or a list with one for each of them.
        seed: with the loader's seed, the epoch and the position in its order, fixes what is drawn for a row.

    Raises:
        ValueError: there is no view, or another number of transforms.

    Example:
        >>> from reader import MemmapDataset
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
        global_transform: Transform | Sequence[Transform] | None = None,
        local_transform: Transform | Sequence[Transform] | None = None,
        seed: int = 0,
    ) -> None:
        if min(global_crops, local_crops) < 0 or global_crops + local_crops < 1:
            raise ValueError(
                f"{global_crops} global and {local_crops} local crops, expected 0 or more of each, and one in all."
            )
        views = _views(global_crops, global_transform, RandomResizedCrop(global_size, global_scale, seed=seed))
        views += _views(local_crops, local_transform, RandomResizedCrop(local_size, local_scale, seed=seed))
        # no two views draw alike
        self.transforms = distinct(views)

    def __call__(self, batch: ImageBatch | RaggedBatch) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the views and the targets."""
        made = [view(batch) for view in self.transforms]
        return [view.images if isinstance(view, ImageBatch) else view for view in made], batch.targets


def torchvision_train(
    crop_size: int = 224,
    hflip_prob: float = 0.5,
    auto_augment_policy: str | None = None,
    ra_magnitude: int = 9,
    augmix_severity: int = 3,
    random_erase_prob: float = 0.0,
    *,
    seed: int = 0,
) -> Compose:
    """Make what torchvision's references/classification trains with, ClassificationPresetTrain, up to its Normalize.

    Erased is with ImageNet's mean, in levels, which is the 0 that it erases with after Normalize.

    Args:
        crop_size: side of the crops, pixels.
        hflip_prob: probability of a flip.
        auto_augment_policy: None, "ra", "ta_wide", "augmix", or one of AutoAugment: "imagenet", "cifar10", "svhn".
        ra_magnitude: of RandAugment ("ra").
        augmix_severity: of AugMix ("augmix").
        random_erase_prob: probability of RandomErasing.
        seed: of all transforms in it.

    Raises:
        ValueError: there is no such policy.
    """
    chain: list[Transform] = [RandomResizedCrop(crop_size, seed=seed)]
    if hflip_prob > 0:
        chain.append(RandomHorizontalFlip(hflip_prob, seed=seed))
    if auto_augment_policy == "ra":
        chain.append(RandAugment(magnitude=ra_magnitude, interpolation="bilinear", seed=seed))
    elif auto_augment_policy == "ta_wide":
        chain.append(TrivialAugmentWide(interpolation="bilinear", seed=seed))
    elif auto_augment_policy == "augmix":
        chain.append(AugMix(severity=augmix_severity, interpolation="bilinear", seed=seed))
    elif auto_augment_policy is not None:
        chain.append(AutoAugment(auto_augment_policy, "bilinear", seed=seed))
    if random_erase_prob > 0:
        chain.append(RandomErasing(random_erase_prob, value=_MEAN, seed=seed))
    return Compose(chain)


def torchvision_eval(crop_size: int = 224, resize_size: int = 256) -> CenterCrop:
    """Make what torchvision's references/classification evaluates with, ClassificationPresetEval, up to its Normalize.

    Args:
        crop_size: side of the center crop, pixels.
        resize_size: what the shorter side is resized to first, pixels.
    """
    return CenterCrop(crop_size, crop_size / resize_size)


def timm_train(
    input_size: int = 224,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    hflip: float = 0.5,
    color_jitter: float | Sequence[float] | None = 0.4,
    re_prob: float = 0.0,
    re_mode: str = "pixel",
    *,
    seed: int = 0,
) -> Compose:
    """Make what timm's train.py trains with by default, create_transform(is_training=True), up to its Normalize.

    Boxes are resized bilinearly or bicubically, drawn for each. timm's own RandAugment ("rand-m9-...") has other
    operations than torchvision's, and is not here.

    Args:
        input_size: side of the crops, pixels.
        scale, ratio: of RandomResizedCrop.
        hflip: probability of a flip.
        color_jitter: of brightness, contrast and saturation; None: none.
        re_prob: probability of RandomErasing.
        re_mode: "const" erases with ImageNet's mean, "pixel" with noise.
        seed: of all transforms in it.

    Raises:
        ValueError: re_mode is neither.
    """
    if re_mode not in ("const", "pixel"):
        raise ValueError(f're_mode is {re_mode!r}, expected "const" or "pixel".')
    chain: list[Transform] = [RandomResizedCrop(input_size, scale, ratio, "random", seed=seed)]
    if hflip > 0:
        chain.append(RandomHorizontalFlip(hflip, seed=seed))
    if color_jitter is not None:
        given = (float(color_jitter),) * 3 if isinstance(color_jitter, int | float) else tuple(color_jitter)
        chain.append(ColorJitter(*given, seed=seed))
    if re_prob > 0:
        value: Any = "random" if re_mode == "pixel" else _MEAN
        chain.append(RandomErasing(re_prob, (0.02, 1 / 3), (0.3, 1 / 0.3), value, seed=seed))
    return Compose(chain)


def _views(count: int, transform: Transform | Sequence[Transform] | None, crop: RandomResizedCrop) -> list[Transform]:
    """Give each view its crop and what changes it."""
    each = list(transform) if isinstance(transform, Sequence) else [transform] * count
    if len(each) != count:
        raise ValueError(f"there are {len(each)} transforms for {count} crops, expected one, or one for each of them.")
    return [Compose([crop] if changed is None else [crop, changed]) for changed in each]
