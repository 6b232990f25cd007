"""Class lists that a user gives: a store's, of each of its columns; a .json list; the data.yaml of YOLO; or one name a line.

Reads these files alone; knows nothing of images. The only module that knows PyYAML.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from packer.inputs import ScanError
from packer.splits import stores_of
from reader.manifest import MANIFEST, FurtherTarget, StoreError, read_manifest

YAML_SUFFIXES = (".yaml", ".yml")


def load_classes(source: str) -> tuple[str, ...]:
    """Read a class list from a store's manifest, a .json list, a data.yaml, or a text file with one name a line.

    Raises:
        ScanError: there is none, or a name stands twice.
    """
    path = Path(source)
    try:
        if path.is_dir():
            lists = [json.loads((store / MANIFEST).read_bytes())["classes"] for store in stores_of(path).values()]
            names = lists[0]
            if any(other != names for other in lists):
                raise ScanError(f"--classes {source} holds splits with different class lists. Name the store of one.")
        elif path.suffix in YAML_SUFFIXES:
            return read_data_yaml(path)
        elif path.suffix == ".json":
            names = json.loads(path.read_bytes())
        else:
            names = [line.rstrip("\r") for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    except ScanError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        why = getattr(e, "strerror", None) or e
        raise ScanError(
            f"--classes {source} cannot be read ({why}). Expected a store, or a file with one name a line."
        ) from e
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ScanError(f"--classes {source} holds no list of names.")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ScanError(f"--classes {source} names the class {twice!r} twice.")
    return tuple(names)


def read_data_yaml(path: Path) -> tuple[str, ...]:
    """Read the class names of ultralytics' data.yaml: `names`, a list, or number -> name; all else but `nc` is passed over.

    Raises:
        ScanError: it cannot be read, its names are none, or it counts others; or PyYAML is missing.
    """
    try:
        import yaml
    except ImportError:
        raise ScanError(
            f"{path} needs PyYAML: pip install 'pixpack[yaml]', or give --classes FILE with one name a line."
        ) from None
    try:
        # every scalar stays text: to YAML 1.1 a class called "no" would be False
        found = yaml.load(path.read_bytes(), Loader=yaml.BaseLoader)
    except (OSError, yaml.YAMLError, RecursionError) as e:
        raise ScanError(
            f"{path} cannot be read ({' '.join(str(e).split())}). Expected the data.yaml of YOLO."
        ) from None
    names = found.get("names") if isinstance(found, dict) else None
    names = _in_order(names, path) if isinstance(names, dict) else names
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ScanError(f"{path} has no names of classes. Expected 'names:' with a list, or with number: name.")
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise ScanError(f"{path} names the class {twice!r} twice. Give each class a name of its own.")
    if found.get("nc", str(len(names))) != str(len(names)):
        raise ScanError(f"{path} says nc: {found['nc']}, and names {len(names)} classes. Mend one of them.")
    return tuple(names)


def _in_order(names: dict[str, Any], path: Path) -> list[Any]:
    """Put number -> name in the order of the numbers, which must be 0, 1, 2, ..."""
    numbers = [str(number) for number in range(len(names))]
    if odd := sorted(set(names) - set(numbers)):
        raise ScanError(f"{path} numbers a class {odd[0]}. Expected 0 to {len(names) - 1}, each once.")
    return [names[number] for number in numbers]


def has_multi_hot(source: str) -> bool:
    """Whether a class list is that of a store whose images have several classes each; then those of another set have, too."""
    try:
        return bool(json.loads((_store(source) / MANIFEST).read_bytes())["targets"]["kind"] == "multi-hot")
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
        return dict(read_manifest(_store(source)).further_targets)
    except StoreError as e:
        raise ScanError(f"--classes {source} cannot be read: {e}") from None


def _store(source: str) -> Path:
    """Return the store that a class list comes from: of splits, which share theirs, the first."""
    return next(iter(stores_of(source).values()))
