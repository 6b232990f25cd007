"""Where all tests should run, a skip for a reason that is not listed is a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from expected_skips import EXPECTED, VARIABLE, is_expected

MODULE = """
import pytest

def test_it_may_be_skipped():
    pytest.skip("no CUDA device")

def test_it_may_not_be_skipped():
    pytest.importorskip("no_such_library")

@pytest.mark.xfail(strict=True)
def test_it_is_known_to_fail():
    assert False
"""
SKIPPED_MODULE = 'import pytest\npytest.skip("a library is missing", allow_module_level=True)\n'


@pytest.mark.parametrize(
    ("strict", "module", "code", "ends"),
    [
        ("1", MODULE, 1, "1 failed, 1 skipped, 1 xfailed"),
        ("0", MODULE, 0, "2 skipped, 1 xfailed"),
        ("1", SKIPPED_MODULE, 2, "1 error"),
        ("0", SKIPPED_MODULE, 5, "1 skipped"),
    ],
)
def test_an_unexpected_skip_is_a_failure_where_all_should_run(
    strict: str, module: str, code: int, ends: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert request.config.pluginmanager.hasplugin("expected_skips")
    (tmp_path / "test_some.py").write_text(module)
    environment = os.environ | {VARIABLE: strict, "PYTHONPATH": str(Path(__file__).parent / "support")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "expected_skips",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout
    assert ends in done.stdout
    if strict == "1":
        assert "unexpected skip: " in done.stdout


def test_every_expected_reason_says_why_and_none_allows_all() -> None:
    assert all(EXPECTED.values())
    assert not is_expected("could not import 'obstore': No module named 'obstore'")
    assert not is_expected("torchvision cannot be imported here: No module named 'torchvision'")
    assert not is_expected("")
