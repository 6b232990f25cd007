"""Levels: what a pack at half the size makes, by every command that knows stores, and nothing where there are none."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import check_golden_bytes, interrupted, make_tree, photo, store_bytes
from test_store import write_head

from packer import OptionsError, PackError, merge, pack, pull, push, subset, verify
from packer.cli.app import run
from packer.packing import levels
from packer.values import LevelLimit
from reader import MemmapDataset, MemmapLoader, ResizeCenterCrop, StoreError, concat
from reader.format.check import check_store
from reader.format.tensors import is_of_level, level_files

GOLDEN = Path(__file__).parents[1] / "golden" / "levels"
KINDS: list[dict[str, Any]] = [
    {"size": 32, "crop_fraction": 0.8},
    {"size": (32, 48), "fit": "pad", "compress": True},
    {"fit": "none", "max_size": "short:32", "compress": True},
    {"size": 32, "compress": "jpeg:90"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make 6 images of two classes, and one that is none."""
    images = make_tree(tmp_path_factory.mktemp("levels") / "images", classes=2, each=3)
    (images / "class0" / "bad.jpg").write_bytes(b"nothing")
    return images


@pytest.fixture(scope="module", params=KINDS, ids=["equal", "padded", "own-sizes", "jpeg"])
def packed(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "compress" in request.param:
        pytest.importorskip("zstandard")
    out = tmp_path_factory.mktemp("packed") / "out"
    pack(folder, out, levels=3, max_rejects=1, workers=1, **request.param)
    return out


@pytest.mark.parametrize("kind", KINDS, ids=["equal", "padded", "own-sizes", "jpeg"])
def test_a_level_is_what_a_pack_at_its_size_makes(folder: Path, tmp_path: Path, kind: dict[str, Any]) -> None:
    if "compress" in kind:
        pytest.importorskip("zstandard")
    options = {"max_rejects": 1, "workers": 1}
    pack(folder, tmp_path / "out", levels=2, **kind, **options)
    height, width = (kind.get("size"),) * 2 if isinstance(kind.get("size"), int) else kind.get("size", (0, 0))
    half = {"size": (height // 2, width // 2)} if height else {"max_size": LevelLimit(f"{kind['max_size']}/2")}
    pack(folder, tmp_path / "half", **kind | half, **options)
    assert store_bytes(tmp_path / "out" / "levels" / "2") == store_bytes(tmp_path / "half")
    # and beside it the store is what it is without levels
    pack(folder, tmp_path / "plain", **kind, **options)
    both = [store_bytes(tmp_path / name) for name in ("out", "plain")]
    own = {name: data for name, data in both[0].items() if not name.startswith("levels/")}
    assert own.keys() == both[1].keys()
    assert [name for name in own if own[name] != both[1][name]] == ["manifest.json"]
    assert check_store(tmp_path / "plain").levels == ()


def test_rows_with_sizes_of_their_own_have_half_of_each_side(packed: Path) -> None:
    full, *smaller = (
        MemmapDataset(path, as_tuple=False) for path in (packed, packed / "levels/2", packed / "levels/4")
    )
    for factor, level in zip((2, 4), smaller, strict=True):
        shapes = [[level[n].pixels.shape[:2] for n in range(6)], [full[n].pixels.shape[:2] for n in range(6)]]
        assert shapes[0] == [(h // factor, w // factor) for h, w in shapes[1]]
        assert level.targets == full.targets


def test_an_interrupted_pack_resumes_to_the_same_bytes(
    folder: Path, tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"size": 32, "levels": 3, "max_rejects": 1, "workers": 1}
    pack(folder, tmp_path / "one", **options)
    interrupted(pack, folder, tmp_path / "cut", inputs=2, **options)
    pack(folder, tmp_path / "cut", resume=True, **options)
    # and where only the first level is there
    with monkeypatch.context() as patch:
        make = levels.Levels._make
        patch.setattr(levels, "FACTORS", (2, 4))

        def stopped(self: Any, factor: int, rejected: Any) -> None:
            if factor == 4:
                raise PackError("stopped")
            make(self, factor, rejected)

        patch.setattr(levels.Levels, "_make", stopped)
        with pytest.raises(PackError, match="stopped"):
            pack(folder, tmp_path / "late", **options)
    with pytest.raises(StoreError, match="unfinished|has not finished|resume"):
        check_store(tmp_path / "late")
    pack(folder, tmp_path / "late", resume=True, **options)
    assert store_bytes(tmp_path / "one") == store_bytes(tmp_path / "cut") == store_bytes(tmp_path / "late")
    assert pack(folder, tmp_path / "one", resume=True, **options).resumed_from == 7
    with pytest.raises(PackError, match="with other options"):
        pack(folder, tmp_path / "one", resume=True, **options | {"levels": 2})


def test_an_image_that_was_replaced_between_the_store_and_its_level_is_packed_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = shutil.copytree(folder, tmp_path / "images")
    first = sorted((images / "class0").glob("*.jpg"))[0]
    original, other = first.read_bytes(), sorted((images / "class1").glob("*.jpg"))[0].read_bytes()
    make, contents = levels.Levels._make, [other, original]

    def changed(self: Any, *arguments: Any) -> None:
        first.write_bytes(contents.pop(0))
        make(self, *arguments)

    options: dict[str, Any] = {"size": 32, "levels": 2, "max_rejects": 1, "workers": 1}
    monkeypatch.setattr(levels.Levels, "_make", changed)
    pack(images, tmp_path / "out", **options)
    assert verify(tmp_path / "out").problems == []
    contents += [other, other]
    with pytest.raises(
        PackError, match="row 0, .* is another image in levels/2 than in the store. Do not change images"
    ):
        pack(images, tmp_path / "again", **options)


def test_copies_have_the_levels_of_their_rows(packed: Path, tmp_path: Path) -> None:
    subset(packed, tmp_path / "some", rows=[4, 1])
    merge([packed, tmp_path / "some"], tmp_path / "both")
    for factor in (1, 2, 4):
        level = "." if factor == 1 else f"levels/{factor}"
        of_store, some, both = (
            MemmapDataset(path / level, as_tuple=False) for path in (packed, tmp_path / "some", tmp_path / "both")
        )
        for n, row in enumerate([*range(6), 4, 1]):
            assert np.array_equal(both[n].pixels, of_store[row].pixels)
        assert np.array_equal(some[0].pixels, of_store[4].pixels)
    push(tmp_path / "both", f"file://{tmp_path}/far")
    pull(f"file://{tmp_path}/far", tmp_path / "near")
    assert store_bytes(tmp_path / "near") == store_bytes(tmp_path / "both")
    push(tmp_path / "some", f"file://{tmp_path}/far", overwrite=True)
    push(packed, f"file://{tmp_path}/far", overwrite=True)
    pull(f"file://{tmp_path}/far", tmp_path / "last")
    assert store_bytes(tmp_path / "last") == store_bytes(packed)
    # what was replaced is gone
    assert len({path.parts[-2] for path in (tmp_path / "far").rglob("levels")}) == 1
    for name in ("some", "both", "near"):
        assert verify(tmp_path / name).problems == []


def test_joined_stores_are_read_without_their_levels(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "one", size=32, levels=2, max_rejects=1, workers=1)
    pack(folder, tmp_path / "two", size=32, max_rejects=1, workers=1)
    joined = concat([MemmapDataset(tmp_path / "one"), MemmapDataset(tmp_path / "two")])
    assert (joined.manifest.levels, len(joined)) == ((), 12)
    assert np.array_equal(joined[0][0], joined[6][0])


def test_a_folder_of_this_name_that_is_none_of_a_store_is_not_removed(folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"size": 32, "max_rejects": 1, "workers": 1}
    pack(folder, tmp_path / "out", **options)
    (tmp_path / "out" / "levels").mkdir()
    (tmp_path / "out" / "levels" / "mine.txt").write_text("mine")
    with pytest.raises(PackError, match="also holds levels/mine.txt, which would be deleted"):
        pack(folder, tmp_path / "out", overwrite=True, **options)


def with_level(out: Path, level: Path) -> Path:
    """Put another store in place of a store's half, and list its files as that of it."""
    shutil.rmtree(out / "levels/2")
    shutil.copytree(level, out / "levels/2")
    head = json.loads((out / "manifest.json").read_bytes())
    for name, entry in head["files"].items():
        if is_of_level(name) and (out / name).exists():
            content = (out / name).read_bytes()
            entry |= {"size_bytes": len(content), "digest": f"sha256:{hashlib.sha256(content).hexdigest()}"}
    write_head(out, head)
    return out


def test_a_level_that_has_levels_is_refused_before_these_are_looked_at(tmp_path: Path) -> None:
    out = with_level(shutil.copytree(GOLDEN, tmp_path / "out"), GOLDEN)
    (out / "levels/2/levels/2/manifest.json").write_bytes(b"none")
    with pytest.raises(StoreError, match="levels/2 is not a level of .*: it has levels"):
        check_store(out)


def test_a_level_of_rows_of_another_size_is_refused(folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_rejects": 1, "workers": 1}
    pack(folder, tmp_path / "out", size=32, levels=2, **options)
    pack(folder, tmp_path / "flat", size=(8, 32), **options)
    with pytest.raises(StoreError, match="levels/2 has rows of 8 x 32, expected 16 x 16: it is not a level of"):
        check_store(with_level(tmp_path / "out", tmp_path / "flat"))


def test_a_row_of_a_level_that_has_another_size_is_named(tmp_path: Path) -> None:
    for name, size in (("one", (64, 48)), ("other", (64, 50))):
        make_tree(tmp_path / name, classes=1, each=3, size=size)
        pack(tmp_path / name, tmp_path / f"{name}-out", fit="none", levels=2, workers=1)
    data = MemmapDataset(with_level(tmp_path / "one-out", tmp_path / "other-out/levels/2"))
    for residency in ("cache", "ram", "disk"):
        loader = MemmapLoader(data, 3, transform=ResizeCenterCrop(8), size=8, residency=residency)
        with pytest.raises(StoreError, match=r"levels/2: row 0 has 32 x 25 pixels, expected 32 x 24"):
            list(loader)


def test_a_level_of_another_store_is_refused_or_named(tmp_path: Path) -> None:
    out = shutil.copytree(GOLDEN, tmp_path / "out")
    head = json.loads((out / "levels/2/manifest.json").read_bytes())
    write_head(out / "levels/2", head | {"mean": [0.75]})
    with pytest.raises(StoreError, match="levels/2/manifest.json is .* bytes, the manifest says"):
        check_store(out)
    shutil.rmtree(out / "levels/2")
    with pytest.raises(StoreError, match="levels/2.* is missing"):
        check_store(out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 4}, "levels is 4, expected 1 to 3"),
        ({"levels": 2, "size": 14}, "would have rows of 7 pixels a side, expected 8 or more"),
        ({"levels": 3, "size": 34}, "needs rows whose sides 4 divides, not 34"),
    ],
)
def test_levels_that_cannot_be_are_refused(folder: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        pack(folder, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_size_that_images_give_is_checked_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for n in range(2):
        photo(33, 33, n).save(tmp_path / "images" / f"{n}.png")
    with pytest.raises(OptionsError, match="needs rows whose sides 2 divides, not 33"):
        pack(tmp_path / "images", tmp_path / "out", levels=2)


def test_info_names_the_levels(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(packed), "--brief"]) == 0
    assert "\nlevels      " in capsys.readouterr().out


def test_the_golden_store_of_levels_loads_forever() -> None:
    check_golden_bytes(GOLDEN)
    check_golden_bytes(GOLDEN / "levels" / "2")
    assert check_store(GOLDEN).levels == (2,)
    assert verify(GOLDEN).problems == []
    assert MemmapDataset(GOLDEN / "levels" / "2")[2][0][0, 3, 1] == 50 * 2 + 4 * 3 + 1 + 5


@pytest.mark.parametrize("wrong", [[4], [2, 2], [2, 4, 4], [4, 2]])
def test_levels_that_are_none_are_refused(wrong: list[int]) -> None:
    with pytest.raises(StoreError, match=r"expected \[2\] or \[2, 4\]"):
        level_files(wrong, ["pixels"], ["levels"])
    with pytest.raises(StoreError, match="where it names levels"):
        level_files([2], ["pixels"], [])
