"""COCO's json: which input each box and outline belongs to, and which class it has.

What is wrong with one image's boxes rejects that image, with the reason; what makes all of the file unclear ends the pack
before it begins.
"""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import Any

from packer.checksums import sha256_file
from packer.errors import ScanError
from packer.inputs.annotations.box_labels import BoxLabels
from packer.inputs.class_lists import checked_names, composed, unknown_class
from packer.option_names import Option
from packer.sources.roots import NOWHERE
from packer.text import counted


def read_coco(path: Path, names: list[str], imposed: tuple[str, ...] | None) -> BoxLabels:
    """Read a COCO json: images, annotations with bbox [x, y, width, height] in pixels, categories.

    Where there is no bbox, it is that of the segmentation, polygons or RLE; where masks are asked for, that is saved.
    """
    content = _load(path)
    index_of, classes = _categories(path, content["categories"], imposed)
    found = BoxLabels(len(names), classes)
    found.digest = sha256_file(path)
    owners = _images(path, content["images"], found, _InputIndex(names, path))
    if not any(owners.values()):
        raise ScanError(f"{path} lists none of the {len(names)} images, {names[0]} among them, by its file_name.")
    crowds, strays = 0, []
    for number, annotation in enumerate(content["annotations"], start=1):
        key = _key(annotation, "image_id")
        inputs = None if key is None else owners.get(key)
        if inputs is None:
            strays.append(f"annotation {number}")
        else:
            crowds += len(inputs) if annotation.get("iscrowd") == 1 else 0
            _add_annotation(found, inputs, annotation, f"annotation {number} of {path.name}", index_of)
    if strays and len(strays) == len(content["annotations"]):
        raise ScanError(
            f"no annotation of {path} is for an image that it lists: the first has the image_id"
            f" {_shown(content['annotations'][0], 'image_id')}, the first image the id {content['images'][0]['id']!r}."
        )
    unnamed = sorted(set(range(len(names))).difference(*owners.values()))
    found.note(
        strays,
        f"annotation of {path.name} is for an image that it does not list",
        f"annotations of {path.name} are for images that it does not list",
    )
    found.note(
        [names[i] for i in unnamed],
        f"image is not listed in {path.name} and has no boxes",
        f"images are not listed in {path.name} and have no boxes",
    )
    if crowds:
        found.notes.append(
            f"{counted(crowds, 'box around a crowd (iscrowd) is', 'boxes around crowds (iscrowd) are')} left out."
        )
    return found


def _load(path: Path) -> dict[str, list[Any]]:
    expected = "Expected COCO's json, with lists of images, annotations and categories, or a folder of YOLO's .txt."
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = json.load(file)
    except OSError as e:
        NOWHERE.check(str(path), e)
        raise ScanError(f"{Option('boxes', path)} cannot be read: {e.strerror}. {expected}") from None
    except json.JSONDecodeError as e:
        raise ScanError(f"line {e.lineno} of {path} is not JSON: {e.msg}. {expected}") from None
    except (ValueError, RecursionError) as e:
        raise ScanError(f"{path} is not JSON: {e}. {expected}") from None
    for name in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(name), list):
            raise ScanError(f"{path} has no list {name!r}. {expected}")
    return content


def _key(record: object, name: str) -> int | str | None:
    """Return an id, None where there is none."""
    value = record.get(name) if isinstance(record, dict) else None
    return value if isinstance(value, int | str) else None


def _categories(
    path: Path, categories: list[Any], imposed: tuple[str, ...] | None
) -> tuple[dict[int | str, int], tuple[str, ...]]:
    """Return category id -> class index, and the classes: in the order of the ids, unless a list is imposed."""
    names: dict[int | str, str] = {}
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


def _images(path: Path, images: list[Any], found: BoxLabels, finder: _InputIndex) -> dict[int | str, list[int]]:
    """Return image id -> its inputs, and set their frames."""
    owners: dict[int | str, list[int]] = {}
    missing = []
    for number, record in enumerate(images, start=1):
        key = _key(record, "id")
        if key is None or not isinstance(record.get("file_name"), str):
            raise ScanError(f"image {number} of {path} is {record!r}. Expected an id and a file_name.")
        if key in owners:
            raise ScanError(f"{path} has two images with the id {key!r}, {record['file_name']!r} the second.")
        owners[key] = inputs = finder.find(record["file_name"])
        if not inputs:
            missing.append(record["file_name"])
        size = record.get("width"), record.get("height")
        if all(_is_finite(side) and side > 0 for side in size):
            _set_frames(found, inputs, size)
    found.note(
        missing, f"image of {path.name} is not among the inputs", f"images of {path.name} are not among the inputs"
    )
    return owners


def _set_frames(found: BoxLabels, inputs: list[int], size: tuple[float, float]) -> None:
    for index in inputs:
        before = found.frames[index]
        if before.any() and tuple(before) != size:
            found.refuse(
                [index], f"the label file lists it twice, as {before[0]:g} x {before[1]:g} and {size[0]} x {size[1]}"
            )
        found.frames[index] = size


def _add_annotation(
    found: BoxLabels, inputs: list[int], annotation: dict[str, object], where: str, index_of: dict[int | str, int]
) -> None:
    box, category, is_crowd = annotation.get("bbox"), _key(annotation, "category_id"), annotation.get("iscrowd") == 1
    if is_crowd:
        return
    if category is None or category not in index_of:
        found.refuse(inputs, f"{where} has the category_id {category!r}, which is no category there")
        return
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_finite, box)):
        found.refuse(inputs, f"{where} has the bbox {repr(box)[:80]}; expected x, y, width, height")
        return
    x, y, width, height = box
    found.add(inputs, (x, y, x + width, y + height), index_of[category])


def _shown(record: object, name: str) -> str:
    return repr(record.get(name) if isinstance(record, dict) else None)[:60]


class _InputIndex:
    """Finds inputs by the path that a label file gives: the same, or one of the two is the end of the other."""

    def __init__(self, names: list[str], source: Path) -> None:
        # é may be one character in the file and two on the disk
        self._names, self._source = [composed(name) for name in names], source
        self._by_base: dict[str, list[int]] = {}
        for index, name in enumerate(self._names):
            self._by_base.setdefault(posixpath.basename(name), []).append(index)

    def find(self, name: str) -> list[int]:
        """Return all inputs of that path: one that is listed twice is two.

        Raises:
            ScanError: several images end so.
        """
        name = composed(posixpath.normpath(name.replace("\\", "/")))
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
