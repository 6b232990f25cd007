"""Damage to a store: verify finds a flipped byte of any file and names its rows; a file of another size is refused unchanged."""

from __future__ import annotations

import bisect
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import store_bytes
from kinds import KINDS, MakeStore, stores_of
from stored_rows import manifest_of

from packer import verify
from reader import MemmapDataset, StoreError

every_kind = pytest.mark.parametrize("kind", KINDS)
PIXELS = "_tensordict/pixels.memmap"
# Files of numbers that also follow from the row's line in samples.jsonl.
EXACT = ("targets.memmap", "content.memmap", "shapes.memmap", "offsets.memmap", "mask_offsets.memmap")


def offsets_of(size: int) -> set[int]:
    """Return the first, the middle and the last byte of a file, one 8 bytes after the middle, and one inside its last line."""
    return {0, size // 2, min(size - 1, size // 2 + 8), max(0, size - 5), size - 1} if size else set()


def damaged_rows(store: Path, offset: int) -> tuple[int, int] | None:
    """Return the rows of a byte of the pixels: those of its block, or if compressed, one row; None after the last row."""
    head = manifest_of(store)
    frames = store / "_tensordict" / "frames.memmap"
    if frames.exists():
        ends = np.fromfile(frames, "<i8").reshape(-1, 2)[:, 1].tolist()
        row = bisect.bisect_right(ends, offset)
        return (row, row + 1) if row < head["rows"] else None
    sizes = [block[3] for block in head["blocks"]]
    block = bisect.bisect_right(list(itertools.accumulate(sizes)), offset)
    if block == len(sizes):
        return None
    start = sum(rows for rows, *_ in head["blocks"][:block])
    return start, start + head["blocks"][block][0]


@every_kind
def test_verify_finds_a_flip_in_each_file_and_names_its_rows(kind: str, store_of: MakeStore, tmp_path: Path) -> None:
    out, seen = Path(shutil.copytree(store_of(kind), tmp_path / "out")), list[tuple[int, int]]()
    report = verify(out, progress=lambda *done: seen.append(done))
    size = sum(len(content) for name, content in store_bytes(out).items() if not name.endswith("manifest.json"))
    assert (report.problems, report.checked_bytes, seen[-1]) == ([], size, (size, size))
    assert seen == sorted((done, size) for done, _ in seen)
    for split, store in stores_of(out).items():
        prefix = f"{split}/" if split else ""
        for name, content in store_bytes(store).items():
            for offset in offsets_of(len(content)):
                changed = bytearray(content)
                changed[offset] ^= 1 << offset % 8
                (store / name).write_bytes(changed)
                check_found(out, store, prefix, name, offset)
            (store / name).write_bytes(content)
    assert verify(out).problems == []


def problems_of(out: Path) -> list[tuple[str, tuple[int, int] | None]]:
    """Return the files and rows that verify names; for a store that cannot be opened, the named file."""
    try:
        return [(problem.file, problem.rows) for problem in verify(out).problems]
    except StoreError as e:
        text = str(e).replace("\\", "/")
        return [(str(path.relative_to(out)), None) for path in out.rglob("*.json") if str(path) in text]


def check_found(out: Path, store: Path, prefix: str, name: str, offset: int) -> None:
    """Check that verify names only the damaged file and its row; for a file with one checksum, all of its rows."""
    where = f"{name}, byte {offset}"
    problems = problems_of(out)
    assert {file for file, _ in problems} == {prefix + name}, where
    if name.endswith((".json", "rejected.jsonl")):
        return
    rows = {rows for _, rows in problems}
    if name == PIXELS:
        assert rows == {damaged_rows(store, offset)}, where
        return
    content, count = (store / name).read_bytes(), manifest_of(store)["rows"]
    row = content.count(b"\n", 0, offset) if name == "samples.jsonl" else offset // (len(content) // count)
    is_first_line = name == "samples.jsonl" and offset == 0
    if is_first_line or Path(name).name in EXACT:
        assert rows == {(row, row + 1)}, where
    elif "frames" in name:
        (found,) = rows
        assert row in range(*found), where
        assert row in (0, count - 1) or found[1] - found[0] <= 3, where
    else:
        assert rows in ({(row, row + 1)}, {(0, count)}), where


@every_kind
def test_a_file_that_was_cut_or_grew_is_refused_unchanged(kind: str, store_of: MakeStore, tmp_path: Path) -> None:
    out = Path(shutil.copytree(store_of(kind), tmp_path / "out"))
    for store in stores_of(out).values():
        for name, content in store_bytes(store).items():
            for other in [content[:-1], content + b"\0"] if content else [b"\0"]:
                (store / name).write_bytes(other)
                with pytest.raises(StoreError) as caught:
                    MemmapDataset(store)
                assert name in str(caught.value).replace("\\", "/")
                assert (store / name).read_bytes() == other
            (store / name).write_bytes(content)
        assert len(MemmapDataset(store)) == manifest_of(store)["rows"]
