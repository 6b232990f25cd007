"""Transforms of single images, torchvision's or albumentations', on the rows of a batch: each with generators seeded for it.

Knows how such transforms are called, with boxes and masks too, and what they draw from. Imports none of them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from tensordict import TensorDict
from torch.utils.data import Dataset

from reader.described import Described
from reader.store import ImageBatch, RaggedBatch, replaced
from reader.transforms.random import PER_SAMPLE, check_batch, draw

# One row: image uint8[C, H, W]; where it has them, boxes float32[K, 4] (x0, y0, x1, y1), labels int64[K] and mask uint8[H, W].
SampleDict = dict[str, torch.Tensor]
_Row = TypeVar("_Row")
_Made = TypeVar("_Made")
# Of what a transform holds, so many objects are looked at for a generator; these hold none.
_MOST_OBJECTS = 10_000
_HOLD_NONE = (torch.Tensor, np.ndarray, ModuleType, type, str, bytes, int, float, type(None))


class PerSample(Described):
    """Call a transform of single images for each image of a batch, in order.

    torchvision's get uint8[C, H, W]; albumentations' `image=` uint8[H, W, C]. What a row becomes depends on seed, epoch and
    position alone, as with our own transforms: torch's, numpy's and Python's generators are seeded for each image, and restored
    after the batch. A MemmapLoader calls it in worker processes, see its `num_workers`.

    Boxes and masks move along where the transform is of torchvision's v2 or of albumentations. torchvision's is called with
    (Image, {"boxes": BoundingBoxes, "labels", "masks": Mask}); albumentations' Compose needs
    bbox_params=BboxParams("pascal_voc", label_fields=["labels"]). Boxes that have no area left are dropped.

    Args:
        transform: of one image, such as v2.Compose([...]).
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        TypeError: transform cannot be called.

    Example:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> torch.equal(PerSample(lambda image: image.flip(-1))(batch).images, batch.images.flip(-1))
        True
    """

    # a loader calls it with whole batches, in worker processes
    takes_samples = True

    def __init__(self, transform: Callable[..., object], *, seed: int = 0) -> None:
        if not callable(transform):
            raise TypeError(f"transform is {transform!r}, expected a function of one image.")
        self.transform, self.seed = transform, seed

    def __call__(self, batch: ImageBatch | RaggedBatch) -> Any:
        """Return an ImageBatch where the transform gives uint8, else the tuple of its images stacked and the targets.

        With extras, boxes and masks among them, or texts, the second of the tuple is a dict by name.

        Raises:
            ValueError: the rows have boxes or masks that the transform cannot move, or the results have several sizes.
        """
        check_batch(self, batch, takes_ragged=True, takes_floats=True)
        samples = _samples(batch)
        has_labels = bool(samples) and len(samples[0]) > 1
        if has_labels:
            _check_moves_labels(self.transform, samples[0])
        seeds = row_seeds(batch, self.seed)
        result = each_seeded(
            lambda sample, seed: _one(self.transform, sample, seed), samples, seeds, batch.pixels.device
        )
        shapes = {tuple(sample["image"].shape) for sample in result}
        if len(shapes) > 1:
            raise ValueError(
                f"the transform gave images of the shapes {' and '.join(map(str, sorted(shapes)))}. Let it end in one size,"
                " such as RandomResizedCrop(224)."
            )
        stacked = torch.stack([sample["image"].movedim(0, -1) for sample in result])
        extras = _joined_labels(batch.extras, result) if has_labels else batch.extras
        if stacked.dtype != torch.uint8 or stacked.ndim != 4:
            named: dict[str, object] = {} if extras is None else dict(extras.items())
            named |= batch.texts  # type: ignore[misc]
            return stacked.movedim(-1, 1), named | {"targets": batch.targets} if named else batch.targets
        return replaced(batch, pixels=stacked, content=None, extras=extras)


def each_seeded(
    call: Callable[[_Row, int], _Made], rows: Iterable[_Row], seeds: Iterable[int], device: torch.device
) -> list[_Made]:
    """Return call(row, seed) of each row, with torch's, numpy's and Python's generators seeded for it; they are restored.

    device: where the rows are; its generator is seeded too.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index])
    with _states_kept(generators):
        return [_seeded(generators, call, row, seed) for row, seed in zip(rows, seeds, strict=True)]


def row_seeds(batch: ImageBatch | RaggedBatch, seed: int = 0) -> list[int]:
    """Return a seed for each row of a batch, a function of the loader's seed, the epoch, the position and `seed`.

    Raises:
        ValueError: the batch does not know its rows.
    """
    seeds: list[int] = (draw(batch, seed, PER_SAMPLE)[0] * 2**53).long().tolist()
    return seeds


def has_own_generator(transform: object) -> bool:
    """Say whether a transform holds a generator of random numbers that nobody seeds for each row.

    Looked for in attributes, containers and the variables of functions; albumentations', which are seeded, aside.
    """
    seen, left = set[int](), [transform]
    while left and len(seen) < _MOST_OBJECTS:
        each = left.pop()
        if isinstance(each, np.random.Generator | np.random.RandomState | random.Random | torch.Generator):
            return True
        if id(each) not in seen and not isinstance(each, _HOLD_NONE):
            seen.add(id(each))
            left += _held(each)
    return False


def _held(holder: Any) -> list[object]:
    """Return what an object holds, where a transform may be or what it draws from."""
    if isinstance(holder, PerSample) and _is_albumentations(holder.transform):
        return []
    if isinstance(holder, Dataset):
        return [getattr(holder, name, None) for name in ("transform", "target_transform", "transforms")]
    if isinstance(holder, Mapping):
        return list(islice(holder.values(), _MOST_OBJECTS))
    if isinstance(holder, list | tuple | set | frozenset):
        return list(islice(holder, _MOST_OBJECTS))
    if isinstance(holder, functools.partial):
        return [holder.func, *holder.args, *holder.keywords.values()]
    within = [*getattr(holder, "__dict__", {}).values(), getattr(holder, "__self__", None)]
    for cell in getattr(holder, "__closure__", None) or ():
        # one that has no value yet
        with contextlib.suppress(ValueError):
            within.append(cell.cell_contents)
    return within


def _seeded(generators: Sequence[torch.Generator], call: Callable[[_Row, int], _Made], row: _Row, seed: int) -> _Made:
    # torch.manual_seed would seed those of all devices, which a training draws from
    for generator in generators:
        generator.manual_seed(seed)
    np.random.seed(seed % (1 << 32))
    random.seed(seed)
    return call(row, seed)


@contextlib.contextmanager
def _states_kept(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Restore the states of torch's generators, numpy's and Python's afterwards."""
    of_torch = [generator.get_state() for generator in generators]
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        for generator, state in zip(generators, of_torch, strict=True):
            generator.set_state(state)
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def _one(transform: Callable[..., object], sample: SampleDict, seed: int) -> SampleDict:
    """Call a transform for a row with this seed; returns image [C, H, W] and labels, or what else it gave, as tensors."""
    # one that changes its image in place changes a copy: the batch is the caller's, and may be gone through again
    sample = {name: tensor.clone() for name, tensor in sample.items()}
    if _is_albumentations(transform):
        transform.set_random_seed(seed % (1 << 32))  # type: ignore[attr-defined]
        return _by_albumentations(transform, sample)
    if len(sample) > 1:
        return _by_torchvision(transform, sample)
    return {"image": _tensor(transform(sample["image"]))}


def _by_albumentations(transform: Callable[..., Any], sample: SampleDict) -> SampleDict:
    given: dict[str, object] = {"image": sample["image"].movedim(0, -1).numpy()}
    if "mask" in sample:
        given["mask"] = sample["mask"].numpy()
    if "boxes" in sample:
        (field,) = _label_fields(transform)
        given |= {"bboxes": sample["boxes"].numpy(), field: sample["labels"].numpy()}
    found = transform(**given)
    result = {"image": _tensor(found["image"])}
    if "mask" in sample:
        # a flipped array cannot become a tensor without a copy; ToTensorV2 returns a tensor
        result["mask"] = torch.as_tensor(
            found["mask"].copy() if isinstance(found["mask"], np.ndarray) else found["mask"]
        )
    if "boxes" in sample:
        # none may be left
        boxes = np.array([box[:4] for box in found["bboxes"]], np.float32)
        result["boxes"] = torch.from_numpy(boxes).view(-1, 4)
        result["labels"] = torch.from_numpy(np.asarray(found[field]).astype(np.int64))
    return result


def _by_torchvision(transform: Callable[..., Any], sample: SampleDict) -> SampleDict:
    kinds = importlib.import_module("torchvision.tv_tensors")
    target: dict[str, torch.Tensor] = {}
    if "boxes" in sample:
        canvas = {"format": "XYXY", "canvas_size": tuple(sample["image"].shape[-2:])}
        target |= {"boxes": kinds.BoundingBoxes(sample["boxes"], **canvas), "labels": sample["labels"]}
    if "mask" in sample:
        target["masks"] = kinds.Mask(sample["mask"][None])
    image, found = transform(kinds.Image(sample["image"]), target)
    result = {"image": _tensor(image)}
    if "mask" in sample:
        mask = _tensor(found["masks"])
        if len(mask) != 1:
            raise ValueError(
                "the transform dropped the mask with a box. Leave SanitizeBoundingBoxes out: PerSample drops boxes without area."
            )
        result["mask"] = mask[0]
    if "boxes" in sample:
        form = getattr(found["boxes"], "format", None)
        if form is not None and form.value != "XYXY":
            raise ValueError(
                f"the transform gave boxes as {form.value}, expected XYXY: leave the conversion to your loop."
            )
        result |= {"boxes": _tensor(found["boxes"]), "labels": _tensor(found["labels"])}
    return result


def _tensor(found: object) -> torch.Tensor:
    """Return what a transform gave as a plain tensor; an image of an array as [C, H, W]."""
    if isinstance(found, np.ndarray):
        array = torch.from_numpy(np.ascontiguousarray(found))
        return array.movedim(-1, 0) if array.ndim == 3 else array[None]
    if not isinstance(found, torch.Tensor):
        raise TypeError(f"the transform gave a {type(found).__name__}, expected a tensor or an array of one image.")
    # tv_tensors are tensors of a class of their own
    return found.as_subclass(torch.Tensor)


def _is_albumentations(transform: object) -> bool:
    return type(transform).__module__.split(".")[0].startswith("albument") and hasattr(transform, "set_random_seed")


def _samples(batch: ImageBatch | RaggedBatch) -> list[SampleDict]:
    """Return the rows of a batch, as views."""
    images = batch.images if isinstance(batch, RaggedBatch) else batch.images.unbind(0)
    samples = [{"image": image} for image in images]
    extras: dict[str, Any] = {} if batch.extras is None else dict(batch.extras.items())
    if "boxes" in extras:
        counts = extras["box_count"].tolist() if "box_count" in extras else [extras["boxes"].shape[1]] * len(samples)
        labels = extras.get("box_targets", torch.zeros(extras["boxes"].shape[:2], dtype=torch.int64))
        for n, (sample, count) in enumerate(zip(samples, counts, strict=True)):
            sample |= {"boxes": extras["boxes"][n, :count], "labels": labels[n, :count]}
    for n, sample in enumerate(samples):
        mask = extras["masks"][n] if "masks" in extras else batch.mask(n) if isinstance(batch, RaggedBatch) else None
        if mask is not None:
            sample["mask"] = mask
    return samples


def _joined_labels(extras: TensorDict | None, result: Sequence[SampleDict]) -> TensorDict:
    """Return extras with the boxes and masks of transformed rows in place of their own.

    Raises:
        ValueError: a row has more boxes than there is room for.
    """
    joined: dict[str, Any] = {} if extras is None else dict(extras.items())
    if "mask" in result[0]:
        joined["masks"] = torch.stack([sample["mask"] for sample in result])
    if "boxes" in result[0]:
        room = joined["boxes"].shape[1]
        joined["boxes"] = torch.zeros_like(joined["boxes"])
        joined["box_count"] = torch.zeros(len(result), dtype=torch.int32)
        if "box_targets" in joined:
            joined["box_targets"] = torch.full_like(joined["box_targets"], -1)
        for n, sample in enumerate(result):
            boxes, labels = _with_area(sample)
            if len(boxes) > room:
                raise ValueError(f"the transform gave {len(boxes)} boxes of a row, the store has room for {room}.")
            joined["boxes"][n, : len(boxes)], joined["box_count"][n] = boxes, len(boxes)
            if "box_targets" in joined:
                joined["box_targets"][n, : len(boxes)] = labels
    return TensorDict(joined, batch_size=[len(result)])


def _with_area(sample: SampleDict) -> tuple[torch.Tensor, torch.Tensor]:
    """Clip the boxes of a row to its image; returns those with area left, and their labels."""
    height, width = sample["image"].shape[-2:]
    boxes = sample["boxes"].minimum(torch.tensor([width, height, width, height])).clamp(min=0)
    is_left = (boxes[:, :2] < boxes[:, 2:]).all(1)
    return boxes[is_left], sample["labels"][is_left]


def _check_moves_labels(transform: object, sample: SampleDict) -> None:
    """Refuse a transform that does not take boxes and masks along.

    Raises:
        ValueError: says which does.
    """
    if _is_albumentations(transform):
        if "boxes" in sample and len(_label_fields(transform)) != 1:
            raise ValueError(
                "the rows have boxes: give albumentations' Compose"
                " bbox_params=BboxParams('pascal_voc', label_fields=['labels'])."
            )
    elif not type(transform).__module__.startswith("torchvision.transforms.v2"):
        raise ValueError(
            f"PerSample cannot know whether {type(transform).__name__} moves boxes and masks, which the rows have. Give"
            " torchvision's v2.Compose([...]) of it, albumentations' Compose, or our own transforms, such as RandomAffine."
        )


def _label_fields(transform: object) -> list[str]:
    """Return the names that albumentations' Compose takes labels of boxes by; none where it takes no boxes in pixels."""
    params: Any = getattr(getattr(transform, "processors", {}).get("bboxes"), "params", None)
    return list(params.label_fields or ()) if getattr(params, "format", None) == "pascal_voc" else []
