"""Which decoder makes the rows of a pack, and what decides about their pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packer.options import CHANNELS, RowOptions
from packer.pixels.decode import Decoder
from packer.pixels.formats.versions import decoder_versions
from packer.pixels.geometry import Geometry
from packer.pixels.resize import live_rule
from packer.pixels.row import RowDecoder


def row_decoder(geometry: Geometry, options: RowOptions) -> RowDecoder:
    """Return what makes the rows of a pack."""
    plain = Decoder(geometry, channels=options.channels, exact=options.is_exact, bit_depth=options.bit_depth)
    decoder: RowDecoder = plain
    if options.requantize is not None:
        from packer.pixels.requantize import RequantizingDecoder

        decoder = RequantizingDecoder(options.requantize, plain)
    if options.compress:
        from packer.pixels.jpeg_rows import JpegRowDecoder

        decoder = JpegRowDecoder(decoder, geometry, options.compress, CHANNELS[options.channels])
    return decoder


def pixel_versions(options: Mapping[str, Any]) -> dict[str, object]:
    """Return what decides about the pixels of a pack with these recorded options, for the manifest.

    Raises:
        FfmpegError: FFmpeg is needed and missing.
    """
    found = decoder_versions() | live_rule()
    if options.get("requantize") is not None:
        from packer.pixels.requantize import ffmpeg_versions

        found["ffmpeg"] = ffmpeg_versions()
    if options.get("compress"):
        from packer.pixels.jpeg_rows import jpeg_versions

        found["jpeg"] = jpeg_versions()
    return found
