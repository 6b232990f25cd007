"""The source of images changes only their names: a list, a table, a tar, a zip, a URL, a dataset, a requantized tree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Feed, ffmpeg_or_skip, store_bytes, torchvision_or_skip
from kinds import BROKEN, KINDS, SAMPLES, MakeInputs, MakeStore, spread, stores_of
from PIL import Image
from test_archives import make_tar
from test_labels import write_table
from test_listers import LISTERS

from packer import pack, pack_dataset, plan, requantize
from packer.sample_lines import read_samples

TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".tar")
FOLDERS = ["crop", "own-sizes", "jpeg-pad", "shuffled", "labels-own-sizes", "splits"]
# the prefix of paths in an archive
ARCHIVES = {"tar": "i.tar/", "zip": "i.zip/", "wrapped": "i.zip/my photos/"}
PLANNED = ("size", "fit", "max_size", "channels")


@pytest.fixture(autouse=True)
def _small_blocks(small_blocks: None) -> None:
    """Blocks of two inputs, as in the stores of the kinds."""


def content_of(store: Path, *sourced: str, name_of: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the content of a store without the facts about its sources: these fields of its lines, and prefixes of its paths."""
    found: dict[str, Any] = dict(store_bytes(store))
    head = json.loads(found.pop("manifest.json"))
    for name in ("samples.jsonl", "rejected.jsonl"):
        lines = [json.loads(line) for line in found[name].splitlines()]
        paths = [name_of(line.pop("path")) for line in lines]
        found[name] = paths, [{key: value for key, value in line.items() if key not in sourced} for line in lines]
        del head["files"][name]
    for part, name in (("options", "requantize"), ("decoders", "ffmpeg")):
        head[part].pop(name, None)
    # without the start of each block's lines
    blocks = [(rows, digest, size_bytes) for rows, digest, _, size_bytes in head["blocks"]]
    return found | head | {"blocks": blocks, "labels": None, "digest": None}


@pytest.mark.parametrize(
    ("kind", "lister"),
    spread(FOLDERS, [*LISTERS], known=lambda kind, lister: (kind, lister) != ("labels-own-sizes", "wrapped")),
)
def test_the_store_of_any_list_and_archive_is_that_of_the_folder(
    kind: str, lister: str, inputs_of: MakeInputs, store_of: MakeStore, tmp_path: Path, feed: Feed
) -> None:
    inputs = inputs_of(kind)
    images, options = LISTERS[lister](inputs.images, tmp_path, feed)
    pack(images, tmp_path / "out", workers=1, **inputs.options, **options)
    for split, store in stores_of(store_of(kind)).items():
        above = f"{ARCHIVES[lister]}{split}/".replace("//", "/") if lister in ARCHIVES else ""
        found = content_of(tmp_path / "out" / split, "line", name_of=lambda path, above=above: path.removeprefix(above))
        assert found == content_of(store)


def write_samples(tar: Path, images: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a tar as WebDataset does: the label of a sample in its .cls, its other columns in its .json."""
    members: dict[str, bytes | str] = {}
    for row in rows:
        key, _, _ = row["path"].rpartition(".")
        fields = {name: value for name, value in row.items() if name not in ("path", "label")}
        members |= {row["path"]: (images / row["path"]).read_bytes(), f"{key}.cls": row["label"]}
        members |= {f"{key}.json": json.dumps(fields)}
    return make_tar(tar, members)


@pytest.mark.parametrize(("kind", "suffix"), spread(["crop", "own-sizes", "jpeg"], TABLES))
def test_the_store_of_a_table_or_a_tar_of_samples_is_that_of_the_folder(
    kind: str, suffix: str, inputs_of: MakeInputs, store_of: MakeStore, tmp_path: Path
) -> None:
    inputs, path = inputs_of(kind), tmp_path / f"t{suffix}"
    fields = {
        one.name: {"weight": one.values / 4, "caption": ["", "zwei Vögel", "猫"][one.values % 3]} for one in SAMPLES
    }
    rows = [{"path": one.name, "label": one.label} | fields[one.name] for one in SAMPLES]
    if suffix == ".tar":
        pack(write_samples(path, inputs.images, rows), tmp_path / "out", workers=1, **inputs.options)
    else:
        pack(write_table(path, rows), tmp_path / "out", workers=1, root=inputs.images, **inputs.options)
    found = content_of(tmp_path / "out", "line", "columns", name_of=lambda name: name.removeprefix("t.tar/"))
    assert found == content_of(store_of(kind))
    for name, sample in zip(found["samples.jsonl"][0], read_samples(tmp_path / "out"), strict=True):
        is_text = suffix in (".csv", ".tsv")
        assert sample.columns == {key: str(value) if is_text else value for key, value in fields[name].items()}


@pytest.mark.parametrize("kind", ["crop", "pad", "shuffled"])
def test_the_store_of_an_image_folder_is_that_of_the_folder(
    kind: str, inputs_of: MakeInputs, store_of: MakeStore, tmp_path: Path
) -> None:
    inputs = inputs_of(kind)
    dataset = torchvision_or_skip().datasets.ImageFolder(str(inputs.images))
    pack_dataset(dataset, tmp_path / "out", workers=1, **inputs.options)
    names = [str(Path(path).relative_to(inputs.images)) for path, _ in dataset.samples]
    decoded = ("bytes", "sha256", "decoder", "format", "reason")
    found = content_of(tmp_path / "out", *decoded, name_of=lambda number: names[int(number)])
    assert found == content_of(store_of(kind), *decoded)


@pytest.mark.parametrize("kind", spread([kind for kind in FOLDERS if kind != "labels-own-sizes"]))
def test_a_requantized_pack_is_the_pack_of_the_requantized_tree(kind: str, tmp_path: Path) -> None:
    ffmpeg_or_skip()
    inputs = KINDS[kind](tmp_path / "inputs", [one for one in SAMPLES if one.name != BROKEN])
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, mode in (("ant/1.jpg", "RGB"), ("cat/1.jpg", "CMYK"), ("bee/1.jpg", "L")):
        for path in inputs.images.rglob(name):
            with Image.open(path) as image:
                image.convert(mode).save(path, quality=90, exif=exif)
    # small enough for DCT scaling
    options = inputs.options | ({"size": 16} if "size" in inputs.options else {"max_size": 16})
    requantize(inputs.images, tmp_path / "tree", quality=6)
    pack(inputs.images, tmp_path / "one", workers=1, requantize=6, **options)
    pack(tmp_path / "tree", tmp_path / "two", workers=1, **options | {"exact": True})
    for split, store in stores_of(tmp_path / "one").items():
        one = content_of(store, "bytes", "sha256", "requantized", "kept")
        assert one == content_of(tmp_path / "two" / split, "bytes", "sha256")


# a plan knows neither masks nor JPEG rows
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "labels-own-sizes" and "jpeg" not in kind])
def test_a_plan_has_the_bytes_of_the_store(kind: str, inputs_of: MakeInputs, store_of: MakeStore) -> None:
    inputs, stores = inputs_of(kind), stores_of(store_of(kind)).values()
    found = plan(inputs.images, workers=1, **{name: value for name, value in inputs.options.items() if name in PLANNED})
    stored = [store / "_tensordict" / "pixels.memmap" for store in stores]
    assert found.choices[found.chosen] == sum(file.stat().st_size for file in stored)
