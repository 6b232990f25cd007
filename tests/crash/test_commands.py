"""Commands that end at any moment, by a kill, a power cut or an error of the disk: what they leave continues to the same bytes.

Each kind of run is recorded once, call by call. The record says what a disk may hold at each moment. The nightly trials kill
before each call of each kind, and cut the power after each. Of two packs, one waits before a call until the other has ended.
"""

from __future__ import annotations

import errno
import functools
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Tune, ffmpeg_or_skip

from tests.crash.calls import Call, Shim, needs_shim
from tests.crash.disk import Disk, Tree, flat, write_tree
from tests.crash.runs import COMMANDS, KINDS, SYNCED, Run, make_inputs

pytestmark = needs_shim
# those tried in each run of the tests; the nightly trials have all
KILLED = ("new", "update", "pull", "push", "seal", "merge", "requantize", "cache")
CUT = ("new", "continued", "overwrite", "resplit", "labelled", "update", "seal", "inside", "merge", "pull", "cache")
RACED = ("new", "continued", "overwrite")
# files of rows, of their lines, and images: what is committed of them is said elsewhere
_ROWS = re.compile(r"\.(memmap|jsonl|jpg)[^/]*$")
_ROOM = "create,mkdir,write,pwrite,fallocate,fsync,fdatasync"
# what happens -> the error of the calls, which calls, and the exit code
ERRORS = {
    "EIO": ("EIO", f"{_ROOM},close,truncate,ftruncate,rename,exchange,unlink,rmdir", 1),
    "ENOSPC": ("ENOSPC", _ROOM, 28),
    "EDQUOT": ("EDQUOT", "write,pwrite,fallocate", 28),
    "half a write": ("short", "write,pwrite", 0),
    "unread": ("EIO", "read", 1),
}


def moments(kinds: Sequence[str], every: Sequence[str], *, few: int, many: int) -> list[Any]:
    """Return some kinds with few moments at which a run ends, and nightly each kind with many; 0: all."""
    return [*((kind, few) for kind in kinds), *(pytest.param(kind, many, marks=pytest.mark.nightly) for kind in every)]


@dataclass(frozen=True)
class Recorded:
    """A run, the shim that records it, its calls, and how long it took."""

    run: Run
    shim: Shim
    calls: list[Call]
    seconds: float

    def some(self, count: int) -> list[int]:
        """Return so many of the calls' numbers, from 1 on, evenly spread; 0: all."""
        every = max(1, len(self.calls) // count) if count else 1
        return [*range(every, len(self.calls) + 1, every)]

    @property
    def begun(self) -> set[int]:
        """The first write to each file that a run is continued by: it is there, and holds nothing."""
        first = dict[str, int]()
        for at, call in enumerate(self.calls, 1):
            if call.name == "write" and not _ROWS.search(call.path):
                first.setdefault(call.path, at)
        return {*first.values()}

    @property
    def commits(self) -> set[int]:
        """The calls that make something count: new names of stores, and syncs of a journal."""
        found = [(at, call.name, call.path.endswith("/journal")) for at, call in enumerate(self.calls, 1)]
        return {
            at for at, name, is_log in found if name in ("rename", "exchange", "link") or (is_log and "sync" in name)
        }

    def trees(self) -> Iterator[tuple[int, Tree]]:
        """Yield what a power cut behind each call may leave, each once."""
        self.run.lay_out()
        disk, draw, seen = Disk(self.run.disk), random.Random(0), set[str]()
        for at, call in enumerate(self.calls, 1):
            disk.apply(call)
            for tree in (disk.only_synced(), disk.all_names(), disk.everything(), disk.some(draw)):
                if (key := repr(tree)) not in seen:
                    seen.add(key)
                    yield at, tree
        assert flat(disk.everything()) == self.run.after, "the record misses calls"
        # the names in a cache are not synced: what is lost is fetched again
        is_kept = self.run.kind.is_cache or self.run.is_new(flat(disk.only_synced()))
        assert is_kept, "a power cut after the end loses OUT"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs of all kinds take place; `inputs` in it is what they are given."""
    return tmp_path_factory.mktemp("crashes")


@pytest.fixture(autouse=True)
def _several_blocks(tune: Tune) -> None:
    tune(least_block_inputs=2)


@functools.cache
def recorded(folder: Path, kind: str) -> Recorded:
    if kind == "requantize":
        ffmpeg_or_skip()
    if kind == "cache":
        pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
    work, inputs = folder / kind.replace(" ", "-"), folder / "inputs"
    if not inputs.exists():
        # here, where blocks are small
        make_inputs(inputs)
    work.mkdir()
    run = Run(kind, work, inputs)
    shim = Shim(work, run.disk)
    started = time.monotonic()
    assert shim.run(run.command()) == (0, "")
    run.check_finished()
    return Recorded(run, shim, shim.changes(), time.monotonic() - started)


@pytest.mark.parametrize(("kind", "count"), moments(CUT, SYNCED, few=8, many=0))
def test_a_power_cut_leaves_the_old_out_or_the_new_one_and_the_line_continues(
    folder: Path, kind: str, count: int
) -> None:
    found = recorded(folder, kind)
    cuts = {*found.some(count)} | found.commits | {at - 1 for at in found.begun}
    for at, tree in found.trees():
        call = found.calls[at - 1]
        where = f"power lost after call {at}, {call.name} {call.path}"
        assert (where, found.run.problem(flat(tree))) == (where, "")
        if at in cuts:
            shutil.rmtree(found.run.disk)
            write_tree(tree, found.run.disk)
            go_on(found.run, where)


@pytest.mark.parametrize(("kind", "count"), moments(KILLED, [*KINDS], few=3, many=0))
def test_a_kill_before_any_call_leaves_the_old_out_or_the_new_one_and_the_line_continues(
    folder: Path, kind: str, count: int
) -> None:
    found = recorded(folder, kind)
    for at in sorted({*found.some(count)} | found.begun):
        found.run.lay_out()
        # two workers do not make the same number of calls each time
        assert found.shim.run(found.run.command(), at=at, do="die")[0] in (-signal.SIGKILL, 0)
        survive(found.run, f"killed at call {at}")


@pytest.mark.parametrize(("kind", "count"), moments(["overwrite"], ["new", "overwrite", "resplit"], few=3, many=40))
def test_a_kill_at_a_random_moment_leaves_the_old_out_or_the_new_one_and_the_line_continues(
    folder: Path, kind: str, count: int
) -> None:
    found, draw = recorded(folder, kind), random.Random(count)
    for _ in range(count):
        found.run.lay_out()
        seconds = draw.uniform(0, found.seconds)
        assert found.shim.run(found.run.command(), seconds=seconds)[0] in (-signal.SIGKILL, 0)
        survive(found.run, f"killed after {seconds:.3f} s")


@pytest.mark.parametrize(("kind", "count"), moments(RACED, RACED, few=5, many=0))
def test_of_two_packs_one_wins_wherever_the_first_stands_still(folder: Path, kind: str, count: int) -> None:
    """The first is stopped before a call that changes a file, and continues when the second has ended."""
    found, named = recorded(folder, kind), 0
    for at in sorted({1, 2, 3, *found.some(count)}):
        found.run.lay_out()
        first = found.shim.start(found.run.command(), at=at, do="stop")
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        second = subprocess.run(found.run.command(), capture_output=True, text=True, timeout=300)
        os.killpg(first.pid, signal.SIGCONT)
        _, error = first.communicate(timeout=60)
        where = f"stopped at call {at}: {error}{second.stderr}"
        assert 0 in (first.returncode, second.returncode), where
        for code, text in ((first.returncode, error), (second.returncode, second.stderr)):
            assert code in (0, 1), where
            assert (text.count("\n"), "Traceback" in text) == (code, False), where
        named += f"is being packed by process {first.pid} on {os.uname().nodename}" in second.stderr
        found.run.check_finished()
    # the second is refused while the first holds the lock; the first finds all done that the second did before
    assert named


def survive(run: Run, where: str) -> None:
    """See what an accident has left on the disk, and continue."""
    assert (where, run.problem(run.found())) == (where, "")
    go_on(run, where)


def go_on(run: Run, where: str) -> None:
    try:
        run.go_on()
    except AssertionError as e:
        raise AssertionError(f"{where}: {e}") from e


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("kind", "count"), moments(["new"], COMMANDS, few=3, many=30))
def test_a_call_that_fails_is_named_in_one_sentence_and_costs_nothing(
    folder: Path, kind: str, count: int, error: str
) -> None:
    found, (what, names, code) = recorded(folder, kind), ERRORS[error]
    run, do = found.run, what if what == "short" else str(getattr(errno, what))
    run.lay_out()
    assert found.shim.run(run.command()) == (0, "")
    hit = len([call for call in found.shim.calls() if call.name in names.split(",")])
    every = max(1, hit // count)
    for at in range(every, hit + 1, every):
        run.lay_out()
        done, printed = found.shim.run(run.command(), at=at, do=do, names=names)
        call = next((call for call in found.shim.calls() if call.is_spoiled), None)
        where = f"{error} at call {at}, {call}: exit code {done}: {printed}"
        if done:
            names_it = call is not None and (call.path in printed or (call.to and call.to in printed))
            is_sentence = printed.startswith("pack: ") and printed.count("\n") == 1 and what in printed
            # a lock that cannot be read is worded as one that is gone
            is_lock = call is not None and call.name == "read" and "was renamed, removed or replaced" in printed
            assert done == code, where
            assert is_lock or (names_it and is_sentence), where
        elif call is not None and not is_tidying(call):
            # a worker that cannot read the store that is replaced decodes all
            old = ("/out/manifest.json", "/out/samples.jsonl")
            is_decoded = kind == "update" and call.name == "read" and call.path.endswith(old)
            assert what == "short" or is_decoded or is_harmless(call), where
            run.check_finished()
        go_on(run, where)


def is_tidying(call: Call) -> bool:
    """Whether what failed is the removal of what a finished store no longer needs: it stays until the next pack."""
    return call.name in ("unlink", "rmdir") or (call.name == "rename" and call.to.endswith("/old"))


def is_harmless(call: Call) -> bool:
    """Whether nothing is lost: a folder is there already, two renames do what an exchange did not, the lock is for people."""
    return call.name in ("mkdir", "exchange") or call.path.endswith("/.packing/lock")
