"""Sizes that tests shrink: without PIXPACK_TESTING=1 the environment changes none of them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PACK, Tune, store_bytes

from reader.tuning import Tuning, tuning

# No default is one of these.
ABSURD = {int: "3", float: "0.123", tuple: "0.123,7"}
EVERY_FIELD = " ".join(f"{field.name}={ABSURD[type(field.default)]}" for field in dataclasses.fields(Tuning))

NOT_TESTING = pytest.mark.parametrize("testing", [None, "", "0", "true", "yes", "2", " 1"])


def _environment(testing: str | None, values: str) -> dict[str, str]:
    names = {"PIXPACK_TUNING": values} if testing is None else {"PIXPACK_TUNING": values, "PIXPACK_TESTING": testing}
    return {name: value for name, value in os.environ.items() if name != "PIXPACK_TESTING"} | names


@NOT_TESTING
def test_outside_of_tests_every_size_is_the_default(testing: str | None) -> None:
    code = "from reader.tuning import Tuning, tuning; assert tuning() == Tuning()"
    subprocess.run([sys.executable, "-c", code], env=_environment(testing, EVERY_FIELD), check=True)


def test_in_tests_every_size_can_be_changed() -> None:
    code = (
        "import dataclasses; from reader.tuning import Tuning, tuning; before, now = Tuning(), tuning();"
        "assert all(getattr(before, f.name) != getattr(now, f.name) for f in dataclasses.fields(Tuning))"
    )
    subprocess.run([sys.executable, "-c", code], env=_environment("1", EVERY_FIELD), check=True)


def test_outside_of_tests_a_pack_gives_the_same_bytes(images: Path, tmp_path: Path) -> None:
    for out, testing, values in (("plain", None, ""), ("set", None, EVERY_FIELD), ("tested", "1", "block_bytes=9000")):
        command = [*PACK, str(images), str(tmp_path / out), "--size", "32", "--workers", "1", "--quiet"]
        subprocess.run(command, env=_environment(testing, values), check=True)
    plain = store_bytes(tmp_path / "plain")
    assert store_bytes(tmp_path / "set") == plain
    assert store_bytes(tmp_path / "tested") != plain


def test_of_a_field_that_is_changed_twice_the_last_value_counts(tune: Tune) -> None:
    tune(block_bytes=5, engine_poll_seconds=2)
    tune(block_bytes=6)
    assert tuning() == Tuning(block_bytes=6, engine_poll_seconds=2.0)
