"""The public address of the repository, which `scripts.set_address` writes wherever one is shown."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.set_address import ROOT, set_address

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")

FILES = [
    "pyproject.toml",
    "README.md",
    "CITATION.cff",
    "mkdocs.yml",
    "conda/recipe.yaml",
    ".github/ISSUE_TEMPLATE/config.yml",
]
FIRST, SECOND = "https://forge.example/somebody/pixpack", "https://other.example/team/pixpack"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that show an address, as they are in the repository."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_every_file_gets_the_address_and_the_rest_stays(copy: Path) -> None:
    assert set_address(copy, FIRST) == FILES
    urls = tomllib.loads((copy / "pyproject.toml").read_text())["project"]["urls"]
    assert urls == {
        "Homepage": FIRST,
        "Documentation": f"{FIRST}/blob/main/docs/index.md",
        "Changelog": f"{FIRST}/blob/main/CHANGELOG.md",
        "Issues": f"{FIRST}/issues",
    }
    badges = (copy / "README.md").read_text().splitlines()[2]
    assert [f"[![{name}](https://" in badges for name in ("CI", "Python", "License")] == [True] * 3
    assert "license-Apache--2.0-blue" in badges
    assert f"{FIRST}/actions/workflows/ci.yml/badge.svg" in badges
    assert (ROOT / ".github/workflows/ci.yml").is_file()
    assert f'repository-code: "{FIRST}"\n' in (copy / "CITATION.cff").read_text()
    assert f"repo_url: {FIRST}\n" in (copy / "mkdocs.yml").read_text()
    assert f"  homepage: {FIRST}\n" in (copy / "conda/recipe.yaml").read_text()
    for name in FILES:
        lines = (copy / name).read_text().splitlines()
        assert [line for line in (ROOT / name).read_text().splitlines() if line not in lines] == []
    assert len((copy / "README.md").read_text().splitlines()) <= 150


def test_another_address_replaces_the_first(copy: Path) -> None:
    set_address(copy, SECOND)
    wanted = {name: (copy / name).read_text() for name in FILES}
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    set_address(copy, FIRST)
    assert set_address(copy, SECOND) == FILES
    assert {name: (copy / name).read_text() for name in FILES} == wanted
    assert set_address(copy, SECOND) == []


@pytest.mark.parametrize(
    "text", ["forge.example/a/b", "http://forge.example/a/b", "https://forge.example/a", "https://f.example/a/b.git"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    command = [sys.executable, "-m", "scripts.set_address", text]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "expected https://HOST/OWNER/REPOSITORY" in done.stderr
