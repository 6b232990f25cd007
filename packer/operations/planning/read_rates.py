"""What rows of some images take compressed, and how fast a core reads them from memory: raw, compressed, and as JPEGs."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packer.options import CHANNELS
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row
from reader import frames
from reader.format.errors import MissingLibraryError, RowSizeError
from reader.format.filesystem import size_text
from reader.format.tensors import JPEG, ZSTD, Compression
from reader.system import available_bytes, available_cpus

# Rows are timed together, as a thread of MemmapLoader unpacks them.
_TOGETHER_BYTES = 2 << 20
# More rows tell no more of the rates, and take memory.
_MOST_BYTES = 64 << 20
# Pixels of a row, its frame, its height and width.
_HeldRows = tuple[npt.NDArray[np.uint8], memoryview, tuple[int, int]]
# The one that docs/how-to/compressed-rows.md gives figures of.
_JPEGS = "jpeg:95"
# Times that the rows are copied, which takes a few milliseconds.
_COPIES = 5


@dataclass(frozen=True)
class LossyRates:
    """What one core reads of rows in a form that loses some, images/s; their share of raw bytes, and PSNR, dB, None: no loss."""

    form: str
    images_per_second: float
    share: float
    psnr: float | None


@dataclass(frozen=True)
class ReadRates:
    """What one core reads from memory, images/s, by its processor time: rows as they are stored, without a transform.

    raw: rows copied. compressed: rows unpacked. share: bytes of compressed rows for each byte of raw ones. row_bytes: of a raw
    row, on average. cpus: that this process may use. jpeg: rows as JPEGs; None: they have an alpha.
    """

    raw: float
    compressed: float
    share: float
    row_bytes: float
    cpus: int
    jpeg: LossyRates | None = None

    @property
    def even_bytes_per_second(self) -> float:
        """The rate of a disk or link below which compressed rows are read faster: all CPUs unpack so many bytes of pixels.

        Raw rows come at rate / row_bytes; compressed ones at rate / (share * row_bytes), at most at cpus * compressed.
        """
        return self.compressed * self.cpus * self.row_bytes

    def better(self, pixel_bytes: int, disk_bytes_per_second: float | None = None) -> str:
        """Name the form of a store of so many bytes of pixels that is read faster on this machine, and say why.

        It is raw where raw rows fit into memory, or the disk gives more than all CPUs unpack; else compressed.

        Args:
            disk_bytes_per_second: of the disk that the store will be on; None: it is not known.
        """
        free = available_bytes()
        there = f"{size_text(free)} of memory are free"
        if pixel_bytes <= free:
            return f"raw, whose rows fit into memory ({there})"
        fits = (
            "compressed rows fit into memory, raw ones do not"
            if pixel_bytes * self.share <= free
            else "neither fits into memory"
        )
        even = f"{size_text(int(self.even_bytes_per_second))}/s"
        if disk_bytes_per_second is None:
            return f"--compress, unless the disk or link gives more than {even}: {fits} ({there})"
        disk = f"{size_text(int(disk_bytes_per_second))}/s"
        rates = self._from_disk(pixel_bytes, free, disk_bytes_per_second)
        shown = ", ".join(f"{form} {rate:,.0f}" for form, rate in rates.items())
        is_raw = disk_bytes_per_second > self.even_bytes_per_second
        why = f"the disk of IMAGES gives {disk}, {'more' if is_raw else 'less'} than the {even} that all CPUs unpack"
        return f"{'raw' if is_raw else '--compress'}: {why}; {fits} ({there}); images/s then: {shown}"

    def _from_disk(self, pixel_bytes: int, free: int, disk_bytes_per_second: float) -> dict[str, float]:
        """Return images/s of each form: of one that does not fit into memory as the disk gives it, at most what all CPUs make."""
        forms = {"raw": (self.raw, 1.0), "--compress": (self.compressed, self.share)}
        if self.jpeg is not None:
            forms[f"{self.jpeg.form} (with a loss)"] = (self.jpeg.images_per_second, self.jpeg.share)
        return {
            form: min(
                rate * self.cpus,
                math.inf if pixel_bytes * share <= free else disk_bytes_per_second / (share * self.row_bytes),
            )
            for form, (rate, share) in forms.items()
        }


class RowForms:
    """Rows, compressed as they are added."""

    def __init__(self, geometry: Geometry, channels: str) -> None:
        self._sides = None if geometry.fit == "none" else (geometry.height, geometry.width)
        self._channels = CHANNELS[channels]
        self._packer: frames.Packer | None
        try:
            self._packer = frames.Packer(self._channels)
        except MissingLibraryError:
            self._packer = None
        self._packed_bytes = self._raw_bytes = self._count = 0
        # the first of them
        self._held: list[_HeldRows] = []
        self._held_bytes = 0
        self._jpegs = JpegForm(self._channels) if channels != "rgba" else None

    def add(self, row: Row) -> None:
        """Compress a row."""
        if self._packer is None:
            return
        pixels = np.frombuffer(row.pixels, np.uint8)
        height, width = self._sides or (int(row.content[2]), int(row.content[3]))
        frame = self._packer.pack(pixels, height, width)
        self._packed_bytes, self._raw_bytes = self._packed_bytes + len(frame), self._raw_bytes + len(pixels)
        self._count += 1
        if self._held_bytes + len(pixels) <= _MOST_BYTES or not self._held:
            self._held.append((pixels, memoryview(frame), (height, width)))
            self._held_bytes += len(pixels)
            if self._jpegs is not None:
                self._jpegs.add(pixels, height, width)

    def rates(self) -> ReadRates | None:
        """Read the rows both ways; None: they cannot be compressed here."""
        if not self._held:
            return None
        some = max(1, _TOGETHER_BYTES * len(self._held) // self._held_bytes)
        pieces = [self._held[n : n + some] for n in range(0, len(self._held), some)]
        out = np.empty(max(sum(len(pixels) for pixels, _, _ in piece) for piece in pieces), np.uint8)

        def copy() -> None:
            for piece in _COPIES * pieces:
                _copy(piece, out)

        def unpack() -> None:
            for piece in pieces:
                _unpack(piece, self._channels, out)

        copied, unpacked = _timed(copy) / _COPIES, _timed(unpack)
        count = len(self._held)
        return ReadRates(
            count / copied,
            count / unpacked,
            self._packed_bytes / self._raw_bytes,
            self._raw_bytes / self._count,
            available_cpus(),
            self._jpegs.rates(out) if self._jpegs is not None else None,
        )


class JpegForm:
    """Rows as JPEGs, of one quality."""

    def __init__(self, channels: int) -> None:
        self._channels, self._lossy = channels, frames.LossyPacker(_JPEGS, channels)
        self._held: list[_HeldRows] = []
        self._lost = 0

    def add(self, pixels: npt.NDArray[np.uint8], height: int, width: int) -> None:
        """Encode a row; one that is too long for a JPEG is left out."""
        with contextlib.suppress(RowSizeError):
            made = self._lossy.pack(pixels, height, width)
            self._held.append((pixels, memoryview(made.frame), (height, width)))
            self._lost += made.squared_error

    def rates(self, out: npt.NDArray[np.uint8]) -> LossyRates | None:
        """Decode the rows into memory, one after the other; None if there are no rows."""
        if not self._held:
            return None

        def decode() -> None:
            for held in self._held:
                _unpack([held], self._channels, out, JPEG)

        raw_bytes = sum(len(pixels) for pixels, _, _ in self._held)
        compression = Compression.of(_JPEGS, raw_bytes, self._lost)
        assert compression is not None
        share = sum(len(frame) for _, frame, _ in self._held) / raw_bytes
        return LossyRates(_JPEGS, len(self._held) / _timed(decode), share, compression.psnr if self._lost else None)


def _unpack(piece: list[_HeldRows], channels: int, out: npt.NDArray[np.uint8], codec: str = ZSTD) -> None:
    shapes = np.array([sides for _, _, sides in piece], np.int64)
    size_bytes = sum(len(pixels) for pixels, _, _ in piece)
    frames.unpack_rows([frame for _, frame, _ in piece], shapes, channels, out[:size_bytes], codec=codec)


def _copy(piece: list[_HeldRows], out: npt.NDArray[np.uint8]) -> None:
    offset = 0
    for pixels, _, _ in piece:
        out[offset : offset + len(pixels)] = pixels
        offset += len(pixels)


def _timed(call: Callable[[], object]) -> float:
    """Return the processor seconds of a call's second run: the first one brings memory."""
    call()
    started = time.process_time()
    call()
    return max(time.process_time() - started, 1e-9)
