"""Docs show our edits of the programs of others, and count their lines."""

from __future__ import annotations

from scripts import ROOT
from scripts.studies.programs.pages import BEGIN, END, PAGES, pages


def test_every_page_shows_the_diffs_of_its_programs() -> None:
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, "python -m scripts.studies.programs.pages writes it again"
        assert text.count("```diff") >= len(PAGES.get(path.name, ()))
        # above it may be a program that packs where it trains
        begin = text.index(BEGIN)
        assert begin < text.index("```diff" if path.name in PAGES else "| pytorch/vision", begin) < text.index(END)


def test_the_guide_to_moving_links_to_every_page() -> None:
    guide = (ROOT / "docs" / "how-to" / "migrate.md").read_text(encoding="utf-8")
    names = sorted(path.name for path in (ROOT / "docs" / "how-to" / "frameworks").glob("*.md"))
    assert [name for name in names if f"](frameworks/{name})" not in guide] == []
    assert {*PAGES} <= {*names}
