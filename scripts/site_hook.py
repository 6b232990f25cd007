"""A hook of mkdocs: what the pages link to outside of docs/, such as examples and the format, is part of the site too.

On the forge these links lead to the files themselves. On the site a Markdown file is a page below repository/, a picture is
copied, and any other text, a program, is a page that shows it. Knows mkdocs and links; nothing of what the pages say.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"((?:\]\(|src=\"|srcset=\"))([^)\s\"#]*)(#[^)\s\"]*)?(?=[)\"])")
_PICTURES = {".png", ".jpg", ".svg"}
_LANGUAGES = {".py": "python", ".sh": "sh", ".ipynb": "json"}


def on_files(files: Any, config: Any) -> Any:
    """Add what pages link to, and what those link to, until nothing is new."""
    left = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    seen = set(left)
    while left:
        page = left.pop()
        for _, link, _ in _LINK.findall(page.read_text(encoding="utf-8")):
            target = _target(page, link)
            if target is None or target in seen or target.is_relative_to(ROOT / "docs"):
                continue
            seen.add(target)
            files.append(_file(config, target))
            if target.suffix == ".md":
                left.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    source = _source(page.file.src_uri)

    def linked(match: re.Match[str]) -> str:
        target = _target(source, match[2])
        if target is None:
            return match[0]
        return match[1] + os.path.relpath(_uri(target), Path(page.file.src_uri).parent) + (match[3] or "")

    return _LINK.sub(linked, markdown)


def on_page_content(html: str, **_: Any) -> str:
    r"""Show a bar in the code of a table's cell as a bar: Markdown of the forge wants it written as \|."""
    return re.sub(r"<code>[^<]*</code>", lambda match: match[0].replace("\\|", "|"), html)


def _target(page: Path, link: str) -> Path | None:
    """Return the file of the repository that a link of a page leads to; None where it leads elsewhere."""
    if not link or "://" in link:
        return None
    target = Path(os.path.normpath(page.parent / link))
    return target if target.is_file() and target.is_relative_to(ROOT) else None


def _uri(target: Path) -> str:
    """Return where a file of the repository is in the site's sources."""
    if target.is_relative_to(ROOT / "docs"):
        return target.relative_to(ROOT / "docs").as_posix()
    path = target.relative_to(ROOT).as_posix()
    return f"repository/{path}" if target.suffix in {".md", *_PICTURES} else f"repository/{path}.md"


def _source(uri: str) -> Path:
    """Return the file of the repository that a page of the site comes from."""
    if not uri.startswith("repository/"):
        return ROOT / "docs" / uri
    path = ROOT / uri.removeprefix("repository/")
    return path if path.exists() else path.with_suffix("")


def _file(config: Any, target: Path) -> File:
    if target.suffix in _PICTURES:
        return File.generated(config, _uri(target), abs_src_path=str(target))
    text = target.read_text(encoding="utf-8")
    if target.suffix != ".md":
        path, language = target.relative_to(ROOT).as_posix(), _LANGUAGES.get(target.suffix, "text")
        text = f"# {path}\n\n````{language}\n{text}````\n"
    return File.generated(config, _uri(target), content=text)
