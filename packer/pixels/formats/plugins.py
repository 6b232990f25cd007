"""Formats that Pillow decodes only where more is installed: which of them data is, what decodes it here, what to install.

Knows pillow-heif, pillow-jxl-plugin and pillow-avif-plugin; each is imported when the first image that needs it comes.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from packer.pixels.formats.versions import missing_features, pillow_fix
from packer.system import installed_version

HEIC, AVIF, JPEG_XL, JPEG_2000 = "HEIC", "AVIF", "JPEG XL", "JPEG 2000"
SUFFIXES = {
    HEIC: (".heic", ".heif", ".hif"),
    AVIF: (".avif",),
    JPEG_XL: (".jxl",),
    JPEG_2000: (".jp2", ".j2k", ".jpf", ".jpx"),
}
# ISO/IEC 23008-12, annex B: brands of HEVC pictures and sequences; AV1 Image File Format, section 6
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
# of any codec: which one it is, the compatible brands say
_ANY_BRANDS = frozenset({b"mif1", b"msf1", b"mif2", b"miaf"})
# ISO/IEC 18181-2: a bare codestream, and the box that begins a container
_JPEG_XL = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")
_JPEG_2000 = (b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")
_BRANDS_BYTES = 256
_KINDS = {"HEIF": HEIC, "AVIF": AVIF, "JXL": JPEG_XL, "JPEG2000": JPEG_2000}


@dataclass(frozen=True)
class Library:
    """What decodes a format here: Pillow's names of it, and who; `lacks` is what to install where nothing does."""

    formats: tuple[str, ...] = ()
    decoder: str = "Pillow"
    lacks: str = ""


def kind_of(data: bytes) -> str:
    """Return which of these formats data is, by its first bytes; "" where it is none of them."""
    if data[4:8] == b"ftyp":
        stop = min(int.from_bytes(data[:4], "big"), _BRANDS_BYTES)
        brands = [data[8:12], *(data[at : at + 4] for at in range(16, stop, 4))]
        first = next((brand for brand in brands if brand in _HEIC_BRANDS | _AVIF_BRANDS), b"")
        if first:
            return AVIF if first in _AVIF_BRANDS else HEIC
        return HEIC if brands[0] in _ANY_BRANDS else ""
    if data.startswith(_JPEG_XL):
        return JPEG_XL
    return JPEG_2000 if data.startswith(_JPEG_2000) else ""


@functools.cache
def library(kind: str) -> Library:
    """Import what decodes a format, once a process; says what to install where that is missing or broken."""
    find: Callable[[], Library] = {HEIC: _heic, AVIF: _avif, JPEG_XL: _jpeg_xl, JPEG_2000: _jpeg_2000}[kind]
    return find()


def decoder_of(pillow_format: str | None) -> str:
    """Name what decodes images of a format that Pillow names so, with its version where it is not Pillow."""
    kind = _KINDS.get(pillow_format or "")
    return library(kind).decoder if kind else "Pillow"


def _heic() -> Library:
    try:
        import pillow_heif

        # a worker is one of as many as there are CPUs
        pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)
        decoder = f"{_version('pillow-heif')} (libheif {pillow_heif.libheif_version()})"
    except Exception as e:
        return _lacking(e, "pillow-heif")
    return Library(("HEIF",), decoder)


def _avif() -> Library:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow before 11.3 knows no such feature
        if not missing_features(("avif",)):
            return Library(("AVIF",))
    try:
        import pillow_avif  # noqa: F401

        return Library(("AVIF",), _version("pillow-avif-plugin"))
    except Exception as e:
        return _lacking(e, "pillow-avif-plugin")


def _jpeg_xl() -> Library:
    try:
        from pillow_jxl import JpegXLImagePlugin

        JpegXLImagePlugin.DECODE_THREADS = 0
        return Library(("JXL",), _version("pillow-jxl-plugin"))
    except Exception as e:
        return _lacking(e, "pillow-jxl-plugin")


def _jpeg_2000() -> Library:
    if missing_features(("jpg_2000",)):
        return Library(lacks=f"a Pillow with OpenJPEG, as its own wheel is: {pillow_fix()}")
    return Library(("JPEG2000",))


def _lacking(error: Exception, distribution: str) -> Library:
    if isinstance(error, ModuleNotFoundError):
        return Library(lacks=f"{distribution}: pip install {distribution}")
    problem = str(error).splitlines()[0] if str(error) else type(error).__name__
    return Library(lacks=f"{distribution}, which is there but cannot be imported ({problem})")


def _version(distribution: str) -> str:
    return f"{distribution} {installed_version(distribution)}"
