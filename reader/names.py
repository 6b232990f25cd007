"""What a network file system remembers of names, asked anew of its server.

NFS trusts for up to a minute what a name stood for, or that it was missing, and how large a file was; opening a folder or
a file asks. Knows nothing of stores.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")


def look_again(path: Path) -> None:
    """Have the names on the way to path, its own too, looked up anew by whoever uses them next."""
    for folder in reversed(path.absolute().parents):
        with contextlib.suppress(OSError):  # closed to us, or not there: the next look will tell
            os.close(os.open(folder, os.O_RDONLY))


def or_again(path: Path, look: Callable[[], _T]) -> _T:
    """Return what look returns; where it finds that path is missing, it looks once more, at what the server has."""
    try:
        return look()
    except FileNotFoundError:
        look_again(path)
        return look()
