"""Label files of boxes, COCO's json or a folder of YOLO's .txt, and which input each box belongs to.

What is wrong with one image's boxes rejects that image, with the reason; what makes all of the labels unclear ends the pack
before it begins.
"""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from packer.errors import ScanError
from packer.inputs.boxes import Boxes
from packer.inputs.class_lists import MOST_CLASSES, checked_names, composed, load_classes, unknown_class
from packer.inputs.samples import Inputs
from packer.option_names import Option
from packer.options import InputOptions
from packer.sources.roots import check_system, files_below

_EXPECTED = "Expected COCO's json, with lists of images, annotations and categories, or a folder of YOLO's .txt."
# beside or above the label files: one name a line, and ultralytics' file
_DATA_FILES = ("data.yaml", "data.yml")
_CLASS_FILES = ("classes.txt", "obj.names", *_DATA_FILES)


@dataclass
class _Labels:
    """The boxes of label files, in any order, as they are gathered; of which inputs anything is said."""

    names: list[str]
    classes: tuple[str, ...]
    owners: array[int] = field(default_factory=lambda: array("q"))
    corners: array[float] = field(default_factory=lambda: array("d"))
    targets: array[int] = field(default_factory=lambda: array("q"))
    refused: dict[int, str] = field(default_factory=dict)
    labelled: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.frames = np.zeros((len(self.names), 2))

    def add(self, inputs: Iterable[int], corners: tuple[float, ...], target: int) -> None:
        """Give inputs a box: x0, y0, x1, y1 in their frame."""
        for index in inputs:
            self.owners.append(index)
            self.corners.extend(corners)
            self.targets.append(target)

    def refuse(self, inputs: Iterable[int], reason: str) -> None:
        """Reject inputs; of several reasons the first is reported."""
        for index in inputs:
            self.refused.setdefault(index, reason)

    def boxes(self) -> Boxes:
        """Return all boxes, input after input."""
        corners = np.array(self.corners, np.float64).reshape(-1, 4)
        owners, targets = np.array(self.owners, np.int64), np.array(self.targets, np.int64)
        return Boxes.grouped(owners, corners, targets, self.frames)


def give_boxes(splits: dict[str, Inputs], options: InputOptions, classes: tuple[str, ...] | None) -> None:
    """Give the inputs of all splits the boxes that --boxes names, and the class list of the boxes.

    Args:
        classes: the class list to impose.

    Raises:
        ScanError: there is no such file or folder, or it is not understood; the inputs have classes of their own.
    """
    path = Path(options.boxes or "")
    if named := next((inputs.classes[0] for inputs in splits.values() if inputs.classes), ""):
        raise ScanError(
            f"{path} has classes, and so have the targets of the images ({named!r} is one). A store has one class"
            f" list: leave out the column of targets, or {Option('boxes')}."
        )
    names = [name for split, inputs in splits.items() for name in label_paths(split, inputs)]
    found = (_read_yolo if path.is_dir() else _read_coco)(path, names, classes)
    boxes, start = found.boxes(), 0
    digest = hashlib.sha256(boxes.encoded() + repr(sorted(found.refused.items())).encode("utf-8", "surrogatepass"))
    for inputs in splits.values():
        span = range(start, start := start + len(inputs))
        inputs.boxes = boxes.chosen(span)
        inputs.classes = found.classes
        inputs.labels["boxes"] = f"sha256:{digest.hexdigest()}"
        inputs.refused = {i - span.start: found.refused[i] for i in span if i in found.refused} | inputs.refused
    if missing := [name for index, name in enumerate(names) if index not in found.labelled]:
        note = (
            f"{path} says nothing of {len(missing):,} of {len(names):,} images, {missing[0]} first: they have no boxes."
        )
        next(iter(splits.values())).notes.append(note)


def label_paths(split: str, inputs: Inputs) -> list[str]:
    """Return the paths of inputs as labels may give them: with the split's folder; of a member, its name in the archive."""
    if inputs.archives:
        return [inputs.above + path for path in inputs.paths]
    return [f"{split}/{path}" for path in inputs.paths] if split else inputs.paths[:]


def _read_coco(path: Path, names: list[str], imposed: tuple[str, ...] | None) -> _Labels:
    """Read a COCO json: images, annotations with bbox [x, y, width, height] in pixels, categories. Crowds are left out."""
    content = _load(path)
    index_of, classes = _categories(path, content["categories"], imposed)
    found, finder = _Labels(names, classes), _InputIndex(names, path)
    owners: dict[int | str | None, list[int]] = {}
    for number, record in enumerate(content["images"], start=1):
        key = _key(record, "id")
        if key is None or not isinstance(record.get("file_name"), str):
            raise ScanError(f"image {number} of {path} is {record!r}. Expected an id and a file_name.")
        if key in owners:
            raise ScanError(f"{path} has two images with the id {key!r}, {record['file_name']!r} the second.")
        owners[key] = inputs = finder.find(record["file_name"])
        found.labelled.update(inputs)
        size = record.get("width"), record.get("height")
        if all(_is_finite(side) and side > 0 for side in size):
            found.frames[inputs] = size
    if not found.labelled:
        raise ScanError(f"{path} lists none of the {len(names)} images, {names[0]} among them, by its file_name.")
    annotations = content["annotations"]
    for number, annotation in enumerate(annotations, start=1):
        inputs = owners.get(_key(annotation, "image_id"), [])
        if not inputs or annotation.get("iscrowd") == 1:
            continue
        box, category, where = (
            annotation.get("bbox"),
            _key(annotation, "category_id"),
            f"annotation {number} of {path.name}",
        )
        if category not in index_of:
            found.refuse(inputs, f"{where} has the category_id {category!r}, which is no category there")
        elif not isinstance(box, list) or len(box) != 4 or not all(map(_is_finite, box)):
            found.refuse(inputs, f"{where} has the bbox {repr(box)[:80]}; expected x, y, width, height")
        else:
            x, y, width, height = box
            found.add(inputs, (x, y, x + width, y + height), index_of[category])
    if annotations and not any(_key(annotation, "image_id") in owners for annotation in annotations):
        raise ScanError(
            f"no annotation of {path} is for an image that it lists: the first has the image_id"
            f" {_key(annotations[0], 'image_id')!r}, the first image the id {next(iter(owners))!r}."
        )
    return found


def _load(path: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as e:
        check_system(str(path), e)
        raise ScanError(f"{Option('boxes', path)} cannot be read: {e.strerror}. {_EXPECTED}") from None
    except (ValueError, RecursionError) as e:
        raise ScanError(f"{path} is not JSON: {e}. {_EXPECTED}") from None
    for name in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(name), list):
            raise ScanError(f"{path} has no list {name!r}. {_EXPECTED}")
    return content


def _key(record: object, name: str) -> int | str | None:
    """Return an id, or None."""
    value = record.get(name) if isinstance(record, dict) else None
    return value if isinstance(value, int | str) else None


def _categories(
    path: Path, categories: list[Any], imposed: tuple[str, ...] | None
) -> tuple[dict[int | str | None, int], tuple[str, ...]]:
    """Return category id -> class index, and the classes: in the order of the ids, unless a list is imposed."""
    names: dict[int | str | None, str] = {}
    for number, record in enumerate(categories, start=1):
        key = _key(record, "id")
        if key is None or not isinstance(record.get("name"), str):
            raise ScanError(f"category {number} of {path} is {record!r}. Expected an id and a name.")
        if names.setdefault(key, name := composed(record["name"])) != name:
            raise ScanError(f"{path} has two categories with the id {key!r}, {names[key]!r} and {name!r}.")
    ordered = sorted(names, key=lambda key: (isinstance(key, str), key))
    classes = imposed or (checked_names([names[key] for key in ordered], path) if names else ())
    if unknown := next((names[key] for key in ordered if names[key] not in classes), ""):
        raise unknown_class(str(path), unknown, classes)
    return {key: classes.index(names[key]) for key in ordered}, classes


class _InputIndex:
    """Finds inputs by the path that a label file gives: the same, or one of the two is the end of the other."""

    def __init__(self, names: list[str], source: Path) -> None:
        self._names, self._source = [*map(composed, names)], source
        self._by_base: dict[str, list[int]] = {}
        for index, name in enumerate(self._names):
            self._by_base.setdefault(posixpath.basename(name), []).append(index)

    def find(self, name: str) -> list[int]:
        """Return all inputs of that path: one that is listed twice is two.

        Raises:
            ScanError: several images end so.
        """
        name = composed(posixpath.normpath(name))
        found = [i for i in self._by_base.get(posixpath.basename(name), ()) if _is_end(self._names[i], name)]
        exact = [i for i in found if self._names[i] == name]
        different = sorted({self._names[i] for i in exact or found})
        if len(different) > 1:
            raise ScanError(f"{self._source} names {name!r}, which may be {different[0]} or {different[1]}.")
        return exact or found


def _is_end(one: str, other: str) -> bool:
    return one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2.0**53


def _read_yolo(folder: Path, names: list[str], imposed: tuple[str, ...] | None) -> _Labels:
    """Read a .txt an image, at its relative path: lines of class index, center x, center y, width, height, as fractions.

    Or of class index and the corners of a polygon, x and y, three or more (YOLO's segmentation): the box is that around it.
    """
    files = {composed(file): file for file in files_below(folder) if file.endswith(".txt")}
    class_file = next(_files_beside(folder, _CLASS_FILES), None)
    found = _Labels(names, imposed or (load_classes(str(class_file)) if class_file else ()))
    found.frames[:] = 1
    # of lines with keypoints behind the box (YOLO's pose), which look like a polygon
    data = (path.read_bytes() for path in _files_beside(folder, _DATA_FILES))
    has_keypoints = any(re.search(rb"^kpt_shape\s*:", text, re.M) for text in data)
    for index, name in enumerate(names):
        label = next((files[spelling] for spelling in map(composed, _label_names(name)) if spelling in files), None)
        if label is not None:
            found.labelled.add(index)
            _read_yolo_file(found, index, folder, label, has_keypoints=has_keypoints)
    if not found.labelled:
        raise ScanError(
            f"{folder} has a label file for none of the {len(names)} images. Expected {_label_names(names[0])[0]} for {names[0]}."
        )
    found.classes = found.classes or tuple(map(str, range(max(found.targets, default=-1) + 1)))
    return found


def _label_names(name: str) -> list[str]:
    """Return where an image's label file may be: a/images/b.jpg -> a/images/b.txt, a/labels/b.txt."""
    label = f"{posixpath.splitext(name)[0]}.txt"
    above, images, below = f"/{label}".rpartition("/images/")
    return [label, f"{above}/labels/{below}".lstrip("/")] if images else [label]


def _files_beside(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield the files of these names in a folder, then in the two above it: data.yaml is beside labels/train."""
    folders = folder, *folder.resolve().parents[:2]
    return filter(Path.is_file, (where / name for where in folders for name in names))


def _read_yolo_file(found: _Labels, index: int, folder: Path, label: str, *, has_keypoints: bool) -> None:
    """Add the boxes of one input's file; a line that makes no sense refuses the input, with its number."""
    try:
        lines = (folder / label).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as e:
        if isinstance(e, OSError):
            check_system(str(folder / label), e)
        found.refuse([index], f"its label file {label} cannot be read ({e.__class__.__name__})")
        return
    limit = len(found.classes) or MOST_CLASSES
    for number, line in enumerate(lines, start=1):
        values = [_number(word) for word in line.split()]
        target, *values = (values[:5] if has_keypoints else values) or [math.nan]
        is_line = len(values) == 4 or (len(values) >= 6 and len(values) % 2 == 0)
        if is_line and all(map(math.isfinite, values)) and target.is_integer() and 0 <= target < limit:
            x, y, width, height = values if len(values) == 4 else _around(values[::2], values[1::2])
            found.add([index], (x - width / 2, y - height / 2, x + width / 2, y + height / 2), int(target))
        elif line.strip():
            known = f", the class below {limit}" if found.classes else ""
            found.refuse(
                [index],
                f"line {number} of {label} is {line.strip()[:60]!r}; expected class x y width height, or class and x y of three"
                f" corners or more{known}",
            )


def _around(xs: list[float], ys: list[float]) -> tuple[float, float, float, float]:
    """Return center, width and height of the box around points."""
    return (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2, max(xs) - min(xs), max(ys) - min(ys)


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan
