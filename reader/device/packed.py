"""Compressed rows that are unpacked where their batch goes: their frames, or only differences of lines, cross to the device.

The one module that imports nvCOMP, which unpacks frames on a CUDA device; on the CPU zstandard does. Reads no file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from reader import frames
from reader.format.errors import MissingLibraryError, StoreError
from reader.store import ImageBatch, replaced

# Of the first byte of each frame. nvCOMP asks for it: Python API, `as_arrays`.
FRAME_ALIGN = 16
# cudaStreamLegacy.
_DEFAULT_STREAM = 1


@dataclass(frozen=True)
class PackedBatch:
    """A batch whose pixels are yet to be made.

    batch: all but the pixels, which are uint8[B, 0, W, C], or without frames the differences, uint8[B, H, W, C].
    frames: uint8[n], on the device of the batch. spans: int, first byte and bytes of each frame. height: H.
    error: makes the StoreError of a row of the batch, given its number in it, and what is wrong.
    """

    batch: ImageBatch
    height: int
    error: Callable[[int, str], StoreError]
    frames: torch.Tensor | None = None
    spans: Sequence[tuple[int, int]] = ()

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def pixels(self) -> torch.Tensor:
        """What crosses to a device instead of pixels."""
        return self.batch.pixels if self.frames is None else self.frames

    def parts(self, counts: Sequence[int]) -> list[PackedBatch]:
        """Cut it into batches of so many rows, which share its memory."""
        parts, start = [], 0
        for count, batch in zip(counts, self.batch.split(list(counts)), strict=True):
            spans, stop = self.spans[start : start + count], start + count
            error = functools.partial(_shifted, self.error, start)
            if self.frames is None or not spans:
                parts.append(replace(self, batch=batch, error=error))
            else:
                first, end = spans[0][0], sum(spans[-1])
                cut = [(at - first, size) for at, size in spans]
                parts.append(replace(self, batch=batch, error=error, frames=self.frames[first:end], spans=cut))
            start = stop
        return parts

    def moved(self, move: Callable[[Any], Any], send: Callable[[torch.Tensor], torch.Tensor]) -> PackedBatch:
        """Move it: the batch by the one function, the frames by the other."""
        return replace(self, batch=move(self.batch), frames=None if self.frames is None else send(self.frames))

    def unpacked(self) -> ImageBatch:
        """Make the batch, where it is; for the caller's thread and stream. After a Ctrl-C it is asked for again.

        Raises:
            StoreError: a frame is damaged.
        """
        differences = self.batch.pixels
        if self.frames is not None:
            made = self._by_nvcomp(self.frames) if self.frames.is_cuda else self._by_zstandard(self.frames)
            differences = made.view(len(self), self.height, *differences.shape[2:])
        return replaced(self.batch, pixels=restored(differences), content=self.batch.content, extras=self.batch.extras)

    @property
    def _row_bytes(self) -> int:
        return self.height * self.batch.pixels.shape[2:].numel()

    def _by_zstandard(self, packed: torch.Tensor) -> torch.Tensor:
        """Unpack on the CPU: uint8[B, n]."""
        made, data, own = np.empty((len(self), self._row_bytes), np.uint8), packed.numpy().data, frames.unpacker()
        for number, (start, size) in enumerate(self.spans):
            if what := own.unpack(data[start : start + size], made[number]):
                raise self.error(number, what)
        return torch.from_numpy(made)

    def _by_nvcomp(self, packed: torch.Tensor) -> torch.Tensor:
        """Unpack on a CUDA device, on the current stream: uint8[B, n]. By their headers frames are of the row's size."""
        # the default stream has two numbers; 0 may be read as none, and torch's `__dlpack__` refuses it
        stream = torch.cuda.current_stream(packed.device).cuda_stream or _DEFAULT_STREAM
        try:
            # an event that waits for a stream must be of its device, which need not be the caller's current one
            with torch.cuda.device(packed.device):
                arrays = nvcomp().as_arrays([packed[at : at + size] for at, size in self.spans], cuda_stream=stream)
                decoded = _codec(packed.device.index or 0, stream).decode(arrays)
            # from 6.0 on these are views, which must not outlive what was decoded: it is held until they are copied
            made = [torch.from_dlpack(decoded[number]) for number in range(len(decoded))]
        except Exception as e:  # it has no errors of its own
            raise self.error(0, f"nvCOMP cannot unpack its batch ({str(e).partition(chr(10))[0]})") from e
        for number, row in enumerate(made):
            if row.numel() != self._row_bytes:
                raise self.error(number, f"nvCOMP made {row.numel()} bytes of its frame, the row has {self._row_bytes}")
        return torch.stack(made).view(torch.uint8)


def restored(differences: torch.Tensor) -> torch.Tensor:
    """Return the pixels that `reader.predictor.predict` made these differences of, uint8[B, H, W, C], on their device.

    All sums are of bytes, modulo 256. Draws nothing, waits for nothing, and compiles as one graph.
    """
    pixels, channels = differences.cumsum(1, dtype=torch.uint8), differences.shape[-1]
    if channels < 3:
        return pixels
    # of red, green, blue and alpha: green is added to the first and the third
    is_added = torch.arange(channels, device=pixels.device) % 2 == 0
    return pixels + pixels[..., 1:2] * is_added.to(torch.uint8)


def nvcomp() -> ModuleType:
    """Return the module nvidia.nvcomp.

    Raises:
        MissingLibraryError: it is not installed.
    """
    try:
        from nvidia import nvcomp as found
    except ImportError as e:
        raise MissingLibraryError(
            "unpack='device' with device='cuda' needs nvCOMP, which is not installed. Install it: pip install 'pixpack[nvcomp]',"
            " or give unpack='split'."
        ) from e
    return found


@functools.lru_cache(maxsize=8)
def _codec(device: int, stream: int) -> Any:
    """Return what unpacks plain frames of zstd on a stream of a device; made once, as it takes memory there."""
    library = nvcomp()
    return library.Codec(
        algorithm="Zstd", bitstream_kind=library.BitstreamKind.RAW, device_id=device, cuda_stream=stream
    )


def _shifted(error: Callable[[int, str], StoreError], first: int, number: int, what: str) -> StoreError:
    return error(first + number, what)
