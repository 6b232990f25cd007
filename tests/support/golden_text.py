"""Texts that tests/golden keeps: compared as they are, and written again only where the environment says so."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

VARIABLE = "PIXPACK_WRITE_GOLDEN"
ROOT = Path(__file__).parents[2]


def check_text(golden: Path, found: str) -> None:
    """See that a text is that of a file; under PIXPACK_WRITE_GOLDEN=1 the file becomes that text, and git shows the change."""
    if os.environ.get(VARIABLE) == "1":
        golden.write_text(found, encoding="utf-8")
    kept = golden.read_text(encoding="utf-8") if golden.exists() else ""
    name = str(golden.relative_to(ROOT))
    changes = difflib.unified_diff(kept.splitlines(), found.splitlines(), name, "found", lineterm="", n=2)
    again = f"If this is meant: {VARIABLE}=1 python -m pytest and the name of this test write {name}."
    assert found == kept, "\n".join([*changes, again])
