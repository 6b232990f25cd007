"""torchvision, also where its compiled part was built for another torch, such as the one for CUDA beside a torch for the CPU.

Its transforms v2 and its ImageFolder are Python and import there; its image decoders and operators such as nms do not work.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

import torch

from scripts import ROOT

# Operators that its Python part names while it is imported; without the compiled part nobody has declared them.
_NAMED = ("nms", "qnms")
_declared: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Import torchvision, its datasets and transforms v2: from PIXPACK_TORCHVISION, .venv/torchvision or where Python finds it.

    Raises:
        ImportError: there is none, or it does not fit this torch.
    """
    before = [*sys.path]
    sys.path.insert(0, os.environ.get("PIXPACK_TORCHVISION") or str(ROOT / ".venv" / "torchvision"))
    try:
        return _imported()
    except RuntimeError as e:
        if "operator torchvision::nms does not exist" not in str(e):
            raise ImportError(str(e)) from e
        _declare_operators()
        return _imported()
    finally:
        # what is imported may put folders of its own in front
        sys.path[:] = before


def torchvision_v2() -> ModuleType:
    """Return torchvision's transforms v2; exits with what to install where it cannot be imported."""
    try:
        v2: ModuleType = import_torchvision().transforms.v2
    except ImportError as e:
        raise SystemExit(
            f"torchvision cannot be imported ({e}). Install the one of your torch, of torch 2.13.0 by"
            " pip install --no-deps torchvision==0.28.0 (without --no-deps, plain Pillow may replace Pillow-SIMD); or name its"
            " folder in PIXPACK_TORCHVISION."
        ) from e
    return v2


def _imported() -> ModuleType:
    import torchvision.datasets
    import torchvision.transforms.v2

    found: ModuleType = torchvision
    return found


def _declare_operators() -> None:
    library = torch.library.Library("torchvision", "DEF")
    for name in _NAMED:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    # what the failed import has left
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
