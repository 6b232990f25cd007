"""Stores of strangers: digests are right, one thing is wrong; readers and commands say so in one sentence, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts.stress._hostile_faults import FAULTS
from scripts.stress._hostile_mutants import make_mutant, make_valid
from scripts.stress._hostile_stores import KINDS, Draft
from scripts.stress._hostile_trials import run_trials

MUTANTS = 200
SEED = 21


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid store of each kind."""
    return make_valid(tmp_path_factory.mktemp("valid"))


@pytest.fixture(scope="module")
def outcomes(valid: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What readers and commands did with each hostile store, by the name of its fault; and with the valid ones, by their kind."""
    root = tmp_path_factory.mktemp("hostile")
    names = {str(valid / kind): kind for kind in KINDS}
    for number, (name, fault) in enumerate(FAULTS.items()):
        draft = Draft.copy(valid / fault.kind, root / str(number))
        fault.change(draft)
        fault.after(draft.seal())
        names[str(draft.out)] = name
    return {names[found["store"]]: found for found in run_trials([*map(Path, names)], root / "work")}


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


def test_mutants_end_in_a_result_or_a_sentence(valid: Path, tmp_path: Path) -> None:
    stores = [make_mutant(valid, tmp_path / str(number), SEED, number) for number in range(MUTANTS)]
    found = list(run_trials(stores, tmp_path / "work"))
    assert len(found) == MUTANTS
    assert {Path(one["store"]).name: one["failures"] for one in found if one["failures"]} == {}
    # mutants that are all refused at once would test little
    assert sum(one["opens"] for one in found) > MUTANTS / 4
