"""A value that mutants of the packer changed without a test that saw it: labels that are missing."""

from __future__ import annotations

from pathlib import Path

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
