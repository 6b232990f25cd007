"""What the long trials share: options, photographs, a temporary folder, one JSON object last."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from packer.errors import OptionsError, PackError, ScanError
from reader.format.errors import StoreError
from scripts.samples.scenes import CLASSES, draw


class TrialError(RuntimeError):
    """Something was not survived, or did not end as it must; says which, and what was found."""


def counts_parser(doc: str | None, **defaults: int) -> argparse.ArgumentParser:
    """Return a parser with options that are ints: counts_parser(__doc__, images=3000, seed=0)."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    return parser


def draw_photographs(folder: Path, count: int) -> list[Path]:
    """Write `count` JPEGs in class folders, 24 of them different."""
    made: list[Path] = []
    for number in range(count):
        name = CLASSES[number % len(CLASSES)]
        path = folder / name / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < 24:
            Image.fromarray(draw(name, np.random.default_rng(number), 375, 500)).save(path, quality=90)
        else:
            shutil.copyfile(made[number % 24], path)
        made.append(path)
    return made


def reported(name: str, measure: Callable[[Path], dict[str, Any]]) -> int:
    """Measure in a temporary folder and print what was found, as one JSON line last; returns the exit code."""
    try:
        with tempfile.TemporaryDirectory(prefix=f"pixpack-{name}-") as folder:
            report = {"trial": name} | measure(Path(folder).resolve())
    except (TrialError, OptionsError, PackError, ScanError, StoreError) as e:
        print(f"{name}: {e}", file=sys.stderr)
        return 1
    print(json.dumps(report), flush=True)
    return 0
