"""One rule for folders, lists, tables, tars and zips: which names are inputs, which folders are splits and classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import Feed, content_bytes, make_tree, photo, store_bytes, touch
from test_archives import jpeg, make_tar

from packer import OptionsError, PackError, ScanError, merge, pack
from packer.inputs.samples import Inputs
from packer.inputs.scan import scan
from packer.options import PackOptions
from packer.sample_lines import read_json_lines, read_samples
from reader import MemmapDataset

Lister = Callable[[Path, Path, Feed], tuple[Any, dict[str, Any]]]
Found = dict[str, tuple[tuple[str, ...], dict[str, int]]]


def files_of(images: Path) -> list[str]:
    """Name all files below a folder, sorted."""
    return sorted(str(path.relative_to(images)) for path in images.rglob("*") if not path.is_dir())


def listed(images: Path, pattern: str = "*.jpg") -> list[str]:
    return [str(path) for path in sorted(images.rglob(pattern))]


def lines(paths: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\n" for path in paths)


def _folder(images: Path, folder: Path, feed: Feed) -> tuple[Any, dict[str, Any]]:
    return images, {}


def _zip(images: Path, folder: Path, feed: Feed, above: str = "") -> tuple[Any, dict[str, Any]]:
    with zipfile.ZipFile(folder / "i.zip", "w") as file:
        for name in reversed(files_of(images)):
            file.write(images / name, above + name)
    return folder / "i.zip", {}


def _wrapped(images: Path, folder: Path, feed: Feed) -> tuple[Any, dict[str, Any]]:
    return _zip(images, folder, feed, "my photos/")


def _tar(images: Path, folder: Path, feed: Feed) -> tuple[Any, dict[str, Any]]:
    with tarfile.open(folder / "i.tar", "w") as tar:
        for name in files_of(images):
            tar.add(images / name, f"./{name}")
    return folder / "i.tar", {}


def _list(images: Path, folder: Path, feed: Feed) -> tuple[Any, dict[str, Any]]:
    feed(lines([str(images), *(str(images / name) for name in files_of(images))]))
    return "-", {}


def _rooted(images: Path, folder: Path, feed: Feed) -> tuple[Any, dict[str, Any]]:
    feed(b"\0".join(os.fsencode(name) for name in files_of(images)))
    return "-0", {"root": images}


def _url(images: Path, folder: Path, feed: Feed) -> tuple[Any, dict[str, Any]]:
    return f"file://{images}", {}


LISTERS: dict[str, Lister] = {
    "folder": _folder,
    "zip": _zip,
    "wrapped": _wrapped,
    "tar": _tar,
    "list": _list,
    "rooted": _rooted,
    "url": _url,
}
every_lister = pytest.mark.parametrize("lister", LISTERS.values(), ids=LISTERS)

JUNK = ("a/.ipynb_checkpoints/x.jpg", "a/@eaDir/1.jpg/SYNO.jpg", "@eaDir/y.jpg", "__MACOSX/a/._1.jpg", "a/._1.jpg")
COMPOSED = unicodedata.normalize("NFC", "café")
DECOMPOSED = unicodedata.normalize("NFD", "café")
# files -> split: classes, and image -> class
TREES: dict[str, tuple[tuple[str, ...], Found]] = {
    "classes": (
        ("b/1.jpg", "a/2.PNG", "a/x/3.webp", "a-x/4.jpg", "README", "a/notes.txt", "docs/index.html", "b/.DS_Store", *JUNK),
        {"": (("a", "a-x", "b"), {"b/1.jpg": 2, "a/2.PNG": 0, "a/x/3.webp": 0, "a-x/4.jpg": 1})},
    ),
    "flat": (("1.jpg", "2.jpg", "labels.csv"), {"": ((), {"1.jpg": -1, "2.jpg": -1})}),
    "stray": (("a/1.jpg", "b/1.jpg", "logo.jpg"), {"": (("a", "b"), {"a/1.jpg": 0, "b/1.jpg": 1, "logo.jpg": -1})}),
    "splits": (
        ("train/a/1.jpg", "train/b/1.jpg", "Val/b/2.jpg", "annotations/x.json", "logo.jpg", "train/@eaDir/y.jpg"),
        {"train": (("a", "b"), {"a/1.jpg": 0, "b/1.jpg": 1}), "Val": (("a", "b"), {"b/2.jpg": 1})},
    ),
    "an image beside a split": (
        ("train/a/1.jpg", "labels/1.png"),
        {"": (("labels", "train"), {"train/a/1.jpg": 1, "labels/1.png": 0})},
    ),
    "train is a class": (("train/1.jpg", "plane/1.jpg"), {"": (("plane", "train"), {"train/1.jpg": 1, "plane/1.jpg": 0})}),
    "spellings": (
        (f"{COMPOSED}/1.jpg", f"{DECOMPOSED}/2.jpg", "tea/1.jpg"),
        {"": ((COMPOSED, "tea"), {f"{COMPOSED}/1.jpg": 0, f"{DECOMPOSED}/2.jpg": 0, "tea/1.jpg": 1})},
    ),
}  # fmt: skip


def found_by(lister: Lister, images: Path, folder: Path, feed: Feed) -> dict[str, Inputs]:
    """List a folder in one of the ways."""
    folder.mkdir(exist_ok=True)
    what, options = lister(images, folder, feed)
    return scan(what, options=PackOptions(**options))


def plain(found: dict[str, Inputs]) -> Found:
    """Return of each split its classes, and the class of each image by its path below the split."""
    plain: Found = {}
    for split, inputs in found.items():
        prefix = f"{inputs.archives[0].path}/{inputs.above}" if inputs.archives else ""
        paths = [path.removeprefix(prefix) for path in inputs.paths]
        plain[split] = inputs.classes, dict(zip(paths, inputs.targets.tolist(), strict=True))
    return plain


@every_lister
@pytest.mark.parametrize("tree", TREES)
def test_classes_and_splits_are_those_of_the_folder(lister: Lister, tree: str, tmp_path: Path, feed: Feed) -> None:
    files, expected = TREES[tree]
    images = touch(tmp_path / "images", *files)
    found = found_by(lister, images, tmp_path / "elsewhere", feed)
    assert plain(found) == expected
    assert [*found] == [*expected]
    refused = [inputs.paths[index].rpartition("/")[2] for inputs in found.values() for index in inputs.refused]
    assert refused == (["logo.jpg"] if tree == "stray" else [])
    if tree == "classes":
        # as torchvision: a-x before a/x in the same folder, but not among classes
        in_order = list(plain(found)[""][1])
        expected_order = ["a/2.PNG", "a/x/3.webp", "a-x/4.jpg", "b/1.jpg"]
        assert in_order == (expected_order if lister not in (_tar, _list, _rooted) else sorted(expected_order))
        assert sum(inputs.ignored for inputs in found.values()) >= 3
        assert sum("of systems: " in note for inputs in found.values() for note in inputs.notes) == 1


@every_lister
@pytest.mark.parametrize(
    "names",
    [
        *(
            ("seg_train", "seg_test"),
            ("training_set", "test_set"),
            ("train2017", "val2017"),
            ("images_train", "images_val"),
        ),
        *(
            ("train", "test1"),
            ("trainA", "testA"),
            ("Trainset", "Testset"),
            ("ImagesTrain", "ImagesVal"),
            ("train1", "VAL"),
        ),
    ],
)
def test_splits_under_other_names_are_refused_with_the_line_for_each(
    lister: Lister, names: tuple[str, str], tmp_path: Path, feed: Feed
) -> None:
    images = touch(tmp_path / "images", *(f"{name}/c{n}/{n}.jpg" for name in (*names, "seg_pred") for n in range(2)))
    first, second = names
    what = "Rename them to train, val and test"
    if lister in (_folder, _url):
        what = rf"Pack each: pack \S+/{first} {first}-store; pack \S+/{second} {second}-store --classes {first}-store"
    with pytest.raises(ScanError, match=rf"^{first}, {second} look like splits, not classes\. {what}\. If they are"):
        found_by(lister, images, tmp_path / "elsewhere", feed)
    what, options = lister(images, tmp_path / "elsewhere", feed)
    classes = tuple(sorted([*names, "seg_pred"]))
    assert scan(what, classes=classes, options=PackOptions(**options))[""].classes == classes


def test_names_that_hold_a_word_of_splits_are_classes(tmp_path: Path) -> None:
    names = ("train station", "test tube", "dog", "evaluation", "Trainer")
    assert len(scan(touch(tmp_path, *(f"{name}/1.jpg" for name in names)))[""].classes) == 5


@pytest.mark.parametrize(
    ("inner", "noted"), [(("a", "b"), True), (("a",), True), (("train", "val"), True), ((), False)]
)
def test_one_folder_around_all_classes_is_noted(inner: tuple[str, ...], noted: bool, tmp_path: Path) -> None:
    """Intel's seg_train/seg_train, YOLO's images/train: ImageFolder's one class is hardly meant."""
    touch(tmp_path, *(f"images/{name}/1.jpg" for name in inner or (".",)))
    inputs = scan(tmp_path)[""]
    notes = [f"all images are in images: if {', '.join(inner)} in it are classes or splits, pack images alone."]
    assert (inputs.classes, inputs.notes) == (("images",), notes if noted else [])


def test_one_class_in_two_spellings_is_one_in_merged_stores_too(tmp_path: Path) -> None:
    for number, name in enumerate((COMPOSED, DECOMPOSED)):
        for label in (name, "z"):
            (tmp_path / f"i{number}" / label).mkdir(parents=True)
            photo(20, 20, number).save(tmp_path / f"i{number}" / label / "a.jpg")
        pack(tmp_path / f"i{number}", tmp_path / f"s{number}", size=8)
    merge([tmp_path / "s0", tmp_path / "s1"], tmp_path / "merged")
    merged = MemmapDataset(tmp_path / "merged")
    assert (merged.classes, merged.targets) == ([COMPOSED, "z"], [0, 1, 0, 1])


@every_lister
@pytest.mark.parametrize("name", [".cache/1.jpg", "notes/README.md"])
def test_what_holds_no_image_is_named(lister: Lister, name: str, tmp_path: Path, feed: Feed) -> None:
    if lister is _list and name.startswith("."):
        name = "notes/.cache/1.txt"  # the folder that holds all images of a list may have any name
    images = touch(tmp_path / "images", name)
    with pytest.raises(ScanError, match=r"holds no image|no line has the path of an image"):
        found_by(lister, images, tmp_path / "elsewhere", feed)


# -- labels in tars


TARS: dict[str, tuple[dict[str, bytes | str], dict[str, Any], Any]] = {
    # members, options -> kind, targets, classes
    "cls": ({"a.jpg": "", "a.cls": "1", "b.cls": "0", "b.jpg": ""}, {}, ("class", [1, 0], ("0", "1"))),
    "names": ({"a.cls": "dog\n", "a.jpg": "", "b.jpg": "", "b.cls": "cat"}, {}, ("class", [1, 0], ("cat", "dog"))),
    "dots": (
        {"c0/img 1.0.jpg": "", "c0/img 1.0.cls": "2", "c1/img 1.1.jpg": "", "c1/img 1.1.cls": "0"},
        {},
        ("class", [2, 0], ("0", "1", "2")),
    ),
    "key to the first dot": ({"a.seg.png": "", "a.rgb.jpg": "", "a.cls": "1"}, {}, ("class", [1, 1], ("0", "1"))),
    "in folders": ({"x/a.jpg": "", "x/a.cls": "1", "y/a.jpg": "", "y/a.cls": "0"}, {}, ("class", [1, 0], ("0", "1"))),
    "several": ({"a.jpg": "", "a.cls": "x y"}, {"label_separator": " "}, ("multi-hot", [[1, 1]], ("x", "y"))),
    "no label": ({"a.jpg": "", "a.cls": "", "b.jpg": "", "b.cls": "0"}, {}, ("class", [-1, 0], ("0",))),
    "captions": ({"a.jpg": "", "a.txt": "a dog", "b.jpg": "", "b.txt": "a cat"}, {}, ("class", [-1, -1], ())),
    "img2dataset": (
        {"0.jpg": "", "0.json": '{"label": 3}', "0.txt": "a", "1.jpg": "", "1.txt": "b", "1.json": '{"label": 4}'},
        {},
        ("class", [-1, -1], ()),
    ),
    "a field that is named": ({"a.jpg": "", "a.json": '{"y": 0.5}'}, {"target_column": "y"}, ("regression", [[0.5]], ())),
    "folders": ({"x/a.jpg": "", "y/a.jpg": "", "README": "text", "x/a.npy": ""}, {}, ("class", [0, 1], ("x", "y"))),
    "folders and captions": ({"x/a.jpg": "", "y/a.jpg": "", "x/a.txt": "hm"}, {}, ("class", [0, 1], ("x", "y"))),
}  # fmt: skip


@pytest.mark.parametrize("case", TARS.values(), ids=TARS)
def test_a_cls_is_the_label_of_its_image_and_nothing_else_is(case: Any, tmp_path: Path) -> None:
    members, options, expected = case
    inputs = scan(make_tar(tmp_path / "t.tar", members), options=PackOptions(**options))[""]
    assert (inputs.target_kind, inputs.targets.tolist(), inputs.classes) == expected


def test_an_image_without_the_label_that_others_have_is_rejected_and_other_files_are_counted(tmp_path: Path) -> None:
    data = {"README.md": "text", ".DS_Store": "x", "a.jpg": "", "a.cls": "1", "s9.jpg": "", "notes.txt": "of no image"}
    inputs = scan(make_tar(tmp_path / "t.tar", data))[""]
    assert inputs.refused == {1: "it has no cls, and others of its tar have one"}
    assert (inputs.ignored, inputs.paths[:]) == (3, ["t.tar/a.jpg", "t.tar/s9.jpg"])


def test_labels_of_splits_count_in_one_class_list_and_further_fields_are_kept(tmp_path: Path) -> None:
    members: dict[str, bytes | str] = {}
    for name, label in (("train/1", "b"), ("train/2", "a"), ("val/3", "b")):
        members |= {
            f"{name}.jpg": jpeg(1),
            f"{name}.cls": label,
            f"{name}.json": json.dumps({"caption": name}),
        }
    pack(make_tar(tmp_path / "t.tar", members), tmp_path / "out", size=8)
    for split, targets in (("train", [1, 0]), ("val", [1])):
        store = MemmapDataset(tmp_path / "out" / split)
        assert (store.classes, store.targets) == (["a", "b"], targets)
        columns = [sample.columns for sample in read_samples(tmp_path / "out" / split)]
        assert columns == [{"caption": path.split("/", 1)[1].removesuffix(".jpg")} for path, _ in store.samples]


WRONG_TARS = [
    ({"a.jpg": "", "a.json": "{"}, {}, "the .json of a.jpg in .*t.tar is not JSON"),
    ({"a.jpg": "", "a.cls": "1", "b.jpg": "", "b.cls": "x"}, {}, "the sample a.jpg of .*t.tar has '1' as cls, the sample b.jpg"),
    ({"a.jpg": "", "a.json": '{"y": 1}'}, {"target_column": "z"}, "no .json of .*t.tar has 'z', which target_column names"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "options", "text"), WRONG_TARS)
def test_labels_of_a_tar_that_make_no_sense_name_their_sample(
    members: Any, options: Any, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ScanError, match=text):
        scan(make_tar(tmp_path / "t.tar", members), options=PackOptions(**options))


# -- lists


@pytest.mark.parametrize(
    ("find", "root"),
    [
        ("cd photos; find -type f", "../photos/"),
        ("cd photos; find . -type f", "."),
        ("cd photos/class0; find .. -type f", None),
        ("find $PWD/photos -type f", "photos"),
        ("find photos -type f | sed s,photos/,,", "photos"),
        ("find photos -type f | sed s,photos,class0/..,", "$PWD/photos"),
        ("find photos/../photos -type f", None),
        ("find photos", None),
    ],
)
def test_what_find_lists_is_the_folder(find: str, root: str | None, images: Path, tmp_path: Path) -> None:
    images.rename(tmp_path / "photos")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    option = "" if root is None else f"--root {root}"
    command = f"{find} | LC_ALL=C sort | pack - {tmp_path}/out --size 16 {option}"
    shell = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(shell, cwd=tmp_path, env={**os.environ, "PATH": path}, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    pack(tmp_path / "photos", tmp_path / "folder", size=16, workers=1)
    stores = [content_bytes(tmp_path / name) for name in ("out", "folder")]
    heads = [json.loads(store.pop("manifest.json")) for store in stores]
    assert stores[0] == stores[1]
    assert heads[0]["labels"] == ({} if root is None else {"root": True})
    assert heads[0]["classes"] == heads[1]["classes"]


def test_order_duplicates_and_lines_are_those_of_the_list(images: Path, tmp_path: Path, feed: Feed) -> None:
    paths = listed(images)[::-1]
    feed(lines([*paths, paths[3], str(images / "class0/none.jpg"), f"{images}/class1/../class0/003.jpg"]))
    report = pack("-", tmp_path / "out", size=32, max_rejects=1)
    (reject,) = read_json_lines(tmp_path / "out/rejected.jsonl")
    assert (report.inputs, report.rows, reject["line"]) == (27, 26, 26)
    train = MemmapDataset(tmp_path / "out")
    names = [os.path.relpath(path, images) for path in [*paths, paths[3], f"{images}/class0/003.jpg"]]
    assert [path for path, _ in train.samples] == names
    assert str(tmp_path).encode() not in b"".join(store_bytes(tmp_path / "out").values())


ODD = [b"a b.jpg", b"two\nlines.jpg", b"\xff\xfe.jpg", "ü.jpg".encode(), b"tab\t.jpg", b"-.jpg"]


def test_odd_names_survive_nul_separated(tmp_path: Path, feed: Feed) -> None:
    (tmp_path / "images").mkdir()
    for number, name in enumerate(ODD):
        photo(40, 40, number).save(tmp_path / "good.jpg")
        os.rename(tmp_path / "good.jpg", os.fsencode(tmp_path / "images") + b"/" + name)
    gone = b"\xff\ngone.jpg"
    feed(b"\0".join(os.fsencode(tmp_path / "images") + b"/" + name for name in [*ODD, gone]))
    report = pack("-0", tmp_path / "out", size=32, max_rejects=1)
    assert (report.rows, report.rejected, report.reasons) == (6, 1, {"there is no such file": 1})
    assert [os.fsencode(path) for path, _ in MemmapDataset(tmp_path / "out").samples] == ODD
    (reject,) = read_json_lines(tmp_path / "out/rejected.jsonl")
    assert (os.fsencode(reject["path"]), reject["line"]) == (gone, 7)


@pytest.mark.parametrize(
    ("images", "data", "text"),
    [
        ("-", b"", "standard input names no image. Expected the path of one on each line"),
        ("-", b"a.jpg\n\nb.jpg\n", "line 2 of standard input has '' as path. Expected the path of an image"),
        ("-0", b"a.jpg\0\0", "line 2 of standard input has ''"),
        ("-", b"a.jpg\nb\0c.jpg\n", r"line 2 of standard input has 'b\\x00c.jpg' as path"),
        (
            "-",
            b"img/t0.jpg 0\nimg/t1.jpg 1\n",
            r"taken for paths, and 'img/t0\.jpg 0' looks like the path 'img/t0\.jpg' and a label\. Give labels in a"
            r" \.csv file whose first line is path,label",
        ),
        (
            "-",
            b"t0.jpg,0\nt1.jpg,1\n",
            r"taken for paths, and 't0\.jpg,0' looks like the path 't0\.jpg' and a label",
        ),
    ],
)
def test_a_wrong_line_is_named(images: str, data: bytes, text: str, feed: Feed) -> None:
    feed(data)
    with pytest.raises(ScanError, match=text):
        scan(images)


def test_relative_paths_start_at_the_root_alone(images: Path, monkeypatch: pytest.MonkeyPatch, feed: Feed) -> None:
    make_tree(images / "class0/class0", classes=1, each=1)
    monkeypatch.chdir(images / "class0")
    feed(b"class0/000.jpg\n")
    assert [*scan("-", options=PackOptions(root=".."))[""].paths] == ["class0/000.jpg"]


def test_a_path_outside_of_the_root_is_named(images: Path, feed: Feed) -> None:
    feed(lines(listed(images)))
    with pytest.raises(ScanError, match=r"line 1 of .* names .*class0/000.jpg', which is not in root=.*class2'"):
        scan("-", options=PackOptions(root=str(images / "class2")))


def test_a_table_whose_images_are_elsewhere_is_referred_to_root(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", classes=2, each=1)
    (tmp_path / "list.csv").write_text("path\nclass0/000.jpg\nclass1/000.jpg\n")
    with pytest.raises(PackError, match=r"no such file\. If its paths start in another folder, name that by root\.$"):
        pack(tmp_path / "list.csv", tmp_path / "out", size=8, workers=1)
    assert pack(tmp_path / "list.csv", tmp_path / "out", size=8, workers=1, root=tmp_path / "images").rows == 2
    (tmp_path / "one.csv").write_text("path\nclass0/000.jpg\n")
    with pytest.raises(PackError, match="class0 is gone; .* correct the paths, or name by root the folder"):
        pack(tmp_path / "one.csv", tmp_path / "one", size=8, workers=1)


@pytest.mark.parametrize(
    "options", [{"root": "x"}, {"path_column": "x"}, {"target_column": "x"}, {"label_separator": ";"}]
)
def test_options_of_another_kind_of_images_are_refused(options: dict[str, str], images: Path) -> None:
    with pytest.raises(OptionsError, match=f"{next(iter(options))} does not belong to .*, which is a folder"):
        scan(images, options=PackOptions(**options))
