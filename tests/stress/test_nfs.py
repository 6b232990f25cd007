"""The trials of scripts/stress/network/nfs_test.py: they hold on a local folder, can fail, and say where there is no NFS."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from conftest import make_tree

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, kills processes")


@pytest.fixture
def nfs() -> ModuleType:
    return importlib.import_module("scripts.stress.network.nfs_test")


@pytest.mark.nightly
def test_every_trial_holds_where_both_mounts_are_one_local_folder(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    make_tree(tmp_path / "images", each=30)
    words = ["--mounts", tmp_path / "mount", tmp_path / "mount", "--images", tmp_path / "images", "--work", tmp_path]
    command = [sys.executable, "-m", "scripts.stress.network.nfs_test", *words]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    trials = ["packed", "resumed", "locked", "in_parts", "together", "read", "replaced"]
    assert [line.split()[0] for line in lines] == trials == list(json.loads(last)["seconds"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "mount"]
    assert not list((tmp_path / "mount").iterdir())


def test_other_bytes_and_other_exit_codes_end_the_trials(
    nfs: ModuleType, shared_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nfs, "_SEEN_SECONDS", 0)
    for name in ("reference", "other"):
        shutil.copytree(shared_store, tmp_path / name)
    mounts = nfs.Mounts(tmp_path, tmp_path, tmp_path, tmp_path)
    mounts.check_bytes(tmp_path / "other", "a copy")
    with open(tmp_path / "other/samples.jsonl", "ab") as file:
        file.write(b"{}\n")
    with pytest.raises(nfs.TrialError, match=r"a copy: samples\.jsonl differ from a local pack's"):
        mounts.check_bytes(tmp_path / "other", "a copy")
    done = subprocess.CompletedProcess([], 1, stdout="", stderr="pack: no.\n")
    with pytest.raises(nfs.TrialError, match=r"a pack: exit code 1, expected 0: pack: no\."):
        nfs.expect(done, 0, "a pack")


def test_a_machine_that_cannot_mount_nfs_says_so_in_one_sentence(
    nfs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.stress.network._loopback._PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["nfs_test", "--work", str(tmp_path)])
    assert nfs.main() == 1
    assert capsys.readouterr().err == (
        "nfs_test: nothing was tried: exportfs, rpc.nfsd, rpc.mountd, mount.nfs not found."
        " On Debian: apt-get install nfs-kernel-server\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_readers_that_end_before_they_have_read_end_the_trials(nfs: ModuleType, tmp_path: Path) -> None:
    readers = nfs.Readers([(tmp_path / "missing", "ram")])
    with pytest.raises(nfs.TrialError, match=r"exit code 1 before all had read: .*missing does not exist"):
        readers.answers()
