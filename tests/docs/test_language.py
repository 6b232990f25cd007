"""Documentation, help, messages and docstrings use no word of the list in docs/contributing/language.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_docs import DOCS, FORMAT, PAGES, README, ROOT, rows_of_table

LANGUAGE = DOCS / "contributing" / "language.md"
# programs that others wrote keep their words
PROGRAMS = ROOT / "scripts" / "studies" / "programs"
SOURCES = sorted(
    path
    for folder in ("packer", "pixpack", "pixpack_native", "reader", "scripts", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if PROGRAMS not in path.parents
)
# in a name; "in place" is the field's
OURS_ALONE = re.compile(r"\b(?:begun|said|whole|(?<!\bin )places?)\b", re.I)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OTHER = [
    ROOT / f"{name}.md" for name in ("CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY", "examples/README")
]
SCRIPTS = [ROOT / "scripts" / name for name in ("docs", "quickstart", "setup.sh", "test")]
CODE = re.compile(r"^( *)```.*?^ *```$|`[^`\n]*`", re.M | re.S)


def listed() -> list[str]:
    """Return the words that are not used."""
    rows = rows_of_table(LANGUAGE.read_text(encoding="utf-8"))
    return [word for cells in rows for word in re.findall("`([^`]+)`", cells[0])]


NOT_USED = re.compile(rf"\b(?:{'|'.join(sorted(listed(), key=len, reverse=True))})\b", re.I)


def found(text: str) -> Iterator[str]:
    """Yield what is found of them, with some words around each."""
    for match in NOT_USED.finditer(text):
        yield " ".join(text[max(0, match.start() - 40) : match.end() + 40].split())


@pytest.mark.parametrize("path", [README, FORMAT, *OTHER, *SCRIPTS, *PAGES], ids=lambda p: str(p.relative_to(ROOT)))
def test_documents_use_plain_words(path: Path) -> None:
    assert list(found(CODE.sub("", path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_docstrings_help_and_messages_use_plain_words(path: Path) -> None:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    # a name, such as a key of JSON, is not prose
    assert [sentence for text in texts if not text.isidentifier() for sentence in found(CODE.sub("", text))] == []


@pytest.mark.parametrize("path", TESTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_names_and_docstrings_of_tests_use_plain_words(path: Path) -> None:
    """What else is in a string there may be what a command is given."""
    names, texts = [], []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(name, ast.Store()) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                names.append(name.replace("_", " "))
        match node:
            case ast.FunctionDef() | ast.ClassDef() | ast.Module():
                texts.append(ast.get_docstring(node) or "")
    assert [sentence for text in (*names, *texts) for sentence in found(CODE.sub("", text))] == []
    assert [name for name in names if OURS_ALONE.search(name)] == []


def test_the_list_finds_what_it_lists() -> None:
    assert len(listed()) > 40
    assert list(found("The loader is told of it, and goes on.")) == ["The loader is told of it, and goes on."] * 2
    assert list(found("It reports a mention of the neighborhood.")) == []
