"""A few presses of Ctrl-C in training loops. A hundred for each way to read: tests/crash/interrupt_test.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.nightly
def test_ctrl_c_costs_no_batch_and_leaves_no_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.interrupt_test", "--presses", "7", "--images", "100"],
        capture_output=True,
        text=True,
        timeout=1200,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["ended"] == 7
    assert min(presses for presses, _ in result["went_on"].values()) >= 7
