"""Transforms made of others: one after the other, some of the time, or one of several; for each image by itself.

Two of one kind in them draw different numbers, though both have the seed they were made with.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from reader import compiled
from reader.described import Described
from reader.epoch import wrapped
from reader.store import Batch, ImageBatch, RaggedBatch, replaced
from reader.transforms.annotations import content_of
from reader.transforms.conversions import without_conversions
from reader.transforms.detection.view import OwnSizeTransform, View
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.random import APPLY, CHOICE, ORDER, check_batch, checked_p, draw, integer, number
from reader.transforms.random_crops import AlternatingFlip, RandomCrop, RandomHorizontalFlip, RandomResizedCrop

Transform = Callable[[Any], Any]

# Odd, so that adding it leads through all seeds before one comes again.
_NEXT_SEED = 0x9E3779B97F4A7C15

_CROPS, _FLIPS = (RandomCrop, RandomResizedCrop), (AlternatingFlip, RandomHorizontalFlip)


class TransformGroup(Described):
    """Transforms that are called by another one."""

    transforms: list[Transform]

    @property
    def needs_full_batch(self) -> bool:
        """Say whether one of them mixes the images of a batch."""
        return any(getattr(transform, "needs_full_batch", False) for transform in self.transforms)

    @property
    def is_compiled(self) -> bool:
        """Say whether the compiled part does all that they do."""
        return are_compiled(self.transforms)


class Compose(TransformGroup):
    """Call transforms one after the other, ours or any function of an ImageBatch.

    Two of one kind with one seed get two: the second draws as if it had been made with another. A recipe of torchvision's v2
    stands here as it is: ToImage, PILToTensor and ToDtype are known, and Normalize takes the batch and makes its pixels floats.

    Args:
        transforms: called in this order, each with what the one before it returned.

    Raises:
        ValueError: there are none.
        TypeError: one cannot be called.

    Example:
        >>> from pixpack import MemmapDataset
        >>> from pixpack.transforms import RandomCrop, RandomHorizontalFlip
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> Compose([RandomHorizontalFlip(), RandomCrop(24)])(batch).images.shape
        torch.Size([2, 3, 24, 24])
    """

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = distinct(without_conversions(flat(checked_transforms(transforms))))

    def __call__(self, batch: Any) -> Any:
        """Return what the last one returns."""
        return in_turn(self.transforms, batch)

    def with_size(self, size: int | tuple[int, int]) -> Compose:
        """Return these with RandomResizedCrop and ResizeCenterCrop of another size; raises ValueError where there is none."""
        crops = [_has_size(transform) for transform in self.transforms]
        if not any(crops):
            raise ValueError("there is no RandomResizedCrop or ResizeCenterCrop whose size could be another.")
        result = copy.copy(self)
        every: list[Any] = self.transforms
        result.transforms = [
            each.with_size(size) if is_crop else each for each, is_crop in zip(every, crops, strict=True)
        ]
        return result


class RandomApply(TransformGroup):
    """Call transforms one after the other for each image with probability p; the others stay as they are.

    MixUp and CutMix are called for a whole batch, with this probability.

    Args:
        transforms: they must not change the size of images.
        p: 0..1.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: there are none, or p is not a probability.

    Example:
        >>> from pixpack import MemmapDataset
        >>> from pixpack.transforms import ColorJitter
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> RandomApply([ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)(batch).images.shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, transforms: Sequence[Transform], p: float = 0.5, *, seed: int = 0) -> None:
        self.transforms, self.p, self.seed = distinct(checked_transforms(transforms)), checked_p(p), seed

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return a batch of the same shapes.

        Raises:
            ValueError: a transform changed the size of images.
        """
        check_batch(self, batch, takes_floats=True)
        is_served = _takes_steps(batch)
        if is_served and _has_steps(self) and (result := _by_steps([self], batch)) is not None:
            return result
        is_chosen = self._chosen(batch)
        if is_served and all(_is_ours(each) and hasattr(each, "where") for each in self.transforms):
            for transform in self.transforms:
                batch = transform.where(batch, is_chosen)  # type: ignore[attr-defined]
            return batch
        which = _first(is_chosen, self.needs_full_batch).long()
        return _by_group(batch, which, [lambda part: part, Compose(self.transforms)])

    def steps(self, batch: ImageBatch) -> compiled.StepArrays:
        """Draw what a call would do as `compiled.augmented` takes it, where all that is called has steps."""
        kinds, numbers = _steps(self.transforms, batch)
        return kinds * self._chosen(batch)[:, None], numbers

    def _chosen(self, batch: ImageBatch) -> torch.Tensor:
        return draw(batch, self.seed, APPLY)[0] < self.p


class RandomChoice(TransformGroup):
    """Call one of several transforms for each image, drawn by their probabilities.

    If MixUp or CutMix is among them, one is drawn for a whole batch.

    Args:
        transforms: all must give images of one size.
        p: how likely each is, relative to the sum; None: all alike.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: there are none, or p is not one number of 0 or more for each.
    """

    def __init__(self, transforms: Sequence[Transform], p: Sequence[float] | None = None, *, seed: int = 0) -> None:
        self.transforms, self.seed = distinct(checked_transforms(transforms)), seed
        try:
            shares = [1.0] * len(transforms) if p is None else [number("p", share) for share in p]
        except TypeError:  # it has no shares
            shares = []
        if len(shares) != len(transforms) or min(shares) < 0 or not sum(shares) > 0:
            raise ValueError(f"p is {p!r}, expected a share for each of {len(transforms)} transforms.")
        self.p = [share / sum(shares) for share in shares]

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return a batch of what the chosen ones give.

        Raises:
            ValueError: they gave images of different sizes.
        """
        check_batch(self, batch, takes_floats=True)
        # the last limit is 1, whatever the sum is rounded to
        limits = tensor_on(batch.pixels.device, self.p, torch.float64).cumsum(0)[:-1]
        which = torch.bucketize(draw(batch, self.seed, CHOICE)[0], limits, right=True)
        return _by_group(batch, _first(which, self.needs_full_batch), self.transforms)


class RandomOrder(TransformGroup):
    """Call all of several transforms for each image, in an order drawn for it.

    If MixUp or CutMix is among them, one order is drawn for a whole batch.

    Args:
        transforms: all orders must give images of one size.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: there are none.

    Example:
        >>> from pixpack import MemmapDataset
        >>> from pixpack.transforms import ColorJitter, RandomInvert
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> RandomOrder([ColorJitter(0.4), RandomInvert()])(batch).images.shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, transforms: Sequence[Transform], *, seed: int = 0) -> None:
        self.transforms, self.seed = distinct(checked_transforms(transforms)), seed

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return a batch of what they give.

        Raises:
            ValueError: they gave images of different sizes.
        """
        check_batch(self, batch, takes_floats=True)
        drawn = draw(batch, self.seed, range(ORDER, ORDER + len(self.transforms)))
        if self.needs_full_batch:
            drawn = drawn[:, :1].expand_as(drawn)
        orders, which = drawn.T.argsort(1).unique(dim=0, return_inverse=True)
        # an empty batch has no orders
        each = orders.tolist() or [range(len(self.transforms))]
        return _by_group(batch, which, [Compose([self.transforms[n] for n in order]) for order in each])


def in_turn(transforms: Sequence[Transform], batch: Any) -> Any:
    """Call transforms one after the other, with as few passes over the pixels as the compiled part allows.

    A flip right behind a crop is made with it, steps that follow each other are made of one image at a time, and so is what cuts,
    resizes and flips images with sizes of their own.
    """
    left: list[Any] = flat(transforms)
    while left:
        count = 1
        views = list(itertools.takewhile(_moves_views, left)) if _takes_views(left[0], batch) else []
        steps = list(itertools.takewhile(_has_steps, left)) if _takes_steps(batch) else []
        is_crop = type(left[0]) in _CROPS and isinstance(batch, Batch)
        if views:
            batch, count = _by_view(views, batch), len(views)
        elif len(steps) > 1 and (result := _by_steps(steps, batch)) is not None:
            batch, count = result, len(steps)
        elif is_crop and len(left) > 1 and type(left[1]) in _FLIPS:
            batch, count = left[0].mirrored(batch, left[1].chosen(batch)), 2
        else:
            batch = left[0](batch)
        left = left[count:]
    return batch


def flat(transforms: Sequence[Any]) -> list[Transform]:
    """Return transforms, with those of a Compose in place of it."""
    return [
        each
        for transform in transforms
        for each in (flat(transform.transforms) if type(transform) is Compose else [transform])
    ]


def _has_steps(transform: Any) -> bool:
    """Say whether the compiled part makes of an image by itself what a transform does, and those that it calls."""
    if type(transform) in (Compose, RandomApply):
        return all(map(_has_steps, transform.transforms))
    return _is_ours(transform) and hasattr(transform, "steps")


def _takes_views(transform: object, batch: object) -> bool:
    """Say whether a transform is called with a view of a batch: images have sizes of their own, or are to have them."""
    # those that move masks move them by themselves
    is_ragged = isinstance(batch, RaggedBatch) and batch.mask_offsets is None
    is_batch = is_ragged or (isinstance(batch, ImageBatch) and isinstance(transform, OwnSizeTransform))
    return is_batch and _moves_views(transform)


def _moves_views(transform: object) -> bool:
    return _is_ours(transform) and hasattr(transform, "on")


def _by_view(transforms: Sequence[Any], batch: ImageBatch | RaggedBatch) -> ImageBatch | RaggedBatch:
    """Call transforms one after the other with a view of a batch, whose pixels are made once."""
    view = View.of(transforms[0], batch)
    for transform in transforms:
        view = transform.on(view)
    result: ImageBatch | RaggedBatch = view.batch()
    return result


def _is_ours(transform: object) -> bool:
    """Say whether a transform is of this package; a program's own class of one may do something else when it is called."""
    return type(transform).__module__.startswith("reader.transforms.")


def _takes_steps(batch: object) -> bool:
    return isinstance(batch, ImageBatch) and compiled.take_steps(batch.pixels)


def _by_steps(transforms: Sequence[Any], batch: ImageBatch) -> ImageBatch | None:
    """Do the steps of transforms to each image, one image after the other; None where the compiled part does not."""
    pixels = compiled.augmented(batch.pixels, *_steps(transforms, batch))
    return None if pixels is None else replaced(batch, pixels=pixels, content=batch.content, extras=batch.extras)


def _steps(transforms: Sequence[Any], batch: ImageBatch) -> compiled.StepArrays:
    each: list[Any] = flat(transforms)
    kinds, numbers = zip(*(transform.steps(batch) for transform in each), strict=True)
    return torch.cat(kinds, 1), torch.cat(numbers, 1)


def are_compiled(transforms: Sequence[Transform]) -> bool:
    """Say whether the compiled part does all that transforms do: then each is best called with a full batch."""
    return all(getattr(transform, "is_compiled", False) for transform in transforms)


def _has_size(transform: Transform) -> bool:
    """Say whether a transform is a crop whose size may be another, or calls one after others."""
    if isinstance(transform, Compose):
        return any(map(_has_size, transform.transforms))
    return hasattr(transform, "with_size")


def distinct(transforms: Sequence[Transform]) -> list[Transform]:
    """Return copies of transforms, nested ones included, so that no two of one kind share a seed.

    A program's own object stays itself where it draws what it drew.
    """
    seen = set[tuple[type, int]]()
    return [_distinct(transform, seen)[0] for transform in transforms]


def _distinct(transform: Any, seen: set[tuple[type, int]]) -> tuple[Any, bool]:
    """Return a transform of another seed than those that are seen, and whether it draws otherwise than before."""
    kind = _kind_of_ours(transform)
    if kind is None:
        return transform, False
    changes, draws_otherwise = dict[str, object](), False
    seed, within = getattr(transform, "seed", None), getattr(transform, "transforms", None)
    # only a class of a program's own may have None for a seed
    if seed is not None or (_is_ours(transform) and hasattr(transform, "seed")):
        changes["seed"] = changed = integer("seed", seed)
        while (kind, changed) in seen:
            changes["seed"] = changed = wrapped(changed + _NEXT_SEED)
            draws_otherwise = True
        seen.add((kind, changed))
    if isinstance(within, list | tuple):
        result = [_distinct(each, seen) for each in within]
        changes["transforms"] = [each for each, _ in result]
        draws_otherwise |= any(is_changed for _, is_changed in result)
    if not _is_ours(transform) and not draws_otherwise:
        return transform, False
    copied = copy.copy(transform)
    for name, value in changes.items():
        setattr(copied, name, value)
    return copied, draws_otherwise


def _kind_of_ours(transform: object) -> type | None:
    """Return the class of this package that a transform is of, or a program's own class is made of; None: there is none."""
    return next((kind for kind in type(transform).__mro__ if kind.__module__.startswith("reader.transforms.")), None)


def _by_group(batch: ImageBatch, which: torch.Tensor, transforms: Sequence[Transform]) -> ImageBatch:
    """Call transform n for the images whose int64[B] is n, and join the results in the batch's order.

    On CUDA that waits for the device once, to learn who goes where.
    """
    numbers = which.tolist()
    groups = {n: [index for index, m in enumerate(numbers) if m == n] for n in sorted({*numbers})}
    if len(groups) <= 1:
        return transforms[numbers[0] if numbers else 0](batch)
    found = []
    for n, indices in groups.items():
        index = tensor_on(batch.pixels.device, indices)
        found.append((index, transforms[n](batch[index])))
    return _joined(batch, found, transforms)


def _joined(
    batch: ImageBatch, found: list[tuple[torch.Tensor, ImageBatch]], transforms: Sequence[Transform]
) -> ImageBatch:
    """Put parts of a batch, each with its indices in it, together."""
    if not all(isinstance(part, ImageBatch) for _, part in found):
        raise TypeError(
            "what some images of a batch go through must return an ImageBatch: MultiCrop stands alone, or last."
        )
    shapes = sorted({tuple(part.pixels.shape[1:]) for _, part in found})
    if len(shapes) > 1:
        raise ValueError(
            f"images of one batch would have the shapes {' and '.join(map(str, shapes))} (height, width, channels):"
            f" transforms of some of a batch must all give one. They are {', '.join(type(t).__name__ for t in transforms)}."
        )
    order = torch.cat([index for index, _ in found]).argsort()

    def join(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(tensors).index_select(0, order)

    parts = [part for _, part in found]
    has_content = any(part.content is not None for part in parts)
    content = join([content_of(part).int() for part in parts]) if has_content else None
    extras = None
    if batch.extras is not None:
        of_parts: list[Any] = [part.extras for part in parts]
        values = {name: join([extras[name] for extras in of_parts]) for name in dict(of_parts[0].items())}
        extras = TensorDict(values, batch_size=[len(batch)], device=batch.extras.device)
    result = replaced(batch, pixels=join([part.pixels for part in parts]), content=content, extras=extras)
    result.targets = join([part.targets for part in parts])
    return result


def checked_transforms(transforms: Sequence[Transform]) -> Sequence[Transform]:
    """Return transforms; raises ValueError where there are none, and TypeError where one cannot be called."""
    if not isinstance(transforms, Sequence) or not transforms:
        raise ValueError(f"transforms is {transforms!r}, expected a list of one or more.")
    for transform in transforms:
        if not callable(transform):
            raise TypeError(f"transforms has {transform!r}, expected functions of an ImageBatch.")
    return transforms


def _first(drawn: torch.Tensor, is_for_all: bool) -> torch.Tensor:
    """Return the first draw for every image if is_for_all, else the draws."""
    return drawn[:1].expand_as(drawn) if is_for_all else drawn
