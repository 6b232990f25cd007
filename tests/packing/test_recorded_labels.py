"""What a store records of how its labels were read: an update reads them likewise, and changes none without a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Tune, interrupted, photo, store_bytes, unparted_bytes

from packer import PackError, ScanError, merge, pack, seal_parts, subset, update
from packer.cli.app import run
from packer.sample_lines import read_json_lines
from packer.store.manifest_file import manifest_head
from reader import MemmapDataset
from reader.format.manifest import MANIFEST, SAMPLES, manifest_of, read_manifest


def listed(images: Path, path: Path, columns: str = "path,label,breed", *, change: Any = None) -> Path:
    """List all images with two labels of each: its folder, and another in the order of the images."""
    lines = []
    for number, image in enumerate(sorted(images.rglob("*.jpg"))):
        name = str(image.relative_to(images))
        cells = dict(zip(columns.split(","), (name, image.parent.name, f"breed{number % 4}"), strict=False))
        cells |= {"target": "same"} if "target" in columns.split(",") else {}
        lines.append(",".join({**cells, **(change(name) if change else {})}.values()))
    path.write_text("\n".join([columns, *lines, ""]))
    return path


def labels(out: Path) -> dict[str, str]:
    """Return the name of each row's class, by path."""
    manifest = read_manifest(out)
    return {line["path"]: manifest.classes[line["target"]] for line in read_json_lines(out / SAMPLES)}


def refused(images: Any, out: Path, text: str, error: Any = PackError, **options: Any) -> None:
    """See that an update is refused so, and changes nothing."""
    before = store_bytes(out)
    with pytest.raises(error, match=text):
        update(images, out, **options)
    assert store_bytes(out) == before
    assert sorted(path.name for path in out.parent.iterdir() if path.name.startswith(".")) == []


# -- what is recorded


def test_columns_classes_and_digests_are_recorded_and_no_path(images: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("breed3\nbreed2\nbreed1\nbreed0\n")
    path = listed(images, tmp_path / "list.csv", "name,label,breed", change=lambda name: {"name": name[:-4]})
    how: dict[str, Any] = {"path_column": "name", "target_column": "breed", "extension": ".jpg", "root": images}
    pack(path, tmp_path / "out", size=32, classes=tmp_path / "classes.txt", **how)
    manifest = read_manifest(tmp_path / "out")
    digests = {name: manifest.labels[name] for name in ("inputs", "sources")}
    assert manifest_head(manifest)["labels"] == digests | {
        "classes": True,
        "extension": ".jpg",
        "path_column": "name",
        "root": True,
        "target_column": "breed",
    }
    assert str(tmp_path) not in (tmp_path / "out" / MANIFEST).read_text()
    pack(path, tmp_path / "parts", size=32, classes=tmp_path / "classes.txt", part="1/1", **how)
    seal_parts(tmp_path / "parts")
    assert unparted_bytes(tmp_path / "parts") == unparted_bytes(tmp_path / "out")


def test_the_digest_of_boxes_depends_on_the_label_files_alone(images: Path, tmp_path: Path) -> None:
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.jpg"))
    for folder in ("one", "two"):
        for name in names:
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).with_suffix(".txt").write_text("0 0.5 0.5 0.5 0.5")
    pack(images, tmp_path / "a", size=32, boxes=tmp_path / "one")
    pack(images, tmp_path / "b", size=32, boxes=tmp_path / "two", shuffle=3)
    (tmp_path / "two" / names[0]).with_suffix(".txt").write_text("0 0.5 0.5 0.5 0.4")
    pack(images, tmp_path / "c", size=32, boxes=tmp_path / "two")
    found = [read_manifest(tmp_path / name).labels["boxes"] for name in "abc"]
    assert found[0] == found[1] != found[2]
    assert found[0].startswith("sha256:")


def test_copies_of_rows_record_what_their_stores_do(images: Path, tmp_path: Path) -> None:
    path = listed(images, tmp_path / "list.csv")
    for name, column in (("one", "label"), ("two", "breed")):
        pack(path, tmp_path / name, size=32, target_column=column, root=images)
    subset(tmp_path / "one", tmp_path / "some", rows=[1, 2])
    assert read_manifest(tmp_path / "some").labels == {"path_column": "path", "root": True, "target_column": "label"}
    merge([tmp_path / "one", tmp_path / "two"], tmp_path / "mixed")
    assert read_manifest(tmp_path / "mixed").labels == {}


# -- what is not given is read as before


def test_a_column_that_comes_later_does_not_replace_the_one_that_was_found(images: Path, tmp_path: Path) -> None:
    """Of target, label, class and cls the first that there is holds the target."""
    out, path = tmp_path / "out", listed(images, tmp_path / "list.csv", "path,label,breed")
    pack(path, out, size=32, root=images)
    before = labels(out)
    listed(images, path, "path,label,breed,target")
    assert update(path, out, root=images).kept == 24
    assert labels(out) == before


def test_a_class_list_that_was_given_stays(images: Path, tmp_path: Path) -> None:
    out, names = tmp_path / "out", tmp_path / "classes.txt"
    names.write_text("class2\nclass0\nclass1\n")
    pack(images, out, size=32, classes=names)
    before = store_bytes(out)
    names.unlink()
    report = update(images, out)
    assert (report.kept, report.notes, store_bytes(out)) == (24, [], before)
    (images / "bee").mkdir()
    photo(40, 30, 1).save(images / "bee" / "1.jpg")
    refused(
        images,
        out,
        r"has the class 'bee' that classes does not list \(3 classes\)",
        ScanError,
    )
    refused(
        tmp_path / "no classes",
        out,
        r"no classes does not exist\. Expected a folder of images",
        ScanError,
    )
    names.write_text("class2\nclass0\nclass1\nbee\n")
    assert update(images, out, classes=names).kept == 24
    assert MemmapDataset(out).classes == ["class2", "class0", "class1", "bee"]


def test_a_folder_of_yolo_labels_is_read_by_the_list_that_was_given(images: Path, tmp_path: Path) -> None:
    for image in images.rglob("*.jpg"):
        image.with_suffix(".txt").write_text("1 0.5 0.5 0.5 0.5")
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    pack(images, tmp_path / "out", size=32, boxes=images, classes=tmp_path / "names.txt")
    before = store_bytes(tmp_path / "out")
    assert update(images, tmp_path / "out", boxes=images).notes == []
    assert store_bytes(tmp_path / "out") == before
    next(images.rglob("*.txt")).write_text("0 0.5 0.5 0.5 0.5")
    assert update(images, tmp_path / "out", boxes=images).kept == 24
    assert store_bytes(tmp_path / "out") != before


def test_root_is_a_path_and_must_be_given_again(images: Path, tmp_path: Path) -> None:
    path = listed(images, tmp_path / "list.csv")
    pack(path, tmp_path / "out", size=32, root=images)
    refused(path, tmp_path / "out", r"out was packed with root\. Give root again\.")
    assert update(path, tmp_path / "out", root=images).kept == 24


def test_a_list_becomes_a_folder_where_that_gives_the_same_labels(images: Path, tmp_path: Path) -> None:
    path = listed(images, tmp_path / "list.csv")
    pack(path, tmp_path / "out", size=32, root=images)
    assert update(images, tmp_path / "out").kept == 24


def test_a_column_that_was_renamed_is_named_again(images: Path, tmp_path: Path) -> None:
    out, path = tmp_path / "out", listed(images, tmp_path / "list.csv", "name,label,breed")
    pack(path, out, size=32, root=images, path_column="name", target_column="breed")
    listed(images, path, "id,label,race")
    refused(path, out, r"has no column 'name'", ScanError, root=images)
    refused(path, out, r"has no column 'breed', which target_column names", ScanError, root=images, path_column="id")
    update(path, out, root=images, path_column="id", target_column="race")
    assert read_manifest(out).labels["target_column"] == "race"


# -- what would change labels


@pytest.mark.parametrize(
    ("rename", "text"),
    [
        (("class0", "zebra"), r"class1 was 1, now 0, class2 was 2, now 1 \(gone: class0; new: zebra\)"),
        (("class2", "bee"), r"class0 was 0, now 1, class1 was 1, now 2 \(gone: class2; new: bee\)"),
    ],
)
def test_classes_of_rows_that_stay_keep_their_numbers_or_it_is_refused(
    rename: tuple[str, str], text: str, images: Path, tmp_path: Path
) -> None:
    out, new = tmp_path / "out", rename[1]
    pack(images, out, size=32)
    (images / rename[0]).rename(images / new)
    refused(
        images,
        out,
        rf"^classes would have other numbers than in .*out: {text}\. Keep them by classes='.*out', or a file with"
        r" its names, then new ones; or pack again with overwrite=True\.$",
    )
    numbers = tmp_path / "classes.txt"
    numbers.write_text("\n".join([*MemmapDataset(out).classes, new]))
    report = update(images, out, classes=str(numbers))
    assert (report.kept, report.gone) == (16, 8)
    assert report.notes == [f"{out} has other classes than before (new: {new}); all others keep their numbers."]
    assert MemmapDataset(out).classes == ["class0", "class1", "class2", new]
    assert update(images, out).kept == 24, "the list that was given stays"


def test_a_list_in_another_order_is_taken_where_it_is_given_and_reported(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(images, out, size=32)
    (tmp_path / "classes.txt").write_text("class1\nclass0\nclass2\n")
    report = update(images, out, classes=tmp_path / "classes.txt")
    assert report.kept == 24
    assert report.notes == [
        f"{out} has other classes than before (in another order); numbers moved: class0 was 0, now 1, class1 was 1, now 0."
    ]


def test_targets_of_another_kind_are_refused(images: Path, tmp_path: Path) -> None:
    out, path = tmp_path / "out", tmp_path / "list.csv"
    listed(images, path, "path,label", change=lambda name: {"label": name[-5]})
    pack(path, out, size=32, root=images)
    listed(images, path, "path,label", change=lambda name: {"label": f"{name[-5]}.5"})
    refused(path, out, r"out has class targets, the images have regression ones\. Pack again", root=images)


# -- resumed


def test_an_update_that_was_interrupted_resumes_as_it_names(
    images: Path, tmp_path: Path, tune: Tune, capsys: pytest.CaptureFixture[str]
) -> None:
    tune(least_block_inputs=2)
    out, path = tmp_path / "out", listed(images, tmp_path / "list.csv")
    (tmp_path / "classes.txt").write_text("breed3\nbreed2\nbreed1\nbreed0\n")
    pack(path, out, size=32, root=images, target_column="breed", classes=tmp_path / "classes.txt")
    before = store_bytes(out)
    interrupted(update, path, out, root=images, workers=1)
    words = json.loads((tmp_path / "out.packing/.packing/journal").read_bytes().splitlines()[0][9:])["words"]
    assert run([str(path), str(out), *words, "--quiet"]) == 0
    assert store_bytes(out) == before


def test_labels_of_another_form_are_no_manifest(store: Path) -> None:
    head = manifest_head(read_manifest(store))
    assert manifest_of(head | {"labels": {"later": [1]}}).labels == {"later": [1]}
    with pytest.raises(ValueError, match="labels = 3, expected an object"):
        manifest_of(head | {"labels": 3})
