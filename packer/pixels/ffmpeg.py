"""One image, encoded again by FFmpeg's JPEG encoder, through PyAV, and its row.

It does what `ffmpeg -noautorotate -i IN -q:v Q OUT` does. Packer's own decoder rejects broken images, as in any pack. Only
JPEGs that decode without a warning, and that FFmpeg decodes to full-range YCbCr or gray, are encoded. For these, all its
versions give the same pixels (FFmpeg 5.1 and 8.1, `tests/pixels/test_ffmpeg.py`). The encoder's output depends on the
processor: its DCT for x86 differs from the portable one.
"""

from __future__ import annotations

import dataclasses
import itertools
import platform
import struct
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any

from packer.errors import FfmpegError, NotRequantized
from packer.pixels import jpeg
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row

HOW_TO_GET = "pip install 'pixpack[ffmpeg]'"

# FFmpeg's names of the pixel formats that it may decode a JPEG to. It would convert others (CMYK, RGB, limited range, 4:1:1),
# each version differently
_DECODED = ("yuvj420p", "yuvj422p", "yuvj444p", "gray")
# the encoder's formats; gray becomes YCbCr with neutral chroma
_ENCODED = "format=yuvj420p|yuvj422p|yuvj444p"
_RATE = Fraction(1, 25)


class Ffmpeg:
    """FFmpeg's libraries through PyAV.

    Raises:
        FfmpegError: PyAV is missing.
    """

    def __init__(self) -> None:
        try:
            import av
            import av.filter
        except ImportError:
            raise FfmpegError(f"requantizing needs PyAV, and there is none here. Get it: {HOW_TO_GET}.") from None

        av.logging.set_level(None)
        self.av: ModuleType = av

    def encode(self, data: bytes, quality: int, size: tuple[int, int] | None = None) -> bytes:
        """Encode a JPEG again, as `ffmpeg -q:v quality` does: 2 is best, 31 smallest. EXIF is lost, nothing is turned.

        Args:
            size: (width, height) to scale to first, by FFmpeg's bicubic filter.

        Raises:
            NotRequantized: FFmpeg decodes it to another format than full-range YCbCr or gray, or not at all.
        """
        frame = self._decoded(data)
        if size is not None or frame.format.name == "gray":
            scale = "" if size is None else f"scale={size[0]}:{size[1]}:flags=bicubic,"
            frame = self._filtered(frame, f"{scale}{_ENCODED}")
        encoder = self.av.CodecContext.create("mjpeg", "w")
        encoder.width, encoder.height, encoder.pix_fmt = frame.width, frame.height, frame.format.name
        encoder.time_base, encoder.thread_count = _RATE, 1
        encoder.qmin = encoder.qmax = quality
        encoder.options = {"flags": "+qscale"}
        try:
            return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])
        except self.av.FFmpegError as e:
            raise NotRequantized(f"FFmpeg cannot encode it ({e.strerror})") from e

    def _decoded(self, data: bytes) -> Any:
        # one context per image: the tables of one must not decode the next
        decoder = self.av.CodecContext.create("mjpeg", "r")
        decoder.thread_count = 1
        try:
            frames = decoder.decode(self.av.Packet(data)) or decoder.decode(None)
        except self.av.FFmpegError as e:
            raise NotRequantized(f"FFmpeg cannot decode it ({e.strerror})") from e
        if not frames or frames[0].is_corrupt:
            raise NotRequantized("FFmpeg cannot decode it")
        if (name := frames[0].format.name) not in _DECODED:
            raise NotRequantized(f"FFmpeg decodes it as {name}")
        return frames[0]

    def _filtered(self, frame: Any, chain: str) -> Any:
        """Send a frame through filters: "scale=8:8,format=gray" -> the frame that comes out."""
        graph = self.av.filter.Graph()
        source = graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=_RATE)
        steps = [source, *(graph.add(*step.split("=", 1)) for step in chain.split(",")), graph.add("buffersink")]
        for one, other in itertools.pairwise(steps):
            one.link_to(other)
        graph.configure()
        frame.pts = 0
        source.push(frame)
        source.push(None)
        return graph.pull()


@dataclass(frozen=True)
class Recoded:
    """The JPEG that FFmpeg made, or the source's own bytes and why they were kept."""

    data: bytes
    kept: str = ""


class Recoder:
    """Requantizes images, one after the other.

    Args:
        quality: FFmpeg's -q:v, 2 (best) to 31 (smallest).
        size: (height, width): upright pictures get this size; (None, S): a longer short side becomes S.
    """

    def __init__(self, quality: int, *, size: tuple[int | None, int] | None = None) -> None:
        self._ffmpeg, self._quality, self._size = Ffmpeg(), quality, size
        # a row of one pixel lets JPEGs be decoded at an eighth: all of their data is read, at half the cost
        self._check = Decoder(Geometry(1, 1, "squash"))

    def recode(self, data: bytes) -> Recoded:
        """Requantize one image; its EXIF orientation is kept, all other metadata is not.

        Raises:
            DecodeError: it is broken, and would be rejected by a pack.
        """
        checked = self._check.row(data)
        source = jpeg.read_header(data)
        if source is None:
            return Recoded(data, "it is no JPEG")
        if "warnings" in checked.done:
            return Recoded(data, f"it decodes only with warnings ({checked.done['warnings'][0]})")
        orientation = checked.done.get("exif_orientation", 1)
        size = self._stored_size(checked.width, checked.height, orientation)
        try:
            encoded = self._ffmpeg.encode(data, self._quality, size)
        except NotRequantized as e:
            return Recoded(data, str(e))
        header = jpeg.read_header(encoded)
        expected = size or (checked.width, checked.height)[:: -1 if orientation >= 5 and size is None else 1]
        if header is None or (header.width, header.height) != expected:
            return Recoded(data, "FFmpeg decodes it to another size")
        return Recoded(_with_orientation(encoded, orientation))

    def _stored_size(self, width: int, height: int, orientation: int) -> tuple[int, int] | None:
        """Return (width, height) to scale the stored picture to, or None to keep its size."""
        if self._size is None:
            return None
        wanted_height, wanted = self._size
        if wanted_height is not None:
            scaled = wanted, wanted_height
        elif min(width, height) <= wanted:
            return None
        elif width <= height:
            scaled = wanted, int(wanted * height / width)
        else:
            scaled = int(wanted * width / height), wanted
        return scaled[::-1] if orientation >= 5 else scaled


class RequantizingDecoder:
    """Like a Decoder, but decodes rows from the requantized JPEG, without DCT scaling."""

    def __init__(self, quality: int, decoder: Decoder) -> None:
        self._recoder, self._decoder = Recoder(quality), decoder

    def row(self, data: bytes, memory: memoryview | None = None) -> Row:
        """Decode one image into a row; raises DecodeError."""
        recoded = self._recoder.recode(data)
        row = self._decoder.row(recoded.data, memory)
        done = row.done | {"requantized": not recoded.kept} | ({"kept": recoded.kept} if recoded.kept else {})
        return dataclasses.replace(row, done=done)


def ffmpeg_versions() -> dict[str, str]:
    """Return the versions that determine requantized pixels, for the manifest; raises FfmpegError."""
    av = Ffmpeg().av
    return {"av": av.__version__, "ffmpeg": av.ffmpeg_version_info, "machine": platform.machine()}


def _with_orientation(encoded: bytes, orientation: int) -> bytes:
    """Put EXIF with an orientation, 1 to 8, into a JPEG that has none; 1 needs none."""
    if orientation == 1:
        return encoded
    # TIFF 6.0: one entry, tag 0x0112, one SHORT, padded to 4 bytes; no further directory
    tiff = struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    # an APP1 segment; its length counts itself
    exif = b"Exif\0\0" + tiff
    return encoded[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + encoded[2:]
