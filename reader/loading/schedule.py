"""Which rows the batches of an epoch take, step after step, from any position on: in the loader's order, or as a sampler says.

Reads targets at most, for a look at how the rows are; never a pixel.
"""

from __future__ import annotations

import copy
import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from reader.dataset.dataset import MemmapDataset
from reader.loading.orders import Orders
from reader.loading.ranks import Ranks, ranks_here
from reader.loading.sampler_passes import SamplerPasses
from reader.loading.seeds import Seed
from reader.loading.validation import Item, Weights, check_epoch, sampled_rows
from reader.order import Cut, Order
from reader.rows import Rows, Steps

# Of tiny batches: each costs as much Python as a large one, and the caller waits for all of a group.
_MOST_BATCHES = 64
# Of a sampler: the position after its last step. What it gives may be any number of rows.
_END = (1 << 62) - 1


class PlannedBatch(NamedTuple):
    """Positions in the dataset, the global position of the first of them, and that after the step."""

    positions: Rows
    start: int
    after: int


class Schedule:
    """The steps of every epoch of a dataset in an order of the loader's, for one rank.

    Args:
        orders: of its epochs.
        seed: None: it is chosen when the first epoch begins, see `Seed`.
        ranks: rank and world size.
        pad: see `Cut`.

    Raises:
        OrderError: a number is out of its range.
    """

    # that decides the order; None: the loader does
    sampler: Iterable[Item] | None = None

    def __init__(
        self,
        orders: Orders,
        batch_size: int,
        *,
        seed: int | None,
        drop_last: bool = False,
        ranks: tuple[int, int] = (0, 1),
        pad: bool = True,
    ) -> None:
        self.orders, self.batch_size, self.chosen_seed = orders, batch_size, Seed.given(seed)
        self.dataset, self.drop_last, self._pad = orders.dataset, drop_last, pad
        self.rows_id = _rows_id(orders)
        self.cut: Cut
        self.cut_for(*ranks)

    @property
    def order(self) -> str:
        """The name of the order."""
        return self.orders.name

    @property
    def seed(self) -> int:
        """The seed, once it is chosen."""
        assert self.chosen_seed.value is not None
        return self.chosen_seed.value

    @property
    def ranks(self) -> Ranks:
        """The rank and the world size."""
        return Ranks(self.cut.rank, self.cut.world_size)

    @property
    def host_ranks(self) -> range:
        """The ranks of this host, as far as it is known."""
        ranks = self.ranks
        here = ranks_here(ranks)
        first = ranks.rank // here * here
        return range(first, min(first + here, ranks.world_size))

    def order_of(self, epoch: int) -> Order:
        """Return the order of an epoch."""
        return self.orders.of(epoch, self.seed)

    def with_batch_size(self, batch_size: int) -> Schedule:
        """Return an independent copy with this batch size; raises OrderError as `cut_for`."""
        made = copy.copy(self)
        made.set_batch_size(batch_size)
        return made

    def set_batch_size(self, batch_size: int) -> None:
        """Set the batch size of every later epoch; raises OrderError as `cut_for`."""
        self.batch_size = batch_size
        self.cut_for(self.cut.rank, self.cut.world_size)

    def cut_for(self, rank: int, world_size: int) -> None:
        """Cut every epoch from now on for this rank.

        Raises:
            OrderError: there is no such rank, or drop_last leaves it nothing.
        """
        self.cut = Cut(self.orders.epoch_rows, self.batch_size, self.drop_last, rank, world_size, self._pad)

    def choose_seed(self) -> None:
        """Choose the seed where an epoch begins, if none was given."""
        self.chosen_seed = self.chosen_seed.chosen(self.cut.world_size)

    def check_step(self) -> None:
        """Check a step of all ranks; for when their number is known.

        Raises:
            OrderError: canonical nodes do not share it evenly.
        """
        self.orders.check_step(self.batch_size, self.cut.world_size)

    def steps(self, epoch: int, position: int, items: Iterator[Item], group_bytes: int) -> Iterator[Steps]:
        """Yield the steps from a global position on, in groups; items are those of `sampled`, each batch of which is one."""
        batches = self.batches(epoch, position, items)
        group = self._group(group_bytes // max(1, self.dataset.manifest.row_bytes * self.batch_size))
        while taken := list(itertools.islice(batches, group)):
            rows = [self.dataset.store_rows(batch.positions) for batch in taken]
            yield Steps(rows, [batch.start for batch in taken], [batch.after for batch in taken])

    def batches(self, epoch: int, position: int, items: Iterator[Item]) -> Iterator[PlannedBatch]:
        """Yield the batches of `steps`, by positions in the dataset."""
        order = self.order_of(epoch)
        for _ in range(self.cut.steps(position)):
            start, stop = self.cut.span(position)
            rows = order.of_step(position, self.cut.step_rows(position), start, stop)
            position = self.cut.next_position(position)
            yield PlannedBatch(rows, start, position)

    def steps_left(self, position: int) -> int:
        """Return the steps from a position to the epoch's end (of a sampler: all steps).

        Raises:
            TypeError: the sampler has no length.
        """
        return self.cut.steps(position)

    def is_over(self, position: int) -> bool:
        """Say whether an epoch has nothing behind a position; of a sampler without a length, only its end shows."""
        return not self.cut.steps(position)

    def rank_rows(self) -> int:
        """Return how many rows this rank is given in an epoch.

        Raises:
            TypeError: the sampler has no length.
        """
        steps = self.cut.steps()
        step_rows = self.batch_size * self.cut.world_size
        start, stop = self.cut.span((steps - 1) * step_rows) if steps else (0, 0)
        return max(0, steps - 1) * self.batch_size + stop - start

    def shared_rows(self, position: int) -> int:
        """Return how many rows of all ranks' step at this position count, where some come twice; else 0."""
        left = self.cut.count - position
        step_rows = self.batch_size * self.cut.world_size
        return left if self._pad and left < step_rows and left % self.cut.world_size else 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a sampler that has set_epoch, as torch's DistributedSampler has; or of the one that it draws from."""

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch that begins on a sampler that shows its epoch, unless another caller has set it since."""

    def outside_epoch(self) -> int | None:
        """Return the epoch that another caller has set on the sampler since, or None."""
        return None

    def sampled(self) -> Iterator[Item]:
        """Begin an epoch of the sampler, if there is one: torch's draw their seed at the first item, here and not later."""
        return iter(())

    def listed(self, epoch: int) -> Iterator[Item]:
        """Begin an epoch of the sampler, if there is one, to be read without a pass over it.

        Raises:
            TypeError: it has no length, so that its items may not end.
        """
        return iter(())

    def _group(self, fitting: int) -> int:
        """Return how many batches are gathered together, of as many as fit."""
        return max(1, min(_MOST_BATCHES, fitting))


class _EpochSampler(Protocol):
    """A sampler that takes epochs, as torch's DistributedSampler."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose order comes next."""
        ...


class SampledSchedule(Schedule):
    """The steps that a torch Sampler, or what is used as one, gives to this rank."""

    sampler: Iterable[Item]

    def __init__(self, orders: Orders, batch_size: int, sampler: Iterable[Item], **options: Any) -> None:
        self.sampler, self._passes = sampler, SamplerPasses(sampler)
        self._epoch_set = getattr(self._asks_epoch(), "epoch", None)
        super().__init__(orders, batch_size, **options)

    def cut_for(self, rank: int, world_size: int) -> None:
        """Note this rank; a sampler may give more rows than there are, or fewer.

        Raises:
            OrderError: there is no such rank.
        """
        self.cut = Cut(self.orders.epoch_rows, self.batch_size, False, rank, world_size, self._pad)

    def batches(self, epoch: int, position: int, items: Iterator[Item]) -> Iterator[PlannedBatch]:
        """Follow the sampler; a resumed epoch skips what was taken, since only the sampler knows its order."""
        taken, rows, steps, last = 0, list[int](), 0, self._count()
        for item in items:
            found, is_batch = sampled_rows(item)
            rows += found
            if rows and (is_batch or len(rows) == self.batch_size):
                taken, steps = taken + len(rows), steps + 1
                if taken > position:
                    yield self._batch(rows, taken, is_last=steps == last)
                rows = []
        if rows and not self.drop_last and taken + len(rows) > position:
            yield self._batch(rows, taken + len(rows), is_last=True)

    def steps_left(self, position: int) -> int:
        """Return all steps.

        Raises:
            TypeError: the sampler has no length.
        """
        try:
            count = len(cast(Sized, self.sampler))
        except TypeError:
            kind = type(self.sampler).__name__
            raise TypeError(f"the sampler, a {kind}, has no length, so the loader has none either.") from None
        if self._passes.gives_batches():
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def is_over(self, position: int) -> bool:
        """Say whether an epoch has nothing behind a position; of a sampler without a length, only its end shows."""
        return position == _END

    def rank_rows(self) -> int:
        """Return how many rows the sampler gives.

        Raises:
            TypeError: it has no length.
        """
        return len(cast(Sized, self.sampler)) * (self.batch_size if self._passes.gives_batches() else 1)

    def shared_rows(self, position: int) -> int:
        """Return 0: what ranks share, the sampler decides."""
        return 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a sampler that has set_epoch, as torch's DistributedSampler has; or of the one that it draws from."""
        if (asks := self._asks_epoch()) is not None:
            asks.set_epoch(epoch)
            self._epoch_set = getattr(asks, "epoch", None)

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch that begins on a sampler that shows its epoch, unless another caller has set it since."""
        if (asks := self._asks_epoch()) is not None and hasattr(asks, "epoch") and asks.epoch == self._epoch_set:
            self.set_epoch(epoch)

    def outside_epoch(self) -> int | None:
        """Return the epoch that another caller has set on the sampler since, or None."""
        epoch = getattr(self._asks_epoch(), "epoch", None)
        return epoch if isinstance(epoch, int) and epoch != self._epoch_set else None

    def sampled(self) -> Iterator[Item]:
        """Begin an epoch of the sampler: torch's draw their seed at the first item, here and not later."""
        return self._passes.begin(takes_epochs=self._asks_epoch() is not None)

    def listed(self, epoch: int) -> Iterator[Item]:
        """Begin an epoch of the sampler, to be read without a pass over it.

        Raises:
            TypeError: it has no length, so that its items may not end.
        """
        self.steps_left(0)
        self.begin_epoch(epoch)
        return self.sampled()

    def _asks_epoch(self) -> _EpochSampler | None:
        found = (self.sampler, getattr(self.sampler, "sampler", None))
        asks = next((sampler for sampler in found if callable(getattr(sampler, "set_epoch", None))), None)
        return cast("_EpochSampler | None", asks)

    def _group(self, fitting: int) -> int:
        return 1

    def _batch(self, rows: list[int], taken: int, *, is_last: bool) -> PlannedBatch:
        # where the batch would stand in one order of all ranks: two ranks that are given one row draw differently for it
        start = (taken - len(rows)) * self.cut.world_size + self.cut.rank * len(rows)
        return PlannedBatch(self.dataset.positions(rows), start, _END if is_last else taken)

    def _count(self) -> int | None:
        """Return the steps of the sampler's epoch; None: it does not know them."""
        try:
            return self.steps_left(0)
        except TypeError:
            return None


def schedule_of(
    dataset: MemmapDataset,
    batch_size: int,
    *,
    order: str,
    seed: int | None,
    drop_last: bool,
    ranks: tuple[int, int],
    weights: Weights | Mapping[str, float] | None,
    sampler: Iterable[Item] | None,
    epoch_rows: int | None,
    pad: bool,
    canonical_nodes: int | None,
) -> Schedule:
    """Return the schedule of a loader's arguments.

    Raises:
        ValueError: they contradict each other.
        OrderError: a number is out of its range.
    """
    check_epoch(epoch_rows, is_sampled=sampler is not None, pad=pad)
    orders = Orders(order, dataset, weights=weights, epoch_rows=epoch_rows, canonical_nodes=canonical_nodes)
    options: dict[str, Any] = {"seed": seed, "drop_last": drop_last, "ranks": ranks, "pad": pad}
    if sampler is not None:
        return SampledSchedule(orders, batch_size, sampler, **options)
    return Schedule(orders, batch_size, **options)


def _rows_id(orders: Orders) -> int:
    """Return a fingerprint that differs if the same positions would be other rows."""
    dataset = orders.dataset
    known = int(dataset.manifest.digest.removeprefix("sha256:")[:12], 16)
    rows: list[npt.NDArray[Any]] = [] if dataset.has_all_rows else [dataset.store_rows(np.arange(len(dataset)))]
    for array in (*rows, *orders.decides()):
        known ^= zlib.crc32(array.tobytes())
    return known
