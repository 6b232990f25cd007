"""Calls the compiled part, if it is built: it copies, crops and augments batches.

`jpeg_frames` calls it too. Knows its tables of crops, augmentation steps and floats. Draws no number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch

from reader.buffers import BufferPool
from reader.epoch import transform_threads

# Bytes of pixels that are worth a thread of the compiled part.
COMPILED_THREAD_BYTES = 1 << 18
# Whether the compiled part, if it is built, runs transforms; else torch does.
COMPILED_TRANSFORMS = True

# numbers of channels for which torch's uint8 kernel has the same arithmetic
_CHANNELS = (1, 3, 4)
# numbers of channels that are colors
_COLOR_CHANNELS = (1, 3)
_NUMBERS = 6
_LEVELS = 256
_FLOAT_BYTES = 4
# malloc reuses smaller ones too. Of larger ones, two idle buffers of each size are kept.
_LEAST_POOLED_BYTES = 1 << 20
_POOL = BufferPool(keep=2)

_Bytes = npt.NDArray[np.uint8]
_Numbers = npt.NDArray[np.int64]
# Copies spans of source, uint8[n], to out, uint8[m]: int64[B] starts, sizes and places in out; the flag: past the caches.
CopySpans = Callable[[_Bytes, _Numbers, _Numbers, _Numbers, _Bytes, bool], None]
# Reads pieces of a file, and copies the spans in them to memories: takes a descriptor, int64[R, 2] of the pieces, the bytes
# of a block, where the file begins, staging, int64[S, 4] of the spans, and the memories; see reads.c.
ReadSpans = Callable[[int, _Numbers, int, int, _Bytes, _Numbers, tuple[_Bytes, ...]], int]


def crop(pixels: torch.Tensor, table: _Numbers, result: torch.Tensor, channels: int, fill: bytes) -> bool:
    """Resize, crop and mirror a box of each image into its place in uint8[T]; returns False if memory is lacking.

    Uses as many threads as the loader, or torch.

    Args:
        pixels: all images, flat; see `are_served`.
        table: int64[B, 15], see crops.c.
        fill: a level for each channel, outside the boxes.

    Raises:
        ValueError: a row's box is empty or outside its image, an image outside pixels, or a crop outside the result.
    """
    is_made: bool = _functions().crops(pixels.numpy(), table, result.numpy(), channels, fill, _threads())
    return is_made


def augmented(
    pixels: torch.Tensor, kinds: torch.Tensor, numbers: torch.Tensor, fill: Sequence[float] | None = None
) -> torch.Tensor:
    """Apply steps in order to each image of uint8[B, H, W, C], as the kernels of `program` do.

    Args:
        pixels: see `take_steps`.
        kinds: int[B, S], numbered as in pixel_steps.h.
        numbers: float32[B, S, 6], the parameters of each step.
        fill: one level, or one for each channel, beyond images in "nearest" or "bilinear"; None: as in `affine`.

    Raises:
        ValueError: a number is not finite, or is out of range for its kind.
        MemoryError: there is no room for a copy of an image on each thread.
    """
    result = memory(*pixels.shape)
    augment_into(pixels.numpy(), kinds, numbers, fill, result.numpy(), _threads())
    return result


def augment_into(
    pixels: _Bytes,
    kinds: torch.Tensor,
    numbers: torch.Tensor,
    fill: Sequence[float] | None,
    out: _Bytes,
    threads: int = 1,
) -> None:
    """Apply steps like `augmented`, uint8[..., H, W, C] to as many bytes; kinds: int[..., S], numbers: float32[..., S, 6]."""
    height, width, channels = pixels.shape[-3:]
    # for each step its kind, an int32, and six numbers
    table = np.empty((*kinds.shape, 1 + _NUMBERS), np.float32)
    table.view(np.int32)[..., 0], table[..., 1:] = kinds.numpy(), numbers.numpy()
    levels = None if fill is None else tuple(float(fill[n % len(fill)]) for n in range(3))
    if not _functions().augment(pixels, table, out, (height, width), channels, kinds.shape[-1], levels, threads):
        raise MemoryError(f"there is no memory for a copy of {height} x {width} pixels")


def take_steps(pixels: torch.Tensor) -> bool:
    """Return whether `augmented` takes uint8[B, H, W, C]: see `are_served`, and 1 or 3 channels."""
    return pixels.ndim == 4 and take_channels(pixels, pixels.shape[-1])


def take_channels(pixels: torch.Tensor, channels: int) -> bool:
    """Return whether `augment_into` and `floats_into` take images of these channels and pixels, like `take_steps`."""
    return channels in _COLOR_CHANNELS and are_served(pixels, channels)


def floats_of(pixels: torch.Tensor, of_level: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
    """Convert uint8[B, H, W, C] to float32[B, H, W, C] by the function `of_level`; None if torch should do it.

    It is a view of float32[B, C, H, W], as a DataLoader's images are.

    of_level: called with all levels, uint8[C, 1, 256]; if the result has another shape, or is not float32, torch converts.
    """
    channels = pixels.shape[-1]
    if not take_steps(pixels):
        return None
    if (tables := float_tables(channels, of_level)) is None:
        return None
    result = memory(*pixels.movedim(-1, 1).shape, _FLOAT_BYTES).view(torch.float32)[..., 0]
    _functions().floats(pixels.numpy(), tables.numpy(), result.numpy(), pixels[0].numel(), _threads())
    return result.movedim(1, -1)


def floats_into(image: _Bytes, tables: npt.NDArray[np.float32], out: npt.NDArray[np.float32]) -> None:
    """Write planes of floats of one image, uint8[H, W, C], by float32[C, 256], a value per level, on this thread."""
    _functions().floats(image, tables, out, image.size, 1)


def float_tables(channels: int, of_level: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
    """Return float32[C, 1, 256], `of_level` for all levels; None if it depends on more than the level."""
    levels = torch.arange(_LEVELS, dtype=torch.uint8, device="cpu").expand(channels, 1, _LEVELS)
    tables = of_level(levels)
    # other shapes: one channel becomes several
    is_right = tables.shape == levels.shape and tables.dtype == torch.float32 and not tables.requires_grad
    return tables.contiguous() if is_right else None


def for_each(call: Callable[[int], None], count: int, size_bytes: int) -> None:
    """Call a function with 0 .. count - 1; with many bytes, on the loader's threads or torch's."""
    threads = min(_threads(), count, size_bytes // COMPILED_THREAD_BYTES)

    def calls(first: int) -> None:
        """Call it with each threads-th number."""
        for n in range(first, count, threads):
            call(n)

    if threads < 2:
        for n in range(count):
            call(n)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(calls, range(threads)))


def are_served(pixels: torch.Tensor, channels: int) -> bool:
    """Return whether `crop` takes images in these pixels: uint8 on the CPU, contiguous, 1, 3 or 4 channels."""
    return (
        pixels.dtype == torch.uint8
        and pixels.device.type == "cpu"
        and pixels.numel() > 0
        and pixels.is_contiguous()
        and channels in _CHANNELS
        and is_built()
        and COMPILED_TRANSFORMS
    )


def memory(*shape: int) -> torch.Tensor:
    """Return uint8[shape] for the caller alone; large ones reuse released memory, without page faults."""
    size_bytes = math.prod(shape)
    if size_bytes < _LEAST_POOLED_BYTES:
        return torch.from_numpy(np.empty(shape, np.uint8))
    return _POOL.lease(size_bytes).view(shape)


def copied(pixels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
    """Return a contiguous copy of uint8[B, ...], or of its rows, int64[P]; on the CPU in `memory`."""
    if pixels.device.type != "cpu":
        return pixels.clone(memory_format=torch.contiguous_format) if rows is None else pixels.index_select(0, rows)
    result = memory(len(pixels if rows is None else rows), *pixels.shape[1:])
    return result.copy_(pixels) if rows is None else torch.index_select(pixels, 0, rows, out=result)


def span_copier() -> CopySpans | None:
    """Return the compiled function that copies spans of bytes in one call, without the GIL; None if it is not built.

    It raises ValueError if a span is outside the source or the destination.
    """
    return getattr(_functions(), "copy_spans", None)


def span_reader() -> ReadSpans | None:
    """Return the compiled function that reads spans of a file in one call, without the GIL; None if it is not built.

    It returns the byte at which the file ends if that is inside a piece, else -1. It raises OSError, or ValueError if a piece
    does not fit in staging, or a span in its memory.
    """
    return getattr(_functions(), "read_spans", None)


def memory_like(part: torch.Tensor, count: int) -> torch.Tensor:
    """Return memory for count samples of the same shape, dtype and device; uint8 on the CPU comes from `memory`.

    malloc returns memory freed at the top of the heap to the system, and the next batch has 7,000 page faults (MixUp, 96 rows).
    """
    shape = (count, *part.shape[1:])
    if part.device.type == "cpu" and part.dtype == torch.uint8:
        return memory(*shape)
    return part.new_empty(shape)


def release() -> None:
    """Free the memory of `memory` that no tensor uses."""
    _POOL.clear()


def load() -> None:
    """Load the compiled part, if it is built, so that processes forked later share its memory."""
    _functions()


def is_built() -> bool:
    """Return whether the compiled part is built."""
    return hasattr(_functions(), "crops")


def _threads() -> int:
    return transform_threads.get() or torch.get_num_threads()


@functools.cache
def _functions() -> ModuleType:
    try:
        from reader.native import functions

        return functions()
    except ImportError:
        return ModuleType("missing")  # without functions
