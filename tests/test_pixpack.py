"""`import pixpack` gives the public names of packer and reader, lazily; the files of forge, conda and Docker parse and agree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import packer
import pixpack
import reader

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
FORMS = sorted([*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "conda/recipe.yaml"])


def test_pixpack_has_the_public_names_of_both_packages() -> None:
    assert pixpack.__all__ == sorted([*packer.__all__, *reader.__all__])
    assert len(set(pixpack.__all__)) == len(pixpack.__all__)
    for name in pixpack.__all__:
        assert getattr(pixpack, name) is getattr(packer if name in packer.__all__ else reader, name)
    assert dir(pixpack) == pixpack.__all__
    with pytest.raises(AttributeError, match="module 'pixpack' has no attribute 'nothing'"):
        pixpack.nothing  # noqa: B018


def test_importing_pixpack_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, pixpack; print(sorted({'torch', 'numpy', 'click', 'PIL'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_yaml_of_the_forge_parses(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_workflows_name_files_that_exist() -> None:
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for name in re.findall(
            r"(?:--ignore=|run: )((?:tests|scripts|\.ci)/[\w./]+)", path.read_text(encoding="utf-8")
        ):
            assert (ROOT / name).exists(), name


def test_issue_forms_have_unique_ids_and_labels() -> None:
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.name == "config.yml":
            continue
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert form["name"]
        assert form["description"]
        assert len({field["id"] for field in fields}) == len(fields)
        assert all(field["attributes"]["label"] for field in fields)


@pytest.mark.parametrize("name", ["CITATION.cff", "conda/recipe.yaml"])
def test_the_version_is_that_of_the_package(name: str) -> None:
    assert re.search(
        rf'(?m)^ *version: "?{re.escape(packer.__version__)}"?$', (ROOT / name).read_text(encoding="utf-8")
    )


def test_the_recipe_asks_for_what_the_package_asks_for() -> None:
    asked = re.findall(r'(?m)^    "([\w.-]+)(>=[\d.]+)",$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    run = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text(encoding="utf-8"))["requirements"]["run"]
    names = {"torch": "pytorch"}
    missing = [name for name, least in asked if f"{names.get(name, name)} {least}" not in run]
    assert asked
    assert missing == ["jpeg4py"]  # as the recipe says, that comes by pip


def test_the_image_is_built_from_files_that_are_there() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^ARG (\w+)=", text) == ["BASE", "TORCH_INDEX"]
    for name in ("scripts/constraints.txt", "examples/train.py"):
        assert name in text
        assert (ROOT / name).is_file()
    assert re.search(r"(?m)^torch==", (ROOT / "scripts/constraints.txt").read_text(encoding="utf-8"))
