"""What values masks have: noted, recorded, shown, and brought to classes by `pack`; and masks by the ends of their names."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import photo, store_bytes
from PIL import Image

from packer import OptionsError, PackError, merge, pack, subset, update, verify
from packer.cli.app import run
from reader import MemmapDataset
from reader.format.manifest import read_manifest

Values = npt.NDArray[np.uint8]
FITS: dict[str, dict[str, Any]] = {
    "crop": {"size": 24},
    "own-sizes": {"fit": "none"},
}
WARNED = "the masks have no class but 0, as losses ignore 255"


def save(path: Path, values: Values) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def striped(*values: int) -> Values:
    """Return a mask of 40 x 30 with these values, each in columns of its own."""
    return np.repeat(np.array(values, np.uint8), -(-40 // len(values)))[None, :40].repeat(30, axis=0)


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of six images, images/, each with a mask of 0 and 255 in masks/."""
    root = tmp_path_factory.mktemp("binary")
    for n in range(6):
        (root / "images").mkdir(exist_ok=True)
        photo(40, 30, n).save(root / "images" / f"{n}.jpg")
        save(root / "masks" / f"{n}.png", striped(0, 255))
    return root


def masks_of(out: Path) -> list[Values]:
    data = MemmapDataset(out)
    return [np.asarray(data[row][1]["masks"]) for row in range(len(data))]


def head_values(out: Path) -> Sequence[int]:
    return read_manifest(out).mask_values


@pytest.mark.parametrize("form", FITS)
def test_values_are_noted_and_binary_masks_warn_until_their_values_are_classes(
    form: str, binary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"masks": binary / "masks", "workers": 1, **FITS[form]}
    (note,) = pack(binary / "images", tmp_path / "silent", **options).notes
    assert WARNED in note
    assert "mask_values='0,255'" in note
    assert pack(binary / "images", tmp_path / "out", mask_values="0,255", **options).notes == []
    assert (*head_values(tmp_path / "silent"), *head_values(tmp_path / "out")) == (0, 255, 0, 1)
    for before, now in zip(masks_of(tmp_path / "silent"), masks_of(tmp_path / "out"), strict=True):
        assert np.array_equal(now, before // 255)
        assert now.any()
    assert run(["info", str(tmp_path / "out")]) == 0
    assert "masks       values 0, 1\n" in capsys.readouterr().out
    assert verify(tmp_path / "out").problems == []


def test_255_stays_unless_it_is_listed_and_another_value_rejects_its_image(binary: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    shutil.copytree(binary / "masks", masks)
    save(masks / "0.png", striped(128, 0, 255))
    save(masks / "1.png", striped(128))
    # what the crop cuts off is of the mask, too
    save(masks / "2.png", striped(0, 0, 0, 0, 0, 0, 0, 0, 0, 7))
    Image.fromarray(striped(0, 1).astype(bool)).save(masks / "3.png")
    report = pack(
        binary / "images", tmp_path / "out", size=24, masks=masks, mask_values=(128, 0), max_rejects=2, workers=1
    )
    assert sorted(report.reasons) == [
        "its mask 2.png: it has the value 7; expected those of --mask-values, 0, 128",
        "its mask 3.png: it has the value 1; expected those of --mask-values, 0, 128",
    ]
    assert head_values(tmp_path / "out") == (0, 1, 255)
    first, second, *others = masks_of(tmp_path / "out")
    assert np.unique(first).tolist() == [0, 1, 255]
    assert first[0, 0] == 0
    assert not second.any()
    assert all(np.unique(other).tolist() == [1, 255] for other in others)
    for n, values in enumerate([(0, 1, 2), (3, 4), (7,), (7, 9), (255,), (20,)]):
        save(masks / f"{n}.png", striped(*values))
    pack(binary / "images", tmp_path / "many", size=24, fit="pad", masks=masks, workers=1)
    assert head_values(tmp_path / "many") == (0, 1, 2, 3, 4, 7, 9, 20, 255)


@pytest.mark.parametrize("form", ["crop", "own-sizes"])
def test_copies_and_updates_carry_the_values(form: str, binary: Path, tmp_path: Path) -> None:
    images, masks = tmp_path / "images", tmp_path / "masks"
    shutil.copytree(binary / "images", images)
    shutil.copytree(binary / "masks", masks)
    options = {"masks": masks, **FITS[form]}
    pack(images, tmp_path / "raw", workers=1, **options)
    pack(images, tmp_path / "out", workers=1, mask_values="0,255", **options)
    # what is not known of one store is not known of both
    subset(tmp_path / "out", tmp_path / "few", rows=[1, 2])
    merge([tmp_path / "out", tmp_path / "few"], tmp_path / "both")
    assert head_values(tmp_path / "few") == head_values(tmp_path / "both") == (0, 1)
    assert read_manifest(tmp_path / "few").options["mask_values"] == [0, 255]
    with pytest.raises(PackError, match=r"with other options \(with mask_values=\'0,255\' and without\)"):
        merge([tmp_path / "out", tmp_path / "raw"], tmp_path / "never")
    save(masks / "3.png", striped(255))
    photo(40, 30, 9).save(images / "7.jpg")
    save(masks / "7.png", striped(255, 0))
    # the values are the store's: they are not given again
    assert update(images, tmp_path / "out", masks=masks, workers=1).rows == 7
    pack(images, tmp_path / "fresh", workers=1, mask_values="0,255", **options)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "fresh")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no values": (
        {"mask_values": ""},
        "mask_values is '', expected the values of classes 0, 1, ... in masks, such as 0,255",
    ),
    "twice": ({"mask_values": "0,0"}, "each once, from 0 to 255"),
    "too large": ({"mask_values": [0, 256]}, "from 0 to 255"),
    "all of them": ({"mask_values": range(256)}, "up to 255 of them"),
    "words": ({"mask_values": "0,person"}, "mask_values is '0,person'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_values_that_are_none_are_refused(what: str, tmp_path: Path) -> None:
    given, sentence = REFUSED[what]
    with pytest.raises(OptionsError) as caught:
        pack(tmp_path, tmp_path / "out", **{"size": 8, "masks": tmp_path, **given})
    assert sentence in str(caught.value)
