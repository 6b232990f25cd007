"""Draws the charts of `imagefolder` and `peers`, and writes README's lines: `python -m scripts.bench.page`. Measures nothing.

Before it: `python -m scripts.bench imagefolder peers --images DIR --out docs/benchmarks`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from scripts import ROOT

FIGURES, README = ROOT / "docs" / "benchmarks", ROOT / "README.md"
BEGIN, END = "<!-- figures: written by python -m scripts.bench.page -->", "<!-- end of figures -->"
# Colors of ink, quiet ink, the other side and pixpack: readable on light and dark backgrounds.
COLORS = {
    "light": ("#1f2328", "#59636e", "#afb8c1", "#0969da"),
    "dark": ("#f0f6fc", "#9198a1", "#656c76", "#4493f8"),
}
WIDTH, LEFT, MOST = 720, 188, 292
# The images of ImageNet's training set, whose epochs are well known.
EPOCH = 1_281_167

# By name a rate and its text.
Bars = dict[str, tuple[float, str]]
# Title, bars and the lines below.
Picture = tuple[str, Bars, list[str]]


def main() -> int:
    """Write all charts and README."""
    for name, picture in {"imagefolder": imagefolder, "peers": peers}.items():
        report = json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))
        for mode in COLORS:
            (FIGURES / f"{name}-{mode}.svg").write_text(chart(mode, *picture(report)), encoding="utf-8")
        if picture is imagefolder:
            README.write_text(filled(README.read_text(encoding="utf-8"), report), encoding="utf-8")
    return 0


def imagefolder(report: dict[str, Any]) -> Picture:
    """Return the finding of training batches from both sides, a bar of each with its text, and the lines below."""
    gain = report["ways"]["training: pixpack"]["ratio"]["median"]
    title = f"Random crops from the store come {gain:.1f} times as fast as from the JPEGs"
    rates = (way["rate"]["median"] for name, way in report["ways"].items() if name.startswith("training"))
    bars = {}
    for name, rate in zip(("ImageFolder + DataLoader", "pixpack"), rates, strict=True):
        bars[name] = rate, f"{rate:,.0f} images/s: {EPOCH / rate / 60:.0f} min an epoch"
    below = f"Training batches: RandomResizedCrop and flip to 224 x 224. {report['notes'][1]}"
    epoch = f"An epoch is {EPOCH:,} images, as in ImageNet, at that rate. {_where(report)}"
    return title, bars, [below, epoch]


def peers(report: dict[str, Any]) -> Picture:
    """Return the same of epochs from each library, the fastest first."""
    bars = {}
    for name, way in report["ways"].items():
        if name.endswith(": read"):
            rate = way["rate"]["median"]
            bars[name.removesuffix(": read")] = rate, f"{rate:,.0f}, {way['columns']['kB an image']:.0f} kB an image"
    ranked = dict(sorted(bars.items(), key=lambda bar: -bar[1][0]))
    return "Images/s of shuffled epochs, 224 x 224, batches of 256", ranked, [_where(report)]


def chart(mode: str, title: str, bars: Bars, below: list[str]) -> str:
    """Draw bars, each a rate and a text, under a title."""
    ink, quiet, other, own = COLORS[mode]
    parts, y, most = [_text(0, 18, title, ink, 16)], 36, max(rate for rate, _ in bars.values())
    for name, (rate, text) in bars.items():
        width, color = MOST * rate / most, own if name == "pixpack" else other
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="26" rx="2" fill="{color}"/>')
        parts.append(_text(0, y + 18, name, ink, 13))
        parts.append(_text(LEFT + width + 8, y + 18, text, ink, 13))
        y += 32
    parts += [_text(0, y + 18 + 16 * number, line, quiet, 11) for number, line in enumerate(below)]
    height = y + 12 + 16 * len(below)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">'
    return "\n".join([head, f"<title>{title}</title>", *parts, "</svg>\n"])


def filled(text: str, report: dict[str, Any]) -> str:
    """Return README with the chart, its finding and the cost between the marks."""
    lines = f"""{BEGIN}
<picture>
  <source media="(prefers-color-scheme: dark)" srcset="docs/benchmarks/imagefolder-dark.svg">
  <img alt="{imagefolder(report)[0]}" src="docs/benchmarks/imagefolder-light.svg">
</picture>

{report["notes"][-1]}
[How it was measured](docs/benchmarks/imagefolder.md): `python -m scripts.bench imagefolder`.
{END}"""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: lines, text, flags=re.S)


def _where(report: dict[str, Any]) -> str:
    return str(report["command"].partition("`, ")[2].partition(", load")[0])


def _text(x: float, y: float, text: str, color: str, size: int) -> str:
    font = 'font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif"'
    return f'<text x="{x:.1f}" y="{y}" fill="{color}" font-size="{size}" {font}>{text}</text>'


if __name__ == "__main__":
    sys.exit(main())
