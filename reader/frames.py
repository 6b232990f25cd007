"""A row as a frame, both ways: of zstd, in the one module that knows the library, of what `reader.predictor` makes of the pixels;
JPEGs are those of `reader.jpeg_frames`.

zstandard, since it unpacks a frame into memory that it is given, without a copy between, lets other threads of Python run
meanwhile, reads a frame's header, and names its version of zstd (numcodecs and cramjam do not say theirs; compression.zstd of
Python 3.14 has no call that fills a buffer).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from reader import jpeg_frames, predictor
from reader.format.errors import MissingLibraryError, StoreError
from reader.format.tensors import JPEG, LEVEL, ZSTD, codec_of, jpeg_quality

Pixels = npt.NDArray[np.uint8]


def library() -> ModuleType:
    """Return the module zstandard.

    Raises:
        MissingLibraryError: it is not installed.
    """
    try:
        import zstandard
    except ImportError as e:
        raise MissingLibraryError(
            "compressed rows need the package zstandard, which is not installed. Install it: pip install 'pixpack[zstd]'"
        ) from e
    return zstandard


def check_library(codec: str) -> None:
    """Raise MissingLibraryError where what reads frames of a codec is not installed."""
    if codec == ZSTD:
        library()
    elif not jpeg_frames.can_decode():
        raise MissingLibraryError(
            "rows that are JPEGs need the compiled part of pixpack, or the package Pillow, and neither is installed."
            " Install one: pip install pillow"
        )


def versions(codec: str = ZSTD) -> dict[str, object]:
    """Return what decides about the bytes of a frame: of zstd the versions of zstandard and of the zstd in it."""
    if codec == JPEG:
        return jpeg_frames.versions()
    found = library()
    return {"zstandard": found.__version__, "zstd": ".".join(map(str, found.ZSTD_VERSION))}


def packer(form: str, channels: int) -> JpegPacker | Packer:
    """Return what packs rows in a form, "zstd" or "jpeg:95"."""
    quality = jpeg_quality(form)
    return JpegPacker(channels, quality) if quality else Packer(channels)


class JpegPacker:
    """Packs rows as JPEGs; for any thread."""

    def __init__(self, channels: int, quality: int) -> None:
        self._channels, self._quality = channels, quality

    def pack(self, row: Pixels, height: int, width: int) -> bytes:
        """Return the frame of a row, uint8[n]."""
        return jpeg_frames.encode(row, height, width, self._channels, self._quality)


@dataclass(frozen=True)
class Lossy:
    """A row that is compressed with a loss: its frame, the pixels of that, uint8[n], and the sum of squared differences."""

    frame: bytes
    pixels: Pixels
    squared_error: int


class LossyPacker:
    """Packs rows in a form that loses some, such as "jpeg:95"; for any thread."""

    def __init__(self, form: str, channels: int) -> None:
        self._packer, self._codec, self._channels = packer(form, channels), codec_of(form), channels

    def pack(self, row: Pixels, height: int, width: int) -> Lossy:
        """Return the frame of a row, uint8[n], and what it keeps of it.

        Raises:
            RowSizeError: no frame can be of a row so long.
        """
        frame = self._packer.pack(row, height, width)
        pixels = unpacked(memoryview(frame), height, width, self._channels, codec=self._codec)
        return Lossy(frame, pixels, jpeg_frames.squared_error(row, pixels))


class Packer:
    """Packs rows by zstd; for one thread."""

    def __init__(self, channels: int) -> None:
        self._channels = channels
        # the checksum, 4 bytes a row, is compared as a frame is unpacked: a damaged one is never taken for pixels
        self._compressor = library().ZstdCompressor(level=LEVEL, write_checksum=True)

    def pack(self, row: Pixels, height: int, width: int) -> bytes:
        """Return the frame of a row, uint8[n]: its pixels, and behind them its mask, if it has one."""
        size_bytes = height * width * self._channels
        result = row.copy()
        predictor.predict(result[:size_bytes].reshape(1, height, width * self._channels), self._channels)
        frame: bytes = self._compressor.compress(result.data)
        return frame


class Unpacker:
    """Unpacks frames; for one thread."""

    def __init__(self) -> None:
        self._zstd = library()
        self._decompressor = self._zstd.ZstdDecompressor()

    def unpack(self, frame: memoryview, row: Pixels) -> str:
        """Unpack a frame into a row, uint8[n], whose pixels are yet to be restored; returns what is wrong, "" where nothing is.

        The frame's header is looked at first: zstd takes no memory that it claims.
        """
        if what := self._wrong_header(frame, len(row)):
            return what
        try:
            with self._decompressor.stream_reader(frame, read_size=len(frame)) as reader:
                count = reader.readinto(row)
                # the checksum behind it is looked at when more is asked for; of a frame that is cut zstd waits for the rest
                is_complete = count == len(row) and not reader.read(1)
        except self._zstd.ZstdError as e:
            return f"its frame is damaged ({e})"
        return "" if is_complete else "its frame is cut short"

    def _wrong_header(self, frame: memoryview, size_bytes: int) -> str:
        """Say what is wrong with the headers of a frame, and of its blocks, for a row of so many bytes; "" where nothing is."""
        try:
            header = self._zstd.get_frame_parameters(frame)
            header_bytes = self._zstd.frame_header_size(frame)
        except self._zstd.ZstdError as e:
            return f"its frame is damaged ({e})"
        if header.content_size == self._zstd.CONTENTSIZE_UNKNOWN:
            return "its frame does not say its size"
        if header.content_size != size_bytes or header.window_size > max(size_bytes, _LEAST_WINDOW):
            return f"its frame holds {header.content_size} bytes, the row has {size_bytes}"
        if header.dict_id:
            return f"its frame needs the dictionary {header.dict_id}, expected none"
        if not header.has_checksum:
            return "its frame has no checksum"
        following = len(frame) - _frame_bytes(frame, header_bytes)
        if following > 0:
            return f"{following} bytes follow its frame"
        return "its frame is cut short" if following else ""


def unpacked(
    frame: memoryview, height: int, width: int, channels: int, *, has_mask: bool = False, codec: str = ZSTD
) -> Pixels:
    """Return a row, uint8[n], of its frame; has_mask: its mask is behind the pixels.

    Raises:
        StoreError: the frame is damaged; names no row.
    """
    row = np.empty(height * width * (channels + has_mask), np.uint8)
    shapes = np.array([[height, width]])
    if damage := unpack_rows([frame], shapes, channels, row, has_masks=has_mask, codec=codec):
        raise StoreError(damage[1])
    return row


def unpack_rows(
    packed: Sequence[memoryview],
    shapes: npt.NDArray[np.int64],
    channels: int,
    out: Pixels,
    *,
    has_masks: bool = False,
    codec: str = ZSTD,
) -> tuple[int, str] | None:
    """Unpack frames into rows, one after the other; those of zstd are then restored, together where they are alike.

    Args:
        packed: a frame for each row.
        shapes: int64[n, 2], height and width of each.
        out: uint8[m], exactly the bytes of all rows.
        has_masks: behind the pixels of each row is its mask.

    Returns: the number of the first frame that is damaged, and what is wrong with it; None where none is.
    """
    own, start = None if codec == JPEG else unpacker(), 0
    for number, (frame, (height, width)) in enumerate(zip(packed, shapes.tolist(), strict=True)):
        stop = start + height * width * (channels + has_masks)
        row = out[start:stop]
        what = own.unpack(frame, row) if own else jpeg_frames.decode(frame, height, width, channels, row)
        if what:
            return number, what
        start = stop
    start = 0
    for count, height, width in _alike(shapes, together=not has_masks) if own else ():
        size_bytes = count * height * width * channels
        predictor.restore(out[start : start + size_bytes].reshape(count, height, width * channels), channels)
        start += size_bytes + has_masks * height * width
    return None


def unpacker() -> Unpacker:
    """Return this thread's own."""
    if not hasattr(_mine, "unpacker"):
        _mine.unpacker = Unpacker()
    own: Unpacker = _mine.unpacker
    return own


_mine = threading.local()
# zstd's smallest: of shorter rows it is larger than they are
_LEAST_WINDOW = 1 << 10


# RFC 8878, 3.1.1.2: the header of a block has 3 bytes: whether it is the last, its kind, its size; a repeated byte has 1.
_BLOCK_HEADER_BYTES, _REPEATED = 3, 1
_CHECKSUM_BYTES = 4


def _frame_bytes(frame: memoryview, header_bytes: int) -> int:
    """Return where a frame with a checksum ends, by the headers of its blocks; beyond len(frame) of one that is cut short.

    zstd stops behind the first frame, and skips frames that hold nothing: what follows would not be noticed.
    """
    offset, is_last = header_bytes, False
    while not is_last and offset < len(frame):
        word = int.from_bytes(frame[offset : offset + _BLOCK_HEADER_BYTES], "little")
        is_last = bool(word & 1)
        offset += _BLOCK_HEADER_BYTES + (1 if word >> 1 & 3 == _REPEATED else word >> 3)
    return offset + _CHECKSUM_BYTES


def _alike(shapes: npt.NDArray[np.int64], *, together: bool) -> list[tuple[int, int, int]]:
    """Count rows of one shape that follow each other: [[2, 3], [2, 3], [4, 1]] -> [(2, 2, 3), (1, 4, 1)]."""
    differ = (shapes[1:] != shapes[:-1]).any(axis=1) if together else np.ones(max(0, len(shapes) - 1), bool)
    bounds = [0, *(np.flatnonzero(differ) + 1).tolist(), len(shapes)]
    return [(b - a, *shapes[a].tolist()) for a, b in itertools.pairwise(bounds)]
