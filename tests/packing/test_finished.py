"""One command line that is right in every state of OUT: it starts, continues, or confirms a finished store."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import PACK, Tune, harm_at, interrupted, make_tree, store_bytes
from PIL import Image

from packer import PackError, pack, seal_parts, update
from packer.packing import build
from packer.pixels.decode import Decoder


@pytest.fixture(autouse=True)
def _small_blocks(tune: Tune) -> None:
    """Blocks of 2 inputs, and workers that inherit what a test does."""
    tune(least_block_inputs=2)


def run(*words: Any) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run([*PACK, *map(str, words)], capture_output=True, text=True, timeout=500)


def test_too_many_rejects_are_3_again_and_nothing_is_decoded(images: Path, tmp_path: Path) -> None:
    (images / "class0/003.jpg").write_text("no image")
    line = [images, tmp_path / "out", "--size", "32"]
    assert run(*line).returncode == 3
    before = store_bytes(tmp_path / "out")
    again = run(*line)
    assert again.returncode == 3
    assert "already finished; nothing was done" in again.stdout
    assert "1 of 24 inputs was rejected, more than --max-rejects 1%." in again.stderr
    assert store_bytes(tmp_path / "out") == before
    assert run(*line, "--max-rejects", 1).returncode == 0


def _grown(images: Path) -> None:
    with open(images / "class1/003.jpg", "ab") as file:
        file.write(b"more")


def test_the_command_that_is_named_makes_the_store_what_is_asked_for(images: Path, tmp_path: Path) -> None:
    line = [images, tmp_path / "out", "--size", "32"]
    run(*line)
    _grown(images)
    (images / "class1/003.jpg").rename(images / "class1/new.jpg")
    refused = run(*line)
    assert refused.returncode == 1
    command = shlex.split(refused.stderr.rpartition("bring it up to date: ")[2].strip())
    assert run(*command[1:]).returncode == 0
    assert run(*line).returncode == 0


def test_a_missing_file_that_is_back_after_the_seal_is_what_update_repairs(images: Path, tmp_path: Path) -> None:
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.jpg"))
    (tmp_path / "list.csv").write_text("\n".join(["path", *names]) + "\n")
    options: dict[str, Any] = {"size": 32, "root": images, "max_rejects": 2}
    for name in ("class0/003.jpg", "class2/007.jpg"):
        (images / name).rename(tmp_path / name.replace("/", "-"))
    pack(tmp_path / "list.csv", tmp_path / "out", **options)
    assert pack(tmp_path / "list.csv", tmp_path / "out", **options).resumed_from == 24
    (tmp_path / "class0-003.jpg").rename(images / "class0/003.jpg")
    with pytest.raises(PackError, match="is finished, but with other inputs"):
        pack(tmp_path / "list.csv", tmp_path / "out", **options)
    assert update(tmp_path / "list.csv", tmp_path / "out", root=images, max_rejects=1).rows == 23


# -- parts


def test_a_part_after_the_seal_is_done(images: Path, tmp_path: Path) -> None:
    (images / "class0/003.jpg").write_text("no image")
    line: dict[str, Any] = {"size": 32, "max_rejects": 1}
    for part in ("1/2", "2/2", "2/2"):
        pack(images, tmp_path / "out", part=part, **line)
    seal_parts(tmp_path / "out", max_rejects=1)
    before = store_bytes(tmp_path / "out")
    for part in ("1/2", "2/2"):
        assert pack(images, tmp_path / "out", part=part, **line).resumed_from == 24
    assert run(images, tmp_path / "out", "--size", 32, "--part", "1/2").returncode == 3
    assert store_bytes(tmp_path / "out") == before
    others = r"but with other options \(fit='crop', now fit='pad'\)"
    with pytest.raises(PackError, match=rf"is finished, {others}\. Choose another OUT, or remove it\.$"):
        pack(images, tmp_path / "out", part="1/2", fit="pad", **line)
    _grown(images)
    with pytest.raises(PackError, match="other inputs"):
        pack(images, tmp_path / "out", part="1/2", **line)


# -- the replacement of a store


def test_a_damaged_store_is_replaced(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=16)
    before = store_bytes(tmp_path / "out")
    with open(tmp_path / "out/_tensordict/pixels.memmap", "ab") as file:
        file.write(b"x")
    assert pack(images, tmp_path / "out", size=16, overwrite=True).resumed_from == 0
    assert store_bytes(tmp_path / "out") == before


def test_rows_of_own_sizes_are_cut_as_a_fresh_pack_cuts_them_where_another_was_started(
    images: Path, tmp_path: Path
) -> None:
    make_tree(tmp_path / "more", classes=1, each=40, size=(300, 200))
    interrupted(pack, tmp_path / "more", tmp_path / "out", fit="none", workers=1, inputs=2)
    pack(images, tmp_path / "out", fit="none", overwrite=True)
    pack(images, tmp_path / "whole", fit="none")
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "whole")


def test_nothing_is_decoded_for_a_store_that_is_there(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(images, tmp_path / "out", size=32)

    def row(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Decoder, "row", row)
    monkeypatch.setattr(build.Build, "run", row)
    assert pack(images, tmp_path / "out", size=32).resumed_from == 24


def test_an_image_that_ended_its_worker_is_tried_by_a_worker_again(images: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        harm_at(images / "class0/005.jpg", lambda: os._exit(9), patch)
        pack(images, tmp_path / "out", size=32, max_rejects=1)
    assert update(images, tmp_path / "out").rows == 24


# -- options of labels that are forgotten


def _list_of_labels(images: Path, path: Path) -> Path:
    names = sorted(str(image.relative_to(images)) for image in images.rglob("*.jpg"))
    rows = [f"{name},l{n % 3},b{n % 2}" for n, name in enumerate(names)]
    rows[3] = f"{names[3]},,"
    path.write_text("\n".join(["path,label,breed", *rows, ""]))
    return path


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("classes", r"with classes, now without"),
        ("target_column", "target_column='breed', now target_column='label'"),
        ("root", "with root, now without"),
    ],
)
def test_a_forgotten_option_of_labels_is_named(
    images: Path, tmp_path: Path, option: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = _list_of_labels(images, images / "list.csv"), tmp_path / "out"
    (tmp_path / "classes.txt").write_text("b1\nl2\nb0\nl1\nl0\n")
    given = {"size": 32, "root": images, "classes": str(tmp_path / "classes.txt")}
    given |= {"target_column": "breed"}
    interrupted(pack, path, tmp_path / "begun", workers=1, inputs=4, **given)
    pack(path, out, **given)
    fewer = {name: value for name, value in given.items() if name != option}
    with pytest.raises(PackError, match=rf"out is finished, but with other options \({named}\)\."):
        pack(path, out, **fewer)
    with pytest.raises(PackError, match=rf"begun was started with other options \({named}\)\."):
        pack(path, tmp_path / "begun", **fewer)
    assert pack(path, out, **given).resumed_from == 24


def test_forgotten_boxes_and_masks_are_named_and_so_are_added_ones(images: Path, tmp_path: Path) -> None:
    for path in sorted(images.rglob("*.jpg")):
        path.with_suffix(".txt").write_text("0 .5 .5 .2 .2\n")
        mask = tmp_path / "masks" / path.relative_to(images).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            Image.new("L", image.size).save(mask)
    given: dict[str, Any] = {"boxes": images, "masks": tmp_path / "masks"}
    interrupted(pack, images, tmp_path / "begun", size=32, workers=1, inputs=4, **given)
    pack(images, tmp_path / "out", size=32, **given)
    label = images / "class1/003.txt"
    label.write_text("0 .5 .5 .4 .2\n")
    for name in ("begun", "out"):
        with pytest.raises(PackError, match=r"with other options \(boxes: other contents\)\."):
            pack(images, tmp_path / name, size=32, **given)
    label.write_text("0 .5 .5 .2 .2\n")
    for name in given:
        with pytest.raises(PackError, match=rf"with other options \(with {name}, now without\)"):
            pack(images, tmp_path / "out", size=32, **{other: given[other] for other in given if other != name})
    pack(images, tmp_path / "bare", size=32)
    with pytest.raises(PackError, match=r"with other options \(without boxes, now with it\)"):
        pack(images, tmp_path / "bare", size=32, boxes=images)
