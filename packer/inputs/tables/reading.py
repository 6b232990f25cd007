"""Tables as records, a line or row after the other: .csv, .tsv, .jsonl and .parquet. The only module that knows pyarrow.

Knows which column holds the paths, and nothing of what they name.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from packer.errors import ScanError
from packer.inputs.tables.cells import is_unicode
from packer.option_names import Option
from reader.format.fields import Json

# The first of these that there is, in any case, holds the paths, unless --path-column names another. file_name is that of
# Hugging Face's metadata.csv, the others are those of Kaggle's and torchvision's users.
PATH_COLUMNS = ("path", "filepath", "file_path", "image_path", "file_name", "filename", "file", "image")

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_DELIMITERS = ",;\t"
_PARQUET_BATCH = 4096


def path_column(names: Collection[str], asked: str | None) -> str | None:
    """Return which of these columns holds the paths; None where none does."""
    if asked is not None:
        return asked if asked in names else None
    usual = {name.lower(): name for name in reversed([*names])} | {name: name for name in names}
    return next((usual[name] for name in PATH_COLUMNS if name in usual), None)


def read_records(path: Path, asked: str | None, notes: list[str]) -> Iterator[tuple[int, dict[str, Json]]]:
    """Yield the number of each line, or of each row of a .parquet, and its cells by column.

    Args:
        asked: the column of paths, where the user names it.
        notes: what the user should know of columns that cannot be read is added here.

    Raises:
        ScanError: it is not as such a file should be; names the line.
        OSError: it cannot be read.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            yield from _parquet_records(path, asked, notes)
        elif suffix == ".jsonl":
            yield from _json_records(path)
        else:
            yield from _csv_records(path, "\t" if suffix == ".tsv" else ",", asked)
    except UnicodeError as e:
        raise ScanError(f"{path} is not the UTF-16 that its first bytes say: {e}. Save it as UTF-8.") from None


def _csv_records(path: Path, usual: str, asked: str | None) -> Iterator[tuple[int, dict[str, Json]]]:
    """Yield each line's first number and its cells by column."""
    with open(path, encoding=_encoding(path), errors="surrogateescape", newline="") as file:
        # blank lines are no header
        delimiter = _delimiter(next(filter(str.strip, file), ""), usual, asked)
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        line = 1
        try:
            for cells in reader:
                if cells and header is None:
                    header = [name.strip() for name in cells]
                    _check_header(header, line, path)
                elif cells and header is not None:
                    if len(cells) != len(header):
                        raise ScanError(f"line {line} of {path} has {len(cells)} cells, its header has {len(header)}.")
                    yield line, dict(zip(header, cells, strict=True))
                line = reader.line_num + 1
        except csv.Error as e:
            raise ScanError(f"line {line} of {path} is not as a {path.suffix[1:]} should be: {e}.") from None


def _delimiter(header: str, usual: str, asked: str | None) -> str:
    """Return what separates cells: what makes a column of paths of the header, as Excel writes ; where a comma is in numbers."""
    for delimiter in (usual, *_DELIMITERS):
        cells = next(csv.reader([header], delimiter=delimiter), [])
        if path_column([cell.strip() for cell in cells], asked) is not None:
            return delimiter
    return usual


def _check_header(header: list[str], line: int, path: Path) -> None:
    if not all(map(is_unicode, header)):
        odd = next(column for column in header if not is_unicode(column))
        raise ScanError(f"line {line} of {path} is not UTF-8: it has {odd!r} as a column's name. Save it as UTF-8.")
    twice = next((column for column in header if header.count(column) > 1), None)
    if twice is not None:
        raise ScanError(f"line {line} of {path}, the header, names the column {twice!r} twice.")


def _json_records(path: Path) -> Iterator[tuple[int, dict[str, Json]]]:
    line = 0
    with open(path, encoding=_encoding(path), errors="surrogateescape", newline="\n") as file:
        try:
            for line, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                record = json.loads(text)
                if not isinstance(record, dict):
                    raise ScanError(f'line {line} of {path} is not a JSON object. Expected {{"path": ..., ...}}.')
                yield line, record
        except (ScanError, UnicodeError):
            raise
        except (ValueError, RecursionError) as e:
            raise ScanError(f"line {line} of {path} is not JSON: {e}.") from None


def _encoding(path: Path) -> str:
    """Recognize UTF-16, as Excel and PowerShell write it, by its mark; all else is UTF-8, with a mark or without."""
    with open(path, "rb") as file:
        return "utf-16" if file.read(2) in UTF16_MARKS else "utf-8-sig"


def _parquet_records(path: Path, asked: str | None, notes: list[str]) -> Iterator[tuple[int, dict[str, Json]]]:
    """Yield the number of each row, from 1, and its cells; columns of bytes, times and the like are not read."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ScanError(f"{path} needs pyarrow: pip install pyarrow, or write it as a .csv.") from None
    try:
        with parquet.ParquetFile(path) as file:
            kinds = {field.name: field.type for field in file.schema_arrow}
            left_out = [name for name, kind in kinds.items() if not _is_plain(kind)]
            if (column := path_column([*kinds], asked)) in left_out:
                raise ScanError(
                    f"the column {column!r} of {path} holds {_shown(kinds[column])}, expected paths of files. Write the"
                    f" images to files first, or name another {Option('path_column')}."
                )
            notes += [
                f"the column {name!r} is left out: it holds {_shown(kinds[name])}, no numbers." for name in left_out
            ]
            columns = [name for name in kinds if name not in left_out]
            batches = (batch.to_pylist() for batch in file.iter_batches(_PARQUET_BATCH, columns=columns))
            yield from enumerate(itertools.chain.from_iterable(batches), start=1)
    except pyarrow.ArrowException as e:
        raise ScanError(f"{path} is not as a parquet should be: {' '.join(str(e).split())[:200]}.") from None


def _is_plain(kind: Any) -> bool:
    """Whether a column of this type holds numbers, text, or lists of those."""
    from pyarrow import types

    if types.is_dictionary(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type)
    tests = (
        types.is_integer,
        types.is_floating,
        types.is_boolean,
        types.is_string,
        types.is_large_string,
        types.is_null,
    )
    return any(test(kind) for test in tests)


def _shown(kind: object) -> str:
    return str(kind)[:60]
