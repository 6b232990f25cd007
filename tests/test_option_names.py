"""Errors name options as the caller writes them: `--overwrite` by the command, `overwrite=True` in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import make_tree

import pixpack
from packer import OptionsError, PackError, merge, pack, push, update
from packer.cli.app import run
from packer.option_names import COMMAND, OVERWRITE, Option, named_for, pack_call
from packer.options import PackOptions


@pytest.mark.parametrize(
    ("option", "python", "command"),
    [
        (OVERWRITE, "overwrite=True", "--overwrite"),
        (Option("fit", "pad"), "fit='pad'", "--fit pad"),
        (Option("max_rejects", "1%"), "max_rejects='1%'", "--max-rejects 1%"),
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


def test_a_call_that_a_sentence_shows_makes_the_store_that_the_command_makes(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", each=2)
    options = PackOptions(size=(8, 16), fit="pad", compress=90, exact=True, shuffle=3)
    words = [str(images), str(tmp_path / "out"), *options.words()]
    report = eval(pack_call(words), {"pack": pack})
    assert (report.rows, report.size) == (6, (8, 16))
    assert run([*words, "--json"]) == 0


@pytest.mark.parametrize(
    "options",
    [
        PackOptions(label_separator=";", exact=True),
        PackOptions(target_column="3", label_separator="4", shuffle=3),
        PackOptions(max_size=512, fit="none", crop_fraction=1.0, boxes="12"),
        PackOptions(masks="m", mask_values=(0, 255)),
    ],
)
def test_a_call_that_a_sentence_shows_has_the_same_options(options: PackOptions) -> None:
    def given(images: str, out: str, **keywords: Any) -> PackOptions:
        return PackOptions(**keywords)

    shown = eval(pack_call(["images", "out", *options.words()]), {"pack": given})
    assert shown.words() == options.words()


def test_no_code_is_made_of_words_that_are_no_options() -> None:
    for word in ("--size=1)", "--exec('rm')", "--a b"):
        assert pack_call(["images", "out", "--size", "8", word]).startswith("pack images out --size 8 ")


def test_the_command_and_python_name_the_same_option_each_in_its_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = make_tree(tmp_path / "images", each=2), tmp_path / "out"
    pixpack.packed(images, out, size=8)
    with pytest.raises(PackError, match=r"or replace it with overwrite=True\."):
        pixpack.packed(images, out, size=16)
    assert run([str(images), str(out), "--size", "16"]) == 1
    assert "or replace it with --overwrite." in capsys.readouterr().err


def test_every_function_names_arguments(tmp_path: Path) -> None:
    images, out = make_tree(tmp_path / "images", each=2), tmp_path / "out"
    pack(images, out, size=8)
    other = tmp_path / "other"
    pack(images, other, size=8, shuffle=1)
    url = (tmp_path / "bucket").as_uri()
    push(out, url)
    for call, said in (
        (lambda: pack(images, out, size=16), "Choose another OUT, or replace it with overwrite=True."),
        (
            lambda: pack(images, out, size=8, fit="none"),
            "size gives all rows one size, fit='none' leaves each its own.",
        ),
        (lambda: pack(images, out, crop_fraction=2.0), "crop_fraction is 2.0, expected 0.05 to 1."),
        (lambda: pack(images, out, size=8, classes=tmp_path / "none"), f"classes='{tmp_path}/none' cannot be read"),
        (lambda: pack(images, out, size=8, root="a"), "root does not belong to"),
        (lambda: update(images, out, max_rejects="x"), "max_rejects is 'x', expected a count"),
        (lambda: merge([out, other], out), "overwrite=True"),
        (lambda: push(other, url), "Replace it with overwrite=True, or choose another URL."),
    ):
        with pytest.raises((PackError, OptionsError, ValueError)) as error:
            call()
        assert said in str(error.value)
        assert " --" not in str(error.value)


def test_a_path_with_the_name_of_an_option_is_repeated_as_it_is(tmp_path: Path) -> None:
    images, out = make_tree(tmp_path / "a --overwrite b", each=2), tmp_path / "out --size 8"
    pack(images, out, size=8)
    with pytest.raises(PackError, match="out --size 8 is finished, but .* or replace it with overwrite=True"):
        pack(images, out, size=16)


def test_wrong_arguments_are_one_sentence_that_names_the_function(tmp_path: Path) -> None:
    untyped: Any = pack
    for images in (3, None, [3], b"images"):
        with pytest.raises(OptionsError, match=r"images is .*, expected a path, or a list of them\."):
            untyped(images, tmp_path / "out", size=8)
    with pytest.raises(TypeError, match=r"^pack\(\) got an unexpected keyword argument 'sise'\. Did you mean size\?$"):
        untyped(tmp_path, tmp_path / "out", sise=8)
    untyped = pixpack.packed
    with pytest.raises(
        TypeError,
        match=r"^packed\(\) takes images and out by position, and options by name; 3 were given by position\.$",
    ):
        untyped(tmp_path, tmp_path / "out", 8)
