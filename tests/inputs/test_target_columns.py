"""Several target columns, from the manifest to the batch: each a target of its own, with the same numbers in the next set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_lists import listed, scanned
from test_store import write_head

from packer import PackError, ScanError, pack
from packer.cli.app import run
from reader import MemmapDataset, MemmapLoader, RandomCrop
from reader.format.errors import StoreError
from reader.format.manifest import FurtherTarget

ROWS = "path,kind,color,price,tags\na.jpg,cat,red,1.5,x;y\nb.jpg,dog,blue,2,\nc.jpg,cat,blue,3,y\n"


def test_each_column_becomes_a_target_as_it_would_alone(tmp_path: Path) -> None:
    inputs = scanned(tmp_path / "l.csv", ROWS, target_column="price,kind,color,tags")
    assert (inputs.target_kind, inputs.targets.tolist(), inputs.classes) == ("class", [0, 1, 0], ("cat", "dog"))
    found = {name: (column.dtype, column.tolist()) for name, column in inputs.extras.items()}
    assert found == {
        "price": ("float32", [[1.5], [2.0], [3.0]]),
        "color": ("int64", [1, 0, 0]),
        "tags": ("uint8", [[1, 1], [0, 0], [0, 1]]),
    }
    assert inputs.further_targets == {
        "price": FurtherTarget("regression"),
        "color": FurtherTarget("class", ("blue", "red")),
        "tags": FurtherTarget("multi-hot", ("x", "y")),
    }


def test_columns_that_all_hold_numbers_stay_one_vector(tmp_path: Path) -> None:
    inputs = scanned(tmp_path / "l.csv", "path,x,y\na.jpg,1,2\nb.jpg,3,4\n", target_column="x,y")
    assert (inputs.target_kind, inputs.targets.tolist(), inputs.further_targets) == ("regression", [[1, 2], [3, 4]], {})


@pytest.fixture
def manifests(images: Path) -> tuple[Path, Path]:
    """Write manifests of two sets; the second has fewer classes, and single tags alone."""
    paths = listed(images)
    rows = [f"{p},{'abc'[n % 3]},{n % 2 + 5},{'xy'[n % 2]};z,{n / 2}\n" for n, p in enumerate(paths)]
    (images / "train.csv").write_text("path,kind,size,tags,price\n" + "".join(rows))
    rows = [f"{p},c,6,{'yz'[n % 2]},{n}\n" for n, p in enumerate(paths)]
    (images / "val.csv").write_text("path,kind,size,tags,price\n" + "".join(rows))
    return images / "train.csv", images / "val.csv"


COLUMNS = "kind,size,tags,price"


def test_the_reader_serves_every_target_and_val_takes_the_numbers_of_train(
    manifests: tuple[Path, Path], tmp_path: Path
) -> None:
    pack(manifests[0], tmp_path / "out", size=32, target_column=COLUMNS)
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert train.classes == ["a", "b", "c"]
    assert {name: t.classes for name, t in train.manifest.further_targets.items()} == {
        "size": tuple("0123456"),
        "tags": ("x", "y", "z"),
        "price": (),
    }
    batch = next(iter(MemmapLoader(train, 4, transform=RandomCrop(16), as_tuple=False)))
    assert (batch.targets.tolist(), batch.extras["size"].tolist()) == ([0, 1, 2, 0], [5, 6, 5, 6])
    assert batch.extras["tags"].tolist() == [[1, 0, 1], [0, 1, 1]] * 2
    assert batch.extras["price"].flatten().tolist() == [0, 0.5, 1, 1.5]

    pack(manifests[1], tmp_path / "val", size=32, target_column=COLUMNS, classes=str(tmp_path / "out"))
    val = MemmapDataset(tmp_path / "val", as_tuple=False)
    assert val.manifest.further_targets == train.manifest.further_targets
    assert (val.classes, val.targets[:2]) == (["a", "b", "c"], [2, 2])
    assert val.store.extras["tags"][:2].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert val.store.extras["price"].dtype == train.store.extras["price"].dtype


def test_info_reports_the_kind_and_classes_of_each(
    manifests: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(manifests[0], tmp_path / "out", size=32, target_column="kind,tags,price")
    assert run(["info", str(tmp_path / "out"), "--brief"]) == 0
    printed = capsys.readouterr().out
    assert "targets     class, 3 classes (a, b, c)" in printed
    assert "further     price regression; tags multi-hot, 3 classes (x, y, z)" in printed
    assert run(["info", str(tmp_path / "out"), "--json"]) == 0
    head = json.loads(capsys.readouterr().out)
    assert head["further_targets"]["tags"] == {"kind": "multi-hot", "classes": ["x", "y", "z"]}


WRONG = [
    ({"target_column": "kind,kind"}, "target_column names 'kind' twice"),
    ({"target_column": "kind,nose"}, "has no column 'nose'"),
    ({"target_column": "kind,slip"}, "line 3 of .* has 'up' as slip, line 2 of .* has '1'"),
    ({"target_column": "kind,gap"}, "line 3 of .* has nothing as gap. Expected a finite number"),
    ({"target_column": "kind,hair color"}, "the column 'hair color' of .* can be no further target: its name"),
]


@pytest.mark.parametrize(("options", "text"), WRONG, ids=[options["target_column"] for options, _ in WRONG])
def test_a_column_that_can_be_no_target_is_named(options: Any, text: str, tmp_path: Path) -> None:
    rows = "path,kind,slip,gap,hair color\na.jpg,cat,1,1.5,red\nb.jpg,dog,up,,blue\n"
    with pytest.raises(ScanError, match=text):
        scanned(tmp_path / "l.csv", rows, **options)


def test_classes_of_another_layout_are_refused(manifests: tuple[Path, Path], tmp_path: Path) -> None:
    train, val = manifests
    pack(train, tmp_path / "several", size=32, target_column=COLUMNS)
    pack(train, tmp_path / "one", size=32, target_column="kind")
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    for source, columns, text in (
        ("several", "tags", "has 'tags' as a further target, beside its first"),
        (
            "several",
            "kind,tags",
            "has the further targets price, size, tags beside its first, target_column names kind, tags",
        ),
        ("several", "size,kind,tags,nose", "has no column 'nose'"),
        ("one", "kind,tags", "one lists the classes of one of the columns kind, tags, and not of tags"),
        ("names.txt", "kind,tags", "names.txt lists the classes of one of the columns kind, tags, and not of tags"),
    ):
        with pytest.raises(ScanError, match=text):
            pack(val, tmp_path / "val", size=32, target_column=columns, classes=str(tmp_path / source))
    val.write_text(val.read_text().replace(",6,", ",8,", 1))
    with pytest.raises(ScanError, match=r"line 2 of .* has the class '8' that classes does not list \(7 classes\)"):
        pack(val, tmp_path / "val", size=32, target_column=COLUMNS, classes=str(tmp_path / "several"))


def test_texts_that_hardly_repeat_are_no_classes(tmp_path: Path) -> None:
    rows = "".join(f"{n}.jpg,{n % 2},a picture of {n}\n" for n in range(1_200))
    for columns in ("caption", "label,caption"):
        with pytest.raises(ScanError, match="has 1200 different texts among 1200 as caption"):
            scanned(tmp_path / "l.csv", "path,label,caption\n" + rows, target_column=columns)
    names = tuple(f"a picture of {n}" for n in range(1_200))
    inputs = scanned(tmp_path / "l.csv", "path,label,caption\n" + rows, target_column="caption", classes=names)
    assert inputs.targets.tolist() == list(range(1_200))


def test_another_class_of_a_further_column_is_another_pack(manifests: tuple[Path, Path], tmp_path: Path) -> None:
    options: dict[str, Any] = {"size": 32, "target_column": "kind,tags"}
    pack(manifests[0], tmp_path / "out", **options)
    manifests[0].write_text(manifests[0].read_text().replace("x;z", "w;z"))
    with pytest.raises(PackError, match="finished, but with other inputs"):
        pack(manifests[0], tmp_path / "out", **options)


def test_a_started_pack_with_another_class_of_a_further_column_is_refused(
    manifests: tuple[Path, Path], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"size": 32, "target_column": "kind,tags", "workers": 1}

    def stop(progress: Any) -> None:
        if progress.stage == "pack" and progress.done:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        pack(manifests[0], tmp_path / "out", progress=stop, **options)
    # the numbers stay the same, the name of one does not
    manifests[0].write_text(manifests[0].read_text().replace("x;z", "w;z"))
    with pytest.raises(PackError, match=r"was started with other inputs"):
        pack(manifests[0], tmp_path / "out", **options)


def test_further_targets_that_are_no_extras_are_refused(manifests: tuple[Path, Path], tmp_path: Path) -> None:
    pack(manifests[0], tmp_path / "out", size=32, target_column="kind,tags")
    head = json.loads((tmp_path / "out/manifest.json").read_bytes())
    for further, text in (
        ({"nose": {"kind": "class", "classes": []}}, "says that the extra 'nose' is a target of kind 'class'"),
        ({"tags": {"kind": "class", "classes": []}}, "says that the extra 'tags' is a target of kind 'class'"),
        (
            {"tags": {"kind": "odd", "classes": []}},
            "the further target 'tags' of the manifest says kind = 'odd', expected",
        ),
        ({"tags": []}, r"the further target 'tags' of the manifest is \[\], expected an object"),
    ):
        write_head(tmp_path / "out", json.loads(json.dumps(head)) | {"further_targets": further})
        with pytest.raises(StoreError, match=text):
            MemmapDataset(tmp_path / "out", as_tuple=False)
