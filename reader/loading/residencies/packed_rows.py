"""Batches of compressed rows that are unpacked where they go: what is read of them on the host, and where that cannot be."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from reader.dataset.dataset import MemmapDataset
from reader.device.packed import FRAME_ALIGN, PackedBatch, nvcomp
from reader.format.errors import StoreError
from reader.format.tensors import ZSTD
from reader.memory.frame_file import ReadBytes
from reader.memory.gather import Copies
from reader.rows import Rows
from reader.store import RaggedBatch, batch_of

# Where compressed rows are unpacked: all on the host; zstd there, and lines are summed on the device; all on the device.
UNPACK = ("host", "split", "device")


def check_unpack(
    unpack: str, dataset: MemmapDataset, device: torch.device, *, on_device: bool, has_levels: bool
) -> None:
    """Refuse an `unpack` that cannot be.

    Args:
        on_device: rows stay on the device, unpacked. has_levels: crops read levels.

    Raises:
        ValueError: there is no such way, or it does not go with the store or the loader.
        MissingLibraryError: nvCOMP is not installed.
    """
    if unpack not in UNPACK:
        raise ValueError(f"unpack is {unpack!r}, expected 'host', 'split' or 'device'.")
    if unpack == "host":
        return
    manifest = dataset.manifest
    if manifest.compression is None or manifest.compression.codec != ZSTD or manifest.has_own_sizes:
        raise ValueError(
            f"unpack={unpack!r} is for rows of one size that are compressed by zstd, and {dataset.path} has others. Leave it out."
        )
    if on_device or has_levels:
        what = (
            "residency 'gpu' holds rows unpacked" if on_device else "size= reads levels, which are cropped on the CPU"
        )
        raise ValueError(f"unpack={unpack!r} does nothing where {what}. Leave it out.")
    if unpack == "device" and device.type == "cuda":
        nvcomp()


def begin_packed(
    dataset: MemmapDataset, unpack: str, rows: Rows, memory: Callable[[int], torch.Tensor], read: ReadBytes | None
) -> tuple[PackedBatch, Copies]:
    """Begin to read a batch, complete when the copies were waited for.

    Args:
        unpack: "split" or "device".
        memory: gives uint8[n], for differences or frames.
        read: see `FrameFile`.

    Raises:
        StoreError: as `OpenedStore.begin_unpacking`.
    """
    store = dataset.opened_store
    assert store.frames is not None
    assert not isinstance(store.mapped, RaggedBatch)
    store.check_files()
    height, *rest = store.mapped.pixels.shape[1:]
    error = functools.partial(_error, store.frames.error, rows)
    if unpack == "split":
        flat, copies = store.frames.begin_equal(rows, memory, read, restores=False)
        batch = batch_of(store.mapped, rows, flat.view(len(rows), height, *rest))
        packed = PackedBatch(batch, height, error)
    else:
        found, spans, copies = store.frames.begin_frames(rows, memory, read, align=FRAME_ALIGN)
        batch = batch_of(store.mapped, rows, torch.empty((len(rows), 0, *rest), dtype=torch.uint8, device="cpu"))
        packed = PackedBatch(batch, height, error, found, spans)
    dataset.check_rows(rows, batch)
    return packed, copies


def _error(of_row: Callable[[int, str], StoreError], rows: Rows, number: int, what: str) -> StoreError:
    return of_row(int(rows[number]), what)
