"""Text from a store as a person may see it: without control characters, brief, and letters of any language as they are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader.format.shown import brief, redacted, shown, shown_lines

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@given(st.text())
def test_what_is_shown_has_no_control_characters_and_fits_on_a_line(text: str) -> None:
    assert not CONTROL.search(shown(text))
    assert not CONTROL.search(shown_lines(text).replace("\n", "").replace("\t", ""))
    assert not CONTROL.search(brief([text, {text: text}]))
    shown(text).encode()


def test_letters_of_any_language_are_shown_as_they_are() -> None:
    assert shown("näïve 猫 کتاب‌ها 👩‍🔬 a\u00a0b") == "näïve 猫 کتاب‌ها 👩‍🔬 a\u00a0b"


@pytest.mark.parametrize(
    "value", ["x" * 10**6, [[["x" * 100] * 100] * 100] * 100, 1 << 4000, {"a": [0] * 10**6}], ids=type
)
def test_a_value_is_named_briefly_however_large_it_is(value: object) -> None:
    assert len(brief(value)) < 1000


def test_what_is_no_credential_stays() -> None:
    kept = (
        "s3://bucket/a@b/c.jpg and https://host/a?v=1&monkey=2, user@host, abfs://box@host/a, C:/a@b, file:///me@home/x"
    )
    assert redacted(kept) == kept
