"""Does a pack whose disk fails at any one call end cleanly, and continue to the right bytes?

    python -m tests.crash.fault_test

For each kind of run (tests/crash/_runs.py) and each fault the n-th call that the fault can hit is spoiled, n = 1, 2, 3, ...
until a run comes through untouched:

    kill     the process group dies at any call that changes a file below OUT's folder
    EIO      any call of these: writes, syncs, closes, renames, allocations, new names, removals
    ENOSPC   those that need room;  EDQUOT: writes and allocations alone
    short    a write that does only half: it continues
    lost     a read of what the interrupted pack or the old store left fails with EIO
    unread   a read of an image fails with EIO: it is rejected with that reason, all others are packed

After a death no manifest means that opening says "incomplete", in under 50 ms, and no old split opens beside a new one. What
fails says one sentence that names the file and the errno, exits with 1 (28 for ENOSPC and EDQUOT), and leaves no process behind.
Either then gives the bytes of an undisturbed run, as a run that succeeds does. Prints a line for each series and one
JSON object last; exits 1 at the first failure.
"""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash._calls import Call, Shim
from tests.crash._program import TrialError, counts_parser, reported
from tests.crash._runs import (
    COPYING,
    KINDS,
    OTHERS,
    REQUANTIZING,
    Run,
    are_mixed,
    check_unfinished,
    difference,
    make_run,
)

_ROOM = "create,mkdir,write,pwrite,fallocate,fsync,fdatasync"
_ALL = f"{_ROOM},close,truncate,ftruncate,rename,exchange,unlink,rmdir"


@dataclass(frozen=True)
class CallFault:
    """What a call comes back with ("die": never; "short", or an errno's name), which calls, and where the spoiled files are."""

    what: str
    names: str
    hits_images: bool = False


FAULTS = {
    "kill": CallFault("die", ""),
    "EIO": CallFault("EIO", _ALL),
    "ENOSPC": CallFault("ENOSPC", _ROOM),
    "EDQUOT": CallFault("EDQUOT", "write,pwrite,fallocate"),
    "short": CallFault("short", "write,pwrite"),
    "lost": CallFault("EIO", "read"),
    "unread": CallFault("EIO", "read", hits_images=True),
}


def main() -> int:
    """Run every series."""
    parser = counts_parser(__doc__, images=24)
    parser.add_argument("--kinds", nargs="+", choices=(*KINDS, *OTHERS), default=(*KINDS, *OTHERS))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--every", type=int, default=1, help="spoil only every so many-th call")
    options = parser.parse_args()

    def trial(work: Path) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for kind in options.kinds:
            folder = work / kind
            folder.mkdir()
            run = make_run(kind, folder, options.images)
            results[kind] = {name: series(run, folder, name, options.every) for name in options.faults}
            shutil.rmtree(folder)
        return results

    return reported("fault_test", trial)


def series(run: Run, work: Path, name: str, every: int) -> dict[str, int]:
    """Spoil one call after the other; returns how many, and how many of the runs succeeded all the same."""
    fault = FAULTS[name]
    shim = Shim(work, run.images if fault.hits_images else run.disk)
    do = fault.what if fault.what in ("die", "short") else str(getattr(errno, fault.what))
    spoiled, successes, at = 0, 0, 1
    while True:
        run.lay_out()
        done = shim.run(run.command(), at=at, do=do, names=fault.names)
        # the log of a killed process may end anywhere
        is_killed = fault.what == "die" and done.returncode == -signal.SIGKILL
        call = None if is_killed else next((call for call in shim.calls() if call.is_spoiled), None)
        where = f"{run.kind} run, {name} at call {at}" + (f", {call.name} {call.path}" if call else "")
        if call is None and not is_killed:
            if done.returncode or run.result() != run.expected:
                raise TrialError(f"{where}: untouched, yet it exits with {done.returncode}: {done.stderr.strip()}")
            print(f"{run.kind}, {name}: {spoiled} spoiled calls, {successes} of the runs succeeded all the same")
            return {"spoiled": spoiled, "succeeded": successes}
        spoiled, successes, at = spoiled + 1, successes + (done.returncode == 0), at + every
        if call is None:
            check_death(run, where)
        elif fault.hits_images and run.kind not in (*COPYING, "pull"):
            _check_patient(run, done, where)
        else:
            _check_outcome(run, done, call, fault, where)


def check_death(run: Run, where: str) -> None:
    """See what a death has left, and continue to the bytes of an undisturbed run.

    Raises:
        TrialError: something was not survived.
    """
    try:
        if run.kind not in REQUANTIZING:
            check_unfinished(run.out)
        elif problem := run.problem():
            raise TrialError(problem)
    except TrialError as e:
        raise TrialError(f"{where}: {e}") from e
    if are_mixed(run):
        raise TrialError(f"{where}: an old and a new split open")
    run.resume()
    _check_bytes(run, f"{where}: after resuming")


def _check_outcome(run: Run, done: subprocess.CompletedProcess[str], call: Call, fault: CallFault, where: str) -> None:
    if done.returncode:
        expected = 28 if fault.what in ("ENOSPC", "EDQUOT") else 1
        names_it = fault.what in done.stderr and (call.path in done.stderr or bool(call.to and call.to in done.stderr))
        is_clean = done.stderr.startswith("pack: ") and done.stderr.count("\n") == 1 and names_it
        if done.returncode != expected or not is_clean or fault.what == "short":
            raise TrialError(f"{where}: exit code {done.returncode}: {done.stderr.strip()}")
    elif fault.what == "short" or not _is_tidying(call):
        _check_bytes(run, f"{where}: the run succeeds, and")
        if fault.what != "short" and not _is_harmless(call):
            raise TrialError(f"{where}: the run succeeds, and says nothing of it")
    run.resume()
    _check_bytes(run, f"{where}: after the resume")


def _is_tidying(call: Call) -> bool:
    """Whether what failed is the removal of what a finished store no longer needs: it stays until the next pack.

    A replaced store that cannot be moved into the working folder is removed where it is.
    """
    return call.name in ("unlink", "rmdir") or (call.name == "rename" and call.to.endswith("/old"))


def _is_harmless(call: Call) -> bool:
    """Whether nothing is lost: a folder is there already, two renames do what an exchange did not, the lock is for people."""
    return call.name in ("read", "mkdir", "exchange") or call.path.endswith("/.packing/lock")


def _check_patient(run: Run, done: subprocess.CompletedProcess[str], where: str) -> None:
    """See that an image that could not be read once was read again."""
    if done.returncode:
        raise TrialError(f"{where}: exit code {done.returncode}: {done.stderr.strip()}")
    _check_bytes(run, f"{where}: the run succeeds, and")


def _check_bytes(run: Run, where: str) -> None:
    if (found := run.result()) != run.expected:
        raise TrialError(f"{where} these differ: {difference(found, run.expected)}")


if __name__ == "__main__":
    sys.exit(main())
