"""Commands with options at random: a few of the many of tests/fuzz/fuzz_cli.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import fuzz_cli

ROOT = Path(__file__).resolve().parents[2]


def test_random_options_end_in_a_result_or_a_sentence() -> None:
    command = [sys.executable, "-m", "tests.fuzz.fuzz_cli", "--seconds", "600", "--seed", "4", "--most", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["commands"], result["failed"]) == (20, 0)
    assert result["exit_0"] > 2
    assert result["exit_2"] > 2


def test_the_exit_codes_are_those_of_the_reference() -> None:
    assert fuzz_cli.documented_codes() == {0, 1, 2, 3, 28}


@pytest.mark.parametrize(
    ("statement", "is_noted"),
    [
        ("open('in', 'w')", False),
        ("open('/dev/null', 'w')", False),
        ("open(__import__('os').path.expanduser('~/../beside'), 'w')", True),
        ("__import__('os').mkdir('../beside')", True),
    ],
)
def test_what_is_written_outside_a_command_s_folder_is_noted(tmp_path: Path, statement: str, is_noted: bool) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (tmp_path / "sitecustomize.py").write_text(fuzz_cli.WATCH)
    environment = {"PIXPACK_FUZZ_OWN": str(own), "PIXPACK_FUZZ_LOG": str(tmp_path / "log"), "HOME": str(own)}
    command = [sys.executable, "-c", statement]
    subprocess.run(command, cwd=own, env=environment | {"PYTHONPATH": str(tmp_path)}, check=True)
    assert ("beside" in (tmp_path / "log").read_text()) == is_noted
