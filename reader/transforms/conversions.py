"""Recipes written for torchvision: converts its objects to ours, and accepts its type conversions, most of which change nothing.

A store's rows are uint8 tensors already. So a list of transforms that was written for torchvision's Compose stands in ours as it
is. Imports no torchvision.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from reader.compiled import CompiledTransform, floats_of
from reader.described import Described
from reader.store import Batch, ImageBatch, RaggedBatch, replaced
from reader.transforms.color import Normalize
from reader.transforms.detection.view import refuse_masks
from reader.transforms.kernels.regions import by_image, floats
from reader.transforms.per_sample import PerSample
from reader.transforms.random import check_batch
from reader.transforms.random_crops import RandomHorizontalFlip, RandomVerticalFlip
from reader.transforms.resize import CenterCrop, Resize, ResizeCenterCrop

_log = logging.getLogger("pixpack")
Transform = Callable[[Any], Any]
_Batch = TypeVar("_Batch")

# Arguments of torchvision's that ours do not have, and what they may be: pixels are always antialiased, and nothing is in place.
_OTHERS: dict[str, tuple[object, ...]] = {
    "inplace": (True, False),
    "antialias": (True,),
    # boxes have their labels, and are clipped
    "labels_getter": ("default",),
    "clamping_mode": ("auto", "soft", "hard"),
}
# Those that ours keep by other names.
_KEPT_AS = {("RandomIoUCrop", "sampler_options"): "options"}
# What moves pixels and changes none.
_MOVES = (CenterCrop, RandomHorizontalFlip, RandomVerticalFlip)
# What torchvision calls for batches that a loop has made.
_OF_BATCHES = ("CutMix", "MixUp")
# Its transforms that take PIL images, and give tensors; other libraries have theirs of these names, or subclasses.
_FROM_PIL = ("ToTensor", "PILToTensor", "ToImage")
_PRESETS_MODULE = "torchvision.transforms._presets"
# Recipes of references/classification/presets.py of torchvision's repository, which its users copy.
_REFERENCE_PRESETS = ("ClassificationPresetTrain", "ClassificationPresetEval")
_LATE_NORMALIZE = (
    "Normalize takes uint8 pixels, and what comes before it made them floats. Let it come right behind ToDtype."
)


def from_torchvision(transform: object) -> Transform:
    """Make a transform of batches of what was written for torchvision, v1 or v2: a recipe, one of its transforms, or a preset.

    The beginning of the recipe becomes transforms of the same names, arguments and distributions. From the first step on that has
    none of batches (a function of the program, RandomPerspective, an argument that ours do not take) all steps run for each
    image, as PerSample runs them, and a warning names them. Where they make tensors themselves (ToTensor, PILToTensor, ToImage)
    they get PIL images, else uint8[C, H, W]; behind a conversion its tensors, tv_tensors.Image behind ToImage.

    Each image still draws for itself, but other numbers than torchvision would. Pixels are those of torchvision for uint8
    tensors, as each transform here says; of PIL images torchvision's own differ by a level or two. CutMix and MixUp are refused.

    Args:
        transform: such as v2.Compose([...]), with what stands in it, weights.transforms(), or a ClassificationPreset of
            torchvision's references.

    Raises:
        TypeError: it cannot be called, it mixes batches, or a transform of batches stands behind one of single images.
        ValueError: it has no step.
    """
    converted, rest, reason = convertible(transform)
    if rest:
        names = ", ".join(getattr(step, "__name__", type(step).__name__) for step in rest)
        _log.warning(
            *("from_torchvision: %s. So for each image by itself: %s; on batches: the %d steps before.", reason),
            *(names, len(converted)),
        )
        steps = _steps_of(transform)
        converted.append(PerSample(_of_samples(transform, steps[: -len(rest)], rest)))
    return _composed(converted)


def convertible(transform: object) -> tuple[list[Transform], list[Any], str]:
    """Return the beginning of a recipe as transforms of batches, the steps of the rest, and why the first of these has none.

    Raises:
        TypeError: a step cannot be called, or mixes batches.
        ValueError: there is no step.
    """
    steps, result = _steps_of(transform), list[Transform]()
    if not steps:
        raise ValueError(f"transform is {transform!r}, expected one step or more.")
    for n, step in enumerate(steps):
        try:
            converted = _converted(step, are_pil=_are_pil(steps[:n], steps[n:]))
            _composed([*result, converted])
        except (TypeError, ValueError) as e:
            return result, steps[n:], str(e).removesuffix(".")
        result.append(converted)
    return result, [], ""


def is_torchvisions(transform: object) -> bool:
    """Say whether a transform is torchvision's, or a Sequential that begins with one: it takes single images.

    Raises:
        TypeError: it cannot be called, or mixes batches, which from_torchvision refuses too.
    """
    while isinstance(transform, torch.nn.Sequential) and len(transform):
        transform = transform[0]
    return any(map(_is_torchvisions, [transform, *_steps_of(transform)]))


def _composed(transforms: list[Transform]) -> Transform:
    composed: Transform = importlib.import_module("reader.transforms").Compose(transforms)
    return composed


def _steps_of(transform: object) -> list[Any]:
    """Return the steps of a recipe, of recipes within it too.

    Raises:
        TypeError: one cannot be called, or mixes batches.
    """
    kind = type(transform)
    if kind.__name__ in _REFERENCE_PRESETS and hasattr(transform, "transforms"):
        return _steps_of(transform.transforms)
    if isinstance(transform, torch.nn.Sequential) or (kind.__name__ == "Compose" and _is_torchvisions(transform)):
        within: Any = transform if isinstance(transform, torch.nn.Sequential) else transform.transforms  # type: ignore[attr-defined]
        return [step for each in within for step in _steps_of(each)]
    if not callable(transform):
        raise TypeError(f"transform is {transform!r}, expected one of torchvision's, or a function of one image.")
    if kind.__name__ in _OF_BATCHES and _is_torchvisions(transform):
        raise TypeError(
            f"{kind.__name__} of torchvision mixes a batch that is collated. Take pixpack.transforms.{kind.__name__}."
        )
    return [transform]


def _of_samples(transform: Any, before: list[Any], steps: list[Any]) -> Callable[..., object]:
    """Return the last steps of a recipe as one transform of single images, which are given what they get in torchvision.

    Raises:
        TypeError: there is a transform of batches.
    """
    for step in steps:
        if type(step).__module__.startswith("reader."):
            raise TypeError(
                f"{type(step).__name__} takes batches, and stands behind {type(steps[0]).__name__}, which is called with single"
                " images. Let it come first."
            )
    version = "torchvision.transforms" + (
        ".v2" if type(transform).__module__.startswith("torchvision.transforms.v2") else ""
    )
    module, first = importlib.import_module(version), list[Any]()
    if _are_pil(before, steps):
        first = [module.ToPILImage()]
    elif _are_tv_tensors(before):
        first = [importlib.import_module("torchvision.transforms.v2").ToImage()]
    alone: Callable[..., object] = steps[0]
    return alone if alone is transform and not first else module.Compose([*first, *steps])


def _are_pil(before: list[Any], steps: list[Any]) -> bool:
    """Say whether images are PIL images where the steps of a recipe begin that are left: those make tensors of them first."""
    left = [name for name in _conversions(steps) if name != "ToPureTensor"]
    return set(_FROM_PIL).isdisjoint(_conversions(before)) and left[:1] != [] and left[0] in _FROM_PIL


def _are_tv_tensors(before: list[Any]) -> bool:
    """Say whether images are tv_tensors.Image behind these steps of a recipe."""
    names = [name for name in _conversions(before) if name in ("ToImage", "ToPureTensor")]
    return names[-1:] == ["ToImage"]


def _conversions(steps: list[Any]) -> list[str]:
    """Name the conversions between PIL images and tensors of these steps, and of their own steps, in their order."""
    found = list[str]()
    for step in steps:
        kind = type(step)
        # its presets make tensors, whatever they get
        names = ["ToTensor"] if kind.__module__ == _PRESETS_MODULE else [each.__name__ for each in kind.__mro__]
        found += [name for name in names if name in (*_FROM_PIL, "ToPILImage", "ToPureTensor")][:1]
        within = getattr(step, "transforms", ())
        found += _conversions(list(within) if isinstance(within, list | tuple) else [within])
    return found


def _is_torchvisions(transform: object) -> bool:
    return type(transform).__module__.startswith("torchvision.transforms.")


def _converted(transform: Any, *, are_pil: bool) -> Transform:
    """Return a transform of batches of one of torchvision's; raises TypeError or ValueError with the reason why there is none.

    are_pil: it gets PIL images in its recipe.
    """
    kind = type(transform)
    if kind.__module__.startswith("reader.transforms."):
        ours: Transform = transform
        return ours
    if not _is_torchvisions(transform):
        raise TypeError(f"{getattr(transform, '__qualname__', kind.__qualname__)} is not a transform of torchvision.")
    if kind.__module__ == _PRESETS_MODULE:
        if kind.__name__ not in _PRESETS:
            raise TypeError(f"the preset {kind.__name__} is not one of single images.")
        return _composed(_PRESETS[kind.__name__](transform, are_pil))
    room = importlib.import_module("reader.transforms")
    counterpart: Callable[..., Transform] | None = getattr(room, kind.__name__, None)
    if counterpart is None:
        raise TypeError(f"{kind.__name__} of torchvision has no transform of batches of its name.")
    return counterpart(**_arguments(transform, kind, counterpart, are_pil))


def _normalized(preset: Any) -> list[Any]:
    """Return how a preset ends."""
    return [ToTensor(), Normalize(preset.mean, preset.std)]


def _resized(preset: Any, are_pil: bool) -> list[Any]:
    """Return how a preset begins."""
    if preset.resize_size is None:
        return []
    antialias = are_pil if preset.antialias is None else preset.antialias
    return [Resize(preset.resize_size, preset.interpolation, antialias=antialias)]


def _arguments(transform: object, kind: type, ours: Callable[..., object], are_pil: bool) -> dict[str, object]:
    """Return what torchvision's was made with, as ours takes it."""
    known, found = _names(ours), {}
    for name in _names(kind):
        value = given = _given(transform, kind, name)
        if (name, value) == ("antialias", None):
            # of PIL images what is made smaller is averaged, of tensors it is not
            value = are_pil
        if name not in known and value not in _OTHERS.get(name, ()):
            raise ValueError(
                f"{kind.__name__} of torchvision has {name}={given!r}, which no transform of batches takes."
            )
        if name == "transforms":
            value = [_converted(each, are_pil=are_pil) for each in value]
        elif name == "value" and isinstance(value, list) and not any(value):
            value = 0
        elif isinstance(value, list):
            value = tuple(value)
        if name in known:
            # torchvision's enumerations have the names of ours as values
            found[name] = getattr(value, "value", value)
    return found


def _given(transform: object, kind: type, name: str) -> Any:
    """Return an argument as it was given; v2 keeps two otherwise. No level around an image is 0."""
    value = getattr(transform, _KEPT_AS.get((kind.__name__, name), name))
    if name == "fill" and isinstance(value, dict):
        value = _fill_of_images(kind, value)
    if name == "fill" and value is None and kind.__name__ in ("Pad", "RandomCrop", "RandomZoomOut"):
        return 0
    if not kind.__module__.startswith("torchvision.transforms.v2."):
        return value
    if (kind.__name__, name) == ("RandomCrop", "padding") and value is not None:
        left, right, top, bottom = value
        return [left, top, right, bottom]
    return "random" if (kind.__name__, name, value) == ("RandomErasing", "value", None) else value


def _fill_of_images(kind: type, levels: dict[Any, Any]) -> object:
    """Return the level that a dict by type, as v2 takes it, has for images.

    Raises:
        ValueError: it has none.
    """
    for key, level in levels.items():
        # not Pillow's of that name
        if getattr(key, "__name__", "") == "Image" and key.__module__.startswith("torchvision."):
            return level
    if "others" in levels:
        return levels["others"]
    # torchvision asks a defaultdict for no default, and fills with 0
    if hasattr(levels, "default_factory"):
        return None
    raise ValueError(f"{kind.__name__} of torchvision has fill={levels!r}, without a level of images. Give one number.")


def _names(kind: Callable[..., object]) -> list[str]:
    """Name the arguments that a transform is made with."""
    parameters = inspect.signature(kind).parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


class ToImage(Described):
    """Return the batch as it is: a row is an image already. Also PILToTensor and ToPureTensor."""

    def __call__(self, batch: _Batch) -> _Batch:
        """Return the batch unchanged."""
        return batch


class PILToTensor(ToImage):
    """Return the batch as it is: a row is a tensor already."""


class ToPureTensor(ToImage):
    """Return the batch as it is: a row is a plain tensor already."""


class ToDtype(CompiledTransform):
    """Make pixels floats from 0 to 1; in a Compose with Normalize right behind it that does both in one step.

    On the CPU images are float[B, C, H, W] in memory, as a DataLoader's, no longer channels_last.

    Args:
        dtype: torch.float32, float16 or bfloat16; torch.uint8 changes nothing.
        scale: True divides by 255; without it torchvision leaves 0 to 255, which no network here expects.

    Raises:
        ValueError: another dtype, or a float one without scale=True.

    Example:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> ToDtype(torch.float32, scale=True)(batch).images.dtype
        torch.float32
    """

    # images of different sizes stay so
    keeps_sizes = True

    def __init__(self, dtype: torch.dtype, scale: bool = False) -> None:
        if dtype != torch.uint8 and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"dtype is {dtype!r}, expected a float one such as torch.float32, or torch.uint8.")
        if dtype != torch.uint8 and not scale:
            raise ValueError(f"ToDtype({dtype}) without scale=True leaves pixels from 0 to 255. Give scale=True.")
        self.dtype = dtype

    @property
    def takes_floats(self) -> bool:
        """Whether pixels may be floats, as they may where none become uint8."""
        return self.dtype != torch.uint8

    def __call__(self, batch: ImageBatch | RaggedBatch) -> ImageBatch | RaggedBatch:
        """Return dtype[B, H, W, C] from 0 to 1; pixels that are floats already keep their values.

        Of images of different sizes, a RaggedBatch, planes of the dtype.

        Raises:
            ValueError: these have masks, or pixels are floats and are to become uint8.
        """
        check_batch(self, batch, takes_ragged=True, takes_floats=self.takes_floats)
        if isinstance(batch, RaggedBatch):
            return self._ragged(batch)
        pixels = batch.pixels if self.dtype == torch.uint8 else self._floats(batch.pixels)
        return replaced(batch, pixels=pixels, content=batch.content, extras=batch.extras)

    def _ragged(self, batch: RaggedBatch) -> RaggedBatch:
        if self.dtype == torch.uint8:
            return batch
        refuse_masks(self, batch)
        result = floats(batch, _of_one) if batch.pixels.dtype == torch.uint8 else batch
        return result if result.pixels.dtype == self.dtype else result.replace(pixels=result.pixels.to(self.dtype))

    def _floats(self, pixels: torch.Tensor) -> torch.Tensor:
        if pixels.dtype != torch.uint8:
            return pixels.to(self.dtype)
        result = floats_of(pixels, _of_one) if self.dtype == torch.float32 else None
        return _of_one(_in_planes(pixels)).to(self.dtype) if result is None else result


def _in_planes(pixels: torch.Tensor) -> torch.Tensor:
    """Return uint8[B, H, W, C] as a view of [B, C, H, W] on the CPU: a network's first steps there take half the time."""
    return pixels.movedim(-1, 1).contiguous().movedim(1, -1) if pixels.device.type == "cpu" else pixels


def _of_one(levels: torch.Tensor) -> torch.Tensor:
    """Make float32 from 0 to 1 of uint8."""
    return levels.float() / 255


class ConvertImageDtype(ToDtype):
    """ToDtype with scale=True, by its older name."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype, scale=True)


class ToTensor(ToDtype):
    """ToDtype(torch.float32, scale=True), by its oldest name."""

    def __init__(self) -> None:
        super().__init__(torch.float32, scale=True)


class Normalized(CompiledTransform):
    """Normalize, of a batch: what it is inside a Compose."""

    keeps_sizes = True

    def __init__(self, normalize: Normalize) -> None:
        self.normalize = normalize

    def __call__(self, batch: Any) -> Any:
        """Return a batch whose pixels are normalized floats[B, H, W, C]; a tensor is normalized as `Normalize` does.

        Raises:
            ValueError: it is one row, or pixels are floats from 0 to 1 already.
        """
        if not isinstance(batch, Batch):
            return self.normalize(batch)
        check_batch(self.normalize, batch, takes_ragged=True, takes_floats=True)
        if batch.pixels.dtype != torch.uint8:
            raise ValueError(_LATE_NORMALIZE)
        normalize = self.normalize.to(batch.pixels.device)
        if isinstance(batch, RaggedBatch):
            refuse_masks(self.normalize, batch)
        # a program's own class may look at more than a level
        is_by_level = type(normalize) is Normalize
        if isinstance(batch, RaggedBatch):
            return floats(batch, normalize) if is_by_level else by_image(batch, _of_image(normalize))
        pixels = floats_of(batch.pixels, normalize) if is_by_level else None
        if pixels is None:
            pixels = normalize(_in_planes(batch.pixels).movedim(-1, -3)).movedim(-3, -1)
        return replaced(batch, pixels=pixels, content=batch.content, extras=batch.extras)


def without_conversions(transforms: Sequence[Transform]) -> list[Transform]:
    """Leave out what changes nothing, and ToDtype where Normalize comes right behind it; Normalize is then of batches.

    Resize to a shorter side and a square CenterCrop right behind it become one pass over the pixels.

    Raises:
        ValueError: a transform of uint8 pixels comes behind what makes them floats.

    Example:
        >>> recipe = [ToImage(), ToDtype(torch.float32, scale=True), Normalize([0.5], [0.5])]
        >>> [type(transform).__name__ for transform in without_conversions(recipe)]
        ['Normalized']
    """
    # a Compose within has its Normalize as one of batches
    given = [each.normalize if isinstance(each, Normalized) else each for each in transforms]
    found = _joined(_before_floats([transform for transform in given if not isinstance(transform, ToImage)]))
    kept: list[Transform] = []
    # of the ToDtype right before a transform
    dtype: torch.dtype | None = None
    # None: a program's own function may have made anything of them
    are_floats: bool | None = False
    for transform, after in zip(found, [*found, None][1:], strict=True):
        if are_floats:
            _check_takes_floats(transform)
        if kept and isinstance(kept[-1], Normalized) and hasattr(transform, "in_place"):
            # of floats that were made just now
            transform = transform.in_place()
        changes_nothing = are_floats is False and not _makes_floats(transform)
        if isinstance(transform, Normalize):
            if dtype is None and (are_floats or any(isinstance(each, ToDtype) for each in kept)):
                raise ValueError(_LATE_NORMALIZE)
            kept.append(Normalized(transform if dtype is None else _with_dtype(transform, dtype)))
        elif not isinstance(transform, ToDtype) or not (isinstance(after, Normalize) or changes_nothing):
            kept.append(transform)
        is_first = _makes_floats(transform) and not are_floats
        dtype = transform.dtype if isinstance(transform, ToDtype) and is_first else None
        are_floats = _makes_floats(transform) or (are_floats if _is_of_batches(transform) else None)
    return kept or [ToImage()]


def _of_image(normalize: Normalize) -> Callable[[int, torch.Tensor], torch.Tensor]:
    """Normalize uint8[H, W, C] as a batch of one image."""
    return lambda _, image: normalize(image.movedim(-1, 0)[None])[0].movedim(0, -1)


def _with_dtype(normalize: Normalize, dtype: torch.dtype) -> Normalize:
    """Return a Normalize with the dtype of the ToDtype before it, unless it has its own."""
    result = copy.copy(normalize)
    result.dtype = dtype if normalize.dtype == torch.float32 else normalize.dtype
    return result


def _before_floats(transforms: list[Transform]) -> list[Transform]:
    """Move what cuts and mirrors before ToDtype, where it stands right behind it: the same pixels, as zeros stay zeros."""
    result: list[Transform] = []
    for transform in transforms:
        at = len(result)
        while type(transform) in _MOVES and at and isinstance(result[at - 1], ToDtype):
            at -= 1
        result.insert(at, transform)
    return result


def _joined(transforms: list[Transform]) -> list[Transform]:
    """Make Resize(256), CenterCrop(224) one ResizeCenterCrop(224, fraction=224 / 256): the same pixels."""
    result: list[Transform] = []
    for transform in transforms:
        before = result[-1] if result else None
        if isinstance(before, Resize) and isinstance(transform, CenterCrop) and _is_cover(before, transform):
            # half a pixel more: what the crop is divided by is rounded down
            result[-1] = ResizeCenterCrop(transform.height, transform.height / (before.size[0] + 0.5))
        else:
            result.append(transform)
    return result


def _is_cover(resize: Resize, crop: CenterCrop) -> bool:
    is_bilinear = (resize.interpolation, resize.antialias) == ("bilinear", True)
    is_plain = is_bilinear and len(resize.size) == 1 and resize.max_size is None
    return is_plain and crop.height == crop.width <= resize.size[0]


def _makes_floats(transform: Transform) -> bool:
    return isinstance(transform, Normalize) or (isinstance(transform, ToDtype) and transform.dtype != torch.uint8)


def _is_of_batches(transform: Transform) -> bool:
    """Say whether a transform is of this package, and calls none of single images."""
    return type(transform).__module__.startswith("reader.transforms.") and not hasattr(transform, "takes_samples")


def _check_takes_floats(transform: Transform) -> None:
    """Refuse what computes levels of uint8; a program's own function knows what it does."""
    if _is_of_batches(transform) and not _makes_floats(transform) and not getattr(transform, "takes_floats", False):
        raise ValueError(
            f"{type(transform).__name__} takes uint8 pixels, and what comes before it makes them floats. Let it come before"
            " ToDtype and Normalize."
        )


# What its presets of images are made of.
_PRESETS: dict[str, Callable[[Any, bool], list[Any]]] = {
    "ImageClassification": lambda preset, are_pil: [
        *_resized(preset, are_pil),
        CenterCrop(preset.crop_size),
        *_normalized(preset),
    ],
    "ObjectDetection": lambda preset, are_pil: [ToTensor()],
    "SemanticSegmentation": lambda preset, are_pil: [*_resized(preset, are_pil), *_normalized(preset)],
}
