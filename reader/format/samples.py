"""The lines of samples.jsonl, one per row, for a reader: the source of a row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

from reader.format.errors import StoreError
from reader.format.filesystem import error_path, open_regular
from reader.format.manifest import SAMPLES, Manifest
from reader.format.shown import brief, shown
from reader.format.values import text

# A target of a million numbers has 20 MB.
MOST_LINE_BYTES = 64 << 20


def read_line(out: Path, begin: int, number: int, row: int) -> dict[str, Any]:
    """Return a raw line of samples.jsonl: line `number`, from 0, after byte `begin`, where a line begins.

    Raises:
        StoreError: there is no such line, or it is not an object with a path.
    """
    with error_path(out / SAMPLES), open_regular(out / SAMPLES) as file:
        file.seek(begin)
        return _parsed(out, row, next(islice(_lines(file), number, None), b""))


def read_source_paths(out: Path, manifest: Manifest) -> list[str]:
    """Return the path of each row's source.

    Raises:
        StoreError: a line is not an object with a path, or there are not as many as rows.
    """
    with error_path(out / SAMPLES), open_regular(out / SAMPLES) as file:
        paths: list[str] = [_parsed(out, row, line)["path"] for row, line in enumerate(_lines(file))]
    if len(paths) != manifest.rows:
        raise StoreError(f"{out / SAMPLES} has {len(paths)} lines, the manifest says {manifest.rows} rows.")
    return paths


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield lines; a line above the limit is cut, and then fails to parse."""
    return iter(partial(file.readline, MOST_LINE_BYTES), b"")


def _parsed(out: Path, row: int, line: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(line)
        text(f"{brief(line)}", fields, "path")
    except (ValueError, RecursionError) as e:
        why = shown(str(e), most=300)
        raise StoreError(f"{out / SAMPLES}, row {row}: {why} Copy the store again, or pack again.") from None
    return fields
