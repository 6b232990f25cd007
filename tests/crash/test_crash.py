"""Processes killed at random moments, in full: crash_test.py. At calls that change a file: tests/laws/test_crashes.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import stress

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.platform != "linux", reason="kills by process group"),
]


def test_packs_killed_at_random_moments_resume_to_the_same_bytes() -> None:
    result = stress("crash.crash_test", "--images", "250", "--kills", "4")
    assert result["kills"] == 4
    assert result["redone"] == 0
    assert result["lost_blocks"] <= 8
