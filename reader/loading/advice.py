"""What a loader logs about its ranks and its order, where a run may not be what its user means."""

from __future__ import annotations

import logging
from pathlib import Path

from reader.loading.ranks import Ranks, is_distributed
from reader.loading.schedule import WINDOW_BLOCKS, Schedule, lies_by_class

_log = logging.getLogger("reader")


def log_ranks(
    path: Path,
    ranks: Ranks,
    *,
    before: Ranks,
    is_first: bool,
    announced: tuple[int | None, int | str, int | str] | None,
) -> None:
    """Log what the ranks are now, where an epoch begins.

    announced: the world size and the steps that were reported before, and the steps now; None where they are the same.
    """
    source = ranks.source or "nobody says otherwise"
    if announced is not None:
        world_size, steps, steps_now = announced
        _log.warning(
            "%s: an epoch was said to be %s steps, for world size %s; now it is %s, for world size %d (%s). What was"
            " computed from the former, such as a schedule of learning rates, does not fit.",
            *(path, steps, world_size, steps_now, ranks.world_size, source),
        )
    elif before != ranks:
        _log.info("%s: %s (%s)", path, ranks, source)
    if is_first and ranks.is_guessed:
        _log.warning(
            "%s: reads for %s, as RANK and WORLD_SIZE say, though torch.distributed is not initialized. Give rank= and"
            " world_size= if that is not meant.",
            *(path, ranks),
        )


def warn_of_few_classes(schedule: Schedule) -> None:
    """Warn where shuffle="block" makes batches of few classes."""
    if schedule.order == "block" and lies_by_class(schedule.dataset):
        _log.warning(
            "%s: its rows are ordered class by class and shuffle='block' mixes only %d neighboring blocks at a time: a batch then"
            " holds few classes. Pack with --shuffle SEED for well-mixed blocks.",
            schedule.dataset.path,
            WINDOW_BLOCKS,
        )


def warn_of_whole_sampler(schedule: Schedule, ranks: Ranks) -> None:
    """Warn where each of several ranks reads all that its sampler gives."""
    if schedule.sampler is not None and not is_distributed(schedule.sampler):
        _log.warning(
            "%s: this is %s, and the sampler, a %s, is not distributed: each rank reads every row that it gives. Give"
            " sampler=DistributedSampler(dataset), or shuffle= or weights= instead, which share rows among ranks; or rank=0"
            " and world_size=1 if each rank's sampler has rows of its own.",
            *(schedule.dataset.path, ranks, type(schedule.sampler).__name__),
        )
