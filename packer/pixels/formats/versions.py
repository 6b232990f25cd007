"""Which decoders are live here: versions, which Pillow, what it was built with. Decodes nothing."""

from __future__ import annotations

import re
from typing import Any

# Pillow itself, Image and features with it, takes 40 ms to import
import PIL
from PIL import _imaging as core

from packer.pixels.compiled import native
from packer.pixels.formats import jpeg
from packer.system import installed_version


def decoder_versions() -> dict[str, Any]:
    """Return what decides about pixels, for the manifest: distributions, versions, and which Pillow is live."""
    return {
        "libjpeg-turbo": _libjpeg_turbo(),
        "pillow": {
            "distribution": pillow_distribution(),
            "version": PIL.__version__,
            "simd": _pillow_simd(),
            "libjpeg_turbo": _libjpeg_turbo_in_pillow(),
        },
    }


def missing_features(names: tuple[str, ...]) -> list[str]:
    """Return which of these optional parts (as `PIL.features` names them) the live Pillow was built without."""
    from PIL import features

    return [name for name in names if not features.check(name)]


def pillow_distribution() -> str:
    """Name the live Pillow: both distributions are the same import, and Pillow-SIMD numbers itself "x.y.z.postN"."""
    is_simd = ".post" in PIL.__version__ and installed_version("pillow-simd") == PIL.__version__
    return "pillow-simd" if is_simd else "pillow"


def pillow_fix() -> str:
    """Return the command that installs Pillow's own wheel, which has all formats; says so where that costs Pillow-SIMD."""
    loss = " (it replaces Pillow-SIMD, which resizes faster)" if pillow_distribution() == "pillow-simd" else ""
    return f"pip install --force-reinstall --no-deps pillow{loss}"


def _libjpeg_turbo() -> dict[str, str | None]:
    """Return which libjpeg-turbo jpeg4py decodes with, and that of the compiled part where it decodes with another one."""
    found = {"jpeg4py": jpeg.version(), "turbojpeg": jpeg.library_version()}
    own = native().version
    return found | ({"compiled": own} if own and own != found["turbojpeg"] else {})


def _libjpeg_turbo_in_pillow() -> str | None:
    """Return the version of the libjpeg-turbo in the live Pillow, as PIL.features does."""
    return core.libjpeg_turbo_version if core.HAVE_LIBJPEGTURBO else None


def _pillow_simd() -> str | None:
    """Return which instructions the live Pillow resizes with: "avx2", "sse4", or None: those of plain Pillow.

    Pillow does not say, and its SIMD edition chooses when it is compiled. Its resampling is built on one instruction,
    multiply-add of 16-bit pairs, of which plain Pillow's wheel has none, an SSE4 build 204 and an AVX2 build 30 on 256 bits
    (12.1.1, 2026-11-20): so they are looked for in the library.
    """
    if pillow_distribution() != "pillow-simd":
        return None
    with open(core.__file__, "rb") as file:
        library = file.read()
    # Intel SDM, volume 2, PMADDWD: VEX.256.66.0F F5, and its legacy encoding 66 0F F5
    if re.search(rb"\xc5[\x85\x8d\x95\x9d\xa5\xad\xb5\xbd\xc5\xcd\xd5\xdd\xe5\xed\xf5\xfd]\xf5", library):
        return "avx2"
    return "sse4" if re.search(rb"\x66[\x40-\x4f]?\x0f\xf5", library) else None
