"""Errors name options as the caller writes them: the sentences of the code, in Python's words."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_tree

import pixpack
from packer import PackError, pack
from packer.caller import in_python
from packer.cli.app import run
from packer.options import PackOptions


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "Replace it with --overwrite, or choose another OUT.",
            "Replace it with overwrite=True, or choose another OUT.",
        ),
        ("a.jpg is broken (--on-error fail).", "a.jpg is broken (on_error='fail')."),
        ("more than --max-rejects 1%: see", "more than max_rejects='1%': see"),
        ("more than --max-rejects 5.", "more than max_rejects=5."),
        ("--crop-fraction is 2.0, expected 0.05 to 1.", "crop_fraction is 2.0, expected 0.05 to 1."),
        ("--levels 2 of rows of 8", "levels=2 of rows of 8"),
        ("with --masks DIR.", "with masks DIR."),
        ("It was begun with --compress jpeg:95.", "It was begun with compress='jpeg:95'."),
        (
            "Continue with: pack a b --part 1/2 --strict (or look).",
            "Continue with: pack('a', 'b', part='1/2', strict=True) (or look).",
        ),
        ("Resume with: pack 'my a' b 'c.d' --resume", "Resume with: pack(['my a', 'b'], 'c.d', resume=True)"),
        ("Run: pack update a b --root c.", "Run: pack update a b --root c."),
        ("the file a--overwrite.jpg", "the file a--overwrite.jpg"),
    ],
)
def test_a_sentence_is_said_in_python(said: str, expected: str) -> None:
    assert in_python(said) == expected
    assert in_python(expected) == expected


def test_a_call_that_a_sentence_shows_makes_the_store_that_the_command_makes(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", each=2)
    options = PackOptions(size=(8, 16), fit="pad", compress=True, exact=True, shuffle=3)
    words = " ".join(["pack", str(images), str(tmp_path / "out"), *options.words()])
    call = in_python(f"Run: {words}").removeprefix("Run: ")
    report = eval(call, {"pack": pack})
    assert (report.rows, report.size) == (6, (8, 16))
    assert run([*words.split()[1:], "--resume", "--json"]) == 0


def test_the_command_and_python_name_the_same_option_each_in_its_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = make_tree(tmp_path / "images", each=2), tmp_path / "out"
    pixpack.packed(images, out, size=8)
    with pytest.raises(PackError, match=r"or replace it with overwrite=True\."):
        pixpack.packed(images, out, size=16)
    assert run([str(images), str(out), "--size", "16", "--resume"]) == 1
    assert "or replace it with --overwrite." in capsys.readouterr().err
