"""Programs for development, run from the root of the repository: `python -m scripts.bench read`.

Knows the repository's folder and how another process imports from it. packer and reader never import it.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def environment(*folders: str | os.PathLike[str]) -> dict[str, str]:
    """Return this process's environment, in which Python also imports from these folders and from the repository."""
    paths = [*map(str, [*folders, ROOT]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
