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


def test_pixpack_has_the_public_names_of_both_packages() -> None:
    assert pixpack.__all__ == sorted([*packer.__all__, *reader.__all__])
    assert len(set(pixpack.__all__)) == len(pixpack.__all__)
    for name in pixpack.__all__:
        assert getattr(pixpack, name) is getattr(packer if name in packer.__all__ else reader, name)
    assert dir(pixpack) == pixpack.__all__
    with pytest.raises(AttributeError, match="module 'pixpack' has no attribute 'nothing'"):
        pixpack.nothing  # noqa: B018


@pytest.mark.parametrize("name", [name for name in packer.__all__ if inspect.isfunction(getattr(packer, name))])
def test_what_a_public_function_returns_is_public(name: str) -> None:
    returned = inspect.signature(getattr(packer, name)).return_annotation
    assert returned in packer.__all__


def test_importing_pixpack_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, pixpack; print(sorted({'torch', 'numpy', 'click', 'PIL'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.stdout == "[]\n", done.stderr
