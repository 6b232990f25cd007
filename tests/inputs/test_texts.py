"""Text columns, from the table to the batch: every command keeps them, and text that is none is refused in one sentence."""

from __future__ import annotations

import csv
import io
import json
import pickle
import shutil
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
from conftest import check_golden_bytes, interrupted, make_tree, store_bytes
from test_lists import scanned
from test_store import write_head

from packer import PackError, ScanError, merge, pack, pull, push, seal_parts, subset, update, verify
from packer.cli.app import run
from packer.inputs.scan import scan
from packer.options import PackOptions
from reader import MemmapDataset, StoreError
from reader.format.check import check_store
from reader.format.tensors import MOST_TEXT_BYTES, TEXTS_FILE

GOLDEN = Path(__file__).parents[1] / "golden" / "texts"
CAPTIONS = ['a cat, "grey"', "", "猫 é", " two  spaces; a semicolon ", "NA", "line\nbreak", "7", "x" * 5000]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 8 images, one that is none, and a table of all with two columns of texts."""
    folder = make_tree(tmp_path_factory.mktemp("texts") / "images", classes=1, each=8)
    (folder / "bad.jpg").write_bytes(b"nothing")
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))
    assert names[0] == "bad.jpg"
    rows = [(name, text, f"alt {n}") for n, (name, text) in enumerate(zip(names, ["gone", *CAPTIONS], strict=True))]
    return written(folder / "table.csv", [("path", "caption", "alt"), *rows])


def written(path: Path, rows: list[Any]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


KINDS: list[dict[str, Any]] = [{"size": 32}, {"fit": "none"}, {"size": 32, "compress": True}]
OPTIONS: dict[str, Any] = {"text_column": "caption,alt", "max_rejects": 1, "workers": 1}
ALT = [f"alt {n}" for n in range(1, 9)]


@pytest.fixture(scope="module", params=KINDS, ids=["equal", "own-sizes", "compressed"])
def packed(request: pytest.FixtureRequest, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "compress" in request.param:
        pytest.importorskip("zstandard")
    out = tmp_path_factory.mktemp("packed") / "out"
    assert pack(table, out, **OPTIONS, **request.param).rejected == 1
    return out


def test_copies_keep_the_texts_of_their_rows(packed: Path, tmp_path: Path) -> None:
    subset(packed, tmp_path / "some", rows=[4, 2, 2])
    assert MemmapDataset(tmp_path / "some")[:][1]["caption"] == [CAPTIONS[n] for n in (4, 2, 2)]
    merge([packed, tmp_path / "some"], tmp_path / "both")
    both = MemmapDataset(tmp_path / "both")
    assert both[:][1]["alt"] == [*ALT, ALT[4], ALT[2], ALT[2]]
    push(tmp_path / "both", f"file://{tmp_path}/far")
    pull(f"file://{tmp_path}/far", tmp_path / "near")
    assert store_bytes(tmp_path / "near") == store_bytes(tmp_path / "both")
    for name in ("some", "both", "near"):
        assert verify(tmp_path / name).problems == []


def test_a_store_at_a_url_has_its_texts(packed: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    push(packed, f"file://{tmp_path}/far")
    far = MemmapDataset(f"file://{tmp_path}/far", cache=tmp_path / "cache")
    assert far[[3, 7]][1]["caption"] == [CAPTIONS[3], CAPTIONS[7]]


def test_a_batch_of_a_store_at_a_url_is_pickled_before_all_of_it_is_there(
    table: Path, tmp_path: Path, small_blocks: None
) -> None:
    pytest.importorskip("obstore")
    pack(table, tmp_path / "out", size=32, **OPTIONS)
    push(tmp_path / "out", f"file://{tmp_path}/far")
    far = MemmapDataset(f"file://{tmp_path}/far", cache=tmp_path / "cache", as_tuple=False)
    assert pickle.loads(pickle.dumps(far[[3]])).text == [CAPTIONS[3]]


def test_resumed_shuffled_and_in_parts_the_bytes_are_the_same(table: Path, tmp_path: Path, small_blocks: None) -> None:
    options = OPTIONS | {"size": 32, "shuffle": 3}
    pack(table, tmp_path / "one", **options)
    interrupted(pack, table, tmp_path / "cut", inputs=2, **options)
    pack(table, tmp_path / "cut", **options)
    for number in (1, 2):
        pack(table, tmp_path / "parts", part=f"{number}/2", **options)
    seal_parts(tmp_path / "parts")
    assert store_bytes(tmp_path / "one") == store_bytes(tmp_path / "cut") == store_bytes(tmp_path / "parts")
    data = MemmapDataset(tmp_path / "one")
    by_path = {path: text for (path, _), text in zip(data.samples, data[:][1]["caption"], strict=True)}
    assert [by_path[path] for path in sorted(by_path)] == CAPTIONS


def test_a_changed_text_is_seen_by_resume_and_brought_by_update(table: Path, tmp_path: Path) -> None:
    images = shutil.copytree(table.parent, tmp_path / "images")
    changed = images / "table.csv"
    pack(changed, tmp_path / "out", size=32, **OPTIONS)
    assert pack(changed, tmp_path / "out", size=32, **OPTIONS).resumed_from == 9
    changed.write_text(changed.read_text(encoding="utf-8").replace("猫", "dog"), encoding="utf-8")
    with pytest.raises(PackError, match="is finished, but with other inputs"):
        pack(changed, tmp_path / "out", size=32, **OPTIONS)
    # --text-column is the store's
    assert update(changed, tmp_path / "out", max_rejects=1, workers=1).kept == 8
    pack(changed, tmp_path / "again", size=32, **OPTIONS)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "again")
    with pytest.raises(ScanError, match="has no column 'caption', which text_column names"):
        update(written(images / "b.csv", [("path",), ("class0/0.jpg",)]), tmp_path / "out")


def test_texts_that_moved_to_another_row_or_column_are_seen_by_resume(table: Path, tmp_path: Path) -> None:
    names = sorted(str(path.relative_to(table.parent)) for path in table.parent.glob("class0/*.jpg"))[:3]
    shutil.copytree(table.parent / "class0", tmp_path / "class0")
    options = OPTIONS | {"size": 32}

    def listed(*texts: tuple[str, str]) -> Path:
        rows = [(name, *both) for name, both in zip(names, texts, strict=True)]
        return written(tmp_path / "table.csv", [("path", "caption", "alt"), *rows])

    pack(listed(("", ""), ("a", ""), ("b", "")), tmp_path / "out", **options)
    for texts in ((("a", ""), ("b", ""), ("", "")), (("", ""), ("", "a"), ("b", ""))):
        with pytest.raises(PackError, match="is finished, but with other inputs"):
            pack(listed(*texts), tmp_path / "out", **options)


def test_a_tar_has_texts_beside_its_images(table: Path, tmp_path: Path) -> None:
    first = sorted(table.parent.glob("class0/*.jpg"))[:2]
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for number, path in enumerate(first):
            tar.add(path, f"{number}.jpg")
            for suffix, data in (("txt", f" caption {number}\n"), ("cls", f"{number}\n")):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data.encode()))
    inputs = scan(tmp_path / "shard.tar", options=PackOptions(text_column="txt"))[""]
    assert (inputs.texts, inputs.targets.tolist()) == ({"txt": [" caption 0\n", " caption 1\n"]}, [0, 1])
    # as a label the same members are numbers
    assert scan(tmp_path / "shard.tar", options=PackOptions(target_column="cls"))[""].targets.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rows", "column", "message"),
    [
        ("path,caption\na.jpg,x\n", "title", "has no column 'title', which text_column names. It has: caption."),
        ("path,a b\na.jpg,x\n", "a b", "the column 'a b' of .* can be no text: its name cannot be that of a tensor"),
        (
            "path,Alt,alt\na.jpg,x,3\n",
            "Alt",
            "can be no text: its name differs from another's in case alone. Rename it.",
        ),
        ("path,targets\na.jpg,x\n", "targets", "can be no text: a batch has that name already. Rename it."),
        ("path,c\na.jpg," + "é" * (MOST_TEXT_BYTES // 2 + 1), "c", "line 2 of .* has 1,048,578 bytes as c"),
    ],
    ids=["no-column", "no-name", "case", "taken", "too-long"],
)
def test_a_column_that_can_be_no_text_is_refused(tmp_path: Path, rows: str, column: str, message: str) -> None:
    # Python's csv has cells of 128 KiB
    csv.field_size_limit(4 * MOST_TEXT_BYTES)
    with pytest.raises(ScanError, match=message):
        scanned(tmp_path / "l.csv", rows, text_column=column)


def test_text_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_bytes(b"path,caption\na.jpg,ok\nb.jpg,caf\xe9\n")
    with pytest.raises(
        ScanError, match=r"line 3 of .* is not UTF-8: it has 'caf\\udce9' as caption. Save it as UTF-8."
    ):
        scan(tmp_path / "l.csv", options=PackOptions(text_column="caption"))
    with pytest.raises(ScanError, match=r"line 1 of .* has \['a', 'b'\] as caption. Expected text"):
        scanned(tmp_path / "l.jsonl", '{"path": "a.jpg", "caption": ["a", "b"]}\n', text_column="caption")
    found = scanned(
        tmp_path / "m.jsonl", '{"path": "a.jpg"}\n{"path": "b.jpg", "caption": "x"}\n', text_column="caption"
    )
    assert (found.texts, found.notes) == ({"caption": ["", "x"]}, ["1 of 2 inputs have an empty caption."])


def test_a_folder_has_no_text_columns(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["pack", str(table.parent / "class0"), str(tmp_path / "out"), "--size", "32", "--text-column", "c"][1:])
        == 2
    )
    assert "--text-column does not belong to" in capsys.readouterr().err


def test_info_and_show_name_the_texts(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(packed)]) == 0
    assert "texts       caption, alt" in capsys.readouterr().out
    assert run(["show", str(packed), "-o", str(tmp_path / "sheet.png")]) == 0
    shutil.copytree(packed, tmp_path / "other")
    (tmp_path / "other" / TEXTS_FILE).write_bytes((packed / TEXTS_FILE).read_bytes().replace(b"grey", b"gray"))
    assert run(["show", str(tmp_path / "other"), "-o", str(tmp_path / "other.png")]) == 0
    assert (tmp_path / "sheet.png").read_bytes() != (tmp_path / "other.png").read_bytes()


def test_the_golden_store_of_texts_loads_forever() -> None:
    check_golden_bytes(GOLDEN)
    data = MemmapDataset(GOLDEN)
    assert data[:][1]["caption"] == ["a cat", "", "zwei Vögel"]
    assert data[:][1]["alt"] == ["猫", "dog", "a, b\n"]
    assert verify(GOLDEN).problems == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"texts": ["caption"]}, None),
        ({"texts": []}, "expected some where it names text-columns"),
        ({"texts": ["other"]}, r"texts = \['other'\], expected names of extras"),
        ({"texts": ["caption", "caption"]}, "expected names of extras"),
        ({"texts": "caption"}, "says texts = 'caption', expected a list of texts"),
        ({"reader_features": []}, "expected some where it names text-columns"),
        ({"reader_features": ["text-columns", "more"]}, "needs more, unknown here"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    tmp_path: Path, change: dict[str, Any], text: str | None
) -> None:
    out = shutil.copytree(GOLDEN, tmp_path / "out")
    write_head(out, json.loads((out / "manifest.json").read_bytes()) | change)
    if text is None:
        assert check_store(out).texts == ("caption",)
        return
    with pytest.raises(StoreError, match=text):
        check_store(out)


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([0, 5, 8, 99, 11, 22], "the place of its caption is"),
        ([0, 5, 8, -1, 11, 22], "the place of its caption is"),
        ([0, 5, 8, 7, 11, 22], "a text has the bytes 8 to 7"),
        ([0, 6, 8, 8, 11, 22], "are no UTF-8"),
    ],
)
def test_an_offset_that_is_none_is_an_error_with_its_store(tmp_path: Path, spans: list[int], text: str) -> None:
    out = shutil.copytree(GOLDEN, tmp_path / "out")
    (out / "_tensordict/extras/caption.memmap").write_bytes(struct.pack("<6q", *spans))
    with pytest.raises(StoreError, match=text):
        MemmapDataset(out)[:]
    assert any("caption" in problem.what or "packed" in problem.what for problem in verify(out).problems)
