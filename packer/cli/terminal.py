"""How wide a terminal is, and lines and tables that fit it. Knows no command."""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Sequence
from typing import TextIO

# A word, with the spaces before it; what stands in quotes is one, as spaces between them are the user's. An apostrophe within a
# word or a path is no quote.
_WORD = re.compile(r"""( *)((?:(?<![\w/])'[^']*'|"[^"]*"|[^\s])+)""")
# The name in front of a line of a table: a word or two, and two spaces or more.
_NAME = re.compile(r"\S+(?: \S+)? {2,}")
# Letters that take two columns, by their East Asian width, and kinds of characters that take none, as accents on a letter.
_WIDE, _ON_ANOTHER = ("W", "F"), ("Mn", "Me", "Cf")
# In fewer columns words are as wide as a line.
_LEAST_COLUMNS = 20


def columns_of(stream: TextIO | None) -> int | None:
    """Return how many columns a terminal has, 80 if it does not know; None of what is no terminal, whatever it says."""
    if stream is None or not stream.isatty():
        return None
    try:
        columns, _ = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return None
    return columns or 80


def width(text: str) -> int:
    """Return how many columns of a terminal a text takes.

    Example:
        >>> width("naïve"), width("日本")
        (5, 4)
    """
    if text.isascii():
        return len(text)
    kinds = [(unicodedata.category(each), unicodedata.east_asian_width(each)) for each in text]
    return sum(0 if kind in _ON_ANOTHER else 1 + (east_asian in _WIDE) for kind, east_asian in kinds)


def aligned(rows: Sequence[Sequence[str]], columns: int | None) -> list[str]:
    """Align the columns of a table, the first to the left, the others to the right; those beyond the terminal's come below.

    columns: of the terminal; None: there is none.

    Example:
        >>> aligned([("", "first", "second"), ("name", "1", "2")], 14)
        ['      first', 'name      1', '      second', 'name       2']
    """
    names, *others = [(max(map(len, cells)), cells) for cells in zip(*rows, strict=True)]
    first = [name.ljust(names[0]) for name in names[1]]
    tables, used = [first], names[0]
    for size, cells in others:
        if used > names[0] and used + 2 + size > (columns or math.inf):
            tables.append(first)
            used = names[0]
        tables[-1] = [f"{line}  {cell.rjust(size)}" for line, cell in zip(tables[-1], cells, strict=True)]
        used += 2 + size
    return [line.rstrip() for table in tables for line in table]


def filled(text: str, columns: int) -> str:
    """Fill up lines with spaces where the terminal's line ends before the next word, so that it wraps there.

    A line stays one line: a command or a line of code that is copied from the terminal is whole, with some spaces more. What
    follows is indented below the values of a table, else by two columns more than the line.

    Example:
        >>> filled("rows        three of them", 24)
        'rows        three of                them'
    """
    return "\n".join(_filled(line, columns) for line in text.split("\n"))


def _filled(line: str, columns: int) -> str:
    if width(line) <= columns or columns < _LEAST_COLUMNS:
        return line
    name = _NAME.match(line)
    indent = name.end() if name else len(line) - len(line.lstrip(" ")) + 2
    indent = indent if indent <= columns // 2 else 2
    pieces, at = list[str](), 0
    for gap, word in _WORD.findall(line):
        end = at + len(gap) + width(word)
        # one column stays free, for the space that parts two words
        if at and end >= columns and indent + width(word) < columns:
            gap, end = " " * (columns - at + indent), columns + indent + width(word)
        pieces += [gap, word]
        at = end % columns
    return "".join(pieces)
