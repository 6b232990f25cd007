"""Checks the arguments of a loader, each once, with a one-sentence error."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Subset, default_collate

from reader.dataset.collate import collate_batch
from reader.dataset.concat import concat
from reader.dataset.dataset import MemmapDataset
from reader.dataset.indexing import own_method
from reader.dataset.samples import Transform
from reader.loading.sample_transform import Collate, SampleTransform, collated, uncollated
from reader.system import available_cpus

# What a sampler gives at a time: a row, or rows of a batch.
Item = int | Sequence[int] | torch.Tensor | npt.NDArray[np.integer]
Weights = Sequence[float] | torch.Tensor | npt.NDArray[np.floating]
# What a DataLoader's workers take, which call transforms of single samples.
OPTIONS = ("multiprocessing_context", "prefetch_factor", "timeout", "worker_init_fn")
# What a DataLoader takes and what changes nothing here, whatever it is: batches come whole, in order, pinned.
_HARMLESS = (
    "in_order",
    "persistent_workers",
    "pin_memory",
)
# What it takes, this loader does not, and what to write instead.
_INSTEAD = {
    "batch_sampler": "give it as sampler=, which takes samplers of rows and of batches",
    "generator": "the order depends on the seed: give seed=, such as generator.initial_seed()",
    "pin_memory_device": "give device=, which pins by itself",
}


def checked_others(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the workers' DataLoader takes of a loader's further arguments.

    Those of a DataLoader that change nothing here are ignored, and defaults of the others.

    Raises:
        TypeError: the loader does not have one; says what to write instead.
    """
    for name, value in given.items():
        if name in OPTIONS or name in _HARMLESS or (name in _INSTEAD and value in (None, "")):
            continue
        advice = _INSTEAD.get(name, "help(MemmapLoader) lists what it takes")
        raise TypeError(f"MemmapLoader takes no {name}=: {advice}.")
    return {name: given[name] for name in OPTIONS if name in given}


def checked_collate(collate_fn: object) -> Collate | None:
    """Return what joins samples; None: as torch does by default.

    Raises:
        TypeError: it cannot be called.
    """
    if collate_fn is None or collate_fn in (default_collate, collate_batch):
        return None
    if not callable(collate_fn):
        raise TypeError(f"collate_fn is {collate_fn!r}, expected a function of a list of samples.")
    if type(collate_fn).__module__.startswith("torchvision.transforms.v2."):
        # MixUp, CutMix, or a choice of them: they take what is collated
        return functools.partial(_collated_for, collate_fn)
    return collate_fn


def _collated_for(transform: Collate, rows: list[Any]) -> Any:
    return transform(*collate_batch(rows))


def packed_rows(dataset: object) -> MemmapDataset:
    """Return of torch's Subset, which random_split gives, and ConcatDataset our own of the same rows.

    Raises:
        ValueError: it is not a MemmapDataset, or of a class that indexes in a way of its own.
    """
    _check_indexing(dataset)
    if isinstance(dataset, MemmapDataset):
        return dataset
    if isinstance(dataset, Subset) and isinstance(dataset.dataset, MemmapDataset | Subset | ConcatDataset):
        return packed_rows(dataset.dataset).subset(dataset.indices)
    if isinstance(dataset, ConcatDataset):
        return concat([packed_rows(part) for part in dataset.datasets])
    raise ValueError(f"dataset is a {type(dataset).__name__}, expected a MemmapDataset or a subset of one.")


def _check_indexing(dataset: object) -> None:
    """Raise ValueError for a class with its own indexing: batches are gathered without it."""
    kind = next(
        (kind for kind in (MemmapDataset, Subset, ConcatDataset) if isinstance(dataset, kind)),
        type(dataset),
    )
    if (own := own_method(dataset, kind)) is not None:
        raise ValueError(
            f"{type(dataset).__name__} has its own {own}, which this loader does not call: give what it does as transform=,"
            " by dataset.with_targets or with_extras, or take torch's DataLoader."
        )


def transform_of_batches(
    dataset: MemmapDataset, collate: Collate | None, device: torch.device, transform: Transform | None
) -> Transform | None:
    """Return what a loader calls with batches: its own transform, or what the dataset does.

    That is the dataset's transform where it is one of `reader.transforms`, which take batches; what a dataset does to single
    samples is done for each row. What collates is called with the rows of a batch after either.

    Raises:
        ValueError: it cannot be called, both have one, or samples are to be changed on a device.
    """
    transform = uncollated(transform)
    if transform is not None and not callable(transform):
        raise ValueError(
            f"transform is {transform!r}, expected a function of a batch; Compose([...]) is one of several."
        )
    if type(transform).__module__.startswith("torchvision.transforms."):
        raise ValueError(
            f"transform is torchvision's {type(transform).__name__}, which takes one image, and the loader has batches. Give it"
            " from_torchvision(transform), or give the dataset the transform: MemmapDataset(..., transform=, as_pil=True)."
        )
    given = None if isinstance(transform, SampleTransform) else transform
    of_dataset, change = dataset.transform, _change_of(dataset)
    if change and given is not None and given is not of_dataset:
        raise ValueError(
            f"the dataset has {change}, and the loader a transform of batches. Give one of them: all to the dataset, or all to"
            " the loader, as a Compose."
        )
    if not change or dataset.takes_batches:
        chain = of_dataset if change else given
        return chain if collate is None else collated(chain, collate, by_name=dataset.names_targets)
    if device.type != "cpu":
        raise ValueError(
            f"the dataset has {change}, which takes one image at a time on the CPU, and device is '{device}'. Leave device= out,"
            " and move each batch: reader.to_device(batch, device). Or give the loader a transform of batches."
        )
    return SampleTransform(dataset, collate)


def _change_of(dataset: MemmapDataset) -> str:
    """Name what a dataset does to single samples, "" where it does nothing."""
    if not dataset.changes_samples:
        return ""
    names = [name for name in ("transform", "target_transform", "transforms") if getattr(dataset, name) is not None]
    return f"a {names[0]}" if names else "as_pil=True"


def truth(name: str, value: object) -> bool:
    """Return a bool; raises ValueError for anything else, such as "no"."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ValueError(f"{name} is {value!r}, expected True or False.")


def two_names(names: object, as_tuple: bool) -> tuple[str, str] | None:
    """Return the names of images and targets; raises ValueError unless they are two names and the loop gets a tuple."""
    if names is None:
        return None
    given = tuple(names) if isinstance(names, tuple | list) else ()
    if not as_tuple or len(given) != 2 or not all(isinstance(name, str) for name in given) or given[0] == given[1]:
        raise ValueError(f"as_dict is {names!r}, expected two names, and as_tuple=True.")
    return given[0], given[1]


def integer(name: str, value: SupportsIndex) -> int:
    """Return an int, of whatever kind of integer it was; raises ValueError with the name."""
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}, expected an integer.") from None


def checked_options(**given: object) -> dict[str, Any]:
    """Return options of a loader that are numbers or truths, of whatever kind of integer or bool they were.

    Raises:
        ValueError: one is neither, or below what it may be; names it.
    """
    return {name: _FORMS[name](name, value) for name, value in given.items()}


def _number(least: int | None = None, *, or_none: bool = True) -> Callable[[str, Any], int | None]:
    """Return what checks a number of at least so much; or_none: None is one too."""

    def check(name: str, value: Any) -> int | None:
        if value is None and or_none:
            return None
        number = integer(name, value)
        if least is not None and number < least:
            raise ValueError(f"{name} is {value!r}, expected {least} or more{', or None' if or_none else ''}.")
        return number

    return check


_FORMS: Mapping[str, Callable[[str, Any], int | None]] = {
    "seed": _number(),
    "epoch_rows": _number(1),
    "canonical_nodes": _number(),
    "prefetch": _number(0, or_none=False),
    "threads": _number(1),
    "num_workers": _number(0),
    "drop_last": truth,
    "pad": truth,
    "as_tuple": truth,
}


def share_of_cpus(processes: int) -> int:
    """Return the share of this process's CPUs that each of so many ranks of the host has, 1 or more."""
    return max(1, available_cpus() // processes)


def checked_device(device: str | torch.device) -> torch.device:
    """Return the device that batches are put on; "cuda" is the current one.

    Raises:
        ValueError: there is no such device, or it is of another kind.
    """
    try:
        chosen = torch.device(device)
    except (TypeError, RuntimeError):
        raise ValueError(f"device is {device!r}, expected cpu or cuda.") from None
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}, expected cpu or cuda.")
    return chosen if chosen.type == "cpu" else _checked_cuda(chosen)


def _checked_cuda(device: torch.device) -> torch.device:
    if torch.cuda._is_in_bad_fork():
        raise ValueError(
            f"device is '{device}', but this process was forked after CUDA had been started, which CUDA does not survive."
            " Start processes with multiprocessing's method 'spawn'."
        )
    if not torch.cuda.is_available():
        raise ValueError(f"device is '{device}', but this torch sees no CUDA device. Use device='cpu'.")
    index, count = torch.cuda.current_device() if device.index is None else device.index, torch.cuda.device_count()
    if index >= count:
        raise ValueError(f"device is '{device}', but this torch sees {count} CUDA devices, the first being 'cuda:0'.")
    return torch.device("cuda", index)


def checked_weights(weights: Weights, count: int) -> npt.NDArray[np.float64]:
    """Return the cumulative sums, float64[count], of a list, array or tensor of weights; raises ValueError."""
    try:
        values = np.asarray(weights.detach().cpu() if torch.is_tensor(weights) else weights, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"weights are a {type(weights).__name__}, expected one number a row: [{count}].") from None
    if values.shape != (count,):
        raise ValueError(f"weights have the shape {list(values.shape)}, expected one a row: [{count}].")
    with np.errstate(over="ignore"):
        cumulative = np.cumsum(values)
    if count and (not np.isfinite(cumulative[-1]) or (values < 0).any() or cumulative[-1] == 0):
        raise ValueError("weights must be finite, 0 or more, and not all 0; their sum must be finite too.")
    return cumulative


def checked_sampler(sampler: Iterable[Item]) -> Iterable[Item]:
    """Refuse what cannot be iterated over, or only once: each epoch starts over."""
    once = isinstance(sampler, Iterator) and not isinstance(sampler, torch.utils.data.Sampler)
    if hasattr(sampler, "__iter__") and not once:
        return sampler
    kind = f"{type(sampler).__name__}, which gives its rows once only" if once else type(sampler).__name__
    raise ValueError(f"sampler is a {kind}, expected a torch Sampler or BatchSampler, or a list of rows.")


def sampled_rows(item: Item) -> tuple[list[int], bool]:
    """Return the rows that a sampler gave at once, and whether they are a batch: 3 -> [3], False; [3, 1] -> [3, 1], True.

    Raises:
        ValueError: what it gave are no rows.
    """
    # arrays and tensors too; those without a dimension are one row
    rows: Any = item.tolist() if hasattr(item, "tolist") else item
    is_batch = isinstance(rows, list | tuple | range)
    if any(isinstance(row, bool) for row in (rows if is_batch else [rows])):
        raise ValueError("the sampler gave True or False, expected rows. For a mask of rows give dataset.subset(mask).")
    try:
        return ([operator.index(row) for row in rows] if is_batch else [operator.index(rows)]), is_batch
    except TypeError:
        given = " ".join(repr(item).split())
        raise ValueError(f"the sampler gave {given}, expected a row or a list of rows, integers.") from None
