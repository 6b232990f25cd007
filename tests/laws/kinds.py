"""The kinds of stores that the laws hold for: each makes its own inputs, and says how they are packed.

A law is one function over this table. It talks to the command, to public names and to files on disk alone, so that it holds
whatever is behind them. A new kind of store is one more entry here, and every law then covers it.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import photo, tuned
from PIL import Image

from packer import pack

# Each image's name, class and (width, height). The names sort in this order; BROKEN is no image and becomes a reject.
IMAGES: dict[str, tuple[int, int]] = {
    f"{name}/{number}.{suffix}": (40 + 5 * number, 46 + 3 * number if number % 2 else 36 + 4 * number)
    for name, count in (("ant", 5), ("bee", 6), ("cat", 3))
    for number in range(count)
    for suffix in ("png" if number == 2 else "jpg",)
}
BROKEN = "bee/3.jpg"
ROWS = len(IMAGES) - 1
# what every kind is packed with, beside its own options: one reject is allowed
COMMON: dict[str, Any] = {"max_rejects": 1}


@dataclass(frozen=True)
class Inputs:
    """What `pack` is given to make a store of a kind: its IMAGES, its options, and the folder with all of the files."""

    images: Path
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)

    def moved(self, folder: Path) -> Inputs:
        """Copy the files to another folder, which a test may change; options that are paths follow."""
        shutil.copytree(self.folder, folder)

        def there(value: Any) -> Any:
            inside = isinstance(value, Path) and value.is_relative_to(self.folder)
            return folder / value.relative_to(self.folder) if inside else value

        return Inputs(there(self.images), folder, {name: there(value) for name, value in self.options.items()})


def _tree(root: Path) -> Path:
    """Write IMAGES below a folder."""
    for seed, (name, (width, height)) in enumerate(IMAGES.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == BROKEN:
            path.write_bytes(b"no image")
        else:
            photo(width, height, seed).save(path, quality=90)
    return root


def _of_tree(**options: Any) -> Callable[[Path], Inputs]:
    """Pack a folder of class folders with these options."""
    return lambda folder: Inputs(_tree(folder / "images"), folder, COMMON | options)


def _of_table(columns: Callable[[int, str], dict[str, object]], **options: Any) -> Callable[[Path], Inputs]:
    """Pack a .csv with a line for each image: its path and what `columns(number, name)` gives."""

    def made(folder: Path) -> Inputs:
        _tree(folder / "images")
        lines = [{"path": name} | columns(number, name) for number, name in enumerate(IMAGES)]
        with open(folder / "images" / "table.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*lines[0]])
            writer.writeheader()
            writer.writerows(lines)
        return Inputs(folder / "images" / "table.csv", folder, COMMON | {"size": 32} | options)

    return made


def _jsonl(folder: Path) -> Inputs:
    """Pack a .jsonl whose labels are names."""
    _tree(folder / "images")
    lines = [json.dumps({"path": name, "label": name.partition("/")[0]}) + "\n" for name in IMAGES]
    (folder / "images" / "list.jsonl").write_text("".join(lines))
    return Inputs(folder / "images" / "list.jsonl", folder, COMMON | {"size": 32})


def _tar(folder: Path) -> Inputs:
    """Pack a tar as WebDataset writes it: n.jpg and n.cls."""
    _tree(folder / "images")
    classes = sorted({name.partition("/")[0] for name in IMAGES})
    with tarfile.open(folder / "samples.tar", "w") as tar:
        for number, name in enumerate(IMAGES):
            label = str(classes.index(name.partition("/")[0])).encode()
            data = (folder / "images" / name).read_bytes()
            for suffix, content in ((Path(name).suffix, data), (".cls", label)):
                entry = tarfile.TarInfo(f"{number:04}{suffix}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return Inputs(folder / "samples.tar", folder, COMMON | {"size": 32})


def _zip(folder: Path) -> Inputs:
    """Pack a zip of class folders."""
    _tree(folder / "images")
    with zipfile.ZipFile(folder / "images.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for name in IMAGES:
            file.write(folder / "images" / name, name)
    return Inputs(folder / "images.zip", folder, COMMON | {"size": 32})


def _boxes(folder: Path) -> Inputs:
    """Pack boxes of a COCO file, none to three an image."""
    _tree(folder / "images")
    ids = {name: number for number, name in enumerate(IMAGES, start=1)}
    categories = [{"id": 3, "name": "head"}, {"id": 8, "name": "wing"}]
    annotations = [
        {
            "id": 10 * ids[name] + n,
            "image_id": ids[name],
            "category_id": (3, 8)[n % 2],
            "bbox": [2 + 5 * n, 3 + 4 * n, 12, 9 + n],
        }
        for name in IMAGES
        for n in range(ids[name] % 4)
    ]
    images = [{"id": ids[name], "file_name": name, "width": w, "height": h} for name, (w, h) in IMAGES.items()]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "boxes.json").write_text(json.dumps(content))
    return Inputs(folder / "images", folder, COMMON | {"size": 32, "boxes": folder / "boxes.json"})


def _masks(**options: Any) -> Callable[[Path], Inputs]:
    """Pack a mask of random values for each image."""

    def made(folder: Path) -> Inputs:
        _tree(folder / "images")
        for seed, (name, (width, height)) in enumerate(IMAGES.items()):
            path = (folder / "masks" / name).with_suffix(".png")
            path.parent.mkdir(parents=True, exist_ok=True)
            values = np.random.default_rng(seed).integers(0, 5, (height, width), dtype=np.uint8)
            Image.fromarray(values).save(path)
        return Inputs(folder / "images", folder, COMMON | options | {"masks": folder / "masks"})

    return made


def _splits(folder: Path) -> Inputs:
    """Pack a folder of train and val into a store each; val lacks one of the classes."""
    _tree(folder / "images" / "train")
    for name in ("ant/0.jpg", "ant/1.jpg", "cat/1.jpg", "cat/2.png"):
        path = folder / "images" / "val" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(50, 44, 90 + len(name)).save(path)
    return Inputs(folder / "images", folder, COMMON | {"size": 32})


def _class_of(number: int, name: str) -> str:
    return name.partition("/")[0]


KINDS: dict[str, Callable[[Path], Inputs]] = {
    "crop": _of_tree(size=32),
    "pad": _of_tree(size=(24, 40), fit="pad"),
    "gray": _of_tree(size=32, channels="gray", fit="squash"),
    "own-sizes": _of_tree(fit="none", max_size=48),
    "zstd": _of_tree(size=32, compress=True),
    "zstd-own-sizes": _of_tree(fit="none", compress=True),
    "jpeg": _of_tree(size=32, compress="jpeg:95"),
    "jpeg-own-sizes": _of_tree(fit="none", compress="jpeg:95"),
    "levels-2": _of_tree(size=32, levels=2),
    "levels-3": _of_tree(size=32, levels=3),
    "levels-own-sizes": _of_tree(fit="none", levels=2),
    "shuffled": _of_tree(size=32, shuffle=3),
    "list": _jsonl,
    "table": _of_table(lambda n, name: {"label": _class_of(n, name), "weight": n / 4}),
    "tar": _tar,
    "zip": _zip,
    "boxes": _boxes,
    "masks": _masks(size=32),
    "masks-own-sizes": _masks(fit="none"),
    "texts": _of_table(
        lambda n, name: {"label": _class_of(n, name), "caption": ["a grey cat", "", "zwei Vögel", "猫"][n % 4] * n},
        text_column="caption",
    ),
    "regression": _of_table(lambda n, name: {"x": n / 8, "y": -n}, target_column="x,y"),
    "multi-hot": _of_table(lambda n, name: {"tags": ["red", "red;blue", "green", ""][n % 4]}, target_column="tags"),
    "several-targets": _of_table(
        lambda n, name: {"kind": _class_of(n, name), "age": n + 0.5, "tags": ["red", "red;blue", "green"][n % 3]},
        target_column="kind,age,tags",
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
    """Where a combination is refused, see that it is, by this sentence (a pattern), and skip the rest of the law."""
    if sentence is None:
        yield
        return
    with pytest.raises(error, match=sentence) as caught:
        yield
    pytest.skip(f"refused: {caught.value}")


MakeInputs = Callable[[str], Inputs]
MakeStore = Callable[[str], Path]


@pytest.fixture(scope="session")
def inputs_of(tmp_path_factory: pytest.TempPathFactory) -> MakeInputs:
    """Make the inputs of a kind, which no test may change."""

    @functools.cache
    def made(kind: str) -> Inputs:
        return KINDS[kind](tmp_path_factory.mktemp(f"inputs-{kind}"))

    return made


@pytest.fixture(scope="session")
def store_of(inputs_of: MakeInputs, tmp_path_factory: pytest.TempPathFactory) -> MakeStore:
    """Pack a kind by one worker in blocks of two inputs. No test may change it: other ways to pack must give its bytes."""

    @functools.cache
    def packed(kind: str) -> Path:
        inputs, out = inputs_of(kind), tmp_path_factory.mktemp(f"store-{kind}") / "out"
        with tuned(least_block_inputs=2):
            pack(inputs.images, out, workers=1, **inputs.options)
        return out

    return packed
