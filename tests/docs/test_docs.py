"""The documents and the code say the same: options, names, defaults, exit codes; examples run; links lead somewhere."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import doctest
import importlib
import inspect
import pickle
import pkgutil
import re
import shlex
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import tensordict
import torch
from conftest import make_tree, torchvision_or_skip

import packer
import pixpack
import reader
from packer.cli import app, output
from packer.report import PackReport, Progress

ROOT = Path(__file__).resolve().parents[2]
README, CHANGELOG = ROOT / "README.md", ROOT / "CHANGELOG.md"
DOCS, FORMAT = ROOT / "docs", ROOT / "reader" / "FORMAT.md"
CLI, PYTHON = DOCS / "reference" / "cli", DOCS / "reference" / "python"
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [README, CHANGELOG, ROOT / "SECURITY.md", *PAGES, FORMAT]

# the page says once that there are these, not in each table
COMMON_OPTIONS = {"--help", "--version"}

MODULES = sorted(
    found.name
    for package in (packer, pixpack, reader)
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    # compiled: it has no source to read; and what imports Triton, which torch for CUDA brings
    if not found.name.endswith(("__main__", "._native", ".triton_crops"))
)


def section(path: Path, heading: str) -> str:
    """Return what stands under a heading, up to the next one of its level or above."""
    text = path.read_text(encoding="utf-8")
    start = text.index(f"\n{heading}\n") + 1
    level = heading.split()[0]
    end = re.search(rf"\n#{{1,{len(level)}}} ", text[start + len(heading) :])
    return text[start : start + len(heading) + end.start()] if end else text[start:]


def fenced(path: Path, language: str) -> list[str]:
    """Return the code blocks of one language, also indented ones, in order."""
    blocks = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", path.read_text(encoding="utf-8"), re.M | re.S)
    return [inspect.cleandoc(code) if indent else code for indent, code in blocks]


# what they name is in object storage: test_shown_commands.py has a bucket
FROM_STORAGE = [path for path in PAGES if re.search("s3://bucket|/nvme/", "".join(fenced(path, "python")))]
RUN = [path for path in (README, FORMAT, *PAGES) if path not in FROM_STORAGE and fenced(path, "python")]


def rows_of_table(text: str) -> list[list[str]]:
    """Return the cells of every table row; an escaped bar is no border."""
    lines = (line for line in text.splitlines() if line.startswith("| ") and not line.startswith("|---"))
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def long_options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


# -- the command


def documented_options(name: str) -> dict[str, list[str]]:
    """Option -> cells of its row in the page of its command."""
    rows = rows_of_table((CLI / f"{name}.md").read_text(encoding="utf-8"))
    return {option: cells for cells in rows for option in long_options(cells[0])}


def options_of(name: str) -> dict[str, click.Option]:
    options = (p for p in app.cli.commands[name].params if isinstance(p, click.Option))
    return {opt: option for option in options for opt in option.opts if opt.startswith("--")}


@pytest.mark.parametrize("name", sorted(app.cli.commands))
def test_the_reference_lists_every_option_of_a_command_and_no_other(name: str) -> None:
    assert set(documented_options(name)) == set(options_of(name)) - COMMON_OPTIONS


@pytest.mark.parametrize("name", sorted(app.cli.commands))
def test_the_reference_has_defaults_and_choices(name: str) -> None:
    for opt, option in options_of(name).items():
        first, default = documented_options(name)[opt][:2]
        if option.is_flag:
            assert default == "off", opt
        elif isinstance(option.default, str | int | float):
            assert default == f"`{option.default}`", opt
        if isinstance(option.type, click.Choice):
            assert "\\|".join(option.type.choices) in first, opt


def test_the_pages_of_commands_name_no_option_that_is_gone() -> None:
    known = {opt for name in app.cli.commands for opt in options_of(name)} | COMMON_OPTIONS
    assert [path.name for path in CLI.glob("*.md") if long_options(path.read_text(encoding="utf-8")) - known] == []


def test_the_table_of_exit_codes_is_that_of_the_command() -> None:
    codes = [
        int(cells[0])
        for cells in rows_of_table((DOCS / "reference" / "exit-codes.md").read_text(encoding="utf-8"))
        if cells[0].isdigit()
    ]
    constants = {value for name, value in vars(output).items() if name.startswith("EXIT_")}
    assert codes == sorted({0} | constants)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_commands_shown_in_documents_parse(path: Path) -> None:
    lines = [line for code in fenced(path, "sh") for line in code.splitlines() if line.startswith("pack ")]
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        words = words[: words.index("|")] if "|" in words else words
        name = words.pop(0) if words[0] in app.cli.commands else "build"
        app.cli.commands[name].make_context(name, words)
    assert lines or path != README


# -- names


@pytest.mark.parametrize("package", [reader, packer], ids=lambda p: p.__name__)
def test_the_reference_names_everything_public(package: ModuleType) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PYTHON.glob("*.md"))
    missing = [name for name in package.__all__ if not re.search(rf"`(packer\.)?{name}\b|^## {name}$", text, re.M)]
    assert missing == []


@pytest.mark.parametrize(
    ("page", "thing"),
    [
        ("packer.md", packer.pack),
        ("packer.md", pixpack.packed),
        ("packer.md", packer.pack_dataset),
        ("loader.md", reader.MemmapLoader),
        ("dataset.md", reader.MemmapDataset),
        ("transforms.md", reader.Normalize),
        ("transforms.md", reader.RandomHorizontalFlip),
        ("transforms.md", reader.RandomCrop),
        ("transforms.md", reader.RandomResizedCrop),
        ("transforms.md", reader.ColorJitter),
        ("transforms.md", reader.ResizeCenterCrop),
        ("transforms.md", reader.to_device),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_reference_names_every_argument(page: str, thing: Any) -> None:
    text = (PYTHON / page).read_text(encoding="utf-8")
    # what takes names that it does not know does so to refuse them
    named = [name for name, p in inspect.signature(thing).parameters.items() if p.kind is not p.VAR_KEYWORD]
    assert [name for name in named if not re.search(rf"\b{name}\b", text)] == []


def test_the_reference_has_the_loaders_defaults() -> None:
    rows = rows_of_table((PYTHON / "loader.md").read_text(encoding="utf-8"))
    documented = {name: cells[1] for cells in rows for name in re.findall(r"`(\w+)`", cells[0])}
    parameters = inspect.signature(reader.MemmapLoader).parameters
    own = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert documented == {name: f'"{value}"' if isinstance(value, str) else str(value) for name, value in own.items()}


@pytest.mark.parametrize("record", [PackReport, Progress])
def test_the_reference_names_every_field_of_reports(record: Any) -> None:
    text = section(PYTHON / "reports.md", f"## {record.__name__}")
    assert [f.name for f in dataclasses.fields(record) if f"\n- `{f.name}`" not in text] == []


def test_the_reference_lists_the_fields_of_a_batch() -> None:
    documented = [cells[0].strip("`") for cells in rows_of_table(section(PYTHON / "stores.md", "## `ImageBatch`"))][1:]
    assert documented == [*(f.name for f in dataclasses.fields(reader.ImageBatch)), "images"]


# -- examples


@pytest.fixture
def folder_with_data(shared_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the examples name, in the current folder: two stores, images/, their labels and tables, the golden store."""
    for name in ("out", "out-val"):
        shutil.copytree(shared_store, tmp_path / name)
    shutil.copytree(ROOT / "tests" / "golden", tmp_path / "tests" / "golden")
    make_tree(tmp_path / "images", each=2)
    names = [path.relative_to(tmp_path / "images").as_posix() for path in sorted((tmp_path / "images").rglob("*.jpg"))]
    for label in [(tmp_path / "labels" / name).with_suffix(".txt") for name in names]:
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("0 0.5 0.5 0.4 0.6\n")
    pairs = [f"{name},photograph {n}\n" for n, name in enumerate(names)]
    (tmp_path / "pairs.csv").write_text("path,caption\n" + "".join(pairs))
    kinds = [f"images/{name},{name.partition('/')[0]},{('red', 'blue')[n % 2]}\n" for n, name in enumerate(names)]
    (tmp_path / "train.csv").write_text("path,kind,color\n" + "".join(kinds))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", RUN, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_in_documents_runs(path: Path, folder_with_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 3))
    # blocks of one document follow on from each other, as they are read
    names: dict[str, Any] = {"__name__": path.name, "model": model}
    blocks = fenced(path, "python")
    assert blocks
    if any("import torchvision" in code or "from torchvision" in code for code in blocks):
        torchvision_or_skip()
    for code in blocks:
        exec(compile(code, path.name, "exec"), names)
    if path == README:
        assert names["loss"].isfinite()
    if path == PYTHON / "packer.md":
        assert capsys.readouterr().out == "6 0 {}\n"


class _Planted:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> Any:
        return open, ("unpickled", "w")


@pytest.mark.parametrize("path", [README, FORMAT, *PAGES], ids=lambda p: p.name)
def test_no_shown_way_to_open_a_store_unpickles_what_is_in_it(path: Path, folder_with_data: Path) -> None:
    for folder in (*folder_with_data.glob("out*"), *folder_with_data.glob("out*/_tensordict")):
        (folder / "other.pickle").write_bytes(pickle.dumps({"other": _Planted()}))
    text = path.read_text(encoding="utf-8")
    calls = set(re.findall(r"\w+\.load_memmap\([^)]*\)", text))
    for call in calls:
        # refused, or the file is not looked at
        with contextlib.suppress(RuntimeError):
            eval(call, {"ImageBatch": reader.ImageBatch, "TensorDict": tensordict.TensorDict})
    assert calls or path not in (DOCS / "reference" / "format" / "reading.md", DOCS / "how-to" / "migrate.md")
    for opened in (reader.open_store, reader.MemmapDataset):
        with pytest.raises(reader.StoreError, match=r"other\.pickle is not a file of this store"):
            opened("out")
    assert not (folder_with_data / "unpickled").exists()


def test_every_docstring_with_an_example_is_known() -> None:
    """Guards the test below: an example in a module that is not listed would never run."""
    sources = [
        p for package in (packer, pixpack, reader) for p in Path(package.__path__[0]).rglob("*.py")
    ]
    with_examples = {p for p in sources if ">>> " in p.read_text(encoding="utf-8")}
    assert len(with_examples) >= 30
    assert {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in with_examples} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str, shared_store: Path, tmp_path: Path) -> None:
    module = importlib.import_module(name)
    given = {"store_path": shared_store, "images_path": make_tree(tmp_path / "six", each=2)}
    given["out_path"] = tmp_path / "six-out"
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    report: list[str] = []
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=given):
        runner.run(example, out=report.append)
    results = runner.summarize(verbose=False)
    assert results.failed == 0, "".join(report)
    # counted in the docstrings themselves, so that nothing is left out without a word
    assert results.attempted == sum(text.count(">>> ") for text in docstrings(module))


def docstrings(module: ModuleType) -> list[str]:
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    documented = (n for n in nodes if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef))
    return [ast.get_docstring(node) or "" for node in documented]


# -- the documents themselves


def test_the_format_page_has_the_current_version_and_every_key() -> None:
    from reader.format.head import FORMAT_VERSION
    from reader.format.manifest import read_manifest

    text = FORMAT.read_text(encoding="utf-8")
    major, minor = FORMAT_VERSION
    assert text.startswith(f"# The store: format {major}.{minor}\n")
    assert f"\n| {major}.{minor} |" in text
    head = read_manifest(ROOT / "tests" / "golden" / "v1.0").to_json()
    table = rows_of_table(section(FORMAT, "### The head, in its order"))[1:]
    assert list(head) == [key for cells in table for key in re.findall(r"`(\w+)`", cells[0])]
    labels = read_manifest(ROOT / "tests" / "golden" / "v1.1").labels.keys() - {"later"}
    documented = [
        key
        for cells in rows_of_table(section(FORMAT, "### labels (1.1)"))[1:]
        for key in re.findall(r"`(\w+)`", cells[0])
    ]
    labels |= read_manifest(ROOT / "tests" / "golden" / "texts").labels.keys()
    # no golden store has masks of files
    assert sorted({*labels, "unknown"}) == sorted(documented)


def test_the_format_page_has_every_key_of_a_sample_and_of_the_journal(folder_with_data: Path) -> None:
    from packer.store.blocks import Result
    from reader.format.samples import read_json_lines

    documented = section(DOCS / "reference/format/reading.md", "## samples.jsonl and rejected.jsonl")
    found = {key for line in read_json_lines(folder_with_data / "out" / "samples.jsonl") for key in line}
    assert [key for key in sorted(found) if f"`{key}`" not in documented] == []
    journal = section(DOCS / "reference/format/writing.md", "### The journal")
    assert [f.name for f in dataclasses.fields(Result) if f"`{f.name}`" not in journal] == []
