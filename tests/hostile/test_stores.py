"""Stores of strangers: digests are right, one thing is wrong; readers and commands say so in one sentence, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reader import MemmapDataset
from reader.format.errors import StoreError
from tests.hostile._faults import FAULTS, make_faulty
from tests.hostile._mutants import make_mutant, make_valid
from tests.hostile._stores import KINDS
from tests.hostile._trials import CHECKS, QUICK, run_trials

# what every store goes through, and how many mutants do
MUTANTS = {CHECKS: 40, QUICK: 200}
SEED = 21


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid store of each kind."""
    return make_valid(tmp_path_factory.mktemp("valid"))


@pytest.fixture(scope="module", params=[CHECKS, pytest.param(QUICK, marks=pytest.mark.nightly)])
def scope(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def outcomes(valid: Path, scope: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What readers and commands did with each store: valid ones by their kind, hostile ones by their fault, mutants by number.

    All in one process, as starting one takes as long as 100 trials.
    """
    root = tmp_path_factory.mktemp("hostile")
    names = {str(valid / kind): kind for kind in KINDS}
    names |= {
        str(make_mutant(valid, root / f"m{number}", SEED, number)): f"m{number}" for number in range(MUTANTS[scope])
    }
    names |= {str(make_faulty(valid, root / str(number), name)): name for number, name in enumerate(FAULTS)}
    return {names[found["store"]]: found for found in run_trials([*map(Path, names)], root / "work", scope)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_stores_that_the_hostile_ones_begin_with_are_accepted(
    kind: str, outcomes: dict[str, dict[str, Any]]
) -> None:
    found = outcomes[kind]
    assert (found["failures"], found["opens"], found["verifies"]) == ([], True, True)


@pytest.mark.parametrize("name", FAULTS)
def test_a_hostile_store_is_refused_in_one_sentence(name: str, outcomes: dict[str, dict[str, Any]]) -> None:
    found, says = outcomes[name], FAULTS[name].says
    expected = {"opening": (False, False), "harmless": (True, True)}.get(says, (True, False))
    assert (found["failures"], found["opens"], found["verifies"]) == ([], *expected)


def test_mutants_end_in_a_result_or_a_sentence(outcomes: dict[str, dict[str, Any]], scope: str) -> None:
    found = {name: outcomes[name] for name in (f"m{number}" for number in range(MUTANTS[scope]))}
    assert {name: one["failures"] for name, one in found.items() if one["failures"]} == {}
    # mutants that are all refused at once would test little
    assert sum(one["opens"] for one in found.values()) > MUTANTS[scope] / 4


@pytest.mark.parametrize(
    "name",
    [
        "a target of 3 classes is 3",
        "a multi-hot target is 7",
        "further target outside its classes",
        "content is outside the row",
        "a count of boxes is negative",
        "a shape exceeds its block",
        "an offset is 2^62",
        "a mask is elsewhere",
    ],
)
def test_all_of_a_store_is_checked_before_it_is_handed_out(name: str, valid: Path, tmp_path: Path) -> None:
    dataset = MemmapDataset(make_faulty(valid, tmp_path / "out", name))
    with pytest.raises(StoreError, match="row [0-9]+"):
        _ = dataset.store
