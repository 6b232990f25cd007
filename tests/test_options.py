"""`packer.options` is the one place of options: the functions and the command have the same, and sentences name them as given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_tree

import pixpack
from packer import OptionsError, PackError, PackOptions, merge, pack, push, update
from packer.cli.app import run
from packer.cli.commands.build import build
from packer.option_names import COMMAND, OVERWRITE, Option, named_for
from packer.options import RowOptions
from packer.values import lasting_path
from reader.format.urls import is_url

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"size": 0}, "size is 0, expected 1 to 16384 pixels a side."),
    ({"size": "big"}, "size is 'big', expected pixels such as 224, or height x width such as 192x256."),
    ({"size": (8, 9, 10)}, "size is (8, 9, 10), expected pixels such as 224, or height x width such as 192x256."),
    ({"fit": "stretch"}, "fit is 'stretch', expected crop, pad, squash, inside or none."),
    ({"fit": 3}, "fit is 3, expected crop, pad, squash, inside or none."),
    (
        {"size": 8, "fit": "none"},
        "size gives all rows one size, fit='none' leaves each its own. For a limit give max_size.",
    ),
    (
        {"max_size": 9},
        "max_size belongs to fit='none', not to fit='crop': add fit='none', or give size instead.",
    ),
    ({"max_size": "short:0", "fit": "none"}, "max_size is short:0, expected 1 to 16384 pixels."),
    ({"crop_fraction": 1.5}, "crop_fraction is 1.5, expected 0.05 to 1."),
    ({"crop_fraction": 0.9, "fit": "pad"}, "crop_fraction belongs to fit='crop', not to fit='pad'."),
    ({"exact": 1}, "exact is 1, expected True or False."),
    ({"requantize": 1}, "requantize is 1, expected 2 (best) to 31 (smallest), as ffmpeg's -q:v."),
    ({"compress": 101}, "compress is 101, expected the quality of JPEGs, 1 to 100, such as 90."),
    ({"compress": True}, "compress is True, expected the quality of JPEGs, 1 to 100, such as 90."),
    ({"compress": 9, "channels": "rgba"}, "compress=9 takes channels rgb or gray, as a JPEG has no alpha."),
    (
        {"compress": 9, "masks": "m"},
        "compress=9 does not go with masks, which a JPEG would change. Leave one of them out.",
    ),
    ({"bit_depth": 7}, "bit_depth is 7, expected 8 to 16 bits."),
    ({"bit_depth": 12.5}, "bit_depth is 12.5, expected 8 to 16 bits."),
    ({"boxes": 3}, "boxes is 3, expected a path."),
    ({"path_column": 3}, "path_column is 3, expected text."),
    ({"mask_values": "0,1"}, "mask_values belongs to masks."),
    ({"shuffle": True}, "shuffle is True, expected an integer of 0 or more."),
    ({"workers": 0}, "workers is 0, expected 1 to 4096."),
    ({"max_rejects": "many"}, "max_rejects is 'many', expected a count such as 10 or a share such as 1%."),
    ({"max_rejects": "101%"}, "max_rejects is '101%', expected a count such as 10 or a share such as 1%."),
    ({"progress": 3}, "progress is 3, expected a function."),
    ({"part": "3/2"}, "part is '3/2', expected i/n such as 2/8: the second of eight equal parts."),
    ({"engine": "ray", "overwrite": True}, "engine='ray' replaces no store: remove OUT, or choose another one."),
    ({"engine": "ray", "part": "1/2"}, "engine='ray' packs all parts: leave out part."),
    (
        {"part": "1/2"},
        "part needs size or fit='none': one size for all would be found in all headers alone.",
    ),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_a_wrong_value_is_refused_by_one_sentence_before_any_work(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(OptionsError) as error:
        pack(tmp_path / "images", tmp_path / "out", **options)
    assert str(error.value) == sentence


def test_options_may_be_given_in_several_forms() -> None:
    given = PackOptions(size="8x9", max_rejects=3, root=Path("a"), shuffle=np.uint8(3), crop_fraction=np.float32(0.5))
    assert given == PackOptions(size=(8, 9), max_rejects="3", root="a", shuffle="3", crop_fraction="0.5")
    assert given.shaping() | {"size": [8, 9], "shuffle": 3, "crop_fraction": 0.5} == given.shaping()
    assert RowOptions.pick_from(given) == RowOptions(size=(8, 9), crop_fraction=0.5)
    assert RowOptions.pick_from({"size": [8, 9], "shuffle": 3}) == RowOptions(size=(8, 9))
    shares = {"7": (10, 7), "1%": (250, 2), "0.5%": (1000, 5)}
    assert {limit: PackOptions(max_rejects=limit).allowed_rejects(of) for limit, (of, _) in shares.items()} == {
        limit: allowed for limit, (_, allowed) in shares.items()
    }


def test_the_command_has_every_option() -> None:
    names = {param.name for param in build.params} - {"images", "out", "nul", "as_json", "quiet"}
    assert names == {each.name for each in dataclasses.fields(PackOptions)} - {"progress"}


@pytest.mark.parametrize(
    "given",
    [
        {"size": (8, 16), "fit": "pad", "compress": 90, "exact": True, "shuffle": 3},
        {"max_size": "short:9", "fit": "none", "masks": "m", "mask_values": (0, 255), "label_separator": ";"},
    ],
)
def test_the_words_of_options_are_those_options(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    called = dict[str, Any]()
    monkeypatch.setattr("packer.packing.pack.pack", lambda images, out, **options: called.update(options) or 1 / 0)
    words = PackOptions(**given).words()
    with pytest.raises(ZeroDivisionError):
        run(["images", "out", *words])
    assert PackOptions(**called | {"progress": None}).words() == words


def test_arguments_that_fit_no_signature_are_one_sentence(tmp_path: Path) -> None:
    untyped: Any = pack
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: untyped("a", "b", sise=8), "pack() got an unexpected keyword argument 'sise'"),
        (lambda: untyped("a", size=8), "pack() missing a required argument: 'out'"),
        (
            lambda: pixpack.packed("a", "b", 8),  # type: ignore[call-arg, arg-type]
            "packed() too many positional arguments",
        ),
    ]
    for call, sentence in calls:
        with pytest.raises(TypeError) as error:
            call()
        assert str(error.value) == sentence
    for images in (3, None, [3], b"images"):
        with pytest.raises(OptionsError, match=r"images is .*, expected a path, or a list of them\."):
            untyped(images, tmp_path / "out", size=8)


@pytest.mark.parametrize(
    ("option", "python", "command"),
    [
        (OVERWRITE, "overwrite=True", "--overwrite"),
        (Option("fit", "pad"), "fit='pad'", "--fit pad"),
        (Option("max_rejects", 5), "max_rejects=5", "--max-rejects 5"),
        (Option("crop_fraction"), "crop_fraction", "--crop-fraction"),
        (Option("root", Path("my photos --size")), "root='my photos --size'", "--root 'my photos --size'"),
    ],
)
def test_an_option_is_named_for_its_caller(option: Option, python: str, command: str) -> None:
    assert str(option) == python
    with named_for(COMMAND):
        assert str(option) == command
    assert str(option) == python


def test_functions_name_arguments_and_the_command_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = make_tree(tmp_path / "images", each=2), tmp_path / "out --size 8"
    pack(images, out, size=8)
    other = tmp_path / "other"
    pack(images, other, size=8, shuffle=1)
    url = (tmp_path / "bucket").as_uri()
    push(out, url)
    for call, said in (
        (lambda: pack(images, out, size=16), "Choose another OUT, or replace it with overwrite=True."),
        (lambda: pack(images, out, size=8, classes=tmp_path / "none"), f"classes='{tmp_path}/none' cannot be read"),
        (lambda: pack(images, out, size=8, root="a"), "root does not belong to"),
        (lambda: update(images, out, max_rejects="x"), "max_rejects is 'x', expected a count"),
        (lambda: merge([out, other], out), "overwrite=True"),
        (lambda: push(other, url), "Replace it with overwrite=True, or choose another URL."),
    ):
        with pytest.raises((PackError, OptionsError, ValueError)) as error:
            call()
        assert said in str(error.value)
        assert " --" not in str(error.value).replace(str(out), "")
    assert run([str(images), str(out), "--size", "16"]) == 1
    assert "or replace it with --overwrite." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "expected"), [("s3://b/a", True), ("FILE:///a", True), ("a/b://c", False), ("", False)]
)
def test_a_url_begins_with_its_scheme(path: str, expected: bool) -> None:
    assert is_url(path) is expected
    assert (lasting_path(path) == path) is expected
