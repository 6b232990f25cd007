"""The choice of a pack's decoder, and the versions of the libraries that determine its pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Pillow itself, Image and features with it, takes 40 ms to import
import PIL
from PIL import _imaging as core

from packer.options import CHANNELS, RowOptions
from packer.pixels import jpeg, plugins
from packer.pixels.compiled import native
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry, live_rule, pillow_distribution
from packer.pixels.row import RowDecoder


def row_decoder(geometry: Geometry, options: RowOptions) -> RowDecoder:
    """Return the decoder of a pack."""
    plain = Decoder(geometry, channels=options.channels, exact=options.is_exact, bit_depth=options.bit_depth)
    decoder: RowDecoder = plain
    if options.requantize is not None:
        from packer.pixels.ffmpeg import RequantizingDecoder

        decoder = RequantizingDecoder(options.requantize, plain)
    if options.compress:
        from packer.pixels.jpeg_rows import JpegRowDecoder

        decoder = JpegRowDecoder(decoder, geometry, options.compress, CHANNELS[options.channels])
    return decoder


def pixel_versions(options: Mapping[str, Any]) -> dict[str, object]:
    """Return the versions that determine the pixels of a pack with these recorded options, for the manifest.

    Raises:
        FfmpegError: FFmpeg is needed and missing.
    """
    found = decoder_versions() | live_rule()
    if options.get("requantize") is not None:
        from packer.pixels.ffmpeg import ffmpeg_versions

        found["ffmpeg"] = ffmpeg_versions()
    return found


def decoder_versions() -> dict[str, Any]:
    """Return the decoders' distributions and versions, for the manifest."""
    return {
        "libjpeg-turbo": _libjpeg_turbo(),
        "pillow": {
            "distribution": pillow_distribution(),
            "version": PIL.__version__,
            # as PIL.features does
            "libjpeg_turbo": core.libjpeg_turbo_version if core.HAVE_LIBJPEGTURBO else None,
        },
        **plugins.versions(),
    }


def _libjpeg_turbo() -> dict[str, str | None]:
    """Return the libjpeg-turbo version of jpeg4py, and that of the compiled part if it differs."""
    found = {"jpeg4py": jpeg.version(), "turbojpeg": jpeg.library_version()}
    own = native().version
    return found | ({"compiled": own} if own and own != found["turbojpeg"] else {})
