"""The type of a store, a batch and a batch on the GPU, and how a store is mapped without ever being written.

The dotted path `reader.store.ImageBatch` stands in every store; it never moves.
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import torch
from tensordict import TensorClass, TensorDict

from reader.manifest import Manifest, StoreError, check_store

# Linux and macOS number the flag differently, and Python names it only from 3.13 on (Linux).
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x40 if sys.platform == "darwin" else 0x4000)


class ImageBatch(TensorClass):
    """Images with their labels: a whole store, a batch of it, or one row.

    pixels:  uint8[..., H, W, C], 0..255, the layout of decoders, numpy and JAX
    targets: int64[...] class index (-1: no label), float32[..., K] regression, or uint8[..., K] multi-hot
    content: int32[..., 4] y0, x0, y1, x1 (half-open) of the pixels that are image, or None: all are
    extras:  a TensorDict of further per-row tensors, or None
    rows:    int64[...] positions in the store; filled in batches, None for a store
    """

    pixels: torch.Tensor
    targets: torch.Tensor
    content: torch.Tensor | None = None
    extras: TensorDict | None = None
    rows: torch.Tensor | None = None

    @property
    def images(self) -> torch.Tensor:
        """The view uint8[..., C, H, W] that models take; its memory is channels_last."""
        return self.pixels.movedim(-1, -3)


def open_store(out: str | os.PathLike[str]) -> tuple[Manifest, ImageBatch]:
    """Check OUT and map it: uint8[N, H, W, C] and the rest, in milliseconds whatever N.

    The mapping is private: an in-place op changes this process's copy of a page, never the file.

    Raises:
        StoreError: OUT is no store, is incomplete, or a file's size is not what the manifest says.
    """
    root = Path(out)
    manifest = check_store(root)
    tensors = {}
    for name, path in manifest.tensor_paths().items():
        spec = manifest.tensors[name]
        shape = (manifest.rows, *spec.row_shape)
        tensors[name] = map_tensor(root / path, getattr(torch, spec.dtype), shape)
    extras = {name.removeprefix("extras/"): value for name, value in tensors.items() if "/" in name}
    store = ImageBatch(
        pixels=tensors["pixels"],
        targets=tensors["targets"],
        content=tensors.get("content"),
        extras=TensorDict(extras, batch_size=[manifest.rows]) if extras else None,
        batch_size=[manifest.rows],
    )
    return manifest, store


def replaced(
    batch: ImageBatch, *, pixels: torch.Tensor, content: torch.Tensor | None, extras: TensorDict | None
) -> ImageBatch:
    """Make a batch of the same rows and targets."""
    return ImageBatch(
        pixels=pixels,
        targets=batch.targets,
        content=content,
        extras=extras,
        rows=batch.rows,
        batch_size=batch.batch_size,
        device=pixels.device,
    )


def map_tensor(path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Map a raw file as a tensor: private and copy-on-write, without reserving memory for it.

    Raises:
        StoreError: the file no longer has the bytes that the shape needs.
    """
    size_bytes = torch.Size(shape).numel() * dtype.itemsize
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != size_bytes:
            raise StoreError(f"{path} is not {size_bytes} bytes any more. Copy the store again.")
        if size_bytes == 0:
            return torch.empty(shape, dtype=dtype)
        if os.name == "nt":
            mapped = mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_COPY)
        else:
            # tensordict's mode="r" and np.memmap(mode="c") lack NORESERVE: ENOMEM on a store larger than memory
            flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
            mapped = mmap.mmap(file.fileno(), size_bytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(mapped, dtype=dtype).view(shape)
