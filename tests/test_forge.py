"""What a forge, Docker, conda and citation tools read: it parses, names files that exist, and pins what it runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'pixpack[yaml]'")
tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [path for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) if path.name != "config.yml"]


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in parsed(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_a_workflow_has_what_a_forge_needs(path: Path) -> None:
    workflow = parsed(path)
    assert True in workflow  # YAML 1.1 reads the key `on` as true
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])
        names = set(re.findall(r"matrix\.(\w+)", str(job)))
        assert names == set(job.get("strategy", {}).get("matrix", {}))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_a_workflow_names_actions_by_commit_and_files_that_exist(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert [name for name in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", name)] == []
    words = [word for step in steps(path) for word in shlex.split(step.get("run", ""))]
    named = [word.removeprefix("--ignore=") for word in words if re.match(r"(--ignore=)?(tests|scripts|\.ci)/", word)]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_other_files_of_a_forge_parse() -> None:
    for path in (ROOT / ".pre-commit-config.yaml", ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"):
        assert isinstance(parsed(path), dict)


def test_ci_runs_every_python_that_the_package_names() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    named = [line.rpartition(" ")[2] for line in classifiers if re.search(r":: 3\.\d+$", line)]
    assert parsed(ROOT / ".github/workflows/ci.yml")["jobs"]["linux"]["strategy"]["matrix"]["python"] == named


@pytest.mark.parametrize("path", FORMS, ids=lambda p: p.name)
def test_an_issue_form_has_what_a_forge_needs(path: Path) -> None:
    form = parsed(path)
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    assert all(field["attributes"]["label"] for field in fields)


def test_the_citation_and_the_recipe_are_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation, recipe = parsed(ROOT / "CITATION.cff"), parsed(ROOT / "conda" / "recipe.yaml")
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= citation.keys()
    assert str(citation["version"]) == recipe["context"]["version"] == project["version"]
    assert citation["license"] == recipe["about"]["license"] == project["license"]
    bound = {re.split(r"[>=]", line)[0]: line.partition(">=")[2] for line in project["dependencies"]}
    needed = dict(line.split(" >=") for line in recipe["requirements"]["run"] if " >=" in line)
    bound |= {"python": project["requires-python"].partition(">=")[2], "pytorch": bound.pop("torch")}
    del bound["jpeg4py"]  # the recipe says why
    assert needed == bound


def test_the_image_copies_what_it_runs() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert re.findall(r"(?m)^ARG (\w+)=", text) == ["BASE", "TORCH_INDEX"]
    assert re.search(r"(?m)^torch==", (ROOT / "scripts" / "constraints.txt").read_text(encoding="utf-8"))
    named = [name.removeprefix("/app/") for name in re.findall(r"(?:/app/)?\b(?:scripts|examples)/[\w./]+", text)]
    assert named
    assert [name for name in named if not (ROOT / name).exists() or name.partition("/")[0] in left_out] == []
