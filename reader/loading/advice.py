"""Which order a loader's arguments stand for, and what it logs of order and ranks where a run may not be what its user means."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from reader import system
from reader.dataset.cropping import stored_crop, warn_of_second_crop
from reader.dataset.dataset import MemmapDataset
from reader.dataset.samples import Transform
from reader.dataset.unlabeled import warn_of_unlabeled
from reader.loading.finish import begins_with_crop
from reader.loading.orders import block_rows
from reader.loading.ranks import Ranks, is_distributed
from reader.loading.remote_ahead import check_nodes, check_order
from reader.loading.schedule import Schedule
from reader.loading.validation import Weights
from reader.memory.residency import Residency
from reader.transforms.conversions import convertible, from_torchvision
from reader.tuning import tuning

_log = logging.getLogger("reader")


class Length(NamedTuple):
    """The steps of an epoch, "some" where a sampler has no length, and the world size that they are for."""

    steps: int | str
    world_size: int

    @classmethod
    def of(cls, schedule: Schedule) -> Length:
        """Return that of the ranks as they are known now."""
        sampler = schedule.sampler
        has_length = sampler is None or hasattr(sampler, "__len__")
        return cls(schedule.steps_left(0) if has_length else "some", schedule.cut.world_size)


def chosen_order(
    shuffle: bool | str,
    dataset: MemmapDataset,
    *,
    weights: Weights | Mapping[str, float] | None,
    is_sampled: bool,
    has_nodes: bool,
) -> str:
    """Return the order that a loader's arguments stand for.

    has_nodes: it is for canonical nodes.

    Raises:
        ValueError: they ask for two at once, or shuffle for none that there is.
    """
    is_weighted = weights is not None
    if is_weighted + is_sampled + (shuffle is not False) > 1:
        raise ValueError("shuffle, weights and sampler each decide the order: give one of them.")
    if is_weighted:
        return "mixture" if isinstance(weights, Mapping) else "weighted"
    if is_sampled:
        return "sampler"
    if shuffle is True:
        return "full" if not has_nodes and dataset.remote is None and _fits_in_memory(dataset) else "block"
    if shuffle is False:
        return "sequential"
    if shuffle not in ("full", "block"):
        raise ValueError(f"shuffle is {shuffle!r}, expected False, True, 'full' or 'block'.")
    return shuffle


def is_grouped_by_class(dataset: MemmapDataset) -> bool:
    """Say whether neighboring rows have one class far more often than rows at large, by a look at some."""
    count, store = len(dataset), dataset.opened_store
    # of fewer rows one window mixes all
    if (
        dataset.manifest.target_kind != "class"
        or count <= block_rows(dataset.manifest) * tuning().shuffle_window_blocks
    ):
        return False
    first = np.linspace(0, count - 2, 256).astype(np.int64)
    seen, following = (store.columns(dataset.store_rows(first + n), ["targets"])["targets"] for n in (0, 1))
    by_chance = (torch.unique(seen, return_counts=True)[1] / len(seen)).square().sum()
    return bool((seen == following).float().mean() > 0.9 > 2 * by_chance)


def log_choices(schedule: Schedule, ranks: Ranks, chosen: Residency, *, has_collate: bool) -> None:
    """Log what a loader was made for, and warn where its order costs more than another.

    Raises:
        ValueError: a small cache cannot hold what the order needs at once.
        OrderError: canonical nodes do not share a step of all ranks evenly.
    """
    path = schedule.dataset.path
    _log.info("%s: order %s, %s, residency %s: %s", path, schedule.orders.text, ranks, chosen.name, chosen.reason)
    warn_of_few_classes(schedule)
    # a collate_fn takes samples, and a transform of batches has none
    if ranks.rank == 0 and not has_collate:
        _warn_of_slow_recipe(schedule.dataset)
    check_order(schedule)
    if ranks.is_known:
        schedule.check_step()
        check_nodes(schedule)


def log_ranks(
    schedule: Schedule,
    ranks: Ranks,
    *,
    before: Ranks,
    is_first: bool,
    reported: Length | None,
) -> None:
    """Log what the ranks are now, where an epoch begins.

    before: as they were. reported: how long an epoch was when the program asked last; None: it did not.
    """
    source, path, now = ranks.source or "nobody says otherwise", schedule.dataset.path, Length.of(schedule)
    if reported is not None and reported.world_size != now.world_size and schedule.sampler is None:
        _log.warning(
            "%s: an epoch was said to be %s steps, for world size %s; now it is %s, for world size %d (%s). What was"
            " computed from the former, such as a schedule of learning rates, does not fit.",
            *(path, reported.steps, reported.world_size, now.steps, now.world_size, source),
        )
    elif before != ranks:
        _log.info("%s: %s (%s)", path, ranks, source)
    if is_first and ranks.is_guessed:
        _log.warning(
            "%s: reads for %s, as RANK and WORLD_SIZE say, though torch.distributed is not initialized. Give rank= and"
            " world_size= if that is not meant.",
            *(path, ranks),
        )
    if ranks.world_size > 1 and (is_first or before.world_size == 1):
        _warn_of_unsharded_sampler(schedule, ranks)


def log_first_epoch(schedule: Schedule, epoch: int, transform: Transform | None, *, as_tuple: bool) -> None:
    """Log what the batches of a loader are, as its first epoch begins: seed, ranks, what was cropped and what is drawn.

    as_tuple: the loop gets images and targets.
    """
    dataset = schedule.dataset
    _log.info(
        "%s: first epoch: %s, epoch %d, order %s, %s, %s, transform %s",
        *(dataset.path, schedule.chosen_seed.described, epoch, schedule.orders.text, schedule.ranks),
        *(stored_crop(dataset.manifest), " ".join(repr(transform).split())),
    )
    if schedule.ranks.rank == 0:
        warn_of_second_crop(dataset.path, dataset.manifest, transform)
        if as_tuple:
            warn_of_unlabeled(dataset)


def warn_of_few_classes(schedule: Schedule) -> None:
    """Warn where shuffle="block" makes batches of few classes."""
    if schedule.order == "block" and is_grouped_by_class(schedule.dataset):
        _log.warning(
            "%s: its rows are ordered class by class and shuffle='block' mixes only %d neighboring blocks at a time: a batch then"
            " holds few classes. Pack with --shuffle SEED for well-mixed blocks.",
            schedule.dataset.path,
            tuning().shuffle_window_blocks,
        )


def _warn_of_slow_recipe(dataset: MemmapDataset) -> None:
    """Warn where the dataset's transform is torchvision's, which takes single images, and converts to one of batches."""
    recipe = dataset.transform
    if dataset.target_transform is not None or not type(recipe).__module__.startswith("torchvision.transforms."):
        return
    # whatever it cannot convert: what only advises stops no training
    with contextlib.suppress(Exception):
        _, rest, _ = convertible(recipe)
        # a batch of images of different sizes is cropped to one size first
        if rest or (dataset.manifest.has_own_sizes and not begins_with_crop(from_torchvision(recipe))):
            return
        _log.warning(
            "%s: the dataset's transform is torchvision's, and runs on one image at a time. Faster, on whole batches:"
            " MemmapDataset(..., transform=from_torchvision(transform))%s.",
            *(dataset.path, ", without as_pil=True" if dataset.as_pil else ""),
        )


def _warn_of_unsharded_sampler(schedule: Schedule, ranks: Ranks) -> None:
    """Warn where each of several ranks reads all that its sampler gives."""
    if schedule.sampler is not None and not is_distributed(schedule.sampler):
        _log.warning(
            "%s: this is %s, and the sampler, a %s, is not distributed: each rank reads every row that it gives. Give"
            " sampler=DistributedSampler(dataset), or shuffle= or weights= instead, which share rows among ranks; or rank=0"
            " and world_size=1 if each rank's sampler has rows of its own.",
            *(schedule.dataset.path, ranks, type(schedule.sampler).__name__),
        )


def _fits_in_memory(dataset: MemmapDataset) -> bool:
    """Say whether the dataset's pixels fit in this machine's memory, or its cgroup's share; not in what is free just now, since
    every rank of a cluster of equal machines must come to the same answer."""
    size_bytes = min(dataset.manifest.pixel_bytes, len(dataset) * dataset.manifest.row_bytes)
    return size_bytes < 0.7 * system.memory_bytes()
