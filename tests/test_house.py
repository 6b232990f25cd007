"""What must stay cheap to import, or work without a library. Who may import whom: pyproject.toml."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def imported(folder: str) -> set[str]:
    """Return the names of all modules that the files of a folder import, anywhere in them."""
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.module
                found.add(node.module)
    return found


def test_the_packer_imports_no_torch() -> None:
    found = imported("packer")
    assert "reader.format.manifest" in found
    assert {name for name in found if name.partition(".")[0] in ("torch", "tensordict")} == set()


def test_the_format_needs_the_standard_library_alone() -> None:
    found = imported("reader/format")
    assert "json" in found
    others = {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in others if not name.startswith("reader.format")} == set()


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import reader", "torch numpy tensordict"),
        ("import reader.format.manifest", "torch numpy tensordict"),
        ("import reader.dataset.dataset, reader.loading.loader", "PIL click"),
        ("import packer", "torch numpy PIL click tqdm"),
        ("from packer.cli.app import run", "torch numpy PIL tqdm"),
        ("import packer.cli.commands.bench", "torch numpy PIL"),
        (
            "import packer.packing.pack, packer.workers.block_worker, packer.pixels.decode",
            "torch tensordict click tqdm av pillow_heif pillow_jxl numpy PIL.Image cffi importlib.metadata concurrent tarfile",
        ),
    ],
)
def test_imports_stay_light(statement: str, absent: str) -> None:
    code = f"{statement}; import sys; print([n for n in {absent.split()} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["pack", "update", "subset", "merge", "seal_parts"])
def test_a_function_of_packer_is_the_function_whatever_was_imported_before(name: str) -> None:
    code = (
        "import packer.packing.pack, packer.packing.update, packer.operations.merge, packer.cli\n"
        "import packer.operations.subset"
        f"\nprint(packer.{name}.__name__, callable(packer.{name}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == [name, "True"]
