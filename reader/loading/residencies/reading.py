"""What a loader reads from, made once: the residency that was chosen, copies, levels, and what makes batches of them."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from reader.device.resident import Resident, ResidentImages
from reader.loading.advice import log_choices
from reader.loading.host_batches import Gathering
from reader.loading.producer import Producer
from reader.loading.ranks import Ranks, ranks_here
from reader.loading.residencies.device_rows import batches_on, room_on
from reader.loading.residencies.levels import LevelRows, may_read_levels
from reader.loading.schedule import Schedule
from reader.loading.shared_residency import reads_of, resident_on
from reader.memory.residency import Residency, choose


class Reading(NamedTuple):
    """Where a loader's rows are read from, and what reads them.

    residency: its name. resident: the rows on the device, where they are there.
    levels: what crops read their rows from, where those of levels are read.
    """

    residency: str
    gathering: Gathering
    resident: Resident | ResidentImages | None
    producer: Producer
    levels: LevelRows | None


def reading_of(
    schedule: Schedule,
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
    part, processes = schedule.orders.part, ranks_here(ranks)
    has_levels = sized is not None and may_read_levels(part, residency, sized)
    levels = LevelRows(part, processes) if has_levels else None
    room = room_on(part, device, processes) if residency == "gpu" else None
    chosen = choose(residency, reads_of(part, processes) if levels is None else levels.reads(), room)
    log_choices(schedule, ranks, chosen, has_collate=has_collate)
    gathering = Gathering(
        part,
        device,
        chosen,
        keep=prefetch + 2,
        must_pin=residency == "ram",
        processes=processes,
        has_pixels=levels is None,
    )
    if levels is not None:
        levels.begin(chosen)
    resident: Resident | ResidentImages | None = None
    if chosen.name == "gpu":
        resident = resident_on(part, device, functools.partial(batches_on, device, chosen.host))
    producer = Producer(schedule, gathering, device, prefetch=prefetch, resident=resident)
    return Reading(chosen.name, gathering, resident, producer, levels)
