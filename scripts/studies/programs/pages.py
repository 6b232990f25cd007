"""Writes the pages of docs/how-to/frameworks: how a program of each framework moves, by the diffs of the study's programs.

    python -m scripts.studies.programs.pages

What stands between the two marks of a page is written again; the rest of the page is not touched.
"""

from __future__ import annotations

import re
from pathlib import Path

from scripts import ROOT
from scripts.studies.programs._programs import PROGRAMS, changed_lines, diff

# Page of docs/how-to/frameworks -> the programs whose diffs it shows.
PAGES = {
    "torchvision.md": ("torchvision_classification", "torchvision_detection"),
    "timm.md": ("timm_train",),
    "lightning.md": ("lightning_ddp",),
    "hf-trainer.md": ("hf_trainer",),
    "accelerate.md": ("accelerate_cv",),
    "ultralytics.md": ("ultralytics_classify", "ultralytics_detect"),
    "two-views.md": ("simclr", "dino"),
}
BEGIN, END = "<!-- diffs: written by python -m scripts.studies.programs.pages -->", "<!-- end of diffs -->"
_NAMES = {"dataset": "MemmapDataset alone", "loader": "MemmapLoader"}


def main() -> None:
    """Write every page."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """Return the text that each page must have."""
    found = {}
    for name, programs in PAGES.items():
        path = ROOT / "docs" / "how-to" / "frameworks" / name
        shown = "\n\n".join(section(program) for program in programs)
        marked = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.S)
        found[path] = marked.sub(
            lambda _, shown=shown: f"{BEGIN}\n\n{shown}\n\n{END}", path.read_text(encoding="utf-8")
        )
    return found


def section(name: str) -> str:
    """Return the diffs of one program, one for each way."""
    program = PROGRAMS[name]
    before = program.original.read_text(encoding="utf-8")
    parts = []
    for way, path in program.ways().items():
        after = path.read_text(encoding="utf-8")
        head = f"### {program.title}: {_NAMES[way]}, {sum(changed_lines(before, after))} lines"
        lines = (line for line in diff(before, after, context=1) if not line.startswith("@@"))
        parts.append("\n".join([head, "", "```diff", *(line or " " for line in lines), "```"]))
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
