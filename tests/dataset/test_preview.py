"""What a notebook shows of a dataset: every tile is a PNG of the row that it says, with its class."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_tree
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packer import pack
from reader import MemmapDataset
from reader.dataset.preview import png

TILE = re.compile(r'base64,([^"]+)" width="(\d+)" height="(\d+)" alt="row (\d+)"><figcaption>([^<]*)<')


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 4]))
def test_a_png_holds_the_pixels(height: int, width: int, channels: int) -> None:
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, channels), np.uint8)
    image = Image.open(io.BytesIO(png(pixels)))
    image.load()
    assert image.mode == {1: "L", 3: "RGB", 4: "RGBA"}[pixels.shape[2]]
    assert np.array_equal(np.asarray(image).reshape(pixels.shape), pixels)


def test_a_dataset_shows_rows_spread_over_it_with_their_classes(shared_store: Path) -> None:
    data = MemmapDataset(shared_store, as_tuple=False)
    tiles = TILE.findall(data._repr_html_())
    assert [int(row) for *_, row, _ in tiles] == [(2 * i + 1) * 90 // 48 for i in range(24)]
    for encoded, width, height, row, caption in tiles:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))
        assert np.array_equal(pixels, data.numpy()[int(row)])
        assert (width, height) == ("96", "96")
        assert caption == data.classes[data.targets[int(row)]]


def test_a_subset_shows_its_own_rows_past_its_transform(shared_store: Path) -> None:
    data = MemmapDataset(shared_store, transform=lambda batch: 1 / 0, as_tuple=False).subset([80, 3])
    assert [row for *_, row, _ in TILE.findall(data._repr_html_())] == ["80", "3"]


def test_large_rows_become_small_tiles_and_names_are_escaped(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", classes=1, each=1, size=(300, 400))
    (tmp_path / "images" / "class0").rename(tmp_path / "images" / "<b>&amp")
    pack(tmp_path / "images", tmp_path / "out", size=(256, 384), workers=1)
    shown = MemmapDataset(tmp_path / "out")._repr_html_()
    ((encoded, width, height, _, caption),) = TILE.findall(shown)
    assert caption == "&lt;b&gt;&amp;amp"
    assert (width, height) == ("96", "64")
    assert Image.open(io.BytesIO(base64.b64decode(encoded))).size == (96, 64)


@pytest.mark.parametrize(
    ("line", "options", "caption"),
    [("a.jpg,0.5,2", {"target_column": "x,y"}, "0.5, 2"), ("a.jpg,cat;dog,2", {"target_column": "x"}, "cat, dog")],
)
def test_other_targets_are_reported_as_they_are(
    tmp_path: Path, line: str, options: dict[str, str], caption: str
) -> None:
    make_tree(tmp_path, classes=1, each=1)
    (tmp_path / "class0" / "000.jpg").rename(tmp_path / "a.jpg")
    (tmp_path / "list.csv").write_text(f"path,x,y\n{line}\n")
    pack(tmp_path / "list.csv", tmp_path / "out", size=32, workers=1, **options)
    assert TILE.findall(MemmapDataset(tmp_path / "out")._repr_html_())[0][-1] == caption


def test_kinds_without_names_are_numbers(shared_store: Path) -> None:
    data = MemmapDataset(shared_store)
    kinds = torch.zeros(len(data), 4, dtype=torch.uint8)
    kinds[: len(data) // 2, [0, 3]] = 1
    captions = [caption for *_, caption in TILE.findall(data.with_targets(kinds)._repr_html_())]
    assert captions == ["0, 3"] * 12 + ["none"] * 12
