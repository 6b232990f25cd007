"""What does `ffmpeg -q:v` save of a folder of JPEGs, and how much faster is the smaller folder read?

Large photographs (4000 x 3000, JPEG quality 95), one process. Each folder is decoded whole, without DCT scaling, as the claim's
own reader does; then made into rows of 224 x 224 as pack does by default. Fidelity is FFmpeg's PSNR and SSIM.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from packer.errors import FfmpegError
from packer.operations.requantize import requantize
from packer.pixels.decode import Decoder
from packer.pixels.formats.jpeg import read_header
from packer.pixels.formats.turbojpeg import JpegDecoder
from packer.pixels.geometry import Geometry
from scripts.common import plot
from scripts.common.figures import spread
from scripts.common.timing import in_turns, seconds_over
from scripts.samples import scenes
from scripts.studies.claims._claim import SENDING, ClaimResult, MissingRequirement, medians

CLAIM = "ffmpeg -q:v 3 makes JPEGs many times smaller (3.5 MB to 207 kB), and a folder of them is read faster."
SOURCE = SENDING

ORIGINAL = "original"
# half of what the slides say: 3.5 MB to 207 kB is 17 times
LEAST = 8
QUALITIES = (2, 3, 5, 10, 20)
COUNT, ROUNDS, SIDE = 6, 5, 224
LARGE, DRAWN = (4000, 3000), (375, 500)


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return bytes, fidelity and images/s of the original folder and of what requantizing makes of it."""
    if not JpegDecoder().is_available:
        raise MissingRequirement("jpeg4py or libturbojpeg is missing")
    count, rounds, qualities = (2, 1, (3,)) if quick else (COUNT, ROUNDS, QUALITIES)
    source = drawn(work / f"large-{count}", count, (800, 600) if quick else LARGE)
    folders, fidelity = {ORIGINAL: source}, {}
    for quality, size in [(quality, None) for quality in qualities] + [(3, "480x640")]:
        name = f"-q {quality}" + (f" --size {size}" if size else "")
        folders[name] = work / f"requantized-{count}-{quality}-{size}"
        try:
            report = requantize(
                source, folders[name], quality=quality, size=size, resume=folders[name].exists(), fidelity=count
            )
        except FfmpegError as e:
            raise MissingRequirement(str(e)) from None
        fidelity[name] = {"psnr": report.psnr, "ssim": report.ssim}
    loaded = {name: [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))] for name, folder in folders.items()}
    ways = {"decode": decode_full(), "row": Decoder(Geometry(SIDE, SIDE)).row}
    turns = {(kind, name): partial(rate, way, files) for kind, way in ways.items() for name, files in loaded.items()}
    rates = in_turns(turns, rounds, untimed=1)
    return {
        "images": len(loaded[ORIGINAL]),
        "mean_bytes": {name: sum(map(len, files)) // len(files) for name, files in loaded.items()},
        "fidelity": fidelity,
        "images_per_second": {kind: {name: spread(rates[kind, name], 1) for name in loaded} for kind in ways},
    }


def drawn(root: Path, count: int, size: tuple[int, int]) -> Path:
    """Draw large photographs with the noise of a sensor; those of an earlier run are used again."""
    rng = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(sorted(scenes.SCENES)[:count]):
        if not (root / f"{name}.jpg").exists():
            picture = Image.fromarray(scenes.draw(name, np.random.default_rng(i), *DRAWN)).resize(size)
            scenes.with_noise(picture, rng).save(root / f"{name}.jpg", quality=95)
    return root


def decode_full() -> Callable[[bytes], Any]:
    decoder = JpegDecoder()

    def decode(data: bytes) -> Any:
        header = read_header(data)
        return decoder.decode(data, header.width, header.height)

    return decode


def rate(way: Callable[[bytes], Any], files: list[bytes]) -> float:
    """Return images/s of a way over all files."""
    return len(files) / seconds_over(way, files)


def conclude(figures: dict[str, Any]) -> ClaimResult:
    size, fidelity = figures["mean_bytes"], figures["fidelity"]
    decode, row = (medians(figures["images_per_second"][kind]) for kind in ("decode", "row"))
    reported = "; ".join(
        f"{name}: {size[name] / 1e3:,.0f} kB, {decode[name]:,.1f} and {row[name]:,.1f} images/s"
        + (f", PSNR {fidelity[name]['psnr']:.1f} dB, SSIM {fidelity[name]['ssim']:.3f}" if name in fidelity else "")
        for name in size
    )
    smaller, faster = size[ORIGINAL] / size["-q 3"], decode["-q 3"] / decode[ORIGINAL]
    return ClaimResult(
        f"-q 3 makes a photograph of 12 megapixels {smaller:.1f} times smaller, and decoded {faster:.1f} times as fast",
        f"A photograph of 12 megapixels, decoding it and making it a row, one process: {reported}.",
        smaller >= LEAST and faster > 1,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, panels = make(panels=2)
    figure.subplots_adjust(wspace=0.12)
    kilobytes = {name: size_bytes / 1e3 for name, size_bytes in figures["mean_bytes"].items()}
    rates = medians(figures["images_per_second"]["decode"])
    plot.bars(
        panels[0], kilobytes, [f"{value:,.0f}" for value in kilobytes.values()], xlabel="kB a photograph", log=True
    )
    plot.bars(panels[1], rates, [f"{value:,.1f}" for value in rates.values()], xlabel="images/s, decoding", log=True)
    panels[1].set_yticklabels([])
    return figure
