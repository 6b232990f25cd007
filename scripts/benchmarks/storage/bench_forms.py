"""Raw, compressed or JPEG rows, or the images themselves: which form gives more images/s at which rate of the disk or link?

    python -m scripts.benchmarks.storage.bench_forms --images photos/ --picture docs/benchmarks/forms-of-rows.svg

Makes rows of some images in memory, in each form, and takes the processor time that one core needs for an image of it, in turns:
raw rows are copied, compressed ones unpacked, JPEGs of the rows decoded, as a loader does it, and the images decoded, resized and
cropped by Pillow as ImageFolder does. What a disk or link gives, and what the CPUs then do, follows from bytes and seconds; the
lesser of the two is drawn. Prints one JSON object last.
"""

from __future__ import annotations

import io
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from reader import frames
from reader.format.tensors import JPEG, ZSTD
from reader.system import available_cpus
from scripts.common.arguments import bench_parser
from scripts.common.figures import machine, photographs
from scripts.common.pictures import central_crop
from scripts.common.program import reported
from scripts.common.svg import DARK, GRAY, OTHER, OURS, svg_bytes
from scripts.common.timing import in_turns, seconds

# Rows that a thread of MemmapLoader unpacks together.
_TOGETHER = 13
_RATES = np.geomspace(10e6, 10e9, 200)
# The first one is drawn.
_JPEGS = ("jpeg:95", "jpeg:90")


@dataclass(frozen=True)
class Form:
    """One form of the images. make_all: does once for all of them what a loader does; psnr: of each row, dB."""

    name: str
    size_bytes: int
    make_all: Callable[[], object]
    psnr: Sequence[float] = ()


def main() -> int:
    parser = bench_parser(__doc__, images=None, count=200, size=224, rounds=5, json=None)
    parser.add_argument(
        "--cpus", type=int, default=available_cpus(), help="of the curve; default: those of this process"
    )
    parser.add_argument("--picture", type=Path, metavar="SVG", help="draw the curve there")
    options = parser.parse_args()

    def measure(work: Path) -> dict[str, Any]:
        found = photographs(options.images, work, options.size, most=options.count)[: options.count]
        forms = forms_of([photograph.path.read_bytes() for photograph in found], options.size)
        report = report_of(forms, measured(forms, options.rounds), options.cpus)
        if options.picture:
            options.picture.write_bytes(drawn(report))
        return report | {"size": options.size, "machine": machine(work)}

    return reported("bench_forms", measure, json=options.json)


def forms_of(sources: Sequence[bytes], size: int) -> list[Form]:
    """Make the rows of images in each form."""
    decoder = Decoder(Geometry(size, size, crop_fraction=0.875))
    rows = np.stack([np.frombuffer(decoder.row(data).pixels, np.uint8) for data in sources])
    packer = frames.Packer(3)
    packed = [memoryview(packer.pack(row, size, size)) for row in rows]
    assert (_unpacked(packed, size)[-1] == rows[-1]).all()
    forms = [
        Form("raw rows", rows.nbytes, lambda: _copied(rows)),
        Form("compressed rows", sum(map(len, packed)), lambda: _unpacked(packed, size)),
    ]
    for form in _JPEGS:
        lossy = frames.LossyPacker(form, 3)
        made = [lossy.pack(row, size, size) for row in rows]
        jpegs = [memoryview(one.frame) for one in made]
        worth = [_psnr(one.squared_error, rows.shape[1]) for one in made]
        forms.append(Form(_name(form), sum(map(len, jpegs)), lambda jpegs=jpegs: _unpacked(jpegs, size, JPEG), worth))
    crops = round(size / 0.875), size
    forms.append(
        Form("the images, as ImageFolder", sum(map(len, sources)), lambda: [_cropped(data, *crops) for data in sources])
    )
    return forms


def measured(forms: Sequence[Form], rounds: int) -> dict[str, float]:
    """Return the processor seconds of all images in each form: the median of turns."""
    turns = {form.name: partial(seconds, form.make_all, clock=time.process_time) for form in forms}
    # the first round brings memory
    return {name: statistics.median(values) for name, values in in_turns(turns, rounds, untimed=1).items()}


def report_of(forms: Sequence[Form], seconds: dict[str, float], cpus: int) -> dict[str, Any]:
    """Return bytes and images/s of each form, and the rates at which two that are neighbors give as many images/s."""
    count = _count(forms)
    ways = [
        {
            "name": form.name,
            "bytes": round(form.size_bytes / count),
            "of_raw": round(form.size_bytes / forms[0].size_bytes, 3),
            "images_per_second_and_core": round(count / seconds[form.name], 1),
            "psnr_db": round(statistics.median(form.psnr), 1) if form.psnr else None,
        }
        for form in forms
    ]
    even = {
        f"{one['name']} / {other['name']}": round(_even(one, other, cpus) / 1e6)
        for one, other in itertools.pairwise(way for way in ways if way["name"] != _name(_JPEGS[1]))
    }
    return {"images": count, "cpus": cpus, "forms": ways, "even_megabytes_per_second": even}


def rate_of(way: dict[str, Any], bytes_per_second: float, cpus: int) -> float:
    """Return images/s of a form from a disk or link of this rate."""
    return min(bytes_per_second / way["bytes"], cpus * way["images_per_second_and_core"])


def _even(larger: dict[str, Any], smaller: dict[str, Any], cpus: int) -> float:
    """Return the rate, bytes/s, up to which the smaller form gives more images/s: then its CPUs decide."""
    return float(cpus * smaller["images_per_second_and_core"] * larger["bytes"])


def drawn(report: dict[str, Any]) -> bytes:
    """Draw images/s over the rate of a disk or link, one line a form."""
    from matplotlib.figure import Figure

    ways, cpus = [way for way in report["forms"] if way["name"] != _name(_JPEGS[1])], report["cpus"]
    figure = Figure(figsize=(7.5, 4.2), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for way, color in zip(ways, (OURS, DARK, OTHER, GRAY), strict=True):
        rates = [rate_of(way, rate, cpus) for rate in _RATES]
        axes.plot(_RATES / 1e6, rates, color=color, linewidth=2)
        axes.text(_RATES[-1] / 1e6 * 1.1, rates[-1], way["name"].partition(",")[0], color=DARK, size=9, va="center")
    axes.set(xscale="log", yscale="log", xlabel="MB/s of the disk or link", ylabel=f"images/s, {cpus} cores")
    even = next(iter(report["even_megabytes_per_second"].values()))
    axes.set_title(f"Below {even:,} MB/s compressed rows come faster than raw ones", loc="left", size=11, weight="bold")
    # 1,000, not a power of ten
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(color="#e7ebee")
    return svg_bytes(figure)


def _pieces(count: int) -> list[slice]:
    return [slice(first, min(first + _TOGETHER, count)) for first in range(0, count, _TOGETHER)]


def _copied(rows: np.ndarray) -> np.ndarray:
    """Copy all rows, some at a time; returns the last ones."""
    out = np.empty_like(rows[:_TOGETHER])
    for piece in _pieces(len(rows)):
        out[: piece.stop - piece.start] = rows[piece]
    return out


def _unpacked(packed: Sequence[memoryview], size: int, codec: str = ZSTD) -> np.ndarray:
    """Unpack all rows, some at a time; returns the last ones, uint8[n, size * size * 3]."""
    out = np.empty((_TOGETHER, size * size * 3), np.uint8)
    for piece in _pieces(len(packed)):
        some = packed[piece]
        shapes = np.full((len(some), 2), size)
        assert frames.unpack_rows(some, shapes, 3, out[: len(some)].reshape(-1), codec=codec) is None
    return out[: len(some)]


def _count(forms: Sequence[Form]) -> int:
    return len(forms[2].psnr)


def _name(form: str) -> str:
    return f"JPEG rows, quality {form.partition(':')[2]}"


def _cropped(data: bytes, resized: int, size: int) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        resized_image = central_crop(image.convert("RGB"), resized)
    first = (resized - size) // 2
    return np.asarray(resized_image.crop((first, first, first + size, first + size)))


def _psnr(squared_error: int, size_bytes: int) -> float:
    return 10 * math.log10(255**2 * size_bytes / squared_error) if squared_error else math.inf


if __name__ == "__main__":
    sys.exit(main())
