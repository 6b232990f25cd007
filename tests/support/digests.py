"""Digests of what loaders give, and the tables of them in tests/golden/digests, which were taken once."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from reader import ImageBatch, RaggedBatch

FOLDER = Path(__file__).parents[1] / "golden" / "digests"

# name of a case -> name of a kind -> digests of each pass, or the sentence of the refusal
Table = dict[str, dict[str, str]]


def digest(values: object) -> str:
    """Return the CRC of all that is in a batch, a tensor or a nest of them: bytes, shapes, dtypes and names."""
    return f"{_crc(values, 0):08x}"


def contents(batch: ImageBatch | RaggedBatch) -> dict[str, Any]:
    """Return what is in a batch, by name, as its public attributes show it."""
    extras = {} if batch.extras is None else {name: batch.extras[name] for name in sorted(batch.extras.keys())}
    found: dict[str, Any] = {"images": batch.images, "targets": batch.targets, "rows": batch.rows}
    # a batch once had texts: what was taken of those without stays
    found |= {"extras": extras, "texts": {}}
    if isinstance(batch, RaggedBatch):
        return found | {"masks": [batch.mask(index) for index in range(len(batch))]}
    return found | {"content": batch.content}


def _crc(value: object, crc: int) -> int:
    match value:
        case ImageBatch() | RaggedBatch():
            return _crc(contents(value), crc)
        case torch.Tensor():
            head = f"{value.dtype} {list(value.shape)}\n".encode()
            # a tensor without a dimension has no bytes to view
            flat = value.detach().cpu().contiguous().reshape(-1)
            return zlib.crc32(flat.view(torch.uint8).numpy().tobytes(), zlib.crc32(head, crc))
        case Mapping():
            return _crc([[name, value[name]] for name in sorted(value)], crc)
        case list() | tuple():
            crc = zlib.crc32(f"{len(value)} values\n".encode(), crc)
            for each in value:
                crc = _crc(each, crc)
            return crc
        case None | bool() | int() | float() | str():
            return zlib.crc32(f"{value!r}\n".encode(), crc)
    raise TypeError(f"there is no digest of a {type(value).__name__}")


def recorded(name: str) -> Table:
    """Return a table as it was taken."""
    table: Table = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return table


def record(name: str, table: Table) -> None:
    """Write a table, a line for each digest."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps(table, indent=1, sort_keys=True, ensure_ascii=False)
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def changed(found: Table, expected: Table) -> dict[str, str]:
    """Return each entry that is not as it was taken: {"RandomCrop of gray": "... became ..."}."""
    lines = {}
    for case in sorted(found.keys() | expected.keys()):
        ours, theirs = found.get(case, {}), expected.get(case, {})
        for kind in sorted(ours.keys() | theirs.keys()):
            if ours.get(kind) != theirs.get(kind):
                lines[f"{case} of {kind}"] = f"{theirs.get(kind)} became {ours.get(kind)}"
    return lines
