"""`pack bench` times copies, MemmapLoader and torch's DataLoader, and the disk of a store that is not cached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packer.cli.app import run
from reader import bench


def test_bench_prints_a_line_a_way(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(store), "--seconds", "0.1", "--batch-size", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:27].rstrip() for line in lines] == ["copying rows", "MemmapLoader", "DataLoader"]
    assert lines[0].endswith("1.00 of the limit")


def test_bench_as_json_has_the_rate_of_each_way(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(store), "--seconds", "0.1", "--json"]) == 0
    ways = json.loads(capsys.readouterr().out)["ways"]
    assert all(way["images_per_second"] > 0 for way in ways)


def test_rows_that_the_page_cache_lacks_are_read_from_the_disk(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader.system.cached_share", lambda *_, **__: 0.0)
    names = [way.name for way in bench.measure(store, seconds=0.1)]
    assert names == ["copying rows", "MemmapLoader", "DataLoader", "MemmapLoader, from the disk"]
