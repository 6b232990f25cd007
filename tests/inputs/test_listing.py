"""Lists as `find` and Windows write them: the rows and classes of the folder, whatever the paths start from."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from conftest import Feed, make_splits, photo, store_bytes
from redecoding import rows_of_other_sources
from test_lists import lines, listed, shell

from packer import ScanError, pack
from packer.cli.app import run
from packer.inputs.scan import scan
from packer.operations.verify import verify
from packer.options import PackOptions
from reader.format.manifest import read_manifest


@pytest.fixture
def photos(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The images as photos/, with folders in one of the classes, and tmp_path as the current folder."""
    root = tmp_path / "photos"
    images.rename(root)
    (root / "class0/2020").mkdir()
    (root / "class1/2020").mkdir()
    for name in ("class0", "class1"):
        os.rename(root / name / "000.jpg", root / name / "2020/000.jpg")
    monkeypatch.chdir(tmp_path)
    return root


@pytest.mark.parametrize(
    ("find", "root"),
    [
        ("find photos", "photos"),
        ("find photos -type f", "photos"),
        ("find ./photos -type f", "./photos/"),
        ("find $PWD/photos -type f", "photos"),
        ("find photos -type f | sed s,photos/,,", "photos"),
        ("find photos/../photos -type f", "$PWD/photos"),
        ("cd photos; find . -type f", "."),
        ("cd photos/class0; find .. -type f", ".."),
    ],
)
def test_a_list_below_a_root_is_the_folder(find: str, root: str, photos: Path, tmp_path: Path) -> None:
    done = shell(f"{find} | LC_ALL=C sort | pack - {tmp_path}/out --size 16 --root {root}", tmp_path)
    assert done.returncode == 0, done.stderr
    report = pack(photos, tmp_path / "folder", size=16, workers=1)
    # but for what the manifest says of how labels were read, and so its digest
    stores = [store_bytes(tmp_path / name) for name in ("out", "folder")]
    heads = [store.pop("manifest.json").splitlines() for store in stores]
    assert stores[0] == stores[1]
    labels = [read_manifest(tmp_path / name).labels for name in ("out", "folder")]
    # a list has lines; the sources are the same files
    assert labels[0] == labels[1] | {"inputs": labels[0]["inputs"], "root": True}
    assert {line.split(b":")[0] for line in set(heads[0]) ^ set(heads[1])} <= {
        b'  "labels"',
        b'  "digest"',
        b'    "inputs"',
        b'    "root"',
        b'    "sources"',
        b"  }",
    }
    assert "found 3 classes, the first folders below --root, 2 images in folders below those" in done.stdout
    assert report.layout == "3 classes, 2 images in folders below those of the classes"


def test_the_order_is_the_lists_and_the_classes_are_the_folders(photos: Path, feed: Feed) -> None:
    paths = listed(photos)[::-1]
    feed(lines(paths))
    inputs = scan("-", options=PackOptions(root="photos"))[""]
    assert inputs.paths == [os.path.relpath(path, photos) for path in paths]
    folder = scan(photos)[""]
    assert inputs.classes == folder.classes
    known = dict(zip(folder.paths, folder.targets.tolist(), strict=True))
    assert inputs.targets.tolist() == [known[path] for path in inputs.paths]


def test_without_a_root_the_folder_that_holds_an_image_is_its_class_and_shared_names_are_reported(
    photos: Path,
    feed: Feed,
) -> None:
    feed(lines(listed(photos)))
    inputs = scan("-")[""]
    assert inputs.classes == ("2020", "class0", "class1", "class2")
    assert inputs.notes == [
        "1 class is of several folders, such as '2020' of class0/2020, class1/2020: the folder that holds an image is its"
        " class. With root it is the first folder below that."
    ]


@pytest.mark.parametrize("find", ["photos", "$PWD/photos"])
def test_hidden_folders_and_those_of_systems_are_no_classes_without_a_root(
    find: str, photos: Path, tmp_path: Path
) -> None:
    for folder in (".cache", "@eaDir", "class0/.ipynb_checkpoints"):
        (photos / folder).mkdir()
        shutil.copy(photos / "class0/001.jpg", photos / folder / "1.jpg")
    (photos / "class1/._001.jpg").write_bytes(b"\0\5\x16\7")
    done = shell(f"find {find} -type f | sort | pack - {tmp_path}/out --size 16", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 lines of standard input name files of hidden folders, or of systems" in done.stderr
    assert read_manifest(tmp_path / "out").classes == ("2020", "class0", "class1", "class2")


def test_a_list_inside_a_hidden_folder_is_packed(photos: Path, feed: Feed, tmp_path: Path) -> None:
    photos.rename(tmp_path / ".photos")
    feed(lines(listed(tmp_path / ".photos/class0") + listed(tmp_path / ".photos/class2")))
    assert scan("-")[""].classes == ("2020", "class0", "class2")


def test_folders_junk_and_images_beside_the_classes_are_as_in_the_folder(photos: Path, feed: Feed) -> None:
    (photos / ".ipynb_checkpoints").mkdir()
    photo(20, 20, 1).save(photos / ".ipynb_checkpoints/a.jpg")
    photo(20, 20, 1).save(photos / "stray.jpg")
    (photos / "class2/._a.jpg").write_bytes(b"x")
    every = sorted(str(path) for path in [photos, *photos.rglob("*")])
    feed(lines(every))
    inputs = scan("-", options=PackOptions(root="photos"))[""]
    folder = scan(photos)[""]
    assert (sorted(inputs.paths), inputs.classes) == (sorted(folder.paths), folder.classes)
    assert [inputs.paths[i] for i in inputs.refused] == ["stray.jpg"]
    assert list(inputs.refused.values()) == list(folder.refused.values())
    assert inputs.notes == [
        "7 lines of standard input name folders of other lines, line 1 first, and are skipped.",
        "2 lines of standard input name files of hidden folders, or of systems, line 3 first, and are skipped.",
    ]
    feed(lines([str(photos / ".ipynb_checkpoints/a.jpg")]))
    with pytest.raises(
        ScanError, match="standard input names no image: 1 lines of standard input name files of hidden"
    ):
        scan("-", options=PackOptions(root="photos"))


def test_one_folder_below_the_root_is_a_class_and_the_root_alone_is_none(photos: Path, feed: Feed) -> None:
    feed(lines(listed(photos / "class2")))
    assert scan("-", options=PackOptions(root="photos"))[""].classes == ("class2",)
    feed(lines(listed(photos / "class2")))
    assert scan("-", options=PackOptions(root="photos/class2"))[""].classes == ()


def test_a_root_that_the_paths_do_not_start_from_is_named(photos: Path, feed: Feed) -> None:
    feed(b"photos\nphotos/class0/001.jpg\nphotos/class1/001.jpg\n")
    with pytest.raises(ScanError, match=r"'photos' first, start from .*/class2, and there is no folder .*photos"):
        scan("-", options=PackOptions(root="photos/class2"))


def test_splits_in_a_list_are_no_classes(tmp_path: Path, feed: Feed) -> None:
    make_splits(tmp_path / "data", ("train", "val"), classes=2, each=2)
    feed(lines(listed(tmp_path / "data")))
    with pytest.raises(ScanError, match=r"below root=.*data' are splits \(train, val\).* with root=.*data/train'"):
        scan("-", options=PackOptions(root=str(tmp_path / "data")))


def test_paths_that_mean_a_file_either_way_are_refused_and_those_outside_the_root_reported(
    photos: Path,
    feed: Feed,
) -> None:
    shutil.copytree(photos, photos / "photos")
    feed(lines([f"photos/{path.relative_to(photos)}" for path in sorted((photos / "class2").glob("*"))]))
    with pytest.raises(
        ScanError, match="is a file both in the current folder and in root='photos'. Give absolute paths"
    ):
        scan("-", options=PackOptions(root="photos"))
    feed(lines(listed(photos / "class2")))
    inputs = scan("-", options=PackOptions(root="photos/class0"))[""]
    assert inputs.notes[0].startswith("line 1 of standard input is outside of root='photos/class0'")


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (lambda text: text.replace("\n", "\r\n"), ""),
        (lambda text: text.replace("\n", "\r\n").removesuffix("\r\n"), ""),
        (lambda text: text.removesuffix("\n"), ""),
        (lambda text: "\ufeff" + text, ""),
        (lambda text: text.replace("\n", "\r\n").encode("utf-16"), ""),
        (lambda text: text.replace("/", "\\"), "the paths of standard input are separated by backslashes"),
    ],
    ids=["CRLF", "CRLF, no last end", "no last end", "UTF-8 mark", "UTF-16", "backslashes"],
)
def test_a_list_of_windows_is_the_same_list(data: Any, note: str, photos: Path, feed: Feed) -> None:
    text = "".join(f"{os.path.relpath(path)}\n" for path in listed(photos))
    given = data(text)
    feed(given if isinstance(given, bytes) else given.encode())
    inputs = scan("-", options=PackOptions(root="photos"))[""]
    assert inputs.paths == [os.path.relpath(path, photos) for path in listed(photos)]
    assert [found[: len(note)] for found in inputs.notes] == ([note] if note else [])


def test_a_name_with_a_backslash_stays_where_there_is_such_a_file(tmp_path: Path, feed: Feed) -> None:
    photo(20, 20, 1).save(tmp_path / "a.jpg")
    os.rename(tmp_path / "a.jpg", tmp_path / "a\\b.jpg")
    feed(lines([str(tmp_path / "a\\b.jpg")]))
    assert scan("-")[""].paths == ["a\\b.jpg"]


@pytest.mark.parametrize("system", [0, 3])
def test_a_zip_of_windows_has_folders(system: int, images: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        for name in ("photos\\", "photos\\class0\\"):
            file.writestr(_member(name, system), b"")
        for path in listed(images):
            file.writestr(
                _member("photos\\" + os.path.relpath(path, images).replace("/", "\\"), system), Path(path).read_bytes()
            )
    report = pack(tmp_path / "a.zip", tmp_path / "out", size=32, workers=1)
    assert (report.rows, report.layout) == (24, "3 classes")
    assert report.notes == [
        f"24 members of {tmp_path}/a.zip have backslashes in their names, which are taken as slashes."
    ]
    pack(images, tmp_path / "folder", size=32, workers=1)
    for name in ("_tensordict/pixels.memmap", "_tensordict/targets.memmap"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "folder" / name).read_bytes()
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", tmp_path / "a.zip") == []


def test_a_zip_of_unix_keeps_a_backslash_in_a_name(images: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.write(listed(images)[0], "class0/a.jpg")
        file.writestr(_member("b\\c.jpg", 3), Path(listed(images)[1]).read_bytes())
    inputs = scan(tmp_path / "a.zip")[""]
    assert (inputs.classes, list(inputs.refused)) == (("class0",), [inputs.paths.index("a.zip/b\\c.jpg")])


def _member(name: str, system: int) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.create_system = system
    return member


def test_the_command_takes_words_for_missing_labels_again_when_it_resumes(images: Path, tmp_path: Path) -> None:
    rows = "".join(f"{path},{'?' if n % 5 == 0 else 'ab'[n % 2]}\n" for n, path in enumerate(listed(images)))
    (tmp_path / "l.csv").write_text("path,label\n" + rows)
    words = ["--missing", "?", "--missing", "-", "--size", "16"]
    assert run([str(tmp_path / "l.csv"), str(tmp_path / "out"), *words]) == 0
    assert PackOptions(missing=("?", "-")).words() == ["--missing", "?", "--missing", "-"]
    assert run(["update", str(tmp_path / "l.csv"), str(tmp_path / "out"), *words[:4]]) == 0
    assert run([str(images), str(tmp_path / "other"), *words]) == 2
