"""What this machine has and lacks for packing: decoders, memory, GPUs, file systems, packages; each lack with what fixes it.

Imports no torch: whether it knows CUDA is read from its version file, the GPUs are asked of nvidia-smi. Leaves no file behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packer.system import FULL
from packer.version import __version__
from reader import system
from reader.system import available_cpus

_NEEDED = ("click", "numpy", "tqdm")
# of the reader and `pack bench` alone
_FOR_READING = ("tensordict", "torch")
# as in scripts/setup.sh and the extra `simd`: one version for both, since they have the same files
_PILLOW_SIMD = (
    'CC="cc -mavx2" pip install --no-deps --force-reinstall --no-cache-dir --no-binary pillow-simd'
    " pillow-simd==12.1.1.post0"
)
# of Pillow's features, those that decode what `pack` takes
_FEATURES = {"jpg": "JPEG", "zlib": "PNG", "webp": "WebP", "libtiff": "TIFF"}
_TRIAL_BYTES = 1 << 20
_SECONDS = 10

OK, ADVICE, MISSING = "ok", "advice", "missing"


@dataclass(frozen=True)
class Finding:
    """One result of a check. level: "ok", "advice" (works, but could be better), "missing" (packing needs it).

    `fix`: how to fix it; a key of the JSON report.
    """

    name: str
    found: str
    level: str = OK
    fix: str = ""


@dataclass(frozen=True)
class DoctorReport:
    """All findings, in order; is_fit is False where something that packing needs is missing."""

    is_fit: bool
    findings: list[Finding]


def examine(path: str | os.PathLike[str] = ".") -> DoctorReport:
    """Look at this machine, this Python, and the file system of a path (which need not exist yet).

    Example:
        >>> examine(out_path).findings[0].name
        'pixpack'
    """
    findings = [*_ourselves(), *_packages()]
    # where another package goes by our name, what follows could not even be imported
    if all(finding.level != MISSING for finding in findings):
        findings += [
            _libjpeg_turbo(),
            *_pillow(),
            _compiled_part(),
            *_plugins(),
            _ffmpeg(),
            _cpus(),
            _memory(),
            _cuda(),
            *_file_system(Path(path)),
        ]
    return DoctorReport(all(finding.level != MISSING for finding in findings), findings)


# -- packages


def _ourselves() -> Iterator[Finding]:
    """Find what else is called `reader` or `packer`, and so would be imported, or has overwritten our files."""
    home = Path(__file__).resolve().parents[2]
    yield Finding("pixpack", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    owners = importlib.metadata.packages_distributions()
    for name in ("reader", "packer"):
        strangers = sorted(set(owners.get(name, [])) - {"pixpack"})
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if strangers:
            fix = f"pip uninstall {' '.join(strangers)}, then pip install --force-reinstall --no-deps pixpack"
            yield Finding(name, f"the distribution {strangers[0]} has a package of this name too", MISSING, fix)
        elif origin is None or origin.parent.parent != home:
            found = f"{origin.parent if origin else 'nothing'} is imported instead of {home / name}"
            yield Finding(name, found, MISSING, "take its folder off PYTHONPATH, or rename it")


def _packages() -> Iterator[Finding]:
    for name in _NEEDED:
        version = _version(name)
        yield Finding(name, version) if version else Finding(name, "missing", MISSING, f"pip install {name}")
    for name in _FOR_READING:
        version = _version(name)
        lack = "not installed: this machine packs, but neither `pack bench` nor training runs here"
        yield Finding(name, version) if version else Finding(name, lack, ADVICE, f"pip install {name}")


def _version(distribution: str) -> str:
    """Return a distribution's version, "" where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


# -- decoders


def _libjpeg_turbo() -> Finding:
    from packer.pixels.formats import jpeg

    name, version = "libjpeg-turbo", jpeg.version()
    if version:
        return Finding(name, f"{jpeg.library_version() or 'of unknown version'}, through jpeg4py {version}")
    # where the compiled part decodes, this is a small loss
    loss = "Pillow decodes the JPEGs that the compiled part leaves to it, or all of them, slower"
    if not _version("jpeg4py"):
        return Finding(name, f"jpeg4py is missing: {loss}", ADVICE, "pip install jpeg4py")
    package = "libturbojpeg" if "ubuntu" in _os_release() else "libturbojpeg0"
    fix = f"apt-get install {package}" if shutil.which("apt-get") else "install libjpeg-turbo's TurboJPEG library"
    return Finding(name, f"libturbojpeg is missing: {loss}", ADVICE, fix)


def _os_release() -> str:
    try:
        return Path("/etc/os-release").read_text(encoding="utf-8").lower()
    except OSError:
        return ""


def _pillow() -> Iterator[Finding]:
    try:
        from packer.pixels.compiled import native
        from packer.pixels.formats.versions import decoder_versions, missing_features, pillow_fix
    except ImportError as e:
        yield Finding("Pillow", f"cannot be imported: {e}", MISSING, "pip install --force-reinstall pillow")
        return
    live = decoder_versions()["pillow"]
    found = f"{live['distribution']} {live['version']}, {live['simd'] or 'no'} SIMD"
    lacks = [_FEATURES[name] for name in missing_features(tuple(_FEATURES))]
    if lacks:
        yield Finding("Pillow", f"{found}, built without {', '.join(lacks)}", MISSING, pillow_fix())
    elif _version("pillow-simd") and live["distribution"] == "pillow":
        yield Finding("Pillow", f"{found}: pillow was installed over pillow-simd", ADVICE, _PILLOW_SIMD)
    elif native().resize is None and live["simd"] != "avx2" and "avx2" in _cpu_flags():
        yield Finding("Pillow", f"{found}; resizing is faster with AVX2", ADVICE, _PILLOW_SIMD)
    else:
        yield Finding("Pillow", found)


def _compiled_part() -> Finding:
    name, what = "compiled part", "decodes and resizes JPEGs in one pass, and crops batches"
    try:
        from packer.pixels.compiled import native
    except ImportError as e:
        return Finding(
            name, f"not used: Pillow cannot be imported ({e})", ADVICE, "pip install --force-reinstall pillow"
        )
    live = native()
    if live.row is not None:
        return Finding(name, f"{what}, with libjpeg-turbo {live.version}")
    fix = "install libjpeg-turbo 2.1 to 3.2"
    if live.is_missing:
        packages = "apt-get install gcc libc6-dev libjpeg-dev, then " if shutil.which("apt-get") else ""
        fix = f"{packages}pip install --force-reinstall --no-deps --no-cache-dir pixpack"
    return Finding(name, f"{live.reason}; it {what}", ADVICE, fix)


def _plugins() -> Iterator[Finding]:
    """Say of each format that needs more than Pillow what decodes it."""
    from packer.pixels.formats.plugins import SUFFIXES, library

    for kind in SUFFIXES:
        found = library(kind)
        if found.lacks:
            what, _, command = found.lacks.partition(": ")
            yield Finding(kind, f"cannot be decoded: it needs {what}", ADVICE, command or f"reinstall {what}")
        else:
            yield Finding(kind, f"through {found.decoder}")


def _cpu_flags() -> list[str]:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        return next((line.split() for line in lines if line.startswith("flags")), [])
    return []


def _ffmpeg() -> Finding:
    from packer.errors import FfmpegError
    from packer.pixels.ffmpeg import HOW_TO_GET, versions

    try:
        live = versions()
    except FfmpegError:
        return Finding("ffmpeg", "missing: requantizing alone needs it", ADVICE, HOW_TO_GET)
    through = f"PyAV {live['av']}" if live["av"] else str(shutil.which("ffmpeg"))
    return Finding("ffmpeg", f"{live['ffmpeg']}, through {through}")


# -- the machine


def _cpus() -> Finding:
    usable, there = available_cpus(), os.cpu_count() or 1
    return Finding("CPUs", f"{usable} of {there} may be used (affinity and cgroup)")


def _memory() -> Finding:
    total, available = system.meminfo("MemTotal"), system.meminfo("MemAvailable")
    if total is None or available is None:
        return Finding("memory", "unknown")
    limit = system.memory_bytes()
    limited = f"; its cgroup may use {_gb(limit)}" if limit < total else ""
    return Finding("memory", f"{_gb(available)} of {_gb(total)} available{limited}")


def _cuda() -> Finding:
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    gpus = [line.strip() for line in _output(query).splitlines() if line.strip()]
    there = "; ".join(gpus) or "no GPU"
    if importlib.util.find_spec("torch") is None:
        return Finding("CUDA", f"{there}; torch is not installed")
    built = _torch_cuda()
    if gpus and built is None:
        fix = "install torch with CUDA: https://pytorch.org/get-started/locally"
        return Finding("CUDA", f"{there}; but torch is built for the CPU alone", ADVICE, fix)
    return Finding("CUDA", f"{there}; torch is built for {built or 'the CPU alone'}")


def _torch_cuda() -> str | None:
    """Read from torch/version.py for which CUDA torch is built; importing torch would take a second."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return None
    with contextlib.suppress(OSError):
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
        match = re.search(r"^cuda\b.*=\s*'([\d.]+)'", text, re.M)
        return f"CUDA {match[1]}" if match else None
    return None


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


# -- the file system of a path


def _file_system(path: Path) -> Iterator[Finding]:
    """Say what a store below path would be on; tried with an unnamed file, in the first of its folders that exists."""
    folder = path.absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    kind = system.file_system(folder)
    network = system.is_network(kind)
    free = shutil.disk_usage(folder).free
    yield Finding(
        "file system",
        f"{folder}: {kind}{', over a network' if network else ''}, {_gb(free)} free",
        ADVICE if network else OK,
        'read with MemmapLoader(residency="ram"), or copy the store to a local disk' if network else "",
    )
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            yield Finding("writing", f"allocates up front: {_yes(_allocates(file.fileno()))}")
            yield Finding("O_DIRECT", _yes(_reads_directly(file.fileno())))
    except OSError as e:
        yield Finding("writing", f"{folder} cannot be written: {e.strerror}", MISSING, "choose another folder for OUT")


def _allocates(descriptor: int) -> bool:
    """Whether the file system reserves room; asked of fallocate(2) itself, since glibc's posix_fallocate writes zeros instead.

    Raises:
        OSError: it is full.
    """
    try:
        call = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError, TypeError):
        return False
    length = ctypes.c_longlong(_TRIAL_BYTES)
    is_done = call(descriptor, 0, ctypes.c_longlong(0), length) == 0
    if not is_done and (number := ctypes.get_errno()) in FULL:
        raise OSError(number, os.strerror(number))
    return bool(is_done)


def _reads_directly(descriptor: int) -> bool:
    """Whether a file can be opened past the page cache, as residency "disk" does."""
    if not hasattr(os, "O_DIRECT"):
        return False
    try:
        os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB"
