"""Commands that end at any moment, by a kill or a power cut: what they leave continues to the bytes of an undisturbed run.

Each kind of run is recorded once, call by call. The record shows the order of syncs, and what a disk may hold at each moment.
"""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Tune, ffmpeg_or_skip, store_bytes
from range_server import serving

from tests.crash._calls import Call, Shim
from tests.crash._order import check_order
from tests.crash._runs import KINDS, OTHERS, REQUANTIZING, Run, make_run
from tests.crash.fault_test import check_death
from tests.crash.power_test import disks, record, survive

needs_shim = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="the shim needs LD_PRELOAD and a C compiler"
)
QUICK = ("fresh", "update", "pull", "seal", "merge", "subset")
# and those of whose syncs there are others
ORDERED = (*QUICK, "resume", "labelled", "resplit")
# Of a kill the first are tried, of a power cut the others, with the two that make a store.
CUT = (*(kind for kind in KINDS if kind not in QUICK), "fresh", "seal")


def moments(kinds: Sequence[str], every: Sequence[str], *, few: int, many: int) -> list[Any]:
    """Return some kinds with few moments at which a run ends, and for the nightly trials each with many."""
    return [*((kind, few) for kind in kinds), *(pytest.param(kind, many, marks=pytest.mark.nightly) for kind in every)]


@dataclass(frozen=True)
class Recorded:
    """A run and its calls; work holds them."""

    run: Run
    work: Path
    calls: list[Call]

    def spread(self, count: int) -> list[int]:
        """Return so many of the calls' numbers, from 1 on, evenly spread."""
        return sorted({len(self.calls) * (2 * n + 1) // (2 * count) for n in range(count)} - {0})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("crashes")


@pytest.fixture(autouse=True)
def _several_blocks(tune: Tune) -> None:
    tune(least_block_inputs=4)


@functools.cache
def recorded(folder: Path, kind: str, with_strace: bool = False) -> Recorded:
    if kind in REQUANTIZING:
        ffmpeg_or_skip()
    work = folder / f"{kind}{with_strace}"
    work.mkdir()
    run = make_run(kind, work, 16)
    run.lay_out()
    return Recorded(run, work, record(run, work, with_strace=with_strace))


@needs_shim
@pytest.mark.parametrize(
    "kind", [kind if kind in ORDERED else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_what_a_step_rests_on_is_synced_before(folder: Path, kind: str) -> None:
    found = recorded(folder, kind)
    lines = check_order(found.calls, found.run.disk)
    # what copies rows has no journal; of parts it was written before
    has_journal = kind not in ("merge", "remerge", "subset", "pull", "seal")
    assert lines >= 2 if has_journal else lines == 0


@needs_shim
def test_a_pull_by_http_syncs_what_it_has_written_before_the_manifest(folder: Path) -> None:
    """What brings bytes from a URL need not sync them, as a copy from a folder does."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
    found = recorded(folder, "pull")
    run, shim = found.run, Shim(found.work, found.run.disk)
    run.lay_out()
    with serving(run.source) as server:
        done = shim.run([sys.executable, "-m", "packer", "pull", server.url, str(run.out), "--quiet"])
    assert (done.returncode, done.stderr) == (0, "")
    assert store_bytes(run.disk) == run.expected
    check_order([call for call in shim.calls() if call.is_done and call.name not in ("close", "read")], run.disk)


@needs_shim
@pytest.mark.parametrize(("kind", "cuts"), moments(CUT, KINDS, few=6, many=12))
def test_what_a_power_cut_leaves_opens_as_the_old_or_the_new_store_and_continues_to_the_same_bytes(
    folder: Path, kind: str, cuts: int
) -> None:
    found, seen = recorded(folder, kind), list[object]()
    for at, variant, tree in disks(found.run, found.calls, found.spread(cuts), draws=cuts // 12, seed=0):
        if tree not in seen:
            seen.append(tree)
            survive(found.run, tree, f"power lost after call {at} of {len(found.calls)}, {variant}")
    assert len(seen) > cuts


@needs_shim
@pytest.mark.parametrize(("kind", "kills"), moments(QUICK, (*KINDS, *OTHERS), few=2, many=6))
def test_what_a_kill_leaves_continues_to_the_same_bytes(folder: Path, kind: str, kills: int) -> None:
    found = recorded(folder, kind)
    shim = Shim(found.work, found.run.disk)
    for at in found.spread(kills):
        found.run.lay_out()
        assert shim.run(found.run.command(), at=at, do="die").returncode < 0
        check_death(found.run, f"killed at call {at}")


@needs_shim
@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_the_record_misses_no_call_that_strace_sees(folder: Path, kind: str) -> None:
    assert recorded(folder, kind, with_strace=True).calls
