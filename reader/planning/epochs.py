"""Plans the epochs of one loader, and keeps which comes next and where the newest pass is.

Here alone an epoch's ranks, seed and rows a batch are decided, as its `EpochPlan`; `Progress` keeps its size of crops.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from reader.format.shown import brief
from reader.planning.orders import Orders
from reader.planning.plan import EpochPlan, SampledPlan, Seed
from reader.planning.ranks import Ranks, ranks_expected, ranks_now
from reader.transforms.random import integer

_log = logging.getLogger("pixpack")

# A state names its order by position in this list: append only.
_ORDERS = ("sequential", "full", "block", "weighted", "sampler")


@dataclass
class Progress:
    """Says where the newest iterator is; it remains the loader's state after that iterator is collected.

    is_over: no rank has a batch behind the position.
    """

    plan: EpochPlan
    position: int
    finished: bool = False
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

    Raises:
        ValueError, OrderError: as `at`.
    """

    def __init__(self, orders: Orders, batch_size: int, *, given: Ranks | None, seed: int | None) -> None:
        self.orders, self._batch_size = orders, batch_size
        self._given, self.seed = given, Seed.given(seed)
        self.next = (0, 0)
        self.has_started = False
        self.plan = self.at(0, ranks=ranks_expected(given))
        self.progress = Progress(self.plan, 0, finished=True)

    def at(
        self,
        epoch: int,
        position: int = 0,
        *,
        ranks: Ranks | None = None,
        seed: Seed | None = None,
    ) -> EpochPlan:
        """Plan an epoch, or its rest behind a position; begins nothing.

        ranks, seed: None: those that are known by now.

        Raises:
            ValueError: rows a batch follow from the size, and there is none for the epoch; or accelerate cannot split its
                batches evenly.
            OrderError: there is no such rank, or nothing is left to it.
        """
        if ranks is None:
            ranks = self.plan.ranks if self.has_started else ranks_expected(self._given)
        cut = self.orders.cut(self._batch_size, ranks.rank, ranks.world_size)
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
        return plan.steps_left(0)

    def upcoming(self) -> EpochPlan:
        """Plan the next pass: ask which rank this is, and choose the seed if none was given.

        Raises:
            ValueError, OrderError: as `at`; or nobody knows the rank, or canonical nodes do not share a step evenly.
        """
        ranks = ranks_now(self._given)
        plan = self.at(*self.next, ranks=ranks, seed=self.seed.chosen(ranks.world_size))
        self.plan = plan
        self.seed, self.has_started = plan.seed, True
        return plan

    def begin(self, plan: EpochPlan) -> Progress:
        """Begin a pass; the one after it is the next epoch's.

        Raises:
            OrderError: canonical nodes do not share a step evenly.
            ValueError: there is no size for the epoch.
        """
        progress = Progress(plan, plan.position, is_over=plan.is_over(plan.position))
        # without a call between them: Ctrl-C, which may come behind one, would leave an epoch out
        self.plan, self.next, self.progress = plan, (plan.number + 1, 0), progress
        if self.orders.sampler is not None:
            self.orders.sampler.set_epoch(plan.number)
        return self.progress

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass begin this epoch; if a state of the middle of this very epoch was loaded, resume there.

        Raises:
            ValueError: epoch is not 0 or more.
        """
        if (epoch := integer("epoch", epoch)) < 0:
            raise ValueError(f"epoch is {epoch}, expected 0 or more.")
        # a state that was loaded in the middle of this epoch stays: loops call set_epoch at the beginning of each
        if epoch != self.next[0]:
            self.next = (epoch, 0)
        self.progress.finished = True
        if self.orders.sampler is not None:
            self.orders.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loop is, as a few integers: after the batch that the caller got last.

        The seed is None before it is chosen.
        """
        epoch, position = self.next
        if not self.progress.finished:
            epoch, position = self.progress.plan.number, self.progress.position
            if self.progress.is_over:
                epoch, position = epoch + 1, 0
        return {"epoch": epoch, "position": position} | self._identity()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume from a state, also one taken with another batch_size or world size.

        Raises:
            ValueError: as `resumed`.
        """
        epoch, position, self.seed = self.resumed(state)
        self.next = (epoch, position)
        self.progress.finished = True
        if self.orders.sampler is not None:
            self.orders.sampler.set_epoch(epoch)

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

    def _identity(self) -> dict[str, Any]:
        """Return what says of which loop a state is."""
        orders = self.orders
        return {
            "seed": self.seed.value,
            "order": _ORDERS.index(orders.name),
            "rows": len(orders.dataset),
            "store": orders.fingerprint,
        }


def _is_number(value: object, name: str) -> bool:
    return type(value) is int or (name == "seed" and value is None)
