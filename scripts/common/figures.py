"""What benchmarks share: the photographs, the machine, medians, a table, the JSON line at the end.

Never times anything itself.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from packer.errors import DecodeError
from packer.inputs.scan import scan
from packer.pixels.decode import Decoder
from packer.pixels.formats.jpeg import read_header
from packer.pixels.formats.turbojpeg import JpegDecoder
from packer.pixels.formats.versions import decoder_versions
from packer.pixels.geometry import Geometry
from packer.sources.local import LocalSource
from reader.system import available_cpus
from scripts import ROOT, environment

# Beside the checkout where the project is developed; elsewhere the benchmarks draw their own.
_PHOTOS = ROOT.parent / "shared" / "photos"
# What make_sample.py draws by default.
_SAMPLE = 240


class BenchmarkError(RuntimeError):
    """The benchmark cannot run, or what it timed is not right and its time means nothing."""


@dataclass(frozen=True)
class Photograph:
    """A JPEG that the fast path takes. dct_scale is what `pack` decodes it by: 1, 2, 4 or 8."""

    path: Path
    folder: str
    dct_scale: int


def photographs(images: Path | None, work: Path, size: int, *, most: int | None = None) -> list[Photograph]:
    """List the JPEGs of a folder that `pack` decodes through libjpeg-turbo (by Pillow where that is missing).

    Without a folder: ../shared/photos beside the checkout, else those that make_sample.py draws into work. `most`: where so
    many are enough, no more are drawn, and of a large folder about so many looked at, evenly over it.

    Raises:
        BenchmarkError: there is none.
        ScanError: the folder cannot be listed or holds no image.
    """
    root = images or (_PHOTOS if _PHOTOS.is_dir() else _sample(work, most))
    decoder, is_fast = Decoder(Geometry(size, size)), JpegDecoder().is_available
    found = []
    files = [(split, name) for split, inputs in scan(root).items() for name in inputs.paths]
    for split, name in files if most is None else files[:: max(1, len(files) // most)]:
        path = root / split / name
        scale = _dct_scale(decoder, path, is_fast)
        if scale is not None:
            found.append(Photograph(path, Path(name).parent.as_posix(), scale))
    if not found:
        raise BenchmarkError(f"{root} holds no JPEG that libjpeg-turbo decodes without a warning. Give --images DIR.")
    return found


def repeat_files(found: Sequence[Photograph], dest: Path, count: int, *, link: bool) -> dict[str, Photograph]:
    """Fill dest with count files: copies, or links to the few originals. Returns path relative to dest -> original.

    Where fewer files than photographs are wanted, they are taken evenly over the list, so that all classes stay.
    """
    made = {}
    for i in range(count):
        photo = found[i % len(found) if count >= len(found) else i * len(found) // count]
        # the number first: sorted by name, a photograph is not followed by itself
        name = Path(photo.folder, f"{i:06}_{photo.path.name}")
        (dest / name).parent.mkdir(parents=True, exist_ok=True)
        if link:
            (dest / name).symlink_to(photo.path.absolute())
        else:
            shutil.copyfile(photo.path, dest / name)
        made[name.as_posix()] = photo
    return made


def machine(folder: Path) -> dict[str, Any]:
    """Describe where the figures come from; folder is where the benchmark writes."""
    libraries = ("pixpack", "torch", "tensordict", "numpy")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _first_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": available_cpus(),
        "memory": _first_value("/proc/meminfo", "MemTotal"),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "system": platform.platform(),
        "file_system": _file_system(folder),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in libraries},
        "decoders": decoder_versions(),
    }


def spread(values: Sequence[float], digits: int) -> dict[str, Any]:
    """Return median, p10, p90, minimum, maximum and the values themselves, rounded."""
    p10, median, p90 = (round(float(value), digits) for value in np.percentile(values, [10, 50, 90]))
    rounded = [round(float(value), digits) for value in values]
    return {
        "median": median,
        "p10": p10,
        "p90": p90,
        "min": min(rounded),
        "max": max(rounded),
        "values": rounded,
    }


def ratios(ours: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    """Return the spread of ours / others, taken round by round: what disturbs both of a round cancels."""
    return spread([a / b for a, b in zip(ours, others, strict=True)], 3)


def rate_cells(rates: dict[str, Any]) -> list[str]:
    """Format a spread of images/s for a table: median, minimum..maximum."""
    return [f"{rates['median']:,.0f}", f"{rates['min']:,.0f}..{rates['max']:,.0f}"]


def ratio_cells(ratio: dict[str, Any] | None) -> list[str]:
    """Format a spread of ratios for a table: median, p10..p90; blanks where there is none."""
    return ["", ""] if ratio is None else [f"{ratio['median']:.2f}", f"{ratio['p10']:.2f}..{ratio['p90']:.2f}"]


def table(lines: Sequence[Sequence[str]]) -> str:
    """Align cells in columns, the first to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    drawn = [[cell.rjust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *cells[1:]]) for line, cells in zip(lines, drawn, strict=True)
    )


def process_bytes(pid: int | str, *fields: str) -> int:
    """Add up fields of what the kernel says of a process's memory, such as Pss_Anon; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.split(":")[0] in fields)


def publish(report: dict[str, Any], path: Path | None) -> None:
    """Print the report as one JSON line, the last of the output, and put the same line into a file."""
    line = json.dumps(report)
    if path is not None:
        path.write_text(line + "\n", encoding="ascii")
    print(line, flush=True)


def _sample(work: Path, count: int | None) -> Path:
    """Draw photograph-like images; made once for a work folder."""
    command = [sys.executable, "-m", "scripts.samples.make_sample", str(work / "sample")]
    command += ["--count", str(count)] if count is not None and count < _SAMPLE else []
    subprocess.run(command, check=True, stdout=sys.stderr, env=environment())
    return work / "sample"


def _dct_scale(decoder: Decoder, path: Path, is_fast: bool) -> int | None:
    """Return the scale that pack decodes a JPEG by; None for other files and for what only Pillow can decode."""
    try:
        data, _ = LocalSource(str(path)).read()
        if read_header(data) is None:
            return None
        done = decoder.row(data).done
    except DecodeError:
        return None
    return done.get("dct_scale", 1) if not is_fast or done["decoder"] == "libjpeg-turbo" else None


def _first_value(path: str, key: str) -> str | None:
    try:
        with open(path) as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith(key)), None)
    except OSError:
        return None


def _file_system(folder: Path) -> str | None:
    """Name the type of the file system that holds a folder: on tmpfs a sync costs nothing."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return None
    # "36 35 98:0 / /mnt rw - ext4 /dev/sda1 rw": the type stands after the lone dash
    return next((fields[fields.index("-") + 1] for fields in mounts if fields[2] == wanted), None)
