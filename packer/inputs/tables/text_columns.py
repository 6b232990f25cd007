"""Columns of texts, as a table or a tar has them: kept with the rows as they are, character by character. Knows no tensor."""

from __future__ import annotations

from collections.abc import Callable

from packer.errors import ScanError
from packer.inputs.tables.cells import is_unicode
from packer.inputs.tables.labels import unfit
from packer.option_names import Option
from packer.text import counted
from reader.format.fields import Json
from reader.format.tensors import MOST_TEXT_BYTES

# What a batch, or the dict of a row, has under these names already.
_TAKEN = ("targets", "boxes", "box_targets", "box_count", "masks", "pixels", "content", "rows")


def take_texts(
    name: str,
    columns: dict[str, list[Json]],
    where: Callable[[int], str],
    asked: str | None,
    notes: list[str],
) -> dict[str, list[str]]:
    """Take the columns that --text-column names out of columns, and return them by name; an empty or missing cell is "".

    Args:
        name: that of the table, for an error; where(i) names input i.
        asked: one name, or several with commas between them; None: there are none.
        notes: how many cells are empty is added here.

    Raises:
        ScanError: there is no such column, its name cannot be kept, or a cell is no text in UTF-8.
    """
    if asked is None:
        return {}
    names = [asked] if asked in columns else asked.split(",")
    found: dict[str, list[str]] = {}
    for column in names:
        if column not in columns:
            known = ", ".join(columns) or "none beside the path"
            raise ScanError(f"{name} has no column {column!r}, which {Option('text_column')} names. It has: {known}.")
        others = {*found, *columns} - {column}
        if reason := "a batch has that name already" if column in _TAKEN else unfit(column, others):
            raise ScanError(f"the column {column!r} of {name} can be no text: {reason}. Rename it.")
        cells = columns.pop(column)
        found[column] = [_text(cell, column, where, index) for index, cell in enumerate(cells)]
        if empty := sum(not text for text in found[column]):
            notes.append(f"{empty:,} of {counted(len(cells), 'input', 'inputs')} have an empty {column}.")
    return found


def _text(cell: object, column: str, where: Callable[[int], str], index: int) -> str:
    """Return a cell as text; raises ScanError where it is none."""
    if cell is None:
        return ""
    if not isinstance(cell, str):
        raise ScanError(
            f"{where(index)} has {repr(cell)[:80]} as {column}. Expected text: one string, in quotes in a .jsonl."
        )
    if not is_unicode(cell):
        raise ScanError(f"{where(index)} is not UTF-8: it has {cell[:80]!r} as {column}. Save it as UTF-8.")
    if len(cell) * 4 > MOST_TEXT_BYTES and (size_bytes := len(cell.encode())) > MOST_TEXT_BYTES:
        raise ScanError(f"{where(index)} has {size_bytes:,} bytes as {column}, expected {MOST_TEXT_BYTES:,} at most.")
    return cell
