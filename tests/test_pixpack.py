"""`import pixpack` gives the public names of packer and reader, lazily."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import packer
import pixpack
import reader

ROOT = Path(__file__).resolve().parents[1]


def test_pixpack_lists_what_most_programs_need_and_finds_every_public_name() -> None:
    assert pixpack.__all__ == sorted(set(pixpack.__all__)) == dir(pixpack)
    assert len(pixpack.__all__) <= 17
    own = {"packed", "transforms"}
    assert set(pixpack.__all__) - own <= {*packer.__all__, *reader.__all__}
    for package in (packer, reader):
        for name in package.__all__:
            assert getattr(pixpack, name) is getattr(package, name)
    with pytest.raises(AttributeError, match="module 'pixpack' has no attribute 'nothing'"):
        pixpack.nothing  # noqa: B018


def test_the_names_of_the_readme_import_from_pixpack() -> None:
    names: dict[str, object] = {}
    exec("from pixpack import MemmapDataset, MemmapLoader, compare, from_torchvision, pack, packed, transforms", names)
    assert all(names[name] is getattr(pixpack, name) for name in set(names) - {"__builtins__"})
    exec("from pixpack import *", names)
    assert set(pixpack.__all__) <= set(names)


def test_transforms_of_pixpack_are_those_of_reader() -> None:
    import pixpack.transforms
    import reader.transforms

    assert pixpack.transforms.__all__ == dir(pixpack.transforms) == reader.transforms.__all__
    for name in reader.transforms.__all__:
        assert getattr(pixpack.transforms, name) is getattr(reader.transforms, name)
    with pytest.raises(AttributeError, match=r"module 'pixpack\.transforms' has no attribute 'nothing'"):
        pixpack.transforms.nothing  # noqa: B018


@pytest.mark.parametrize("name", [name for name in packer.__all__ if inspect.isfunction(getattr(packer, name))])
def test_what_a_public_function_returns_is_public(name: str) -> None:
    returned = inspect.signature(getattr(packer, name)).return_annotation
    assert returned in packer.__all__


def test_importing_pixpack_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, pixpack, pixpack.transforms; print(sorted({'torch', 'numpy', 'click', 'PIL'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=500)
    assert done.stdout == "[]\n", done.stderr
