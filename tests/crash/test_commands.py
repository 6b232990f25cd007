"""Commands that end at any moment, by a kill, a power cut or an error of the disk: what they leave continues to the same bytes.

Each kind of run is recorded once, call by call. The record says what a disk may hold at each moment. The nightly trials kill
before each call of each kind, and cut the power after each. Of two packs, one waits before a call until the other has ended.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from conftest import ffmpeg_or_skip, tuned

from tests.crash.calls import Call, needs_shim
from tests.crash.runs import KINDS, Run, make_inputs

pytestmark = [needs_shim, pytest.mark.usefixtures("small_blocks")]
# push syncs nothing: a power cut may tear a copy at a URL
SYNCED = [name for name in KINDS if "push" not in name]
# errors of push name its URL
COMMANDS = [name for name in SYNCED if name != "cache"]
_ROOM = " create mkdir write pwrite fallocate fsync fdatasync "
# failure -> the error of the calls, their names, and the exit code
ERRORS = {
    "EIO": ("EIO", f"{_ROOM}close truncate ftruncate rename exchange unlink rmdir ", 1),
    "ENOSPC": ("ENOSPC", _ROOM, 28),
    "EDQUOT": ("EDQUOT", _ROOM, 28),
    "half a write": ("short", " write pwrite ", 0),
    "unread": ("EIO", " read ", 1),
}
RunOf = Callable[[str], Run]


def moments(names: str, every: Iterable[str], *, few: int, many: int = 1 << 30) -> list[Any]:
    """Return some kinds with few moments at which a run ends, and nightly each kind with many."""
    return [
        *((name, few) for name in names.split()),
        *(pytest.param(name, many, marks=pytest.mark.nightly) for name in every),
    ]


def some(calls: int, count: int) -> range:
    """Return so many of the calls' numbers, from 1 on, evenly spread."""
    every = max(1, calls // count)
    return range(every, calls + 1, every)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """Record the run of a kind."""

    inputs = tmp_path_factory.mktemp("inputs")
    with tuned(least_block_inputs=2):
        make_inputs(inputs)

    @functools.cache
    def recorded(name: str) -> Run:
        if name == "requantize":
            ffmpeg_or_skip()
        if name == "cache":
            pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
        return Run(name, tmp_path_factory.mktemp("run"), inputs)

    return recorded


@pytest.mark.parametrize(
    ("name", "count"),
    moments("new continued overwrite resplit update seal inside merge pull cache", SYNCED, few=8),
)
def test_a_power_cut_leaves_the_old_out_or_the_new_one_and_the_line_continues(
    run_of: RunOf, name: str, count: int
) -> None:
    run = run_of(name)
    # commits are new names of stores, and syncs of a journal
    commits = re.compile(r"(rename|exchange|link) |f(data)?sync .*/journal$")
    tried = {at for at, call in enumerate(run.calls, 1) if commits.match(f"{call.name} {call.path}")}
    tried.update(some(len(run.calls), count))
    for at, tree in run.cuts():
        print(f"power lost after call {at}, {run.calls[at - 1].name} {run.calls[at - 1].path}")
        run.check(tree)
        if at in tried:
            run.lay_out(tree)
            run.go_on()


@pytest.mark.parametrize(("name", "count"), moments("new update pull push seal merge requantize cache", KINDS, few=3))
def test_a_kill_before_any_call_leaves_the_old_out_or_the_new_one_and_the_line_continues(
    run_of: RunOf, name: str, count: int
) -> None:
    run = run_of(name)
    for at in some(len(run.calls), count):
        print(f"killed before call {at}")
        # two workers do not make the same number of calls each time
        assert run.spoil(at=at, do="die")[0] in (-signal.SIGKILL, 0)
        run.check()
        run.go_on()


RACED = "new continued overwrite"


@pytest.mark.parametrize(("name", "count"), moments(RACED, RACED.split(), few=5))
def test_of_two_packs_one_wins_wherever_the_first_stands_still(run_of: RunOf, name: str, count: int) -> None:
    """The first is stopped before a call that changes a file, and continues when the second has ended."""
    run, named = run_of(name), 0
    # the first ones take the lock
    for at in sorted({*range(1, 7), *some(len(run.calls), count)}):
        run.lay_out()
        first = run.shim.start(run.command(), at=at, do="stop")
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        second = subprocess.run(run.command(), capture_output=True, text=True, timeout=500)
        os.killpg(first.pid, signal.SIGCONT)
        _, error = first.communicate(timeout=500)
        print(f"stopped before call {at}: {error}{second.stderr}")
        codes = first.returncode, second.returncode
        assert codes in ((0, 0), (0, 1), (1, 0))
        # the refused one prints one sentence
        assert (error.count("\n"), second.stderr.count("\n")) == codes
        named += f"is being packed by process {first.pid} on {os.uname().nodename}" in second.stderr
        run.check_finished()
    # the second is refused while the first holds the lock; the first finds all done that the second did before
    assert named


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("name", "count"), moments("new", COMMANDS, few=3, many=30))
def test_a_call_that_fails_is_named_in_one_sentence_and_costs_nothing(
    run_of: RunOf, name: str, count: int, error: str
) -> None:
    run, (what, names, code) = run_of(name), ERRORS[error]
    do = what if what == "short" else str(getattr(errno, what))
    assert run.spoil() == (0, "")
    for at in some(sum(call.name in names.split() for call in run.shim.calls()), count):
        done, printed = run.spoil(at=at, do=do, names=names)
        call = next((call for call in run.shim.calls() if call.is_spoiled), None)
        print(f"{error} at call {at}, {call and (call.name, call.path, call.to)}: exit code {done}: {printed}")
        if done:
            assert call is not None
            assert (done, printed.startswith("pack: "), printed.count("\n")) == (code, True, 1)
            # a lock that cannot be read is worded as one that is gone
            is_lock = call.name == "read" and "was renamed, removed or replaced" in printed
            assert is_lock or (what in printed and any(path in printed for path in (call.path, call.to) if path))
        elif call is not None and not is_tidying(call):
            assert what == "short" or is_harmless(call, name)
            run.check_finished()
        run.go_on()


def is_tidying(call: Call) -> bool:
    """Whether what failed is the removal of what a finished store no longer needs: it stays until the next pack."""
    return call.name in ("unlink", "rmdir") or (call.name == "rename" and call.to.endswith("/old"))


def is_harmless(call: Call, name: str) -> bool:
    """Whether nothing is lost: a folder is there already, two renames do what an exchange did not, the lock is for people.

    A worker of update that cannot read the store that is replaced decodes all.
    """
    if call.name == "read" and name == "update":
        return call.path.endswith(("/out/manifest.json", "/out/samples.jsonl"))
    return call.name in ("mkdir", "exchange") or call.path.endswith("/.packing/lock")
