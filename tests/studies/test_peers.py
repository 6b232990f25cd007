"""scripts/studies/peers without installing anything: its options, peers that do not install or are wrong, turns on tiny rows."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import make_tree
from PIL import Image

import packer
from reader import MemmapDataset

PEERS = Path(__file__).resolve().parents[2] / "scripts" / "studies" / "peers"
RESULTS = PEERS / "results"
PAGE = PEERS.parents[2] / "docs" / "benchmarks" / "peers.md"
KEPT = sorted(RESULTS.glob("*.json"))

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks are for Linux"),
    pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="the picture needs matplotlib"),
]

# Reads its own file or else the store's; {pixels} is what it makes of the rows.
NUMPY_PEER = """
import os, numpy, torch
def pack(job):
    numpy.save(job.packed + "/rows.npy", numpy.stack(list(job.stream())))
def epochs(job, way):
    path, order = job.packed + "/rows.npy", numpy.random.default_rng(0)
    raw = numpy.load(path) if os.path.exists(path) else job.rows()
    def epoch():
        rows = order.permutation(len(raw))[: len(raw) // job.batch_size * job.batch_size]
        for batch in rows.reshape(-1, job.batch_size):
            yield torch.from_numpy({pixels}), torch.from_numpy(batch)
    return epoch
"""


@pytest.fixture
def peers() -> Any:
    """Import a module of scripts/studies/peers by its name; "__main__" is the script."""
    return lambda name: importlib.import_module(f"scripts.studies.peers.{name}")


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


def test_a_peer_that_does_not_install_is_a_row_with_the_reason(
    peers: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = peers("__main__"), tmp_path / "out"

    def python_with(*_: object) -> Path:
        raise peers("_environment").NotInstalled("pip: ERROR: no matching distribution (log: /somewhere/install.log)")

    monkeypatch.setattr(script, "python_with", python_with)
    words = ["--only", "ffcv", "--store", store, "--batch-size", 4, "--out", out, "--work", tmp_path / "work"]
    words += ["--images", store.with_name("images"), "--size", 48, "--photographs", 40]
    assert main(script, monkeypatch, *words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "FFCV: not installed: pip: ERROR: no matching distribution (log: /somewhere/install.log)" in printed
    assert json.loads(printed[-1])["peers"]["ffcv"]["not_installed"].startswith("pip: ERROR")
    page = (out / "README.md").read_text()
    assert "FFCV: not installed: pip: ERROR: no matching distribution (20" in page
    assert not (out / "peers.svg").exists()


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
    ("talk", "reason"),
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
def test_the_reason_is_the_last_error_of_a_log(talk: str, reason: str, peers: Any, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(talk)
    assert peers("_environment").last_error(tmp_path / "log") == reason


def job_of(peers: Any, store: Path, folder: Path, pixels: str, size: int = 16) -> Any:
    module = folder / "with_numpy.py"
    module.write_text(NUMPY_PEER.format(pixels=pixels))
    raw = {
        "pixels": str(store / "_tensordict" / "pixels.memmap"),
        "shape": (40, size, size, 3),
        "libraries": ("numpy",),
    }
    return peers("_reader").PeerJob(str(module), str(store), **raw, packed=str(folder), batch_size=4, threads=1)


def test_photographs_become_links_in_order_without_those_that_exif_turns(peers: Any, tmp_path: Path) -> None:
    images, work = make_tree(tmp_path / "images", classes=1, each=3), tmp_path / "work"
    turned = Image.Exif()
    turned[0x112] = 6
    with Image.open(images / "class0" / "001.jpg") as image:
        image.save(images / "class0" / "001.jpg", exif=turned)
    work.mkdir()
    out = peers("_photographs").photograph_store(images, work, 5, 48)
    names = [path.resolve().name for path in sorted((work / "photographs").iterdir())]
    assert names == ["000.jpg", "002.jpg", "000.jpg", "002.jpg", "000.jpg"]
    job = dataclasses.replace(job_of(peers, out, tmp_path, "raw", 48), photographs=str(work / "photographs"))
    picture = importlib.import_module("scripts.common.pictures").picture
    rows = MemmapDataset(out).numpy()
    for row in range(5):
        assert np.array_equal(picture(job.photograph(row), 48), rows[row])
    with pytest.raises(RuntimeError, match="no photograph can be compared to the byte at --size 8"):
        peers("_photographs").photograph_store(images, work, 5, 8)


def test_what_reads_rows_needs_no_pillow() -> None:
    """A peer's environment may lack it: it is lent to what packs photographs."""
    code = "import sys; sys.modules['PIL'] = None; import scripts.studies.peers._reader"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[2])


@pytest.mark.nightly
def test_photographs_are_packed_in_turns_and_what_the_peer_wrote_is_read_back(peers: Any, tmp_path: Path) -> None:
    images, work = make_tree(tmp_path / "images", classes=1, each=8), tmp_path / "work"
    work.mkdir()
    photographs, turns = peers("_photographs"), peers("_turns")
    store = photographs.photograph_store(images, work, 40, 48)
    lent = {"photographs": str(work / "photographs"), "pillow": str(photographs.lent_pillow(work))}
    job = dataclasses.replace(job_of(peers, store, tmp_path, "raw[batch]", 48), **lent)
    found = turns.compare_packing(job, ["numpy"], Path(sys.executable), work, 2)
    assert (found["rounds"], found["photographs"]) == (2, 40)
    assert found["check"] | {"neighbors": 0} == {"rows": 40, "compared_batches": 10, "levels": 0, "neighbors": 0}
    assert set(found["images_per_second"]) == {"pixpack", "the peer"}
    assert not list(work.glob("packing-*"))


@pytest.mark.nightly
def test_two_processes_read_in_turns_and_a_peer_with_wrong_pixels_is_reported(
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
            "pixpack/copying beside pixpack",
            "numpy/copying beside the peer",
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


def test_pixels_may_be_as_far_off_as_a_decoder_of_its_own_is(peers: Any, store: Path, tmp_path: Path) -> None:
    job = job_of(peers, store, tmp_path, "raw[batch] ^ 1")
    allowed = dataclasses.replace(job, levels=1, checked_every=1)
    assert peers("_reader").Reader(allowed).check("numpy")["levels"] == 1
    with pytest.raises(ValueError, match="batch 0 are not those of the store"):
        peers("_reader").Reader(dataclasses.replace(job, levels=0.9)).check("numpy")


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_results_of_a_full_run_are_kept_with_their_machine(path: Path, peers: Any) -> None:
    report = json.loads(path.read_text())
    assert {"date", "cpu", "cores", "load_average", "versions"} <= set(report["machine"])
    page = (RESULTS / "README.md").read_text()
    show = peers("_show")
    if not show.reason(report):
        assert report["rows"] == (10_000 if "packing" in report else 2_048)
        tables = show.markdown([], [*show.lines_of(report), *show.pack_lines([report])]).splitlines()
        assert set(tables[2:]) <= set(page.splitlines())
    assert show.described(report) in page
    assert (RESULTS / "peers.svg").exists()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_page_has_the_figures_that_are_kept(path: Path, peers: Any) -> None:
    report, show = json.loads(path.read_text()), peers("_show")
    row = next(
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| [{report['peer']}]")
    )
    packs, reads = [line[3] for line in show.pack_lines([report])], show.lines_of(report)[1]
    # a peer that packs nothing is compared over complete epochs: it decodes in each
    ratio = reads[4] if packs else f"{float(reads[6]):.0f}"
    assert [cell.strip() for cell in row.split("|")[2:5]] == [ratio, *(packs or ["none"]), reads[1]]


def test_the_reference_lists_every_peer(peers: Any) -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == peers("__main__").NAMES


@pytest.mark.parametrize(
    ("factor", "sentence"),
    [
        (0.99, "pixpack reads as fast as FFCV, the fastest peer"),
        (1.09, "pixpack reads as fast as FFCV, the fastest peer"),
        (1.52, "pixpack reads 1.5 times as fast as FFCV, the fastest peer"),
        (0.5, "FFCV reads 2 times as fast as pixpack"),
    ],
)
def test_the_title_of_the_chart_says_no_difference_that_is_none(peers: Any, factor: float, sentence: str) -> None:
    show = peers("_show")
    assert show.finding("FFCV, full", factor) == sentence
    assert ("times" in show.bar_text(factor)) is (factor > 1.1)


@pytest.mark.nightly
def test_rows_are_read_over_a_link_of_object_storage(
    peers: Any, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
    script = peers("remote")
    monkeypatch.setattr(script, "_PEERS", ())
    monkeypatch.setattr(script, "cached_store", lambda work, rows, size: store)
    words = ["--rounds", 1, "--batch-size", 4, "--latency-ms", 1, "--megabytes-per-second", 100]
    assert main(script, monkeypatch, *words) == 0
    printed = capsys.readouterr().out.splitlines()
    found = json.loads(printed[-1])["libraries"]
    assert [*found] == ["pixpack"]
    assert all(found["pixpack"][epoch]["images_per_second"] > 0 for epoch in ("first", "second"))
    assert any(line.startswith("pixpack ") for line in printed)


def test_a_library_that_fails_over_the_link_is_one_line(
    peers: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, options = peers("remote"), SimpleNamespace(batch_size=4, threads=1)
    job = script.job_of(peers("libraries.with_pixpack"), store, tmp_path, options)
    ended = subprocess.CompletedProcess([], 1, "", "Traceback:\nIndexError: no such sample\nbye\n")
    monkeypatch.setattr(script.subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(script.ReadFailed, match="^litdata: IndexError: no such sample$"):
        script._turn(
            script.RemoteReader(job, Path(sys.executable), tmp_path), "litdata", "http://127.0.0.1:9", tmp_path
        )
