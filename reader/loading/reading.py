"""Decides, once, what a loader reads from: the residency, copies, rows on a device, and what makes batches of them."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator

import torch

from reader.dataset.dataset import MemmapDataset
from reader.device.resident import Resident, free_bytes, total_bytes
from reader.device.transfer import entered
from reader.loading.finish import Finish, Unfinished
from reader.loading.gathering import Gathering
from reader.loading.prefetch import Feed, LoopItem
from reader.loading.remote_ahead import check_nodes, check_order
from reader.loading.shared_residency import HostRows, missing_on, resident_on
from reader.memory.residency import Residency, Room, choose
from reader.planning.orders import Orders, block_rows
from reader.planning.plan import EpochPlan, Seed
from reader.planning.ranks import Ranks, ranks_here, ranks_sharing
from reader.store import Batch
from reader.tuning import tuning

_log = logging.getLogger("reader")
_PREFETCH = 2


def gathering_of(
    plan: EpochPlan,
    device: torch.device,
    residency: str | Residency,
    ranks: Ranks,
    *,
    prefetch: int,
) -> Gathering:
    """Choose where rows are read from, and bring them there.

    Args:
        ranks: that are expected.

    Raises:
        ValueError: they do not fit where they are asked for, or the order does not go with a cache or the ranks.
        StoreError: the store is damaged, or another one by now.
    """
    part, processes = plan.orders.part, ranks_here(ranks)
    rows = HostRows(part, processes)
    room = room_on(part, device, processes) if residency == "gpu" else None
    chosen = choose(residency, rows.reads, room)
    _log.info("%s: order %s, %s, residency %s: %s", part.path, plan.orders.text, ranks, chosen.name, chosen.reason)
    check_order(plan)
    if ranks.is_known:
        plan.orders.check_step(plan.cut)
        check_nodes(plan)
    rows.bring(chosen)
    resident: Resident | None = None
    if chosen.name == "gpu":
        resident = resident_on(part, device, functools.partial(batches_on, device, chosen.host))
    must_pin = residency == "ram"
    return Gathering(rows, device, prefetch=prefetch, must_pin=must_pin, residency=chosen.name, resident=resident)


def room_on(dataset: MemmapDataset, device: torch.device, processes: int) -> Room | None:
    """Return what there is on a device and what is needed there; None for the CPU. processes: ranks of this host."""
    free = free_bytes(device)
    if free is None:
        return None
    sharing = ranks_sharing(processes, torch.cuda.device_count())
    total = total_bytes(device) if sharing > 1 else 0
    return Room(free, missing_on(dataset, device), sharing, total)


@contextlib.contextmanager
def batches_on(device: torch.device, host: str, dataset: MemmapDataset) -> Iterator[Iterator[Batch]]:
    """Give a dataset's batches, in its order, on a device; host: where rows are read from, "cache" or "disk"."""
    orders = Orders(dataset)
    plan = EpochPlan(orders, orders.cut(block_rows(dataset.manifest), rank=0, world_size=1), Seed(0))
    on_host = HostRows(dataset, processes=1)
    on_host.bring(Residency(host, "", host))
    gathering = Gathering(on_host, device, prefetch=_PREFETCH, must_pin=False, residency=host)
    steps = plan.steps(plan.items(), tuning().transformed_group_bytes)
    as_they_are = Finish(plan, None, as_tuple=False, as_dict=None, threads=1, on_device=device.type == "cuda")
    source = functools.partial(gathering.groups, plan, steps, as_they_are)
    feed = Feed(entered(device, source), _PREFETCH)
    try:
        yield _taken(feed)
    finally:
        feed.stop(wait=True)


def _taken(feed: Feed[LoopItem]) -> Iterator[Batch]:
    while (group := feed.first()) is not None:
        # named by nobody here: a batch that is kept takes one buffer more
        yield _batch_of(group.popleft()[0])


def _batch_of(item: object) -> Batch:
    batch: Batch = item.make() if isinstance(item, Unfinished) else item  # type: ignore[assignment]
    return batch
