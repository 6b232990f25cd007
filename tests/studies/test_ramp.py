"""The study of images that grow over the epochs: both ways are trained for each seed, on photographs of two scenes each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from children import program
from PIL import Image

from scripts.studies import ramp

ROOT = Path(__file__).resolve().parents[2]


def test_both_ways_are_trained_from_the_same_seeds() -> None:
    sizes = ["--count", 24, "--held-out", 12, "--size", 32, "--first", 16, "--batch-size", 8]
    done = program("scripts.studies.ramp", *sizes, "--epochs", 2, "--seeds", 2)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for way in ("grows", "one size"):
        assert 0 <= found["accuracy"][way]["mean"] <= 1
        assert len(found["seconds"][way]) == 2
    apart = found["accuracy"]["grows"]["mean"] - found["accuracy"]["one size"]["mean"]
    assert found["difference"]["mean"] == pytest.approx(apart, abs=2e-4)
    assert found["share_of_time"]["mean"] > 0


def test_a_photograph_has_the_class_of_the_scene_that_it_has_more_of(tmp_path: Path) -> None:
    ramp.draw_photographs(tmp_path / "val", 12, 0.3)
    paths = sorted(tmp_path.rglob("*.jpg"), key=lambda path: path.stem)
    assert len({path.parent.name for path in paths}) == 6
    scenes = [ramp.draw_scene("val", number).astype(float) for number in range(12)]
    for number, path in enumerate(paths):
        with Image.open(path) as opened:
            apart = [np.abs(np.asarray(opened) - scene).mean() for scene in scenes]
        assert int(np.argmin(apart)) == number


def test_mean_and_error_are_those_of_the_seeds() -> None:
    assert ramp.mean_and_error([0.9, 1.0, 0.8]) == {"mean": 0.9, "standard_error": 0.0577}
