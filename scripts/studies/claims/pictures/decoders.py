"""Which library decodes a JPEG the fastest, alone and as part of a row of 224 x 224? Is cropped decoding faster still?

Photographs in memory, one thread. Decoding gives an array of the whole photograph in RGB; a row is decoded, resized by Pillow's
antialiased bilinear (OpenCV: by its INTER_AREA) and cropped. Each library works in a process of its own, in turns, since
Pillow and Pillow-SIMD share a name; what is not in this environment is installed in a folder of its own below --work.
Checked: each decodes to Pillow's pixels, up to two levels on average. No JPEG is scaled while it is decoded.

Cropped decoding: of the bindings looked at, PyTurboJPEG cuts a JPEG at its blocks before it decodes the rest, and DALI leaves
out what is beside the crop. libjpeg-turbo 3's own call for it (tj3SetCroppingRegion) is in neither simplejpeg nor PyTurboJPEG.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from packer.pixels.formats.versions import decoder_versions
from scripts import environment
from scripts.common import plot
from scripts.common.figures import photographs, ratios, spread
from scripts.common.timing import in_turns
from scripts.studies.claims._claim import (
    LOADER_NOTES,
    ClaimResult,
    MissingRequirement,
    installed,
    lacking,
    medians,
    photo_folder,
)
from scripts.studies.claims.pictures._decoding import DECODE, ROW, SIDE, SQUARE

CLAIM = "jpeg4py decodes JPEGs faster than Pillow, which has libjpeg-turbo too since 9.0 (its flag says so)."
SOURCE = LOADER_NOTES

# Short turns, many rounds: what disturbs a round disturbs all libraries alike, and ratios are taken within it.
ROUNDS, PHOTOGRAPHS = 25, 50
PILLOW, SIMD, JPEG4PY, OURS = "Pillow", "Pillow-SIMD", "jpeg4py", "pixpack"
TURBO, DALI = "PyTurboJPEG", "DALI"
# name: its way in _decoding.py, and what to install for it; nothing: it is in this environment.
# PyTurboJPEG 2 needs libjpeg-turbo 3, which Debian 12 and Ubuntu 24.04 lack.
LIBRARIES: dict[str, tuple[str, tuple[str, ...]]] = {
    PILLOW: ("pillow", (f"pillow=={version('pillow')}",)),
    SIMD: ("pillow", ()),
    JPEG4PY: ("jpeg4py", ()),
    "simplejpeg": ("simplejpeg", ("simplejpeg==1.9.0",)),
    TURBO: ("pyturbojpeg", ("pyturbojpeg==1.8.3",)),
    "OpenCV": ("opencv", ("opencv-python-headless==5.0.0.93",)),
    DALI: (
        "dali",
        (
            *("nvidia-dali-cuda130==2.4.0", "nvidia-nvimgcodec-cu13==0.9.0.20", "nvtx==0.2.17", "makefun==1.16.0"),
            *("libcst==1.9.0", "gast==0.7.0", "astunparse==1.6.3", "optree==0.20.0"),
        ),
    ),
    OURS: ("pixpack", ()),
}
MOST_LEVELS = 2


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return images/s of each library and kind of turn, and ratios to Pillow's."""
    work = work / "decoders"
    work.mkdir(exist_ok=True)
    if quick:
        paths = sorted(photo_folder(work, 8).rglob("*.jpg"))
    else:
        found = [photo.path for photo in photographs(None, work, SIDE)]
        paths = found[:: max(1, len(found) // PHOTOGRAPHS)][:PHOTOGRAPHS]
    (work / "photographs.txt").write_text("\n".join(map(str, paths)), encoding="utf-8")
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as ended:
        asked: dict[str, DecodingProcess] = {}
        for name in LIBRARIES:
            try:
                asked[name] = ended.enter_context(started(name, work, may_install=not quick))
            except MissingRequirement as e:
                missing[name] = str(e)
        turns = {
            (kind, name): partial(library.seconds, kind)
            for kind in (DECODE, ROW, SQUARE)
            for name, library in asked.items()
            if kind in library.kinds
        }
        seconds, levels = in_turns(turns, 1 if quick else ROUNDS, untimed=1), differences(asked, work)
    rates: dict[str, dict[str, list[float]]] = {}
    for (kind, name), values in seconds.items():
        rates.setdefault(kind, {})[name] = [len(paths) / value for value in values]
    base = PILLOW if PILLOW in asked else SIMD
    return {
        "photographs": len(paths),
        "mean_bytes": sum(path.stat().st_size for path in paths) // len(paths),
        "images_per_second": {kind: {n: spread(of, 1) for n, of in by.items()} for kind, by in rates.items()},
        "to_pillow": {
            kind: {name: ratios(of, rates[kind][base]) for name, of in rates[kind].items()} for kind in (DECODE, ROW)
        },
        "square_to_whole": {name: ratios(of, rates[DECODE][name]) for name, of in rates.get(SQUARE, {}).items()},
        "mean_difference_in_levels": levels,
        "about": {name: library.about for name, library in asked.items()},
        "not_measured": missing,
    }


class DecodingProcess:
    """A process of _decoding.py."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        try:
            reported = json.loads(self._answer())
        except RuntimeError as e:
            raise MissingRequirement(str(e)) from None
        self.kinds, self.about = reported["kinds"], reported["about"]

    def seconds(self, kind: str, save: Path | str = "") -> float:
        """Take a turn; leave the last pixels in a file."""
        print(kind, save, file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            talk = [line for line in self._log.read_text(encoding="utf-8").splitlines() if line.strip()]
            raise RuntimeError(talk[-1].strip()[:200] if talk else "it ended without a word")
        return line


@contextlib.contextmanager
def started(name: str, work: Path, *, may_install: bool) -> Iterator[DecodingProcess]:
    """Start the process of a library, and end it.

    Raises:
        MissingRequirement: it is not installed, or does not run; the text says why.
    """
    way, packages = LIBRARIES[name]
    if name == SIMD and decoder_versions()["pillow"]["simd"] is None:
        raise MissingRequirement("the Pillow of this environment is the plain one")
    folder = installed(packages, work / f"with-{name}", may_install=may_install) if packages else None
    variables = environment(*([folder] if folder else []))
    words = [sys.executable, "-m", "scripts.studies.claims.pictures._decoding", way, str(work / "photographs.txt")]
    log = work / f"{name}.log"
    with open(log, "w", encoding="utf-8") as talk:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": talk, "text": True}
        process = subprocess.Popen(words, env=variables, **pipes)
    with process:
        try:
            yield DecodingProcess(process, log)
        finally:
            process.stdin.close()


def differences(asked: dict[str, DecodingProcess], work: Path) -> dict[str, float]:
    """Return by how many levels each library's pixels differ from Pillow's on average; raises if by many."""
    pixels = {}
    for name, library in asked.items():
        if DECODE in library.kinds:
            library.seconds(DECODE, work / "pixels.npy")
            pixels[name] = np.load(work / "pixels.npy").astype(int)
    expected = pixels[PILLOW if PILLOW in pixels else SIMD]
    found = {name: round(float(np.abs(its - expected).mean()), 3) for name, its in pixels.items()}
    for name, levels in found.items():
        if levels > MOST_LEVELS:
            raise RuntimeError(f"{name} decodes to other pixels than Pillow: {levels} levels apart.")
    return found


def conclude(figures: dict[str, Any]) -> ClaimResult:
    times = {kind: medians(by) for kind, by in figures["to_pillow"].items()}
    rates = {kind: medians(by) for kind, by in figures["images_per_second"].items()}
    flags = {n: about["libjpeg_turbo flag"] for n, about in figures["about"].items() if "libjpeg_turbo flag" in about}
    squares = [f"{of['median']:.2f} times as fast as whole ({n})" for n, of in figures["square_to_whole"].items()]
    base = next(iter(flags))
    reported = {
        kind: ", ".join(f"{n} {value:.2f}" for n, value in in_order(by) if n != base) for kind, by in times.items()
    }
    decode, row = times[DECODE], times[ROW]
    return ClaimResult(
        f"jpeg4py decodes {decode[JPEG4PY]:.2f} times as fast as {base}; Pillow-SIMD makes a row {row.get(SIMD, 1):.2f} times"
        f" as fast, pixpack {row[OURS]:.2f} times",
        f"One thread, times as fast as {base} ({rates[DECODE][base]:,.0f} photographs/s decoded, {rates[ROW][base]:,.0f} rows/s):"
        f" decoding {reported[DECODE]}; rows of {SIDE} x {SIDE} {reported[ROW]}."
        f" Central square alone: {', '.join(squares) or 'not measured'}."
        f" libjpeg-turbo flag: {', '.join(f'{n} {flag}' for n, flag in flags.items())}{lacking(figures)}.",
        decode[JPEG4PY] > 1.05 and all(flags.values()),
    )


def in_order(values: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(values.items(), key=lambda item: -item[1])


def draw(make: Any, figures: dict[str, Any]) -> Any:
    rates = {kind: medians(by) for kind, by in figures["images_per_second"].items()}
    squares = {f"{name}, central square": rate for name, rate in rates.get(SQUARE, {}).items()}
    decode = rates[DECODE] | squares
    names = [name for name in LIBRARIES if name in decode or name in rates[ROW]] + list(squares)
    figure, panels = make(panels=2)
    figure.subplots_adjust(wspace=0.12)
    for axes, found, what in zip(
        panels, (decode, rates[ROW]), ("decoded/s", f"rows of {SIDE} x {SIDE}/s"), strict=True
    ):
        values = {name: found.get(name, 0.0) for name in names}
        texts = [f"{value:,.0f}" if value else "" for value in values.values()]
        plot.bars(axes, values, texts, xlabel=f"photographs {what}, median" if found is decode else f"{what}, median")
    panels[1].set_yticklabels([])
    return figure
