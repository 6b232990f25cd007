"""From columns of cells to tensors: which column is the target, of what kind it is, and which others become extras.

Cells are text (of a .csv), JSON values (of a .jsonl, or of a tar's .json), or None where there is none. Knows no file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from packer.inputs import Column, ScanError
from reader.manifest import EXTRA_NAME, FurtherTarget

# the first of these that there is holds the target, unless --target-column names another
TARGET_COLUMNS = ("target", "label", "class", "cls")

# More indices than any set of classes has: a column of ids was taken for labels.
_MOST_CLASSES = 1_000_000
# So many names, nearly as many as labels, are no classes: captions, file names.
_MANY_NAMES, _MOST_DISTINCT = 1_000, 0.9
# a leading zero makes a name: 007 is not 7
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_SPECIAL = ("nan", "inf", "-inf")


@dataclass(frozen=True)
class Table:
    """What is known of each input beside its path: column name -> a cell an input. where(i) names input i in an error."""

    name: str
    columns: dict[str, list[Any]]
    where: Callable[[int], str]


@dataclass
class Labels:
    """Targets and extras of all inputs, and the class list."""

    targets: Column
    kind: str = "class"
    classes: tuple[str, ...] = ()
    extras: dict[str, Column] = field(default_factory=dict)
    further_targets: dict[str, FurtherTarget] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def label(table: Table, count: int, *, target_column: str | None, classes: tuple[str, ...] | None) -> Labels:
    """Make tensors of a table's columns.

    Args:
        count: number of inputs.
        target_column: name of the column that holds the target; "a,b" takes several as one regression target.
        classes: the class list to impose.

    Raises:
        ScanError: there is no such column, or a cell cannot be a target; names its line.
    """
    names = target_names(table, target_column)
    if not names:
        made = Labels(Column.of("int64", [-1] * count), classes=classes or ())
        if table.columns:
            expected = ", ".join(TARGET_COLUMNS)
            made.notes.append(f"{table.name} has none of the columns {expected}: no labels; --target-column names one.")
    elif len(names) > 1:
        columns = [[parsed(cell) for cell in table.columns[name]] for name in names]
        made = regression(table, ",".join(names), [list(row) for row in zip(*columns, strict=True)])
    else:
        made = single(table, names[0], classes)
    add_extras(made, table, names)
    return made


def add_extras(labels: Labels, table: Table, names: Sequence[str]) -> None:
    """Make an extra of each column of numbers that is none of the target columns; say which others are left out, and why."""
    for name, cells in table.columns.items():
        if name not in names:
            _add_extra(labels, table, name, cells)


def name_targets(names: Sequence[str], classes: tuple[str, ...] | None, where: Callable[[int], str]) -> Labels:
    """Make class targets of one name an input; classes are the sorted names, or the imposed list.

    Raises:
        ScanError: a name is not in the imposed list.
    """
    found = tuple(sorted(set(names))) if classes is None else classes
    index = {name: i for i, name in enumerate(found)}
    for position, name in enumerate(names):
        if name not in index:
            raise _unknown(where(position), name, found)
    return Labels(Column.of("int64", (index[name] for name in names)), classes=found)


def target_names(table: Table, asked: str | None) -> list[str]:
    """Return the columns that hold targets: those asked for, or the usual one; raises ScanError where there is none of a name."""
    if asked is None:
        return [name for name in TARGET_COLUMNS if name in table.columns][:1]
    names = [asked] if asked in table.columns else asked.split(",")
    for name in names:
        if name not in table.columns:
            known = ", ".join(table.columns) or "none beside the path"
            raise ScanError(f"{table.name} has no column {name!r}, which --target-column names. It has: {known}.")
    return names


def single(table: Table, name: str, classes: tuple[str, ...] | None) -> Labels:
    """Decide by all cells of the target column what it holds."""
    cells = table.columns[name]
    meanings = [parsed(cell) for cell in cells]
    pieces = [value for cell in meanings for value in (cell if isinstance(cell, list) else [cell])]
    is_list = any(isinstance(cell, list) for cell in meanings)
    odd = next((i for i, cell in enumerate(cells) if isinstance(cell, dict) or _is_nested(cell)), None)
    if odd is not None:
        raise ScanError(
            f"{table.where(odd)} has {cells[odd]!r} as {name}. Expected a name, a number, or a list of those."
        )
    if any(isinstance(value, float) for value in pieces) and all(is_number(value) or value is None for value in pieces):
        return regression(table, name, [cell if isinstance(cell, list) else [cell] for cell in meanings])
    if not is_list and None in meanings:
        raise ScanError(
            f"{table.where(meanings.index(None))} has no {name}. Expected a class; -1 says that there is none."
        )
    texts = [_texts(cell) for cell in cells]
    labels, found = _indices(table, name, texts, classes)
    if not is_list:
        return Labels(Column.of("int64", (row[0] for row in labels)), classes=found)
    flags = ([int(k in row) for k in range(len(found))] for row in map(set, labels))
    return Labels(Column.of("uint8", flags, len(found)), "multi-hot", found)


def as_multi_hot(targets: Column, count: int) -> Column:
    """Make a class of each input the list of that one class, of so many; -1 becomes none."""
    return Column.of("uint8", ([int(k == target) for k in range(count)] for target in targets.tolist()), count)


def regression(table: Table, name: str, rows: list[list[Any]]) -> Labels:
    """Make a vector of each input's numbers; raises ScanError where one is none, or they are not as many on each line."""
    count = len(rows[0]) if rows else 1
    for index, row in enumerate(rows):
        bad = next((value for value in row if not is_number(value) or not math.isfinite(value)), row)
        if bad is not row:
            found = "nothing" if bad is None else repr(bad)
            raise ScanError(f"{table.where(index)} has {found} as {name}. Expected a finite number, as on other lines.")
        if len(row) != count:
            raise ScanError(f"{table.where(index)} has {len(row)} numbers as {name}, {table.where(0)} has {count}.")
    return Labels(Column.of("float32", rows, count), "regression")


def _indices(
    table: Table, name: str, texts: list[list[str]], classes: tuple[str, ...] | None
) -> tuple[list[list[int]], tuple[str, ...]]:
    """Turn labels into class indices: names where they are names or --classes lists them, else the integers they are."""
    distinct = {text for row in texts for text in row}
    if classes is not None and distinct <= set(classes):
        found = classes
    elif all(_INTEGER.fullmatch(text) for text in distinct):
        return _integer_indices(table, name, texts, classes)
    elif classes is None and any(map(_NUMBER.fullmatch, distinct)):
        index, text = _first(texts, lambda text: not _NUMBER.fullmatch(text))
        other, number = _first(texts, lambda text: bool(_NUMBER.fullmatch(text)))
        raise ScanError(
            f"{table.where(index)} has {text!r} as {name}, {table.where(other)} has {number!r}. Expected numbers alone or"
            " names alone; if these are names, list them all with --classes."
        )
    else:
        found = tuple(sorted(distinct)) if classes is None else classes
        if classes is None:
            _check_repeated(table, name, texts, len(distinct))
    index_of = {text: i for i, text in enumerate(found)}
    unknown = distinct - set(found)
    if unknown:
        index, text = _first(texts, unknown.__contains__)
        raise _unknown(table.where(index), text, found)
    return [[index_of[text] for text in row] for row in texts], found


def _check_repeated(table: Table, name: str, texts: list[list[str]], distinct: int) -> None:
    """Refuse a column whose texts hardly ever come twice."""
    count = sum(map(len, texts))
    if distinct > max(_MANY_NAMES, _MOST_DISTINCT * count):
        example = next(text for row in texts for text in row)
        raise ScanError(
            f"{table.name} has {distinct} different texts among {count} as {name}, such as {example!r}: that is no class."
            " Name another --target-column; if they are classes, list them with --classes."
        )


def _integer_indices(
    table: Table, name: str, texts: list[list[str]], classes: tuple[str, ...] | None
) -> tuple[list[list[int]], tuple[str, ...]]:
    """Take integers as the indices they are; without a class list, classes are named by their numbers."""
    limit = _MOST_CLASSES if classes is None else len(classes)
    lowest = -1 if all(len(row) == 1 for row in texts) else 0
    labels = [[int(text) for text in row] for row in texts]
    for index, row in enumerate(labels):
        for value in row:
            if not lowest <= value < limit:
                raise ScanError(f"{table.where(index)} has {value} as {name}. Expected an index from 0 to {limit - 1}.")
    highest = max((value for row in labels for value in row), default=-1)
    return labels, tuple(map(str, range(highest + 1))) if classes is None else classes


def _unknown(where: str, name: str, classes: tuple[str, ...]) -> ScanError:
    return ScanError(f"{where} has the class {name!r} that --classes does not list ({len(classes)} classes).")


def _first(texts: list[list[str]], is_meant: Callable[[str], bool]) -> tuple[int, str]:
    return next((index, text) for index, row in enumerate(texts) for text in row if is_meant(text))


def _add_extra(labels: Labels, table: Table, name: str, cells: list[Any]) -> None:
    """Keep a column that holds numbers, or lists of as many numbers; of any other say why it is left out."""
    values = [parsed(cell) for cell in cells]
    numbers, shape, reason = values, None, unfit(name, labels.extras)
    if reason is None and isinstance(values[0], list) and values[0]:
        count = len(values[0])
        odd = next((i for i, row in enumerate(values) if not isinstance(row, list) or len(row) != count), None)
        if odd is None:
            numbers, shape = [value for row in values for value in row], count
            reason = _no_numbers(table, numbers, count)
        else:
            reason = f"{table.where(odd)} holds no list of {count} numbers"
    elif reason is None:
        reason = _no_numbers(table, numbers, 1)
    if reason is not None:
        labels.notes.append(f"the column {name!r} is left out: {reason}.")
        return
    dtype = _dtype(numbers)
    column = Column.of(dtype, (math.nan if value is None else value for value in numbers))
    labels.extras[name] = Column(dtype, shape, column.values)


def unfit(name: str, others: Collection[str]) -> str | None:
    """Say why an extra cannot have a name, beside others; None where it can."""
    if not EXTRA_NAME.fullmatch(name) or name in ("shape", "device", "_type"):
        return "its name cannot be that of a tensor (letters, digits, _ and -)"
    return "its name differs from another's in case alone" if name.lower() in map(str.lower, others) else None


def _no_numbers(table: Table, values: list[Any], count: int) -> str | None:
    """Say which of the values of a column is no number, None where all are; an empty cell is NaN among numbers."""
    odd = next((i for i, value in enumerate(values) if value is not None and not is_number(value, bool)), None)
    if odd is not None:
        return f"{table.where(odd // count)} holds {values[odd]!r}, which is no number"
    return "it is empty" if all(value is None for value in values) else None


def _dtype(values: list[Any]) -> str:
    """Return the dtype that holds all values exactly; integers beside an empty cell become float64, as elsewhere."""
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return "bool"
    return "int64" if kinds <= {int, bool} else "float64"


def is_number(value: Any, *more: type) -> bool:
    """Whether a parsed cell is a number, or of one more of these types."""
    return type(value) in (int, float, *more)


def parsed(cell: Any) -> Any:
    """Return what a cell means: an int64, a float, other text, a list of those where ; separates them, None if empty."""
    if isinstance(cell, str):
        text = cell.strip()
        if ";" in text:
            return [parsed(piece) for piece in text.split(";") if piece.strip()]
        if _INTEGER.fullmatch(text):
            return int(text)
        return float(text) if _NUMBER.fullmatch(text) or text.lower() in _SPECIAL else text or None
    if isinstance(cell, list):
        return [parsed(piece) for piece in cell]
    # an integer beyond int64
    return float(cell) if type(cell) is int and abs(cell) >= 1 << 63 else cell


def _is_nested(cell: Any) -> bool:
    return isinstance(cell, list) and any(isinstance(piece, list | dict) for piece in cell)


def _texts(cell: Any) -> list[str]:
    """Return a cell's labels as text: "cat; dog" -> ["cat", "dog"]."""
    if isinstance(cell, list):
        return [text for piece in cell for text in _texts(piece)]
    if isinstance(cell, str):
        return [text for piece in cell.split(";") if (text := piece.strip())]
    if cell is None:
        return []
    return [str(cell).lower() if isinstance(cell, bool) else str(cell)]
