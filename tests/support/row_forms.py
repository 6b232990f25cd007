"""Stores of the same images in each form of rows, which no test may change, and the content of their files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_tree

from packer import pack
from reader.format.manifest import PIXELS

FRAMES = "_tensordict/frames.memmap"
WAYS: dict[str, dict[str, Any]] = {
    "equal": {"size": 32},
    "padded": {"size": (24, 40), "fit": "pad"},
    "gray": {"size": 32, "channels": "gray"},
    "rgba": {"size": 32, "channels": "rgba"},
    "own": {"fit": "none"},
}
Formed = Callable[[str, int], Path]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images."""
    return make_tree(tmp_path_factory.mktemp("forms") / "images")


@pytest.fixture(scope="session")
def formed(tree: Path) -> Formed:
    """Pack them in one of the WAYS, as JPEGs of a quality; 0: raw."""

    @functools.cache
    def packed(way: str, quality: int) -> Path:
        out = tree.parent / f"{way}-{quality}"
        pack(tree, out, workers=1, compress=quality or None, **WAYS[way])
        return out

    return packed


def table(store: Path) -> list[list[int]]:
    """Return the start and end of each row in its file."""
    found: list[list[int]] = np.fromfile(store / FRAMES, "<i8").reshape(-1, 2).tolist()
    return found


def stored(store: Path) -> list[bytes]:
    """Return the bytes of each row."""
    pixels = (store / PIXELS).read_bytes()
    return [pixels[begin:end] for begin, end in table(store)]


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))
