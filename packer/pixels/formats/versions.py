"""Which decoders are live here: versions, and which Pillow. Decodes nothing."""

from __future__ import annotations

from typing import Any

# Pillow itself, Image and features with it, takes 40 ms to import
import PIL
from PIL import _imaging as core

from packer.pixels.compiled import native
from packer.pixels.formats import jpeg, plugins
from packer.system import installed_version


def decoder_versions() -> dict[str, Any]:
    """Return what decides about pixels, for the manifest: distributions, versions, and which Pillow is live."""
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


def pillow_distribution() -> str:
    """Name the live Pillow: both distributions are the same import, and Pillow-SIMD numbers itself "x.y.z.postN"."""
    is_simd = ".post" in PIL.__version__ and installed_version("pillow-simd") == PIL.__version__
    return "pillow-simd" if is_simd else "pillow"


def _libjpeg_turbo() -> dict[str, str | None]:
    """Return which libjpeg-turbo jpeg4py decodes with, and that of the compiled part where it decodes with another one."""
    found = {"jpeg4py": jpeg.version(), "turbojpeg": jpeg.library_version()}
    own = native().version
    return found | ({"compiled": own} if own and own != found["turbojpeg"] else {})
