"""Plans the epochs of one loader, and keeps the next epoch and the progress of the newest pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from reader.format.shown import brief
from reader.planning.orders import Orders
from reader.planning.plan import EpochPlan, SampledPlan
from reader.planning.ranks import Ranks, ranks_now
from reader.transforms.random import integer

_MOST_SEED = 2**31
# A state names its order by position in this list: append only.
_ORDERS = ("sequential", "full", "block", "weighted", "sampler")


@dataclass
class Progress:
    """The progress of the newest iterator; the loader's state even after that iterator is collected.

    is_over: no rank has a batch after the position.
    """

    plan: EpochPlan
    position: int
    finished: bool = False
    is_over: bool = False


class Epochs:
    """Plans the epochs of one loader, and begins them one after the other.

    next: epoch and position at which the next `iter` begins.
    progress: progress of the newest iterator, which updates it.
    plan: plan of the newest epoch that has started; before the first one, that of the next epoch.

    Args:
        orders: orders of all epochs.
        given: the program's ranks; None: they are read when an epoch begins.
        seed: None: drawn from torch's global generator, as in DataLoader; 0 with several ranks, since their seeds must agree.

    Raises:
        ValueError: there is no such rank, or no rows are left for it.
    """

    def __init__(self, orders: Orders, batch_size: int, *, given: Ranks | None, seed: int | None) -> None:
        self.orders, self._batch_size, self._given = orders, batch_size, given
        # the given seed, else that of a loaded state
        self._is_given, self._seed = seed is not None, seed
        self._drawn = 0 if self._is_given else int(torch.randint(_MOST_SEED, (), device="cpu"))
        self.next = (0, 0)
        self.plan = self._plan_at(*self.next)
        self.progress = Progress(self.plan, 0, finished=True)

    @property
    def seed(self) -> int:
        """The seed that determines the orders, with the epoch."""
        if self._seed is not None:
            return self._seed
        return 0 if ranks_now(self._given, must_know=False).world_size > 1 else self._drawn

    def _plan_at(self, epoch: int, position: int = 0, *, must_know: bool = False) -> EpochPlan:
        """Plan an epoch, or its rest after a position, for the ranks known now; begins nothing."""
        ranks = ranks_now(self._given, must_know=must_know)
        cut = self.orders.cut(self._batch_size, ranks.rank, ranks.world_size)
        kind = EpochPlan if self.orders.sampler is None else SampledPlan
        return kind(self.orders, cut, self.seed, epoch, position)

    def steps(self) -> int:
        """Return the number of steps in the current epoch, or in the next one.

        Raises:
            TypeError: the sampler has no length.
        """
        return (self._plan_at(*self.next) if self.progress.finished else self.progress.plan).count_steps()

    def step(self, epoch: int, step: int) -> EpochPlan:
        """Plan an epoch from one of its steps on.

        Raises:
            IndexError: the epoch has no such step.
            ValueError: rows come from a sampler.
        """
        if self.orders.sampler is not None:
            raise ValueError("rows come from a sampler, which alone knows them.")
        plan = self._plan_at(epoch)
        if not 0 <= step < plan.count_steps():
            raise IndexError(f"step is {step}, expected 0 to {plan.count_steps() - 1}.")
        return replace(plan, position=plan.cut.step(0).after * step)

    def begin(self) -> EpochPlan:
        """Begin a pass at `next`, or at the epoch set on the sampler; the pass after it is the next epoch."""
        if self.orders.sampler is not None and (moved := self.orders.sampler.moved_to()) is not None:
            self.next = (moved, 0)
        plan = self._plan_at(*self.next, must_know=True)
        progress = Progress(plan, plan.position, is_over=plan.is_over(plan.position))
        self.plan, self.next, self.progress = plan, (plan.number + 1, 0), progress
        if self.orders.sampler is not None:
            self.orders.sampler.set_epoch(plan.number)
        return plan

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass begin this epoch; if a state in the middle of this epoch was loaded, resume there.

        Raises:
            ValueError: epoch is not 0 or more.
        """
        if (epoch := integer("epoch", epoch)) < 0:
            raise ValueError(f"epoch is {epoch}, expected 0 or more.")
        # a state loaded in the middle of this epoch stays: loops call set_epoch at the start of each epoch
        self._continue(epoch, self.next[1] if epoch == self.next[0] else 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the loop's state after the caller's last batch: a few integers."""
        epoch, position = self.next
        if not self.progress.finished:
            epoch, position = self.progress.plan.number, self.progress.position
            if self.progress.is_over:
                epoch, position = epoch + 1, 0
        return {"epoch": epoch, "position": position} | self._identity()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume from a state, even from another batch_size or world size.

        Raises:
            ValueError: the state is from another store, subset, order or given seed.
        """
        own = self._identity()
        names = ("epoch", "position", *own)
        if not isinstance(state, Mapping) or any(name not in state for name in names):
            raise ValueError(f"the state is {brief(state)}, expected what state_dict() gave: {', '.join(names)}.")
        if not self._is_given:
            own["seed"] = state["seed"]
        for name, value in own.items():
            if state[name] != value:
                raise ValueError(f"the state is of another {name}: it says {state[name]}, this loader has {value}.")
        epoch, position, count = int(state["epoch"]), int(state["position"]), len(self.orders.dataset)
        if epoch < 0 or (not 0 <= position <= count and self.orders.sampler is None):
            raise ValueError(f"the state is at epoch {epoch}, position {position} of {count} rows.")
        self._seed = int(state["seed"])
        self._continue(epoch, position)

    def _continue(self, epoch: int, position: int) -> None:
        self.next, self.progress.finished = (epoch, position), True
        if self.orders.sampler is not None:
            self.orders.sampler.set_epoch(epoch)

    def _identity(self) -> dict[str, Any]:
        """Return the values that identify a state's loop."""
        orders = self.orders
        return {
            "seed": self.seed,
            "order": _ORDERS.index(orders.name),
            "rows": len(orders.dataset),
            "store": orders.fingerprint,
        }
