"""Which rows a step of training took, and which steps took a row: computed from the order, so that nothing is logged.

Inverts the orders of a `Schedule`, a row at a time. Reads no store, and begins no epoch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from reader.loading.schedule import Schedule
from reader.loading.state import LoopState
from reader.loading.validation import integer
from reader.order import Cut
from reader.rows import Rows
from reader.system import available_cpus

# Rows of a batch and rank in an epoch.
BatchSize = Callable[[int], int]


def rows_of_step(schedule: Schedule, epoch: int, step: int, rank: int | None, batch_size: BatchSize) -> Rows:
    """Return the positions in the dataset that a step takes, int64[B], of one rank; None: of all ranks, rank after rank.

    Raises:
        ValueError: rows come from a sampler, no seed is chosen yet, or epoch is not 0 or more.
        IndexError: the epoch has no such step, or there is no such rank.
    """
    _check_computed(schedule)
    if schedule.chosen_seed.value is None:
        raise ValueError("no seed is chosen yet: begin an epoch, load a state, or give the loader seed=.")
    if (epoch := integer("epoch", epoch)) < 0:
        raise ValueError(f"epoch is {epoch}, expected 0 or more.")
    step, world_size, rows = integer("step", step), schedule.cut.world_size, batch_size(epoch)
    if rank is not None and not 0 <= integer("rank", rank) < world_size:
        raise IndexError(f"rank is {rank}, expected 0 to {world_size - 1}.")
    own = schedule.with_batch_size(rows)
    own.cut_for(rank or 0, world_size)
    if not 0 <= step < own.cut.steps():
        raise IndexError(f"step is {step}, and epoch {epoch} has steps 0 to {own.cut.steps() - 1}.")
    position = step * rows * world_size
    span = own.cut.span(position) if rank is not None else (position, position + own.cut.step_rows(position))
    return own.order_of(epoch).of_step(position, own.cut.step_rows(position), *span).copy()


def steps_of_row(
    schedule: Schedule, row: int, state: Mapping[str, Any], batch_size: BatchSize
) -> list[tuple[int, int]]:
    """Return (epoch, step) of all ranks' steps before a state that took a row of the dataset, sorted.

    Raises:
        ValueError: rows come from a sampler, or the state is of another loop.
        IndexError: there is no such row.
    """
    _check_computed(schedule)
    # of the state's seed
    schedule = copy.copy(schedule)
    loop = LoopState(schedule)
    loop.load_state_dict(state)
    if not 0 <= (row := integer("row", row)) < len(schedule.dataset):
        raise IndexError(f"row is {row}, and the dataset has rows 0 to {len(schedule.dataset) - 1}.")
    last, position = loop.next
    epochs = range(last + (position > 0)) if schedule.chosen_seed.value is not None else range(0)

    def steps(epoch: int) -> list[tuple[int, int]]:
        own = schedule.with_batch_size(batch_size(epoch))
        stop = own.cut.count if epoch < last else position
        return [(epoch, step) for step in _steps_of_row(own, epoch, row, stop)]

    # draws by weights are all computed again
    with ThreadPoolExecutor(available_cpus(), thread_name_prefix="pixpack-seen") as pool:
        return [found for each in pool.map(steps, epochs) for found in each]


def _steps_of_row(schedule: Schedule, epoch: int, row: int, stop: int) -> list[int]:
    """Return the steps of an epoch that took a row before a position."""
    cut, order = schedule.cut, schedule.order_of(epoch)
    step_rows = cut.batch_size * cut.world_size
    # of rank 0, where the last step is one that only some ranks have
    count = Cut(cut.count, cut.batch_size, cut.drop_last, 0, cut.world_size, cut.pad).steps()
    places = [place for place in order.places_of(row) if place < stop]
    found = [place // step_rows for place in places if place // step_rows < count]
    last = (count - 1) * step_rows
    # where the last step of several ranks is filled up, rows come again
    if stop == cut.count and count and (missing := last + cut.step_rows(last) - cut.count) > 0:
        found += [count - 1 for place in places if order.is_repeated(place, missing)]
    return found


def _check_computed(schedule: Schedule) -> None:
    """Raise ValueError where the order is not ours to compute."""
    if schedule.sampler is not None:
        raise ValueError(
            f"the rows of each step come from the sampler, a {type(schedule.sampler).__name__}, which alone knows its order."
            " Log what it gives, or use shuffle= or weights=."
        )
