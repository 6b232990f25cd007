"""Writes what docs say of the study's programs: the diffs on the pages of docs/how-to/frameworks, and how many lines they have.

    python -m scripts.studies.programs.pages

What stands between the two marks of a page is written again; the rest of the page is not touched.
"""

from __future__ import annotations

import re
from pathlib import Path

from scripts import ROOT
from scripts.studies.programs._edits import Edits
from scripts.studies.programs._programs import PROGRAMS, Program, diff

# Page of docs/how-to/frameworks -> the programs whose diffs it shows.
PAGES = {
    "torchvision.md": ("torchvision_classification", "torchvision_detection"),
    "timm.md": ("timm_train",),
    "lightning.md": ("lightning_ddp",),
    "hf-trainer.md": ("hf_trainer",),
    "accelerate.md": ("accelerate_cv",),
    "ultralytics.md": ("ultralytics_classify", "ultralytics_detect"),
    "two-views.md": ("simclr", "dino"),
    "airbench.md": ("airbench",),
}
BEGIN, END = "<!-- diffs: written by python -m scripts.studies.programs.pages -->", "<!-- end of diffs -->"
_NAMES = {"dataset": "MemmapDataset alone", "loader": "MemmapLoader"}


def main() -> None:
    """Write every page."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """Return the text that each page must have."""
    docs = ROOT / "docs"
    found = {docs / "benchmarks" / "programs.md": lines_tables()}
    for name, programs in PAGES.items():
        found[docs / "how-to" / "frameworks" / name] = "\n\n".join(section(program) for program in programs)
    marked = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.S)
    return {
        path: marked.sub(lambda _, shown=shown: f"{BEGIN}\n\n{shown}\n\n{END}", path.read_text(encoding="utf-8"))
        for path, shown in found.items()
    }


def lines_tables() -> str:
    """Return how many lines of each program change, by way, and those of programs that live in repositories."""
    head = ["program", *_NAMES.values(), "why more than nine, or what is missing"]
    rows = [[program.title, *(counted(program, way) for way in _NAMES), program.note] for program in PROGRAMS.values()]
    edits = [
        [edits.repository, ", ".join(edits.files), f"-{edits.counts()[0]} +{edits.counts()[1]}", edits.without]
        for edits in Edits.all().values()
    ]
    return "\n\n".join([_table(head, rows), _table(["repository", "files", "lines", "what was tried"], edits)])


def counted(program: Program, way: str) -> str:
    """Count the lines that one way changes: 9 (-4 +5); nothing where it is not there."""
    if way not in program.ways():
        return ""
    removed, added = program.changed_lines(way)
    return f"{removed + added} (-{removed} +{added})"


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in [head, ["---"] * len(head), *rows])


def section(name: str) -> str:
    """Return the diffs of one program, one for each way."""
    program = PROGRAMS[name]
    before = program.original.read_text(encoding="utf-8")
    parts = []
    for way, after in program.ways().items():
        head = f"### {program.title}: {_NAMES[way]}, {sum(program.changed_lines(way))} lines"
        lines = (line for line in diff(before, after, context=1) if not line.startswith("@@"))
        parts.append("\n".join([head, "", "```diff", *(line or " " for line in lines), "```"]))
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
