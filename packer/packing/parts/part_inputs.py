"""The inputs of a part, saved beside its rows, by which `pack seal` needs neither IMAGES nor options."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

from packer.errors import PackError
from packer.inputs.paths import Paths
from packer.inputs.samples import Column, Inputs
from packer.options import OutputOptions
from packer.packing.resume import header_difference
from packer.store import journal as journals
from packer.store.files import write_atomically
from packer.store.parts import Part, started_parts
from packer.store.state import out_of
from reader.format.shown import redacted

_INPUTS = f"{journals.FOLDER}/inputs.json"


def check_siblings(out: Path, part: Part, header: journals.Header) -> None:
    """Refuse a part of other inputs, options or decoders than another part of OUT that is in progress or done."""
    other = next((other for other in started_parts(out) if other != part), None)
    if other is None:
        return
    found = journals.read_header(other.folder(out))
    if what := header_difference(found, header):
        raise PackError(f"part {other} of {out_of(out)} was started with {what}. Pack all parts with the same.")


def block_inputs_in_progress(out: Path, part: Part, options: OutputOptions) -> int | None:
    """Return how many inputs a block has in the parts of OUT that are there; None where none is, or this one alone, again."""
    headers = (
        journals.read_header(other.folder(out))
        for other in started_parts(out)
        if other != part or not options.overwrite
    )
    return next((header.block_inputs for header in headers), None)


def save_inputs(folder: Path, inputs: Inputs, span: range) -> None:
    """Keep in a part's folder what sealing must know of its inputs, so that it needs neither IMAGES nor the options."""
    columns = {
        name: {"dtype": column.dtype, "count": column.count, "values": column.chosen(span).values.tolist()}
        for name, column in inputs.columns().items()
    }
    known = {
        "root": redacted(inputs.base),
        "paths": inputs.paths[span.start : span.stop],
        "cells": inputs.cells[span.start : span.stop],
        "classes": inputs.classes,
        "target_kind": inputs.target_kind,
        "ignored": inputs.ignored,
        "notes": inputs.notes,
        "columns": columns,
    }
    write_atomically(folder / _INPUTS, json.dumps(known).encode("ascii"))


def load_inputs(folders: list[Path]) -> Inputs:
    """Put together what the parts have saved of their inputs, in order."""
    known: dict[str, Any] = {}
    columns: dict[str, Column] = {}
    paths, cells = Paths(), Paths()
    for folder in folders:
        known = json.loads((folder / _INPUTS).read_bytes())
        paths.extend(known["paths"])
        cells.extend(known["cells"])
        for name, saved in known["columns"].items():
            column = columns.setdefault(name, Column.of(saved["dtype"], (), saved["count"]))
            column.values.extend(array(column.values.typecode, saved["values"]))
    return Inputs(
        root=Path(),
        paths=paths,
        cells=cells,
        url=known["root"],
        classes=tuple(known["classes"]),
        target_kind=known["target_kind"],
        ignored=known["ignored"],
        notes=known["notes"],
        targets=columns.pop("targets"),
        lines=columns.pop("lines"),
        members=columns.pop("members"),
    )
