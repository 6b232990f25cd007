"""How wide a terminal is, and lines that it wraps between words. Knows no command."""

from __future__ import annotations

import os
import re
from typing import TextIO

# A word, with the spaces before it; what stands in quotes is one, as spaces between them are the user's.
_WORD = re.compile(r"""( *)((?:(?<!\w)'[^']*'|"[^"]*"|[^\s])+)""")
# The name in front of a line of a table: a word or two, and two spaces or more.
_NAME = re.compile(r"\S+(?: \S+)? {2,}")
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
    if len(line) <= columns or columns < _LEAST_COLUMNS:
        return line
    name = _NAME.match(line)
    indent = name.end() if name else len(line) - len(line.lstrip(" ")) + 2
    indent = indent if indent <= columns // 2 else 2
    pieces, at = list[str](), 0
    for gap, word in _WORD.findall(line):
        end = at + len(gap) + len(word)
        # one column stays free, for the space that parts two words
        if at and end >= columns and indent + len(word) < columns:
            gap, end = " " * (columns - at + indent), columns + indent + len(word)
        pieces += [gap, word]
        at = end % columns
    return "".join(pieces)
