"""What a loader logs of its rows, order and transform, and what it warns of where a run may not be what its user means."""

from __future__ import annotations

import contextlib
import logging

import numpy as np
import torch

from reader.dataset.cropping import stored_crop, warn_of_second_crop
from reader.dataset.dataset import MemmapDataset
from reader.dataset.samples import Transform
from reader.dataset.unlabeled import warn_of_unlabeled
from reader.loading.finish import begins_with_crop
from reader.memory.residency import Residency
from reader.planning.orders import block_rows
from reader.planning.plan import EpochPlan
from reader.planning.ranks import Ranks
from reader.transforms.conversions import convertible, from_torchvision, is_torchvisions
from reader.tuning import tuning

_log = logging.getLogger("pixpack")


def is_grouped_by_class(dataset: MemmapDataset) -> bool:
    """Say whether neighboring rows have one class far more often than rows at large, by a look at some."""
    count, store = len(dataset), dataset.opened_store
    # one window mixes all of fewer rows
    if (
        dataset.manifest.target_kind != "class"
        or count <= block_rows(dataset.manifest) * tuning().shuffle_window_blocks
    ):
        return False
    first = np.linspace(0, count - 2, 256).astype(np.int64)
    seen, following = (store.columns(dataset.store_rows(first + n), ["targets"])["targets"] for n in (0, 1))
    by_chance = (torch.unique(seen, return_counts=True)[1] / len(seen)).square().sum()
    return bool((seen == following).float().mean() > 0.9 > 2 * by_chance)


def log_choices(plan: EpochPlan, ranks: Ranks, chosen: Residency, *, has_collate: bool) -> None:
    """Log what a new loader reads, and warn where its order, or the dataset's transform, costs more than another."""
    path = plan.dataset.path
    _log.info("%s: order %s, %s, residency %s: %s", path, plan.orders.text, ranks, chosen.name, chosen.reason)
    if plan.orders.name == "block" and is_grouped_by_class(plan.dataset):
        _log.warning(
            "%s: its rows are ordered class by class and shuffle='block' mixes only %d neighboring blocks at a time: a batch then"
            " holds few classes. Pack with --shuffle SEED for well-mixed blocks.",
            *(path, tuning().shuffle_window_blocks),
        )
    # a collate_fn takes samples, and a transform of batches has none
    if ranks.rank == 0 and not has_collate:
        _warn_of_slow_recipe(plan.dataset)


def log_first_epoch(plan: EpochPlan, transform: Transform | None, *, as_tuple: bool) -> None:
    """Log what the batches of a loader are, as its first epoch begins: seed, ranks, what was cropped and what is drawn.

    as_tuple: the loop gets images and targets.
    """
    dataset, ranks = plan.dataset, plan.ranks
    _log.info(
        "%s: first epoch: %s, epoch %d, order %s, %s, %s, transform %s",
        *(dataset.path, plan.seed.described, plan.number, plan.orders.text, ranks),
        *(stored_crop(dataset.manifest), " ".join(repr(transform).split())),
    )
    if ranks.rank == 0:
        warn_of_second_crop(dataset.path, dataset.manifest, transform)
        if as_tuple:
            warn_of_unlabeled(dataset.opened_store, dataset.store_rows(np.arange(len(dataset))))


def warn_of_small_rows(dataset: MemmapDataset, transform: object, sides: tuple[int, int]) -> bool:
    """Warn of crops that are larger than the rows, or than the largest of them; says whether they are."""
    height, width, _ = dataset.manifest.sides
    if (sides[0] <= height and sides[1] <= width) or not begins_with_crop(transform):
        return False
    _log.warning(
        "%s: crops of %d x %d are larger than the rows, %d x %d%s: they are enlarged, or padded. Give a smaller size=, or"
        " pack larger rows.",
        *(dataset.path, *sides, height, width, dataset.manifest.kind.at_most),
    )
    return True


def _warn_of_slow_recipe(dataset: MemmapDataset) -> None:
    """Warn where the dataset's transform is torchvision's, which takes single images, and converts to one of batches."""
    recipe = dataset.transform
    # whatever it cannot convert: what only advises stops no training
    with contextlib.suppress(Exception):
        if dataset.target_transform is not None or not is_torchvisions(recipe):
            return
        _, rest, _ = convertible(recipe)
        # a batch of images of different sizes is cropped to one size first
        if rest or (dataset.manifest.has_own_sizes and not begins_with_crop(from_torchvision(recipe))):
            return
        _log.warning(
            "%s: the dataset's transform is torchvision's, and runs on one image at a time. Faster, on whole batches:"
            " MemmapDataset(..., transform=from_torchvision(transform))%s.",
            *(dataset.path, ", without as_pil=True" if dataset.as_pil else ""),
        )
