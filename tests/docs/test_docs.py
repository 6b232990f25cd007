"""Code and commands that documents show work, and their links lead somewhere."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_tree, torchvision_or_skip

import packer
import pixpack
import reader
from packer.cli.app import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES]
MODULES = sorted(
    found.name
    for package in (packer, pixpack, reader)
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    # compiled, or in need of a GPU
    if not found.name.endswith(("__main__", "._native"))
)


def fenced(path: Path, language: str) -> list[str]:
    """Return the code blocks of one language, also indented ones, in order."""
    blocks = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", path.read_text(encoding="utf-8"), re.M | re.S)
    return [inspect.cleandoc(code) if indent else code for indent, code in blocks]


def prose(path: Path) -> str:
    return re.sub(r"(?ms)^( *)```.*?^ *```$|`[^`\n]*`", "", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as the forge and the site make them."""
    headings = re.findall(r"(?m)^#{1,6} +(.+)$", path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path: Path) -> None:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        # the anchors of a generated page are known once the site is built
        is_generated = target.is_file() and target.suffix == ".md" and "\n::: " in target.read_text(encoding="utf-8")
        if "://" in link or (is_generated and anchor):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_are_shown_have_these_options(path: Path) -> None:
    lines = [line for code in fenced(path, "sh") for line in code.splitlines() if line.startswith("pack ")]
    for line in lines:
        words = shlex.split(re.split(r" [|;]| && ", line)[0], comments=True)[1:]
        name = words.pop(0) if words[0] in cli.commands else "build"
        # a command keeps the names of --help that it first had, which are those of the group
        cli.commands[name].make_context(name, words, cli.make_context("pack", [], resilient_parsing=True))
    assert lines or path.name != "README.md" or path.parent != ROOT


def test_messages_that_are_explained_are_in_the_code() -> None:
    sources = (path for name in MODULES if (path := inspect.getsourcefile(importlib.import_module(name))))
    code = re.sub(r'"\s*\n\s*f?"', "", "".join(Path(path).read_text(encoding="utf-8") for path in sources))
    page = (ROOT / "docs/how-to/troubleshooting.md").read_text(encoding="utf-8").partition("## Errors of Python")[0]
    messages = [part.strip() for text in re.findall(r"(?m)^\| `([^`]*)` ", page) for part in text.split("...")]
    assert len(messages) > 20
    assert [part for part in messages if part not in code] == []


@pytest.fixture
def folder(shared_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with what examples name: stores, images and their labels."""
    for name in ("out", "out-val"):
        shutil.copytree(shared_store, tmp_path / name)
    shutil.copytree(ROOT / "tests" / "golden", tmp_path / "tests" / "golden")
    images = make_tree(tmp_path / "images", each=4, size=(260, 240))
    table = ["path,kind,color,caption\n"]
    for path in sorted(images.rglob("*.jpg")):
        label = tmp_path / "labels" / path.relative_to(images).with_suffix(".txt")
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("0 0.5 0.5 0.4 0.6\n")
        table.append(f"images/{path.relative_to(images).as_posix()},{path.parent.name},red,a photograph\n")
    (tmp_path / "train.csv").write_text("".join(table))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(code: str, names: dict[str, Any]) -> None:
    """Run a program; of object storage, and of libraries that are not here, only see that it compiles."""
    compiled = compile(code, "document", "exec")
    if "s3://" in code:
        return
    for library in re.findall(r"(?m)^ *(?:import|from) (\w+)", code):
        if library in ("torchvision", "timm"):
            torchvision_or_skip()
        pytest.importorskip(library)
    exec(compiled, names)


def names_of(path: Path) -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.LazyLinear(3))
    return {"__name__": path.name, "model": model, "criterion": torch.nn.CrossEntropyLoss()}


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if fenced(path, "python")], ids=lambda path: path.name)
def test_python_in_documents_runs(path: Path, folder: Path) -> None:
    # blocks of one document follow on from each other, as they are read
    names = names_of(path)
    for code in fenced(path, "python"):
        run(code, names)
    assert path != ROOT / "README.md" or names["loss"].isfinite()


COMPLETE = [ROOT / "docs" / "how-to" / name for name in ("migrate.md", "frameworks.md")]
DIFFS = [(path, number) for path in COMPLETE for number in range(len(fenced(path, "diff")))]


@pytest.mark.parametrize(("path", "number"), DIFFS, ids=[f"{path.stem} {number}" for path, number in DIFFS])
def test_a_program_runs_after_its_diff(path: Path, number: int, folder: Path) -> None:
    diff = fenced(path, "diff")[number]
    before, after = ("".join(f"{line[1:]}\n" for line in diff.splitlines() if line[:1] != mark) for mark in "+-")
    compile(before, "before", "exec")
    run(after, names_of(path))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str, shared_store: Path, tmp_path: Path) -> None:
    given = {"store_path": shared_store, "images_path": make_tree(tmp_path / "six", each=2)}
    given["out_path"] = tmp_path / "six-out"
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    report: list[str] = []
    for example in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), extraglobs=given):
        runner.run(example, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)
