"""The paths of a list: as a list of strings has them, in the memory of their bytes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from conftest import Feed
from hypothesis import given
from hypothesis import strategies as st

from packer.inputs.samples import Paths
from packer.inputs.scan import scan

# Of these 52 bytes each: as lists of strings they took 570, in one buffer 176.
_MOST_BYTES = 240


@given(st.lists(st.text(st.characters(exclude_characters="\0") | st.just("\ud83d"))), st.slices(6), st.integers(-7, 7))
def test_paths_are_read_as_a_list_of_strings_is(names: list[str], span: slice, index: int) -> None:
    paths = Paths(names)
    assert ([*paths], len(paths), paths[span]) == (names, len(names), names[span])
    if -len(names) <= index < len(names):
        assert paths[index] == names[index]
    assert paths.encoded == "".join(f"{name}\0" for name in names).encode("utf-8", "surrogatepass")


def test_a_list_takes_little_more_memory_than_its_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feed: Feed
) -> None:
    (tmp_path / "photos/train").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    names = [f"photos/train/class_{n // 500:04}/image_{n:08}_{n * 2654435761 % 2**32:08x}.jpg" for n in range(20_000)]
    feed("\n".join(names).encode())
    tracemalloc.start()
    try:
        inputs = scan("-")[""]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(inputs) == 20_000
    assert most / len(inputs) < _MOST_BYTES
