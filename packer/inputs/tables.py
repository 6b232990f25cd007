"""Tables of paths and labels: .csv, .tsv, .jsonl and .parquet, read line by line. The only module that knows pyarrow.

Knows which column holds the paths and which the targets; `labels` knows the meaning of targets.
"""

from __future__ import annotations

import csv
import itertools
import json
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packer.errors import ScanError
from packer.inputs.labels import give_labels
from packer.inputs.lists import check_path, listed
from packer.inputs.names import NameFilter, is_image
from packer.inputs.samples import Inputs, Paths
from packer.option_names import Option
from packer.options import InputOptions
from packer.sources.roots import check_system
from packer.text import some
from reader.format.values import Json

# The first of these columns that exists, in upper or lower case, holds the paths, unless --path-column names another.
# file_name is from Hugging Face's metadata.csv; the others are from users of Kaggle and torchvision.
PATH_COLUMNS = ("path", "filepath", "file_path", "image_path", "file_name", "filename", "file", "image")
# the first of these columns that exists holds the target, unless --target-column names another
TARGET_COLUMNS = ("target", "label", "class", "cls")

_PARQUET_BATCH = 4096


def read_table(path: Path, classes: tuple[str, ...] | None, options: InputOptions) -> Inputs:
    """Read a table: a column of paths, one or more of targets; all others are kept in samples.jsonl.

    Raises:
        ScanError: it cannot be read, or a line is wrong; names the line.
    """
    name_filter, unit = NameFilter(), "row" if path.suffix.lower() == ".parquet" else "line"
    names, lines, cells = Paths(), array("q"), Cells(str(path), options.target_column)
    column = None
    try:
        for line, record in _records(path):
            name_filter.count()
            column = column or options.path_column or _usual(record, PATH_COLUMNS)
            if column is None or column not in record:
                known = ", ".join(record) or "none"
                raise ScanError(
                    f"{unit} {line} of {path} has no column {column or 'path'!r}. It has: {known}."
                    f" {Option('path_column')} of pack names another."
                )
            lines.append(line)
            names.append(check_path(record.pop(column), f"{unit} {line} of {path}"))
            cells.add(record)
    except OSError as e:
        check_system(str(path), e)
        raise ScanError(f"{path} cannot be read: {e.strerror or e}.") from None
    inputs, taken = listed(names, lines, path.absolute().parent, options, name_filter, unit, str(path))
    inputs.cells = Paths(map(cells.further.__getitem__, taken))
    inputs.labels["path_column"] = column
    if cells.targets:
        targets = {name: [column[index] for index in taken] for name, column in cells.targets.items()}

        def where(index: int) -> str:
            """Name the line of an input."""
            return f"{unit} {inputs.line(index)} of {path}"

        give_labels(inputs, targets, where, classes, options.label_separator)
    elif cells.others:
        inputs.notes.append(
            f"{path} has none of the columns {', '.join(TARGET_COLUMNS)}: no labels; {Option('target_column')} names one of"
            f" {some(cells.others)}."
        )
    return inputs


@dataclass
class Cells:
    """The cells of the target columns, and all others of an input as one JSON object.

    Attributes:
        asked: the target columns, as --target-column names them.
        is_optional: an input may lack them.
    """

    source: str
    asked: str | None
    is_optional: bool = False
    targets: dict[str, list[Json]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    further: Paths = field(default_factory=Paths)

    def add(self, record: dict[str, Json]) -> None:
        """Add an input's cells by column; raises ScanError if the first input lacks a requested column."""
        if not self.targets:
            self.others = [*record]
            self.targets = {name: [None] * len(self.further) for name in self._target_columns(record)}
        for name, cells in self.targets.items():
            cells.append(record.pop(name, None))
        self.further.append(json.dumps(record, separators=(",", ":"), default=str))

    def _target_columns(self, record: Mapping[str, Json]) -> list[str]:
        if self.asked is None:
            usual = _usual(record, TARGET_COLUMNS)
            return [] if usual is None else [usual]
        names = [self.asked] if self.asked in record else self.asked.split(",")
        if self.is_optional:
            return names if record.keys() >= {*names} else []
        for name in names:
            if name not in record:
                known = ", ".join(record) or "none beside the path"
                raise ScanError(
                    f"{self.source} has no column {name!r}, which {Option('target_column')} names. It has: {known}."
                )
        return names


def _usual(record: Collection[str], names: Iterable[str]) -> str | None:
    """Return the column with the first of these names that exists, in any case."""
    known = {column.lower(): column for column in reversed([*record])}
    return next((known[name] for name in names if name in known), None)


def _records(path: Path) -> Iterator[tuple[int, dict[str, Json]]]:
    """Yield the number of each line, or of each row of a .parquet, and its cells by column."""
    return {".parquet": _parquet_records, ".jsonl": _json_records}.get(path.suffix.lower(), _csv_records)(path)


def _csv_records(path: Path) -> Iterator[tuple[int, dict[str, Json]]]:
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        header: list[str] = []
        line = 1
        try:
            for cells in reader:
                if cells and not header:
                    header = [name.strip() for name in cells]
                    _check_header(header, f"line {line} of {path}")
                elif cells:
                    if len(cells) != len(header):
                        raise ScanError(f"line {line} of {path} has {len(cells)} cells, its header has {len(header)}.")
                    yield line, dict(zip(header, cells, strict=True))
                line = reader.line_num + 1
        except csv.Error as e:
            raise ScanError(f"line {line} of {path} is not valid {path.suffix[1:]}: {e}.") from None


def _check_header(header: list[str], where: str) -> None:
    if image := next(filter(is_image, header), ""):
        raise ScanError(
            f"{where} has {image!r} where the names of columns are expected. Put a line with them, path and label, above it."
        )
    if len({*header}) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise ScanError(f"{where}, the header, names the column {twice!r} twice.")


def _json_records(path: Path) -> Iterator[tuple[int, dict[str, Json]]]:
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as e:
                raise ScanError(f"line {line} of {path} is not JSON: {e}.") from None
            if not isinstance(record, dict):
                raise ScanError(f'line {line} of {path} is not a JSON object. Expected {{"path": ..., ...}}.')
            yield line, record


def _parquet_records(path: Path) -> Iterator[tuple[int, dict[str, Json]]]:
    """Yield the number of each row, from 1, and its cells; columns of bytes and of structures are not read."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ScanError(f"{path} needs pyarrow: pip install pyarrow, or write it as a .csv.") from None
    try:
        with parquet.ParquetFile(path) as file:
            columns = [field.name for field in file.schema_arrow if not _is_binary(field.type)]
            batches = (batch.to_pylist() for batch in file.iter_batches(_PARQUET_BATCH, columns=columns))
            yield from enumerate(itertools.chain.from_iterable(batches), start=1)
    except pyarrow.ArrowException as e:
        raise ScanError(f"{path} is not valid parquet: {' '.join(str(e).split())[:200]}.") from None


def _is_binary(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_struct(kind) or types.is_binary(kind) or types.is_large_binary(kind))
