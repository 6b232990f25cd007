"""Computes from the order which rows a step of training took, and which steps took a row, so that nothing need be logged.

Inverts the orders of plans, a row at a time. Reads no store, and begins no epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from reader.planning.epochs import Epochs
from reader.planning.plan import EpochPlan
from reader.rows import Rows
from reader.system import available_cpus
from reader.transforms.random import integer


def rows_of_step(epochs: Epochs, epoch: int, step: int, rank: int | None) -> Rows:
    """Return the positions in the dataset that a step takes, int64[B], of one rank; None: of all ranks, rank after rank.

    Raises:
        ValueError: rows come from a sampler, no seed is chosen yet and the order has one, or epoch is not 0 or more.
        IndexError: the epoch has no such step, or there is no such rank.
    """
    _check_computed(epochs)
    if epochs.seed.value is None and epochs.orders.has_seed:
        raise ValueError("no seed is chosen yet: begin an epoch, load a state, or give the loader seed=.")
    if (epoch := integer("epoch", epoch)) < 0:
        raise ValueError(f"epoch is {epoch}, expected 0 or more.")
    step, plan = integer("step", step), epochs.at(epoch)
    cut = plan.first_cut
    if rank is not None:
        if not 0 <= integer("rank", rank) < cut.world_size:
            raise IndexError(f"rank is {rank}, expected 0 to {cut.world_size - 1}.")
        cut = replace(cut, rank=rank)
    count = cut.steps()
    if not 0 <= step < count:
        steps = f"steps 0 to {count - 1}; steps are counted within an epoch" if count else "no steps"
        raise IndexError(f"step is {step}, and epoch {epoch} has {steps}.")
    part = cut.step(step * cut.full_step)
    if rank is None:
        part = part._replace(start=part.position, stop=part.position + part.rows)
    return plan.order().of_step(part).copy()


def steps_of_row(epochs: Epochs, row: int, state: Mapping[str, Any] | None) -> list[tuple[int, int]]:
    """Return (epoch, step) of all ranks' steps before a state that took a row of the dataset, sorted; None: the loop's own.

    Raises:
        ValueError: rows come from a sampler, the state is of another loop, or there is none and no step was taken yet.
        IndexError: there is no such row.
    """
    _check_computed(epochs)
    count = len(epochs.orders.dataset)
    if not 0 <= (row := integer("row", row)) < count:
        raise IndexError(f"row is {row}, and the dataset has rows 0 to {count - 1}.")
    if state is None:
        state = epochs.state_dict()
        if not state["epoch"] and not state["position"]:
            raise ValueError(
                "this loader has given no batch yet. Give the state of a checkpoint, as state_dict() returned it."
            )
    last, position, seed = epochs.resumed(state)
    if seed.value is None:
        return []

    def steps(epoch: int) -> list[tuple[int, int]]:
        plan = epochs.at(epoch, seed=seed)
        return [(epoch, step) for step in _steps_of_row(plan, row, plan.cut.count if epoch < last else position)]

    # draws by weights are all computed again
    with ThreadPoolExecutor(available_cpus(), thread_name_prefix="pixpack-seen") as pool:
        return [step for each in pool.map(steps, range(last + (position > 0))) for step in each]


def _steps_of_row(plan: EpochPlan, row: int, stop: int) -> list[int]:
    """Return the steps of an epoch that took a row before a position."""
    order = plan.order()
    cut = plan.first_cut
    count = cut.steps()
    places = [place for place in order.places_of(row) if place < stop]
    steps = [place // cut.full_step for place in places if place // cut.full_step < count]
    last = (count - 1) * cut.full_step
    # where the last step of several ranks is filled up, rows come again
    if stop == cut.count and count and (missing := last + cut.step(last).rows - cut.count) > 0:
        steps += [count - 1 for place in places if order.is_repeated(place, missing)]
    return steps


def _check_computed(epochs: Epochs) -> None:
    """Raise ValueError where the order is not ours to compute."""
    if epochs.orders.sampler is not None:
        raise ValueError(
            f"the rows of each step come from the sampler, a {type(epochs.orders.sampler.sampler).__name__}, which alone knows"
            " its order. Log what it gives, or use shuffle= or weights=."
        )
