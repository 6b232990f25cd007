"""Class lists: from a store, YOLO's data.yaml or a file of one name a line; or numbers as classes. All names are NFC.

Reads only these files; knows nothing about images. The only module that knows PyYAML.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.splits import stores_of
from packer.option_names import Option
from packer.sources.roots import check_system
from reader.format.errors import StoreError
from reader.format.manifest import read_manifest

# More indices than any set of classes has: the column holds ids, not labels.
MOST_CLASSES = 1_000_000


def load_classes(source: str) -> tuple[str, ...]:
    """Read a class list from a store's manifest, a data.yaml, or a text file with one name a line.

    Raises:
        ScanError: it has no class list, or lists a name twice.
    """
    path = Path(source)
    try:
        if path.is_dir():
            lists = {read_manifest(store).classes for store in stores_of(path).values()}
            if len(lists) > 1:
                raise ScanError(f"{source} holds splits with different class lists. Name the store of one.")
            return tuple(map(composed, lists.pop()))
        if path.suffix in (".yaml", ".yml"):
            return read_data_yaml(path)
        names = path.read_text(encoding="utf-8-sig").rstrip().split("\n")
    except StoreError as e:
        raise ScanError(f"{Option('classes', source)} cannot be read: {e}") from e
    except ScanError:
        raise
    except (OSError, ValueError) as e:
        if isinstance(e, OSError):
            check_system(source, e)
        why = getattr(e, "strerror", None) or e
        raise ScanError(
            f"{Option('classes', source)} cannot be read ({why}). Expected a store, or a file with one class a line."
        ) from e
    return checked_names(names, source)


def checked_names(names: object, source: object) -> tuple[str, ...]:
    """Return a class list in Unicode's NFC; raises ScanError if it is not a list of names, or repeats one."""
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ScanError(f"{source} holds no list of class names. Expected one name a line, without blank lines.")
    found = tuple(map(composed, names))
    if len({*found}) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise ScanError(f"{source} names the class {twice!r} twice. Give each class a name of its own.")
    return found


def composed(name: str) -> str:
    """Return a name in Unicode's NFC, in which é is one character, however it is spelled."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def unknown_class(where: str, name: str, classes: Iterable[str]) -> ScanError:
    """Return the error for a class, found in `where`, that the imposed list lacks."""
    return ScanError(
        f"{where} has the class {name!r} that {Option('classes')} does not list ({len([*classes])} classes)."
    )


def read_data_yaml(path: Path) -> tuple[str, ...]:
    """Read the class names of ultralytics' data.yaml: `names`, a list, or number -> name; all else is ignored.

    Raises:
        ScanError: it cannot be read, its names are invalid, or PyYAML is missing.
    """
    try:
        import yaml
    except ImportError:
        raise ScanError(
            f"{path} needs PyYAML: pip install 'pixpack[yaml]', or give {Option('classes')} a file with one name a line."
        ) from None
    try:
        # every scalar stays text: to YAML 1.1 a class called "no" would be False
        found = yaml.load(path.read_bytes(), Loader=yaml.BaseLoader)
    except (OSError, yaml.YAMLError, RecursionError) as e:
        raise ScanError(
            f"{path} cannot be read ({' '.join(str(e).split())}). Expected the data.yaml of YOLO."
        ) from None
    names = found.get("names") if isinstance(found, dict) else None
    if isinstance(names, dict):
        numbers = [str(number) for number in range(len(names))]
        if odd := sorted(set(names) - set(numbers)):
            raise ScanError(f"{path} numbers a class {odd[0]}. Expected 0 to {len(names) - 1}, each once.")
        names = [names[number] for number in numbers]
    if not isinstance(names, list):
        raise ScanError(f"{path} has no names of classes. Expected 'names:' with a list, or with number: name.")
    return checked_names(names, path)
