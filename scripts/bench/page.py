"""Writes the chart of `imagefolder` and the lines of README from its figures: `python -m scripts.bench.page`. Measures nothing.

Before it: `python -m scripts.bench imagefolder --images DIR --out docs/benchmarks`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from scripts import ROOT

FIGURES, README = ROOT / "docs" / "benchmarks" / "imagefolder.json", ROOT / "README.md"
BEGIN, END = "<!-- figures: written by python -m scripts.bench.page -->", "<!-- end of figures -->"
# Colors of ink, quiet ink, the other side and pixpack: readable on light and dark backgrounds.
COLORS = {
    "light": ("#1f2328", "#59636e", "#afb8c1", "#0969da"),
    "dark": ("#f0f6fc", "#9198a1", "#656c76", "#4493f8"),
}
OURS = "training: pixpack"
WIDTH, LEFT, MOST = 720, 188, 292
# The images of ImageNet's training set, whose epochs are well known.
EPOCH = 1_281_167


def main() -> int:
    """Write both charts and README."""
    report = json.loads(FIGURES.read_text(encoding="utf-8"))
    for mode in COLORS:
        FIGURES.with_name(f"imagefolder-{mode}.svg").write_text(chart(report, mode), encoding="utf-8")
    README.write_text(filled(README.read_text(encoding="utf-8"), report), encoding="utf-8")
    return 0


def finding(report: dict[str, Any]) -> str:
    """Return the finding of the training batches as one sentence."""
    return f"Random crops from the store come {report['ways'][OURS]['ratio']['median']:.1f} times as fast as from the JPEGs"


def chart(report: dict[str, Any], mode: str) -> str:
    """Draw the images/s of training batches from both sides."""
    ink, quiet, *bars = COLORS[mode]
    theirs, ours = (way["rate"]["median"] for name, way in report["ways"].items() if name.startswith("training"))
    parts = [_text(0, 18, finding(report), ink, 16)]
    sides = {"ImageFolder + DataLoader": theirs, "pixpack": ours}
    for number, ((name, rate), color) in enumerate(zip(sides.items(), bars, strict=True)):
        y, width, minutes = 36 + 32 * number, MOST * rate / max(theirs, ours), EPOCH / rate / 60
        epoch = f"{minutes / 60:.1f} h" if minutes >= 100 else f"{minutes:.0f} min"
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="26" rx="2" fill="{color}"/>')
        parts.append(_text(0, y + 18, name, ink, 13))
        parts.append(_text(LEFT + width + 8, y + 18, f"{rate:,.0f} images/s: {epoch} an epoch", ink, 13))
    where = report["command"].partition("`, ")[2].partition(", load")[0]
    parts.append(
        _text(0, 118, f"Training batches: RandomResizedCrop and flip to 224 x 224. {report['notes'][1]}", quiet, 11)
    )
    parts.append(_text(0, 134, f"An epoch is {EPOCH:,} images, as in ImageNet, at that rate. {where}", quiet, 11))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 144" width="{WIDTH}" height="144" role="img">'
    return "\n".join([head, f"<title>{finding(report)}</title>", *parts, "</svg>\n"])


def filled(text: str, report: dict[str, Any]) -> str:
    """Return README with the chart, its finding and the cost between the marks."""
    lines = f"""{BEGIN}
<picture>
  <source media="(prefers-color-scheme: dark)" srcset="docs/benchmarks/imagefolder-dark.svg">
  <img alt="{finding(report)}" src="docs/benchmarks/imagefolder-light.svg">
</picture>

{report["notes"][-1]}
[How it was measured](docs/benchmarks/imagefolder.md): `python -m scripts.bench imagefolder`.
{END}"""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: lines, text, flags=re.S)


def _text(x: float, y: float, text: str, color: str, size: int) -> str:
    font = 'font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif"'
    return f'<text x="{x:.1f}" y="{y}" fill="{color}" font-size="{size}" {font}>{text}</text>'


if __name__ == "__main__":
    sys.exit(main())
