"""scripts/peers without installing anything: its options, peers that do not install or read wrong, and turns on tiny rows."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import make_tree

import packer

PEERS = Path(__file__).resolve().parents[1] / "scripts" / "peers"
RESULTS = PEERS / "results"
REFERENCE = PEERS.parents[1] / "docs" / "REFERENCE.md"
KEPT = sorted(RESULTS.glob("*.json"))

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks are for Linux"),
    pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="the picture needs matplotlib"),
]

# Reads the raw file itself; {pixels} is what it makes of them.
NUMPY_PEER = """
import numpy, torch
def pack(job):
    pass
def epochs(job, way):
    raw, order = job.rows(), numpy.random.default_rng(0)
    def epoch():
        rows = order.permutation(len(raw))[: len(raw) // job.batch_size * job.batch_size]
        for batch in rows.reshape(-1, job.batch_size):
            yield torch.from_numpy({pixels}), torch.from_numpy(batch)
    return epoch
"""


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of scripts/peers by its name; "__main__" is the script."""
    for folder in PEERS.parent, PEERS.parent / "claims", PEERS:
        monkeypatch.syspath_prepend(str(folder))

    def load(name: str) -> ModuleType:
        if name != "__main__":
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location("peers_main", PEERS / "__main__.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 rows of 16 x 16: 10 batches of 4."""
    folder = tmp_path_factory.mktemp("peers")
    make_tree(folder / "images", classes=2, each=20)
    packer.pack(folder / "images", folder / "store", size=16, workers=1)
    return folder / "store"


def main(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["peers", *map(str, words)])
    code: int = script.main()
    return code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rounds", "0"], "--rounds is 0, expected 1 or more"),
        (["--batch-size", "-1"], "--batch-size is -1, expected 1 or more"),
        (["--only", "nobody"], "invalid choice: 'nobody'"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    words: list[str], message: str, peers: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(peers("__main__"), monkeypatch, *words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_peer_that_does_not_install_is_a_row_with_the_reason(
    peers: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = peers("__main__"), tmp_path / "out"

    def python_with(*_: object) -> Path:
        raise peers("_environment").NotInstalled("pip: ERROR: no matching distribution (log: /somewhere/install.log)")

    monkeypatch.setattr(script, "python_with", python_with)
    words = ["--only", "ffcv", "--store", store, "--batch-size", 4, "--out", out, "--work", tmp_path / "work"]
    assert main(script, monkeypatch, *words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "FFCV: not installed: pip: ERROR: no matching distribution (log: /somewhere/install.log)" in printed
    assert json.loads(printed[-1])["peers"]["ffcv"]["not_installed"].startswith("pip: ERROR")
    page = (out / "README.md").read_text()
    assert "FFCV: not installed: pip: ERROR: no matching distribution (20" in page
    assert not (out / "peers.png").exists()


def test_a_store_of_too_few_batches_is_refused(
    peers: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--store", store, "--batch-size", 8, "--out", tmp_path / "out", "--work", tmp_path / "work"]
    assert main(peers("__main__"), monkeypatch, *words) == 1
    assert "has 5 batches of 8, expected 8 or more" in capsys.readouterr().err


def test_system_packages_are_left_alone_where_that_was_asked(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = peers("_environment")
    monkeypatch.setenv("PIXPACK_APT", "no")
    monkeypatch.setattr(environment, "_missing", lambda packages: [*packages])
    with pytest.raises(environment.NotInstalled, match="it needs the packages libnone-dev, and PIXPACK_APT=no forbids"):
        environment.python_with(["anything"], ["libnone-dev"], Path("/nowhere"))


@pytest.mark.parametrize(
    ("talk", "told"),
    [
        (
            "Collecting x\nERROR: No matching distribution found for x\n\n",
            "ERROR: No matching distribution found for x",
        ),
        ("Traceback\nValueError: rows came twice\nException ignored in: y\n", "ValueError: rows came twice"),
        ("half a word", "half a word"),
        ("", "it ended without a word"),
    ],
)
def test_the_reason_is_the_last_error_of_a_log(talk: str, told: str, peers: Any, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(talk)
    assert peers("_environment").last_error(tmp_path / "log") == told


def job_of(peers: Any, store: Path, folder: Path, pixels: str) -> Any:
    module = folder / "with_numpy.py"
    module.write_text(NUMPY_PEER.format(pixels=pixels))
    raw = {"pixels": str(store / "_tensordict" / "pixels.memmap"), "shape": (40, 16, 16, 3), "libraries": ("numpy",)}
    return peers("_reader").Job(str(module), str(store), **raw, packed=str(folder), batch_size=4, threads=1)


@pytest.mark.slow
def test_two_processes_read_in_turns_and_a_peer_with_wrong_pixels_is_told(
    peers: Any, store: Path, tmp_path: Path
) -> None:
    turns = peers("_turns")
    found = turns.compare(
        job_of(peers, store, tmp_path, "raw[batch]"), ["numpy"], Path(sys.executable), tmp_path / "log", 3
    )
    assert found["rounds"] == 3
    assert found["versions"] == {"numpy": np.__version__}
    assert {check["rows"] for check in found["checks"].values()} == {40}
    for kind in "steady", "epoch":
        assert set(found[kind]["ratio"]) == {
            "pixpack/numpy",
            "pixpack/copy limit beside pixpack",
            "numpy/copy limit beside the peer",
        }
        assert len(found[kind]["images_per_second"]["numpy"]["values"]) == 3
    job = job_of(peers, store, tmp_path, "raw[batch] ^ 1")
    with (
        pytest.raises(turns.ReadFailed, match="numpy, check: ValueError: numpy: the pixels of batch 0 are not those"),
        turns.process(Path(sys.executable), job, tmp_path / "log") as ask,
    ):
        ask("check", "numpy")


@pytest.mark.parametrize(("repeat", "wrong"), [(False, False), (True, False), (False, True)])
def test_an_epoch_with_a_row_twice_or_another_rows_pixels_is_refused(
    repeat: bool, wrong: bool, peers: Any, store: Path, tmp_path: Path
) -> None:
    reader = peers("_reader").Reader(job_of(peers, store, tmp_path, f"raw[batch]{' + 1' if wrong else ''}"))
    epoch = reader.begin("numpy")
    if repeat:
        reader._epochs["numpy"] = lambda: [next(iter(epoch))] * 2
    if repeat or wrong:
        with pytest.raises(ValueError, match="4 rows came twice" if repeat else "batch 0 are not those of the store"):
            reader.check("numpy")
    else:
        assert reader.check("numpy")["rows"] == 40


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_results_of_a_full_run_are_kept_with_their_machine(path: Path, peers: Any) -> None:
    report = json.loads(path.read_text())
    assert {"date", "cpu", "cores", "load_average", "versions"} <= set(report["machine"])
    page = (RESULTS / "README.md").read_text()
    show = peers("_show")
    if not show.reason(report):
        assert report["rows"] == 20_000
        assert show.markdown(show.lines_of(report)).splitlines()[-1] in page
    assert show.described(report) in page
    assert (RESULTS / "peers.png").stat().st_size < 100_000


def test_the_reference_lists_every_peer(peers: Any) -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    table = text[text.index("\n## Beside others\n") :]
    listed = re.findall(r"^\| `(\w+)` \|", table[: table.index("\n## ", 5)], re.M)
    assert sorted(listed) == peers("__main__").NAMES
