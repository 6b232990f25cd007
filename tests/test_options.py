"""`packer.options` is the one place of options and their defaults: the functions and the command have the same."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from packer import PackOptions, pack, pack_dataset, update
from packer.cli.build import build
from packer.options import is_url, lasting_path

DEFAULTS = {option.name: option.default for option in dataclasses.fields(PackOptions)}


@pytest.mark.parametrize(
    ("function", "others"),
    [(pack, {"images"}), (update, {"images", "max_gone"}), (pack_dataset, {"dataset"})],
)
def test_arguments_are_options_with_the_same_defaults(function: Any, others: set[str]) -> None:
    others |= {"out", "progress"}
    given = {name: p.default for name, p in inspect.signature(function).parameters.items() if name not in others}
    # an update takes this from the store
    of_store = {"max_pixels": None} if function is update else {}
    assert given == {name: DEFAULTS[name] for name in given} | of_store
    assert function is not pack or DEFAULTS.keys() - given.keys() == {"update"}


def test_the_command_has_every_option() -> None:
    names = {param.name for param in build.params} - {"images", "out", "nul", "profile", "as_json", "quiet"}
    assert names == DEFAULTS.keys() - {"update"}


def test_options_are_taken_of_the_arguments_of_a_function() -> None:
    given = {"out": "out", "size": "8x9", "missing": "?", "max_rejects": 3, "progress": None}
    assert PackOptions.of(given, resume=True) == PackOptions((8, 9), missing=("?",), max_rejects="3", resume=True)


@pytest.mark.parametrize(
    ("path", "expected"), [("s3://b/a", True), ("FILE:///a", True), ("a/b://c", False), ("", False)]
)
def test_a_url_begins_with_its_scheme(path: str, expected: bool) -> None:
    assert is_url(path) is expected
    assert (lasting_path(path) == path) is expected
