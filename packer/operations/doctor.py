"""The decoders and libraries of this machine, and the missing ones. Imports no torch."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import packer
from packer.errors import FfmpegError
from packer.system import installed_version
from reader.system import available_cpus, file_system

_NEEDED = ("click", "numpy", "tqdm")
_FOR_READING = ("tensordict", "torch")
# Pillow's features that decode formats of `pack`
_FEATURES = ("jpg", "zlib", "webp", "libtiff")


@dataclass(frozen=True)
class DoctorReport:
    """found: name -> version or decoder; missing: name -> what installs it; is_fit: packing needs none of the missing."""

    is_fit: bool
    found: dict[str, str]
    missing: dict[str, str]


def examine(path: str | os.PathLike[str] = ".") -> DoctorReport:
    """Look at this Python's decoders and packages, and at the disk of a path, which need not exist yet.

    Example:
        >>> "pixpack" in examine(out_path).found
        True
    """
    found = {"pixpack": f"{packer.__version__}, Python {platform.python_version()}, {platform.platform()}"}
    missing = dict[str, str]()
    for name in (*_NEEDED, *_FOR_READING):
        if version := installed_version(name):
            found[name] = version
        else:
            missing[name] = f"pip install {name}"
    is_fit = _pillow(found, missing) and not missing.keys() & set(_NEEDED)
    _ffmpeg(found, missing)
    folder = next(folder for folder in (Path(path).absolute(), *Path(path).absolute().parents) if folder.is_dir())
    found["CPUs"] = f"{available_cpus()} of {os.cpu_count()} may be used"
    found["disk"] = f"{folder}: {file_system(folder)}, {shutil.disk_usage(folder).free / 1e9:,.1f} GB free"
    return DoctorReport(is_fit, found, missing)


def _pillow(found: dict[str, str], missing: dict[str, str]) -> bool:
    """Find Pillow and its plugins; returns whether Pillow decodes the formats that `pack` takes."""
    try:
        from PIL import features

        from packer.pixels import plugins
        from packer.pixels.compiled import native
        from packer.pixels.decoder_choice import decoder_versions
    except ImportError as e:
        missing["Pillow"] = f"pip install --force-reinstall pillow ({e})"
        return False
    versions = decoder_versions()
    pillow, turbojpeg = versions["pillow"], versions["libjpeg-turbo"]
    found["Pillow"] = f"{pillow['distribution']} {pillow['version']}"
    if native().row is None:
        missing["compiled part"] = native().reason
    else:
        found["compiled part"] = f"libjpeg-turbo {native().version}"
    if turbojpeg["jpeg4py"]:
        found["jpeg4py"] = f"{turbojpeg['jpeg4py']}, libjpeg-turbo {turbojpeg['turbojpeg'] or 'of unknown version'}"
    else:
        missing["jpeg4py"] = "pip install jpeg4py; apt-get install libturbojpeg0 (on Ubuntu libturbojpeg)"
    for kind, (_, distribution) in plugins.PLUGINS.items():
        if about := plugins.versions().get(distribution):
            found[kind] = f"{distribution} {about['version']}"
        else:
            missing[kind] = f"pip install {distribution}"
    if lacking := [name for name in _FEATURES if not features.check(name)]:
        missing["Pillow"] = (
            f"Pillow is built without {', '.join(lacking)}: pip install --force-reinstall --no-deps pillow"
        )
    return not lacking


def _ffmpeg(found: dict[str, str], missing: dict[str, str]) -> None:
    from packer.pixels.ffmpeg import HOW_TO_GET, ffmpeg_versions

    try:
        found["ffmpeg"] = ffmpeg_versions()["ffmpeg"]
    except FfmpegError:
        missing["ffmpeg"] = f"{HOW_TO_GET}; only requantizing needs it"
