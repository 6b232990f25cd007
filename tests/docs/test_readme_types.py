"""README's Python is right for a checker of types, as editors run one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# what README says that the reader has
_MODEL = "import torch\nmodel, criterion = torch.nn.Linear(1, 1), torch.nn.CrossEntropyLoss()\n"


@pytest.mark.slow
def test_strict_mypy_finds_nothing_in_readme_s_python_and_knows_its_batches(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    files = [tmp_path / f"block{number}.py" for number in range(len(blocks))]
    for file, block in zip(files, blocks, strict=True):
        file.write_text(f"{_MODEL}{block}reveal_type(images)\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent", *map(str, files)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('Revealed type is "torch._tensor.Tensor"') == len(files)
