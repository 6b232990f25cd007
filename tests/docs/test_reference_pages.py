"""The pages of the reference are what click and the docstrings say, and the docstrings leave no argument out."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import packer
import reader
from scripts import reference_pages

# described in `pack`, whose keywords they are; of a TensorClass, tensordict's own arguments
ELSEWHERE = {"PackOptions": None, "ImageBatch": {"batch_size", "device", "names"}}
ELSEWHERE["RaggedBatch"] = ELSEWHERE["ImageBatch"]


PAGES = reference_pages.pages()


def public() -> list[tuple[str, Any]]:
    """Return every public name with a signature of its own."""
    found = [(name, getattr(package, name)) for package in (packer, reader) for name in package.__all__]
    errors = [name for name, thing in found if isinstance(thing, type) and issubclass(thing, Exception)]
    return [(name, thing) for name, thing in found if callable(thing) and name not in errors]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_a_page_is_what_the_code_says(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(reference_pages.BEGIN) == text.count(reference_pages.END) == 1
    assert PAGES[path] == text, "python -m scripts.reference_pages writes it again"


def test_every_public_name_is_on_a_page() -> None:
    shown = {name for names in reference_pages.PYTHON.values() for name in names.split()}
    assert shown == {*packer.__all__, *reader.__all__, "packed"} - {"__version__"}


@pytest.mark.parametrize(("name", "thing"), public(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_docstring_says_what_every_argument_is(name: str, thing: Any) -> None:
    known = ELSEWHERE.get(name, set())
    if known is None:
        return
    doc = inspect.getdoc(thing) or ""
    named = [p.name for p in inspect.signature(thing).parameters.values() if p.kind is not p.VAR_KEYWORD]
    lacking = [n for n in named if n not in known and not re.search(rf"^ +(?:\w+, )*\*?{n}(?:, \w+)*: ", doc, re.M)]
    assert lacking == []


SHOWN = [
    (f"{name}.{method}", function)
    for name, thing in public()
    for method, _, function in reference_pages.members_of(thing)
]


@pytest.mark.parametrize(("name", "function"), SHOWN, ids=[name for name, _ in SHOWN])
def test_a_docstring_of_a_shown_method_names_every_argument(name: str, function: Any) -> None:
    doc = inspect.getdoc(function) or ""
    assert doc.split("\n")[0].endswith("."), "the first line is a sentence"
    assert [p for p in inspect.signature(function).parameters if p != "self" and not re.search(rf"\b{p}\b", doc)] == []


def test_methods_that_only_other_modules_call_are_hidden_and_exist() -> None:
    names = {name.rpartition(".")[2] for name, _ in SHOWN}
    assert len(SHOWN) > 40
    assert names.isdisjoint(reference_pages.INTERNAL)
    assert {
        name for name in reference_pages.INTERNAL if not any(hasattr(thing, name) for _, thing in public())
    } == set()


def test_a_method_is_a_line_with_what_it_raises() -> None:
    doc = "Do it.\n\nTo all.\n\nRaises:\n    ValueError: there\n        are none.\n\nExample:\n    >>> 1\n    1\n"
    assert reference_pages.in_a_line(doc) == "Do it. To all. Raises `ValueError`: there are none."


def test_the_options_of_pack_are_described_by_their_groups() -> None:
    doc = inspect.getdoc(packer.pack) or ""
    assert "    crop_fraction: share of the resized image that the crop keeps, 0.05 to 1.\n" in doc
    assert "    options:" not in doc
    assert doc.index("    size: ") < doc.index("    part: ") < doc.index("Raises:")


def test_sections_of_a_docstring_become_lists_and_code() -> None:
    doc = "Do it.\n\nArgs:\n    a, b: two\n        numbers.\n\nExample:\n    >>> 1 + 1\n    2\n"
    assert (
        reference_pages.as_markdown(doc) == "Do it.\n\nArgs:\n\n- `a`, `b`: two numbers.\n\n```pycon\n>>> 1 + 1\n2\n```"
    )
