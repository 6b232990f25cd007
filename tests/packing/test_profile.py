"""Where a pack's seconds went: every moment in one stage, every process and thread a line, a delay where it arose."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import make_splits

from packer import clock as profiles
from packer import pack
from packer.cli.app import run
from packer.cli.messages import profile_table
from packer.clock import STAGES, StageClock, added
from packer.pixels import decode, statistics
from packer.pixels.compiled import Native
from packer.pixels.formats.turbojpeg import JpegDecoder
from packer.pixels.geometry import Geometry
from packer.sources.local import LocalSource
from packer.store import journal as journals
from packer.workers import block_worker as workers
from reader.format.samples import Sample

WORK = {"read", "decode", "resize", "checksum", "other", "write", "wait"}


def test_a_clock_charges_every_moment_to_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.0, 14.0, 15.0, 20.0])
    monkeypatch.setattr(profiles.time, "perf_counter", lambda: next(times))
    clock = StageClock("start", 0.5)
    clock.enter("read")
    clock.enter("decode")
    clock.enter("read")
    assert clock.seconds() == {"start": 1.5, "read": 3.0 + 5.0, "decode": 1.0}


def test_the_table_has_a_line_for_each_and_the_sum_of_the_workers() -> None:
    profile = {"main": {"list": 1.0, "wait": 2.0}, "worker 1": {"read": 1.0}, "worker 2": {"read": 2.5, "write": 0.25}}
    assert profile_table(profile, None).splitlines() == [
        "seconds   list  read  write  wait   all",
        "main      1.00               2.00  3.00",
        "worker 1        1.00               1.00",
        "worker 2        2.50   0.25        2.75",
        "workers         3.50   0.25        3.75",
    ]
    assert "workers" not in profile_table({"main": {"list": 1.0}, "worker 1": {"read": 1.0}}, None)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_process_and_thread_has_its_stages_and_they_fill_its_time(
    images: Path, tmp_path: Path, count: int
) -> None:
    report = pack(images, tmp_path / "out", size=32, workers=count)
    names = [f"worker {n + 1}" for n in range(count)]
    assert sorted(report.profile) == sorted(["main", "commit", *names])
    assert sum(report.profile["main"].values()) == pytest.approx(report.seconds)
    assert set(report.profile["main"]) == {"list", "begin", "serve", "seal", "wait"}
    assert set(report.profile["commit"]) == {"sync", "journal", "wait"}
    for name in names:
        assert set(report.profile[name]) - {"start"} <= WORK
        assert sum(report.profile[name].values()) <= report.seconds
    assert {stage for name in names for stage in report.profile[name]} - {"start"} == WORK


def slowed(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(owner, name)

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.02)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, slow)


@pytest.mark.skipif(sys.platform != "linux", reason="workers inherit the delay by fork")
@pytest.mark.parametrize(
    ("owner", "name", "who", "stage", "times"),
    [
        (LocalSource, "read", "worker 1", "read", 24),
        (JpegDecoder, "decode", "worker 1", "decode", 24),
        (Geometry, "to_row", "worker 1", "resize", 24),
        (Sample, "encode", "worker 1", "other", 24),
        (statistics.ChannelSums, "add", "worker 1", "checksum", 3),
        (workers, "write_at", "worker 1", "write", 3),
        (os, "fdatasync", "commit", "sync", 1),
        (journals, "encode_block", "commit", "journal", 3),
    ],
)
def test_a_delay_shows_in_its_stage(
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    who: str,
    stage: str,
    times: int,
) -> None:
    if owner is JpegDecoder and not JpegDecoder().is_available:
        pytest.skip("JPEGs are decoded by Pillow here")
    if owner in (JpegDecoder, Geometry, LocalSource, statistics.ChannelSums):  # the compiled part does without them
        monkeypatch.setattr(decode, "native", Native)
    monkeypatch.setenv("PIXPACK_START_METHOD", "fork")
    slowed(owner, name, monkeypatch)
    started = time.perf_counter()
    report = pack(images, tmp_path / "out", size=32, workers=1)
    assert report.profile[who][stage] >= 0.02 * times
    # and in no other: stages follow one another
    assert sum(report.profile[who].values()) <= time.perf_counter() - started


def test_the_profiles_of_splits_add_up(tmp_path: Path) -> None:
    make_splits(tmp_path / "images", ("train", "val"), each=2)
    report = pack(tmp_path / "images", tmp_path / "out", size=32, workers=2)
    parts = [part.profile for part in report.splits.values()]
    assert report.profile == added(parts)
    assert report.seconds == pytest.approx(sum(part.seconds for part in report.splits.values()))
    assert ["list" in part["main"] for part in parts] == [True, False]


def test_the_command_prints_the_table_where_asked(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(images), str(tmp_path / "a"), "--size", "32", "--workers", "2", "--profile"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("found ")
    assert lines[2].startswith("packed 24 of 24 images")
    assert [line.split("  ")[0].strip() for line in lines[3 : lines.index("to train from it:")]] == [
        "seconds",
        "main",
        "commit",
        "worker 1",
        "worker 2",
        "workers",
    ]
    assert set(lines[3].split()[1:-1]) <= set(STAGES)
    assert run([str(images), str(tmp_path / "b"), "--size", "32"]) == 0
    assert "seconds" not in capsys.readouterr().out
    assert run([str(images), str(tmp_path / "c"), "--size", "32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["profile"]["main"]["list"] > 0
    assert run([str(images), str(tmp_path / "a"), "--size", "32", "--profile"]) == 0
    assert "nothing was done" in capsys.readouterr().out
