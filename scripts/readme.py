"""Runs the commands of README.md and docs/how-to/install.md exactly as written; .ci/run does so before the tests.

    python3 -m scripts.readme

Runs them in order, in this clone, with drawn photos/, in a separate environment with the versions of scripts/constraints.txt.
It skips `scripts/test`, which comes next, and the line that makes an environment. README's sheet must equal the one from
quickstart. The output of the commands is removed, except .venv. Needs only the standard library.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from scripts import ROOT

# Names that the commands write in the clone, and those that other programs may have made there.
_WRITTEN = ("photos", "out", "out-val")
_MADE = ("sample", "build", "pixpack.egg-info")
_LEFT_OUT = ("scripts/test", "python3 -m venv env && source env/bin/activate")
_DRAW = """
from pathlib import Path
from scripts.samples.make_sample import make_sample
for name, count in (("train", 60), ("val", 24)):
    make_sample(Path("photos") / name, count, seed=0)
    # two broken files, which quickstart's sample has too
    for broken in ("cut_short", "not_found"):
        next(Path("photos", name).glob(f"*/{broken}.jpg")).unlink()
"""
# Compares levels: the loss of a JPEG is 1 or 2 of 255, that of another row or crop 20 and more.
_COMPARE = """
import numpy as np
from PIL import Image
sheets = "docs/sample-sheet.jpg", "sample/packed-sheet.png"
shown, drawn = (np.asarray(Image.open(sheet).convert("RGB"), np.int16) for sheet in sheets)
assert shown.shape == drawn.shape, (shown.shape, drawn.shape)
assert abs(shown - drawn).mean() < 5, abs(shown - drawn).mean()
"""


def commands() -> list[str]:
    """Return the lines of the blocks of shell, without comments, each once."""
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "README.md", ROOT / "docs/how-to/install.md"))
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    lines = [re.sub(r"(^|\s)#.*$", "", line).strip() for block in blocks for line in block.splitlines()]
    return [*dict.fromkeys(line for line in lines if line and line not in _LEFT_OUT)]


def main() -> int:
    """Run each command; returns 1 if one fails, 2 if the clone already holds names that they write."""
    if standing := [name for name in _WRITTEN if (ROOT / name).exists()]:
        print(f"{ROOT} holds {', '.join(standing)}, which README's commands write: move it away.", file=sys.stderr)
        return 2
    new = [*_WRITTEN, *(name for name in _MADE if not (ROOT / name).exists())]
    with tempfile.TemporaryDirectory() as folder:
        variables = {"PIP_CONSTRAINT": str(ROOT / "scripts" / "constraints.txt"), "PIP_NO_COMPILE": "1"}
        variables["PATH"] = f"{folder}/env/bin:{os.environ['PATH']}"
        try:
            _run([sys.executable, "-m", "venv", f"{folder}/env"], variables)
            for line in commands():
                if line.startswith("pack ") and not (ROOT / "photos").exists():
                    _run([f"{folder}/env/bin/python", "-c", _DRAW], variables)
                started = time.monotonic()
                # a quick benchmark takes ten seconds, its figures two minutes
                _run(["bash", "-c", line + " --quick" * line.startswith("python -m scripts.bench")], variables)
                print(f"{time.monotonic() - started:6.1f} s  {line}", flush=True)
                if line == "scripts/quickstart":
                    _run([str(ROOT / ".venv" / "bin" / "python"), "-c", _COMPARE], variables)
        except subprocess.CalledProcessError as e:
            print(f"README: {e}: {e.output[-2000:]}", file=sys.stderr)
            return 1
        finally:
            for name in new:
                shutil.rmtree(ROOT / name, ignore_errors=True)
    return 0


def _run(command: list[str], variables: dict[str, str]) -> None:
    """Run a command in the clone.

    Raises:
        CalledProcessError: it did not end with exit code 0.
    """
    output = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=True, **output)


if __name__ == "__main__":
    sys.exit(main())
