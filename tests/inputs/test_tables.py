"""Manifests in the forms that people have them: whichever column holds the paths, whatever separates cells, and .parquet."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import photo
from test_lists import listed, scanned

from packer import ScanError, pack
from packer.inputs.scan import scan
from packer.options import PackOptions
from reader import MemmapDataset


@pytest.mark.parametrize(
    "name",
    [
        "Path",
        "filename",
        "file",
        "image",
        "file_name",
        "FILE",
        "Image",
        "image_path",
        "filepath",
        "file_path",
        " path ",
    ],
)
def test_paths_are_found_under_the_names_that_people_give_them(name: str, tmp_path: Path) -> None:
    inputs = scanned(tmp_path / "l.csv", f"id,{name},Label\n1,a.jpg,cat\n2,b.jpg,dog\n")
    assert (inputs.paths, inputs.classes, list(inputs.extras)) == (["a.jpg", "b.jpg"], ("cat", "dog"), ["id"])
    records = [{name.strip(): "a.jpg", "Label": "cat"}, {name.strip(): "b.jpg", "Label": "dog"}]
    inputs = scanned(tmp_path / "l.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    assert (inputs.paths, inputs.classes) == (["a.jpg", "b.jpg"], ("cat", "dog"))


def test_path_comes_before_image_and_what_is_asked_for_before_both(tmp_path: Path) -> None:
    text = "image,path,Path\na,b,c\n"
    assert scanned(tmp_path / "l.csv", text).paths == ["b"]
    assert scanned(tmp_path / "l.csv", text, path_column="image").paths == ["a"]
    with pytest.raises(ScanError, match="has no column 'nose'. It has: image, path, Path"):
        scanned(tmp_path / "l.csv", text, path_column="nose")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.csv", "path;label;w\na.jpg;cat;1\nb.jpg;dog;2\n"),
        ("l.csv", "path\tlabel\tw\na.jpg\tcat\t1\nb.jpg\tdog\t2\n"),
        ("l.tsv", "path,label,w\na.jpg,cat,1\nb.jpg,dog,2\n"),
        ("l.csv", 'path;label;"w"\n"a.jpg";"cat";1\nb.jpg;dog;2'),
        ("l.csv", '"path","label","w"\r\na.jpg,cat,1\r\nb.jpg,dog,2'),
    ],
    ids=["semicolons", "tabs in a csv", "commas in a tsv", "semicolons, quoted", "CRLF, no last end"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_separates_cells_and_how_a_file_is_encoded_is_seen(
    name: str, text: str, encoding: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(text.encode(encoding))
    inputs = scan(tmp_path / name)[""]
    assert (inputs.paths, inputs.targets.tolist(), inputs.classes) == (["a.jpg", "b.jpg"], [0, 1], ("cat", "dog"))
    assert inputs.extras["w"].tolist() == [1, 2]


def test_lists_in_cells_stand_in_a_semicolon_csv_too(tmp_path: Path) -> None:
    inputs = scanned(tmp_path / "l.csv", 'path;label\na.jpg;"cat;dog"\nb.jpg;dog\n')
    assert (inputs.target_kind, inputs.targets.tolist()) == ("multi-hot", [[1, 1], [0, 1]])


def test_a_decimal_comma_is_no_class(tmp_path: Path) -> None:
    with pytest.raises(ScanError, match=r"line 3 of .* has '0,5' as label. Expected a point in a number"):
        scanned(tmp_path / "l.csv", "path;label\na.jpg;1\nb.jpg;0,5\n")
    assert scanned(tmp_path / "l.csv", "path;label\na.jpg;0,5\n", classes=("0,5",)).targets.tolist() == [0]


def test_utf16_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    for name in ("l.csv", "l.jsonl"):
        (tmp_path / name).write_bytes(b"\xff\xfep\x00a")
        with pytest.raises(ScanError, match=f"{name} is not the UTF-16 that its first bytes say"):
            scan(tmp_path / name)


def parquet(path: Path, columns: dict[str, Any]) -> None:
    """Write a .parquet of these columns."""
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)


def test_a_parquet_is_a_manifest(images: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    paths = listed(images)
    columns = {
        "file_name": paths,
        "label": pyarrow.array([None if n == 5 else float(n % 3) for n in range(24)]),
        "kind": pyarrow.array([f"k{n % 2}" for n in range(24)]).dictionary_encode(),
        "box": [[n, 1, 2, 3] for n in range(24)],
        "when": pyarrow.array([0] * 24, pyarrow.timestamp("ms")),
    }
    parquet(tmp_path / "l.parquet", columns)
    report = pack(tmp_path / "l.parquet", tmp_path / "out", size=16, workers=1)
    train = MemmapDataset(tmp_path / "out")
    assert train.targets == [-1 if n == 5 else n % 3 for n in range(24)]
    assert train.store.extras["box"].tolist() == [[n, 1, 2, 3] for n in range(24)]
    assert report.notes == [
        "the column 'when' is left out: it holds timestamp[ms], no numbers.",
        f"1 of 24 inputs has no label, row 6 of {tmp_path}/l.parquet first: it has no class.",
        f"the column 'kind' is left out: row 1 of {tmp_path}/l.parquet holds 'k0', which is no number.",
    ]
    options = PackOptions(target_column="kind")
    assert scan(tmp_path / "l.parquet", options=options)[""].classes == ("k0", "k1")


def test_a_parquet_of_images_or_of_nothing_readable_is_one_sentence(tmp_path: Path) -> None:
    parquet(tmp_path / "l.parquet", {"image": [{"bytes": b"x", "path": "a.jpg"}], "label": [1]})
    with pytest.raises(
        ScanError, match="the column 'image' of .* holds struct<bytes: binary.*>, expected paths of files"
    ):
        scan(tmp_path / "l.parquet")
    (tmp_path / "l.parquet").write_bytes(b"PAR1")
    with pytest.raises(ScanError, match="l.parquet is not as a parquet should be"):
        scan(tmp_path / "l.parquet")
    parquet(tmp_path / "l.parquet", {"name": ["a.jpg"]})
    with pytest.raises(ScanError, match="row 1 of .* has no column 'path'. It has: name"):
        scan(tmp_path / "l.parquet")
    parquet(tmp_path / "l.parquet", {"path": ["a.jpg", None]})
    with pytest.raises(ScanError, match="row 2 of .* has None as path"):
        scan(tmp_path / "l.parquet")


def test_without_pyarrow_a_parquet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo(20, 20, 1).save(tmp_path / "a.jpg")
    (tmp_path / "l.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ScanError, match="l.parquet needs pyarrow: pip install pyarrow, or write it as a .csv"):
        scan(tmp_path / "l.parquet")


def test_blank_lines_before_the_header_do_not_hide_what_separates_cells(tmp_path: Path) -> None:
    inputs = scanned(tmp_path / "l.csv", "\n\r\npath;label\na.jpg;cat\n\nb.jpg;dog\n")
    assert (inputs.paths, inputs.targets.tolist()) == (["a.jpg", "b.jpg"], [0, 1])
