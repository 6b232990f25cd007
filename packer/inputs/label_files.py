"""Labels in separate files, matched to inputs: boxes in a COCO json or a folder of YOLO .txt files, and masks.

An error in one image's labels rejects that image, with the reason. An error that concerns all labels ends the pack before it
begins. Opens no mask.
"""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from packer.errors import ScanError
from packer.inputs.boxes import Boxes
from packer.inputs.class_lists import MOST_CLASSES, checked_names, composed, load_classes, unknown_class
from packer.inputs.samples import Inputs
from packer.option_names import Option
from packer.sources.roots import check_system, files_below

_EXPECTED = "Expected COCO's json, with lists of images, annotations and categories, or a folder of YOLO's .txt."
# class lists beside or above the label files: one name a line, or ultralytics' file
_CLASS_FILES = ("classes.txt", "obj.names", "data.yaml", "data.yml")
# formats that keep every value; a JPEG would not
_MASK_SUFFIXES = (".png", ".bmp", ".gif", ".tif", ".tiff")


@dataclass
class _Labels:
    """Gathers the boxes of label files, in any order, and the inputs that have labels."""

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
        """Add a box to inputs: x0, y0, x1, y1 in their frame."""
        for index in inputs:
            self.owners.append(index)
            self.corners.extend(corners)
            self.targets.append(target)

    def refuse(self, inputs: Iterable[int], reason: str) -> None:
        """Reject inputs; the first of several reasons is reported."""
        for index in inputs:
            self.refused.setdefault(index, reason)

    def boxes(self) -> Boxes:
        """Return all boxes, in the order of the inputs."""
        corners = np.array(self.corners, np.float64).reshape(-1, 4)
        owners, targets = np.array(self.owners, np.int64), np.array(self.targets, np.int64)
        return Boxes.grouped(owners, corners, targets, self.frames)


def give_boxes(splits: dict[str, Inputs], path: Path, classes: tuple[str, ...] | None) -> None:
    """Add the boxes of --boxes, and their class list, to the inputs of all splits.

    Args:
        classes: the class list to impose.

    Raises:
        ScanError: the file or folder is missing or invalid, or the inputs have classes already.
    """
    if named := next((inputs.classes[0] for inputs in splits.values() if inputs.classes), ""):
        raise ScanError(
            f"{path} has classes, and so have the targets of the images ({named!r} is one). A store has one class"
            f" list: leave out the column of targets, or {Option('boxes')}."
        )
    names = [name for split, inputs in splits.items() for name in _label_paths(split, inputs)]
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


def give_masks(splits: dict[str, Inputs], folder: Path) -> None:
    """Find each input's mask by its relative path; an input without a mask, or with two, is refused.

    Raises:
        ScanError: there is no such folder, or it holds no mask.
    """
    if not folder.is_dir():
        raise ScanError(
            f"{Option('masks', folder)} is not a folder. Expected one with masks named as the images are: a.png for a.jpg."
        )
    # relative path of an image without its extension -> relative paths of its masks
    paths: dict[str, list[str]] = {}
    for path in files_below(folder):
        if path.lower().endswith(_MASK_SUFFIXES):
            paths.setdefault(_stem(path), []).append(path)
    if not paths:
        raise ScanError(f"{folder} holds no mask. Expected images named as those to pack, {', '.join(_MASK_SUFFIXES)}.")
    for split, inputs in splits.items():
        inputs.masks = []
        for index, stem in enumerate(map(_stem, _label_paths(split, inputs))):
            own = paths.get(stem, [])
            inputs.masks.append(own[0] if own else "")
            if len(own) != 1:
                reason = f"it has two masks, {own[0]} and {own[1]}" if own else f"it has no mask {stem}.png"
                inputs.refused.setdefault(index, reason)


def _label_paths(split: str, inputs: Inputs) -> list[str]:
    """Return the paths by which label files may name inputs: with the split's folder, or a member's name in its archive."""
    if inputs.archives:
        return [inputs.above + path for path in inputs.paths]
    return [f"{split}/{path}" for path in inputs.paths] if split else inputs.paths[:]


def _stem(path: str) -> str:
    """Return a path without its extension, in Unicode NFC."""
    return composed(posixpath.splitext(path)[0])


def _read_coco(path: Path, names: list[str], imposed: tuple[str, ...] | None) -> _Labels:
    """Read a COCO json: images, annotations with bbox [x, y, width, height] in pixels, categories. Crowds are left out."""
    content = _load(path)
    index_of, classes = _categories(path, content["categories"], imposed)
    found = _Labels(names, classes)
    owners, annotations = _coco_images(path, content["images"], found), content["annotations"]
    for number, annotation in enumerate(annotations, start=1):
        inputs = owners.get(_key(annotation, "image_id"), [])
        if not inputs or annotation.get("iscrowd") == 1:
            continue
        box, category = annotation.get("bbox"), _key(annotation, "category_id")
        where = f"annotation {number} of {path.name}"
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


def _coco_images(path: Path, records: list[Any], found: _Labels) -> dict[int | str | None, list[int]]:
    """Return image id -> inputs; marks the inputs as labelled, and sets the image's size as their frame."""
    find, owners = _finder(found.names, path), dict[int | str | None, list[int]]()
    for number, record in enumerate(records, start=1):
        key = _key(record, "id")
        if key is None or not isinstance(record.get("file_name"), str):
            raise ScanError(f"image {number} of {path} is {record!r}. Expected an id and a file_name.")
        if key in owners:
            raise ScanError(f"{path} has two images with the id {key!r}, {record['file_name']!r} the second.")
        owners[key] = inputs = find(record["file_name"])
        found.labelled.update(inputs)
        size = record.get("width"), record.get("height")
        if all(_is_finite(side) and side > 0 for side in size):
            found.frames[inputs] = size
    if not found.labelled:
        raise ScanError(
            f"{path} lists none of the {len(found.names)} images, {found.names[0]} among them, by its file_name."
        )
    return owners


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


def _finder(names: list[str], source: Path) -> Callable[[str], list[int]]:
    """Return a function that finds inputs by a path in a label file: the paths are equal, or one ends with the other.

    An image that is listed twice is two inputs. If a path matches several images, it raises ScanError.
    """
    spelled, of_base = [*map(composed, names)], dict[str, list[int]]()
    for index, name in enumerate(spelled):
        of_base.setdefault(posixpath.basename(name), []).append(index)

    def find(name: str) -> list[int]:
        """Find the inputs of a path."""
        name = composed(posixpath.normpath(name))
        ends = of_base.get(posixpath.basename(name), [])
        found = [i for i in ends if f"/{spelled[i]}".endswith(f"/{name}") or f"/{name}".endswith(f"/{spelled[i]}")]
        exact = [i for i in found if spelled[i] == name]
        different = sorted({spelled[i] for i in exact or found})
        if len(different) > 1:
            raise ScanError(f"{source} names {name!r}, which may be {different[0]} or {different[1]}.")
        return exact or found

    return find


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2.0**53


def _read_yolo(folder: Path, names: list[str], imposed: tuple[str, ...] | None) -> _Labels:
    """Read one .txt per image, at its relative path: lines of class index, center x, center y, width, height, as fractions."""
    files = {composed(file): file for file in files_below(folder) if file.endswith(".txt")}
    # data.yaml is beside labels/train or above it
    beside = (where / name for where in (folder, *folder.resolve().parents[:2]) for name in _CLASS_FILES)
    class_file = next(filter(Path.is_file, beside), None)
    found = _Labels(names, imposed or (load_classes(str(class_file)) if class_file else ()))
    found.frames[:] = 1
    for index, name in enumerate(names):
        label = next((files[spelling] for spelling in map(composed, _label_names(name)) if spelling in files), None)
        if label is not None:
            found.labelled.add(index)
            _read_yolo_file(found, index, folder, label)
    if not found.labelled:
        raise ScanError(
            f"{folder} has a label file for none of the {len(names)} images. Expected {_label_names(names[0])[0]} for {names[0]}."
        )
    found.classes = found.classes or tuple(map(str, range(max(found.targets, default=-1) + 1)))
    return found


def _label_names(name: str) -> list[str]:
    """Return the candidate paths of an image's label file: a/images/b.jpg -> a/images/b.txt, a/labels/b.txt."""
    label = f"{posixpath.splitext(name)[0]}.txt"
    above, images, below = f"/{label}".rpartition("/images/")
    return [label, f"{above}/labels/{below}".lstrip("/")] if images else [label]


def _read_yolo_file(found: _Labels, index: int, folder: Path, label: str) -> None:
    """Add the boxes of one input's file; an invalid line rejects the input, and the reason has the line's number."""
    try:
        lines = (folder / label).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as e:
        if isinstance(e, OSError):
            check_system(str(folder / label), e)
        found.refuse([index], f"its label file {label} cannot be read ({e.__class__.__name__})")
        return
    limit = len(found.classes) or MOST_CLASSES
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            target, x, y, width, height = map(float, line.split())
        except ValueError:
            target = math.nan
        if target.is_integer() and 0 <= target < limit and all(map(math.isfinite, (x, y, width, height))):
            found.add([index], (x - width / 2, y - height / 2, x + width / 2, y + height / 2), int(target))
        else:
            known = f", the class below {limit}" if found.classes else ""
            found.refuse(
                [index], f"line {number} of {label} is {line.strip()[:60]!r}; expected class x y width height{known}"
            )
