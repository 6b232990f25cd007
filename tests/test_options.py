"""`packer.options` is the one place of options and their defaults: the functions and the command have the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from packer import PackOptions, pack
from packer.cli.commands.build import build
from packer.options import RowOptions
from packer.values import lasting_path
from reader.format.urls import is_url

DEFAULTS = {option.name: option.default for option in dataclasses.fields(PackOptions)}


def test_the_command_has_every_option() -> None:
    names = {param.name for param in build.params} - {"images", "out", "nul", "as_json", "quiet"}
    assert names == DEFAULTS.keys() - {"progress"}


def test_an_unknown_option_and_one_that_is_given_by_position_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'siez'\\. Did you mean size\\?"):
        pack(tmp_path, tmp_path / "out", siez=8)
    with pytest.raises(TypeError, match="takes images and out by position, and options by name; 3 were given"):
        pack(tmp_path, tmp_path / "out", 8)
    with pytest.raises(TypeError, match="missing a required argument: 'out'"):
        pack(tmp_path, size=8)


def test_options_may_be_given_in_several_forms() -> None:
    given = PackOptions(size="8x9", max_rejects=3, root=Path("a"), progress=print)
    assert given == PackOptions(size=(8, 9), max_rejects="3", root="a")
    assert RowOptions.among(given) == RowOptions(size=(8, 9))
    assert RowOptions.among({"size": [8, 9], "shuffle": 3}) == RowOptions(size=(8, 9))


@pytest.mark.parametrize(
    ("path", "expected"), [("s3://b/a", True), ("FILE:///a", True), ("a/b://c", False), ("", False)]
)
def test_a_url_begins_with_its_scheme(path: str, expected: bool) -> None:
    assert is_url(path) is expected
    assert (lasting_path(path) == path) is expected
