"""Imported when Python starts, by a .pth file of scripts/gpu/on_simulated_gpu: installs operators.py once torch is imported."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any


class _AfterTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        found: Any = importlib.util.find_spec("torch")
        execute = found.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            import operators

            operators.install()

        found.loader.exec_module = exec_module
        return found


sys.meta_path.insert(0, _AfterTorch())
