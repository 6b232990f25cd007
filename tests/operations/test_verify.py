"""Any damage to any file of a store is found, with file and rows, and nothing is changed by looking."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import PACK, make_tree, store_bytes

from packer import pack
from packer.cli.app import run
from packer.operations.verify import Problem, verify
from reader.format.blocks import read_blocks
from reader.format.check import check_store
from reader.format.errors import StoreError
from reader.format.manifest import PIXELS, SAMPLES

PAGE = 4096
TRIALS = 1000
ROWS = 60
METADATA = ("manifest.json", "meta.json", "_tensordict/meta.json")
TARGETS = "_tensordict/targets.memmap"
CONTENT = "_tensordict/content.memmap"


@pytest.fixture(scope="module")
def padded_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 rows of 24 x 24 in blocks of 8, with content and rejects: every kind of file that `pack` writes."""
    root = tmp_path_factory.mktemp("padded")
    images = make_tree(root / "images", each=20, size=(40, 30))
    for n in range(3):
        (images / f"class1/broken{n}.jpg").write_text("x")
    pack(images, root / "out", size=24, fit="pad", max_rejects=3)
    return root / "out"


@pytest.fixture
def damaged(padded_store: Path) -> Iterator[Callable[[str, bytes], None]]:
    """Overwrites a file of the store; it is put back afterwards, and each time before the next one is damaged."""
    before = store_bytes(padded_store)

    def restore() -> None:
        for name, content in before.items():
            if (padded_store / name).read_bytes() != content:
                (padded_store / name).write_bytes(content)

    def damage(name: str, content: bytes) -> None:
        restore()
        (padded_store / name).write_bytes(content)

    yield damage
    restore()
    assert store_bytes(padded_store) == before


def flipped(data: bytes, draw: random.Random) -> bytes:
    """Flip one bit."""
    at = draw.randrange(len(data) * 8)
    changed = bytearray(data)
    changed[at // 8] ^= 1 << at % 8
    return bytes(changed)


def torn(data: bytes, draw: random.Random) -> bytes:
    """Keep the first part of a page, as a write cut by a power loss does; the rest is zeros or another page's."""
    start = draw.randrange(0, len(data), PAGE)
    stop = min(len(data), start + PAGE)
    at = draw.randrange(start, stop)
    other = data[:PAGE].ljust(PAGE, b"\0") if draw.random() < 0.5 else bytes(PAGE)
    return data[:at] + other[at - start : stop - start] + data[stop:]


def swapped(data: bytes, draw: random.Random) -> bytes:
    """Exchange two whole pages of one file; a file of one page has its halves exchanged."""
    size = PAGE if len(data) >= 2 * PAGE else len(data) // 2
    one, other = draw.sample(range(len(data) // size), 2)
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    pieces[one], pieces[other] = pieces[other], pieces[one]
    return b"".join(pieces)


def test_a_thousand_damages_are_found_with_file_and_rows_and_nothing_is_changed(
    padded_store: Path, damaged: Callable[[str, bytes], None]
) -> None:
    draw = random.Random(0)
    files = store_bytes(padded_store)
    rows_named: Counter[tuple[str, bool]] = Counter()
    names = sorted(name for name, content in files.items() if len(content) > 1)
    for trial in range(TRIALS):
        name = names[trial % len(names)]
        content = files[name]
        while content == files[name]:  # a page may be torn or swapped into itself
            content = draw.choice([flipped, torn, swapped])(files[name], draw)
        damaged(name, content)
        if name in METADATA:
            with pytest.raises(StoreError, match=rf"{re.escape(str(padded_store))}/\S*(manifest|meta)\.json"):
                verify(padded_store)
        else:
            problems = verify(padded_store).problems
            assert {problem.file for problem in problems} == {name}
            rows_named[name, problems[0].rows not in (None, (0, ROWS))] += 1
            _rows_are_right(padded_store, name, problems, files[name], content)
        assert (padded_store / name).read_bytes() == content
    assert {name for name, _ in rows_named} == set(names) - set(METADATA)
    # of a line that still reads and still fits its row, no fewer rows than all are known
    assert rows_named[SAMPLES, True] > 20


def _rows_are_right(store: Path, name: str, problems: list[Problem], before: bytes, after: bytes) -> None:
    """Check that the rows that differ were named, and no other; for pixels, all rows of their blocks."""
    if name not in (PIXELS, TARGETS, CONTENT):
        return
    size = len(before) // ROWS
    wrong = {r for r in range(ROWS) if before[r * size : (r + 1) * size] != after[r * size : (r + 1) * size]}
    if name == PIXELS:
        blocks = [set(range(block.start, block.stop)) for block in read_blocks(store)]
        wrong = set().union(*(block for block in blocks if block & wrong))
    assert {row for problem in problems if problem.rows for row in range(*problem.rows)} == wrong


@pytest.mark.parametrize("name", ["manifest.json", "meta.json", "_tensordict/meta.json"])
def test_every_single_flipped_bit_of_the_small_files_is_refused_on_opening(
    padded_store: Path, damaged: Callable[[str, bytes], None], name: str
) -> None:
    original = (padded_store / name).read_bytes()
    accepted = []
    # one byte is written in place and put back: no copy of the store a bit
    descriptor = os.open(padded_store / name, os.O_RDWR)
    try:
        for at, byte in enumerate(original):
            for bit in range(8):
                os.pwrite(descriptor, bytes([byte ^ 1 << bit]), at)
                try:
                    check_store(padded_store)
                    accepted.append((at, bit))
                except StoreError:
                    pass
            os.pwrite(descriptor, bytes([byte]), at)
    finally:
        os.close(descriptor)
    assert accepted == []
    check_store(padded_store)


@pytest.mark.parametrize(
    ("name", "at", "text"),
    [
        (PIXELS, 30 * 1728, r"_tensordict/pixels.memmap, rows 24 to 31: its pixels are not what was packed"),
        (TARGETS, 8 * 33, r"_tensordict/targets.memmap, rows 33 to 34: the target is not the one in samples.jsonl"),
        (CONTENT, 16 * 5 + 4, r"_tensordict/content.memmap, row 5: the content is not what samples.jsonl implies"),
        (SAMPLES, 0, r"samples.jsonl, row 0: the line is damaged, or another row's"),
        ("rejected.jsonl", 5, r"rejected.jsonl: its content has changed since it was packed"),
        ("manifest.json", 50, r"manifest.json was changed after it was written or is cut short"),
        ("_tensordict/meta.json", 50, r"_tensordict/meta.json does not match the manifest"),
    ],
)
def test_the_command_names_file_and_rows_and_exits_1(
    padded_store: Path,
    damaged: Callable[[str, bytes], None],
    capsys: pytest.CaptureFixture[str],
    name: str,
    at: int,
    text: str,
) -> None:
    content = bytearray((padded_store / name).read_bytes())
    for each in (at, at + 8):
        content[each] ^= 1
    damaged(name, bytes(content))
    before = store_bytes(padded_store)
    assert run(["verify", str(padded_store)]) == 1
    assert re.search(text, capsys.readouterr().err)
    assert store_bytes(padded_store) == before


def test_an_intact_store_verifies_by_the_command(padded_store: Path) -> None:
    done = subprocess.run([*PACK, "verify", str(padded_store)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
