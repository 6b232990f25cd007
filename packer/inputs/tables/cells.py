"""What a cell of a table, or of a tar, means: a number, text, a list of those, or nothing. Knows no table.

Cells are text (of a .csv), values (of a .jsonl, a .parquet, or a tar's .json), or None where there is none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence

from reader.format.fields import Json

# a leading zero makes a name: 007 is not 7
INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
DECIMAL_COMMA = re.compile(r"-?[0-9]+,[0-9]+")
_SPECIAL = ("nan", "inf", "-inf")

# Among numbers these are no values: what R, pandas, SQL and Excel write for one that is missing. Among names they may be names.
_NOT_AVAILABLE = ("na", "n/a", "#n/a", "<na>", "none", "null")


def without_missing(cells: Sequence[Json], words: Collection[str] = (), names: Collection[str] = ()) -> list[Json]:
    """Return the cells of a column with None for each that is missing, and for each missing piece of a list.

    Missing is what is empty or NaN, and what is one of words; in a column of numbers also NA, None and their like.

    Args:
        names: what is read as a name, not as one of these, since a class list has it.

    Example:
        >>> without_missing(["1", "nan", "NA", ""]), without_missing(["cat", "nan", "NA", "?"], ["?"])
        (['1', None, None, None], ['cat', None, 'NA', None])
    """
    known = [_replaced(cell, lambda piece: _is_missing(piece, words) and piece not in names) for cell in cells]
    if not any(map(_may_be_unavailable, known)):
        return known
    pieces = [piece for cell in known for piece in _pieces(cell) if piece is not None]
    numbers = [piece for piece in pieces if not is_not_available(piece)]
    if len(numbers) in (0, len(pieces)) or not all(is_number(parsed(piece)) for piece in numbers):
        return known
    return [_replaced(cell, lambda piece: is_not_available(piece) and piece not in names) for cell in known]


def is_not_available(cell: object) -> bool:
    """Whether a cell is text that stands for a missing number: NA, None, null and their like."""
    return isinstance(cell, str) and cell.strip().lower() in _NOT_AVAILABLE


def is_number(value: object, *more: type) -> bool:
    """Whether a parsed cell is a number, or of one more of these types."""
    return type(value) in (int, float, *more)


def parsed(cell: object) -> Json:
    """Return what a cell means: an int64, a float, other text, a list of those where ; separates them, None if empty."""
    if isinstance(cell, str):
        text = cell.strip()
        if ";" in text:
            return [parsed(piece) for piece in text.split(";") if piece.strip()]
        if INTEGER.fullmatch(text):
            # int() of thousands of digits is refused by Python itself
            return parsed(int(text)) if len(text) <= 20 else float(text)
        return float(text) if NUMBER.fullmatch(text) or text.lower() in _SPECIAL else text or None
    if isinstance(cell, list):
        return [parsed(piece) for piece in cell]
    # an integer beyond int64
    return float(cell) if type(cell) is int and not -(1 << 63) <= cell < 1 << 63 else cell


def is_unicode(text: str) -> bool:
    """Whether text was read as UTF-8: other bytes become surrogates (PEP 383), which valid text never has."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def is_nested(cell: object) -> bool:
    """Whether a cell is a list that holds more than plain values."""
    return isinstance(cell, list) and any(isinstance(piece, list | dict) for piece in cell)


def texts(cell: object) -> list[str]:
    """Return a cell's labels as text.

    Example:
        >>> texts("cat; dog"), texts([1, "cat", None]), texts(None)
        (['cat', 'dog'], ['1', 'cat'], [])
    """
    if isinstance(cell, list):
        return [text for piece in cell for text in texts(piece)]
    if isinstance(cell, str):
        return [text for piece in cell.split(";") if (text := piece.strip())]
    if cell is None:
        return []
    return [str(cell).lower() if isinstance(cell, bool) else str(cell)]


def _is_missing(piece: object, words: Collection[str]) -> bool:
    if isinstance(piece, str):
        text = piece.strip()
        return not text or text in words or (len(text) == 3 and text.lower() == "nan")
    if piece is None or (isinstance(piece, float) and math.isnan(piece)):
        return True
    return bool(words) and not isinstance(piece, bool | list | dict) and str(piece) in words


def _may_be_unavailable(cell: object) -> bool:
    """Whether a cell can be NA or the like; cheap, as a million numbers are checked."""
    if isinstance(cell, str):
        return ";" in cell or is_not_available(cell)
    return isinstance(cell, list)


def _pieces(cell: Json) -> list[Json]:
    """Return the pieces of a cell that is a list, or text with ; between them; the cell itself where it is one value."""
    if isinstance(cell, str) and ";" in cell:
        return [piece for piece in cell.split(";") if piece.strip()]
    return cell if isinstance(cell, list) else [cell]


def _replaced(cell: Json, is_missing: Callable[[Json], bool]) -> Json:
    """Return a cell with None where it is missing, or where pieces of it are; as it is where nothing is."""
    if not isinstance(cell, list) and not (isinstance(cell, str) and ";" in cell):
        return None if is_missing(cell) else cell
    pieces = _pieces(cell)
    return [None if is_missing(piece) else piece for piece in pieces] if any(map(is_missing, pieces)) else cell
