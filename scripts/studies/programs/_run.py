"""Runs one program in a process of its own: `python -m scripts.studies.programs._run FILE DATA ...`.

Knows how torchvision is imported beside a torch whose C part it was not built for: its Python part is enough for loading.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import torch

# What of torchvision's C part its Python part names when it is imported.
_OPERATORS = ("nms", "qnms")
_held: list[torch.library.Library] = []


def main() -> None:
    """Run the program that the first word names, with the words behind it."""
    declare_operators()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


def declare_operators() -> None:
    """Declare the operators of torchvision's C part where that does not load: its wheels want the torch they are built for."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or _held:
        return
    try:
        for library in Path(found.origin).parent.glob("_C*.so"):
            torch.ops.load_library(str(library))
    except OSError:
        _held.append(torch.library.Library("torchvision", "DEF"))
        for name in _OPERATORS:
            _held[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


if __name__ == "__main__":
    main()
