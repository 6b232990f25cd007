"""Each transform makes of each kind of rows what it made when its digests were taken.

A digest that changes says that everybody's augmentation changes. Where that is meant, `tests/support/take_digests.py` takes them
again, and the commit says why. What is refused is recorded as the sentence of the refusal.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import golden_transforms
import pytest
from conftest import torchvision_or_skip
from digests import changed, recorded

import reader
from reader import compiled


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of each kind of rows."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("the digests were taken on x86-64: other processors may round a sum of floats otherwise")
    root = tmp_path_factory.mktemp("digests")
    golden_transforms.make_stores(root)
    return root


@pytest.fixture(scope="module")
def found(stores: Path) -> dict[str, Any]:
    """The digests as they are today, by the compiled part, with which torch agrees within a level."""
    if not compiled.is_built():
        pytest.skip("the compiled part is not built here")
    tables = golden_transforms.run(stores)
    if tables["cpu"] != "AVX2":
        pytest.skip(f"the digests were taken with AVX2, and torch has {tables['cpu']} here")
    return tables


def test_transforms_make_what_they_made_on_any_number_of_threads(found: dict[str, Any]) -> None:
    assert changed(found["transforms"], recorded("transforms")) == {}


def test_transforms_of_torchvision_are_converted_to_what_they_were(found: dict[str, Any]) -> None:
    torchvision_or_skip()
    assert changed(found["converted"], recorded("converted")) == {}


def test_each_public_transform_has_digests() -> None:
    names = {name.partition(" ")[0] for name in (*recorded("transforms"), *recorded("converted"))}
    assert {*reader.__all__} - names - golden_transforms.OTHERS == set()


def test_each_transform_is_recorded_with_rows_that_it_takes() -> None:
    """A mistake in its arguments would be recorded as a refusal of all kinds of rows."""
    tables = recorded("transforms") | recorded("converted")
    refused = [name for name, texts in tables.items() if all("Error: " in text for text in texts.values())]
    assert refused == []
