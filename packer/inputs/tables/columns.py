"""Columns of a table of labels: which cells are missing, and what classes the others are, by name or by number.

What labels mean is decided by all of a column, and each refusal names a line. Knows no file, and makes no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from packer.errors import ScanError
from packer.inputs.class_lists import MOST_CLASSES, numbered_classes, one_spelling, spelling_note
from packer.inputs.tables.cells import DECIMAL_COMMA, INTEGER, NUMBER, is_not_available, is_unicode, without_missing
from packer.option_names import Option
from packer.text import counted
from reader.format.fields import Json

# So many names, nearly as many as labels, are no classes: captions, file names.
_MANY_NAMES, _MOST_DISTINCT = 1_000, 0.9
_NO_CLASS = "-1"


@dataclass(frozen=True)
class Table:
    """What is known of each input beside its path: column name -> a cell an input. where(i) names input i in an error."""

    name: str
    columns: dict[str, list[Json]]
    where: Callable[[int], str]

    @classmethod
    def of(
        cls,
        name: str,
        columns: dict[str, list[Json]],
        where: Callable[[int], str],
        missing: Collection[str],
        classes: tuple[str, ...] | None,
    ) -> Table:
        """Make a table whose missing cells are None; missing are further words for one, classes names that stand for none."""
        known = {column: without_missing(cells, missing, classes or ()) for column, cells in columns.items()}
        return cls(name, known, where)


def class_indices(
    table: Table, name: str, rows: list[list[str]], classes: tuple[str, ...] | None, notes: list[str], *, is_list: bool
) -> tuple[list[list[int]], tuple[str, ...]]:
    """Turn labels into class indices: names where one is no integer or --classes lists one, else the integers they are.

    Among those -1 is no class, unless --classes lists it, where a row has one label.
    """
    _check_encoding(table, name, rows)
    one = one_spelling({text for row in rows for text in row}, classes or ())
    if one:
        rows = [[one.get(text, text) for text in row] for row in rows]
        notes += spelling_note(one)
    distinct = {text for row in rows for text in row}
    # one that is not listed is then refused: an integer among names would change what all of them mean
    if classes is not None and not distinct.isdisjoint(classes):
        found = classes
    elif all(INTEGER.fullmatch(text) for text in distinct):
        return _integer_indices(table, name, rows, classes, notes, is_list=is_list)
    else:
        if classes is None:
            _check_names(table, name, rows, distinct)
            notes += _name_note(name, rows, distinct)
        found = tuple(sorted(distinct)) if classes is None else classes
    index_of = {} if is_list else {_NO_CLASS: -1}
    index_of |= {text: i for i, text in enumerate(found)}
    unknown = distinct - set(index_of)
    if unknown:
        index, text = _first(rows, unknown.__contains__)
        raise unknown_class(table.where(index), text, found)
    return [[index_of[text] for text in row] for row in rows], found


def _check_encoding(table: Table, name: str, rows: list[list[str]]) -> None:
    """Refuse names in another encoding than UTF-8, whose bytes came through as surrogates (PEP 383)."""
    for index, row in enumerate(rows):
        for text in row:
            if not is_unicode(text):
                raise ScanError(f"{table.where(index)} is not UTF-8: it has {text!r} as {name}. Save it as UTF-8.")


def _check_names(table: Table, name: str, rows: list[list[str]], distinct: Collection[str]) -> None:
    """Refuse names some of which are numbers, and a column whose texts hardly ever come twice."""
    if any(map(DECIMAL_COMMA.fullmatch, distinct)):
        index, text = _first(rows, lambda text: bool(DECIMAL_COMMA.fullmatch(text)))
        raise ScanError(
            f"{table.where(index)} has {text!r} as {name}. Expected a point in a number; if this is a name, list all of them"
            f" with {Option('classes')}."
        )
    if any(map(NUMBER.fullmatch, distinct)):
        index, text = _first(rows, lambda text: not NUMBER.fullmatch(text))
        other, number = _first(rows, lambda text: bool(NUMBER.fullmatch(text)))
        raise ScanError(
            f"{table.where(index)} has {text!r} as {name}, {table.where(other)} has {number!r}. Expected numbers alone or"
            f" names alone; if these are names, list them all with {Option('classes')}; if {text!r} is no label, give"
            f" {Option('missing', text)}."
        )
    count = sum(map(len, rows))
    if len(distinct) > max(_MANY_NAMES, _MOST_DISTINCT * count):
        example = next(text for row in rows for text in row)
        raise ScanError(
            f"{table.name} has {len(distinct)} different texts among {count} as {name}, such as {example!r}: that is no class."
            f" Name another {Option('target_column')}; if they are classes, list them with {Option('classes')}."
        )


def _name_note(name: str, rows: list[list[str]], distinct: Collection[str]) -> list[str]:
    """Report classes that may stand for a missing label."""
    odd = sorted(filter(is_not_available, distinct))
    return [
        f"{counted(sum(text in row for row in rows), 'input has', 'inputs have')} the class {text!r} as {name};"
        f" if that is no label, give {Option('missing', text)}."
        for text in odd
    ]


def missing_note(table: Table, name: str, cells: list[Json]) -> list[str]:
    """Report how many labels are missing, and the first of them."""
    missing = [i for i, cell in enumerate(cells) if cell is None or (isinstance(cell, list) and set(cell) == {None})]
    if not missing:
        return []
    return [
        f"{len(missing):,} of {counted(len(cells), 'input', 'inputs')} {'has' if len(missing) == 1 else 'have'} no {name},"
        f" {table.where(missing[0])} first: {'it has' if len(missing) == 1 else 'they have'} no class."
    ]


def integer_note(name: str) -> list[str]:
    """Report a column of numbers such as 3.0, which may be classes."""
    return [
        f"the column {name!r} holds integers written with a point: regression targets. For classes write 3, not 3.0, or"
        f" give {Option('classes')}."
    ]


def _integer_indices(
    table: Table, name: str, rows: list[list[str]], classes: tuple[str, ...] | None, notes: list[str], *, is_list: bool
) -> tuple[list[list[int]], tuple[str, ...]]:
    """Take integers as the indices they are; without a class list, classes are named by their numbers."""
    limit = MOST_CLASSES if classes is None else len(classes)
    lowest = 0 if is_list else -1
    labels = [[int(text[:20]) for text in row] for row in rows]
    for index, row in enumerate(labels):
        for value in row:
            if not lowest <= value < limit:
                ids = (
                    f" If these are ids, list them in a file, one a line, and give that as {Option('classes')}."
                    if classes is None
                    else ""
                )
                raise ScanError(
                    f"{table.where(index)} has {value} as {name}. Expected an index from 0 to {limit - 1}.{ids}"
                )
    if classes is None:
        numbers = {value for row in labels for value in row}
        highest = max(numbers, default=-1)
        first = next((table.where(index) for index, row in enumerate(labels) if highest in row), "")
        classes, gaps = numbered_classes(numbers, f"the column {name!r}", first)
        notes += gaps
    return labels, classes


def _first(rows: list[list[str]], is_meant: Callable[[str], bool]) -> tuple[int, str]:
    return next((index, text) for index, row in enumerate(rows) for text in row if is_meant(text))


def unknown_class(where: str, name: str, classes: tuple[str, ...]) -> ScanError:
    """Say that a class, which `where` has, is not in the imposed list."""
    return ScanError(f"{where} has the class {name!r} that {Option('classes')} does not list ({len(classes)} classes).")
