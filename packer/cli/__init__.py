"""The command `pack`: the only package that imports click, prints reports or knows an exit code.

Never decodes an image or writes a store itself.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name not in ("cli", "main", "run"):
        raise AttributeError(f"module 'packer.cli' has no attribute {name!r}")
    from packer.cli import app

    return getattr(app, name)
