"""Class lists that a user gives with --classes: a store's, of each of its columns; a .json list; or one name a line.

Reads these files alone; knows nothing of images.
"""

from __future__ import annotations

import json
from pathlib import Path

from packer.inputs import ScanError
from reader.manifest import FurtherTarget, StoreError, read_manifest


def load_classes(source: str) -> tuple[str, ...]:
    """Read a class list from a store's manifest, a .json list, or a text file with one name a line.

    Raises:
        ScanError: there is none, or a name stands twice.
    """
    path = Path(source)
    try:
        if path.is_dir():
            names = json.loads((path / "manifest.json").read_bytes())["classes"]
        elif path.suffix == ".json":
            names = json.loads(path.read_bytes())
        else:
            names = [line.rstrip("\r") for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise ScanError(
            f"--classes {source} cannot be read ({e}). Expected a store, or a file with one name a line."
        ) from e
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ScanError(f"--classes {source} holds no list of names.")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ScanError(f"--classes {source} names the class {twice!r} twice.")
    return tuple(names)


def has_multi_hot(source: str) -> bool:
    """Whether a class list is that of a store whose images have several classes each; then those of another set have, too."""
    try:
        return bool(json.loads((Path(source) / "manifest.json").read_bytes())["targets"]["kind"] == "multi-hot")
    except OSError:  # a list of names
        return False


def further_targets(source: str | None) -> dict[str, FurtherTarget]:
    """Return what a store has of each target column but its first; {} of any other class list.

    Raises:
        ScanError: the store cannot be read.
    """
    if source is None or not Path(source).is_dir():
        return {}
    try:
        return dict(read_manifest(source).further_targets)
    except StoreError as e:
        raise ScanError(f"--classes {source} cannot be read: {e}") from None
