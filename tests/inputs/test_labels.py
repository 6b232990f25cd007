"""What cells of tables and labels of tars mean: the kind of targets, classes, and one sentence for each that makes no sense."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_tree

from packer import ScanError, pack
from packer.inputs.class_lists import load_classes
from packer.inputs.samples import Inputs
from packer.inputs.scan import scan
from packer.options import PackOptions
from packer.sample_lines import read_json_lines
from reader import MemmapDataset

NFC, NFD = "caf\u00e9", "cafe\u0301"
HUGE = "99999999999999999999"


def scanned(path: Path, text: str | bytes, *, classes: tuple[str, ...] | None = None, **options: Any) -> Inputs:
    """Write a table and list it."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
    return scan(path, classes=classes, options=PackOptions(**options))[""]


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a table of the kind that its name says."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*rows[0]], delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


def of_cells(folder: Path, suffix: str, columns: dict[str, list[Any]], **options: Any) -> Inputs:
    """List a table with these columns, and paths 0.jpg, 1.jpg, ..."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    rows = [{"path": f"{number}.jpg"} | row for number, row in enumerate(rows)]
    classes = options.pop("classes", None)
    return scan(write_table(folder / f"t{suffix}", rows), classes=classes, options=PackOptions(**options))[""]


KINDS = {
    # cells of `label`, options -> kind, targets, classes
    "integers": ([2, 0, 1], {}, "class", [2, 0, 1], ("0", "1", "2")),
    "no label": ([1, -1, 0], {}, "class", [1, -1, 0], ("0", "1")),
    "names": (["b", "a", "b"], {}, "class", [1, 0, 1], ("a", "b")),
    "leading zeros": (["007", "01", "1x"], {"classes": ("01", "007", "1x")}, "class", [1, 0, 2], ("01", "007", "1x")),
    "codes": (["01", "007"], {}, "class", [1, 0], ("007", "01")),
    "imposed": (["b", "a", "b"], {"classes": ("b", "z", "a")}, "class", [0, 2, 0], ("b", "z", "a")),
    "imposed numbers": ([10, 2, 10], {"classes": ("10", "2")}, "class", [0, 1, 0], ("10", "2")),
    "indices": ([2, 0, 1], {"classes": ("x", "y", "z")}, "class", [2, 0, 1], ("x", "y", "z")),
    "a huge id": ([HUGE], {"classes": (HUGE,)}, "class", [0], (HUGE,)),
    "missing names": (["cat", "", "dog", "nan", "NaN"], {}, "class", [0, -1, 1, -1, -1], ("cat", "dog")),
    "missing integers": (["3.0", "", "1.0"], {}, "class", [3, -1, 1], ("0", "1", "2", "3")),
    "all missing": (["", "nan"], {}, "class", [-1, -1], ()),
    "spellings": ([NFC, NFD, "tea"], {}, "class", [0, 0, 1], (NFC, "tea")),
    "floats": ([0.5, 2, -1e3], {}, "regression", [[0.5], [2.0], [-1000.0]], ()),
    "points": (["3.0", "1.0"], {}, "regression", [[3.0], [1.0]], ()),
    "several names": (["a;c", "b"], {"label_separator": ";"}, "multi-hot", [[1, 0, 1], [0, 1, 0]], ("a", "b", "c")),
    "blanks": (["a c", "", "a"], {"label_separator": " "}, "multi-hot", [[1, 1], [0, 0], [1, 0]], ("a", "c")),
    "several indices": (["0|2", "1|2"], {"label_separator": "|"}, "multi-hot", [[1, 0, 1], [0, 1, 1]], ("0", "1", "2")),
    "vectors": (["0.5;1", "2;3"], {"label_separator": ";"}, "regression", [[0.5, 1], [2, 3]], ()),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)
def test_all_cells_of_a_column_decide_what_it_holds(case: Any, suffix: str, tmp_path: Path) -> None:
    cells, options, kind, targets, classes = case
    inputs = of_cells(tmp_path, suffix, {"label": cells}, **options)
    assert (inputs.target_kind, inputs.targets.tolist(), inputs.classes) == (kind, targets, classes)
    assert inputs.paths[:] == [f"{number}.jpg" for number in range(len(cells))]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_lists_in_cells_are_several_labels_or_numbers(suffix: str, tmp_path: Path) -> None:
    inputs = of_cells(tmp_path, suffix, {"label": [["x", "y"], []], "at": [[0.5, 1.0], [2.5, 3.0]]})
    assert (inputs.target_kind, inputs.targets.tolist(), inputs.classes) == ("multi-hot", [[1, 1], [0, 0]], ("x", "y"))
    inputs = of_cells(tmp_path, suffix, {"label": [["x"], []], "at": [[0.5, 1.0], [2.5, 3.0]]}, target_column="at")
    assert (inputs.target_kind, inputs.targets.tolist()) == ("regression", [[0.5, 1], [2.5, 3]])


@pytest.mark.parametrize("cells", [(1, 0), ("1.0", "0.0"), ("True", "False")])
def test_columns_of_0_and_1_are_several_labels_with_their_names(cells: tuple[Any, Any], tmp_path: Path) -> None:
    one, zero = cells
    columns = {"MEL": [one, zero, zero], "NV": [zero, one, zero]}
    inputs = of_cells(tmp_path, ".csv", columns, target_column="MEL,NV")
    assert (inputs.target_kind, inputs.classes) == ("multi-hot", ("MEL", "NV"))
    assert inputs.targets.tolist() == [[1, 0], [0, 1], [0, 0]]
    imposed = of_cells(tmp_path, ".csv", columns, target_column="NV,MEL", classes=("BCC", "MEL", "NV"))
    assert imposed.targets.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    numbers = of_cells(tmp_path, ".csv", {"x": [1, 3], "y": [2.5, 4]}, target_column="x,y")
    assert (numbers.target_kind, numbers.targets.tolist()) == ("regression", [[1, 2.5], [3, 4]])


def test_several_labels_are_trained_on_as_float32_and_further_columns_stand_in_samples_jsonl(tmp_path: Path) -> None:
    images = sorted(make_tree(tmp_path / "images", each=2).rglob("*.jpg"))
    rows = "".join(f"{path},{['red', 'red|big', ''][n % 3]},zwei Vögel,{n}\n" for n, path in enumerate(images))
    (tmp_path / "t.csv").write_text("path,label,caption,age\n" + rows)
    pack(tmp_path / "t.csv", tmp_path / "out", size=32, workers=2, label_separator="|")
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    targets = train[[0, 1, 2]].targets
    assert (targets.dtype, targets.tolist(), train.classes) == (torch.float32, [[0, 1], [1, 1], [0, 0]], ["big", "red"])
    torch.nn.BCEWithLogitsLoss()(torch.zeros(3, 2), targets)
    lines = [*read_json_lines(tmp_path / "out/samples.jsonl")]
    assert [line["columns"] for line in lines] == [{"caption": "zwei Vögel", "age": str(n)} for n in range(6)]
    assert [line["target"] for line in lines[:2]] == [[0, 1], [1, 1]]


def test_numbers_that_are_no_json_are_null_in_samples_jsonl(tmp_path: Path) -> None:
    path = next(make_tree(tmp_path / "images", each=1).rglob("*.jpg"))
    (tmp_path / "t.jsonl").write_text(f'{{"path": "{path}", "a": NaN, "b": [Infinity, 1.5], "c": {{"d": -Infinity}}}}')
    pack(tmp_path / "t.jsonl", tmp_path / "out", size=32, workers=1)
    (line,) = read_json_lines(tmp_path / "out/samples.jsonl")
    assert line["columns"] == {"a": None, "b": [None, 1.5], "c": {"d": None}}


NOTES = [
    # cells, what a note says
    (
        ["clear primary", "cloudy", "clear road water", "primary road", "haze primary", "haze water"],
        "label_separator=' '",
    ),
    (["a,b", "b,c", "a,c"], "3 of 3 classes, such as 'a,b', are made of parts of others"),
    (["cat", ""], r"1 of 2 inputs without label, line 3 of .*t.csv first: no class"),
]


@pytest.mark.parametrize(("cells", "text"), NOTES)
def test_labels_that_may_mean_something_else_are_noted(cells: list[Any], text: str, tmp_path: Path) -> None:
    (note,) = of_cells(tmp_path, ".csv", {"label": cells}).notes
    assert pytest.RaisesExc(Exception, match=text).matches(Exception(note))


def test_names_with_blanks_are_no_labels_of_several(tmp_path: Path) -> None:
    cells = ["golden retriever", "tabby cat", "red fox", "grey fox"]
    assert of_cells(tmp_path, ".csv", {"label": cells}).notes == []


WRONG = [
    ("l.csv", "path,label\na.jpg\n", {}, "line 2 of .*l.csv has 1 cells, its header has 2"),
    ("l.csv", 'path,label\n"a.jpg,1\n', {}, "line 2 of .*l.csv is not valid csv"),
    ("l.csv", "a.jpg,cat\nb.jpg,dog\n", {}, "line 1 of .*l.csv has 'a.jpg' where the names of columns are expected"),
    ("l.csv", "x,label\na.jpg,cat\n", {}, "line 2 of .* has no column 'path'. It has: x, label. path_column of pack"),
    ("l.csv", "path,a,a\nx,1,2\n", {}, "line 1 of .*, the header, names the column 'a' twice"),
    ("l.csv", "path\n", {}, "names no image"),
    ("l.csv", "path,label\n,cat\n", {}, "line 2 of .* has '' as path. Expected the path of an image"),
    ("l.csv", "path,label\na.jpg,1\nb.jpg,x\n", {}, "line 2 of .* has '1' as label, line 3 .* has 'x'. Expected numbers"),
    ("l.csv", "path,label\na.jpg,0.5\nb.jpg,0.5o\n", {}, "line 2 of .* has '0.5' as label, line 3 of .* has '0.5o'"),
    ("l.csv", "path,label\na.jpg,0.5\nb.jpg,\nc.jpg,1.0\n", {}, "line 3 of .* has nothing as label. Expected a finite number"),
    ("l.csv", "path,label\na.jpg,0.5\nb.jpg,inf\n", {}, "line 3 of .* has inf as label. Expected a finite number"),
    ("l.csv", "path,label\na.jpg,0.5\nb.jpg,1e39\n", {}, "line 3 of .* has 1e39 as label. Expected a finite number"),
    ("l.csv", "path,label\na.jpg,1;0.5\nb.jpg,2\n", {"label_separator": ";"}, "line 3 .* has 1 numbers as label, line 2 .* 2"),
    ("l.csv", "path,label\na.jpg,0;-1\n", {"label_separator": ";"}, "line 2 of .* has -1 as label. Expected an index from 0"),
    ("l.csv", "path,x,y\na.jpg,1,2\nb.jpg,1,up\n", {"target_column": "x,y"}, "line 3 of .* has up as x,y"),
    ("l.csv", "path,label\na.jpg,-2\n", {}, "line 2 of .* has -2 as label. Expected an index from 0 to 999999. If these are ids"),
    ("l.csv", f"path,label\na.jpg,0\nb.jpg,{HUGE}\n", {}, "line 3 of .* has 9+ as label. Expected an index from 0 to 999999"),
    ("l.csv", "path,label\na.jpg,cat\n", {"classes": ("dog",)}, "line 2 of .* has the class 'cat' that classes does not"),
    ("l.csv", "path,label\na.jpg,3\n", {"classes": ("x", "y")}, "line 2 of .* has 3 as label. Expected an index from 0 to 1"),
    ("l.csv", "path,label\na.jpg,x\nb.jpg,1\n", {"classes": ("x", "y")}, "line 3 of .* has the class '1' that classes does not"),
    ("l.csv", "path,kind\na.jpg,3\n", {"target_column": "label"}, "has no column 'label', which target_column names"),
    ("l.csv", b"path,label\na.jpg,caf\xe9\n", {}, r"line 2 of .* is not UTF-8: it has 'caf\\udce9' as label"),
    ("l.csv", "path\na.jpg\n", {"root": "/no/such"}, "root='/no/such' is not a folder"),
    ("l.csv", "path\na.jpg\n/tmp/b.jpg\n", {"root": "."}, "line . of .* is not in root='.'. Give a folder that holds all images"),
    ("l.jsonl", '{"path": "a.jpg"}\n{"path": \n', {}, "line 2 of .*l.jsonl is not JSON"),
    ("l.jsonl", '["a.jpg"]\n', {}, "line 1 of .*l.jsonl is not a JSON object"),
    ("l.jsonl", '{"path": 7}\n', {}, "line 1 of .* has '7' as path"),
    ("l.jsonl", '{"path": "\\ud800.jpg"}\n', {}, r"line 1 of .* has '\\ud800.jpg' as path"),
    ("l.txt", "a.jpg 1\n", {}, "l.txt is a text file. .*write them to a .csv, with path,label as its first line"),
    ("l.parquet", "no parquet", {}, "l.parquet is not valid parquet"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "options", "expected"), WRONG)
def test_what_makes_no_sense_is_named(name: str, text: Any, options: Any, expected: str, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(ScanError, match=expected):
        scanned(tmp_path / name, text, **options)


@pytest.mark.parametrize("name", ["path", "Path", "filepath", "image_path", "file_name", "FILE", "image"])
def test_paths_are_found_under_the_names_that_people_give_them(name: str, tmp_path: Path) -> None:
    assert scanned(tmp_path / "t.csv", f"id,{name},label\n7,a.jpg,cat\n").paths[:] == ["a.jpg"]
    assert scanned(tmp_path / "t.csv", f"{name},mine\nb.jpg,a.jpg\n", path_column="mine").paths[:] == ["a.jpg"]


FORMS = {
    "a mark": '\ufeffpath,label\r\na.jpg,"x,y"\r\n',
    "blank lines": '\n\npath , label\n\na.jpg,"x,y"\n',
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_marks_and_blank_lines_are_passed_over(text: str, tmp_path: Path) -> None:
    inputs = scanned(tmp_path / "t.csv", text)
    assert (inputs.paths[:], inputs.classes) == (["a.jpg"], ("x,y",))


def test_a_parquet_of_images_is_one_sentence_and_its_other_columns_are_kept(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"image": {"bytes": b"x"}, "file": "a.jpg", "raw": b"y", "age": 3, "none": None, "nan": float("nan")}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    inputs = scan(tmp_path / "t.parquet")[""]
    assert (inputs.paths[:], inputs.cells[:]) == (["a.jpg"], ['{"age":3,"none":null,"nan":NaN}'])
    with pytest.raises(ScanError, match="row 1 of .* has no column 'image'. It has: file, age, none, nan"):
        scan(tmp_path / "t.parquet", options=PackOptions(path_column="image"))


LISTS = [
    ("l.txt", "cat\ndog\n", ("cat", "dog")),
    ("l.txt", "\ufeffcat\r\ndog", ("cat", "dog")),
    ("l.txt", f"{NFD}\n", (NFC,)),
    ("l.yaml", "nc: 2\nnames:\n  0: no\n  1: yes\n", ("no", "yes")),
    ("l.txt", "", "holds no list of class names"),
    ("l.txt", "cat\n\ndog\n", "holds no list of class names. Expected one name a line, without blank lines"),
    ("l.txt", f"{NFC}\n{NFD}\n", f"names the class '{NFC}' twice"),
    ("l.yaml", "[", "cannot be read"),
]


@pytest.mark.parametrize(("name", "text", "expected"), LISTS)
def test_a_class_list_is_read_or_named(name: str, text: str, expected: Any, tmp_path: Path) -> None:
    if name == "l.yaml":
        pytest.importorskip("yaml")
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    if isinstance(expected, tuple):
        assert load_classes(str(tmp_path / name)) == expected
        return
    with pytest.raises(ScanError, match=expected):
        load_classes(str(tmp_path / name))
