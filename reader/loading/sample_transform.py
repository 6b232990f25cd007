"""What a dataset does to single samples, as ImageFolder's transform does, run for the rows of a loader's batches.

Knows how rows become samples and samples a batch; what is drawn for a row, and on which thread, `reader.transforms` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from reader.dataset.dataset import MemmapDataset
from reader.memory.pages import row_of
from reader.rows import rows_named
from reader.store import Batch, ImageBatch, RaggedBatch
from reader.transforms.per_sample import Seeded, SeededRows, row_seeds

# Makes a batch of a list of samples.
Collate = Callable[[list[Any]], Any]


class SampleTransform:
    """Gives the samples of a batch as the dataset gives each alone, joined as torch's DataLoader joins them.

    What is drawn for a row depends on the loader's seed, the epoch and the position alone; it runs on several threads, or on
    the loop's where it draws from Python's random or numpy.random.

    Args:
        dataset: whose transform, target_transform, transforms and as_pil are applied.
        threads: how many rows at once.
        collate: joins the samples; None: as torch does by default.
    """

    # a loader's own threads give it whole batches
    has_own_threads = True

    def __init__(self, dataset: MemmapDataset, threads: int, collate: Collate | None = None) -> None:
        self.dataset, self._collate, self._rows = dataset, collate, SeededRows(threads)

    def __repr__(self) -> str:
        return f"that of single samples of {self.dataset!r}"

    @property
    def transform(self) -> object:
        """What each sample is given to."""
        return self.dataset.transform or self.dataset.transforms

    @property
    def needs_one_thread(self) -> bool:
        """Whether generators of the process are seeded for each row, which a loop may draw from."""
        return self._rows.needs_one_thread

    def __call__(self, batch: Batch) -> Any:
        """Return (images, targets) of samples that are tuples, an ImageBatch of ImageBatches, else what they are joined to.

        Raises:
            ValueError: the images have several sizes.
        """
        samples = self._rows(partial(self._sample, batch), range(len(batch)), row_seeds(batch))
        if self._collate is not None:
            return self._collate(samples)
        first: object = samples[0]
        if isinstance(first, ImageBatch):
            return torch.stack(samples)
        try:
            made = self.dataset.joined(samples)
        except RuntimeError as e:
            if (of_sizes := _several_sizes(samples)) is None:
                # not from itself: what follows the causes of an error, as rich does, would never end
                raise
            raise of_sizes from e
        # torch's DataLoader makes a list of tuples
        return tuple(made) if isinstance(first, tuple) and isinstance(made, list) else made

    def _sample(self, batch: Batch, n: int, seed: int) -> Any:
        """Return row n of a batch as the dataset gives it; a transform that works in place changes a copy."""
        number = batch.rows
        assert number is not None
        row: Any = (row_of(batch, n) if isinstance(batch, RaggedBatch) else batch[n]).clone()
        row.rows = number[n].clone()
        with Seeded(seed), rows_named(self.dataset.path, int(number[n])):
            return self.dataset.as_sample(row)


def _several_sizes(samples: list[object]) -> ValueError | None:
    """Return the error of samples whose images cannot be stacked; None where it is another one."""
    images = [sample[0] if isinstance(sample, tuple) else sample for sample in samples]
    shapes = {tuple(image.shape) for image in images if isinstance(image, torch.Tensor)}
    if len(shapes) < 2:
        return None
    return ValueError(
        f"the dataset's transform gave images of the shapes {' and '.join(map(str, sorted(shapes)))}. Let it end in one size,"
        " such as RandomResizedCrop(224)."
    )
