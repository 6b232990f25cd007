"""Decides, once, what a loader reads from: the residency, copies, levels, and what makes batches of them."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from reader.device.resident import Resident
from reader.loading.advice import log_choices
from reader.loading.gathering import Gathering
from reader.loading.host_rows import HostRows
from reader.loading.plan import EpochPlan
from reader.loading.ranks import Ranks, ranks_here
from reader.loading.remote_ahead import check_nodes, check_order
from reader.loading.residencies.device_rows import batches_on, room_on
from reader.loading.residencies.levels import LevelRows, may_read_levels
from reader.loading.shared_residency import resident_on
from reader.memory.residency import Residency, choose


class Reading(NamedTuple):
    """Says where a loader's rows are read from, and what reads them.

    residency: its name. gathering: what brings the batches of a pass. resident: the rows on the device, where they are there.
    levels: what crops read their rows from, where those of levels are read.
    """

    residency: str
    gathering: Gathering
    resident: Resident | None
    levels: LevelRows | None


def reading_of(
    plan: EpochPlan,
    device: torch.device,
    residency: str | Residency,
    ranks: Ranks,
    *,
    prefetch: int,
    sized: object,
    has_collate: bool,
) -> Reading:
    """Choose where rows are read from, and bring them there.

    Args:
        ranks: that are expected.
        sized: a transform whose crops have the loader's size, and may read levels; None: there is none.
        has_collate: samples are collated by a function of the program's.

    Raises:
        ValueError: they do not fit where they are asked for, or the order does not go with a cache or the ranks.
        StoreError: the store is damaged, or another one by now.
    """
    part, processes = plan.orders.part, ranks_here(ranks)
    rows = HostRows(part, processes)
    levels = LevelRows(rows) if sized is not None and may_read_levels(part, residency, sized) else None
    room = room_on(part, device, processes) if residency == "gpu" else None
    chosen = choose(residency, (rows if levels is None else levels).reads, room)
    log_choices(plan, ranks, chosen, has_collate=has_collate)
    check_order(plan)
    if ranks.is_known:
        plan.orders.check_step(plan.cut)
        check_nodes(plan)
    (rows if levels is None else levels).bring(chosen)
    resident: Resident | None = None
    if chosen.name == "gpu":
        resident = resident_on(part, device, functools.partial(batches_on, device, chosen.host))
    gathering = Gathering(
        rows, device, prefetch=prefetch, must_pin=residency == "ram", has_pixels=levels is None, resident=resident
    )
    return Reading(chosen.name, gathering, resident, levels)
