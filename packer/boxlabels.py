"""Label files of boxes, COCO's json and YOLO's txt: which input each box belongs to, and which class it has.

What is wrong with one input's labels rejects that input, with the reason; what makes the whole file unclear ends the pack before
it begins. Knows no pixel and no row.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from packer.boxes import Boxes, BoxRules
from packer.inputs import Inputs, ScanError
from packer.options import PackOptions

# beside or above YOLO's label files: one name a line
_CLASS_FILES = ("classes.txt", "obj.names")
_MOST_CLASSES = 1_000_000
_NAMED = 3


@dataclass
class _Labels:
    """What label files say of inputs, as it is gathered; boxes come in any order."""

    count: int
    classes: tuple[str, ...] = ()
    owners: array[int] = field(default_factory=lambda: array("q"))
    corners: array[float] = field(default_factory=lambda: array("d"))
    targets: array[int] = field(default_factory=lambda: array("q"))
    refused: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.frames = np.zeros((self.count, 2))

    def add(self, inputs: Iterable[int], corners: tuple[float, float, float, float], target: int) -> None:
        for index in inputs:
            self.owners.append(index)
            self.corners.extend(corners)
            self.targets.append(target)

    def refuse(self, inputs: Iterable[int], reason: str) -> None:
        for index in inputs:
            self.refused.setdefault(index, reason)

    def note(self, found: list[str], what: str) -> None:
        """Say of how many something is true, and name the first; not at all where it is none."""
        if found:
            named = ", ".join(found[:_NAMED]) + (", ..." if len(found) > _NAMED else "")
            self.notes.append(f"{len(found)} {what}: {named}.")

    def boxes(self, rules: BoxRules) -> Boxes:
        corners = np.array(self.corners, np.float64).reshape(-1, 4)
        owners, targets = np.array(self.owners, np.int64), np.array(self.targets, np.int64)
        return Boxes.grouped(owners, corners, targets, self.frames, rules)


def give_boxes(parts: dict[str, Inputs], options: PackOptions, classes: tuple[str, ...] | None) -> None:
    """Give the inputs of all splits the boxes that --boxes names, and the class list of the boxes.

    Args:
        classes: the class list to impose.

    Raises:
        ScanError: there is no such file or folder, or it is not understood; the inputs have classes of their own.
    """
    path = Path(options.boxes or "")
    names = [f"{split}/{name}" if split else name for split, inputs in parts.items() for name in _names(inputs)]
    found = (_read_yolo if path.is_dir() else _read_coco)(path, names, classes)
    boxes = found.boxes(BoxRules(options.min_visibility, options.max_boxes, options.upright_labels))
    start = 0
    for inputs in parts.values():
        span = range(start, start := start + len(inputs))
        _check_own_labels(inputs, path)
        inputs.boxes = boxes.chosen(span)
        inputs.classes = found.classes
        inputs.refused = {i - span.start: found.refused[i] for i in span if i in found.refused} | inputs.refused
    next(iter(parts.values())).notes += found.notes


def _names(inputs: Inputs) -> list[str]:
    """Return the paths of inputs as label files may give them: of a member, its name in the archive."""
    if not inputs.archives:
        return inputs.paths
    archives = inputs.places.tolist()
    return [path[len(inputs.archives[place[0]].path) + 1 :] for path, place in zip(inputs.paths, archives, strict=True)]


def _check_own_labels(inputs: Inputs, path: Path) -> None:
    if inputs.classes:
        raise ScanError(
            f"{path} has classes, and so have the targets of the images ({inputs.classes[0]!r} is one). A store has one class"
            " list: leave out the column of targets, or --boxes."
        )
    for name in ("boxes", "box_targets", "box_count"):
        if name in inputs.extras:
            raise ScanError(f"the inputs have a column {name!r} already. Rename it, or leave out --boxes.")


class _Finder:
    """Finds inputs by the path that a label file gives: the same, or one of the two is the end of the other."""

    def __init__(self, names: list[str], source: Path) -> None:
        self._names, self._source = names, source
        self._by_base: dict[str, list[int]] = {}
        for index, name in enumerate(names):
            self._by_base.setdefault(posixpath.basename(name), []).append(index)

    def find(self, name: str) -> list[int]:
        """Return all inputs of that path: one that is listed twice is two.

        Raises:
            ScanError: several images end so.
        """
        name = posixpath.normpath(name.replace("\\", "/"))
        found = [i for i in self._by_base.get(posixpath.basename(name), ()) if _is_end(self._names[i], name)]
        exact = [i for i in found if self._names[i] == name]
        different = sorted({self._names[i] for i in exact or found})
        if len(different) > 1:
            raise ScanError(f"{self._source} names {name!r}, which may be {different[0]} or {different[1]}.")
        return exact or found


def _is_end(one: str, other: str) -> bool:
    return one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")


# -- COCO


def _read_coco(path: Path, names: list[str], imposed: tuple[str, ...] | None) -> _Labels:
    """Read a COCO json: images, annotations with bbox [x, y, width, height] in pixels, categories."""
    content = _load(path)
    index_of, classes = _categories(path, content["categories"], imposed)
    found = _Labels(len(names), classes)
    owners = _images(path, content["images"], found, _Finder(names, path))
    crowds, strays = 0, []
    for number, annotation in enumerate(content["annotations"], start=1):
        inputs = owners.get(_key(annotation, "image_id"))
        if inputs is None:
            strays.append(f"annotation {number}")
        elif annotation.get("iscrowd") == 1:
            crowds += len(inputs)
        else:
            _add_annotation(found, inputs, annotation, f"annotation {number} of {path.name}", index_of)
    unnamed = sorted(set(range(len(names))).difference(*owners.values()))
    found.note(strays, f"annotations of {path.name} are for images that it does not list")
    found.note([names[i] for i in unnamed], f"images are not listed in {path.name} and have no boxes")
    if crowds:
        found.notes.append(f"{crowds} boxes around crowds (iscrowd) are left out.")
    return found


def _load(path: Path) -> dict[str, list[Any]]:
    expected = "Expected COCO's json, with lists of images, annotations and categories, or a folder of YOLO's .txt."
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = json.load(file)
    except OSError as e:
        raise ScanError(f"--boxes {path} cannot be read: {e.strerror}. {expected}") from None
    except json.JSONDecodeError as e:
        raise ScanError(f"line {e.lineno} of {path} is no JSON: {e.msg}. {expected}") from None
    except (ValueError, RecursionError) as e:
        raise ScanError(f"{path} is no JSON: {e}. {expected}") from None
    for name in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(name), list):
            raise ScanError(f"{path} has no list {name!r}. {expected}")
    return content


def _key(record: Any, name: str) -> int | str | None:
    """Return an id, None where there is none."""
    value = record.get(name) if isinstance(record, dict) else None
    return value if isinstance(value, int | str) else None


def _categories(
    path: Path, categories: list[Any], imposed: tuple[str, ...] | None
) -> tuple[dict[Any, int], tuple[str, ...]]:
    """Return category id -> class index, and the classes: in the order of the ids, unless a list is imposed."""
    names: dict[Any, str] = {}
    for number, record in enumerate(categories, start=1):
        key = _key(record, "id")
        if key is None or not isinstance(record.get("name"), str):
            raise ScanError(f"category {number} of {path} is {record!r}. Expected an id and a name.")
        names[key] = record["name"]
    ordered = sorted(names, key=lambda key: (isinstance(key, str), key))
    classes = tuple(names[key] for key in ordered) if imposed is None else imposed
    twice = next((name for name in classes if classes.count(name) > 1), None)
    if twice is not None:
        raise ScanError(f"{path} has two categories {twice!r}. Give each a name of its own.")
    unknown = next((names[key] for key in ordered if names[key] not in classes), None)
    if unknown is not None:
        raise ScanError(f"{path} has the class {unknown!r} that --classes does not list ({len(classes)} classes).")
    return {key: classes.index(names[key]) for key in ordered}, classes


def _images(path: Path, images: list[Any], found: _Labels, finder: _Finder) -> dict[Any, list[int]]:
    """Return image id -> its inputs, and set their frames."""
    owners: dict[Any, list[int]] = {}
    missing = []
    for number, record in enumerate(images, start=1):
        key = _key(record, "id")
        if key is None or not isinstance(record.get("file_name"), str):
            raise ScanError(f"image {number} of {path} is {record!r}. Expected an id and a file_name.")
        inputs = finder.find(record["file_name"])
        owners[key] = inputs
        if not inputs:
            missing.append(record["file_name"])
        size = record.get("width"), record.get("height")
        if all(_is_finite(side) and side > 0 for side in size):
            found.frames[inputs] = size
    found.note(missing, f"images of {path.name} are not among the inputs")
    return owners


def _add_annotation(
    found: _Labels, inputs: list[int], annotation: dict[str, Any], where: str, index_of: dict[Any, int]
) -> None:
    box, category = annotation.get("bbox"), _key(annotation, "category_id")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_finite, box)):
        found.refuse(inputs, f"{where} has the bbox {box!r}; expected x, y, width, height")
    elif category not in index_of:
        found.refuse(inputs, f"{where} has the category_id {category!r}, which is no category there")
    else:
        x, y, width, height = box
        found.add(inputs, (x, y, x + width, y + height), index_of[category])


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# -- YOLO


def _read_yolo(folder: Path, names: list[str], imposed: tuple[str, ...] | None) -> _Labels:
    """Read a .txt an image, at its relative path: lines of class index, centre x, centre y, width, height, in shares."""
    files = _text_files(folder)
    class_file, listed = _class_list(folder)
    classes = imposed or listed
    found = _Labels(len(names), classes)
    found.frames[:] = 1
    missing, used = [], set()
    for index, name in enumerate(names):
        label = next((label for label in _label_names(name) if label in files), None)
        if label is None:
            missing.append(name)
            continue
        used.add(label)
        _read_label_file(found, index, folder / label, label)
    if not classes:
        found.classes = tuple(map(str, range(max(found.targets, default=-1) + 1)))
        found.notes.append(
            f"{folder} has no classes.txt: classes are named by their numbers; --classes FILE takes their names."
        )
    found.note(missing, f"images have no label file in {folder} and no boxes")
    found.note(sorted(files - used - {class_file}), f"label files of {folder} belong to no image")
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


def _class_list(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the file of class names in a folder, or the one above it, and the names; "" and () where there is none."""
    for place in (folder, folder.resolve().parent):
        for name in _CLASS_FILES:
            if (place / name).is_file():
                try:
                    lines = (place / name).read_text(encoding="utf-8-sig").splitlines()
                except (OSError, ValueError) as e:
                    raise ScanError(f"{place / name} cannot be read ({e}). Expected one class name a line.") from None
                return name, tuple(line.strip() for line in lines if line.strip())
    return "", ()


def _read_label_file(found: _Labels, index: int, path: Path, label: str) -> None:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as e:
        found.refuse([index], f"its label file {label} cannot be read ({e.__class__.__name__})")
        return
    limit = len(found.classes) or _MOST_CLASSES
    for number, line in enumerate(lines, start=1):
        values = [_number(word) for word in line.split()]
        if len(values) == 5 and all(map(math.isfinite, values)) and values[0].is_integer() and 0 <= values[0] < limit:
            target, x, y, width, height = values
            corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            found.add([index], corners, int(target))
        elif values:
            known = f", the class below {limit}" if found.classes else ""
            found.refuse(
                [index], f"line {number} of {label} is {line.strip()[:60]!r}; expected class x y width height{known}"
            )


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan
