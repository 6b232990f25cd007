"""The reasons for skips of tests in a full run, and why each is expected.

With PIXPACK_STRICT_SKIPS=1, as in scripts/test --all and CI, a skip for any other reason is a failure: a missing library must
not count as a passed test.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Sequence

import pytest

VARIABLE = "PIXPACK_STRICT_SKIPS"
# The beginning of a reason -> why it is expected.
EXPECTED = {
    # no such device or processor
    r"no CUDA device": "a machine without a GPU; REQUIRE_CUDA=1 makes it a failure where there is one",
    r"one CUDA device": "needs two",
    r"this machine has CUDA": "needs a machine without a GPU",
    r"the digests were taken (with AVX2|on x86-64)": "of another processor",
    # too large to download for each run
    r"could not import '(albumentations|jax)'": "not fetched",
    r"datasets is not installed": "not fetched",
    r"the corpus is not here": "damaged images of others, which are not ours to publish",
    # one or the other: each is tested if it is installed
    r"there is no Pillow-SIMD to compare with": "plain Pillow resizes here",
    r"Pillow has no (JPEG2000|AVIF)": "a Pillow without that decoder, as Pillow-SIMD is",
    r"could not import 'PIL._avif'": "a Pillow without that decoder, as Pillow-SIMD is",
    r"no ffmpeg on PATH": "PyAV is tested",
    r"no program here: ": "PyAV is tested",
    r"(bash|zsh|fish) is not installed": "a shell that this machine lacks",
    r"clang(?:'s \S+)? is missing: apt-get install ": "a compiler that this machine lacks",
    r"gcc with libasan and libubsan is not here": "a compiler without sanitizers",
    # rights and file systems of a container
    r"only root can become another user": "not run by root",
    r"this root may not give up its rights": "a container without that right",
    r"this user may (not mount|make no memory cgroup)": "a container without that right",
    r"(no tmpfs|a ramfs) can(not)? be mounted here": "a container without that right",
    r"mounts file systems": "not run by root",
    r"no O_DIRECT on the file system of the temporary folder": "a file system that has none",
    r"the file system of the temporary folder keeps or hides what is cached": "overlays and tmpfs",
    r"the system does not count what is read from disks": "a container without /proc/self/io",
    r"this folder is in memory": "tmpfs",
    r"this system gives no huge pages": "the kernel's settings",
    r"this file system (wants UTF-8|does not keep such times)": "a file system of another kind",
    # a refused combination, whose message the law checks
    r"refused: ": "a combination of a law that pixpack refuses",
    r"compressed rows are not joined": "a combination that pixpack refuses",
    r"a JPEG has no alpha": "a combination that pixpack refuses",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Check how a test ended."""
    report = yield
    _fail_unexpected(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Check how the collection of a module ended."""
    report = yield
    _fail_unexpected(report)
    return report


def _fail_unexpected(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip for any other reason into a failure that names it."""
    if os.environ.get(VARIABLE) != "1" or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    # (path, line, "Skipped: reason")
    parts: Sequence[object] = report.longrepr if isinstance(report.longrepr, tuple) else (report.longrepr,)
    reason = str(parts[-1]).removeprefix("Skipped: ")
    if not is_expected(reason):
        report.outcome = "failed"
        report.longrepr = (
            f"unexpected skip: {reason}\n{report.nodeid} should run here. Install what it lacks, or, if it may be skipped"
            " where all tests should run, add the reason to EXPECTED in tests/support/expected_skips.py."
        )


def is_expected(reason: str) -> bool:
    """Return whether a test may be skipped for this reason."""
    return any(re.match(pattern, reason) for pattern in EXPECTED)
