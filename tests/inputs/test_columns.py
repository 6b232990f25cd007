"""Labels in a column: what is missing, which numbers are classes, and two spellings of one name."""

from __future__ import annotations

import io
import json
import os
import tarfile
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import photo
from test_lists import scanned

from packer import ScanError, pack, pack_dataset
from packer.inputs.class_lists import load_classes
from packer.inputs.scan import scan
from packer.inputs.tables.cells import parsed, without_missing
from packer.options import PackOptions
from reader import MemmapDataset

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


def labelled(tmp_path: Path, cells: list[str], **options: Any) -> Any:
    """List a manifest whose column `label` holds these."""
    text = "".join(f'{n}.jpg,"{cell}"\n' for n, cell in enumerate(cells))
    return scanned(tmp_path / "l.csv", "path,label\n" + text, **options)


MISSING = [
    # cells -> targets, classes, missing
    (["cat", "", "dog", "nan", "NaN"], [0, -1, 1, -1, -1], ("cat", "dog"), 3),
    (["3", "", "1"], [3, -1, 1], ("0", "1", "2", "3"), 1),
    (["3.0", "", "1.0"], [3, -1, 1], ("0", "1", "2", "3"), 1),
    (["2", "NA", "None", "null", "<NA>", "0"], [2, -1, -1, -1, -1, 0], ("0", "1", "2"), 4),
    (["2.0", "NA", "-1.0", "0.0"], [2, -1, -1, 0], ("0", "1", "2"), 1),
    (["", "nan"], [-1, -1], (), 2),
]


@pytest.mark.parametrize(("cells", "targets", "classes", "missing"), MISSING)
def test_a_missing_label_is_none_of_the_classes_and_is_counted(
    cells: list[str], targets: list[int], classes: tuple[str, ...], missing: int, tmp_path: Path
) -> None:
    inputs = labelled(tmp_path, cells)
    assert (inputs.target_kind, inputs.targets.tolist(), inputs.classes) == ("class", targets, classes)
    start = f"{missing} of {len(cells)} inputs {'has' if missing == 1 else 'have'} no label, line "
    assert any(note.startswith(start) for note in inputs.notes)


HUGE = "99999999999999999999"


@pytest.mark.parametrize("cells", [["0", HUGE], [HUGE, ""], ["1;2", HUGE], [f"-{HUGE}", "1"]])
def test_an_id_beyond_int64_is_refused_as_an_index_and_makes_no_regression(cells: list[str], tmp_path: Path) -> None:
    with pytest.raises(ScanError, match=r"line \d of .*l.csv has -?9+ as label. Expected an index from 0 to 999999\."):
        labelled(tmp_path, cells)
    with pytest.raises(ScanError, match=f"line 2 of .*l.jsonl has {HUGE} as label. Expected an index"):
        scanned(tmp_path / "l.jsonl", f'{{"path": "a", "label": 0}}\n{{"path": "b", "label": {HUGE}}}\n')


def test_an_id_beyond_int64_is_a_name_that_a_class_list_has(tmp_path: Path) -> None:
    inputs = labelled(tmp_path, ["0", HUGE], classes=("0", HUGE))
    assert (inputs.targets.tolist(), inputs.classes) == ([0, 1], ("0", HUGE))
    assert labelled(tmp_path, ["0.5", HUGE]).target_kind == "regression"


def test_names_and_columns_that_are_not_utf8_are_refused_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    for text, line in (("path,label\na.jpg,caf\u00e9\n", 2), ("path,\u00e9\na.jpg,1\n", 1)):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(
            ScanError, match=rf"line {line} of .*x.csv is not UTF-8: it has '.*udce9' as .*Save it as UTF-8\."
        ):
            scan(path)
    path.write_bytes("path,label,note\ncaf\u00e9.jpg,a,caf\u00e9\n".encode("latin-1"))
    (inputs,) = scan(path).values()
    assert (inputs.paths, inputs.classes) == ([os.fsdecode(b"caf\xe9.jpg")], ("a",))


def test_na_among_names_is_a_class_that_is_reported_unless_it_is_given_as_missing(tmp_path: Path) -> None:
    cells = ["cat", "NA", "None", "?"]
    inputs = labelled(tmp_path, cells)
    assert inputs.classes == ("?", "NA", "None", "cat")
    assert "1 input has the class 'NA' as label; if that is no label, give missing='NA'." in inputs.notes
    inputs = labelled(tmp_path, cells, missing=("NA", "?", "None"))
    assert (inputs.classes, inputs.targets.tolist()) == (("cat",), [0, -1, -1, -1])
    # what a class list has is a class
    assert labelled(tmp_path, cells, classes=tuple(cells)).targets.tolist() == [0, 1, 2, 3]
    assert labelled(tmp_path, ["nan", "x"], classes=("nan", "x")).targets.tolist() == [0, 1]


def test_missing_labels_of_each_of_several_targets_are_counted(tmp_path: Path) -> None:
    text = "path,kind,color\na,cat,red\nb,,blue\nc,dog,nan\n"
    inputs = scanned(tmp_path / "l.csv", text, target_column="kind,color")
    assert (inputs.targets.tolist(), inputs.extras["color"].tolist()) == ([0, -1, 1], [1, 0, -1])
    assert [note.split(",")[0] for note in inputs.notes] == [
        "1 of 3 inputs has no kind",
        "1 of 3 inputs has no color",
    ]


def test_a_number_given_as_missing_is_none_in_every_form_of_manifest(tmp_path: Path) -> None:
    assert labelled(tmp_path, ["1", "999", "0"], missing=("999",)).targets.tolist() == [1, -1, 0]
    text = '{"path": "a", "label": 1}\n{"path": "b", "label": 999}\n{"path": "c", "label": NaN}\n{"path": "d"}\n'
    assert scanned(tmp_path / "l.jsonl", text, missing=("999",)).targets.tolist() == [1, -1, -1, -1]


def test_missing_pieces_of_a_list_are_no_classes(tmp_path: Path) -> None:
    inputs = labelled(tmp_path, ["cat;nan", "dog;NA", "", "dog"], missing=("NA",))
    assert (inputs.classes, inputs.targets.tolist()) == (("cat", "dog"), [[1, 0], [0, 1], [0, 0], [0, 1]])
    assert "1 of 4 inputs has no label, line 4 of" in inputs.notes[0]


def test_further_columns_of_numbers_keep_their_missing_cells_as_nan(tmp_path: Path) -> None:
    text = "path,a,b,c\nx,1,NA,?\ny,None,2.5,3\nz,nan,,4\n"
    inputs = scanned(tmp_path / "l.csv", text, missing=("?",))
    found = {name: np.array(column.tolist()) for name, column in inputs.extras.items()}
    nan = np.nan
    for name, expected in {"a": [1, nan, nan], "b": [nan, 2.5, nan], "c": [nan, 3, 4]}.items():
        assert np.array_equal(found[name], expected, equal_nan=True)


def test_a_missing_regression_target_is_refused_by_its_line(tmp_path: Path) -> None:
    for cell in ("", "nan", "NA"):
        with pytest.raises(ScanError, match="line 3 of .* has nothing as label. .* leave out a line that has none"):
            labelled(tmp_path, ["0.5", cell, "1.5"])


def test_integral_floats_are_classes_beside_a_class_list_and_else_targets_that_are_reported(tmp_path: Path) -> None:
    assert labelled(tmp_path, ["1.0", "0.0"], classes=("a", "b")).targets.tolist() == [1, 0]
    inputs = labelled(tmp_path, ["1.0", "0.0"])
    assert (inputs.target_kind, inputs.targets.tolist()) == ("regression", [[1.0], [0.0]])
    assert "integers written with a point: regression targets. For classes write 3, not 3.0" in inputs.notes[0]
    assert labelled(tmp_path, ["1.5", "2.0"]).notes == []


def test_one_large_number_does_not_make_ninety_thousand_classes(tmp_path: Path) -> None:
    with pytest.raises(
        ScanError, match=r"line 4 of .* has the label 90000, one of 3 different labels: .* 90001 classes"
    ):
        labelled(tmp_path, ["0", "1", "90000"])
    (tmp_path / "ids.txt").write_text("0\n1\n90000\n")
    inputs = labelled(tmp_path, ["0", "90000"], classes=load_classes(str(tmp_path / "ids.txt")))
    assert (inputs.targets.tolist(), len(inputs.classes)) == ([0, 2], 3)
    inputs = labelled(tmp_path, ["0", "3"])
    assert inputs.notes == ["the column 'label' has labels from 0 to 3, and no image of 2 classes: 1, 2."]
    assert labelled(tmp_path, [str(n) for n in range(1500)]).notes == []


def test_a_label_file_of_boxes_and_a_dataset_have_the_same_limits(tmp_path: Path) -> None:
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    photo(40, 40, 1).save(tmp_path / "images/a.jpg")
    (tmp_path / "labels/a.txt").write_text("0 .5 .5 .2 .2\n90000 .5 .5 .2 .2\n")
    with pytest.raises(ScanError, match="labels has the label 90000, one of 2 different labels"):
        scan(tmp_path / "images", options=PackOptions(boxes=str(tmp_path / "labels")))
    pixels = np.zeros((8, 8, 3), np.uint8)
    report = pack_dataset([(pixels, n) for n in (0, 4, 5_000_000)], tmp_path / "out", workers=1, max_rejects=1)
    assert (report.rows, report.rejected, report.classes) == (2, 1, 5)
    assert report.notes == ["the dataset has labels from 0 to 4, and no image of 3 classes: 1, 2, 3."]
    report = pack_dataset([(pixels, x) for x in (0.5, 1e39)], tmp_path / "floats", workers=1, max_rejects=1)
    assert (report.rows, report.rejected) == (1, 1)


def test_a_target_that_float32_cannot_hold_is_refused_by_its_line(tmp_path: Path) -> None:
    for cell in ("1e39", "-3.4028236e38"):
        with pytest.raises(ScanError, match=r"line 3 of .* as label, more than float32 holds \(3.4e38\)"):
            labelled(tmp_path, ["0.5", cell])
    assert labelled(tmp_path, ["0.5", "3.4028234e38"]).targets.tolist()[1][0] == pytest.approx(3.4028234e38)


def test_integers_of_nineteen_digits_stay_exact(tmp_path: Path) -> None:
    text = "path,id\na,1234567890123456789\nb,-9223372036854775808\n"
    column = scanned(tmp_path / "l.csv", text).extras["id"]
    assert (column.dtype, column.tolist()) == ("int64", [1234567890123456789, -(2**63)])
    assert parsed("9223372036854775808") == 2.0**63
    assert parsed("9" * 5000) == float("inf")


NOTE = f"names are spelled in two ways (Unicode NFC and NFD), each pair is one class: {COMPOSED!r}."


def test_two_spellings_of_a_name_are_one_class_in_columns_folders_and_class_lists(tmp_path: Path) -> None:
    inputs = labelled(tmp_path, [COMPOSED, DECOMPOSED, "tea"])
    assert (inputs.classes, inputs.targets.tolist(), inputs.notes) == ((COMPOSED, "tea"), [0, 0, 1], [NOTE])
    inputs = labelled(tmp_path, [f"{DECOMPOSED};tea", COMPOSED])
    assert (inputs.classes, inputs.targets.tolist()) == ((COMPOSED, "tea"), [[1, 1], [1, 0]])
    # one spelling alone stays as it is, and a list decides
    assert labelled(tmp_path, [DECOMPOSED, "tea"]).classes == (DECOMPOSED, "tea")
    inputs = labelled(tmp_path, [COMPOSED, "tea"], classes=("tea", DECOMPOSED))
    assert (inputs.classes, inputs.targets.tolist()) == (("tea", DECOMPOSED), [1, 0])
    (tmp_path / "names.txt").write_text(f"{COMPOSED}\n{DECOMPOSED}\n", encoding="utf-8")
    with pytest.raises(ScanError, match="names the class .* twice"):
        load_classes(str(tmp_path / "names.txt"))
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/a.txt").write_text("0 .5 .5 .5 .5\n")
    (tmp_path / "names.txt").rename(tmp_path / "classes.txt")
    photo(40, 40, 1).save(tmp_path / "labels/a.jpg")
    with pytest.raises(ScanError, match="classes.txt names the class .* twice, in two spellings"):
        scan(tmp_path / "labels", options=PackOptions(boxes=str(tmp_path / "labels")))


def test_two_spellings_of_a_folder_are_one_class_in_folders_splits_and_lists(tmp_path: Path, feed: Any) -> None:
    for split, spelling in (("train", COMPOSED), ("train", DECOMPOSED), ("val", DECOMPOSED)):
        (tmp_path / "images" / split / spelling).mkdir(parents=True)
        photo(40, 40, 1).save(tmp_path / "images" / split / spelling / "a.jpg")
    parts = scan(tmp_path / "images")
    assert {split: (part.classes, part.targets.tolist()) for split, part in parts.items()} == {
        "train": ((COMPOSED,), [0, 0]),
        "val": ((COMPOSED,), [0]),
    }
    assert NOTE in parts["train"].notes
    assert scan(tmp_path / "images/val", classes=(COMPOSED,))[""].targets.tolist() == [0]
    paths = [str(path).encode() for path in sorted((tmp_path / "images/train").rglob("*.jpg"))]
    feed(b"\n".join(paths))
    inputs = scan("-", options=PackOptions(root=str(tmp_path / "images/train")))[""]
    assert (inputs.classes, inputs.targets.tolist(), inputs.notes) == ((COMPOSED,), [0, 0], [NOTE])
    pack(tmp_path / "images", tmp_path / "out", size=16, workers=1)
    assert MemmapDataset(tmp_path / "out/train").classes == [COMPOSED]


def test_label_files_and_masks_are_found_in_either_spelling(tmp_path: Path) -> None:
    for folder, spelling in (("images", DECOMPOSED), ("labels", COMPOSED), ("masks", COMPOSED)):
        (tmp_path / folder).mkdir()
        photo(40, 40, 1).convert("L").save(tmp_path / folder / f"{spelling}.png")
    (tmp_path / "labels" / f"{COMPOSED}.txt").write_text("0 .5 .5 .5 .5\n")
    content: dict[str, Any] = {
        "images": [{"id": 1, "file_name": f"{COMPOSED}.png"}],
        "categories": [{"id": 1, "name": "a"}],
    }
    content["annotations"] = [{"image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9]}]
    (tmp_path / "c.json").write_text(json.dumps(content))
    for boxes in ("labels", "c.json"):
        options = PackOptions(boxes=str(tmp_path / boxes), masks=str(tmp_path / "masks"))
        inputs = scan(tmp_path / "images", options=options)[""]
        assert inputs.boxes is not None
        assert (inputs.boxes.counts.tolist(), inputs.masks, inputs.refused) == ([1], [f"{COMPOSED}.png"], {})


def test_labels_in_tars_follow_the_same_rules(tmp_path: Path) -> None:
    photo(40, 40, 1).save(tmp_path / "x.jpg")
    image = (tmp_path / "x.jpg").read_bytes()
    labels = [("json", '{"label": 3.0}'), ("json", '{"label": NaN}'), ("json", '{"label": 1}'), ("json", "{}")]
    names = [("cls", COMPOSED), ("cls", unicodedata.normalize("NFD", COMPOSED)), ("cls", "nan"), ("cls", "")]
    for tar, members in (("numbers", labels), ("names", names)):
        with tarfile.open(tmp_path / f"{tar}.tar", "w") as file:
            for n, (suffix, text) in enumerate(members):
                for name, data in ((f"{n}.jpg", image), (f"{n}.{suffix}", text.encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    file.addfile(member, io.BytesIO(data))
    inputs = scan(tmp_path / "numbers.tar")[""]
    assert (inputs.target_kind, inputs.targets.tolist()) == ("class", [3, -1, 1, -1])
    inputs = scan(tmp_path / "names.tar")[""]
    assert (inputs.classes, inputs.targets.tolist()) == ((COMPOSED,), [0, 0, -1, -1])
    assert unicodedata.normalize("NFC", DECOMPOSED) == COMPOSED


def test_cells_without_a_missing_one_are_as_they_were() -> None:
    cells: list[Any] = ["a;b", [1, 2.5], {"x": 1}, True, "inf", 0, [], [[1]]]
    assert without_missing(cells, ("b c",)) == cells


@pytest.mark.parametrize(
    ("cells", "targets"),
    [(["1", "2", "10"], [0, 1, 9]), (["1", "-1", "10"], [0, -1, 9]), (["-1", "-1"], [-1, -1]), (["0", "0"], [0, 0])],
)
def test_a_number_that_the_class_list_has_is_a_name_and_then_all_are(
    cells: list[str], targets: list[int], tmp_path: Path
) -> None:
    ids = tuple(map(str, range(1, 11)))
    assert labelled(tmp_path, cells, classes=ids).targets.tolist() == targets
    assert labelled(tmp_path, ["-1"], classes=("-1", "1")).targets.tolist() == [0]


@pytest.mark.parametrize("cells", [["1", "0"], ["1;2", "0;2"], ["1;2", "-1"]])
def test_a_number_beside_names_of_the_class_list_that_is_not_one_is_refused(cells: list[str], tmp_path: Path) -> None:
    with pytest.raises(
        ScanError, match=r"line 3 of .* has the class '(0|-1)' that classes does not list \(3 classes\)"
    ):
        labelled(tmp_path, cells, classes=("1", "2", "3"))


@pytest.mark.parametrize(("text", "line"), [("cat\n\ndog\n", 2), ("\ncat\n", 1), ("cat\r\n \r\ndog", 2)])
def test_a_blank_line_of_a_class_list_moves_no_number(text: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_bytes(text.encode())
    with pytest.raises(ScanError, match=rf"line {line} of .*classes\.txt is blank\. A class is the number of its line"):
        load_classes(str(tmp_path / "classes.txt"))
    (tmp_path / "classes.txt").write_text("cat\ndog\n\n \n")
    assert load_classes(str(tmp_path / "classes.txt")) == ("cat", "dog")
