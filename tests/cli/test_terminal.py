"""Lines that a terminal wraps: between words, each still one line for whoever copies it."""

from __future__ import annotations

import io
import itertools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.cli.progress import ProgressBar
from packer.cli.terminal import aligned, columns_of, filled, width
from packer.report import Progress

WORDS = st.lists(st.text("ab'./-=", min_size=1, max_size=30), min_size=1, max_size=40)


@given(WORDS, st.sampled_from(["", "  ", "rows        "]), st.integers(20, 100))
def test_no_word_is_cut_that_fits(words: list[str], start: str, columns: int) -> None:
    line = start + " ".join(words)
    text = filled(line, columns)
    # the words are as they were, and blanks alone are more
    assert text.split() == line.split()
    assert (text == line) or len(line) > columns
    indent = 12 if start.startswith("rows") and columns >= 24 else len(start) + 2 if start == "  " else 2
    for word in re.finditer(r"\S+", text):
        quoted = "'" in word[0]
        if word.end() - word.start() < columns - indent - len(start) and not quoted and "'" not in line:
            assert word.start() // columns == (word.end() - 1) // columns


class Console(io.StringIO):
    """Says that it is a terminal and has no file, as the consoles of some editors."""

    def isatty(self) -> bool:
        return True


def test_a_stream_that_has_no_terminal_behind_it_gets_lines_as_a_log_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert columns_of(Console()) is None
    console = Console()
    monkeypatch.setattr(sys, "stderr", console)
    with ProgressBar(hidden=False, clock=itertools.count(step=100).__next__) as bar:
        bar.update(Progress("list", 2, 2, found="2 images"))
        bar.update(Progress("pack", 1, 2))
        bar.update(Progress("pack", 2, 2))
    assert console.getvalue().splitlines()[0] == "found 2 images"


def test_what_is_quoted_keeps_its_spaces() -> None:
    line = "pack: there is nothing in 'a folder with a long name' that pack info could show"
    assert "'a folder with a long name'" in filled(line, 40)
    assert "a store's rows and a set's images" in re.sub(" +", " ", filled("a store's rows and a set's images", 20))


def test_an_apostrophe_in_a_path_is_no_quote() -> None:
    line = "pack: photos/'90s/a.jpg and photos/it's/b.jpg and photos/'00s/c.jpg are not what was packed"
    text = filled(line, 30)
    assert text.split() == line.split()
    for word in re.finditer(r"\S+", text):
        assert word.start() // 30 == (word.end() - 1) // 30


@pytest.mark.parametrize(
    ("letter", "columns"), [("a", 1), ("\u00e9", 1), ("e\u0301", 1), ("\u65e5", 2), ("\U0001f600", 2)]
)
def test_a_letter_takes_the_columns_that_a_terminal_gives_it(letter: str, columns: int) -> None:
    assert width(letter * 7) == 7 * columns
    text = filled(f"pack: {letter * 10} {letter * 10} {letter * 10}", 30)
    # each word begins so far from the line's beginning that it ends on it
    at = [(width(text[: word.start()]), width(word[0])) for word in re.finditer(r"\S+", text)]
    assert all(start // 30 == (start + size - 1) // 30 for start, size in at)


@pytest.mark.parametrize("columns", [None, 60, 79, 100])
def test_a_table_wider_than_the_terminal_continues_below_with_its_names(columns: int | None) -> None:
    cells = [
        ["", *(f"column {n}" for n in range(20))],
        *([name, *map(str, range(20))] for name in ("main", "worker 12")),
    ]
    lines = aligned(cells, columns)
    assert all(len(line) <= (columns or 999) for line in lines)
    tables = [lines[n : n + 3] for n in range(0, len(lines), 3)]
    assert (len(tables) > 1) == (columns is not None)
    # each column is there once, in order, below its heading
    assert [cell for table in tables for cell in re.findall(r"column \d+", table[0])] == cells[0][1:]
    for row, name in ((1, "main"), (2, "worker 12")):
        shown = [table[row].removeprefix(name).split() for table in tables]
        assert [cell for cells in shown for cell in cells] == [*map(str, range(20))]
        assert all(len(table[row]) == len(table[0]) for table in tables)


def test_values_of_a_table_stand_below_each_other() -> None:
    text = filled("options     fit crop, crop_fraction 0.875, resample bilinear", 30)
    rows = [text[n : n + 30].rstrip() for n in range(0, len(text), 30)]
    assert rows[0] == "options     fit crop,"
    assert all(row.startswith(" " * 12) and row[12] != " " for row in rows[1:])


@pytest.mark.parametrize("columns", [60, 79, 100])
def test_an_error_on_a_terminal_is_one_line_that_wraps_between_words(columns: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "packer", "info", str(tmp_path / "nowhere")]
    piped = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    subprocess.run(command, stdout=slave, stderr=slave, check=False)
    os.close(slave)
    shown = os.read(master, 65536).decode().replace("\r\n", "\n")
    os.close(master)
    assert shown.split() == piped.split()
    assert shown.count("\n") == piped.count("\n") == 1
