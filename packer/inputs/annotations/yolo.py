"""YOLO's label files: a .txt an image, a box or polygon a line. A line that makes no sense rejects its image, with its number."""

from __future__ import annotations

import hashlib
import math
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.annotations.box_labels import BoxLabels
from packer.inputs.class_lists import MOST_CLASSES, composed, load_classes, numbered_classes
from packer.option_names import Option
from packer.sources.roots import NOWHERE, files_below

# beside or above the label files: one name a line, and ultralytics' file
_CLASS_FILES = ("classes.txt", "obj.names")
_DATA_FILES = ("data.yaml", "data.yml")


def read_yolo(folder: Path, names: list[str], imposed: tuple[str, ...] | None) -> BoxLabels:
    """Read a .txt an image, at its relative path: lines of class index, center x, center y, width, height, as fractions.

    Or of class index and the corners of a polygon, x and y, three or more (YOLO's segmentation): the box is that around it.
    """
    files = {file for file in files_below(folder) if file.endswith(".txt")}
    class_file = _class_file(folder)
    classes = imposed or (() if class_file is None else load_classes(str(class_file)))
    found = BoxLabels(len(names), classes)
    found.frames[:] = 1
    missing = []
    used: dict[str, bytes] = {}
    keypoints = _keypoints_file(folder)
    spelled = {composed(file): file for file in sorted(files)} | {file: file for file in files}
    for index, name in enumerate(names):
        asked = (spelling for label in _label_names(name) for spelling in (label, composed(label)))
        label = next((spelled[spelling] for spelling in asked if spelling in spelled), None)
        if label is None:
            missing.append(name)
            continue
        reader = _LabelFile(found, index, label, "" if imposed or class_file is None else class_file.name)
        used[label] = reader.read(folder / label, has_keypoints=keypoints is not None)
    if not used:
        raise ScanError(
            f"{folder} has a label file for none of the {len(names)} images. Expected {_label_names(names[0])[0]} for {names[0]}."
        )
    if not classes:
        found.classes, gaps = numbered_classes(set(found.targets), str(folder))
        found.notes += gaps
        found.notes.append(
            f"{folder} has no classes.txt: classes are named by their numbers; {Option('classes')} takes a file with their names."
        )
    if keypoints is not None:
        found.notes.append(
            f"{keypoints} has a kpt_shape: of each line the box is read, and the keypoints are left out."
        )
    without = f"no label file in {folder} and no boxes"
    found.note(missing, f"image has {without}", f"images have {without}")
    found.note(
        sorted(files - used.keys() - {class_file.name if class_file else ""}),
        f"label file of {folder} belongs to no image",
        f"label files of {folder} belong to no image",
    )
    found.digest = _digest(used)
    return found


def _digest(files: dict[str, bytes]) -> str:
    """Return one digest of label files, by name and sha256 of each, whatever their order and wherever their folder is."""
    lines = (f"{len(name)} {name} ".encode("utf-8", "surrogatepass") + files[name] for name in sorted(files))
    return f"sha256:{hashlib.sha256(b''.join(lines)).hexdigest()}"


def _label_names(name: str) -> list[str]:
    """Return where an image's label file may be: a/images/b.jpg -> a/images/b.txt, a/labels/b.txt."""
    label = f"{posixpath.splitext(name)[0]}.txt"
    parts = label.split("/")
    depths = [i for i, part in enumerate(parts[:-1]) if part == "images"]
    return [label, *("/".join([*parts[:i], "labels", *parts[i + 1 :]]) for i in depths[-1:])]


def _class_file(folder: Path) -> Path | None:
    """Find the file of class names in a folder, or one of the two above it."""
    return next(_files_beside(folder, (*_CLASS_FILES, *_DATA_FILES)), None)


def _files_beside(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield the files of these names in a folder, then in the two above it: data.yaml is beside labels/train."""
    folders = folder, *folder.resolve().parents[:2]
    return filter(Path.is_file, (where / name for where in folders for name in names))


def _keypoints_file(folder: Path) -> Path | None:
    """Return the data.yaml that says that lines have keypoints behind the box (YOLO's pose), which look like a polygon."""
    files = _files_beside(folder, _DATA_FILES)
    return next((path for path in files if re.search(rb"^kpt_shape\s*:", path.read_bytes(), re.M)), None)


@dataclass(frozen=True)
class _LabelFile:
    """One input's label file, and where its names of classes are from."""

    found: BoxLabels
    index: int
    label: str
    class_file: str

    def read(self, path: Path, *, has_keypoints: bool) -> bytes:
        """Add the boxes of a file, around polygons too; nonsense refuses the input. Returns its sha256, b"" of none."""
        try:
            data = path.read_bytes()
            lines = data.decode("utf-8-sig").splitlines()
        except (OSError, ValueError) as e:
            if isinstance(e, OSError):
                NOWHERE.check(str(path), e)
            self.found.refuse([self.index], f"its label file {self.label} cannot be read ({e.__class__.__name__})")
            return b""
        limit = len(self.found.classes) or MOST_CLASSES
        for number, line in enumerate(lines, start=1):
            values = [_number(word) for word in line.split()]
            values = values[:5] if has_keypoints else values
            is_line = len(values) == 5 or (len(values) >= 7 and len(values) % 2 == 1)
            if is_line and all(map(math.isfinite, values)) and values[0].is_integer() and 0 <= values[0] < limit:
                self._add(int(values[0]), values[1:])
            elif values:
                self._refuse(number, line, limit)
        return hashlib.sha256(data).digest()

    def _add(self, target: int, values: list[float]) -> None:
        if len(values) == 4:
            x, y, width, height = values
            corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        else:
            corners = (min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2]))
        self.found.add([self.index], corners, target)

    def _refuse(self, number: int, line: str, limit: int) -> None:
        known = f", the class below {limit}" if self.found.classes else ""
        known += f" as in {self.class_file}" if self.class_file in _DATA_FILES else ""
        self.found.refuse(
            [self.index],
            f"line {number} of {self.label} is {line.strip()[:60]!r}; expected class x y width height, or class and x y of three"
            f" corners or more{known}",
        )


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan
