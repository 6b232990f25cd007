"""Checkpoints of the examples: written completely or not at all."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch


def save(file: Path, parts: dict[str, Any]) -> None:
    """Write beside, then rename: an interruption at any time leaves a complete checkpoint."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f"{file.name}.part")
    torch.save({name: part.state_dict() for name, part in parts.items()}, beside)
    os.replace(beside, file)


def restore(file: Path, parts: dict[str, Any], device: torch.device | str) -> None:
    """Restore every part from a checkpoint.

    Raises:
        OSError: there is no such file.
        ValueError: it is not a checkpoint, or is from another store or network.
    """
    try:
        saved = torch.load(file, map_location=device)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, RuntimeError) as e:
        raise ValueError(f"{file} is not a checkpoint of this network. Name another file with --checkpoint.") from e
