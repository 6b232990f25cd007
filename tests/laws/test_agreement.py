"""Values that are stored twice agree, or are refused: blocks and the whole file, class lists of several stores.

Stores that disagree are made from intact ones, and sealed with correct digests, as by a program that mixes up files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import photo

from packer import merge, pack, pack_dataset, verify
from packer.cli.app import run
from reader import MemmapDataset, StoreError


def resealed(store: Path, change: Callable[[dict[str, Any]], None], old: str = "", new: str = "") -> None:
    """Change the fields of a manifest, and its blocks from old to new; write its digest again, by FORMAT.md."""
    path = store / "manifest.json"
    head, _, rest = path.read_text().partition(',\n  "blocks": [')
    fields = json.loads(head + "}")
    change(fields)
    blocks, _, _ = rest.partition(',\n  "digest": ')
    body = json.dumps(fields, indent=2).removesuffix("\n}") + ',\n  "blocks": [' + blocks.replace(old, new)
    path.write_text(f'{body},\n  "digest": "sha256:{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n')


def entry(path: Path) -> dict[str, object]:
    """Return the entry of a small file in a manifest."""
    return {"size_bytes": path.stat().st_size, "digest": f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make 6 images of two classes, and a file that is not an image."""
    root = tmp_path_factory.mktemp("images") / "images"
    for number in range(6):
        path = root / ("ant", "bee")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(40 + number, 36, number).save(path)
    (root / "ant" / "9.jpg").write_bytes(b"none")
    return root


def packed(images: Path, out: Path, **options: Any) -> Path:
    pack(images, out, **{"size": 32, "max_rejects": 1, "workers": 1} | options)
    return out


def without_the_broken_one(images: Path, out: Path) -> Path:
    shutil.copytree(images, out)
    (out / "ant" / "9.jpg").unlink()
    return out


@pytest.mark.parametrize("options", [{}, {"fit": "none", "size": None}, {"compress": 90}], ids=str)
def test_verify_compares_the_digests_of_all_pixels_and_of_a_block(
    options: dict[str, Any], images: Path, tmp_path: Path
) -> None:
    store = packed(images, tmp_path / "out", **options)

    def change(fields: dict[str, Any]) -> None:
        found = fields["files"]["_tensordict/pixels.memmap"]
        found["digest"] = f"crc32:{int(found['digest'][6:], 16) ^ 1:08x}"

    resealed(store, change)
    MemmapDataset(store)
    assert [problem.file for problem in verify(store).problems] == ["manifest.json"]
    assert run(["verify", str(store)]) == 1
    ((rows, crc32, *_),) = json.loads((store / "manifest.json").read_text())["blocks"]
    resealed(store, change, str(crc32), str(crc32 ^ 1))
    found = [(problem.file, problem.rows) for problem in verify(store).problems]
    assert found == [("_tensordict/pixels.memmap", (0, rows)), ("manifest.json", None)]


COUNTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "more inputs": lambda fields: fields.update(inputs=fields["inputs"] + 1),
    "fewer inputs": lambda fields: fields.update(inputs=fields["inputs"] - 1),
    "more rejects": lambda fields: fields.update(rejected=fields["rejected"] + 1),
    "fewer rows": lambda fields: fields.update(rows=fields["rows"] - 1, inputs=fields["inputs"] - 1),
    "another height": lambda fields: fields.update(height=fields["height"] - 1),
    "other channels": lambda fields: fields.update(channels=1),
}


@pytest.mark.parametrize("what", COUNTS)
def test_a_manifest_whose_counts_disagree_is_refused(what: str, images: Path, tmp_path: Path) -> None:
    store = packed(images, tmp_path / "out")
    resealed(store, lambda fields: None)
    assert verify(store).problems == []
    resealed(store, COUNTS[what])
    with pytest.raises(StoreError, match="manifest"):
        MemmapDataset(store)
    assert run(["verify", str(store)]) == 1


# -- class lists

LISTS = {
    "of other names": (["ant", "bee"], ["ant", "wasp"]),
    "in another order": (["ant", "bee"], ["bee", "ant"]),
    "in another order with others": (["ant", "bee", "cat"], ["bee", "cat", "ant"]),
    "of another length": (["ant", "bee"], ["wasp", "bee", "ant"]),
}


def store_with(classes: list[str], out: Path, first: int = 0) -> dict[bytes, str]:
    """Pack an image of each class, twice; returns each one's class by its pixels."""
    drawn = np.random.default_rng(first).integers(0, 256, (2 * len(classes), 8, 8, 3), dtype=np.uint8)
    pack_dataset([(image, n % len(classes)) for n, image in enumerate(drawn)], out, size=8, classes=classes)
    return {image.tobytes(): classes[n % len(classes)] for n, image in enumerate(drawn)}


def named(data: MemmapDataset) -> dict[bytes, str]:
    """Return each row's class by its pixels."""
    return {data[n][0].permute(1, 2, 0).numpy().tobytes(): data.classes[data[n][1]] for n in range(len(data))}


@pytest.mark.parametrize("lists", LISTS)
def test_rows_of_stores_that_are_merged_or_joined_keep_their_class_by_name(lists: str, tmp_path: Path) -> None:
    wanted = {}
    for n, classes in enumerate(LISTS[lists]):
        wanted |= store_with(classes, tmp_path / str(n), first=n)
    merge([tmp_path / "0", tmp_path / "1"], tmp_path / "both")
    assert named(MemmapDataset(tmp_path / "both")) == wanted
    assert verify(tmp_path / "both").problems == []
    lines = [json.loads(line) for line in (tmp_path / "both" / "samples.jsonl").read_text().splitlines()]
    assert [line["target"] for line in lines] == MemmapDataset(tmp_path / "both").targets


@pytest.mark.parametrize("lists", LISTS)
def test_splits_of_other_classes_are_refused_as_one_dataset_and_as_a_class_list(
    lists: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    for split, classes in zip(("train", "val"), LISTS[lists], strict=True):
        store_with(classes, tmp_path / "out" / split)
    for split in ("train", "val"):
        with pytest.raises(
            StoreError, match="the splits of .* have different classes: .* Pack .* again with --classes"
        ):
            MemmapDataset(tmp_path / "out", split=split)
    assert run(["build", str(images), str(tmp_path / "new"), "--classes", str(tmp_path / "out"), "--size", "32"]) != 0
    assert "splits with different class lists" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
