"""Writes what docs say of the programs of others: our diffs on the pages of docs/how-to/frameworks, and how many lines they have.

    python -m scripts.studies.programs.pages

What stands between the two marks of a page is written again; the rest of the page is not touched.
"""

from __future__ import annotations

import re
from pathlib import Path

from scripts import ROOT
from scripts.studies.programs._edits import WAYS, Edits, changed_lines

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


def main() -> None:
    """Write every page."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """Return the text that each page must have."""
    docs, known = ROOT / "docs", Edits.all()
    found = {docs / "benchmarks" / "programs.md": lines_table(known)}
    for name, programs in PAGES.items():
        found[docs / "how-to" / "frameworks" / name] = "\n\n".join(section(known[program]) for program in programs)
    marked = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.S)
    return {
        path: marked.sub(lambda _, shown=shown: f"{BEGIN}\n\n{shown}\n\n{END}", path.read_text(encoding="utf-8"))
        for path, shown in found.items()
    }


def lines_table(known: dict[str, Edits]) -> str:
    """Return how many lines of each program change, by way, and what ran."""
    head = ["program", *WAYS.values(), "what ran", "why more than nine, or what is missing"]
    rows = [[source(edits), *(counted(edits, way) for way in WAYS), edits.ran, edits.note] for edits in known.values()]
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in [head, ["---"] * len(head), *rows])


def source(edits: Edits) -> str:
    """Name a program, with a link to the commit that was counted."""
    if "/" not in edits.repository:
        return f"{edits.repository} {edits.commit}, {edits.name.partition('_')[2]}"
    url = f"https://github.com/{edits.repository}/blob/{edits.commit}/{edits.file}"
    return f"{edits.repository} [{edits.file}]({url})"


def counted(edits: Edits, way: str) -> str:
    """Count the lines that one way changes: 9 (-4 +5); nothing where it is not there."""
    if way not in edits.diffs():
        return ""
    removed, added = changed_lines(edits.diffs()[way])
    return f"{removed + added} (-{removed} +{added})"


def section(edits: Edits) -> str:
    """Return what ran of one program, and its diffs, one for each way."""
    parts = [f"{source(edits)}, commit {edits.commit[:10]}. What ran on a store: {edits.ran}."]
    for way, diff in edits.diffs().items():
        head = f"### {edits.repository}: {WAYS[way]}, {counted(edits, way)} lines"
        parts.append(f"{head}\n\n```diff\n{diff}```")
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
