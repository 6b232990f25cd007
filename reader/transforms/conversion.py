"""Converts recipes for torchvision, v1 or v2, to transforms of batches, by a table of its classes and some of timm's.

Imports neither: it reads the names of classes and the attributes of their objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from reader.transforms import (
    affine,
    color,
    detection,
    mixing,
    padding,
    pixel_transforms,
    policies,
    random_crops,
    resize,
)
from reader.transforms.composition import Compose, RandomApply, Transform
from reader.transforms.fills import Fill, mapped_fill, of_kind

_BY_DATALOADER = (
    "Leave it out, or take torch's DataLoader:"
    " DataLoader(MemmapDataset(path, transform=recipe, as_pil=True), batch_size, num_workers=8)."
)
# Rows are tensors already, boxes are x0, y0, x1, y1 and clipped at each step.
_CHANGE_NOTHING = (
    "ClampBoundingBoxes",
    "PILToTensor",
    "ToImage",
    "ToPureTensor",
    "timm.data.transforms.MaybePILToTensor",
)
_MAKE_FLOATS = ("ConvertImageDtype", "ToDtype", "ToTensor", "timm.data.transforms.MaybeToTensor")


@dataclass(frozen=True)
class _Pixels:
    """The form of pixels before a step: levels; or floats, (level / 255 - mean) / std, of a dtype."""

    dtype: torch.dtype | None = None
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)

    def fill(self, step: Any) -> Fill:
        """Return the fill of a step in levels; the fill of masks as given."""
        # no fill means 0, which is another level once pixels are floats
        fill = 0 if step.fill is None and self.dtype is not None else step.fill
        return mapped_fill(fill, self._levels)

    def value(self, step: Any) -> float | Sequence[float] | str:
        """Return the value of a RandomErasing in levels; v2 keeps "random" as None."""
        return "random" if step.value is None or isinstance(step.value, str) else self._levels(step.value)

    def _levels(self, given: Any) -> Any:
        if self.dtype is None:
            return given
        values = list(given) if isinstance(given, list | tuple) else [given]
        count = max(len(values), len(self.mean))
        each = zip(*(list(part) * (count // len(part)) for part in (values, self.mean, self.std)), strict=True)
        return tuple(min(max(round((value * std + mean) * 255), 0), 255) for value, mean, std in each)


# A transform of this package for a step of each class, and the pixels there; the next table moves pixels, and also takes floats.
_COLORS: dict[str, Callable[[Any, _Pixels], Transform]] = {
    "ColorJitter": lambda t, _: color.ColorJitter(t.brightness, t.contrast, t.saturation, t.hue),
    "GaussianBlur": lambda t, _: pixel_transforms.GaussianBlur(t.kernel_size, t.sigma),
    "Grayscale": lambda t, _: pixel_transforms.Grayscale(t.num_output_channels),
    "RandAugment": lambda t, at: policies.RandAugment(
        t.num_ops, t.magnitude, t.num_magnitude_bins, t.interpolation, at.fill(t)
    ),
    "RandomAdjustSharpness": lambda t, _: pixel_transforms.RandomAdjustSharpness(t.sharpness_factor, t.p),
    "RandomAutocontrast": lambda t, _: pixel_transforms.RandomAutocontrast(t.p),
    "RandomEqualize": lambda t, _: pixel_transforms.RandomEqualize(t.p),
    "RandomGrayscale": lambda t, _: pixel_transforms.RandomGrayscale(t.p),
    "RandomInvert": lambda t, _: pixel_transforms.RandomInvert(t.p),
    "RandomPosterize": lambda t, _: pixel_transforms.RandomPosterize(t.bits, t.p),
    "RandomSolarize": lambda t, _: pixel_transforms.RandomSolarize(t.threshold, t.p),
    "TrivialAugmentWide": lambda t, at: policies.TrivialAugmentWide(t.num_magnitude_bins, t.interpolation, at.fill(t)),
}
_MOVES: dict[str, Callable[[Any, _Pixels], Transform]] = {
    "CenterCrop": lambda t, _: resize.CenterCrop(t.size),
    "Pad": lambda t, at: padding.Pad(t.padding, at.fill(t), t.padding_mode),
    "RandomAffine": lambda t, at: affine.RandomAffine(
        t.degrees, t.translate, t.scale, t.shear, t.interpolation, at.fill(t), t.center
    ),
    "RandomCrop": lambda t, at: random_crops.RandomCrop(t.size, _sides(t), t.pad_if_needed, at.fill(t), t.padding_mode),
    "RandomErasing": lambda t, at: mixing.RandomErasing(t.p, t.scale, t.ratio, at.value(t)),
    "RandomHorizontalFlip": lambda t, _: random_crops.RandomHorizontalFlip(t.p),
    "RandomResizedCrop": lambda t, _: random_crops.RandomResizedCrop(
        _antialiased(t).size, t.scale, t.ratio, t.interpolation
    ),
    "RandomRotation": lambda t, at: affine.RandomRotation(t.degrees, t.interpolation, t.expand, t.center, at.fill(t)),
    "RandomShortestSize": lambda t, _: detection.RandomShortestSize(
        _antialiased(t).min_size, t.max_size, t.interpolation
    ),
    "RandomVerticalFlip": lambda t, _: random_crops.RandomVerticalFlip(t.p),
    "Resize": lambda t, _: resize.Resize(_antialiased(t).size, t.interpolation, t.max_size),
    "ScaleJitter": lambda t, _: detection.ScaleJitter(_antialiased(t).target_size, t.scale_range, t.interpolation),
    "timm.data.transforms.RandomResizedCropAndInterpolation": lambda t, _: random_crops.RandomResizedCrop(
        t.size, t.scale, t.ratio, t.interpolation
    ),
}


def from_torchvision(transform: object) -> Compose:
    """Convert a recipe of torchvision, v1 or v2, or of timm's create_transform, to transforms of batches.

    Steps become transforms of the same names and distributions; each image draws separately, and other numbers than in
    torchvision. Conversions change nothing here: rows are uint8 tensors, and one Normalize at the end makes floats. Pixels
    are within a level of torchvision's for uint8 tensors.

    Args:
        transform: such as v2.Compose([...]), torch.nn.Sequential, or a single transform.

    Raises:
        TypeError: a step has no transform of batches, or changes colors of float pixels.
        ValueError: it has no step, or a step has an unsupported argument.
    """
    pixels, made = _Pixels(), list[Transform]()
    for step in _steps_of(transform):
        name = _name_of(step)
        if name in _MAKE_FLOATS:
            pixels = _with_floats(step, pixels)
        elif name == "Normalize" and pixels.dtype is not None and pixels == _Pixels(pixels.dtype):
            pixels = _Pixels(pixels.dtype, step.mean, step.std)
        elif not _changes_nothing(step):
            made.append(_converted(step, pixels))
    if pixels.dtype is not None:
        made.append(color.Normalize(pixels.mean, pixels.std, pixels.dtype))
    return Compose(made)


def _name_of(step: object) -> str:
    """Return the name of a class; for classes outside torchvision, with the module."""
    kind = type(step)
    is_torchvisions = kind.__module__.startswith("torchvision.transforms.")
    return kind.__name__ if is_torchvisions else f"{kind.__module__}.{kind.__name__}"


def _steps_of(transform: Any) -> list[Any]:
    """Return the steps of a recipe, nested recipes included."""
    if isinstance(transform, torch.nn.Sequential) or _name_of(transform) == "Compose":
        within = transform if isinstance(transform, torch.nn.Sequential) else transform.transforms
        return [step for each in within for step in _steps_of(each)]
    return [transform]


def _changes_nothing(step: Any) -> bool:
    name = _name_of(step)
    if name == "ConvertBoundingBoxFormat":
        return str(getattr(step.format, "value", step.format)).upper() == "XYXY"
    return name in _CHANGE_NOTHING


def _with_floats(step: Any, pixels: _Pixels) -> _Pixels:
    """Return the form of pixels after a conversion of their dtype."""
    dtype = of_kind(getattr(step, "dtype", torch.float32), "Image")
    if dtype == torch.uint8 and pixels.dtype is None:
        return pixels
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or not getattr(step, "scale", True):
        raise ValueError(f"{step} gives no floats from 0 to 1, which images have here. {_BY_DATALOADER}")
    return _Pixels(dtype, pixels.mean, pixels.std)


def _converted(step: Any, pixels: _Pixels) -> Transform:
    """Return the transform of batches of a step."""
    name = _name_of(step)
    if name == "RandomApply":
        within = [_converted(each, pixels) for inner in step.transforms for each in _steps_of(inner)]
        return RandomApply(within, step.p)
    makers = _MOVES | _COLORS if pixels.dtype is None else _MOVES
    if name not in makers:
        where = " of floats" if name in _COLORS else ""
        called = getattr(step, "__name__", name)
        raise TypeError(f"the step {called}{where} has no transform of batches. {_BY_DATALOADER}")
    if name == "CenterCrop" and pixels not in (_Pixels(), _Pixels(pixels.dtype)):
        raise TypeError("CenterCrop after Normalize fills smaller images with 0. Let it come before Normalize.")
    try:
        return makers[name](step, pixels)
    except ValueError as e:
        raise ValueError(f"the step {name}: {e} {_BY_DATALOADER}") from None


def _antialiased(step: Any) -> Any:
    """Return a step; raises ValueError if it resizes without antialiasing."""
    if step.antialias is not True:
        raise ValueError(f"it has antialias={step.antialias}, and here all is antialiased.")
    return step


def _sides(crop: Any) -> Any:
    """Return the padding of a RandomCrop as given; v2 stores left, right, top, bottom."""
    if crop.padding is None or not type(crop).__module__.startswith("torchvision.transforms.v2."):
        return crop.padding
    left, right, top, bottom = crop.padding
    return [left, top, right, bottom]
