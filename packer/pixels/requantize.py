"""One image, requantized: which inputs FFmpeg encodes again and which stay as they are, and the row that comes of either.

Our own decoder rejects what is broken, as in any pack; FFmpeg only sees JPEGs that decode without a complaint.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packer.errors import NotRequantized
from packer.options import CHANNELS, RowOptions
from packer.pixels.decode import Decoder
from packer.pixels.formats import jpeg
from packer.pixels.formats.versions import decoder_versions
from packer.pixels.geometry import Geometry
from packer.pixels.resize import live_rule
from packer.pixels.row import Row, RowDecoder


@dataclass(frozen=True)
class Recoded:
    """The JPEG that FFmpeg made, or the source's own bytes and why they were kept."""

    data: bytes
    kept: str = ""


class Recoder:
    """Requantizes images, one after the other.

    Args:
        quality: FFmpeg's -q:v, 2 (best) to 31 (smallest).
        size: (height, width): upright pictures become just that; (None, S): the short side becomes S, where it is longer.
    """

    def __init__(
        self,
        quality: int,
        *,
        size: tuple[int | None, int] | None = None,
    ) -> None:
        from packer.pixels.ffmpeg import Ffmpeg

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
        return Recoded(with_orientation(encoded, orientation))

    def compare(self, before: bytes, after: bytes) -> tuple[float, float]:
        """Return PSNR in dB and SSIM of a requantized image to its source, scaled to the same size."""
        header = jpeg.read_header(after)
        return self._ffmpeg.compare(before, after, (header.width, header.height) if header else None)

    def _stored_size(self, width: int, height: int, orientation: int) -> tuple[int, int] | None:
        """Return (width, height) to scale to, of the picture as it is stored; None where it stays."""
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
    """As a Decoder, but a row is what the requantized JPEG decodes to, without DCT scaling."""

    def __init__(self, quality: int, decoder: Decoder) -> None:
        self._recoder, self._decoder = Recoder(quality), decoder

    def row(self, data: bytes) -> Row:
        """Decode one image into a row; raises DecodeError."""
        recoded = self._recoder.recode(data)
        row = self._decoder.row(recoded.data)
        done = row.done | {"requantized": not recoded.kept} | ({"kept": recoded.kept} if recoded.kept else {})
        return dataclasses.replace(row, done=done)


def row_decoder(geometry: Geometry, options: RowOptions) -> RowDecoder:
    """Return what makes the rows of a pack."""
    decoder = _image_decoder(geometry, options)
    if not options.compress:
        return decoder
    from packer.pixels.jpeg_rows import JpegRowDecoder

    return JpegRowDecoder(decoder, geometry, options.compress, CHANNELS[options.channels])


def _image_decoder(geometry: Geometry, options: RowOptions) -> Decoder | RequantizingDecoder:
    decoder = Decoder(
        geometry,
        channels=options.channels,
        exact=options.is_exact,
        bit_depth=options.bit_depth,
    )
    if options.requantize is None:
        return decoder
    return RequantizingDecoder(options.requantize, decoder)


def pixel_versions(options: Mapping[str, Any]) -> dict[str, object]:
    """Return what decides about the pixels of a pack with these recorded options, for the manifest.

    Raises:
        FfmpegError: FFmpeg is needed and missing.
    """
    versions_used = decoder_versions()
    if rule := live_rule():
        versions_used["resize"] = rule
    if options.get("requantize") is not None:
        from packer.pixels.ffmpeg import versions

        versions_used["ffmpeg"] = versions()
    if options.get("compress"):
        from packer.pixels.jpeg_rows import jpeg_versions

        versions_used["jpeg"] = jpeg_versions()
    return versions_used


def with_orientation(encoded: bytes, orientation: int) -> bytes:
    """Put EXIF with an orientation, 1 to 8, into a JPEG that has none; 1 needs none."""
    if orientation == 1:
        return encoded
    # TIFF 6.0: one entry, tag 0x0112, one SHORT, padded to 4 bytes; no further directory
    tiff = struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    return encoded[:2] + _segment(b"\xff\xe1", b"Exif\0\0" + tiff) + encoded[2:]


def _segment(marker: bytes, content: bytes) -> bytes:
    return marker + struct.pack(">H", len(content) + 2) + content
