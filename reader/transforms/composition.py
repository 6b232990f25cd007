"""Transforms made from others: in sequence, with a probability, or one of several; for each image separately.

Two transforms of one kind in them draw different numbers, even with the same seed.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from reader import compiled
from reader.described import Described
from reader.epoch import wrapped
from reader.store import Batch, ImageBatch, RaggedBatch, replaced
from reader.transforms.labels import labels_in_place
from reader.transforms.program import Program, changed, changed_by_row
from reader.transforms.random import (
    APPLY,
    CHOICE,
    FACTOR,
    SHARE,
    check_batch,
    draw,
    host_batch,
    integer,
    number,
    numbers,
)
from reader.transforms.view import View, ViewTransform

Transform = Callable[[Any], Any]

# Odd, so that repeated addition passes all seeds before one repeats.
_NEXT_SEED = 0x9E3779B97F4A7C15


class TransformGroup(Described):
    """A transform that calls others."""

    transforms: list[Transform]

    @property
    def needs_full_batch(self) -> bool:
        """Return whether a called transform mixes the images of a batch."""
        return any(getattr(transform, "needs_full_batch", False) for transform in self.transforms)


class Compose(TransformGroup):
    """Call transforms one after the other: those of this package, or any function of an ImageBatch.

    Two of one kind with the same seed get different ones: the second draws as if made with another seed. Adjacent crops,
    resizes and flips become one pass over the pixels, and so do adjacent color changes.

    Args:
        transforms: called in this order, each with the result of the previous one.

    Raises:
        ValueError: there are none.
        TypeError: one cannot be called.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> from pixpack.transforms import RandomCrop, RandomHorizontalFlip
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> Compose([RandomHorizontalFlip(), RandomCrop(24)])(batch).images.shape
        torch.Size([2, 3, 24, 24])
    """

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = distinct(flattened(checked_transforms(transforms)))

    def __call__(self, batch: Any) -> Any:
        """Return the result of the last transform."""
        return apply_in_turn(self.transforms, batch)


class RandomApply(TransformGroup):
    """Call transforms one after the other for each image with probability p; other images stay unchanged.

    MixUp and CutMix are called for a whole batch, with this probability.

    Args:
        transforms: they must not change the size of images.
        p: 0..1.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: there are none, or p is not a probability.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> from pixpack.transforms import ColorJitter
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> RandomApply([ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)(batch).images.shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, transforms: Sequence[Transform], p: float = 0.5, *, seed: int = 0) -> None:
        self.transforms, self.p, self.seed = distinct(checked_transforms(transforms)), number("p", p, SHARE), seed

    def __call__(self, batch: ImageBatch | RaggedBatch) -> Any:
        """Return a batch of the same shapes.

        Raises:
            ValueError: a transform changed the size of images.
        """
        check_batch(self, batch)
        here = host_batch(batch)
        if has_program(self):
            return changed(batch, self.program(here))
        is_chosen = self._chosen(here)
        if self.needs_full_batch:
            return apply_in_turn(self.transforms, batch) if len(batch) and is_chosen[0] else batch
        if isinstance(batch, RaggedBatch):
            return changed_by_row(self, batch)
        index = is_chosen.nonzero()[:, 0]
        return _changed_part(batch, index, self.transforms) if len(index) else batch

    def program(self, batch: ImageBatch | RaggedBatch) -> Program:
        """Draw the steps of a call; all transforms must be programs."""
        return _program(self.transforms, batch).where(self._chosen(batch))

    def _chosen(self, batch: ImageBatch | RaggedBatch) -> torch.Tensor:
        return draw(batch, self.seed, APPLY)[0] < self.p


class RandomChoice(TransformGroup):
    """Call one of several transforms for a whole batch, drawn by their probabilities for its first row: MixUp or CutMix.

    Args:
        transforms: one of them is called.
        p: probability of each, relative to the sum; None: all equal.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: there are none, or p does not have one number of 0 or more for each.
    """

    def __init__(self, transforms: Sequence[Transform], p: Sequence[float] | None = None, *, seed: int = 0) -> None:
        self.transforms, self.seed = distinct(checked_transforms(transforms)), seed
        shares = [1.0] * len(transforms) if p is None else numbers("p", p, FACTOR)
        if len(shares) != len(transforms) or not sum(shares) > 0:
            raise ValueError(f"p is {p!r}, expected a share for each of {len(transforms)} transforms.")
        self.p = [share / sum(shares) for share in shares]

    def __call__(self, batch: Any) -> Any:
        """Return the result of the drawn transform; a batch without rows is returned as it is."""
        check_batch(self, batch)
        if not len(batch):
            return batch
        drawn = float(draw(host_batch(batch), self.seed, CHOICE)[0, 0])
        # the last limit is 1, even if the sum is rounded
        return self.transforms[sum(drawn >= limit for limit in itertools.accumulate(self.p[:-1]))](batch)


def apply_in_turn(transforms: Sequence[Transform], batch: Any) -> Any:
    """Call transforms one after the other, in as few passes over the pixels as possible.

    Crops, resizes and flips share a view, whose pixels are computed once; adjacent programs are joined.
    """
    for kind, each in itertools.groupby(flattened(transforms), _kind):
        run = list(each)
        if kind == "view" and isinstance(batch, Batch):
            view = View.from_batch(run[0], batch)
            for transform in run:
                view = transform.apply(view)
            batch = view.batch()
        elif kind == "program" and isinstance(batch, Batch):
            check_batch(run[0], batch)
            batch = changed(batch, _program(run, host_batch(batch)))
        else:
            for transform in run:
                batch = transform(batch)
    return batch


def flattened(transforms: Sequence[Any]) -> list[Any]:
    """Return transforms, with each Compose replaced by its transforms."""
    return [
        each
        for transform in transforms
        for each in (flattened(transform.transforms) if type(transform) is Compose else [transform])
    ]


def has_program(transform: Any) -> bool:
    """Return whether a transform, and all that it calls, can be run as a program."""
    if type(transform) in (Compose, RandomApply):
        return all(map(has_program, transform.transforms))
    return _is_ours(transform) and hasattr(transform, "program")


def _kind(transform: Any) -> str:
    """Return how a transform is applied: as a view, a program, or a call."""
    is_view = isinstance(transform, ViewTransform) and _is_ours(transform)
    return "view" if is_view else "program" if has_program(transform) else "call"


def _is_ours(transform: object) -> bool:
    """Return whether a transform is from this package; a user's subclass may override `__call__`."""
    return type(transform).__module__.startswith("reader.transforms.")


def _program(transforms: Sequence[Any], batch: ImageBatch | RaggedBatch) -> Program:
    """Draw the steps of transforms, one after the other."""
    return Program.joined([transform.program(batch) for transform in flattened(transforms)])


def _changed_part(batch: ImageBatch, index: torch.Tensor, transforms: Sequence[Transform]) -> ImageBatch:
    """Call transforms with some rows of a batch, int64[P], and replace the rows by the results."""
    at = index.to(batch.pixels.device)
    # index_select for rows of bytes: indexing takes twenty times as long
    bare = batch.replace(pixels=batch.pixels[:, :0])
    part = apply_in_turn(transforms, bare[at].replace(pixels=compiled.copied(batch.pixels, at)))
    kept = batch.pixels[at[:0]]
    if not isinstance(part, ImageBatch) or part.pixels[:0].shape != kept.shape or part.pixels.dtype != kept.dtype:
        raise ValueError(
            "RandomApply changes some images of a batch, and a transform in it changed their size or type. Let it stand alone."
        )
    pixels = compiled.copied(batch.pixels)
    for n, image in zip(index.tolist(), part.pixels, strict=True):
        pixels[n] = image
    result = replaced(batch, pixels=pixels, **labels_in_place(batch, at, part))
    result.targets = batch.targets.index_copy(0, at, part.targets)
    return result


def distinct(transforms: Sequence[Transform]) -> list[Transform]:
    """Return copies of transforms, nested ones included, so that no two of one kind share a seed."""
    seen = set[tuple[type, int]]()

    def apart(transform: Any) -> Any:
        """Copy a transform and those in it, each with a seed that is unique for its kind."""
        if not isinstance(transform, Described):
            return transform
        copied: Any = copy.copy(transform)
        if hasattr(transform, "seed"):
            # a user's subclass of a transform draws like it
            kind = next(each for each in type(transform).__mro__ if each.__module__.startswith("reader.transforms."))
            copied.seed = integer("seed", transform.seed)
            while (kind, copied.seed) in seen:
                copied.seed = wrapped(copied.seed + _NEXT_SEED)
            seen.add((kind, copied.seed))
        if hasattr(transform, "transforms"):
            copied.transforms = [apart(each) for each in copied.transforms]
        return copied

    return [apart(transform) for transform in transforms]


def checked_transforms(transforms: Sequence[Transform]) -> Sequence[Transform]:
    """Return transforms; raises ValueError if there are none, and TypeError if one cannot be called."""
    if not isinstance(transforms, Sequence) or not transforms:
        raise ValueError(f"transforms is {transforms!r}, expected a list of one or more.")
    for transform in transforms:
        if not callable(transform):
            raise TypeError(f"transforms has {transform!r}, expected functions of an ImageBatch.")
    return transforms
