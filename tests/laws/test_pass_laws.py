"""Loaders give each row in their order, from any place, on any rank, from any step on.

The cases cover all pairs of: kind of store, order, residency, last step, world size, prefetch, part of the store, form of the
batches, world size of the resumed epoch. OPTIONS lists them, and REFUSED the pairs that pixpack refuses. The default run has
each kind, and every pair of `is_daily`; the other cases are nightly.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import Tune
from kinds import KINDS, ROWS, refusal
from rows import Files, FilesOf, rows_in, small_sizes
from torch.utils.data import BatchSampler, DistributedSampler

from reader import MemmapDataset, MemmapLoader

BATCH, SEED = 3, 5
SOME = [11, 2, 3, 4, 0, 12, 7, 8, 10, 5]


class Case(NamedTuple):
    """One loader of each rank. resumed: the world size that resumes its epochs."""

    kind: str
    order: str
    residency: str
    last: str
    world: int
    prefetch: int
    part: str
    form: str
    resumed: int


OPTIONS: dict[str, tuple[Any, ...]] = {
    "kind": tuple(KINDS),
    "order": ("sequential", "full", "block", "True", "weights", "sampler", "batches"),
    "residency": ("cache", "disk", "auto", "gpu", "url"),
    "last": ("pad", "drop_last", "pad=False"),
    "world": (1, 2, 3),
    "prefetch": (0, 2),
    "part": ("all", "subset"),
    "form": ("batch", "tuple"),
    "resumed": (1, 2, 3),
}
_NO_PAD = "pad=False is for orders of the loader: a sampler decides its own epochs"
_NUMBERS = {name: n for n, name in enumerate(OPTIONS)}
Pair = tuple[tuple[str, Any], tuple[str, Any]]
# Two options that pixpack refuses together, and its sentence.
REFUSED: dict[Pair, str] = {
    (("order", "sampler"), ("last", "pad=False")): _NO_PAD,
    (("order", "batches"), ("last", "pad=False")): _NO_PAD,
}


def pair(one: tuple[str, Any], other: tuple[str, Any]) -> Pair:
    """Return two options as a pair, in their order."""
    return (one, other) if _NUMBERS[one[0]] < _NUMBERS[other[0]] else (other, one)


def pairs(case: Case) -> list[Pair]:
    """Return all pairs of options of a case."""
    return [*itertools.combinations(zip(OPTIONS, case, strict=True), 2)]


def all_pairs() -> list[Pair]:
    """Return all possible pairs of options."""
    two = itertools.combinations(OPTIONS, 2)
    return [((a, one), (b, other)) for a, b in two for one in OPTIONS[a] for other in OPTIONS[b]]


def covering() -> list[Case]:
    """Return cases that cover all allowed pairs: each starts with an uncovered pair, and adds most others."""
    left, cases, used = dict.fromkeys(p for p in all_pairs() if p not in REFUSED), list[Case](), Counter[Any]()
    while left:
        chosen = dict(next(iter(left)))
        for name in [name for name in OPTIONS if name not in chosen]:
            new = {
                value: sum(pair((name, value), other) in left for other in chosen.items())
                for value in _allowed(name, chosen)
            }
            chosen[name] = max(new, key=lambda value: (new[value], -used[name, value]))
        cases.append(Case(**chosen))
        used.update(chosen.items())
        for two in pairs(cases[-1]):
            left.pop(two, None)
    return cases


# Kinds whose rows are stored alike: a list's are the same as a folder's.
ALIKE = ("shuffled", "list", "table", "tar", "zip", "splits", "regression")


def is_daily(two: Pair) -> bool:
    """Return whether the default run has this pair: the order of rows and the reads of a kind are independent."""
    kind, order = dict(two).get("kind"), dict(two).get("order")
    return two not in REFUSED and kind not in ALIKE and (kind is None or order is None)


def daily() -> set[Case]:
    """Return cases of `covering` with every kind, and every pair of `is_daily`."""
    every = covering()
    left, chosen = {two for two in all_pairs() if is_daily(two)}, set[Case]()
    while left:
        case = max(every, key=lambda case: len(left.intersection(pairs(case))))
        chosen.add(case)
        left.difference_update(pairs(case))
    kinds = {case.kind for case in chosen}
    return chosen | {next(case for case in every if case.kind == kind) for kind in KINDS if kind not in kinds}


def refused() -> list[tuple[Case, str]]:
    """Return a case for each refused pair, without another refused pair if possible."""
    cases = []
    for two, sentence in REFUSED.items():
        chosen = dict(two)
        for name in [name for name in OPTIONS if name not in chosen]:
            chosen[name] = (_allowed(name, chosen) or OPTIONS[name])[-1]
        cases.append((Case(**chosen), sentence))
    return cases


def _allowed(name: str, chosen: Mapping[str, Any]) -> list[Any]:
    """Return the values of an option that are allowed with the chosen ones."""
    return [v for v in OPTIONS[name] if not any(pair((name, v), other) in REFUSED for other in chosen.items())]


@dataclass(frozen=True)
class Source:
    """The source of a case's loaders, and the content of its files. rows: the row in the files of each row of the dataset."""

    case: Case
    data: MemmapDataset
    local: MemmapDataset
    files: Files
    rows: list[int]

    @classmethod
    def of(cls, case: Case, first: Files, second: Files, cache: Path) -> Source:
        """Open the source of a case."""
        local = data = MemmapDataset(first.path)
        if case.residency == "url":
            pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
            data = MemmapDataset(f"file://{first.path}", cache=cache)
        if case.part == "subset":
            return cls(case, data.subset(SOME), local.subset(SOME), first, SOME)
        return cls(case, data, local, first, [*range(ROWS)])

    def loader(self, rank: int, world: int) -> MemmapLoader:
        """Make the loader of a rank."""
        case, is_last_dropped = self.case, self.case.last == "drop_last"
        options: dict[str, Any] = {"seed": SEED} | self._order(self.data, rank, world, case.order)
        if case.residency != "url":
            options["residency"] = case.residency
        if case.last == "pad=False":
            options["pad"] = False
        return MemmapLoader(
            self.data,
            BATCH,
            drop_last=is_last_dropped,
            prefetch=case.prefetch,
            rank=rank,
            world_size=world,
            as_tuple=case.form == "tuple",
            **options,
        )

    def _order(self, data: MemmapDataset, rank: int, world: int, order: str) -> dict[str, Any]:
        if order in ("full", "block", "True"):
            return {"shuffle": order == "True" or order}
        if order == "weights":
            return {"weights": np.arange(len(data)) % 4}
        is_last_dropped = self.case.last == "drop_last"
        if order in ("sampler", "batches"):
            sampler = DistributedSampler(data, world, rank, seed=SEED, drop_last=is_last_dropped)
            return {"sampler": sampler if order == "sampler" else BatchSampler(sampler, BATCH, is_last_dropped)}
        return {}

    @property
    def is_sampled(self) -> bool:
        """Return whether torch's sampler decides the rows of a rank."""
        return self.case.order in ("sampler", "batches")

    def order(self, epochs: int) -> list[list[int]]:
        """Return the rows of the first epochs for one rank, read one by one from the mapped files."""
        order = self.case.order
        if order == "True":
            order = "block" if self.case.residency == "url" else "full"
        options = {"seed": SEED, "residency": "cache", "prefetch": 0, "as_tuple": False} | self._order(
            self.local, 0, 1, order
        )
        with MemmapLoader(self.local, 1, rank=0, world_size=1, **options) as loader:
            return [[row for batch in loader for row in batch.rows.tolist()] for _ in range(epochs)]

    def steps(self, order: list[int], epoch: int, world: int, start: int = 0) -> list[list[list[int]]]:
        """Return for each rank the rows of its steps from a position of an epoch's order on, by the documentation."""
        if self.is_sampled:
            return [self._sampled(epoch, rank, world)[start:] for rank in range(world)]
        last, ranks = self.case.last, [list[list[int]]() for _ in range(world)]
        for begin in range(start, len(order), world * BATCH):
            rows = order[begin : begin + world * BATCH]
            share, more = divmod(len(rows), world)
            if last == "drop_last" and len(rows) < world * BATCH:
                break
            if last == "pad" and more:
                rows, share, more = rows + (order * world)[: world - more], share + 1, 0
            for rank, steps in enumerate(ranks):
                at = rank * share + min(rank, more)
                steps += [rows[at : at + share + (rank < more)]] if share or rank < more else []
        return ranks

    def _sampled(self, epoch: int, rank: int, world: int) -> list[list[int]]:
        is_last_dropped = self.case.last == "drop_last"
        sampler = DistributedSampler(self.rows, world, rank, seed=SEED, drop_last=is_last_dropped)
        sampler.set_epoch(epoch)
        rows = [self.rows[position] for position in sampler]
        steps = [rows[n : n + BATCH] for n in range(0, len(rows), BATCH)]
        return [step for step in steps if len(step) == BATCH or not is_last_dropped]


# A disk is read directly only into batches of large rows, in every order.
FROM_DISK = [Case("large", order, "disk", "pad", 1, 2, "all", "batch", 2) for order in OPTIONS["order"]]
DAILY = daily() | {*FROM_DISK}
CASES = [
    pytest.param(case, None, id="-".join(map(str, case)), marks=[] if case in DAILY else [pytest.mark.nightly])
    for case in [*covering(), *FROM_DISK]
]
ALL_CASES = CASES + [pytest.param(case, sentence, id="-".join(map(str, case))) for case, sentence in refused()]
SourceOf = Callable[[Case], Source]


@pytest.fixture
def source_of(
    files_of: FilesOf, second_of: FilesOf, tmp_path: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> SourceOf:
    """Return a function that opens a case's source, with sizes so small that an epoch has several blocks, windows and reads."""

    def opened(case: Case) -> Source:
        first = files_of(case.kind)
        tune(**small_sizes(MemmapDataset(first.path)))
        # the CPU acts as a device with room for all
        monkeypatch.setattr("reader.loading.gathering.ROW_DEVICES", ("cpu", "cuda"))
        return Source.of(case, first, second_of(case.kind), tmp_path / "cache")

    return opened


def test_the_cases_have_every_two_options_that_go_together() -> None:
    assert {*all_pairs()} == {pair for case in covering() for pair in pairs(case)} | {*REFUSED}
    assert not {pair for case in covering() for pair in pairs(case)} & {*REFUSED}


def test_the_default_run_has_each_kind_and_every_two_options_but_of_kinds_that_are_stored_alike() -> None:
    cases = daily()
    assert {case.kind for case in cases} == {*KINDS}
    assert {two for two in all_pairs() if is_daily(two)} <= {two for case in cases for two in pairs(case)}
    assert cases <= {*covering()}


@pytest.mark.parametrize(("case", "sentence"), ALL_CASES)
def test_ranks_share_each_epoch_and_kept_batches_stay(case: Case, sentence: str | None, source_of: SourceOf) -> None:
    with refusal(sentence, ValueError):
        source = source_of(case)
        loaders = [source.loader(rank, case.world) for rank in range(case.world)]
    orders, kept = source.order(2), []
    if case.order in ("sequential", "full", "block", "True"):
        assert all(sorted(order) == sorted(source.rows) for order in orders)
        assert (orders[0] == orders[1]) == (orders[0] == source.rows) == (case.order == "sequential")
    for epoch, order in enumerate(orders):
        expected = source.steps(order, epoch, case.world)
        assert [len(loader) for loader in loaders] == [len(steps) for steps in expected]
        for step in itertools.zip_longest(*loaders):
            for steps, batch in zip(expected, step, strict=True):
                if batch is not None:
                    kept.append((batch, steps.pop(0)))
        assert not any(expected)
    for batch, rows in kept:
        assert case.form == "tuple" or batch.rows.tolist() == rows
        assert rows_in(batch) == [source.files.expected(n, as_tuple=case.form == "tuple") for n in rows]
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize(("case", "sentence"), CASES)
def test_an_epoch_resumes_at_every_step_on_any_world_size(case: Case, sentence: None, source_of: SourceOf) -> None:
    source, is_tuple = source_of(case), case.form == "tuple"
    orders = source.order(2)
    world = case.world if source.is_sampled else case.resumed
    running = [source.loader(rank, case.world) for rank in range(case.world)]
    count = max(map(len, running))
    for done, _ in enumerate(itertools.zip_longest(*running), start=1):
        state = running[0].state_dict()
        assert all(type(value) is int for value in state.values())
        if case.last != "pad=False" and not source.is_sampled:
            assert all(loader.state_dict() == state for loader in running)
        resumed = [source.loader(rank, world) for rank in range(world)]
        for loader in resumed:
            loader.load_state_dict(state)
        position = done if source.is_sampled else min(done * BATCH * case.world, len(orders[0]))
        rest = [source.steps(orders[0], 0, world, position)] if done < count else []
        for expected in [*rest, source.steps(orders[1], 1, world)]:
            for loader, steps in zip(resumed, expected, strict=True):
                found = [rows_in(batch) for batch in loader]
                assert found == [[source.files.expected(n, as_tuple=is_tuple) for n in rows] for rows in steps]
        for loader in resumed:
            loader.close()
    for loader in running:
        loader.close()
