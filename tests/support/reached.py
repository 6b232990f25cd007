"""Print the share of the product's functions that a test run enters, by room: python tests/support/reached.py [PYTEST ARGUMENTS].

Traces every process of this environment, including forked and started ones, by a .pth file that is removed at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("packer", "reader", "pixpack")
LOG = "PIXPACK_REACHED"
# set by the compiler for functions, and not for classes: inspect.CO_OPTIMIZED
IS_FUNCTION = 0x1


def main() -> int:
    """Run pytest with the given arguments, then print entered and existing functions, by room."""
    hook = Path(sysconfig.get_path("purelib")) / "pixpack_reached.pth"
    start = f"sys.path.append({str(Path(__file__).parent)!r}), __import__('reached').trace()"
    hook.write_text(f"import os, sys; {LOG!r} in os.environ and ({start})\n")
    try:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "entered"
            log.touch()
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *sys.argv[1:]], cwd=ROOT, env=os.environ | {LOG: str(log)}
            )
            entered = set(log.read_text().splitlines())
    finally:
        hook.unlink()
    total: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for name in functions():
        parts = name.split(":")[0].split("/")
        room = "/".join(parts[:2]) if len(parts) > 2 else parts[0]
        total[room] += 1
        found[room] += name in entered
    for room in sorted(total):
        print(f"{found[room]:5} of {total[room]:5}  {found[room] / total[room]:.2f}  {room}")
    print(
        f"{found.total():5} of {total.total():5}  {found.total() / total.total():.2f}  functions of the product are entered"
    )
    return done.returncode


def functions() -> Iterator[str]:
    """Name every function of the product as `file:line:qualified name`, lambdas and comprehensions left out."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for code in codes(compile(path.read_text(encoding="utf-8"), str(path), "exec")):
                if code.co_flags & IS_FUNCTION and not code.co_name.startswith("<"):
                    yield f"{path.relative_to(ROOT)}:{code.co_firstlineno}:{code.co_qualname}"


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects inside another, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from codes(constant)


def trace() -> None:
    """Log each function of the product at its first call in this process; immediately, since processes are killed."""
    # opened once: a test may allow no more files, and an error would end the tracing
    log, start = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND), f"{ROOT}{os.sep}"
    tops = tuple(f"{start}{package}{os.sep}" for package in PACKAGES)
    seen: set[CodeType] = set()

    def enter(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code not in seen:
            seen.add(code)
            if code.co_filename.startswith(tops):
                line = f"{code.co_filename[len(start) :]}:{code.co_firstlineno}:{code.co_qualname}\n"
                # one write to a file opened for appending: lines of two processes do not mix
                os.write(log, line.encode())

    threading.settrace(enter)
    sys.settrace(enter)


if __name__ == "__main__":
    sys.exit(main())
