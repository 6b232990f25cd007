"""The kinds of stores for the laws: each makes its own inputs, and has its options of packing.

A law is one function over this table. It uses only the command, public names and files on disk, so that it holds for any
implementation. A new kind of store is one more entry here, and every law then covers it.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import itertools
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from conftest import photo, tuned
from PIL import Image

from packer import pack

# Each image's name, class and (width, height). The names sort in this order; BROKEN is not an image and becomes a reject.
IMAGES: dict[str, tuple[int, int]] = {
    f"{name}/{number}.{suffix}": (40 + 5 * number, 46 + 3 * number if number % 2 else 36 + 4 * number)
    for name, count in (("ant", 5), ("bee", 6), ("cat", 3))
    for number in range(count)
    for suffix in ("png" if number == 2 else "jpg",)
}
BROKEN = "bee/3.jpg"
ROWS = len(IMAGES) - 1


@dataclass(frozen=True)
class Sample:
    """One input.

    Attributes:
        name: the path of its image; the folder is its class, unless a list names another.
        size: (width, height) of the image.
        picture: the seed of the drawn image; None: the file is not an image.
        values: the seed of boxes, masks, targets and further columns.
        label: its class in a list, table or tar.
    """

    name: str
    size: tuple[int, int]
    picture: int | None
    values: int
    label: str


SAMPLES = tuple(
    Sample(name, size, None if name == BROKEN else number, number, name.partition("/")[0])
    for number, (name, size) in enumerate(IMAGES.items())
)
# options of every kind, beside its own: one reject is allowed
COMMON: dict[str, Any] = {"max_rejects": 1}


@dataclass(frozen=True)
class Inputs:
    """The input of `pack` for a store of a kind: IMAGES, options, and the folder with all files."""

    images: Path
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)

    def moved(self, folder: Path) -> Inputs:
        """Copy the files to another folder, which a test may change; paths in options are adjusted."""
        shutil.copytree(self.folder, folder)

        def there(value: Any) -> Any:
            inside = isinstance(value, Path) and value.is_relative_to(self.folder)
            return folder / value.relative_to(self.folder) if inside else value

        return Inputs(there(self.images), folder, {name: there(value) for name, value in self.options.items()})


class Kind(Protocol):
    """Writes the files of some samples below a folder; returns the inputs of their pack."""

    def __call__(self, folder: Path, samples: Sequence[Sample] = ...) -> Inputs: ...


@functools.cache
def _image_bytes(suffix: str, size: tuple[int, int], picture: int | None) -> bytes:
    if picture is None:
        return b"no image"
    stream = io.BytesIO()
    photo(*size, picture).save(stream, "PNG" if suffix == ".png" else "JPEG", quality=90)
    return stream.getvalue()


def _data(sample: Sample) -> bytes:
    return _image_bytes(Path(sample.name).suffix, sample.size, sample.picture)


def _tree(root: Path, samples: Sequence[Sample]) -> Path:
    """Write the images below a folder."""
    for sample in samples:
        path = root / sample.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_data(sample))
    return root


def _labels(samples: Sequence[Sample]) -> list[str]:
    return sorted({sample.label for sample in samples})


def _of_tree(**options: Any) -> Kind:
    """Pack a folder of class folders with these options."""

    def made(folder: Path, samples: Sequence[Sample] = SAMPLES) -> Inputs:
        return Inputs(_tree(folder / "images", samples), folder, COMMON | options)

    return made


def _of_table(columns: Callable[[Sample], dict[str, object]], **options: Any) -> Kind:
    """Pack a .csv with a line for each image: its path and `columns(sample)`."""

    def made(folder: Path, samples: Sequence[Sample] = SAMPLES) -> Inputs:
        _tree(folder / "images", samples)
        lines = [{"path": sample.name} | columns(sample) for sample in samples]
        with open(folder / "images" / "table.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*lines[0]])
            writer.writeheader()
            writer.writerows(lines)
        return Inputs(folder / "images" / "table.csv", folder, COMMON | {"size": 32} | options)

    return made


def _jsonl(folder: Path, samples: Sequence[Sample] = SAMPLES) -> Inputs:
    """Pack a .jsonl whose labels are names."""
    _tree(folder / "images", samples)
    lines = [json.dumps({"path": sample.name, "label": sample.label}) + "\n" for sample in samples]
    (folder / "images" / "list.jsonl").write_text("".join(lines))
    return Inputs(folder / "images" / "list.jsonl", folder, COMMON | {"size": 32})


def _tar(folder: Path, samples: Sequence[Sample] = SAMPLES) -> Inputs:
    """Pack a WebDataset tar: KEY.jpg and KEY.cls."""
    labels = _labels(samples)
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / "samples.tar", "w") as tar:
        for sample in samples:
            path = Path(sample.name)
            label = str(labels.index(sample.label)).encode()
            for suffix, content in ((path.suffix, _data(sample)), (".cls", label)):
                entry = tarfile.TarInfo(f"{path.parent.name}{path.stem}{suffix}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return Inputs(folder / "samples.tar", folder, COMMON | {"size": 32})


def _zip(folder: Path, samples: Sequence[Sample] = SAMPLES) -> Inputs:
    """Pack a zip of class folders."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "images.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for sample in samples:
            file.writestr(sample.name, _data(sample))
    return Inputs(folder / "images.zip", folder, COMMON | {"size": 32})


def _coco(folder: Path, samples: Sequence[Sample]) -> Path:
    """Write boxes, none to three per image, as a COCO file; their categories are the labels of the images."""
    labels = _labels(samples)
    categories = [{"id": 3 + 5 * number, "name": name} for number, name in enumerate(labels)]
    annotations = [
        {
            "id": 10 * image + n,
            "image_id": image,
            "category_id": 3 + 5 * ((labels.index(sample.label) + n) % len(labels)),
            "bbox": [2 + 5 * n + sample.values % 5, 3 + 4 * n, 12, 9 + n],
        }
        for image, sample in enumerate(samples, start=1)
        for n in range((sample.values + 1) % 4)
    ]
    images = [
        {"id": image, "file_name": sample.name, "width": sample.size[0], "height": sample.size[1]}
        for image, sample in enumerate(samples, start=1)
    ]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "boxes.json").write_text(json.dumps(content))
    return folder / "boxes.json"


def _masks(folder: Path, samples: Sequence[Sample]) -> Path:
    """Write a mask of random values for each image."""
    for sample in samples:
        path = (folder / "masks" / sample.name).with_suffix(".png")
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(sample.values).integers(0, 5, sample.size[::-1], dtype=np.uint8)
        Image.fromarray(values).save(path)
    return folder / "masks"


def _labelled(labels: dict[str, Callable[[Path, Sequence[Sample]], Path]], **options: Any) -> Kind:
    """Pack images with labels in separate files; labels: option -> function that writes them."""

    def made(folder: Path, samples: Sequence[Sample] = SAMPLES) -> Inputs:
        _tree(folder / "images", samples)
        given = {name: write(folder, samples) for name, write in labels.items()}
        return Inputs(folder / "images", folder, COMMON | options | given)

    return made


def _splits(folder: Path, samples: Sequence[Sample] = SAMPLES) -> Inputs:
    """Pack a folder of train and val into a store each; val lacks one of the classes."""
    _tree(folder / "images" / "train", samples)
    chosen = [sample for sample in samples if sample.label != "bee" and sample.values % 2]
    _tree(folder / "images" / "val", [replace(sample, picture=90 + sample.values) for sample in chosen])
    return Inputs(folder / "images", folder, COMMON | {"size": 32})


KINDS: dict[str, Kind] = {
    "crop": _of_tree(size=32),
    "pad": _of_tree(size=(24, 40), fit="pad", resample="bicubic"),
    "gray": _of_tree(size=32, channels="gray", fit="squash", exact=True),
    # 48 KiB per row, a multiple of a disk's block: read directly into batches
    "large": _of_tree(size=128),
    "own-sizes": _of_tree(fit="none", max_size=48),
    "rgba-own-sizes": _of_tree(fit="none", max_size="short:30", channels="rgba"),
    "jpeg": _of_tree(size=32, channels="gray", compress=95),
    "jpeg-own-sizes": _of_tree(fit="none", compress=95),
    "jpeg-pad": _of_tree(size=(24, 40), fit="pad", compress=95),
    "shuffled": _of_tree(size=32, shuffle=3),
    "list": _jsonl,
    "table": _of_table(
        lambda one: {"label": one.label, "weight": one.values / 4, "caption": ["", "zwei Vögel", "猫"][one.values % 3]}
    ),
    "tar": _tar,
    "zip": _zip,
    "masks": _labelled({"masks": _masks}, size=32),
    "boxes": _labelled({"boxes": _coco}, size=32),
    "labels-own-sizes": _labelled({"boxes": _coco, "masks": _masks}, fit="none"),
    "regression": _of_table(lambda one: {"x": one.values / 8, "y": -one.values}, target_column="x,y"),
    "multi-hot": _of_table(
        lambda one: {"tags": [one.label, f"Red;{one.label}", "Green", ""][one.values % 4]},
        target_column="tags",
        label_separator=";",
    ),
    "splits": _splits,
}


def stores_of(out: Path) -> dict[str, Path]:
    """Return the stores in OUT by split; "" is OUT itself."""
    if (out / "manifest.json").exists():
        return {"": out}
    return {path.parent.name: path.parent for path in sorted(out.glob("*/manifest.json"))}


@contextlib.contextmanager
def refusal(sentence: str | None, error: type[Exception]) -> Iterator[None]:
    """If a combination is refused, check the message by this pattern, and skip the rest of the law."""
    if sentence is None:
        yield
        return
    with pytest.raises(error, match=sentence) as caught:
        yield
    pytest.skip(f"refused: {caught.value}")


def spread(
    *options: Sequence[Any], every: int = 2, first: int = 0, known: Callable[..., bool] = lambda *_: True
) -> list[Any]:
    """Return all combinations accepted by `known`: each `every`-th in the default run, the others nightly.

    For two options with `every` values or more, the default run has each value of one with several of the other.

    >>> [one.values for one in spread("ab", (1, 2)) if not one.marks]
    [('a', 1), ('b', 2)]
    """
    numbered = (enumerate(values) for values in options)
    found = []
    for one in itertools.product(*numbered):
        values = [value for _, value in one]
        is_nightly = (sum(number for number, _ in one) - first) % every != 0
        if known(*values):
            found.append(pytest.param(*values, marks=[pytest.mark.nightly] if is_nightly else []))
    return found


MakeInputs = Callable[[str], Inputs]
MakeStore = Callable[[str], Path]


@pytest.fixture(scope="session")
def inputs_of(tmp_path_factory: pytest.TempPathFactory) -> MakeInputs:
    """Return a function that makes the inputs of a kind, which no test may change."""

    @functools.cache
    def made(kind: str) -> Inputs:
        return KINDS[kind](tmp_path_factory.mktemp(f"inputs-{kind}"))

    return made


@pytest.fixture(scope="session")
def store_of(inputs_of: MakeInputs, tmp_path_factory: pytest.TempPathFactory) -> MakeStore:
    """Return a function that packs a kind by one worker in blocks of two inputs.

    No test may change the store: other ways to pack must give its bytes.
    """

    @functools.cache
    def packed(kind: str) -> Path:
        inputs, out = inputs_of(kind), tmp_path_factory.mktemp(f"store-{kind}") / "out"
        with tuned(least_block_inputs=2):
            pack(inputs.images, out, workers=1, **inputs.options)
        return out

    return packed
