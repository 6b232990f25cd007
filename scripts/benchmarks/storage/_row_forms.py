"""A store's rows in another form, for benchmarks that read both in turns: the copy is made once, and checked row by row."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch

from packer import subset
from packer.operations.verify import verify
from reader import MemmapDataset, StoreError
from reader.format.manifest import PIXELS
from reader.format.tensors import ZSTD
from scripts.common.figures import BenchmarkError

RAW = "raw"


def add_forms(parser: ArgumentParser) -> None:
    """Add the option --compress, which may be given several times."""
    text = "also read these rows in another form, in turns: zstd, or jpeg:95; may be given several times"
    parser.add_argument("--compress", action="append", default=[], metavar="FORM", help=text)


def in_forms(raw: Path, forms: list[str], work: Path) -> dict[str, MemmapDataset]:
    """Open a raw store, and copies of it with its rows in other forms, by form; copies are made in work, or are there.

    Raises:
        BenchmarkError: the store is not raw, or a copy is damaged.
        PackError: a copy cannot be made.
        StoreError: it is no store.
    """
    found = {RAW: MemmapDataset(raw)}
    if found[RAW].manifest.compression is not None:
        raise BenchmarkError(f"{raw} is compressed, expected the raw store; --compress makes the others of it.")
    for form in forms:
        # of the store's own bytes: another one of this name is another folder
        out = work / f"{found[RAW].manifest.digest.removeprefix('sha256:')[:16]}-{form.replace(':', '')}"
        if not _is_whole(out):
            subset(raw, out, compress=form, overwrite=out.exists())
        found[form] = MemmapDataset(out)
    return found


def file_bytes(data: MemmapDataset) -> int:
    """Return the bytes of a store's rows as they are on the disk."""
    return data.manifest.files[PIXELS].size_bytes


def check_batch(forms: dict[str, MemmapDataset], form: str, rows: torch.Tensor, pixels: torch.Tensor) -> None:
    """Raise BenchmarkError where rows of a batch are not those of the raw file, or of JPEGs not each frame unpacked alone."""
    exact = forms[RAW if form == ZSTD else form]
    for row, found in zip(rows.tolist(), pixels, strict=True):
        if found.numpy().tobytes() != (_in_file(exact, row) if form in (RAW, ZSTD) else _alone(exact, row)):
            raise BenchmarkError(f"row {row} of {exact.path} is not what the file holds.")


def check_once(seen: np.ndarray, way: str) -> None:
    """Raise BenchmarkError where an epoch has not brought each row once; seen: how often each came."""
    if not (seen == 1).all():
        raise BenchmarkError(f"an epoch of {way} does not bring each row once.")


def _in_file(data: MemmapDataset, row: int) -> bytes:
    """Return the bytes of a raw row; not by a mapping, whose pages could not be dropped."""
    with open(data.path / PIXELS, "rb") as file:
        file.seek(row * data.manifest.row_bytes)
        return file.read(data.manifest.row_bytes)


def _alone(data: MemmapDataset, row: int) -> bytes:
    return data.opened_store.row(row).pixels.numpy().tobytes()


def _is_whole(out: Path) -> bool:
    try:
        return not verify(out).problems
    except StoreError:
        return False
