"""The version and what is needed are the same wherever they stand: in files that tools read, and in the documents."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import packer

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'pixpack[yaml]'")

ROOT = Path(__file__).resolve().parents[1]


def parsed(*parts: str) -> Any:
    return yaml.safe_load(ROOT.joinpath(*parts).read_text(encoding="utf-8"))


def test_the_citation_the_recipe_and_the_documents_are_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation, recipe = parsed("CITATION.cff"), parsed("conda", "recipe.yaml")
    assert str(citation["version"]) == recipe["context"]["version"] == project["version"] == packer.__version__
    minor = packer.__version__.rpartition(".")[0]
    said = {
        "CHANGELOG.md": f"\n## {packer.__version__} ",
        "SECURITY.md": f"today {minor}.",
        "docs/index.md": f"version {packer.__version__}.",
    }
    assert [name for name, words in said.items() if words not in (ROOT / name).read_text(encoding="utf-8")] == []
    assert citation["license"] == recipe["about"]["license"] == project["license"]
    bound = {re.split(r"[>=]", line)[0]: line.partition(">=")[2] for line in project["dependencies"]}
    needed = dict(line.split(" >=") for line in recipe["requirements"]["run"] if " >=" in line)
    bound |= {"python": project["requires-python"].partition(">=")[2], "pytorch": bound.pop("torch")}
    del bound["jpeg4py"]  # the recipe says why
    assert needed == bound


def test_a_packing_host_needs_what_the_package_needs_but_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "scripts" / "packing-host.txt").read_text(encoding="utf-8").splitlines()
    needed = {line for line in lines if line and not line.startswith("#")}
    assert {line for line in project["dependencies"] if not line.startswith(("torch", "tensordict"))} < needed
