"""The meaning of cells in target columns: a class name, a whole number, several numbers, or several labels.

The whole column determines its kind, and each error names a line. Every cell is read as text, once. Knows no file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from packer.errors import ScanError
from packer.inputs.class_lists import MOST_CLASSES, composed, unknown_class
from packer.inputs.samples import Column, Inputs
from packer.option_names import Option
from packer.text import counted
from reader.format.values import Json

# The largest number that float32 does not round to infinity.
MOST_FLOAT32 = 3.4028235677973362e38

# a leading zero makes a name: 007 is not 7
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|-?inf")
# cells of a column that stands for one label -> 0 or 1
_FLAGS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
_SEPARATORS = (",", ";", "|", " ")

Where = Callable[[int], str]


def give_labels(
    inputs: Inputs,
    columns: Mapping[str, Sequence[Json]],
    where: Where,
    classes: tuple[str, ...] | None,
    separator: str | None,
) -> None:
    """Set the targets of inputs from the cells of one column, or several.

    Args:
        where: names the line of an input, for an error.
        classes: the class list to impose.
        separator: between the labels of a cell; None: a cell is one label, unless it is a list.

    Raises:
        ScanError: a cell is of another kind than the others, or names a class that is not in the list.
    """
    name = ",".join(columns)
    inputs.labels["target_column"] = name
    if len(columns) == 1:
        (cells,) = columns.values()
        is_list = separator is not None or any(isinstance(cell, list) for cell in cells)
        rows = [_texts(cell, separator) for cell in cells]
        _labelled(inputs, name, rows, where, classes, is_list=is_list)
        return
    rows = [[*map(_text, row)] for row in zip(*columns.values(), strict=True)]
    if not all(cell.lower() in _FLAGS for row in rows for cell in row):
        _regression(inputs, name, rows, where)
        return
    # columns of 0 and 1 are several labels, whose classes are the names of the columns
    names = [*map(composed, columns)]
    inputs.classes = tuple(names) if classes is None else classes
    if unknown := next((one for one in names if one not in inputs.classes), None):
        raise unknown_class("the table", unknown, inputs.classes)
    numbers = [*map(inputs.classes.index, names)]
    labels = ({number for number, cell in zip(numbers, row, strict=True) if _FLAGS[cell.lower()]} for row in rows)
    inputs.targets, inputs.target_kind = Column.multi_hot(labels, len(inputs.classes)), "multi-hot"


def _text(cell: Json) -> str:
    """Return a cell as text, "" if it is empty or nan.

    Example:
        >>> _text(" cat"), _text(3), _text(None), _text(float("nan")), _text(True)
        ('cat', '3', '', '', 'True')
    """
    text = "" if cell is None else str(cell).strip()
    return "" if text.lower() == "nan" else composed(text)


def _texts(cell: Json, separator: str | None) -> list[str]:
    """Split a cell into its labels; an empty one has none."""
    pieces = cell if isinstance(cell, list) else [cell] if separator is None else _text(cell).split(separator)
    return [text for text in map(_text, pieces) if text]


def _labelled(
    inputs: Inputs,
    name: str,
    rows: list[list[str]],
    where: Where,
    classes: tuple[str, ...] | None,
    *,
    is_list: bool,
) -> None:
    """Read a column of labels or numbers; is_list: several per cell."""
    distinct = {text for row in rows for text in row}
    is_named = classes is not None and not distinct.isdisjoint(classes)
    if not is_named and all(map(_NUMBER.fullmatch, distinct)):
        if not all(map(_INTEGER.fullmatch, distinct)):
            # pandas writes whole numbers with a decimal point if other cells are empty
            is_whole = not is_list and all("inf" not in text and float(text).is_integer() for text in distinct)
            if not is_whole or (classes is None and all(rows)):
                _regression(inputs, name, rows, where)
                return
            rows = [[str(int(float(text))) for text in row] for row in rows]
        # no index has more digits
        index = {text: int(text[:20]) for row in rows for text in row}
        limit, lowest = MOST_CLASSES if classes is None else len(classes), 0 if is_list else -1
        if outside := {text for text, number in index.items() if not lowest <= number < limit}:
            line, text = _first(rows, outside, where)
            ids = f" If these are ids, list them in a file, one a line, and give that as {Option('classes')}."
            raise ScanError(
                f"{line} has {text} as {name}. Expected an index from 0 to {limit - 1}.{ids if classes is None else ''}"
            )
        found = tuple(map(str, range(max(index.values(), default=-1) + 1))) if classes is None else classes
    else:
        found = tuple(sorted(distinct)) if classes is None else classes
        if classes is None:
            inputs.notes += _check_names(found, rows, name, where)
        index = ({} if is_list else {"-1": -1}) | {text: number for number, text in enumerate(found)}
        if unknown := distinct - index.keys():
            raise unknown_class(*_first(rows, unknown, where), found)
    if is_list:
        labels = ({index[text] for text in row} for row in rows)
        inputs.targets, inputs.target_kind = Column.multi_hot(labels, len(found)), "multi-hot"
    else:
        inputs.targets = Column.from_rows("int64", (index[row[0]] if row else -1 for row in rows))
    inputs.classes = found
    if missing := [number for number, row in enumerate(rows) if not row]:
        inputs.notes.append(
            f"{len(missing):,} of {counted(len(rows), 'input', 'inputs')} without {name}, {where(missing[0])} first: no class."
        )


def _first(rows: list[list[str]], texts: Collection[str], where: Where) -> tuple[str, str]:
    """Return the first line with one of these texts, and the text."""
    return next((where(number), text) for number, row in enumerate(rows) for text in row if text in texts)


def _check_names(names: Sequence[str], rows: list[list[str]], name: str, where: Where) -> list[str]:
    """Refuse names that are not UTF-8, or names mixed with numbers; return a note on names that look like several labels."""
    if garbled := {text for text in names if any("\ud800" <= letter <= "\udfff" for letter in text)}:
        line, text = _first(rows, garbled, where)
        raise ScanError(f"{line} is not UTF-8: it has {text!r} as {name}. Save it as UTF-8.")
    if numbers := {text for text in names if _NUMBER.fullmatch(text)}:
        line, number = _first(rows, numbers, where)
        other, word = _first(rows, {*names} - numbers, where)
        raise ScanError(
            f"{line} has {number!r} as {name}, {other} has {word!r}. Expected numbers alone or names alone, or empty cells. If"
            f" these are names, list them all with {Option('classes')}."
        )
    for separator in _SEPARATORS:
        pieces = {text: text.split(separator) for text in names}
        uses = Counter(piece.strip() for several in pieces.values() for piece in {*several})
        made = [
            text for text in names if len(pieces[text]) > 1 and all(uses[piece.strip()] > 1 for piece in pieces[text])
        ]
        if 2 * len(made) > len(names):
            return [
                f"{len(made)} of {len(names)} classes, such as {made[0]!r}, are made of parts of others: if a cell has several"
                f" labels, give {Option('label_separator', separator)}."
            ]
    return []


def _regression(inputs: Inputs, name: str, rows: list[list[str]], where: Where) -> None:
    """Take the numbers of each input as a float32 vector; raises ScanError if one is no number, or lengths differ."""
    for number, row in enumerate(rows):
        for text in row or [""]:
            if not _NUMBER.fullmatch(text) or abs(float(text)) >= MOST_FLOAT32:
                raise ScanError(
                    f"{where(number)} has {text or 'nothing'} as {name}. Expected a finite number that float32 holds, as on"
                    " other lines; leave out a line that has none."
                )
        if len(row) != len(rows[0]):
            raise ScanError(f"{where(number)} has {len(row)} numbers as {name}, {where(0)} has {len(rows[0])}.")
    inputs.targets = Column.from_rows("float32", ([float(text) for text in row] for row in rows), len(rows[0]))
    inputs.target_kind = "regression"
