"""The version and what is needed are the same wherever a tool reads them: pyproject.toml, CITATION.cff, the conda recipe."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'pixpack[yaml]'")

ROOT = Path(__file__).resolve().parents[1]


def parsed(*parts: str) -> Any:
    return yaml.safe_load(ROOT.joinpath(*parts).read_text(encoding="utf-8"))


def test_the_citation_and_the_recipe_are_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation, recipe = parsed("CITATION.cff"), parsed("conda", "recipe.yaml")
    assert str(citation["version"]) == recipe["context"]["version"] == project["version"]
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
