"""The content of each row in a store's files, by FORMAT.md: classes by name, boxes without free slots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reader import MemmapDataset


def manifest_of(store: Path) -> dict[str, Any]:
    """Read manifest.json."""
    manifest: dict[str, Any] = json.loads((store / "manifest.json").read_text())
    return manifest


def rows_of(store: Path) -> list[dict[str, Any]]:
    """Return the content of each row: values that can be compared with ==."""
    head, data = manifest_of(store), MemmapDataset(store, as_tuple=False)
    lines = [json.loads(line) for line in (store / "samples.jsonl").read_text().splitlines()]
    targets = _targets(store, head).tolist()
    rows = []
    for number, line in enumerate(lines):
        item = data[number]
        row = {name: value for name, value in line.items() if name != "target"}
        row["target"] = _named(targets[number], head["targets"]["kind"], head["classes"])
        row["line's target"] = _named(line["target"], head["targets"]["kind"], head["classes"])
        row["pixels"] = _plain(item.pixels)
        row["content"] = None if item.content is None else item.content.tolist()
        extras = {} if item.extras is None else {name: np.asarray(value) for name, value in item.extras.items()}
        boxes = extras["box_count"].item() if "box_count" in extras else None
        for name, value in extras.items():
            if name == "box_targets":
                row[name] = [head["classes"][target] for target in value[:boxes].tolist()]
            elif name == "boxes":
                row[name] = value[:boxes].tolist()
            else:
                row[name] = _plain(value)
        rows.append(row)
    return rows


def _targets(store: Path, head: dict[str, Any]) -> Any:
    kind, count = head["targets"]["kind"], head["targets"]["count"]
    dtype = {"class": "<i8", "regression": "<f4", "multi-hot": "<f4"}[kind]
    values = np.fromfile(store / "_tensordict" / "targets.memmap", dtype)
    return values if count is None else values.reshape(-1, count)


def _plain(values: Any) -> tuple[tuple[int, ...], bytes]:
    array = np.ascontiguousarray(values)
    return array.shape, array.tobytes()


def _named(target: Any, kind: str, classes: Sequence[str]) -> object:
    """Return a target by the names of its classes, if they have names."""
    if kind == "regression" or not classes:
        return target
    if kind == "multi-hot":
        return {name for name, flag in zip(classes, target, strict=True) if flag}
    return None if target < 0 else classes[target]
