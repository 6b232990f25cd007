"""Runs a dataset's transform of single samples, as ImageFolder's, and a collate function for a loader's batches.

Knows how rows become samples and samples a batch; what is drawn for a row, `reader.transforms` knows.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from reader.dataset.collate import tuple_rows
from reader.dataset.dataset import MemmapDataset
from reader.dataset.samples import Transform
from reader.memory.row_table import row_of
from reader.rows import rows_named
from reader.store import TAKES_SINGLE_IMAGES, Batch, ImageBatch, RaggedBatch, plain
from reader.transforms.composition import Compose
from reader.transforms.conversion import is_torchvisions
from reader.transforms.random import PER_SAMPLE, draw

_Row = TypeVar("_Row")
_Made = TypeVar("_Made")
# Makes a batch of a list of samples, or of the rows of one.
Collate = Callable[[Any], Any]

# A stream of random numbers apart from that of rows.
_OF_COLLATE = 1


class SampleTransform:
    """Gives the samples of a batch as the dataset gives each alone, joined as torch's DataLoader joins them.

    What is drawn for a row depends on the loader's seed, the epoch and the position alone.

    Args:
        dataset: whose transform, target_transform, transforms and as_pil are applied.
        collate: joins the samples; None: as torch does by default.
    """

    # a loader calls it with whole batches, in worker processes
    takes_samples = True

    def __init__(self, dataset: MemmapDataset, collate: Collate | None = None) -> None:
        self.dataset, self._collate = dataset, collate

    def __repr__(self) -> str:
        return f"that of single samples of {self.dataset!r}"

    @property
    def transform(self) -> object:
        """The transform that gets each sample."""
        return self.dataset.transform or self.dataset.transforms

    def __call__(self, batch: Batch) -> Any:
        """Return (images, targets) of samples that are tuples, an ImageBatch of ImageBatches, else what they are joined to.

        Raises:
            ValueError: the images have several sizes.
        """
        rows, device = range(len(batch)), batch.pixels.device
        samples = each_seeded(lambda n, _: self._sample(batch, n), rows, row_seeds(batch), device)
        if self._collate is not None:
            collate, seed = self._collate, row_seeds(batch, _OF_COLLATE)[:1]
            return each_seeded(lambda all_of_them, _: collate(all_of_them), [samples], seed, device)[0]
        first: object = samples[0]
        if isinstance(first, ImageBatch):
            return torch.stack(samples)
        joined = self.dataset.joined(samples)
        # torch's DataLoader makes a list of tuples
        return tuple(joined) if isinstance(first, tuple) and isinstance(joined, list) else joined

    def _sample(self, batch: Batch, n: int) -> Any:
        """Return row n of a batch as the dataset gives it; a transform may work in place: nothing else uses the batch."""
        number = batch.rows
        assert number is not None
        row: Any = row_of(batch, n) if isinstance(batch, RaggedBatch) else batch[n]
        row.rows = number[n].clone()
        with rows_named(self.dataset.path, int(number[n])):
            return self.dataset.as_sample(row)


class _CollateStep:
    """Gives a collate function the rows of a batch, (image, target) each; torch's default_collate in it takes the batch whole.

    Args:
        after: the transform that returned the batch.
    """

    def __init__(self, after: Transform | None, collate: Collate, by_name: bool) -> None:
        # where it may run is asked of what it calls
        self.after, self.transforms, self._by_name = after, [collate], by_name

    def __repr__(self) -> str:
        return f"collate_fn={self.transforms[0]!r}"

    def __call__(self, batch: Any) -> Any:
        """Return what the function makes of the rows.

        Raises:
            TypeError: the transform before it returned no ImageBatch, so that there are no rows.
        """
        if not isinstance(batch, Batch):
            raise TypeError(
                f"collate_fn= takes rows of an ImageBatch, and the transform gives a {type(batch).__name__}. Leave it out, and"
                " call its function in the loop."
            )
        return self.transforms[0](tuple_rows(*plain(batch, by_name=self._by_name)))


def collated(transform: Transform | None, collate: Collate, *, by_name: bool) -> Transform:
    """Return a transform of batches whose results a collate function takes by their rows."""
    step = _CollateStep(transform, collate, by_name)
    return step if transform is None else Compose([transform, step])


def uncollated(transform: Transform | None) -> Transform | None:
    """Return the transform that `collated` was given; of any other itself."""
    last = transform.transforms[-1] if type(transform) is Compose else transform
    return last.after if isinstance(last, _CollateStep) else transform


def checked_transform(name: str, transform: Transform | None) -> Transform | None:
    """Return a loader's own transform, which takes batches.

    Raises:
        TypeError: it is torchvision's, or has a step that is.
        ValueError: it cannot be called.
    """
    if transform is not None and not callable(transform):
        raise ValueError(f"{name} is {transform!r}, expected a function of a batch; Compose([...]) is one of several.")
    if transform is not None and is_torchvisions(transform):
        raise TypeError(TAKES_SINGLE_IMAGES)
    return transform


def transform_of_batches(
    dataset: MemmapDataset, collate: Collate | None, device: torch.device, transform: Transform | None
) -> Transform | None:
    """Return what a loader calls with batches: its own transform, or what the dataset does.

    That is the dataset's transform where it is one of `reader.transforms`, which take batches; what a dataset does to single
    samples is done for each row. What collates is called with the rows of a batch after either.

    Raises:
        TypeError: as `checked_transform`.
        ValueError: as `checked_transform`; or both have one, or samples are to be changed on a device.
    """
    transform = checked_transform("transform", uncollated(transform))
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
            " and move each batch: pixpack.to_device(batch, device). Or give the loader a transform of batches."
        )
    return SampleTransform(dataset, collate)


def _change_of(dataset: MemmapDataset) -> str:
    """Name what a dataset does to single samples, "" where it does nothing."""
    if not dataset.changes_samples:
        return ""
    names = [name for name in ("transform", "target_transform", "transforms") if getattr(dataset, name) is not None]
    return f"a {names[0]}" if names else "as_pil=True"


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
