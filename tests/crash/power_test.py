"""Does a pack come through a power loss at any moment, whatever the disk had kept by then?

    python -m tests.crash.power_test

Each kind of run (tests/crash/_runs.py) is recorded once, call by call, with all that it writes to disk. Then

    order    the record is checked: rows are synced before their line is in the journal, all files and names before the
             manifest, the manifest before its rename, its folder before anything is removed, and new folders' parents
    cuts     after each call the power goes, and the folder is laid out as a disk could hold it: only what was synced;
             all names but unsynced bytes dropped; everything, as after a kill; and --draws times any part of the unsynced
             names and sectors

No such disk may open as a complete store unless that is the finished one to the byte (or the one that is being replaced);
and each must continue, by the same command, to the bytes of an
undisturbed run, with nothing else left on the disk. No old split opens beside a new one. Where strace is installed it
records beside the shim, and must have seen the very same calls. Prints a line for each kind and one JSON object last; exits 1 at
the first failure.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import shutil
import sys
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from packer import PackError
from reader.manifest import MANIFEST, StoreError, check_store
from tests.crash._calls import Call, Shim, read_strace, strace_words, without_opens
from tests.crash._disk import Disk, Tree, write_tree
from tests.crash._order import check_order
from tests.crash._program import TrialError, counts_parser, reported
from tests.crash._runs import KINDS, REQUANTIZING, Run, are_mixed, difference, files, make_run


def main() -> int:
    """Record and cut each kind of run."""
    parser = counts_parser(__doc__, images=240, seed=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--cuts", type=int, default=0, help="cut only at so many calls, evenly spread; 0: at each")
    parser.add_argument("--draws", type=int, default=3, help="disks that kept any part, for each cut")
    parser.add_argument("--no-strace", action="store_true", help="record with the shim alone")
    options = parser.parse_args()

    def trial(work: Path) -> dict[str, Any]:
        results: dict[str, Any] = {"seed": options.seed, "strace": _has_strace(options)}
        for kind in options.kinds:
            (work / kind).mkdir()
            results[kind] = cut_everywhere(kind, work / kind, options)
            shutil.rmtree(work / kind)
        return results

    return reported("power_test", trial)


def cut_everywhere(kind: str, work: Path, options: argparse.Namespace) -> dict[str, int]:
    """Record one kind of run, check its order, and continue from what each cut leaves."""
    run = make_run(kind, work, options.images)
    run.lay_out()
    calls = record(run, work, with_strace=_has_strace(options))
    lines = check_order(calls, run.disk)
    cuts = set(range(0, len(calls) + 1, max(1, len(calls) // options.cuts) if options.cuts else 1))
    seen: set[str] = set()
    for at, variant, tree in disks(run, calls, cuts, draws=options.draws, seed=options.seed):
        key = hashlib.sha256(repr(tree).encode()).hexdigest()
        if key not in seen:
            seen.add(key)
            survive(run, tree, f"{kind} run, power lost after call {at} of {len(calls)}, {variant}")
    print(f"{kind}: {len(calls)} calls, {lines} journal lines, each in order;", end=" ")
    print(f"{len(cuts)} cuts, {len(seen)} different disks, all survived")
    return {"calls": len(calls), "journal_lines": lines, "cuts": len(cuts), "disks": len(seen)}


def record(run: Run, work: Path, *, with_strace: bool) -> list[Call]:
    """Do the run once, undisturbed; returns its calls in order.

    Raises:
        TrialError: it failed, its bytes differ, or strace saw other calls.
    """
    shim, trace = Shim(work, run.disk), work / "strace.log"
    done = shim.run(run.command(), under=strace_words(trace) if with_strace else ())
    if done.returncode:
        raise TrialError(f"the {run.kind} run exits with {done.returncode}: {done.stderr.strip()}")
    if (found := run.result()) != run.expected:
        raise TrialError(f"the {run.kind} run differs in {difference(found, run.expected)}")
    calls = shim.calls()
    if with_strace:
        seen, traced = without_opens(calls), without_opens(read_strace(trace, run.disk))
        if seen != traced:
            odd = next((pair for pair in zip(seen, traced, strict=False) if pair[0] != pair[1]), "one ends early")
            raise TrialError(f"shim and strace saw {len(seen)} and {len(traced)} calls: {str(odd)[:500]}")
    return [call for call in calls if call.is_done and call.name not in ("close", "read")]


def disks(
    run: Run, calls: list[Call], cuts: Container[int], *, draws: int, seed: int
) -> Iterator[tuple[int, str, Tree]]:
    """Yield what each cut may leave: (calls done, which variant, the tree)."""
    run.lay_out()
    disk, draw = Disk(run.disk), random.Random(seed)
    for at in range(len(calls) + 1):
        if at:
            disk.apply(calls[at - 1])
        if at in cuts:
            yield at, "only what was synced", disk.only_synced()
            yield at, "all names", disk.all_names()
            yield at, "everything", disk.everything()
            for n in range(draws):
                yield at, f"draw {n} of seed {seed}", disk.some(draw)
    shutil.rmtree(run.disk)
    write_tree(disk.everything(), run.disk)
    if files(run.disk) != run.expected:
        raise TrialError(f"the record does not give what the run gave: {difference(files(run.disk), run.expected)}")


def survive(run: Run, tree: Tree, where: str) -> None:
    """Lay a disk out, look at it, and continue."""
    shutil.rmtree(run.disk, ignore_errors=True)
    write_tree(tree, run.disk)
    if run.kind in REQUANTIZING:
        if problem := run.problem():
            raise TrialError(f"{where}: {problem}")
    else:
        for manifest in sorted(run.disk.rglob(MANIFEST)):
            _check_complete(run, manifest.parent, where)
    if are_mixed(run):
        raise TrialError(f"{where}: an old and a new split open, which do not belong together")
    flags = " ".join(run.flags_to_resume()) or "the command again"
    try:
        run.resume()
    except (PackError, StoreError, OSError) as e:
        raise TrialError(f"{where}: {flags} fails: {e}") from e
    found = files(run.disk)
    if found != run.expected:
        raise TrialError(f"{where}: after {flags} these differ: {difference(found, run.expected)}")


def _check_complete(run: Run, store: Path, where: str) -> None:
    """See that what opens is the finished store, or the one that the run replaces."""
    try:
        check_store(store)
    except StoreError:
        return
    found = {name: content for name, content in files(store).items() if not name.startswith(".packing/")}
    # out.packing is made in place of out, which is out/.packing/tmp.../old once it is replaced
    folder = run.disk / re.sub(r"\.packing(/tmp\w+/old)?", "", str(store.relative_to(run.disk)))
    complete = [_below(run.expected, folder, run.disk), _below(files(run.start), folder, run.disk)]
    if found not in complete:
        raise TrialError(f"{where}: {store} opens, and differs in {difference(found, complete[0])}")


def _below(disk: dict[str, bytes], folder: Path, root: Path) -> dict[str, bytes]:
    prefix = f"{folder.relative_to(root)}/"
    return {name.removeprefix(prefix): content for name, content in disk.items() if name.startswith(prefix)}


def _has_strace(options: argparse.Namespace) -> bool:
    return not options.no_strace and shutil.which("strace") is not None


if __name__ == "__main__":
    sys.exit(main())
