"""Values that three mutants of the packer changed without a test that saw it: labels that are missing, offsets of masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from packer import pack
from reader import MemmapDataset


def test_a_missing_label_is_no_class(images: Path, tmp_path: Path) -> None:
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.jpg"))
    labels = ["cat", "", "dog", "nan", *["cat"] * (len(names) - 4)]
    table = tmp_path / "list.csv"
    table.write_text("path,label\n" + "".join(f"{name},{label}\n" for name, label in zip(names, labels, strict=True)))
    pack(table, tmp_path / "out", size=16, root=images)
    store = MemmapDataset(tmp_path / "out")
    assert store.classes == ["cat", "dog"]
    assert list(store.targets) == [0, -1, 1, -1, *[0] * (len(names) - 4)]


def test_the_mask_of_a_row_of_its_own_size_is_behind_its_pixels(tmp_path: Path) -> None:
    sides = [(5, 7), (9, 4), (6, 6)]
    for number, (height, width) in enumerate(sides):
        for folder, mode, color in (("images", "RGB", (number, 1, 2)), ("masks", "L", 10 + number)):
            (tmp_path / folder / "a").mkdir(parents=True, exist_ok=True)
            Image.new(mode, (width, height), color).save(tmp_path / folder / "a" / f"{number}.png")
    pack(tmp_path / "images", tmp_path / "out", fit="none", masks=tmp_path / "masks", workers=1)
    tensors = tmp_path / "out" / "_tensordict"
    begins = np.fromfile(tensors / "offsets.memmap", "<i8")
    masks = np.fromfile(tensors / "mask_offsets.memmap", "<i8")
    pixels = np.fromfile(tensors / "pixels.memmap", np.uint8)
    for number, (height, width) in enumerate(sides):
        assert masks[number] == begins[number] + height * width * 3
        found = pixels[masks[number] : masks[number] + height * width]
        assert set(found.tolist()) == {10 + number}
