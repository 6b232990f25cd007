"""What a loader is asked for: one table of its options, each with its check, which refuses a wrong value in one sentence.

What two options say about the order of an epoch together, `Orders` checks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler, Subset

from reader.dataset.dataset import MemmapDataset
from reader.dataset.indexing import own_method
from reader.dataset.samples import Transform
from reader.memory.residency import RESIDENCIES
from reader.planning.given_sampler import GivenSampler
from reader.planning.ranks import Ranks, given_ranks
from reader.transforms.random import integer

Weights = Sequence[float] | torch.Tensor | npt.NDArray[np.floating]
# Batches gathered ahead, each with memory of its own: so many hide any pause, and a number typed wrong takes all memory.
_MOST_AHEAD = 1024


# Arguments of a DataLoader that change nothing here: batches come whole, in order, pinned, and without workers.
_IGNORED = {
    "num_workers",
    "in_order",
    "persistent_workers",
    "pin_memory",
    "multiprocessing_context",
    "prefetch_factor",
} | {
    "timeout",
    "worker_init_fn",
}


def _ignored(_: str, given: Mapping[str, Any]) -> None:
    if unknown := given.keys() - _IGNORED:
        raise TypeError(f"MemmapLoader takes no {unknown.pop()}=: help(MemmapLoader) lists what it takes.")


def _dataset(name: str, dataset: object) -> MemmapDataset:
    """Return a MemmapDataset, also of the rows of torch's Subset, which random_split gives, and ConcatDataset."""
    _check_indexing(dataset)
    if isinstance(dataset, MemmapDataset):
        return dataset
    if isinstance(dataset, Subset) and isinstance(dataset.dataset, MemmapDataset | Subset):
        return _dataset(name, dataset.dataset).subset(dataset.indices)
    raise ValueError(f"{name} is a {type(dataset).__name__}, expected a MemmapDataset or a subset of one.")


def _check_indexing(dataset: object) -> None:
    """Raise ValueError for a class with its own indexing: batches are gathered without it."""
    kind = next(
        (kind for kind in (MemmapDataset, Subset) if isinstance(dataset, kind)),
        type(dataset),
    )
    if (own := own_method(dataset, kind)) is not None:
        raise ValueError(
            f"{type(dataset).__name__} has its own {own}, which this loader does not call: give what it does as transform=,"
            " by dataset.with_targets or with_extras, or take torch's DataLoader."
        )


def _truth(name: str, value: object) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ValueError(f"{name} is {value!r}, expected True or False.")


def _number(
    least: int | None = None, most: float = math.inf, *, or_none: bool = True
) -> Callable[[str, Any], int | None]:
    """Return what checks a number from `least` to `most`; or_none: None is one too."""

    def check(name: str, value: Any) -> int | None:
        if value is None and or_none:
            return None
        number = integer(name, value)
        if least is not None and number < least:
            raise ValueError(f"{name} is {value!r}, expected {least} or more{', or None' if or_none else ''}.")
        if number > most:
            raise ValueError(f"{name} is {value!r}, expected {least} to {most}.")
        return number

    return check


def _shuffle(name: str, shuffle: Any) -> bool | str:
    if shuffle is None or isinstance(shuffle, bool | np.bool_):
        return bool(shuffle)
    if shuffle in ("full", "block"):
        return str(shuffle)
    raise ValueError(f"{name} is {shuffle!r}, expected False, True, 'full' or 'block'.")


def _weights(name: str, weights: Any, dataset: MemmapDataset) -> npt.NDArray[np.float64] | None:
    """Return the cumulative sums of a list, array or tensor of weights, float64[N]; of datasets by name they are as given."""
    if weights is None:
        return None
    count = len(dataset)
    try:
        values = np.asarray(weights.detach().cpu() if torch.is_tensor(weights) else weights, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} are a {type(weights).__name__}, expected one number a row: [{count}].") from None
    if values.shape != (count,):
        raise ValueError(f"{name} have the shape {list(values.shape)}, expected one a row: [{count}].")
    with np.errstate(over="ignore"):
        cumulative = np.cumsum(values)
    if count and (not np.isfinite(cumulative[-1]) or (values < 0).any() or cumulative[-1] == 0):
        raise ValueError(f"{name} must be finite, 0 or more, and not all 0; their sum must be finite too.")
    return cumulative


def _sampler(name: str, sampler: Any) -> GivenSampler | None:
    """Follow a sampler; refuse what cannot be iterated over, or only once: each epoch starts over."""
    if sampler is None:
        return None
    once = isinstance(sampler, Iterator) and not isinstance(sampler, Sampler)
    if hasattr(sampler, "__iter__") and not once:
        return GivenSampler(sampler)
    kind = f"{type(sampler).__name__}, which gives its rows once only" if once else type(sampler).__name__
    raise ValueError(f"{name} is a {kind}, expected a torch Sampler or BatchSampler, or a list of rows.")


def checked_device(name: str, device: str | torch.device) -> torch.device:
    """Return the device that batches are put on; "cuda" is the current one. name: of the option.

    Raises:
        ValueError: there is no such device, or it is of another kind.
    """
    try:
        chosen = torch.device(device)
    except (TypeError, RuntimeError):
        raise ValueError(f"{name} is {device!r}, expected cpu or cuda.") from None
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is {device!r}, expected cpu or cuda.")
    return chosen if chosen.type == "cpu" else _checked_cuda(name, chosen)


def _checked_cuda(name: str, device: torch.device) -> torch.device:
    if torch.cuda._is_in_bad_fork():
        raise ValueError(
            f"{name} is '{device}', but this process was forked after CUDA had been started, which CUDA does not survive."
            " Start processes with multiprocessing's method 'spawn'."
        )
    if not torch.cuda.is_available():
        raise ValueError(f"{name} is '{device}', but this torch sees no CUDA device. Use device='cpu'.")
    index, count = torch.cuda.current_device() if device.index is None else device.index, torch.cuda.device_count()
    if index >= count:
        raise ValueError(f"{name} is '{device}', but this torch sees {count} CUDA devices, the first being 'cuda:0'.")
    return torch.device("cuda", index)


def _ranks(_: str, given: tuple[int | None, int | None]) -> Ranks | None:
    return given_ranks(*given)


def _residency(name: str, residency: Any) -> str:
    if residency in RESIDENCIES:
        return str(residency)
    raise ValueError(f"{name} is {residency!r}, expected one of {', '.join(map(repr, RESIDENCIES))}.")


@dataclass(frozen=True)
class Options:
    """The options of a loader, as `MemmapLoader` explains them, in the order in which they are checked.

    Beside the type of each is its check(name, value, *others), which returns what the loader uses; others: options above it.

    workers: what the program gave beside the others. given_ranks: rank and world_size.
    """

    ignored: Annotated[None, _ignored]
    dataset: Annotated[MemmapDataset, _dataset]
    batch_size: Annotated[int, _number(1, or_none=False)]
    shuffle: Annotated[bool | str, _shuffle]
    seed: Annotated[int | None, _number()]
    drop_last: Annotated[bool, _truth]
    weights: Annotated[npt.NDArray[np.float64] | None, _weights, "dataset"]
    sampler: Annotated[GivenSampler | None, _sampler]
    pad: Annotated[bool, _truth]
    device: Annotated[torch.device, checked_device]
    transform: Transform | None
    prefetch: Annotated[int, _number(0, _MOST_AHEAD, or_none=False)]
    threads: Annotated[int | None, _number(1)]
    given_ranks: Annotated[Ranks | None, _ranks]
    residency: Annotated[str, _residency]
    as_tuple: Annotated[bool, _truth]

    @classmethod
    def checked(cls, **given: Any) -> Options:
        """Check each option.

        Raises:
            ValueError: a value is none of its option; names it.
            TypeError: there is no such option, or collate_fn cannot be called.
        """
        checked = dict[str, Any]()
        for name, (check, *others) in _checks():
            checked[name] = check(name, given[name], *(checked[other] for other in others))
        return cls(**given | checked)


@functools.cache
def _checks() -> list[tuple[str, Any]]:
    hints = get_type_hints(Options, include_extras=True)
    return [(name, hint.__metadata__) for name, hint in hints.items() if hasattr(hint, "__metadata__")]
