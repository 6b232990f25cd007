"""How a program measures and reports: in a temporary folder, with one JSON object last, or an error in one line.

Knows which errors are answers; nothing of what is measured.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packer.errors import OptionsError, PackError, ScanError
from reader.format.errors import StoreError
from scripts.common.figures import BenchmarkError, publish

_ANSWERS = (BenchmarkError, OptionsError, PackError, ScanError, StoreError)


def tune(**values: float) -> None:
    """Change fields of `reader.tuning.Tuning` for the rest of this program, and for those that it starts."""
    words = " ".join(f"{name}={value}" for name, value in values.items())
    os.environ.update(PIXPACK_TESTING="1", PIXPACK_TUNING=words)


def reported(
    name: str,
    measure: Callable[[Path], dict[str, Any]],
    *,
    text: Callable[[dict[str, Any]], str] | None = None,
    json: Path | None = None,
    work: Path | None = None,
    also: tuple[type[Exception], ...] = (),
    is_right: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> int:
    """Measure in a temporary folder and print what was found; returns the exit code.

    Args:
        text: draws the report for a person; without it the program has printed what it says.
        json: a file for the JSON line.
        work: the folder that holds the temporary one.
        also: errors that are answers, beside those of packs and stores.
        is_right: whether what was found is as it must be.
    """
    answers: tuple[type[Exception], ...] = (*_ANSWERS, *also)
    try:
        with tempfile.TemporaryDirectory(prefix=f"pixpack-{name}-", dir=work) as folder:
            report = {"benchmark": name} | measure(Path(folder).resolve())
    except answers as e:
        print(f"{name}: {e}", file=sys.stderr)
        return 1
    if text is not None:
        print(text(report))
    publish(report, json)
    return 0 if is_right(report) else 1
