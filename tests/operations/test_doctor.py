"""`pack doctor`: versions and decoders are shown, what is missing comes with its fix, and decides the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from packer.cli.app import run
from packer.operations import doctor
from packer.pixels.decoder_choice import decoder_versions

ROOT = Path(__file__).resolve().parents[2]


def test_a_machine_that_runs_the_tests_is_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(tmp_path / "a/b"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    live = decoder_versions()["pillow"]
    assert report["is_fit"]
    assert {"pixpack", "torch", "Pillow", "CPUs", "disk"} <= set(report["found"])
    assert report["found"]["Pillow"].startswith(f"{live['distribution']} {live['version']}")
    assert report["found"]["disk"].startswith(f"{tmp_path}: ")
    assert list(tmp_path.iterdir()) == []


def test_it_imports_no_torch() -> None:
    code = "import sys, packer.operations.doctor as d; print(d.examine().is_fit, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.parametrize(("name", "code"), [("tqdm", 1), ("torch", 0)])
def test_a_missing_package_is_named_with_its_command(
    name: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = doctor.installed_version
    monkeypatch.setattr(doctor, "installed_version", lambda package: None if package == name else version(package))
    assert run(["doctor"]) == code
    assert f"{name:14}missing: pip install {name}\n" in capsys.readouterr().out


def test_a_pillow_without_a_decoder_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("PIL.features.check", lambda name: name != "webp")
    assert run(["doctor"]) == 1
    assert "Pillow is built without webp: pip install" in capsys.readouterr().out
