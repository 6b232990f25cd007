"""Formats that Pillow decodes by a plugin: detects them, and imports the plugin for the first image that needs it.

Knows pillow-heif and pillow-jxl-plugin.
"""

from __future__ import annotations

import functools
import importlib.util

from packer.system import installed_version

# Pillow's name of a format -> the module and the distribution of its plugin.
PLUGINS = {"HEIF": ("pillow_heif", "pillow-heif"), "JXL": ("pillow_jxl", "pillow-jxl-plugin")}
# ISO/IEC 23008-12, annex B: brands of HEVC pictures and sequences, and of any codec
_HEIF_BRANDS = (*(b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"), *(b"mif1", b"msf1", b"mif2"))
# AV1 Image File Format, section 6: Pillow decodes these itself
_AVIF_BRANDS = {b"avif", b"avis"}
# ISO/IEC 18181-2: a bare codestream, and the box that begins a container
_JPEG_XL = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")
_BRANDS_BYTES = 256


def kind_of(data: bytes) -> str:
    """Return the format of data by its first bytes, or ""."""
    if data.startswith(_JPEG_XL):
        return "JXL"
    if data[4:8] != b"ftyp" or data[8:12] not in _HEIF_BRANDS:
        return ""
    stop = min(int.from_bytes(data[:4], "big"), _BRANDS_BYTES)
    return "" if _AVIF_BRANDS & {data[at : at + 4] for at in range(16, stop, 4)} else "HEIF"


@functools.cache
def missing(kind: str) -> str:
    """Register the plugin of a format, once a process; returns the distribution to install if it is missing.

    Raises:
        ImportError: it is installed, but cannot be imported.
    """
    module, distribution = PLUGINS[kind]
    if importlib.util.find_spec(module) is None:
        return distribution
    if kind == "HEIF":
        import pillow_heif

        # there is already a worker per CPU
        pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)
    else:
        from pillow_jxl import JpegXLImagePlugin

        JpegXLImagePlugin.DECODE_THREADS = 0
    return ""


def versions() -> dict[str, dict[str, str | None]]:
    """Return the distribution of each installed plugin, with its version."""
    there = (distribution for module, distribution in PLUGINS.values() if importlib.util.find_spec(module))
    return {distribution: {"version": installed_version(distribution)} for distribution in there}
