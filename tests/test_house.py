"""The floor plan holds: who may import whom, which module knows which library, and what must stay cheap to import."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import packer

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("packer", "pixpack_native", "reader")
    for path in sorted((ROOT / package).rglob("*.py"))
}
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SCRIPTS = [path for path in sorted((ROOT / "scripts").rglob("*.py")) if "results" not in path.parts]
# Arrows go down these floors and may skip some; rooms of one floor do not know each other.
PACKER = ("cli", "operations", "packing", "workers", "store", "inputs", "pixels sources", "options", "report values")
PACKER_BASE = "errors clock text system checksums version"
READER_HIGH = ("bench", "loading", "dataset device", "memory", "store order remote")
READER = (*READER_HIGH, "frames compiled", "buffers jpeg_frames predictor")
READER_BASE = "format system rows profiling epoch described"
FLOORS = {
    f"{package}.{room}": number
    for package, floors in (("packer", (*PACKER, PACKER_BASE)), ("reader", (*READER, READER_BASE, "tuning")))
    for number, floor in enumerate(floors)
    for room in floor.split()
}
# Doors define nothing: they import from everywhere below, and nothing of ours imports them.
DOORS = {"packer", "packer.__main__", "reader", "reader.manifest"}


def imported(path: Path) -> set[str]:
    """Names of all modules that a file imports, anywhere in it: ours in full, of others the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module
            below = {f"{node.module}.{alias.name}" for alias in node.names} & {*FILES}
            found |= below if len(below) == len(node.names) else below | {node.module}
    return {name if name in FILES else name.split(".")[0] for name in found}


IMPORTS = {name: imported(path) for name, path in FILES.items()}


def room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def may_import(module: str, other: str) -> bool:
    """Say whether the floor plan has an arrow from one room to another."""
    above, below = room(module), room(other)
    if above == below or module in DOORS:
        return True
    if below == "pixpack_native":
        return module in ("packer.pixels.compiled", "reader.compiled", "reader.jpeg_frames", "reader.predictor")
    if above.split(".")[0] != below.split(".")[0]:
        is_open = below in ("reader.format", "reader.frames", "reader.system", "reader.tuning")
        is_open |= below == "reader.remote" and (
            above in ("packer.operations", "packer.sources") or "store.remote" in module
        )
        return is_open or (module == "packer.cli.commands.bench" and below == "reader.bench")
    if above == "reader.transforms":
        return below in (
            "reader.store",
            "reader.format",
            "reader.epoch",
            "reader.described",
            "reader.system",
            "reader.compiled",
            "reader.tuning",
        )
    if below == "reader.transforms":
        return above in ("reader.bench", "reader.loading")
    return above in FLOORS and below in FLOORS and FLOORS[above] < FLOORS[below]


def test_every_file_is_seen() -> None:
    assert len(FILES) > 200
    assert len(SCRIPTS) > 150
    assert sum(len(found & {*FILES}) for found in IMPORTS.values()) > 700


@pytest.mark.parametrize("module", FILES)
def test_arrows_go_down(module: str) -> None:
    assert [other for other in sorted(IMPORTS[module] & {*FILES}) if not may_import(module, other)] == []


def test_no_imports_go_in_a_circle() -> None:
    left = {module: found & {*FILES} - {module} for module, found in IMPORTS.items()}
    while ready := [module for module, found in left.items() if not found & left.keys()]:
        for module in ready:
            del left[module]
    assert left == {}


def test_folders_of_tests_mirror_the_rooms() -> None:
    """Each room of a package has its tests; a folder of another name is one of these."""
    # whatever is compiled; programs of others; stores of strangers; what is no test of a room
    others = {
        "laws",
        "compiled",
        "frameworks",
        "hostile",
        "benchmarks",
        "studies",
        "stress",
        "docs",
        "golden",
        "support",
    }
    rooms = {"/".join(name.split(".")[1:-1]) for name in FILES if room(name) != name} - {""}
    folders = {path.parent.relative_to(ROOT / "tests").as_posix() for path in TESTS} - {"."}
    assert folders - rooms <= others
    assert {name.partition("/")[0] for name in rooms} <= folders


@pytest.mark.parametrize("path", [*FILES.values(), *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_are_of_a_size_to_read(path: Path) -> None:
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert {node.name: lines for node in functions if (lines := body_lines(node)) > 50} == {}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its head and docstring."""
    first = function.body[1:2] if ast.get_docstring(function) is not None else function.body[:1]
    return (function.end_lineno or 0) - first[0].lineno + 1 if first else 0


def test_one_class_name_has_one_meaning() -> None:
    """Private classes count too, and those of programs: a traceback or a search shows the name alone."""
    homes: dict[str, list[str]] = {}
    for path in (*FILES.values(), *SCRIPTS):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
    assert len(homes) > 400


def test_an_alias_of_a_type_has_one_meaning_and_is_the_name_of_no_class() -> None:
    """Type variables are no names of types: they may be called like what they stand for."""
    classes, aliases = set(), dict[str, set[str]]()
    for path in FILES.values():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes |= {node.name.lstrip("_") for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        for name, meaning in _aliases(tree):
            aliases.setdefault(name, set()).add(meaning)
    assert {name: meanings for name, meanings in aliases.items() if len(meanings) > 1} == {}
    assert aliases.keys() & classes == set()
    assert len(aliases) > 40


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that a module gives to types, and each type."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if value is None or not isinstance(target, ast.Name):
            continue
        name, meaning = target.id.lstrip("_"), ast.unparse(value)
        if name[:1].isupper() and not name.isupper() and not meaning.startswith(("TypeVar(", "ParamSpec(")):
            yield name, meaning


def test_exceptions_that_leave_their_module_are_in_one_module_a_package() -> None:
    """A private one is a signal within its module, and stays there."""
    classes = [
        (module, node.name, {ast.unparse(base).split(".")[-1] for base in node.bases})
        for module, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    exceptions = {
        name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
    }
    exceptions |= {"ClickException"}
    while more := {name for _, name, bases in classes if bases & exceptions} - exceptions:
        exceptions |= more
    found = {(module, name) for module, name, bases in classes if bases & exceptions}
    assert {name for module, name in found if module not in ("packer.errors", "reader.format.errors")} == {
        "_NothingPacked",
        "_StoppedError",
    }
    assert len(found) > 30


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_no_module_binds_a_name_twice(path: Path) -> None:
    """The second value would be that of both, without a word."""
    bound: list[str] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound += [node.name] * (node.name != "_")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound += [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    assert sorted(bound) == sorted({*bound})


@pytest.mark.parametrize("module", [name for name in FILES if name.startswith("reader")])
def test_reader_never_imports_the_packer_or_its_libraries(module: str) -> None:
    found = IMPORTS[module] & {"packer", "click", "tqdm", "PIL", "jpeg4py", "matplotlib"}
    # inside functions: as_pil=True alone needs it, and rows that are JPEGs where the compiled part is not built
    assert found == ({"PIL"} if module in ("reader.dataset.pil", "reader.jpeg_frames") else set())


@pytest.mark.parametrize("module", [name for name in FILES if name.startswith("packer")])
def test_packer_never_imports_torch(module: str) -> None:
    assert not IMPORTS[module] & {"torch", "tensordict"}


def test_the_compiled_part_imports_nothing_of_ours() -> None:
    assert IMPORTS["pixpack_native"] <= {"pixpack_native", *sys.stdlib_module_names}


@pytest.mark.parametrize("module", [name for name in FILES if name.startswith("reader.format")])
def test_the_format_needs_the_standard_library_alone(module: str) -> None:
    found = IMPORTS[module] | IMPORTS["reader.tuning"]
    assert {name for name in found if not name.startswith(("reader.format", "reader.tuning"))} <= {
        *sys.stdlib_module_names
    }


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("tqdm", "cli.progress"),
        ("matplotlib", "cli.charts"),
        ("jpeg4py", "pixels.formats.turbojpeg"),
        # versions asks which it is; bit_depth and geometry name it for types; mask decodes masks; show and overlay draw;
        # pack_time decodes as ImageFolder does;
        # dataset is given images of it
        (
            "PIL",
            "operations.overlay operations.planning.pack_time operations.show packing.dataset"
            " pixels.formats.bit_depth pixels.formats.icc"
            " pixels.formats.opening pixels.formats.versions pixels.geometry pixels.mask pixels.pictures pixels.resize",
        ),
        ("av", "pixels.ffmpeg"),
        ("pillow_heif", "pixels.formats.plugins"),
        ("pillow_jxl", "pixels.formats.plugins"),
        ("pillow_avif", "pixels.formats.plugins"),
        ("fsspec", "sources.object_storage"),
        ("pyarrow", "inputs.tables.reading"),
        ("ray", "workers.ray"),
    ],
)
def test_each_library_has_its_home(library: str, homes: str) -> None:
    found = {name for name in FILES if library in IMPORTS[name] and name.startswith("packer.")}
    assert found == {f"packer.{home}" for home in homes.split()}


def test_one_module_knows_what_carries_bytes_from_object_storage() -> None:
    assert {name for name in FILES if "obstore" in IMPORTS[name]} == {"reader.remote.objects"}


@pytest.mark.parametrize("module", [name for name in FILES if name.startswith("reader.remote")])
def test_a_fetcher_starts_fast(module: str) -> None:
    assert not IMPORTS[module] & {"torch", "tensordict", "numpy"}


def test_only_the_command_knows_click() -> None:
    assert {room(name) for name in FILES if "click" in IMPORTS[name]} == {"packer.cli"}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import reader", "torch numpy tensordict"),
        ("import reader.manifest", "torch numpy tensordict"),
        ("import reader.dataset.dataset, reader.loading.loader", "PIL click"),
        ("import packer", "torch numpy PIL click tqdm"),
        ("from packer.cli import run", "torch numpy PIL tqdm matplotlib"),
        ("import packer.cli.charts", "torch numpy PIL matplotlib"),
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
        "import packer.packing.pack, packer.packing.update, packer.operations.copying.merge, packer.cli\n"
        "import packer.operations.copying.subset"
        f"\nprint(packer.{name}.__name__, callable(packer.{name}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == [name, "True"]


@pytest.mark.parametrize(
    "statement",
    [
        *(f"from packer import {name}" for name in packer.__all__),
        "from packer.cli import run, main",
        "from reader import MemmapDataset, MemmapLoader",
        "from reader.dataset import MemmapDataset",
        "from reader.manifest import Manifest, StoreError, check_store, read_manifest",
        "from reader.store import ImageBatch, RaggedBatch, open_store",
        "from reader.transforms import CenterCrop, RandomResizedCrop",
    ],
)
def test_public_doors_stay(statement: str) -> None:
    exec(statement, {})


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by name: of two files with one name the second cannot be collected."""
    names = [path.name for path in TESTS]
    assert sorted(names) == sorted({*names})
    assert len(names) > 100
