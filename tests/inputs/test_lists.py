"""Lists of images: paths on standard input and manifests, from the line to the row; every wrong line is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PACK, Feed, Tune, content_bytes, interrupted, make_tree, photo, store_bytes
from redecoding import rows_of_other_sources

from packer import OptionsError, PackError, ScanError, pack
from packer.inputs.samples import Inputs
from packer.inputs.scan import scan
from packer.operations.verify import verify
from packer.options import PackOptions
from reader import MemmapDataset, MemmapLoader, RandomCrop, RandomHorizontalFlip
from reader.format.samples import read_json_lines

ROOT = Path(__file__).resolve().parents[2]


def listed(images: Path, pattern: str = "*.jpg") -> list[str]:
    return [str(path) for path in sorted(images.rglob(pattern))]


def lines(paths: list[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\n" for path in paths)


def scanned(manifest: Path, text: str, *, classes: tuple[str, ...] | None = None, **options: Any) -> Inputs:
    """Write a manifest and list it."""
    manifest.write_text(text, encoding="utf-8")
    return scan(manifest, classes=classes, options=PackOptions(**options))[""]


# -- standard input


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the guide, with this environment's `pack` and `python` first in PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=variables, capture_output=True, text=True
    )


def test_a_shell_pipeline_packs_what_find_lists(images: Path, tmp_path: Path) -> None:
    images.rename(tmp_path / "photos")
    done = shell("find photos -name '*.jpg' | LC_ALL=C sort | pack - out/ --size 32", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "24 rows of 32 x 32 x 3, 3 classes" in done.stdout
    # from elsewhere, by other names, NUL-separated: the same store as of the folder itself
    command = f"find {tmp_path}/photos -name '*.jpg' -print0 | LC_ALL=C sort -z | pack -0 {tmp_path}/nul --size 32"
    done = shell(command, Path("/"))
    assert done.returncode == 0, done.stderr
    pack(tmp_path / "photos", tmp_path / "folder", size=32)
    found = [content_bytes(tmp_path / name) for name in ("out", "nul", "folder")]
    assert found[0] == found[1] == found[2]
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", tmp_path / "photos") == []


def test_order_is_the_lists_and_classes_are_folders(images: Path, feed: Feed) -> None:
    paths = listed(images)[::-1]
    feed(lines(paths))
    inputs = scan("-")[""]
    assert inputs.paths == [os.path.relpath(path, images) for path in paths]
    assert inputs.classes == ("class0", "class1", "class2")
    assert inputs.targets.tolist() == [2] * 8 + [1] * 8 + [0] * 8


def test_images_of_one_folder_have_no_class_unless_it_is_imposed(images: Path, feed: Feed) -> None:
    data = lines(listed(images / "class1"))
    feed(data)
    inputs = scan("-")[""]
    assert (inputs.root, inputs.classes, set(inputs.targets.tolist())) == (images / "class1", (), {-1})
    feed(data)
    assert set(scan("-", classes=("class0", "class1"))[""].targets.tolist()) == {1}
    feed(data)
    assert set(scan("-", classes=("other",))[""].targets.tolist()) == {-1}
    feed(lines(listed(images)))
    with pytest.raises(ScanError, match="line 9 of standard input has the class 'class1' that classes does not list"):
        scan("-", classes=("class0", "class2"))


def test_root_and_extension_make_paths_of_bare_ids(images: Path, feed: Feed) -> None:
    feed(b"class1/003\nclass0/001.jpg\n")
    inputs = scan("-", options=PackOptions(root=str(images), extension=".jpg"))[""]
    assert (inputs.root, inputs.paths) == (images, ["class1/003.jpg", "class0/001.jpg"])


ODD = [b"a b.jpg", b"two\nlines.jpg", b"\xff\xfe.jpg", "ü.jpg".encode(), b"tab\t.jpg", b"-.jpg", b"cr\r"]


def test_odd_names_survive_nul_separated(tmp_path: Path, feed: Feed) -> None:
    (tmp_path / "images").mkdir()
    for number, name in enumerate(ODD):
        photo(40, 40, number).save(tmp_path / "good.jpg")
        os.rename(tmp_path / "good.jpg", os.fsencode(tmp_path / "images") + b"/" + name)
    gone = b"\xff\ngone.jpg"
    feed(b"\0".join(os.fsencode(tmp_path / "images") + b"/" + name for name in [*ODD, gone]))
    report = pack("-0", tmp_path / "out", size=32, max_rejects=1)
    assert (report.rows, report.rejected, report.reject_lines) == (7, 1, {"there is no such file": [8]})
    assert [os.fsencode(path) for path, _ in MemmapDataset(tmp_path / "out").samples] == ODD
    (reject,) = read_json_lines(tmp_path / "out/rejected.jsonl")
    assert (os.fsencode(reject["path"]), reject["line"]) == (gone, 8)


def test_a_list_made_on_windows_is_understood(images: Path, feed: Feed) -> None:
    feed(lines([f"{path}\r" for path in listed(images)]))
    assert scan("-")[""].paths == [os.path.relpath(path, images) for path in listed(images)]


@pytest.mark.parametrize(
    ("images", "data", "text"),
    [
        ("-", b"", "no path came on standard input. Expected one a line"),
        ("-", b"a.jpg\n\nb.jpg\n", "line 2 of standard input is empty. Expected a path"),
        ("-0", b"a.jpg\0\0", "line 2 of standard input is empty"),
        ("-", b"a.jpg\nb\0c.jpg\n", r"line 2 of standard input has 'b\\x00c.jpg' as path, which no file can be called"),
    ],
)
def test_a_wrong_line_is_named(images: str, data: bytes, text: str, feed: Feed) -> None:
    feed(data)
    with pytest.raises(ScanError, match=text):
        scan(images)


def test_duplicates_are_packed_again_and_missing_files_named_by_line(images: Path, tmp_path: Path, feed: Feed) -> None:
    paths = listed(images)
    feed(lines([*paths, paths[3], str(images / "class0/none.jpg"), f"{images}/class1/../class0/003.jpg"]))
    report = pack("-", tmp_path / "out", size=32, max_rejects=1)
    assert (report.inputs, report.rows) == (27, 26)
    assert report.reject_lines == {"there is no such file": [26]}
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert train.numpy()[[24, 25]].tobytes() == train.numpy()[[3, 3]].tobytes()


def test_no_store_of_a_list_holds_a_path_of_the_machine(images: Path, tmp_path: Path, feed: Feed) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    photo(50, 50, 1).save(other / "x.jpg")
    feed(lines([*listed(images), str(other / "x.jpg")]))
    pack("-", tmp_path / "out", size=32)
    assert MemmapDataset(tmp_path / "out").samples[-1][0] == "elsewhere/x.jpg"
    assert str(tmp_path).encode() not in b"".join(store_bytes(tmp_path / "out").values())


def test_paths_through_a_link_and_back_mean_what_the_system_means(tmp_path: Path, feed: Feed) -> None:
    (tmp_path / "far/b").mkdir(parents=True)
    photo(40, 40, 0).save(tmp_path / "far/x.jpg")
    (tmp_path / "link").symlink_to(tmp_path / "far/b")
    feed(lines([str(tmp_path / "link/../x.jpg")]))  # far/x.jpg, not x.jpg
    assert pack("-", tmp_path / "out", size=32).rows == 1


# -- manifests


def test_names_become_sorted_classes_and_numbers_extras(images: Path, tmp_path: Path) -> None:
    rows = "".join(
        f"{os.path.relpath(path, images)},{'cat' if n % 3 else 'dog'},{n},{n / 4},t{n}\n"
        for n, path in enumerate(listed(images))
    )
    (images / "list.csv").write_text("path,label,age,weight,caption\n" + rows)
    report = pack(images / "list.csv", tmp_path / "out", size=32, workers=2)
    assert report.notes == [
        f"the column 'caption' is left out: line 2 of {images}/list.csv holds 't0', which is no number."
    ]
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert train.classes == ["cat", "dog"]
    assert train.targets == [int(n % 3 == 0) for n in range(24)]
    assert sorted(train.manifest.extras) == ["age", "weight"]
    assert train.store.extras["age"].tolist() == list(range(24))
    assert train.store.extras["weight"].tolist() == [n / 4 for n in range(24)]
    batch = train[[5, 2]]
    assert (batch.extras["age"].tolist(), batch.extras["weight"].tolist()) == ([5, 2], [1.25, 0.5])


TARGETS = [
    # column, cells, imposed classes -> kind, targets, classes
    ("integers", [2, 0, 1], None, "class", [2, 0, 1], ("0", "1", "2")),
    ("no label", [1, -1, 0], None, "class", [1, -1, 0], ("0", "1")),
    ("leading zeros are names", ["007", "01", "1x"], ("01", "007", "1x"), "class", [1, 0, 2], ("01", "007", "1x")),
    ("names", ["b", "a", "b"], None, "class", [1, 0, 1], ("a", "b")),
    ("imposed names", ["b", "a", "b"], ("b", "z", "a"), "class", [0, 2, 0], ("b", "z", "a")),
    ("imposed numbers as names", [10, 2, 10], ("10", "2"), "class", [0, 1, 0], ("10", "2")),
    ("indices into imposed names", [2, 0, 1], ("x", "y", "z"), "class", [2, 0, 1], ("x", "y", "z")),
    ("floats", [0.5, 2, -1e3], None, "regression", [[0.5], [2.0], [-1000.0]], ()),
    ("multi-hot names", ["a;c", "b", "a"], None, "multi-hot", [[1, 0, 1], [0, 1, 0], [1, 0, 0]], ("a", "b", "c")),
    ("multi-hot indices", ["0;2", "", "1;2"], None, "multi-hot", [[1, 0, 1], [0, 0, 0], [0, 1, 1]], ("0", "1", "2")),
    ("vectors", ["0.5;1", "2;3", "4;-1"], None, "regression", [[0.5, 1], [2, 3], [4, -1]], ()),
]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("case", TARGETS, ids=lambda case: case[0])
def test_what_a_target_column_holds_decides_its_kind(case: Any, suffix: str, tmp_path: Path) -> None:
    _, cells, imposed, kind, targets, classes = case
    if suffix == ".jsonl":
        text = "".join(json.dumps({"path": f"{n}.jpg", "label": cell}) + "\n" for n, cell in enumerate(cells))
    else:
        separator = "," if suffix == ".csv" else "\t"
        text = "".join(
            f"{a}{separator}{b}\n" for a, b in [("path", "label"), *((f"{n}.jpg", c) for n, c in enumerate(cells))]
        )
    inputs = scanned(tmp_path / f"list{suffix}", text, classes=imposed)
    assert (inputs.target_kind, inputs.targets.tolist(), inputs.classes) == (kind, targets, classes)
    assert inputs.paths == ["0.jpg", "1.jpg", "2.jpg"]


def test_lists_in_jsonl_are_labels_vectors_and_boxes(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"path": "a.jpg", "tags": ["x", "y"], "box": [0, 0, 4, 6], "at": [0.5, 1], "ok": True, "n": 1},
        {"path": "b.jpg", "tags": [], "box": [1, 2, 3, 4], "at": [2.5, None], "ok": False},
    ]
    text = "".join(json.dumps(record) + "\n\n" for record in records)
    inputs = scanned(tmp_path / "list.jsonl", text, target_column="tags")
    assert (inputs.target_kind, inputs.targets.tolist()) == ("multi-hot", [[1, 1], [0, 0]])
    found = {name: (column.dtype, column.row_shape) for name, column in inputs.extras.items()}
    assert found == {"box": ("int64", (4,)), "at": ("float64", (2,)), "ok": ("bool", ()), "n": ("float64", ())}
    assert inputs.extras["box"].tolist() == [[0, 0, 4, 6], [1, 2, 3, 4]]
    assert np.isnan(inputs.extras["n"].tolist()[1])
    assert inputs.lines.tolist() == [1, 3]


def test_several_target_columns_are_one_vector(tmp_path: Path) -> None:
    inputs = scanned(tmp_path / "list.csv", "path,x,y\na.jpg,1,2.5\nb.jpg,3,4\n", target_column="x,y")
    assert (inputs.target_kind, inputs.targets.tolist(), inputs.extras) == ("regression", [[1, 2.5], [3, 4]], {})


def test_a_table_whose_images_are_elsewhere_is_referred_to_root(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", classes=2, each=1)
    (tmp_path / "list.csv").write_text("path\nclass0/000.jpg\nclass1/000.jpg\n")
    with pytest.raises(PackError, match=r"no such file\. If its paths start in another folder, name that by root\.$"):
        pack(tmp_path / "list.csv", tmp_path / "out", size=8, workers=1)
    assert pack(tmp_path / "list.csv", tmp_path / "out", size=8, workers=1, root=tmp_path / "images").rows == 2
    (tmp_path / "one.csv").write_text("path\nclass0/000.jpg\n")
    with pytest.raises(
        PackError, match="class0 is gone; .* correct the paths, or name by root the folder that they start in"
    ):
        pack(tmp_path / "one.csv", tmp_path / "one", size=8, workers=1)


def test_columns_that_can_be_no_tensor_are_left_out_by_name(tmp_path: Path) -> None:
    inputs = scanned(tmp_path / "list.csv", ",path,shape,Age,age,mixed,none\n1,a.jpg,1,1,1,1,\n2,b.jpg,1,2,2,x,\n")
    assert list(inputs.extras) == ["Age"]
    notes = "\n".join(inputs.notes)
    for text in (
        "has none of the columns target, label, class, cls: no labels; target_column names one of , shape, Age and 3 more",
        "'' is left out: its name cannot be that of a tensor",
        "'shape' is left out: its name cannot be that of a tensor",
        "'age' is left out: its name differs from another's in case alone",
        "'mixed' is left out: line 3 of",
        "'none' is left out: it is empty",
    ):
        assert text in notes


WRONG = [
    ("l.csv", "path,label\na.jpg\n", {}, "line 2 of .*l.csv has 1 cells, its header has 2"),
    ("l.csv", 'path,label\n"a.jpg,1\n', {}, "line 2 of .*l.csv is not as a csv should be"),
    (
        "l.csv",
        "a.jpg,cat\nb.jpg,dog\n",
        {},
        "line 2 of .* has no column 'path'. It has: a.jpg, cat. path_column names another",
    ),
    ("l.csv", "path,a,a\nx,1,2\n", {}, "line 1 of .*, the header, names the column 'a' twice"),
    ("l.csv", "path\n", {}, "names no image"),
    ("l.csv", "path,label\n,cat\n", {}, "line 2 of .* has '' as path. Expected the path of an image"),
    (
        "l.csv",
        "path,label\na.jpg,1\nb.jpg,x\n",
        {},
        "line 3 of .* has 'x' as label, line 2 of .* has '1'. Expected numbers alone",
    ),
    ("l.csv", "path,label\na.jpg,0.5\nb.jpg,0.5o\n", {}, "line 3 of .* has '0.5o' as label, line 2 of .* has '0.5'"),
    ("l.csv", "path,label\na.jpg,0.5\nb.jpg,\n", {}, "line 3 of .* has nothing as label. Expected a finite number"),
    ("l.csv", "path,label\na.jpg,0.5\nb.jpg,inf\n", {}, "line 3 of .* has inf as label. Expected a finite number"),
    ("l.csv", "path,label\na.jpg,1;0.5\nb.jpg,2\n", {}, "line 3 of .* has 1 numbers as label, line 2 of .* has 2"),
    ("l.csv", "path,x,y\na.jpg,1,2\nb.jpg,1,up\n", {"target_column": "x,y"}, "line 3 of .* has 'up' as x,y"),
    ("l.csv", "path,label\na.jpg,-2\n", {}, "line 2 of .* has -2 as label. Expected an index from 0 to"),
    (
        "l.csv",
        "path,label\na.jpg,12345678\n",
        {},
        "line 2 of .* has 12345678 as label. Expected an index from 0 to 999999",
    ),
    (
        "l.csv",
        "path,label\na.jpg,cat\n",
        {"classes": ("dog",)},
        "line 2 of .* has the class 'cat' that classes does not list",
    ),
    (
        "l.csv",
        "path,label\na.jpg,3\n",
        {"classes": ("x", "y")},
        "line 2 of .* has 3 as label. Expected an index from 0 to 1",
    ),
    (
        "l.csv",
        "path,kind\na.jpg,3\n",
        {"target_column": "label"},
        "has no column 'label', which target_column names. It has: kind",
    ),
    ("l.csv", "path\na.jpg\n", {"root": "/no/such"}, "root='/no/such' is not a folder"),
    ("l.jsonl", '{"path": "a.jpg"}\n{"path": \n', {}, "line 2 of .*l.jsonl is not JSON"),
    ("l.jsonl", '["a.jpg"]\n', {}, "line 1 of .*l.jsonl is not a JSON object"),
    ("l.jsonl", '{"path": 7}\n', {}, "line 1 of .* has 7 as path"),
    ("l.jsonl", '{"path": "\\ud800.jpg"}\n', {}, "line 1 of .* as path, which no file can be called"),
    (
        "l.jsonl",
        '{"path": "a.jpg", "label": {"x": 1}}\n',
        {},
        "line 1 of .* has {'x': 1} as label. Expected a name, a number",
    ),
]


@pytest.mark.parametrize(("name", "text", "options", "expected"), WRONG)
def test_a_wrong_line_of_a_manifest_is_named(name: str, text: str, options: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ScanError, match=expected):
        scanned(tmp_path / name, text, **options)


def test_options_of_another_kind_of_images_are_refused(images: Path) -> None:
    with pytest.raises(OptionsError, match="path_column does not belong to .*images, which is a folder"):
        scan(images, options=PackOptions(path_column="id"))


@pytest.fixture
def manifest(images: Path, tune: Tune) -> Path:
    """A list with vectors, extras, a broken and a missing file, cut into many blocks."""
    tune(least_block_inputs=2)
    (images / "class1/bad.jpg").write_bytes(b"no image")
    paths = [os.path.relpath(path, images) for path in listed(images)]
    paths.insert(5, "gone.jpg")
    rows = [f"{path},{n},{n / 8},{n * n},{n / 3}\n" for n, path in enumerate(paths)]
    (images / "list.csv").write_text("path,x,y,square,third\n" + "".join(rows))
    return images / "list.csv"


def rows_of(manifest: Path) -> list[int]:
    """The numbers of the lines that become rows."""
    names = [line.split(",")[0] for line in manifest.read_text().splitlines()[1:]]
    return [n for n, name in enumerate(names) if name not in ("gone.jpg", "class1/bad.jpg")]


@pytest.mark.parametrize("shuffle", [None, 3])
def test_vectors_and_extras_follow_their_rows_in_any_run(manifest: Path, tmp_path: Path, shuffle: int | None) -> None:
    options: dict[str, Any] = {"size": 32, "target_column": "x,y", "max_rejects": 2, "shuffle": shuffle}
    for workers in (1, 3):
        pack(manifest, tmp_path / f"out{workers}", workers=workers, **options)
    assert store_bytes(tmp_path / "out1") == store_bytes(tmp_path / "out3")
    train = MemmapDataset(tmp_path / "out1", as_tuple=False)
    numbers = train.store.targets[:, 0].long().tolist()
    assert (numbers if shuffle is None else sorted(numbers)) == rows_of(manifest)
    assert train.store.targets[:, 1].tolist() == [n / 8 for n in numbers]
    assert train.store.extras["square"].tolist() == [n * n for n in numbers]
    assert train.store.extras["third"].tolist() == [n / 3 for n in numbers]
    assert train.targets == [line["target"] for line in read_json_lines(tmp_path / "out1/samples.jsonl")]
    assert verify(tmp_path / "out1").problems == rows_of_other_sources(tmp_path / "out1", manifest.parent) == []


def test_an_interrupted_pack_of_a_list_resumes_to_the_same_bytes(manifest: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"size": 32, "target_column": "x,y", "max_rejects": 2}
    pack(manifest, tmp_path / "whole", **options)

    interrupted(pack, manifest, tmp_path / "out", **options, inputs=9)
    text = manifest.read_text()
    manifest.write_text(text.replace(",0.125,", ",0.25,"))
    with pytest.raises(PackError, match="was started with other inputs"):
        pack(manifest, tmp_path / "out", **options)
    manifest.write_text(text)
    assert pack(manifest, tmp_path / "out", **options).resumed_from > 0
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "whole")
    assert pack(manifest, tmp_path / "out", **options).resumed_from == 26


def test_the_reader_serves_vectors_and_extras(manifest: Path, tmp_path: Path) -> None:
    pack(manifest, tmp_path / "out", size=32, target_column="x,y", max_rejects=2)
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    first, rest = train.split(0.5, seed=1)
    assert len(first) + len(rest) == 24
    assert first.store.targets.shape == (24, 2)
    seen = []
    for batch in MemmapLoader(train, 5, shuffle="full", seed=2, as_tuple=False):
        assert batch.targets.dtype.is_floating_point
        assert batch.extras["square"].tolist() == [x * x for x in batch.targets[:, 0].tolist()]
        seen += batch.targets[:, 0].long().tolist()
    assert sorted(seen) == rows_of(manifest)


def test_transforms_keep_columns_and_refuse_boxes_of_another_form(images: Path, tmp_path: Path) -> None:
    records = [
        {"path": path, "age": n, "boxes": [n, n, n, n], "point": [n, 1]} for n, path in enumerate(listed(images))
    ]
    for name, left_out in (("ages", "boxes"), ("boxes", "age")):
        text = "".join(json.dumps({k: v for k, v in r.items() if k != left_out}) + "\n" for r in records)
        (tmp_path / f"{name}.jsonl").write_text(text)
        pack(tmp_path / f"{name}.jsonl", tmp_path / name, size=32)
    flip, crop = RandomHorizontalFlip(1.0), RandomCrop(24)
    batch = next(
        iter(
            MemmapLoader(
                MemmapDataset(tmp_path / "ages", as_tuple=False), 8, transform=lambda b: crop(flip(b)), as_tuple=False
            )
        )
    )
    assert batch.extras["age"].tolist() == list(range(8))
    assert batch.extras["point"].tolist() == [[n, 1] for n in range(8)]
    assert batch.pixels.shape == (8, 24, 24, 3)
    boxes = next(iter(MemmapLoader(MemmapDataset(tmp_path / "boxes", as_tuple=False), 8, as_tuple=False)))
    for transform in (flip, crop):
        with pytest.raises(ValueError, match="boxes have the shape .8, 4., expected .B, K, 4. and box_count"):
            transform(boxes)


def test_multi_hot_rows_reach_the_store(images: Path, tmp_path: Path) -> None:
    text = "".join(f"{path};a;b\n" if n % 2 else f"{path};c\n" for n, path in enumerate(listed(images)))
    (tmp_path / "l.csv").write_text("path,tags\n" + "\n".join(line.replace(";", ",", 1) for line in text.splitlines()))
    pack(tmp_path / "l.csv", tmp_path / "out", size=32, target_column="tags")
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert (train.manifest.target_kind, train.classes) == ("multi-hot", ["a", "b", "c"])
    assert train.targets == [[1, 1, 0] if n % 2 else [0, 0, 1] for n in range(24)]
    # a set where each image has one class, with the class list of that store
    one = [f"{path},{'bc'[n % 2]}\n" for n, path in enumerate(listed(images))]
    (tmp_path / "val.csv").write_text("path,tags\n" + "".join(one))
    pack(tmp_path / "val.csv", tmp_path / "val", size=32, target_column="tags", classes=str(tmp_path / "out"))
    val = MemmapDataset(tmp_path / "val", as_tuple=False)
    assert val.manifest.target_kind == "multi-hot"
    assert val.targets == [[0, 0, 1] if n % 2 else [0, 1, 0] for n in range(24)]


@pytest.mark.skipif(os.name == "nt", reason="a pipe that does not wait")
def test_a_standard_input_that_does_not_wait_is_read_to_its_end(tmp_path: Path) -> None:
    """As a program leaves it that reads its own without waiting, such as Node."""
    images = make_tree(tmp_path / "images", each=4)
    names = [f"{path}\n".encode() for path in sorted(images.rglob("*.jpg"))]
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    command = subprocess.Popen(
        [*PACK, "-", str(tmp_path / "out"), "--size", "16", "--json"], stdin=reading, stdout=subprocess.PIPE, text=True
    )
    os.close(reading)
    for half in (names[:6], names[6:]):
        time.sleep(0.5)  # the command finds the pipe empty meanwhile
        os.write(writing, b"".join(half))
    os.close(writing)
    output, _ = command.communicate(timeout=300)
    assert (command.returncode, json.loads(output)["rows"]) == (0, 12)
