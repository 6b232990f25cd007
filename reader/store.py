"""The types of stores and batches, and the mapping of a store that is never written to.

Every store names the dotted path of its class here: `ImageBatch`, `RaggedBatch` or `CompressedRows`. These never move.
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from typing import NoReturn

import torch
from tensordict import TensorClass, TensorDict

from reader.format.errors import StoreError
from reader.format.manifest import Manifest

# Linux and macOS number the flag differently, and Python has its name only since 3.13 (Linux).
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x40 if sys.platform == "darwin" else 0x4000)


# A reason in errors, after the path of a store.
NEEDS_RAW = "its rows are compressed: read them by MemmapDataset, or pack a raw store, without --compress"


class ImageBatch(TensorClass):
    """Images with their labels: a whole store, a batch of it, or one row.

    Attributes:
        pixels: uint8[..., H, W, C], 0..255, the layout of decoders, numpy and JAX
        targets: int64[...] class index (-1: no label), float32[..., K] regression, or of 0 and 1 multi-hot
        content: int32[..., 4] y0, x0, y1, x1 (half-open) of the pixels that are image, or None: all are
        extras: a TensorDict of further per-row tensors, or None
        rows: int64[...] positions in the store; filled in batches, None for a store
        origin: int64[..., 3], in a loader's batch, each row's source of random numbers: epoch, position in the epoch's order,
            and the loader's seed (below 0: unknown); else None. A tensor, so that torch.compile makes no constants of it
    """

    pixels: torch.Tensor
    targets: torch.Tensor
    content: torch.Tensor | None = None
    extras: TensorDict | None = None
    rows: torch.Tensor | None = None
    origin: torch.Tensor | None = None

    # a batch is not a list of rows (`unbind(0)` is): code that looks for the batch size, such as Lightning's `self.log`,
    # would descend into the rows. Now it finds the first dimension of the first field.
    __iter__ = None  # type: ignore[assignment]

    @property
    def images(self) -> torch.Tensor:
        """The view uint8[..., C, H, W] for models; its memory is channels_last."""
        return self.pixels.movedim(-1, -3)


class RaggedBatch(TensorClass):
    """Images of different sizes with their labels: a whole store, or a batch of it. Transforms that crop make an ImageBatch.

    Attributes:
        pixels: uint8[T], the bytes of all images, possibly with others between them. Floats: the planes of each
        targets: as in ImageBatch
        offsets: int64[B], the first byte of each image in pixels
        shapes: int32[B, 3], height, width and channels of each
        extras: a TensorDict of further per-row tensors, or None
        rows: int64[B] positions in the store; filled in batches, None for a store
        mask_offsets: int64[B], the byte of pixels where the mask of each image begins, right after it; None: no masks
        origin: int64[B, 3], as in ImageBatch

    Its batch_size is [], as pixels have no dimension of rows; `len` is B.
    """

    pixels: torch.Tensor
    targets: torch.Tensor
    offsets: torch.Tensor
    shapes: torch.Tensor
    extras: TensorDict | None = None
    rows: torch.Tensor | None = None
    mask_offsets: torch.Tensor | None = None
    origin: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "a RaggedBatch is not a list of rows: take batch.image(i) for i in range(len(batch)), or batch.images. In Lightning,"
            " give self.log(..., batch_size=len(batch))."
        )

    def image(self, index: int) -> torch.Tensor:
        """Return the image at index, a view uint8[H, W, C].

        Raises:
            StoreError: it is outside the pixels.
        """
        height, width, channels = self.shapes[index].tolist()
        start, size = int(self.offsets[index]), height * width * channels
        if min(start, height, width, channels) < 0 or start + size > len(self.pixels):
            raise StoreError(f"image {index} is not within the pixels: the store is damaged. Copy it again.")
        image, is_planes = self.pixels[start : start + size], self.pixels.is_floating_point()
        return image.view(channels, height, width).movedim(0, -1) if is_planes else image.view(height, width, channels)

    def mask(self, index: int) -> torch.Tensor | None:
        """Return the mask of the image at index, uint8[H, W], a view if pixels are uint8; None if the batch has no masks.

        Raises:
            StoreError: it is outside the pixels.
        """
        if self.mask_offsets is None:
            return None
        height, width, channels = self.image(index).shape
        start = int(self.offsets[index]) + height * width * channels
        if int(self.mask_offsets[index]) != start or start + height * width > len(self.pixels):
            raise StoreError(f"mask {index} is not after its image: the store is damaged. Copy it again.")
        return self.pixels[start : start + height * width].view(height, width).to(torch.uint8)

    @property
    def images(self) -> list[torch.Tensor]:
        """The views uint8[C, H, W] of all images; their memory is channels_last."""
        return [self.image(index).movedim(-1, -3) for index in range(len(self))]


class CompressedRows(TensorClass):
    """The class named in the files of a store of JPEG rows, which tensordict cannot load: `MemmapDataset` decodes them."""

    @classmethod
    def _load_memmap(cls, *args: object, **options: object) -> NoReturn:
        raise StoreError(NEEDS_RAW)


# A store, or a batch of it: RaggedBatch if rows have sizes of their own.
Batch = ImageBatch | RaggedBatch
# The two parts of a batch as a tuple: images as one tensor, or one per row; targets, or all labels by name.
Images = torch.Tensor | list[torch.Tensor]
Targets = torch.Tensor | dict[str, Images]


def store_of(manifest: Manifest, tensors: dict[str, torch.Tensor]) -> Batch:
    """Make an ImageBatch or RaggedBatch from all tensors of a store by name, or from the same rows of each."""
    count = len(tensors["targets"])
    extras = {name.removeprefix("extras/"): value for name, value in tensors.items() if "/" in name}
    further = TensorDict(extras, batch_size=[count]) if extras else None
    if manifest.has_own_sizes:
        return RaggedBatch(
            pixels=tensors["pixels"],
            targets=tensors["targets"],
            offsets=tensors["offsets"],
            shapes=tensors["shapes"],
            mask_offsets=tensors.get("mask_offsets"),
            extras=further,
            batch_size=[],
        )
    return ImageBatch(
        pixels=tensors["pixels"],
        targets=tensors["targets"],
        content=tensors.get("content"),
        extras=further,
        batch_size=[count],
    )


def batch_around(pixels: torch.Tensor, **columns: torch.Tensor | TensorDict | None) -> ImageBatch:
    """Make a batch from pixels, uint8[..., H, W, C], and columns, unchecked: in a third of the time of the class."""
    given = {"pixels": pixels} | {name: value for name, value in columns.items() if value is not None}
    batch: ImageBatch = ImageBatch.from_tensordict(TensorDict(given, batch_size=pixels.shape[:-3]))
    return batch


def row_of(batch: RaggedBatch, row: int) -> ImageBatch:
    """Return one row, as a view: an ImageBatch without a batch dimension."""
    extras, mask = None if batch.extras is None else batch.extras[row], batch.mask(row)
    if mask is not None:
        extras = TensorDict({**({} if extras is None else extras), "masks": mask}, batch_size=[])
    rows, origin = (None if each is None else each[row] for each in (batch.rows, batch.origin))
    image, target = batch.image(row), batch.targets[row]
    return ImageBatch(pixels=image, targets=target, extras=extras, rows=rows, origin=origin, batch_size=[])


def replaced(
    batch: ImageBatch | RaggedBatch, *, pixels: torch.Tensor, content: torch.Tensor | None, extras: TensorDict | None
) -> ImageBatch:
    """Make a batch with the same rows, targets, epoch and position."""
    return ImageBatch(
        pixels=pixels,
        targets=batch.targets,
        content=content,
        extras=extras,
        rows=batch.rows,
        origin=batch.origin,
        batch_size=pixels.shape[:1],
        device=pixels.device,
    )


def names_targets(manifest: Manifest) -> bool:
    """Return whether a store's rows have more than one target each: boxes or masks."""
    return manifest.has_masks or "boxes" in manifest.extras


def as_tuple(batch: Batch, *, by_name: bool) -> tuple[Images, Targets]:
    """Return (images, targets) of a batch or one row; by name, the second is a dict of `targets` and all extras.

    images: the view uint8[..., C, H, W], or a list of uint8[C, H, W] if rows have sizes of their own; so are their masks.
    """
    if not by_name:
        return batch.images, batch.targets
    named: dict[str, Images] = {}
    for name, column in () if batch.extras is None else batch.extras.items():
        assert isinstance(column, torch.Tensor)
        named[name] = column
    if isinstance(batch, RaggedBatch) and batch.mask_offsets is not None:
        named["masks"] = [mask for mask in map(batch.mask, range(len(batch))) if mask is not None]
    return batch.images, named | {"targets": batch.targets}


def map_tensor(path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Map a raw file as a tensor: private and copy-on-write, without reserving memory for it.

    Raises:
        StoreError: the file is shorter than the shape needs.
    """
    size_bytes = torch.Size(shape).numel() * dtype.itemsize
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != size_bytes:
            raise StoreError(f"{path} is not {size_bytes} bytes any more. Copy the store again.")
        if size_bytes == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        try:
            # tensordict's mode="r" and np.memmap(mode="c") lack NORESERVE: ENOMEM on a store larger than memory
            flags = mmap.MAP_PRIVATE | MAP_NORESERVE
            mapped = mmap.mmap(file.fileno(), size_bytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        except (OSError, OverflowError, ValueError) as e:
            raise StoreError(f"{path} has {size_bytes} bytes, which cannot be mapped: {e}. Raise ulimit -v.") from None
    return torch.frombuffer(mapped, dtype=dtype).view(shape)
