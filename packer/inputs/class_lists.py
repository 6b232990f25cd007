"""Class lists: a store's, of each of its columns; a .json list; the data.yaml of YOLO; one name a line; or numbers as classes.

Also which spellings are one name. Reads these files alone; knows nothing of images. The only module that knows PyYAML.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection, Iterable
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.splits import stores_of
from packer.option_names import Option
from packer.text import counted, some
from reader.format.errors import StoreError
from reader.format.fields import Json
from reader.format.manifest import FurtherTarget, read_manifest

YAML_SUFFIXES = (".yaml", ".yml")

# More indices than any set of classes has: a column of ids was taken for labels.
MOST_CLASSES = 1_000_000
# So many classes, of which so few have an image, are none: ids again.
_MANY_NUMBERS, _EMPTY_FOR_ONE = 1_000, 10


def load_classes(source: str) -> tuple[str, ...]:
    """Read a class list from a store's manifest, a .json list, a data.yaml, or a text file with one name a line.

    Raises:
        ScanError: there is none, or a name stands twice.
    """
    path = Path(source)
    try:
        if path.is_dir():
            lists = [[*read_manifest(store).classes] for store in stores_of(path).values()]
            names = lists[0]
            if any(other != names for other in lists):
                raise ScanError(
                    f"{Option('classes', source)} holds splits with different class lists. Name the store of one."
                )
        elif path.suffix in YAML_SUFFIXES:
            return read_data_yaml(path)
        elif path.suffix == ".json":
            names = json.loads(path.read_bytes())
        else:
            names = named_lines(path)
    except ScanError:
        raise
    except StoreError as e:
        raise ScanError(f"{Option('classes', source)} cannot be read: {e}") from e
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        why = getattr(e, "strerror", None) or e
        raise ScanError(
            f"{Option('classes', source)} cannot be read ({why}). Expected a store, or a file with one name a line."
        ) from e
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ScanError(f"{Option('classes', source)} holds no list of names.")
    # a store's list stays as it is: its numbers are those of its rows
    if (twice := named_twice(names if not path.is_dir() else list(map(ascii, names)))) is not None:
        raise ScanError(f"{Option('classes', source)} names the class {twice!r} twice.")
    return tuple(names)


def named_lines(path: Path) -> list[str]:
    """Read a file of one name a line.

    Raises:
        ScanError: a line is blank, and names follow.
        OSError, ValueError: it cannot be read, or is not UTF-8.
    """
    lines = [line.rstrip("\r") for line in path.read_text(encoding="utf-8-sig").split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise ScanError(f"line {number} of {path} is blank. A class is the number of its line: give each a name.")
    return lines


def numbered_classes(numbers: Collection[int], source: str, where: str = "") -> tuple[tuple[str, ...], list[str]]:
    """Name classes by their numbers, 0 to the highest; returns them, and a note on numbers that no image has.

    Args:
        where: what has the highest of them, for an error; source if it is not given.

    Raises:
        ScanError: nearly all of them would have no image.

    Example:
        >>> numbered_classes({0, 2}, "l.csv")
        (('0', '1', '2'), ['l.csv has labels from 0 to 2, and no image of 1 class: 1.'])
    """
    count = max(numbers, default=-1) + 1
    present = sum(number >= 0 for number in numbers)
    if count > _MANY_NUMBERS and count > _EMPTY_FOR_ONE * present:
        raise ScanError(
            f"{where or source} has the label {count - 1}, one of {present} different labels: that would make {count} classes,"
            f" nearly all of them empty. If these are ids, list them in a file, one a line, and give that as"
            f" {Option('classes')}; if they are indices, list the names of all classes there."
        )
    return tuple(map(str, range(count))), gap_notes(numbers, source)


def gap_notes(numbers: Collection[int], source: str) -> list[str]:
    """Report which numbers below the highest no image has as its class."""
    count, present = max(numbers, default=-1) + 1, set(numbers)
    empty = [str(number) for number in range(count) if number not in present]
    if not empty:
        return []
    classes = counted(len(empty), "class", "classes")
    return [f"{source} has labels from 0 to {count - 1}, and no image of {classes}: {some(empty)}."]


def one_spelling(names: Iterable[str], known: Collection[str] = ()) -> dict[str, str]:
    """Return spelling -> the class's name, for names that Unicode writes in two ways (NFC and NFD), which are one class.

    Args:
        known: names that are given: other spellings of them are theirs. Of others that come in several, NFC is the name.

    Example:
        >>> one_spelling(["caf\u00e9", "cafe\u0301", "tea"]) == {"cafe\u0301": "caf\u00e9"}
        True
    """
    found = [name for name in names if not name.isascii()]
    given = {composed(name): name for name in known if not name.isascii()}
    spellings: dict[str, set[str]] = {}
    for name in found:
        spellings.setdefault(composed(name), set()).add(name)
    one: dict[str, str] = {}
    for joined, several in spellings.items():
        name = given.get(joined) or (joined if len(several) > 1 else next(iter(several)))
        one |= {spelling: name for spelling in several if spelling != name and spelling not in known}
    return one


def spelling_note(one: dict[str, str]) -> list[str]:
    """Report names that came in two spellings."""
    if not one:
        return []
    names = some([repr(name) for name in sorted(set(one.values()))])
    return [f"names are spelled in two ways (Unicode NFC and NFD), each pair is one class: {names}."]


def composed(name: str) -> str:
    """Return a name as Unicode NFC has it, in which both spellings are alike."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def named_twice(names: Iterable[str]) -> str | None:
    """Return a name that stands twice in a list, be it in two spellings; None where there is none."""
    seen = set()
    for name in names:
        if composed(name) in seen:
            return name
        seen.add(composed(name))
    return None


def read_data_yaml(path: Path) -> tuple[str, ...]:
    """Read the class names of ultralytics' data.yaml: `names`, a list, or number -> name; all else but `nc` is ignored.

    Raises:
        ScanError: it cannot be read, its names are none, or it counts others; or PyYAML is missing.
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
    names = _in_order(names, path) if isinstance(names, dict) else names
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ScanError(f"{path} has no names of classes. Expected 'names:' with a list, or with number: name.")
    if (twice := named_twice(names)) is not None:
        raise ScanError(f"{path} names the class {twice!r} twice. Give each class a name of its own.")
    if found.get("nc", str(len(names))) != str(len(names)):
        raise ScanError(f"{path} says nc: {found['nc']}, and names {len(names)} classes. Fix one of them.")
    return tuple(names)


def _in_order(names: dict[str, Json], path: Path) -> list[Json]:
    """Put number -> name in the order of the numbers, which must be 0, 1, 2, ..."""
    numbers = [str(number) for number in range(len(names))]
    if odd := sorted(set(names) - set(numbers)):
        raise ScanError(f"{path} numbers a class {odd[0]}. Expected 0 to {len(names) - 1}, each once.")
    return [names[number] for number in numbers]


def has_multi_hot(source: str) -> bool:
    """Whether a class list is that of a store whose images have several classes each; then those of another set have, too."""
    return Path(source).is_dir() and read_manifest(_store(source)).target_kind == "multi-hot"


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
        raise ScanError(f"{Option('classes', source)} cannot be read: {e}") from None


def _store(source: str) -> Path:
    """Return the store that a class list comes from: of splits, which have the same, the first."""
    return next(iter(stores_of(source).values()))
