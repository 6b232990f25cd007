"""Refuses a command that reads as a training program does where torch is not installed: all others do without."""

from __future__ import annotations

import importlib.util

from packer.errors import PackError


def need_torch(command: str) -> None:
    """Raise PackError where torch or tensordict is missing."""
    for name in ("torch", "tensordict"):
        if importlib.util.find_spec(name) is None:
            raise PackError(
                f"{command} reads as a training program does and needs {name}, which is not installed here."
                " Run it where you train, or: pip install torch tensordict"
            )
