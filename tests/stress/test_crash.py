"""Processes killed: at random moments and at every call that changes a file. In full: crash_test.py and fault_test.py."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from conftest import stress

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="kills by process group and LD_PRELOAD"),
]


def test_packs_killed_at_random_moments_resume_to_the_same_bytes() -> None:
    result = stress("crash.crash_test", "--images", "250", "--kills", "4")
    assert result["kills"] == 4
    assert result["redone"] == 0
    assert result["lost_blocks"] <= 8


@pytest.mark.skipif(shutil.which("cc") is None, reason="the shim needs a C compiler")
def test_a_death_at_any_call_that_changes_a_file_is_survived() -> None:
    result = stress("crash.fault_test", "--faults", "kill", "--images", "16", "--kinds", "fresh", "--every", "6")
    # two blocks: folders, lock, journal, allocation, rows, syncs, sealed files, renames, removal
    assert result["fresh"]["kill"]["spoiled"] > 5


@pytest.mark.skipif(shutil.which("cc") is None, reason="the shim needs a C compiler")
def test_a_death_of_a_push_or_a_pull_leaves_the_old_store_or_the_new_one() -> None:
    kinds = ("push", "repush", "pull")
    result = stress("crash.fault_test", "--faults", "kill", "--images", "16", "--kinds", *kinds, "--every", "14")
    assert {kind for kind in kinds if result[kind]["kill"]["spoiled"] > 5} == {*kinds}
