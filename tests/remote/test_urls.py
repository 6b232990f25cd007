"""URLs and sizes as they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer import OptionsError, pull, push
from reader import MemmapDataset
from reader.format.urls import is_url
from reader.remote.urls import checked_url, size_of


@pytest.mark.parametrize(
    ("path", "answer"),
    [("s3://b/out", True), ("file:///x", True), ("out", False), ("/out", False), ("c:/out", False), ("a/b://c", False)],
)
def test_what_is_a_url(path: str, answer: bool) -> None:
    assert is_url(path) is answer


def test_a_slash_at_the_end_says_nothing() -> None:
    assert checked_url("S3://bucket/out/") == "s3://bucket/out"


def test_a_container_of_azure_is_no_secret() -> None:
    assert checked_url("abfss://box@account.dfs.core.windows.net/out").startswith("abfss://box@account.")
    with pytest.raises(ValueError, match=r"abfss://\*\*\*@account\S* carries credentials"):
        checked_url("abfss://box:hush@account.dfs.core.windows.net/out")


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (
            "memory://out",
            "memory://out cannot be read from. Expected a URL with s3, s3a, gs, az, azure, abfs, abfss, adl, https, http,"
            " file. Copy a store that is elsewhere with pack pull URL OUT, or mount it.",
        ),
        ("s3:///out", "s3:///out is not a URL of a folder."),
        ("file:///", "file:/// is not a URL of a folder."),
        ("https://me:hush@host/out", "https://***@host/out carries credentials or a query. Leave them out"),
        ("s3://me@host/out", "s3://***@host/out carries credentials or a query. Leave them out"),
        ("https://host/out?token=hush", "https://host/out?token=*** carries credentials or a query. Leave them out"),
    ],
)
def test_other_urls_are_refused_and_shown_without_secrets(url: str, found: str) -> None:
    with pytest.raises(ValueError) as caught:
        checked_url(url)
    assert str(caught.value).startswith(found)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "size_bytes"),
    [(5, 5), ("5", 5), ("200GB", 200 * 10**9), ("1.5 TiB", 3 << 39), ("10m", 10**7), ("7 kB", 7000), ("3MiB", 3 << 20)],
)
def test_sizes(value: int | str, size_bytes: int) -> None:
    assert size_of(value) == size_bytes


@pytest.mark.parametrize("value", [0, -1, True, "", "many", "5 i", "0GB", "-5GB", 1.5, None])
def test_what_is_no_size(value: object) -> None:
    with pytest.raises(ValueError, match=r"cache_size is .*, expected bytes or a size such as '200GB'"):
        size_of(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", ["run%202", "a/../b", "a//b", "./a"])
def test_a_key_that_libraries_read_differently_is_refused_by_all(folder: str, store: Path, tmp_path: Path) -> None:
    url = f"s3://bucket/{folder}"
    for call in (
        lambda: MemmapDataset(url, cache=tmp_path),
        lambda: push(store, url),
        lambda: pull(url, tmp_path / "o"),
    ):
        with pytest.raises((ValueError, OptionsError), match="libraries of object storage take for different objects"):
            call()
    checked_url("s3://bucket/run 2/")
