"""Targets and extras that a user gives in place of a store's, or in addition: the store does not change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reader.dataset.opened_store import OpenedStore
from reader.dataset.splits import class_names
from reader.format.manifest import EXTRA_NAME, TARGET_DTYPES, FileEntry, Manifest
from reader.format.row_values import has_boxes
from reader.format.tensors import ITEM_BYTES, TensorSpec, metadata_names
from reader.rows import Rows

# One value, or one row of values, for each row of a dataset.
ColumnData = Sequence[Any] | torch.Tensor | npt.NDArray[Any]


def with_targets(opened: OpenedStore, rows: Rows, targets: ColumnData, classes: Sequence[str] | None) -> OpenedStore:
    """Return the store with other targets for these rows; the others have none (-1, or zeros).

    targets: int64[B] (-1: no label), bool or uint8[B, K] of 0 and 1, or float[B, K].

    Raises:
        ValueError: they are none of these, or contradict the classes.
    """
    m, values = opened.manifest, _tensor("targets", targets, len(rows))
    kind = _kind_of(values)
    # torch compares no unsigned integers of 16 bits and more
    values = values.to(torch.int64) if kind == "class" else values
    names = m.classes if classes is None else tuple(map(str, class_names(classes)))
    if classes is not None and len({*names}) < len(names):
        raise ValueError("classes has a name twice.")
    if classes is not None and names != m.classes and has_boxes(m):
        raise ValueError(f"the boxes of {opened.path} are of its own classes: with_targets cannot change the list.")
    if kind == "regression" and not has_boxes(m):
        names = () if classes is None else names
    if kind == "multi-hot" and names and values.shape[1] != len(names):
        if classes is not None or has_boxes(m):
            raise ValueError(f"targets have {values.shape[1]} columns, expected one for each of {len(names)} classes.")
        names = ()
    if kind == "class" and len(values) and not (int(values.min()) >= -1 and int(values.max()) < len(names)):
        worst = int(values.max()) if int(values.max()) >= len(names) else int(values.min())
        raise ValueError(
            f"a target is {worst}, expected -1 to {len(names) - 1}, as there are {len(names)} classes: give classes=, a list of"
            " names."
        )
    values = values.to(getattr(torch, TARGET_DTYPES[kind]))
    count = None if kind == "class" else values.shape[1]
    manifest = dataclasses.replace(
        m, target_kind=kind, target_count=count, classes=names, files=_files(m, {"targets": values})
    )
    return opened.with_columns(manifest, {"targets": _column(opened, rows, values, fill=-1 if kind == "class" else 0)})


def with_extras(opened: OpenedStore, rows: Rows, extras: Mapping[str, ColumnData]) -> OpenedStore:
    """Return the store with further tensors for these rows; of the others they are zeros.

    extras: [B, ...] each, of bool, uint8, int32, int64, float32 or float64.

    Raises:
        ValueError: a name cannot be one, or is there already; or values are no tensor of the rows.
    """
    m, columns = opened.manifest, {}
    for name, given in extras.items():
        if not EXTRA_NAME.fullmatch(name):
            raise ValueError(f"an extra is named {name!r}, expected letters, digits, _ and -.")
        if name in m.extras or name in ("masks", *m.tensors):
            raise ValueError(f"{opened.path} has {name!r} already: give the extra another name.")
        columns[f"extras/{name}"] = _tensor(name, given, len(rows))
    specs = {name: TensorSpec(_dtype(name, c), tuple(c.shape[1:])) for name, c in columns.items()}
    added = {name.removeprefix("extras/"): spec for name, spec in specs.items()}
    manifest = dataclasses.replace(m, extras={**m.extras, **added}, files=_files(m, columns))
    return opened.with_columns(manifest, {name: _column(opened, rows, c, fill=0) for name, c in columns.items()})


def _tensor(name: str, values: ColumnData, count: int) -> torch.Tensor:
    try:
        tensor = torch.as_tensor(
            values if isinstance(values, torch.Tensor) else np.asarray(values), device="cpu"
        ).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{name} is a {type(values).__name__}, expected numbers, one or one row of them a row."
        ) from None
    if tensor.ndim < 1 or len(tensor) != count:
        raise ValueError(
            f"{name} has the shape {list(tensor.shape)}, expected [{count}, ...]: one for each row of the dataset."
        )
    return tensor


def _kind_of(values: torch.Tensor) -> str:
    """Return which kind of targets these are."""
    is_float = values.is_floating_point()
    if values.ndim == 1 and not is_float and values.dtype != torch.bool and not values.is_complex():
        return "class"
    if values.ndim == 2 and is_float:
        return "regression"
    if values.ndim == 2 and not values.is_complex() and bool(((values == 0) | (values == 1)).all()):
        return "multi-hot"
    kind = str(values.dtype).removeprefix("torch.")
    raise ValueError(
        f"targets are {kind}{list(values.shape)}, expected int64[N] of classes, uint8[N, K] of 0 and 1, or float32[N, K]."
    )


def _dtype(name: str, values: torch.Tensor) -> str:
    kind = str(values.dtype).removeprefix("torch.")
    if kind not in ITEM_BYTES:
        raise ValueError(f"{name.removeprefix('extras/')} is {kind}, expected one of {', '.join(ITEM_BYTES)}.")
    return kind


def _files(manifest: Manifest, columns: Mapping[str, torch.Tensor]) -> dict[str, FileEntry]:
    """Return the files that a store with these columns would have."""
    files = dict(manifest.files)
    for name, column in columns.items():
        size_bytes = manifest.rows * column[:1].nbytes if len(column) else 0
        files[f"_tensordict/{name}.memmap"] = FileEntry(size_bytes, "")
    has_extras = any(name.startswith("_tensordict/extras/") for name in files)
    return files | {name: files.get(name, FileEntry(0, "")) for name in metadata_names(has_extras=has_extras)}


def _column(opened: OpenedStore, rows: Rows, values: torch.Tensor, *, fill: int) -> torch.Tensor:
    """Return values of some rows as a tensor of all rows of the store."""
    index = torch.from_numpy(rows)
    column = torch.full((opened.manifest.rows, *values.shape[1:]), fill, dtype=values.dtype, device="cpu")
    column[index] = values
    written = column[index]
    is_same = (written == values) | ((written != written) & (values != values))
    if not bool(is_same.all()):
        position = int((~is_same).reshape(len(rows), -1).any(dim=1).nonzero()[0])
        raise ValueError(f"row {rows[position]} is in the dataset twice, with different values.")
    return column
