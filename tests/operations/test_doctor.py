"""`pack doctor`: what is there is reported, what is missing is named with its fix, and decides the exit code."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from packer.cli.app import run
from packer.operations import doctor
from packer.pixels.formats.versions import decoder_versions

ROOT = Path(__file__).resolve().parents[2]


def found(name: str, path: Path) -> doctor.Finding:
    return next(finding for finding in doctor.examine(path).findings if finding.name == name)


def test_a_machine_that_runs_the_tests_is_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    names = [finding["name"] for finding in report["findings"]]
    assert report["is_fit"]
    assert {"pixpack", "torch", "libjpeg-turbo", "Pillow", "ffmpeg", "CPUs", "memory", "CUDA", "O_DIRECT"} <= set(names)
    assert list(tmp_path.iterdir()) == []
    assert all(finding["fix"] for finding in report["findings"] if finding["level"] != "ok")


def test_the_live_pillow_and_a_path_that_does_not_exist_yet_are_reported(tmp_path: Path) -> None:
    live = decoder_versions()["pillow"]
    assert f"{live['distribution']} {live['version']}" in found("Pillow", tmp_path).found
    assert found("file system", tmp_path / "a/b").found.startswith(f"{tmp_path}: ")


def test_importing_no_torch_it_reports_for_which_cuda_torch_is_built() -> None:
    code = (
        "import sys, packer.operations.doctor as d; print(d.examine().is_fit, 'torch' in sys.modules, d._torch_cuda())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    import torch

    assert done.stdout.split(maxsplit=2)[:2] == ["True", "False"]
    assert done.stdout.split(maxsplit=2)[2].strip() == (f"CUDA {torch.version.cuda}" if torch.version.cuda else "None")


def test_a_missing_package_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: "" if name == "tqdm" else version(name))
    assert run(["doctor", str(tmp_path)]) == 1
    assert "tqdm          missing: missing\n              fix: pip install tqdm" in capsys.readouterr().out


def test_what_only_makes_it_faster_is_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.pixels.formats.jpeg.is_installed", lambda: False)
    finding = found("libjpeg-turbo", tmp_path)
    assert (finding.level, "turbojpeg" in finding.fix.lower()) == ("advice", True)
    assert doctor.examine(tmp_path).is_fit


def test_another_distribution_with_a_reader_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "feeds-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: feeds\nVersion: 3.1\n")
    (info / "top_level.txt").write_text("reader\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    report = doctor.examine(tmp_path)
    finding = next(finding for finding in report.findings if finding.name == "reader")
    assert not report.is_fit
    assert "feeds" in finding.found
    assert finding.fix.startswith("pip uninstall feeds")


def test_another_reader_that_is_imported_first_is_named_though_nothing_of_ours_could_be(tmp_path: Path) -> None:
    (tmp_path / "reader").mkdir()
    (tmp_path / "reader/__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from packer.cli.app import run; sys.exit(run(['doctor']))"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    assert f"{tmp_path / 'reader'} is imported instead of {ROOT / 'reader'}" in done.stdout


@pytest.mark.parametrize(
    ("kind", "level"), [("ext4", "ok"), ("fuseblk", "ok"), ("nfs4", "advice"), ("fuse.gcsfuse", "advice")]
)
def test_a_file_system_behind_a_network_is_advised_against(
    kind: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reader.system.file_system", lambda path: kind)
    finding = next(finding for finding in doctor.examine(tmp_path).findings if finding.name == "file system")
    assert (finding.level, kind in finding.found) == (level, True)


def test_the_memory_that_a_cgroup_leaves_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader.system._cgroups", lambda: iter([(123 * 10**6, 0)]))
    finding = next(finding for finding in doctor.examine(tmp_path).findings if finding.name == "memory")
    assert finding.found.endswith("; its cgroup may use 0.1 GB")


@pytest.mark.skipif(sys.platform != "linux", reason="fallocate of Linux")
def test_a_full_disk_is_named_and_is_not_one_that_cannot_allocate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(doctor.ctypes, "CDLL", lambda *_, **__: types.SimpleNamespace(fallocate=full))
    assert run(["doctor", str(tmp_path)]) == 1
    assert f"{tmp_path} cannot be written: No space left on device" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refused)
    report = doctor.examine(tmp_path)
    assert not report.is_fit
    assert report.findings[-1].found == f"{tmp_path} cannot be written: Permission denied"
