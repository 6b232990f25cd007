"""Plans the epochs of one loader, and keeps which comes next and where the newest pass is.

Here alone an epoch's ranks, seed and rows a batch are decided, as its `EpochPlan`; `Progress` keeps its size of crops.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from reader.format.shown import brief
from reader.planning.orders import Orders
from reader.planning.plan import EpochPlan, SampledPlan, Seed
from reader.planning.ranks import Ranks, is_distributed, ranks_expected, ranks_now, splits_batches
from reader.planning.sizes import Sizes
from reader.transforms.random import integer

_log = logging.getLogger("pixpack")

# A state names its order by position in this list: append only.
_ORDERS = ("sequential", "full", "block", "weighted", "sampler")


@dataclass
class Progress:
    """Says where the newest iterator is; it remains the loader's state after that iterator is collected.

    sides: (height, width) of crops, where the loader was given a size.
    is_taken: a batch was taken from it. moved_to: the epoch that it is of instead, set before that. is_over: no rank has a batch
    behind the position.
    """

    plan: EpochPlan
    position: int
    sides: tuple[int, int] | None = None
    finished: bool = False
    is_taken: bool = False
    moved_to: int | None = None
    is_over: bool = False


class Resumed(NamedTuple):
    """Says where a loop continues after a state, and with which seed."""

    epoch: int
    position: int
    seed: Seed


class Epochs:
    """Plans the epochs of one loader, and begins them one after the other.

    next: epoch and position where the next `iter` begins.
    progress: of the newest iterator, which keeps it up to date.
    seed: that determines the orders, with the epoch; it has no value before the first epoch begins.
    plan: of the newest epoch that began; before the first one, of the next epoch, for the ranks that are expected.

    Args:
        orders: of all epochs.
        given: ranks that the program gave.
        seed: None: it is chosen when the first epoch begins.
        sizes: of crops and batches.

    Raises:
        ValueError, OrderError: as `at`.
    """

    def __init__(self, orders: Orders, *, given: Ranks | None, seed: int | None, sizes: Sizes) -> None:
        self.orders, self.sizes = orders, sizes
        self._given, self.seed = given, Seed.given(seed)
        self.next, self._is_placed = (0, 0), False
        self.has_started = False
        # whether batches are shared by ranks, and by how many; an Accelerator may be made after the loader
        self._is_split, self._split_by = False, 1
        self.plan = self.at(0, ranks=ranks_expected(given))
        self.progress = Progress(self.plan, 0, finished=True)
        # the plan whose length the program knows, by `len` or by beginning it
        self._reported: EpochPlan | None = None

    @property
    def knows_epoch(self) -> bool:
        """Whether an epoch has begun, or the program or a state has said which comes next."""
        return self._is_placed or self._outside_epoch() is not None

    def at(
        self,
        epoch: int,
        position: int = 0,
        *,
        ranks: Ranks | None = None,
        seed: Seed | None = None,
        is_split: bool | None = None,
    ) -> EpochPlan:
        """Plan an epoch, or its rest behind a position; begins nothing.

        ranks, seed: None: those that are known by now. is_split: whether ranks share a batch; None: `shares_batches` says so.

        Raises:
            ValueError: rows a batch follow from the size, and there is none for the epoch; or accelerate cannot split its
                batches evenly.
            OrderError: there is no such rank, or nothing is left to it.
        """
        if ranks is None:
            ranks = self.plan.ranks if self.has_started else ranks_expected(self._given)
        is_split = self.shares_batches(ranks.world_size) if is_split is None else is_split
        batch_size = self.sizes.batch_size(epoch, position)
        batch_size = _share_of_rank(batch_size, ranks.world_size) if is_split else batch_size
        cut = self.orders.cut(batch_size, ranks.rank, ranks.world_size)
        kind = EpochPlan if self.orders.sampler is None else SampledPlan
        return kind(self.orders, cut, self.seed if seed is None else seed, epoch, position)

    def steps(self) -> int:
        """Return the steps of the epoch that runs, or of the next one, and keep in mind that the program knows it.

        Raises:
            TypeError: the sampler has no length.
        """
        # an epoch that begins says which rank this is; until then processes may still be set up
        plan = self.at(*self.next) if self.progress.finished else self.progress.plan
        if not self.has_started:
            self.plan = plan
        steps, self._reported = plan.steps_left(0), plan
        return steps

    def upcoming(self) -> EpochPlan:
        """Plan the next pass: ask which rank this is, and choose the seed if none was given.

        Raises:
            ValueError, OrderError: as `at`; or nobody knows the rank, or canonical nodes do not share a step evenly.
        """
        before, ranks = self.plan.ranks, ranks_now(self._given)
        outside = self._outside_epoch()
        if outside is not None and outside != self.next[0]:
            self.next = (outside, 0)
        plan = self.at(*self.next, ranks=ranks, seed=self.seed.chosen(ranks.world_size))
        self.orders.check_step(plan.cut)
        if ranks != before or not self.has_started:
            _log_ranks(plan, ranks, before=before, is_first=not self.has_started, reported=self._reported)
        self.plan = self._reported = plan
        self.seed, self.has_started = plan.seed, True
        return plan

    def begin(self, plan: EpochPlan) -> Progress:
        """Begin a pass; the one after it is the next epoch's.

        Raises:
            OrderError: canonical nodes do not share a step evenly.
            ValueError: there is no size for the epoch.
        """
        self.orders.check_step(plan.cut)
        sides = self.sizes.begin(plan.number, plan.position)
        progress = Progress(plan, plan.position, sides, is_over=plan.is_over(plan.position))
        # without a call between them: Ctrl-C, which may come behind one, would leave an epoch out
        self.plan, self.next, self._is_placed, self.progress = plan, (plan.number + 1, 0), True, progress
        if self.orders.sampler is not None:
            self.orders.sampler.begin_epoch(plan.number)
        return self.progress

    def set_epoch(self, epoch: int, *, ends_pass: bool = True) -> None:
        """Make the next pass begin this epoch; if a state of the middle of this very epoch was loaded, resume there.

        ends_pass: the pass that runs is over. Else one that nothing was taken from becomes of this epoch, and one of this epoch
            continues: frameworks that set the epoch on a sampler, as Lightning does, may do so after they began that epoch.

        Raises:
            ValueError: epoch is not 0 or more.
        """
        if (epoch := integer("epoch", epoch)) < 0:
            raise ValueError(f"epoch is {epoch}, expected 0 or more.")
        self._is_placed = True
        # a state that was loaded in the middle of this epoch stays: loops call set_epoch at the beginning of each
        if epoch != self.next[0]:
            self.next = (epoch, 0)
        progress = self.progress
        if not ends_pass and not progress.finished and not progress.is_taken:
            progress.moved_to = None if epoch == progress.plan.number else epoch
        elif ends_pass or epoch != progress.plan.number:
            progress.finished = True
        if self.orders.sampler is not None:
            self.orders.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loop is, as a few integers: after the batch that the caller got last.

        The seed is None before it is chosen.
        """
        epoch, position = self.next
        if not self.progress.finished and self.progress.moved_to is None:
            epoch, position = self.progress.plan.number, self.progress.position
            if self.progress.is_over:
                epoch, position = epoch + 1, 0
        return {"epoch": epoch, "position": position} | self._identity() | self.sizes.state(epoch, position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume from a state, also one taken with another batch_size or world size.

        Raises:
            ValueError: as `resumed`.
        """
        epoch, position, self.seed = self.resumed(state)
        self.next, self._is_placed = (epoch, position), True
        self.progress.finished = True
        if self.orders.sampler is not None:
            self.orders.sampler.set_epoch(epoch)
        self.sizes.load(state)

    def resumed(self, state: Mapping[str, Any]) -> Resumed:
        """Return where a state says that the loop continues; changes nothing.

        Raises:
            ValueError: the state is of another store, subset, order or explicit seed.
        """
        own = self._identity()
        names = ("epoch", "position", *own)
        if not isinstance(state, dict) or not all(_is_number(state.get(name, ""), name) for name in names):
            raise ValueError(
                f"the state is {brief(state)}, expected what state_dict() gave: {', '.join(names)}, integers. Of a checkpoint,"
                " give the entry that the state was saved under."
            )
        if self.seed.takes(state["seed"]):
            own["seed"] = state["seed"]
        for name, what in (
            ("rows", "number of rows"),
            ("store", "store, subset or weights, epoch_rows or canonical_nodes"),
            ("seed", "seed"),
            ("order", "order"),
        ):
            if state[name] != own[name]:
                raise ValueError(f"the state is of another {what}: it says {state[name]}, this loader has {own[name]}.")
        epoch, position, count = int(state["epoch"]), int(state["position"]), self.orders.epoch_rows
        if epoch < 0 or (not 0 <= position <= count and self.orders.sampler is None):
            raise ValueError(f"the state is at epoch {epoch}, position {position} of {count} rows.")
        return Resumed(epoch, position, self.seed.resumed(state["seed"]))

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a MemmapLoader's sampler is of its process, and cannot be pickled or copied. Send the loader's dataset, and make a"
            " loader there."
        )

    def _identity(self) -> dict[str, Any]:
        """Return what says of which loop a state is."""
        orders = self.orders
        return {
            "seed": self.seed.value,
            "order": _ORDERS.index(orders.name),
            "rows": len(orders.dataset),
            "store": orders.fingerprint,
        }

    def _outside_epoch(self) -> int | None:
        """Return the epoch that another caller has set on the sampler since; None if nobody has."""
        return None if self.orders.sampler is None else self.orders.sampler.outside_epoch()

    def shares_batches(self, world_size: int) -> bool:
        """Say whether so many ranks share each batch, as accelerate's split_batches=True has it."""
        if not self.has_started or self._split_by != world_size:
            self._is_split, self._split_by = world_size > 1 and splits_batches(), world_size
        return self._is_split


def _log_ranks(plan: EpochPlan, ranks: Ranks, *, before: Ranks, is_first: bool, reported: EpochPlan | None) -> None:
    """Log what the ranks are now, where an epoch begins.

    before: as they were. reported: the plan whose length the program asked for last; None if it did not.
    """
    source, path, sampler = ranks.source or "nobody says otherwise", plan.dataset.path, plan.orders.sampler
    if reported is not None and reported.ranks.world_size != ranks.world_size and sampler is None:
        _log.warning(
            "%s: an epoch was said to be %s steps, for world size %s; now it is %s, for world size %d (%s). What was"
            " computed from the former, such as a schedule of learning rates, does not fit.",
            *(path, reported.length, reported.ranks.world_size, plan.length, ranks.world_size, source),
        )
    elif before != ranks:
        _log.info("%s: %s (%s)", path, ranks, source)
    if is_first and ranks.is_guessed:
        _log.warning(
            "%s: reads for %s, as RANK and WORLD_SIZE say, though torch.distributed is not initialized. Give rank= and"
            " world_size= if that is not meant.",
            *(path, ranks),
        )
    is_new = ranks.world_size > 1 and (is_first or before.world_size == 1)
    if is_new and sampler is not None and not is_distributed(sampler.sampler):
        _log.warning(
            "%s: this is %s, and the sampler, a %s, is not distributed: each rank reads every row that it gives. Give"
            " sampler=DistributedSampler(dataset), or shuffle= or weights= instead, which share rows among ranks; or rank=0"
            " and world_size=1 if each rank's sampler has rows of its own.",
            *(path, ranks, type(sampler.sampler).__name__),
        )


def _share_of_rank(rows: int, world_size: int) -> int:
    """Return the rows of a batch that a rank takes; raises ValueError where accelerate cannot split a batch evenly."""
    if rows % world_size:
        raise ValueError(
            f"batch_size is {rows}, and accelerate's split_batches=True shares it among {world_size} processes: give a"
            " multiple of their number."
        )
    return rows // world_size


def _is_number(value: object, name: str) -> bool:
    return type(value) is int or (name == "seed" and value is None)
