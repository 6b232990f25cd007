"""Files of any date are packed, resumed and updated: before 1970, and after 2262, when nanoseconds do not fit 64 bits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Tune, content_bytes, interrupted

from packer import pack, update

# As seconds; ext4 keeps times from 1901 to 2446. No clock but a wrong one gives them.
TIMES = {"1901": -(1 << 31), "a moment before 1970": -0.5, "2262": 9_243_504_000, "2400": 13_569_465_600}
SECOND = 10**9


def _date(path: Path, seconds: float) -> None:
    """Set the time of a file, or skip where the file system does not keep it."""
    wanted = round(seconds * SECOND)
    os.utime(path, ns=(wanted, wanted))
    if os.stat(path).st_mtime_ns != wanted:
        pytest.skip("this file system does not keep such times")


@pytest.mark.parametrize("seconds", TIMES.values(), ids=TIMES)
def test_files_of_any_date_are_packed_resumed_and_updated(
    images: Path, tmp_path: Path, seconds: float, tune: Tune
) -> None:
    tune(least_block_inputs=2)
    pack(images, tmp_path / "reference", size=32)
    for path in sorted(images.rglob("*.jpg")):
        _date(path, seconds)
    interrupted(pack, images, tmp_path / "out", size=32)
    pack(images, tmp_path / "out", size=32)
    assert content_bytes(tmp_path / "out") == content_bytes(tmp_path / "reference")
    assert update(images, tmp_path / "out").kept == update(images, tmp_path / "reference").kept > 0
