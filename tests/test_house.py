"""The rules of the house that an import can break: which package knows which, and what must stay cheap to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What the packages share: the format, and what it is made of. The standard library is enough for all of it.
SHARED = {"reader.format.manifest", "reader.format.tensordict_meta", "reader.format.filesystem", "reader.format.unfinished"}


def imports(path: Path) -> set[str]:
    """Top-level names of every module that a file imports, anywhere in it; reader's modules in full."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        found |= {name if name.startswith("reader") else name.split(".")[0] for name in names}
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "reader").glob("*.py")), ids=lambda p: p.name)
def test_reader_never_imports_the_packer_or_its_libraries(path: Path) -> None:
    assert not imports(path) & {"packer", "click", "tqdm", "PIL", "jpeg4py", "matplotlib"}


@pytest.mark.parametrize("path", sorted((ROOT / "packer").glob("*.py")), ids=lambda p: p.name)
def test_packer_knows_of_reader_only_the_manifest_and_nothing_of_torch(path: Path) -> None:
    found = imports(path)
    # `pack bench` measures the reader: that command, and no other, imports it, and only once it runs (see the light imports)
    allowed = {"reader.format.manifest"} | ({"reader.bench.measure", "reader.bench.timeline"} if path.name == "cli.py" else set())
    assert {name for name in found if name.startswith("reader")} <= allowed
    assert not found & {"torch", "tensordict"}


@pytest.mark.parametrize("module", sorted(SHARED))
def test_what_the_packages_share_needs_the_standard_library_alone(module: str) -> None:
    found = imports(ROOT / f"{module.replace('.', '/')}.py")
    assert found - SHARED <= {*sys.stdlib_module_names}


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("click", {"cli.py"}),
        ("tqdm", {"progress.py"}),
        ("jpeg4py", {"jpeg.py"}),
        # decoders.py asks which it is; depth.py and fit.py name it for types; masks.py decodes masks; show.py and overlay.py
        # draw; datasets.py is given images of it
        (
            "PIL",
            {
                *("datasets.py", "decode.py", "decoders.py", "depth.py", "fit.py", "icc.py", "masks.py", "opening.py"),
                *("overlay.py", "show.py"),
            },
        ),
        ("matplotlib", {"bench.py"}),
        ("av", {"ffmpeg.py"}),
        ("pillow_heif", {"plugins.py"}),
        ("pillow_jxl", {"plugins.py"}),
        ("pillow_avif", {"plugins.py"}),
        ("fsspec", {"remote.py"}),
        ("pyarrow", {"tables.py"}),
        ("ray", {"ray_workers.py"}),
    ],
)
def test_each_library_has_its_home(library: str, homes: set[str]) -> None:
    assert {p.name for p in (ROOT / "packer").glob("*.py") if library in imports(p)} == homes


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import reader", "torch numpy tensordict"),
        ("import reader.format.manifest", "torch numpy tensordict"),
        ("import packer", "torch numpy PIL click tqdm"),
        ("import packer.cli.app", "torch numpy PIL tqdm matplotlib"),
        ("import packer.cli.charts", "torch numpy PIL matplotlib"),
        ("import packer.packing.pack, packer.workers.block_worker, packer.pixels.decode", "torch tensordict click tqdm av pillow_heif pillow_jxl"),
    ],
)
def test_imports_stay_light(statement: str, absent: str) -> None:
    code = f"{statement}; import sys; print([n for n in {absent.split()} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_packer_pack_is_the_function_whatever_was_imported_before() -> None:
    code = "import packer.packing.pack, packer.cli.app, packer; print(packer.pack.__name__, callable(packer.pack))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["pack", "True"]
