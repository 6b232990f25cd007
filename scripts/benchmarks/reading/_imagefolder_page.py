"""What bench_imagefolder found, as charts (SVG, light and dark), and as the lines of the README and of the benchmark's page.

    python -m scripts.benchmarks.reading._imagefolder_page      writes them again from the figures that are kept

Measures nothing: every figure comes from docs/benchmarks/imagefolder.json.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from scripts import ROOT

PAGE, README = ROOT / "docs" / "benchmarks" / "imagefolder.md", ROOT / "README.md"
FIGURES = PAGE.with_suffix(".json")
BEGIN, END = (
    "<!-- figures: written by python -m scripts.benchmarks.reading.bench_imagefolder --publish -->",
    "<!-- end of figures -->",
)
COMMAND = "python -m scripts.benchmarks.reading.bench_imagefolder"

# ink, quiet ink, ours, theirs; readable on the forge's light and dark background
_COLORS = {"light": ("#1f2328", "#59636e", "#0969da", "#afb8c1"), "dark": ("#f0f6fc", "#9198a1", "#4493f8", "#656c76")}
_WIDTH, _BAR, _LEFT, _RIGHT = 720, 26, 188, 240
# the images of ImageNet's training set, whose epochs people know
_EPOCH = 1_281_167
_WHAT = f"Training batches: RandomResizedCrop and flip to 224 x 224. An epoch is {_EPOCH:,} images, as in ImageNet, at that rate."


def chart(report: dict[str, Any], mode: str) -> str:
    """Draw the images/s of training batches from both sides; mode is "light" or "dark"."""
    ink, quiet, ours, theirs = _COLORS[mode]
    task = report["tasks"]["training"]
    most = max(task[side]["median"] for side in ("folder", "store"))
    parts, y = [_text(0, 18, title(report), ink, 16, weight=600)], 36
    for side, label, color in ("folder", "ImageFolder + DataLoader", theirs), ("store", "pixpack", ours):
        rate = task[side]["median"]
        width = max(2, (_WIDTH - _LEFT - _RIGHT) * rate / most)
        parts.append(_text(0, y + 18, label, ink, 13))
        parts.append(f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2" fill="{color}"/>')
        parts.append(_text(_LEFT + width + 8, y + 18, f"{rate:,.0f} images/s: {epoch(rate)} an epoch", ink, 13))
        y += _BAR + 6
    y += 18
    parts += [_text(0, y, under(report), quiet, 11), _text(0, y + 16, _WHAT, quiet, 11)]
    size = f'width="{_WIDTH}" height="{y + 26}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 26}" {size} role="img">'
    return "\n".join([head, f"<title>{title(report)}</title>", *parts, "</svg>\n"])


def title(report: dict[str, Any]) -> str:
    """Return the finding of the training batches, as one sentence."""
    ratio = report["tasks"]["training"]["ratio"]["median"]
    return f"Random crops from the store come {ratio:.1f} times as fast as from the JPEGs"


def under(report: dict[str, Any]) -> str:
    """Return what was read, where and when it was measured."""
    machine = report["machine"]
    pillow = "Pillow-SIMD" if machine["decoders"]["pillow"]["distribution"] == "pillow-simd" else "Pillow"
    each = report["source_bytes"] / report["images"] / 1000
    return (
        f"{report['images']:,} photographs of {each:.0f} kB, {machine['cores']} cores, {report['workers']} DataLoader workers,"
        f" {pillow}, batches on the CPU, {machine['date'][:10]}"
    )


def epoch(rate: float) -> str:
    """Return the time of an epoch of ImageNet's training set at so many images/s."""
    minutes = _EPOCH / rate / 60
    return f"{minutes / 60:.1f} h" if minutes >= 100 else f"{minutes:.0f} min"


def markdown(report: dict[str, Any]) -> str:
    """Return the table of the benchmark's page."""
    lines = [
        "| batches | ImageFolder + DataLoader, images/s | pixpack, images/s | pixpack / ImageFolder, p10..p90 |",
        "|---|---:|---:|---:|",
    ]
    for name, task in report["tasks"].items():
        ratio = task["ratio"]
        lines.append(
            f"| {name} | {task['folder']['median']:,.0f} | {task['store']['median']:,.0f} |"
            f" {ratio['median']:.2f} ({ratio['p10']:.2f}..{ratio['p90']:.2f}) |"
        )
    tried = ", ".join(f"{workers}: {rate:,.0f}" for workers, rate in report["workers_tried"].items())
    text = f"{under(report)}. DataLoader workers tried, images/s: {tried}. Load {report['machine']['load_average'][0]}."
    return "\n".join([*lines, "", text, "", cost(report)])


def cost(report: dict[str, Any]) -> str:
    """Return what a store costs, and after how many epochs it has paid."""
    disk = report["store_bytes"] / report["source_bytes"]
    rate = report["images"] / report["pack_seconds"]
    epochs = report["epochs_to_break_even"]
    pays = (
        f"packing is paid back after {epochs:.1f} epochs" if epochs is not None else "packing is never paid back here"
    )
    return (
        f"Cost, measured with the chart: {disk:.1f} times the disk of the JPEGs (`--fit none --max-size 512`);"
        f" {100_000 / rate / 60:.1f} minutes to pack 100,000 of them on {report['machine']['cores']} cores; {pays}."
    )


def readme(report: dict[str, Any]) -> str:
    """Return the picture and the cost line of the README."""
    return f"""{_picture(report, "docs/benchmarks/")}

{cost(report)}
[How it was measured](docs/benchmarks/imagefolder.md): `{COMMAND}`."""


def page(report: dict[str, Any]) -> str:
    """Return the picture and the table of the benchmark's page."""
    return f"{_picture(report, '')}\n\n{markdown(report)}"


def filled(path: Path, report: dict[str, Any] | None) -> str:
    """Return the text that a document must have; without figures there is nothing between its marks."""
    made = "" if report is None else {README: readme, PAGE: page}[path](report) + "\n"
    marked = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.S)
    return marked.sub(lambda _: f"{BEGIN}\n{made}{END}", path.read_text(encoding="utf-8"))


def kept() -> dict[str, Any] | None:
    """Return the figures that are kept, or None."""
    return json.loads(FIGURES.read_text(encoding="ascii")) if FIGURES.exists() else None


def write(report: dict[str, Any]) -> None:
    """Keep the figures, and write charts, README and page from them."""
    FIGURES.write_text(json.dumps(report, indent=1) + "\n", encoding="ascii")
    for mode in _COLORS:
        FIGURES.with_name(f"imagefolder-{mode}.svg").write_text(chart(report, mode), encoding="utf-8")
    for path in (README, PAGE):
        path.write_text(filled(path, report), encoding="utf-8")


def _picture(report: dict[str, Any], folder: str) -> str:
    return f"""<picture>
  <source media="(prefers-color-scheme: dark)" srcset="{folder}imagefolder-dark.svg">
  <img alt="{title(report)}" src="{folder}imagefolder-light.svg">
</picture>"""


def _text(x: float, y: float, text: str, color: str, size: int, *, weight: int = 400) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    font = "font-family=\"-apple-system,'Segoe UI',Helvetica,Arial,sans-serif\""
    return f'<text x="{x:.1f}" y="{y}" {font} font-size="{size}" font-weight="{weight}" fill="{color}">{text}</text>'


if __name__ == "__main__":
    found = kept()
    if found is not None:
        write(found)
