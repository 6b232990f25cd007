"""`pack info` on what the one pass has found: rows a class, sizes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from conftest import make_tree, photo
from PIL import Image

from packer import pack
from packer.cli.app import run
from packer.cli.messages import manifest_lines, source_lines
from packer.operations.info import SourceStatistics, describe
from reader import MemmapDataset
from reader.format.errors import StoreError


def test_rows_a_class_and_sizes_of_the_sources_are_counted(tmp_path: Path) -> None:
    for name, sizes in {"a": [(40, 30)] * 3 + [(300, 70)], "b": [(40, 30), (64, 64)], "c": []}.items():
        (tmp_path / "images" / name).mkdir(parents=True)
        for n, (width, height) in enumerate(sizes):
            photo(width, height, ord(name) + n).save(tmp_path / "images" / name / f"{n}.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(30, 40, 7).save(tmp_path / "images/b/turned.jpg", exif=exif)
    pack(tmp_path / "images", tmp_path / "out", size=16)
    sources = describe(tmp_path / "out").sources[""]
    assert sources.class_counts == [4, 3]  # a folder without images is no class
    assert sources.sizes == [[40, 30, 5], [64, 64, 1], [300, 70, 1]]
    assert (sources.distinct_sizes, sources.unlabelled) == (3, 0)
    assert sources.source_bytes == sum(path.stat().st_size for path in (tmp_path / "images").rglob("*.jpg"))


def test_rows_without_a_class_are_reported(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", classes=1, each=2)
    pack(tmp_path / "images/class0", tmp_path / "flat", size=16)
    sources = describe(tmp_path / "flat").sources[""]
    assert (sources.class_counts, sources.unlabelled) == ([], 2)


def test_rows_of_several_classes_count_in_each(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", classes=1, each=3)
    lines = [{"path": f"class0/00{n}.jpg", "target": target} for n, target in enumerate([["x", "y"], ["y"], []])]
    (tmp_path / "images/list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pack(tmp_path / "images/list.jsonl", tmp_path / "out", size=16)
    sources = describe(tmp_path / "out").sources[""]
    assert (sources.class_counts, sources.unlabelled) == ([1, 2], 1)


def test_info_is_the_manifest_with_more(shared_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(shared_store), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report.pop("sources")["class_counts"] == [30, 30, 30]
    assert report.items() >= {"rows": 90, "classes": ["class0", "class1", "class2"]}.items()
    assert run(["info", str(shared_store)]) == 0
    out = capsys.readouterr().out
    assert "\na class     30 rows\n" in out


def test_one_class_is_one_and_long_lines_are_folded(shared_store: Path) -> None:
    manifest = MemmapDataset(shared_store).manifest
    decoders = {"libjpeg-turbo": {"jpeg4py": "0.1.4"}, "pillow": {"version": "12"}}
    lines = manifest_lines("out", dataclasses.replace(manifest, classes=("cat",), decoders=decoders))
    assert lines["targets"] == "class, 1 class (cat)"
    assert lines["decoders"] == "libjpeg-turbo (jpeg4py 0.1.4),\n            pillow (version 12)"
    assert max(map(len, lines["options"].split("\n"))) <= 100
    assert source_lines(manifest, SourceStatistics([0, 0, 0], 90, [], 0, 0))["a class"] == "no row has a label"


def test_no_store_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        describe(tmp_path)
