"""Documents link to files and headings that exist, and are all reached from the first page."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import DOCS, DOCUMENTS, FORMAT, PAGES, README, ROOT

_FENCE = re.compile(r"^( *)```.*?^ *```$", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(path: Path) -> list[str]:
    """Return the targets of a page's links and pictures, but for those on the web."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    return [link for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", text)) if "://" not in link]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as the forge and the site make them."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+)$", text, re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = sum(1 for other in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other))
        found.add(f"{anchor}-{number}" if anchor in found else anchor)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path: Path) -> None:
    wrong = []
    for link in links(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and (target.suffix != ".md" or anchor not in anchors(target))):
            wrong.append(link)
    assert wrong == []


def test_every_page_is_reached_from_the_first() -> None:
    seen, left = set(), [DOCS / "index.md"]
    while left:
        page = left.pop()
        if page in seen:
            continue
        seen.add(page)
        targets = ((page.parent / link.partition("#")[0]).resolve() for link in links(page))
        left += [target for target in targets if target in PAGES]
    assert sorted(str(path.relative_to(DOCS)) for path in set(PAGES) - seen) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_stands_for_a_name_is_no_tag(path: Path) -> None:
    """`OUT/<split>` is shown as it is in code alone: elsewhere a browser takes <split> for a tag, and shows nothing."""
    prose = re.sub(r"`[^`\n]*`|^ {4}.*$", "", _FENCE.sub("", path.read_text(encoding="utf-8")), flags=re.M)
    known = {"picture", "source", "img", "br", "sub", "sup", "details", "summary", "a"}
    assert set(re.findall(r"<([a-z]+)\b[^<>]*>", prose)) - known == set()


def test_the_site_has_every_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:[^:]+: )?([\w/-]+\.md)$", text.partition("\nnav:\n")[2], re.M)
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in PAGES)


def test_the_format_page_is_linked() -> None:
    assert FORMAT in {(DOCS / link).resolve() for link in links(DOCS / "index.md")}


@pytest.mark.parametrize("address", [None, "https://forge.example/owner/pixpack"])
def test_pypi_shows_readme_with_links_that_lead_somewhere(address: str | None, tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    if address is not None:
        project = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
        project = project.replace(
            "[project.scripts]", f'[project.urls]\nHomepage = "{address}"\n\n[project.scripts]', 1
        )
        (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    command = [sys.executable, "setup.py", "-q", "--long-description"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    found = _LINK.findall(shown) + re.findall(r'(?:src|srcset|href)="([^"]+)"', shown)
    assert [link for link in found if not link.startswith("https://")] == []
    ours = [link.removeprefix(f"{address}/") for link in found if address and link.startswith(address)]
    paths = [link.partition("/")[2].partition("/")[2].partition("#")[0] for link in ours]
    assert (len(ours) > 20) == (address is not None)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert all(link.startswith("raw/") == link.endswith((".svg", ".jpg")) for link in ours)
    # of a figure that cannot be shown its words are
    assert ("from the JPEGs.\n" in shown) == (address is None)
    assert ("come with the source distribution" in shown) == (address is None)
    # all the rest is there
    assert "\n## Costs and limits\n" in shown
    assert shown.count("```") == README.read_text(encoding="utf-8").count("```")
