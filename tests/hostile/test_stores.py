"""Stores of strangers: digests are right, one thing is wrong; readers and commands say so in one sentence, and no more."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from kinds import MakeStore

from reader import MemmapDataset
from reader.format.errors import StoreError
from tests.hostile.faults import FAULTS, NOBODY, OPENING, VERIFY, make_faulty
from tests.hostile.mutants import KINDS, make_mutant
from tests.hostile.trials import Trial, run_trials

Outcomes = dict[str | int, Trial]


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.nightly)], ids=["verify", "commands"]
)
def outcomes(request: pytest.FixtureRequest, store_of: MakeStore, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What readers and commands did with each store: valid ones by kind, hostile ones by number, in one process."""
    root = tmp_path_factory.mktemp("hostile")
    names: dict[Path, str | int] = {store_of(kind): kind for kind in KINDS}
    names |= {make_faulty(store_of(one.kind), root / str(n), one): n for n, one in enumerate(FAULTS)}
    found = run_trials([*names], root / "work", has_commands=request.param)
    return {names[store]: trial for store, trial in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_stores_that_the_hostile_ones_begin_with_are_accepted(kind: str, outcomes: Outcomes) -> None:
    found = outcomes[kind]
    assert (found.failures, found.opening, found.verify) == ([], "", "")


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[fault.name for fault in FAULTS])
def test_a_hostile_store_is_refused_in_one_sentence(number: int, outcomes: Outcomes) -> None:
    fault, found = FAULTS[number], outcomes[number]
    assert found.failures == []
    assert (found.opening == "") == (fault.who != OPENING)
    assert (found.verify == "") == (fault.who == NOBODY)
    assert fault.says in (found.opening or found.verify)


@pytest.mark.parametrize(
    ("count", "has_commands"),
    [
        (40, False),
        pytest.param(2000, False, marks=pytest.mark.nightly),
        pytest.param(300, True, marks=pytest.mark.nightly),
    ],
)
def test_mutants_end_in_a_result_or_a_sentence(
    count: int, has_commands: bool, store_of: MakeStore, tmp_path: Path
) -> None:
    draw = Random(count)
    stores = [make_mutant(store_of(draw.choice(KINDS)), tmp_path / str(n), draw) for n in range(count)]
    found = run_trials(stores, tmp_path / "work", has_commands=has_commands)
    assert {store.name: trial.failures for store, trial in found.items() if trial.failures} == {}
    # mutants that are all refused at once would test little
    assert sum(trial.opening == "" for trial in found.values()) > count / 4


def test_all_of_a_store_is_checked_before_it_is_handed_out(store_of: MakeStore, tmp_path: Path) -> None:
    numbers = [
        one for one in FAULTS if ".memmap/" in one.field and one.who == VERIFY and not one.kind.startswith("jpeg")
    ]
    # a target of another class is right by itself
    for number, fault in enumerate(one for one in numbers if one.value != 0):
        dataset = MemmapDataset(make_faulty(store_of(fault.kind), tmp_path / str(number), fault))
        with pytest.raises(StoreError, match="row [0-9]+"):
            _ = dataset.store
