"""Does any reader or command answer a store of a stranger in another way than a result or one sentence?

Makes mutants of small valid stores, whose digests are right again, and tries every reader and command on each, in children whose
memory, time and files are watched; see `_trials`. Any failure is printed with the number by which it is made again.

    python -m tests.hostile.fuzz_stores --seconds 600 --seed 1
    python -m tests.hostile.fuzz_stores --seed 1 --only 1234 --keep mutant/  # makes one again, tries it, and keeps it
    python -m tests.hostile.fuzz_stores --faults --full  # those of tests/hostile, one fault each, all commands
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.hostile._faults import FAULTS, make_faulty
from tests.hostile._mutants import make_mutant, make_valid, remove
from tests.hostile._trials import FULL, QUICK, run_trials

# Mutants of a child: what one leaves in a process does not last.
_AT_ONCE = 2000


def fuzz(work: Path, seed: int, numbers: Iterator[int], scope: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Try mutants until the time is over; yields what was found of each, with its number."""
    valid, started = make_valid(work / "valid"), time.monotonic()
    while (time.monotonic() - started < seconds) and (some := list(itertools.islice(numbers, _AT_ONCE))):
        stores = {str(make_mutant(valid, work / f"m{number}", seed, number)): number for number in some}
        for found in run_trials([Path(store) for store in stores], work / "trials", scope):
            yield found | {"number": stores[found["store"]]}
        for store in stores:
            remove(Path(store))


def try_faults(work: Path, scope: str) -> Iterator[dict[str, Any]]:
    """Try the stores of which one thing is wrong; yields what was found of each, with the name of its fault."""
    valid = make_valid(work / "valid")
    stores = {str(make_faulty(valid, work / str(number), name)): name for number, name in enumerate(FAULTS)}
    for found in run_trials([Path(store) for store in stores], work / "trials", scope):
        yield found | {"number": stores[found["store"]]}


def main() -> int:
    """Run the command; exits with 1 where anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, help="so many mutants at most")
    parser.add_argument(
        "--full", action="store_true", help="also push, pull, update, bench and the like: seconds a mutant"
    )
    parser.add_argument("--faults", action="store_true", help="try the stores of which one thing is wrong, not mutants")
    parser.add_argument("--only", type=int, metavar="N", help="the mutant of this number alone")
    parser.add_argument("--keep", type=Path, help="with --only: leave the mutant there")
    options = parser.parse_args()
    numbers = iter([options.only]) if options.only is not None else itertools.islice(itertools.count(), options.most)
    started, counts = time.monotonic(), {"mutants": 0, "opened": 0, "verified": 0, "failed": 0}
    with tempfile.TemporaryDirectory(prefix="pixpack-fuzz-") as folder:
        work = Path(folder)
        scope = FULL if options.full else QUICK
        mutants = fuzz(work, options.seed, numbers, scope, options.seconds)
        for found in try_faults(work, scope) if options.faults else mutants:
            counts["mutants"] += 1
            counts["opened"] += found["opens"]
            counts["verified"] += found["verifies"]
            if found["failures"]:
                counts["failed"] += 1
                print(f"mutant {found['number']} of seed {options.seed}:", *found["failures"], sep="\n    ", flush=True)
            if options.keep is not None:
                shutil.copytree(found["store"], options.keep, symlinks=True)
    print(json.dumps({"seed": options.seed, "seconds": round(time.monotonic() - started), **counts}))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
