"""From columns of cells to tensors: which column is the target, of what kind it is, and which others become extras.

Cells are as `packer.inputs.tables.cells` knows them. Knows no file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from packer.errors import ScanError
from packer.inputs.class_lists import one_spelling, spelling_note
from packer.inputs.samples import Column
from packer.inputs.tables.cells import INTEGER, is_nested, is_number, parsed, texts
from packer.inputs.tables.columns import Table, class_indices, integer_note, missing_note, unknown_class
from packer.option_names import Option
from packer.text import some
from reader.format.fields import Json
from reader.format.manifest import EXTRA_NAME, FurtherTarget

# the first of these that there is holds the target, unless --target-column names another
TARGET_COLUMNS = ("target", "label", "class", "cls")

# What float32 rounds to its largest number, and not to infinity.
MOST_FLOAT32 = 3.4028235677973362e38


@dataclass
class Labels:
    """Targets and extras of all inputs, and the class list."""

    targets: Column
    kind: str = "class"
    classes: tuple[str, ...] = ()
    extras: dict[str, Column] = field(default_factory=dict)
    further_targets: dict[str, FurtherTarget] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    # the columns that the targets are from, as --target-column names them
    target_column: str = ""


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
            expected, found = ", ".join(TARGET_COLUMNS), some([*table.columns])
            made.notes.append(
                f"{table.name} has none of the columns {expected}: no labels; {Option('target_column')} names one of {found}."
            )
    elif len(names) > 1:
        columns = [[parsed(cell) for cell in table.columns[name]] for name in names]
        made = regression(table, ",".join(names), [list(row) for row in zip(*columns, strict=True)])
    else:
        made = single(table, names[0], classes, accepts_integral_floats=classes is not None)
    add_extras(made, table, names)
    return made


def add_extras(labels: Labels, table: Table, names: Sequence[str]) -> None:
    """Make an extra of each column of numbers that is none of the target columns; say which others are left out, and why."""
    for name, cells in table.columns.items():
        if name not in names:
            _add_extra(labels, table, name, cells)


def name_targets(names: Sequence[str | None], classes: tuple[str, ...] | None, where: Callable[[int], str]) -> Labels:
    """Make class targets of one name an input, None for no class; classes are the sorted names, or the imposed list.

    Raises:
        ScanError: a name is not in the imposed list.
    """
    one = one_spelling({name for name in names if name is not None}, classes or ())
    names = [name if name is None else one.get(name, name) for name in names]
    found = tuple(sorted({name for name in names if name is not None})) if classes is None else classes
    index: dict[str | None, int] = {None: -1, **{name: i for i, name in enumerate(found)}}
    for position, name in enumerate(names):
        if name is not None and name not in index:
            raise unknown_class(where(position), name, found)
    targets = Column.of("int64", (index[name] for name in names))
    return Labels(targets, classes=found, notes=spelling_note(one))


def target_names(table: Table, asked: str | None) -> list[str]:
    """Return the columns that hold targets: those asked for, or the usual one; raises ScanError where there is none of a name."""
    if asked is None:
        usual = {name.lower(): name for name in reversed(table.columns)} | {name: name for name in table.columns}
        return [usual[name] for name in TARGET_COLUMNS if name in usual][:1]
    names = [asked] if asked in table.columns else asked.split(",")
    for name in names:
        if name not in table.columns:
            known = ", ".join(table.columns) or "none beside the path"
            raise ScanError(
                f"{table.name} has no column {name!r}, which {Option('target_column')} names. It has: {known}."
            )
    return names


def single(
    table: Table, name: str, classes: tuple[str, ...] | None, *, accepts_integral_floats: bool = False
) -> Labels:
    """Decide by all cells of the target column what it holds.

    Args:
        accepts_integral_floats: 3.0 is the class 3, since something else says that these are classes. So it is where cells are
            missing, as pandas then writes integers so.
    """
    cells = table.columns[name]
    meanings = [parsed(cell) for cell in cells]
    is_list = any(isinstance(cell, list) for cell in meanings)
    odd = next((i for i, cell in enumerate(cells) if isinstance(cell, dict) or is_nested(cell)), None)
    if odd is not None:
        raise ScanError(
            f"{table.where(odd)} has {repr(cells[odd])[:80]} as {name}. Expected a name, a number, or a list of those."
        )
    pieces = [value for cell in meanings for value in (cell if isinstance(cell, list) else [cell])]
    numbers = [value for value in pieces if value is not None]
    notes: list[str] = []
    # an integer beyond int64 is parsed as a float, and stays an id
    is_decimal = any(isinstance(value, float) for value in numbers) and not all(
        INTEGER.fullmatch(text) for cell in cells for text in texts(cell)
    )
    if is_decimal and all(map(is_number, numbers)):
        is_integral = not is_list and all(float(value).is_integer() for value in numbers)
        if not is_integral or not (accepts_integral_floats or None in meanings):
            made = regression(table, name, [cell if isinstance(cell, list) else [cell] for cell in meanings])
            made.notes += integer_note(name) if is_integral else []
            return made
        cells = [None if value is None else int(value) for value in meanings]
    labels, found = class_indices(table, name, [texts(cell) for cell in cells], classes, notes, is_list=is_list)
    notes += missing_note(table, name, cells)
    if not is_list:
        return Labels(Column.of("int64", (row[0] if row else -1 for row in labels)), classes=found, notes=notes)
    flags = ([int(k in row) for k in range(len(found))] for row in map(set, labels))
    return Labels(Column.of("uint8", flags, len(found)), "multi-hot", found, notes=notes)


def as_multi_hot(targets: Column, count: int) -> Column:
    """Make a class of each input the list of that one class, of so many; -1 becomes none."""
    return Column.of("uint8", ([int(k == target) for k in range(count)] for target in targets.tolist()), count)


def regression(table: Table, name: str, rows: list[list[Json]]) -> Labels:
    """Make a vector of each input's numbers; raises ScanError where one is none, or they are not as many on each line."""
    count = len(rows[0]) if rows else 1
    for index, row in enumerate(rows):
        bad = next((value for value in row if not is_number(value) or not math.isfinite(value)), row)
        if bad is not row:
            found = "nothing" if bad is None else repr(bad)
            more = "; leave out a line that has none" if bad is None else ""
            raise ScanError(
                f"{table.where(index)} has {found} as {name}. Expected a finite number, as on other lines{more}."
            )
        if (most := max(row, key=abs, default=0)) and abs(most) >= MOST_FLOAT32:
            raise ScanError(
                f"{table.where(index)} has {most!r} as {name}, more than float32 holds (3.4e38). Scale the targets."
            )
        if len(row) != count:
            raise ScanError(f"{table.where(index)} has {len(row)} numbers as {name}, {table.where(0)} has {count}.")
    return Labels(Column.of("float32", rows, count), "regression")


def _add_extra(labels: Labels, table: Table, name: str, cells: list[Json]) -> None:
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


def _no_numbers(table: Table, values: list[Json], count: int) -> str | None:
    """Say which of the values of a column is no number, None where all are; an empty cell is NaN among numbers."""
    odd = next((i for i, value in enumerate(values) if value is not None and not is_number(value, bool)), None)
    if odd is not None:
        return f"{table.where(odd // count)} holds {values[odd]!r}, which is no number"
    return "it is empty" if all(value is None for value in values) else None


def _dtype(values: list[Json]) -> str:
    """Return the dtype that holds all values exactly; integers beside an empty cell become float64, as elsewhere."""
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return "bool"
    return "int64" if kinds <= {int, bool} else "float64"
