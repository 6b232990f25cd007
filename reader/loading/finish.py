"""Calls the transform of a batch, gives it the form that the loop wants, and decides which thread does so.

Gives the thread that does it the modes of torch of the one that began the epoch: autocast, no_grad, inference_mode, the default
device. Knows neither which rows come, nor where they are read from.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from reader.dataset.samples import Transform
from reader.epoch import in_epoch, on_threads_of, stamped
from reader.memory.parts import in_parts
from reader.planning.plan import EpochPlan
from reader.profiling import stage
from reader.rows import rows_named
from reader.store import Batch, ImageBatch, RaggedBatch, plain
from reader.transforms.composition import flat, in_turn

_KINDS = ("cpu", "cuda")


@dataclass(frozen=True)
class Modes:
    """Torch's modes of a thread; autocast: for each kind of device whether it is on, and its dtype."""

    has_grad: bool
    is_inference: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    device: torch.device

    @classmethod
    def here(cls) -> Modes:
        """Return the modes of this thread."""
        autocast = tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS)
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.get_default_device())

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Run what is inside in these modes; a thread that has them is left alone."""
        now = Modes.here()
        if now == self:
            yield
            return
        with contextlib.ExitStack() as stack:
            if now.device != self.device:
                stack.enter_context(self.device)
            if now.is_inference != self.is_inference:
                stack.enter_context(torch.inference_mode(self.is_inference))
            # inference_mode sets the other one too
            stack.enter_context(torch.set_grad_enabled(self.has_grad))
            for kind, (is_on, dtype) in zip(_KINDS, self.autocast, strict=True):
                stack.enter_context(torch.autocast(kind, dtype, enabled=is_on))
            yield


class Unfinished(NamedTuple):
    """Stands for a batch that the caller's thread finishes; start: position of its first row in the epoch. rows: int64[B]."""

    make: Callable[[], object]
    start: int
    rows: torch.Tensor | None = None


class Finish:
    """Runs the transform of an epoch's batches, and gives the caller the form that it wants; may be sent to another process.

    `in_feeder` runs in the thread that gathers batches, `in_caller` in the caller's. On the CPU the first steps of the transform
    run in the feeder, as far as they are of this package: what a program gives may draw from generators that its training uses
    too. Of a batch for a CUDA device only a crop that reads levels runs there, before the batch is sent; the others run on the
    device, on the caller's stream. Both parts run under torch's modes of the thread that began the epoch.

    Args:
        plan: of the epoch.
        transform: with the size that its crops have in the epoch.
        threads: that steps run on, on the CPU.
        on_device: batches are sent to a CUDA device between `in_feeder` and `in_caller`.
    """

    def __init__(
        self,
        plan: EpochPlan,
        transform: Transform | None,
        *,
        as_tuple: bool,
        threads: int,
        on_device: bool = False,
    ) -> None:
        steps = [] if transform is None else flat([transform])
        count = 0 if on_device else len(list(itertools.takewhile(_may_run_in_feeder, steps)))
        self._first, self._rest = steps[:count], steps[count:]
        # whether something is left to do in the caller's thread
        self.is_left = on_device or bool(self._rest)
        self.transform = transform
        self._dataset, self._epoch, self._seed = plan.dataset, plan.number, plan.seed_value
        # somebody may ask a batch what its random numbers depend on, or for its texts
        self._is_seen = transform is not None or not as_tuple
        is_marked = self._is_seen or plan.dataset.opened_store.text_file is not None
        self._is_marked_last = is_marked and (on_device or not self._first)
        self._threads, self._as_tuple = threads, as_tuple
        self._by_name = plan.dataset.names_targets
        self._modes = Modes.here()

    def __call__(self, batch: Batch, start: int) -> object:
        """Do all of it in this thread; start: position of the batch's first row in the order of the epoch."""
        return self.in_caller(self.in_feeder(batch, start), start, batch.rows)

    def in_feeder(self, batch: Batch, start: int) -> Any:
        """Run the steps that run in the feeder; what they return is for `in_caller`, or is sent to a device first."""
        return self._run(self._first, self._marked(batch, start), batch.rows) if self._first else batch

    def in_caller(self, result: object, start: int, rows: torch.Tensor | None) -> object:
        """Run the other steps, and give the result its form.

        Args:
            result: what `in_feeder` has returned, on the device by now if it was sent.
            start: position of the batch's first row in the order of the epoch.
            rows: int64[B], of the store, for an error of a step.
        """
        if self._is_marked_last and isinstance(result, Batch):
            result = self._marked(result, start)
        if self._rest:
            result = self._run(self._rest, result, rows)
        if self._as_tuple and isinstance(result, Batch):
            result = plain(result, by_name=self._by_name)
        return result

    def _marked(self, batch: Batch, start: int) -> Batch:
        """Write on a batch what its texts are read from and what its random numbers depend on, where somebody may ask for it."""
        self._dataset.opened_store.with_texts(batch)
        return stamped(batch, epoch=self._epoch, position=start, seed=self._seed) if self._is_seen else batch

    def _run(self, steps: list[Transform], result: object, rows: torch.Tensor | None) -> object:
        """Call steps of the transform in what they are to run in."""
        named = rows_named(self._dataset.path, rows)
        with (
            named,
            stage("transform"),
            in_epoch(self._epoch),
            on_threads_of(self._threads),
            self._modes.entered(),
        ):
            return self._transformed(steps, result)

    def _transformed(self, steps: list[Transform], result: object) -> object:
        """Call steps; what they do to each row by itself, on the CPU, on several threads."""
        if self._threads == 1 or not isinstance(result, Batch) or result.pixels.device.type != "cpu":
            return _called(functools.partial(in_turn, steps), result)

        def in_modes(chain: list[Transform], part: object) -> object:
            with self._modes.entered():
                return in_turn(chain, part)

        finished: object = result
        # the compiled part takes whole batches; it does not move masks
        is_full_batch = not _has_masks(result)
        for is_in_parts, run in itertools.groupby(steps, functools.partial(_is_in_parts, is_full_batch)):
            chain = list(run)
            call = functools.partial(in_modes, chain)
            # parts are joined to images of one size
            is_one_size = isinstance(finished, ImageBatch) or not getattr(chain[0], "keeps_sizes", False)
            is_cut = is_in_parts and isinstance(finished, Batch) and is_one_size
            finished = _called(functools.partial(in_parts, call, threads=self._threads) if is_cut else call, finished)
        return finished


class Versions:
    """Knows how often each tensor of a batch was changed in place up to now; tensors that do not count it are left out."""

    def __init__(self, result: object) -> None:
        leaves = result.values(True, True) if isinstance(result, Batch) else pytree.tree_leaves(result)
        tensors = [each for each in leaves if isinstance(each, torch.Tensor) and not each.is_inference()]
        self._before = [(tensor, tensor._version) for tensor in tensors]

    def have_changed(self) -> bool:
        """Say whether one was changed since."""
        return any(tensor._version != version for tensor, version in self._before)


def _may_run_in_feeder(transform: object) -> bool:
    """Say whether a transform is of this package, and all that it calls: those draw nothing from generators of the process."""
    return all(map(_is_of_reader, _with_inner(transform)))


def _is_by_row(transform: object) -> bool:
    """Say whether a transform, and all that it calls, is of this package and makes of a row the same in any batch."""
    needs = ("needs_full_batch", "has_own_threads")
    return all(
        _is_of_reader(each) and not any(getattr(each, name, False) for name in needs) for each in _with_inner(transform)
    )


def _with_inner(transform: object) -> Iterator[object]:
    """Yield a transform and, where it is of this package, all that it calls."""
    yield transform
    if _is_of_reader(transform):
        for each in getattr(transform, "transforms", []):
            yield from _with_inner(each)


def _is_in_parts(is_full_batch: bool, transform: object) -> bool:
    """Say whether a transform is called with some rows at a time; is_full_batch: not where the compiled part takes a batch."""
    return _is_by_row(transform) and not (is_full_batch and getattr(transform, "is_compiled", False))


def _has_masks(batch: Batch) -> bool:
    is_beside = isinstance(batch, RaggedBatch) and batch.mask_offsets is not None
    return is_beside or (batch.extras is not None and batch.extras.get("masks", None) is not None)


def _is_of_reader(transform: object) -> bool:
    return type(transform).__module__.startswith(("reader.transforms.", "reader.loading."))


def _called(transform: Transform, batch: object) -> object:
    try:
        return transform(batch)
    except StopIteration as e:
        raise RuntimeError("the transform raised StopIteration, which would end the loop as if all were read.") from e
