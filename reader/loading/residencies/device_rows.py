"""Rows on a device: what it has room for, and the batches that fill it, read in the dataset's order, once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch

from reader.dataset.dataset import MemmapDataset
from reader.device.resident import free_bytes, total_bytes
from reader.device.transfer import entered
from reader.loading.finish import Finish, Unfinished
from reader.loading.gathering import Gathering
from reader.loading.host_rows import HostRows
from reader.loading.orders import Orders, block_rows
from reader.loading.plan import EpochPlan
from reader.loading.prefetch import Feed, LoopItem
from reader.loading.ranks import ranks_sharing
from reader.loading.seeds import Seed
from reader.loading.shared_residency import missing_on
from reader.memory.residency import Residency, Room
from reader.store import Batch
from reader.tuning import tuning

_PREFETCH = 2


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
    orders = Orders("sequential", dataset)
    plan = EpochPlan(orders, orders.cut(block_rows(dataset.manifest), rank=0, world_size=1), Seed(0))
    on_host = HostRows(dataset, processes=1)
    on_host.bring(Residency(host, "", host))
    gathering = Gathering(on_host, device, prefetch=_PREFETCH, must_pin=False)
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
