"""YOLO's label files: a .txt an image, a box a line. A line that makes no sense rejects its image, with the line's number."""

from __future__ import annotations

import math
import os
import posixpath
from pathlib import Path

from packer.boxlabels import BoxLabels
from packer.classlists import MOST_CLASSES, numbered_classes, read_data_yaml
from packer.inputs import ScanError

# beside or above the label files: one name a line, and ultralytics' file
_CLASS_FILES = ("classes.txt", "obj.names")
_DATA_FILES = ("data.yaml", "data.yml")


def read_yolo(folder: Path, names: list[str], imposed: tuple[str, ...] | None) -> BoxLabels:
    """Read a .txt an image, at its relative path: lines of class index, centre x, centre y, width, height, in shares."""
    files = _text_files(folder)
    class_file = _class_file(folder)
    classes = imposed or (() if class_file is None else _read_classes(class_file))
    found = BoxLabels(len(names), classes)
    found.frames[:] = 1
    missing, used = [], set()
    for index, name in enumerate(names):
        label = next((label for label in _label_names(name) if label in files), None)
        if label is None:
            missing.append(name)
            continue
        used.add(label)
        _read_label_file(found, index, folder / label, label, "" if imposed or class_file is None else class_file.name)
    if not used:
        raise ScanError(
            f"{folder} has a label file for none of the {len(names)} images. Expected {_label_names(names[0])[0]} for {names[0]}."
        )
    if not classes:
        found.classes, gaps = numbered_classes(set(found.targets), str(folder))
        found.notes += gaps
        found.notes.append(
            f"{folder} has no classes.txt: classes are named by their numbers; --classes FILE takes their names."
        )
    found.note(missing, f"images have no label file in {folder} and no boxes")
    found.note(
        sorted(files - used - {class_file.name if class_file else ""}), f"label files of {folder} belong to no image"
    )
    return found


def _text_files(folder: Path) -> set[str]:
    """List the .txt below a folder, as paths relative to it."""
    found = set()
    for root, _, files in os.walk(folder, followlinks=True):
        inside = os.path.relpath(root, folder).replace(os.sep, "/")
        found |= {posixpath.normpath(f"{inside}/{file}") for file in files if file.endswith(".txt")}
    return found


def _label_names(name: str) -> list[str]:
    """Return where an image's label file may lie: a/images/b.jpg -> a/images/b.txt, a/labels/b.txt."""
    label = f"{posixpath.splitext(name)[0]}.txt"
    parts = label.split("/")
    places = [i for i, part in enumerate(parts[:-1]) if part == "images"]
    return [label, *("/".join([*parts[:i], "labels", *parts[i + 1 :]]) for i in places[-1:])]


def _class_file(folder: Path) -> Path | None:
    """Find the file of class names in a folder, or the one above it."""
    places = [place / name for place in (folder, folder.resolve().parent) for name in (*_CLASS_FILES, *_DATA_FILES)]
    return next(filter(Path.is_file, places), None)


def _read_classes(path: Path) -> tuple[str, ...]:
    if path.name in _DATA_FILES:
        return read_data_yaml(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except (OSError, ValueError) as e:
        raise ScanError(f"{path} cannot be read ({e}). Expected one class name a line.") from None
    names: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        name = line.strip()
        if not name:
            raise ScanError(f"line {number} of {path} is blank. A class is the number of its line: give each a name.")
        if names.setdefault(name, number) != number:
            raise ScanError(
                f"lines {names[name]} and {number} of {path} are both {name!r}. Give each class a name of its own."
            )
    return tuple(names)


def _read_label_file(found: BoxLabels, index: int, path: Path, label: str, class_file: str) -> None:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as e:
        found.refuse([index], f"its label file {label} cannot be read ({e.__class__.__name__})")
        return
    limit = len(found.classes) or MOST_CLASSES
    for number, line in enumerate(lines, start=1):
        values = [_number(word) for word in line.split()]
        if len(values) == 5 and all(map(math.isfinite, values)) and values[0].is_integer() and 0 <= values[0] < limit:
            target, x, y, width, height = values
            corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            found.add([index], corners, int(target))
        elif values:
            known = f", the class below {limit}" if found.classes else ""
            known += f" as in {class_file}" if class_file in _DATA_FILES else ""
            found.refuse(
                [index], f"line {number} of {label} is {line.strip()[:60]!r}; expected class x y width height{known}"
            )


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan
