"""The list of mutants is one that can be scored: each says what it breaks, and names tests and code that are there."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import ROOT
from scripts.mutants import PATCHES, Copy, Mutant, main

PATHS = sorted(PATCHES.glob("*.patch"))


def test_there_are_sixty_in_all_rooms() -> None:
    assert len(PATHS) >= 60
    tops = {file.partition("/")[0] for path in PATHS for file in Mutant.read(path).files}
    assert tops == {"packer", "pixpack_native", "reader"}
    rooms = {"/".join(file.split("/")[:2]) for path in PATHS for file in Mutant.read(path).files}
    folders = {f"{top}/{path.name}" for top in ("packer", "reader") for path in (ROOT / top).iterdir() if path.is_dir()}
    assert {room for room in folders if not room.endswith("__pycache__")} - rooms == set()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_each_names_what_is_there(path: Path) -> None:
    mutant = Mutant.read(path)
    assert mutant.breaks.endswith(".")
    for test in mutant.tests:
        module, _, name = test.partition("::")
        assert not name or f"\ndef {name.partition('[')[0]}(" in (ROOT / module).read_text(encoding="utf-8"), test
    assert mutant.files
    assert all((ROOT / file).is_file() for file in mutant.files)


def test_each_fits_the_code_as_it_is() -> None:
    """Whoever moves code that a mutant breaks moves the mutant too."""
    checks = {path.stem: ["git", "apply", "--check", "--whitespace=nowarn", str(path)] for path in PATHS}
    assert [
        name for name, words in checks.items() if subprocess.run(words, cwd=ROOT, capture_output=True).returncode
    ] == []


def test_a_name_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["no_such_mutant"])
    assert "tests/mutants has no no_such_mutant" in capsys.readouterr().err


def test_a_patch_that_does_not_fit_is_stale_and_processes_import_the_copy(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy")
    copy.check_imports()
    mutant = Mutant.read(PATHS[0])
    file = copy.root / mutant.files[0]
    file.write_text(file.read_text().replace("e", "o"))
    assert copy.score(mutant).outcome == "stale"
    (tmp_path / "none.patch").write_text("It breaks nothing.\n\n--- a/x\n+++ b/x\n")
    with pytest.raises(ValueError, match=r"none\.patch names no tests"):
        Mutant.read(tmp_path / "none.patch")


def test_what_runs_nightly_kills_no_mutant(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy")
    (copy.root / "tests/conftest.py").write_text("")  # no test of the suite runs, and the helpers import torch
    test = copy.root / "tests/test_one.py"
    mutant = replace(Mutant.read(PATHS[0]), tests=("tests/test_one.py",))
    test.write_text("import pytest\n\n@pytest.mark.nightly\ndef test_one() -> None:\n    raise AssertionError\n")
    assert copy.score(mutant).outcome == "broken"
    test.write_text("def test_one() -> None:\n    raise AssertionError\n")
    assert copy.score(mutant).by == "tests/test_one.py::test_one"
