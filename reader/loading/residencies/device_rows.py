"""Rows on a device: what it has room for, the batches that fill it, read in the dataset's order, once; and those of a pass."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch

from reader.dataset.dataset import MemmapDataset
from reader.device.resident import Resident, ResidentImages, free_bytes, total_bytes
from reader.device.transfer import entered
from reader.loading.finish import Finish, Unfinished
from reader.loading.gathering import Gathering
from reader.loading.host_rows import HostRows
from reader.loading.orders import Orders, block_rows
from reader.loading.plan import EpochPlan
from reader.loading.prefetch import Claim, Feed, Group, LoopItem, paced
from reader.loading.ranks import ranks_sharing
from reader.loading.seeds import Seed
from reader.loading.shared_residency import missing_on
from reader.memory.residency import Residency, Room
from reader.profiling import stage
from reader.rows import Rows, Steps
from reader.store import ImageBatch
from reader.tuning import tuning

_PREFETCH = 2


class OnDevice:
    """Gives the batches of a pass over rows on a device: the caller's thread gathers them, on its stream."""

    def __init__(self, resident: Resident | ResidentImages) -> None:
        self._resident = resident

    def groups(self, plan: EpochPlan, steps: Iterator[Steps], finish: Finish, claim: Claim) -> Iterator[Group]:
        """Yield the batches of a pass, in groups, as Unfinished."""
        return paced(map(functools.partial(self._group, finish), steps), claim)

    def _group(self, finish: Finish, steps: Steps) -> Group:
        each = zip(steps.batches, steps.starts, steps.positions, strict=True)
        return [
            (Unfinished(functools.partial(self._made, rows, start, finish), start, torch.from_numpy(rows)), after)
            for rows, start, after in each
        ]

    def _made(self, rows: Rows, start: int, finish: Finish) -> object:
        with stage("gather"):
            batch = self._resident.gather(rows)
        return finish.in_feeder(batch, start)


def room_on(dataset: MemmapDataset, device: torch.device, processes: int) -> Room | None:
    """Return what there is on a device and what is needed there; None for the CPU. processes: ranks of this host."""
    free = free_bytes(device)
    if free is None:
        return None
    sharing = ranks_sharing(processes, torch.cuda.device_count())
    total = total_bytes(device) if sharing > 1 else 0
    return Room(free, missing_on(dataset, device), sharing, total)


@contextlib.contextmanager
def batches_on(device: torch.device, host: str, dataset: MemmapDataset) -> Iterator[Iterator[ImageBatch]]:
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


def _taken(feed: Feed[LoopItem]) -> Iterator[ImageBatch]:
    while (group := feed.first()) is not None:
        # held by nobody here: a batch that is held takes one buffer more
        yield _made(group.popleft()[0])


def _made(item: object) -> ImageBatch:
    made = item.make() if isinstance(item, Unfinished) else item
    # rows with sizes of their own are copied by their pages
    assert isinstance(made, ImageBatch)
    return made
