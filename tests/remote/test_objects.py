"""Requests: retried while it helps, for so long; then one sentence that names the object and no secret."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from range_server import RangeServer, Trouble

from reader.format.errors import StoreError
from reader.format.manifest import PIXELS
from reader.remote import objects
from reader.remote.objects import MissingObjectError, Objects, UnreachableError


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "BUDGET_SECONDS", 2.0)
    monkeypatch.setattr(objects, "STALL_SECONDS", 0.5)


def test_an_object_is_read_whole_and_in_part(range_server: RangeServer, many_blocks: Path) -> None:
    found, data = Objects(range_server.url), (many_blocks / PIXELS).read_bytes()
    assert bytes(found.read(PIXELS)) == data
    assert bytes(found.read(PIXELS, 100, 5000)) == data[100:5000]


def test_a_local_folder_is_a_url_too(many_blocks: Path) -> None:
    found = Objects(f"file://{many_blocks}")
    assert bytes(found.read(PIXELS, 7, 77)) == (many_blocks / PIXELS).read_bytes()[7:77]


@pytest.mark.parametrize("trouble", [500, 503, 429, "cut", "stall"])
def test_what_passes_is_retried(range_server: RangeServer, many_blocks: Path, trouble: Trouble) -> None:
    range_server.trouble = lambda name, count: trouble if count < 2 else None
    data = Objects(range_server.url).read(PIXELS, 0, 200_000)
    assert bytes(data) == (many_blocks / PIXELS).read_bytes()[:200_000]
    assert range_server.asked.total() == 3


@pytest.mark.parametrize(
    ("trouble", "kind", "says"),
    [
        (
            503,
            UnreachableError,
            "cannot be read: .*status code: 503 Service Unavailable. It was tried [0-9]+ times in [0-9] s",
        ),
        ("cut", UnreachableError, "cannot be read: .*body error.*. It was tried"),
        (404, MissingObjectError, "does not exist, or nothing shows it to these credentials"),
        (403, StoreError, "access is denied .*403 Forbidden.*. Set AWS_ACCESS_KEY_ID"),
        (400, StoreError, "cannot be read: .*400 Bad Request.$"),
    ],
)
def test_what_stays_is_one_sentence(
    range_server: RangeServer, trouble: Trouble, kind: type[StoreError], says: str
) -> None:
    range_server.trouble = lambda name, count: trouble
    with pytest.raises(kind, match=says) as caught:
        Objects(range_server.url).read(PIXELS, 0, 1000)
    text = str(caught.value)
    assert text.startswith(f"{range_server.url}/{PIXELS} ")
    assert "secret" not in text
    assert "\n" not in text
    assert (range_server.asked.total() == 1) is (kind is not UnreachableError)


def test_an_object_that_was_cut_short_is_named(range_server: RangeServer, many_blocks: Path) -> None:
    size = (many_blocks / PIXELS).stat().st_size
    with pytest.raises(
        StoreError, match=f"{PIXELS} ends at byte {size}, expected {size + 5} or more: it was cut short"
    ):
        Objects(range_server.url).read(PIXELS, 10, size + 5)
    with pytest.raises(StoreError, match=f"{PIXELS} is shorter than its manifest says"):
        Objects(range_server.url).read(PIXELS, size, size + 5)


def test_a_server_that_is_not_there_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "BUDGET_SECONDS", 0.3)
    with pytest.raises(UnreachableError, match=r"http://127.0.0.1:9/out/x cannot be read: .*connect. It was tried"):
        Objects("http://127.0.0.1:9/out").read("x")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nothing does not exist. Expected the folder of a store"):
        Objects(f"file://{tmp_path}/nothing").read("x")


def test_without_obstore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreError, match=r"s3://bucket/out needs obstore, .*: pip install 'pixpack\[remote\]'"):
        Objects("s3://bucket/out")


@pytest.mark.parametrize("body", ["<Error><Code>SlowDown</Code><AWSAccessKeyId>AKIAhush</AWSAccessKeyId></Error>"])
def test_the_code_of_an_answer_is_reported_and_not_its_body(body: str) -> None:
    error = ValueError(
        f"Error GET http://h/x?X-Amz-Credential=hush - Server returned non-2xx status code: 503 Busy: {body}"
    )
    text: Callable[[BaseException], str] = objects._text
    assert (
        text(error)
        == "Error GET http://h/x?X-Amz-Credential=*** - Server returned non-2xx status code: 503 Busy, SlowDown"
    )
