"""Take the digests of tests/golden/digests again, on purpose: where a change of what transforms or orders give is meant.

    .venv/bin/python tests/support/take_digests.py [transforms]

No test calls it. The commit that has new digests says why they change. It needs torchvision, and an x86-64 with AVX2.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]


def take_transforms() -> None:
    """Record digests by the compiled part, only where they are the same on one and two threads."""
    import golden_transforms
    from digests import record

    with tempfile.TemporaryDirectory() as folder:
        golden_transforms.make_stores(Path(folder))
        found = golden_transforms.run(Path(folder), "--threads")
    for name in ("transforms", "converted"):
        if not found[name] or found["cpu"] != "AVX2":
            sys.exit("torchvision, or a processor with AVX2, is missing")
        if differ := _with_threads(found[name]):
            sys.exit(f"digests depend on threads: {differ}")
        record(name, found[name])


def _with_threads(table: dict[str, dict[str, str]]) -> dict[str, str]:
    return {case: text for case, kinds in table.items() for text in kinds.values() if " <> " in text}


TAKE: dict[str, Callable[[], None]] = {"transforms": take_transforms}

if __name__ == "__main__":
    for name in sys.argv[1:] or TAKE:
        TAKE[name]()
