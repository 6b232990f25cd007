"""The pages in docs/ beside the reference: programs to move from run on both sides, quoted errors exist, rooms are named."""

from __future__ import annotations

import ast
import inspect
import re
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_tree, torchvision_or_skip
from test_docs import ROOT, fenced, rows_of_table, section

from packer import pack
from packer.option_names import COMMAND, Option, named_for

DOCS = ROOT / "docs"
MIGRATION, ARCHITECTURE = DOCS / "how-to" / "migrate.md", DOCS / "contributing" / "architecture.md"
TROUBLESHOOTING = [DOCS / "how-to" / "troubleshooting" / name for name in ("packing.md", "reading.md")]
SOURCES = sorted(
    path for name in ("packer", "pixpack", "reader") for path in (ROOT / name).rglob("*.py")
)
WAYS = ["ImageFolder, its DataLoader kept", "ImageFolder", "FFCV", "tensordict"]


def side(diff: str, mark: str) -> str:
    """Return the program before (-) or after (+) a diff."""
    return "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[:1] in (" ", mark))


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make images/, out/ and out-val/ as the page says, in the current folder."""
    make_tree(tmp_path / "images", each=4)
    monkeypatch.chdir(tmp_path)
    pack("images", "out", fit="none", max_size=512, workers=1)
    pack("images", "out-val", size=224, workers=1)
    return tmp_path


def outcome(code: str) -> dict[str, Any]:
    """Run a program of the page; returns its names. A class it defines is looked up by tensordict in its module."""
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.LazyLinear(3))
    module = types.ModuleType("migration")
    module.__dict__["model"] = model
    exec(compile(code, MIGRATION.name, "exec", flags=0, dont_inherit=True), module.__dict__)
    return module.__dict__


@pytest.mark.parametrize("number", range(4), ids=WAYS)
def test_a_program_that_has_moved_runs(number: int, packed: Path) -> None:
    found = outcome(side(fenced(MIGRATION, "diff")[number], "+"))
    assert found["loss"].isfinite()


@pytest.mark.parametrize("number", [0, 1, 3], ids=[WAYS[n] for n in (0, 1, 3)])
def test_the_program_before_ran_too(number: int, packed: Path) -> None:
    torchvision_or_skip()
    found = outcome(side(fenced(MIGRATION, "diff")[number], "-"))
    assert found["loss"].isfinite()


def test_ffcvs_program_compiles_and_each_diff_has_two_sides() -> None:
    diffs = fenced(MIGRATION, "diff")
    assert len(diffs) == len(WAYS)
    for diff in diffs:
        before, after = side(diff, "-"), side(diff, "+")
        compile(before, "before", "exec")
        assert before != after
        assert all(line[:1] in ("-", "+", " ", "") for line in diff.splitlines())


def test_the_smallest_change_gives_the_pixels_that_the_folder_gave(packed: Path) -> None:
    torchvision_or_skip()
    diff = fenced(MIGRATION, "diff")[0]
    before, after = outcome(side(diff, "-")), outcome(side(diff, "+"))
    assert torch.equal((before["images"] * 255).round().byte(), after["images"])
    assert torch.equal(before["targets"], after["targets"])
    assert before["val"].classes == after["val"].classes


PACKS = {
    "torchvision": "torchvision",
    "timm": "timm",
    "lightning": "lightning",
    "hf-trainer": "torchvision",
    "accelerate": "accelerate",
    "two-views": "torchvision",
}


@pytest.mark.filterwarnings(
    # timm's readers leave the files open
    "ignore:unclosed file:ResourceWarning",
    "ignore:.*unclosed file:pytest.PytestUnraisableExceptionWarning",
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning",
)
@pytest.mark.parametrize(("page", "needed"), PACKS.items())
@pytest.mark.parametrize("mark", "-+")
def test_the_program_of_a_framework_packs_by_two_lines(
    page: str, needed: str, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchvision_or_skip()
    pytest.importorskip(needed)
    images = make_tree(tmp_path / "images", each=4, size=(260, 240))
    monkeypatch.chdir(tmp_path)
    code = side(fenced(DOCS / "how-to" / "frameworks" / f"{page}.md", "diff")[0], mark)
    if mark == "-" and page == "hf-trainer":
        pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    names = outcome(code)
    if page == "lightning":
        data = names["Images"]()
        data.setup("fit")
        names["loader"] = data.train_dataloader()
    if page == "hf-trainer":
        names["loader"] = torch.utils.data.DataLoader(names["train"], 8, collate_fn=names["collate_fn"])
    batch = next(iter(names["loader"]))
    found, targets = batch.values() if isinstance(batch, dict) else batch
    shapes = {tuple(views.shape) for views in (found if isinstance(found, list) else [found])}
    assert shapes == {(8, 3, 224, 224)}
    assert len(targets) == 8
    assert (tmp_path / "out" / "manifest.json").exists() == (mark == "+")
    assert len([*images.rglob("*.jpg")]) == 12


def test_the_diff_of_ray_train_which_no_program_has_compiles() -> None:
    diff = fenced(DOCS / "how-to" / "frameworks" / "ray-train.md", "diff")[0]
    for mark in "-+":
        compile(inspect.cleandoc(side(diff, mark)), "ray-train.md", "exec")


PROGRAMS = [path for path in sorted((ROOT / "examples").iterdir()) if path.is_file() and path.name != "README.md"]


def test_the_list_of_examples_has_every_one_and_the_readme_links_to_it() -> None:
    text = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    assert [path.name for path in PROGRAMS if f"]({path.name})" not in text] == []
    assert "](examples/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


# -- errors


def sentences() -> str:
    """Return every text in the code, a line each; what is filled in is `...`."""
    return "\n".join(
        text
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (text := literal_text(node))
    )


def literal_text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(literal_text, node.values))
    if isinstance(node, ast.FormattedValue):
        return literal_text(node.value) or "..."
    if isinstance(node, ast.Name) and node.id in ("OVERWRITE", "RESUME"):
        return f"--{node.id.lower()}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Option":
        return option_text(node.args)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def option_text(arguments: list[ast.expr]) -> str:
    """Return an option as the command's errors name it."""
    values = [value.value if isinstance(value, ast.Constant) else "..." for value in arguments]
    if not isinstance(arguments[0], ast.Constant):
        return "--..."
    with named_for(COMMAND):
        return str(Option(*values)).replace("'...'", "...")


def test_every_error_in_troubleshooting_is_one_of_the_code() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in TROUBLESHOOTING)
    tables = text[: text.index("\n## It works, but\n")]
    quoted = [quote for cells in rows_of_table(tables) for quote in re.findall("`([^`]+)`", cells[0])]
    code = sentences()
    assert len(quoted) > 40
    assert [quote for quote in quoted if quote not in code] == []


# -- the architecture


def test_the_architecture_names_every_room_and_files_that_exist() -> None:
    text = section(ARCHITECTURE, "## Rooms")
    rooms = {path.parent.name for path in SOURCES if path.name == "__init__.py"} - {"packer", "reader"}
    assert len(rooms) >= 17
    assert sorted(name for name in rooms if f"`{name}/`" not in text) == []
    named = re.findall(r"`((?:packer|reader)/[\w./]+)`", ARCHITECTURE.read_text(encoding="utf-8"))
    assert len(named) >= 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_security_names_parsers_that_exist() -> None:
    text = section(ROOT / "SECURITY.md", "## Parsers of our own")
    names = re.findall(r"`((?:packer|reader)/[\w./]*\.[a-z]+)`", text)
    assert len(names) >= 30
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_architecture_names_scripts_that_exist() -> None:
    names = re.findall(r"`((?:scripts|tests|examples)/[\w./]*)`", section(ARCHITECTURE, "## Around them"))
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []
