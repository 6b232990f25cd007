"""Whole recipes: several views of each image, timm's RandAugment, and what torchvision's and timm's programs augment with."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from reader.described import Described
from reader.store import ImageBatch, RaggedBatch
from reader.transforms.affine import Fill
from reader.transforms.auto_augment import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from reader.transforms.color import ColorJitter
from reader.transforms.composition import Compose, are_compiled, checked_transforms, distinct
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.mixing import RandomErasing
from reader.transforms.policy_steps import OPERATIONS, Policy
from reader.transforms.random import TIMM_RAND_AUGMENT, checked_p, draw, integer, numbers
from reader.transforms.random_crops import RandomHorizontalFlip, RandomResizedCrop
from reader.transforms.resize import ResizeCenterCrop

# ImageNet's mean in levels: what torchvision's and timm's programs erase with, which do so after Normalize, with 0.
_MEAN = (124, 116, 104)

# As timm lists them: it draws one of these 15 with equal probability.
_ENHANCING = ("Color", "Contrast", "Brightness", "Sharpness")
_MOVING = ("ShearX", "ShearY", "TranslateX", "TranslateY")
_NAMES = ("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", *_ENHANCING, *_MOVING)
_NUMBERS = [OPERATIONS.index(name) for name in _NAMES]
_STRENGTHS = 10
_DRAWS = 4
_SECTION = re.compile(r"(mstd|mmax|inc|m|n|p)(\d+(?:\.\d*)?|inf)")

Transform = Callable[[Any], Any]


class MultiView(Described):
    """Call several transforms with the same images, each of which draws by itself, also one that is listed twice.

    Called with a batch it returns (views, targets): a list of what each made, [B, C, h, w], as DataLoader collates samples
    that are lists of images. It stands last, alone or in a Compose.

    Args:
        transforms: one for each view, each of batches, such as Compose([...]).

    Raises:
        ValueError: there are none, or MixUp or CutMix is among them: there are no targets of each view.
        TypeError: one cannot be called.

    Example:
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

    @property
    def is_compiled(self) -> bool:
        """Say whether the compiled part does all that they do."""
        return are_compiled(self.transforms)

    def __call__(self, batch: ImageBatch | RaggedBatch) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the views and the targets."""
        result = [view(batch) for view in self.transforms]
        # what runs for each image gives (images, targets) where it makes floats
        result = [view[0] if isinstance(view, tuple) else view for view in result]
        return [view.images if isinstance(view, ImageBatch) else view for view in result], batch.targets


class MultiCrop(MultiView):
    """Cut several random crops of each image, each view with draws of its own: DINO's multi-crop, SimCLR's two views.

    Called with a batch it returns (views, targets): a list of uint8[B, C, size, size], the global ones first, as DataLoader
    collates samples that are lists of images. It stands last, alone or in a Compose.

    Args:
        global_crops, local_crops: how many views of each kind.
        global_size, local_size: pixels, or (height, width).
        global_scale, local_scale: lowest and highest area of the box, as a share of the image's.
        interpolation: "bilinear", "bicubic" (as DINO) or "random", as RandomResizedCrop's.
        global_transform, local_transform: what changes each view, or a list with one for each of them.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: there is no view, another number of transforms, or MixUp or CutMix is among them.

    Example:
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
        global_crops, local_crops = integer("global_crops", global_crops), integer("local_crops", local_crops)
        if min(global_crops, local_crops) < 0 or global_crops + local_crops < 1:
            raise ValueError(
                f"{global_crops} global and {local_crops} local crops, expected 0 or more of each, and one in all."
            )
        large = RandomResizedCrop(global_size, global_scale, interpolation=interpolation, seed=seed)
        small = RandomResizedCrop(local_size, local_scale, interpolation=interpolation, seed=seed)
        views = _views(global_crops, global_transform, large) + _views(local_crops, local_transform, small)
        super().__init__(views)


class TimmRandAugment(Policy):
    """Apply operations to each image as timm's rand_augment_transform(config_str) does, each drawn and skipped by itself.

    Unlike in timm, images are sheared, shifted and rotated by one interpolation (timm draws bilinear or bicubic), and shifts
    are truncated to whole pixels. Pixels are torchvision's, within 1 level of Pillow's except for Color, Contrast and Sharpness.

    Args:
        config_str: "rand" and sections: m9 the strength of 10, mstd0.5 its standard deviation (above 100: any from 0 to m),
            mmax its limit, n2 how many operations, p0.5 how likely each is, inc1 those that grow with the strength.
        interpolation: "nearest" or "bilinear", of what shears, shifts and rotates.
        fill: level beyond the image, or one for each channel: timm's is the mean that it normalizes by.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: config_str has a section that is none of these.

    Example:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> TimmRandAugment("rand-m9-mstd0.5-inc1")(batch).images.shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        config_str: str = "rand-m9-mstd0.5-inc1",
        interpolation: str = "bilinear",
        fill: Fill = (124, 116, 104),
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(interpolation, fill, seed)
        given = {"m": 10.0, "mstd": 0.0, "mmax": 10.0, "n": 2.0, "p": 0.5, "inc": 0.0, **_sections(config_str)}
        self.config_str, self.magnitude, self.magnitude_max = config_str, given["m"], given["mmax"]
        self.magnitude_std = math.inf if given["mstd"] > 100 else given["mstd"]
        # timm takes any digits behind inc for yes
        self.num_layers, self.prob, self.is_increasing = int(given["n"]), given["p"], "-inc" in config_str
        if not 0 <= self.num_layers <= len(TIMM_RAND_AUGMENT) // _DRAWS or not 0 <= self.prob <= 1:
            raise ValueError(f"config_str is {config_str!r}, expected n0 to n32, and p0 to p1.")

    def drawn(self, batch: ImageBatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Draw as any policy does; 0, Identity, stands for a skipped operation."""
        if self.num_layers == 0:
            return []
        shares = draw(batch, self.seed, TIMM_RAND_AUGMENT[: _DRAWS * self.num_layers])
        numbers = tensor_on(shares.device, _NUMBERS)
        steps = []
        for which, chance, sign, strength in shares.split(_DRAWS):
            choice = (which * len(_NAMES)).long()
            magnitude = self._magnitudes(self._levels(strength), sign > 0.5, batch)[
                choice, torch.arange(len(choice), device=choice.device)
            ]
            steps.append((torch.where(chance <= self.prob, numbers[choice], 0), magnitude.float()))
        return steps

    def _levels(self, share: torch.Tensor) -> torch.Tensor:
        """Draw strengths, float64[B] of 0 to 10."""
        if self.magnitude_std == math.inf:
            level = share * self.magnitude
        else:
            # the normal distribution's quantile; of 0 it would be infinite
            level = self.magnitude + self.magnitude_std * torch.special.ndtri(share.clamp(2**-54, 1 - 2**-53))
        return level.clamp(0, self.magnitude_max)

    def _magnitudes(self, level: torch.Tensor, is_negative: torch.Tensor, batch: ImageBatch) -> torch.Tensor:
        """Give float64[15, B], how strong each operation would be, as `policy_steps` takes it."""
        height, width = batch.pixels.shape[1:3]
        share, is_inc = level / _STRENGTHS, self.is_increasing
        sign = torch.where(is_negative, -1.0, 1.0)
        bits, threshold = (share * 4).trunc(), (share * 256).trunc().clamp(max=256)
        most = {"Rotate": 30.0, "ShearX": 0.3, "ShearY": 0.3, "TranslateX": 0.45 * width, "TranslateY": 0.45 * height}
        of_name = {name: sign * share * most[name] for name in most}
        factor = (1 + sign * share * 0.9).clamp(min=0.1) if is_inc else share * 1.8 + 0.1
        of_name |= dict.fromkeys(_ENHANCING, factor - 1)
        # beyond 10 the strength may ask for other numbers of bits than there are
        of_name["Posterize"] = (4 - bits if is_inc else bits).clamp(0, 8)
        # half a level less, as a level of 255 parts is rounded up again
        of_name["Solarize"] = ((256 - threshold if is_inc else threshold) - 0.5) / 255
        of_name["SolarizeAdd"] = (share * 110).trunc().clamp(max=128)
        return torch.stack([of_name.get(name, torch.zeros_like(share)) for name in _NAMES])


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

    Rectangles are erased with ImageNet's mean, in levels, which is 0 after Normalize.

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
    if checked_p(hflip_prob, "hflip_prob") > 0:
        chain.append(RandomHorizontalFlip(hflip_prob, seed=seed))
    if auto_augment_policy == "ra":
        chain.append(RandAugment(magnitude=ra_magnitude, interpolation="bilinear", seed=seed))
    elif auto_augment_policy == "ta_wide":
        chain.append(TrivialAugmentWide(interpolation="bilinear", seed=seed))
    elif auto_augment_policy == "augmix":
        chain.append(AugMix(severity=augmix_severity, interpolation="bilinear", seed=seed))
    elif auto_augment_policy is not None:
        chain.append(AutoAugment(auto_augment_policy, "bilinear", seed=seed))
    if checked_p(random_erase_prob, "random_erase_prob") > 0:
        chain.append(RandomErasing(random_erase_prob, value=_MEAN, seed=seed))
    return Compose(chain)


def torchvision_eval(crop_size: int = 224, resize_size: int = 256) -> ResizeCenterCrop:
    """Make what torchvision's references/classification evaluates with, ClassificationPresetEval, up to its Normalize.

    Args:
        crop_size: side of the center crop, pixels.
        resize_size: what the shorter side is resized to first, pixels.

    Raises:
        ValueError: crop_size is not 1 or more, or resize_size is less than crop_size.
    """
    crop_size, resize_size = integer("crop_size", crop_size), integer("resize_size", resize_size)
    if not 1 <= crop_size <= resize_size:
        raise ValueError(
            f"crop_size is {crop_size} and resize_size {resize_size}, expected 1 or more pixels, and no less than the crop's."
        )
    return ResizeCenterCrop(crop_size, crop_size / resize_size)


def timm_train(
    input_size: int = 224,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    hflip: float = 0.5,
    color_jitter: float | Sequence[float] | None = 0.4,
    auto_augment: str | None = None,
    re_prob: float = 0.0,
    re_mode: str = "pixel",
    *,
    seed: int = 0,
) -> Compose:
    """Make what timm's train.py trains with by default, create_transform(is_training=True), up to its Normalize.

    Boxes are resized bilinearly or bicubically, drawn for each.

    Args:
        input_size: side of the crops, pixels.
        scale, ratio: of RandomResizedCrop.
        hflip: probability of a flip.
        color_jitter: of brightness, contrast and saturation; None: none.
        auto_augment: what --aa takes of TimmRandAugment, in place of color_jitter as in timm; None: none.
        re_prob: probability of RandomErasing.
        re_mode: "const" erases with ImageNet's mean, "pixel" with noise.
        seed: of all transforms in it.

    Raises:
        ValueError: re_mode is neither, or TimmRandAugment does not take auto_augment.
    """
    if re_mode not in ("const", "pixel"):
        raise ValueError(f're_mode is {re_mode!r}, expected "const" or "pixel".')
    chain: list[Transform] = [RandomResizedCrop(input_size, scale, ratio, "random", seed=seed)]
    if checked_p(hflip, "hflip") > 0:
        chain.append(RandomHorizontalFlip(hflip, seed=seed))
    if auto_augment is not None:
        chain.append(TimmRandAugment(auto_augment, seed=seed))
    elif color_jitter is not None:
        given = numbers("color_jitter", color_jitter)
        chain.append(ColorJitter(*(given if isinstance(color_jitter, Sequence) else given * 3), seed=seed))
    if checked_p(re_prob, "re_prob") > 0:
        value: str | tuple[float, ...] = "random" if re_mode == "pixel" else _MEAN
        chain.append(RandomErasing(re_prob, (0.02, 1 / 3), (0.3, 1 / 0.3), value, seed=seed))
    return Compose(chain)


def _views(count: int, transform: Transform | Sequence[Transform] | None, crop: RandomResizedCrop) -> list[Transform]:
    """Give each view its crop and what changes it."""
    each = list(transform) if isinstance(transform, Sequence) else [transform] * count
    if len(each) != count:
        raise ValueError(f"there are {len(each)} transforms for {count} crops, expected one, or one for each of them.")
    return [Compose([crop] if changed is None else [crop, changed]) for changed in each]


def _sections(config_str: str) -> dict[str, float]:
    """Read "rand-m9-mstd0.5" to {"m": 9, "mstd": 0.5}."""
    first, *sections = config_str.split("-")
    found = [_SECTION.fullmatch(section) for section in sections]
    if first != "rand" or not all(found):
        raise ValueError(
            f"config_str is {config_str!r}, expected rand and sections of m, n, p, mstd, mmax and inc, such as"
            " rand-m9-mstd0.5-inc1."
        )
    return {match[1]: float(match[2]) for match in found if match}
