"""The pipeline: right rows in right order, the same bytes however it ran, nothing lost, nothing that looks finished."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PACK, content_bytes, interrupted, make_tree, photo, store_bytes
from PIL import Image
from redecoding import rows_of_other_sources

from packer import DiskFullError, OptionsError, PackError, ScanError, pack
from packer.operations.verify import verify
from packer.sample_lines import read_json_lines
from packer.store.journal import CommitLog
from packer.store.tasks import Result
from reader import IncompleteStoreError, MemmapDataset
from reader.format.manifest import read_manifest


def test_rows_are_the_resized_and_cropped_images_in_order(images: Path, tmp_path: Path) -> None:
    report = pack(images, tmp_path / "out", size=32)
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert (report.rows, report.inputs, report.rejected, report.classes, report.size) == (24, 24, 0, 3, (32, 32))
    paths = sorted(images.rglob("*.jpg"))
    assert [path for path, _ in train.samples] == [str(path.relative_to(images)) for path in paths]
    assert train.targets == [int(path.parent.name[-1]) for path in paths]
    for row, path in enumerate(paths):
        image = Image.open(path).convert("RGB")
        scale = 32 / min(image.size)
        size = (32, int(32 * image.height / image.width)) if image.width <= image.height else None
        image = image.resize(size or (int(32 * image.width / image.height), 32), Image.Resampling.BILINEAR)
        left, top = round((image.width - 32) / 2), round((image.height - 32) / 2)
        expected = np.asarray(image.crop((left, top, left + 32, top + 32)))
        assert np.array_equal(train[row].pixels.numpy(), expected), (path, scale)
    mean = train.numpy().reshape(-1, 3).mean(0) / 255
    assert train.manifest.mean == pytest.approx(mean, rel=1e-9)
    assert train.manifest.std == pytest.approx(train.numpy().reshape(-1, 3).std(0) / 255, rel=1e-9)
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", images) == []


def test_statistics_leave_padding_out(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=40, fit="pad")
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    inside = []
    for row in train:
        y0, x0, y1, x1 = row.content.tolist()
        inside.append(row.pixels[y0:y1, x0:x1].reshape(-1, 3).numpy())
        assert row.pixels.sum() == inside[-1].astype(int).sum()
    assert train.manifest.mean == pytest.approx(np.concatenate(inside).mean(0) / 255, rel=1e-9)


@pytest.mark.usefixtures("small_blocks")
def test_spawned_workers_and_a_moved_folder_give_the_same_bytes(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(images, tmp_path / "out", size=32)
    moved = shutil.copytree(images, tmp_path / "moved")
    monkeypatch.setattr("packer.workers.processes.MOST_FORKING_THREADS", 0)
    pack(moved, tmp_path / "spawned", size=32, workers=2)
    assert content_bytes(tmp_path / "spawned") == content_bytes(tmp_path / "out")
    assert str(tmp_path).encode() not in b"".join(store_bytes(tmp_path / "out").values())


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """Classes and files, nested too, with names from outside ASCII and from outside UTF-8, and a file that is no image."""
    root = tmp_path / "named"
    folders = ["zebra", "Ärger", "ärger", "\u65e5\u672c\u8a9e", "\U0001f431", "b/c", "b/ä", "b-", "latin1-\udce9"]
    for n, folder in enumerate(folders):
        (root / folder).mkdir(parents=True)
        for m, name in enumerate(["x.jpg", "É.jpg", "\uff5e.png", "\udcff.jpg"]):
            photo(40 + n, 30 + m, 10 * n + m).save(root / folder / name)
    (root / "zebra/ö.jpg").write_text("no image")
    return root


def _pack_in(images: Path, out: Path, **environment: str) -> tuple[int, str]:
    command = [*PACK, str(images), str(out), "--size", "24", "--quiet", "--max-rejects", "1"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=500)
    return done.returncode, done.stderr


def test_the_same_bytes_from_any_locale(named: Path, tmp_path: Path) -> None:
    for locale in ("C", "C.UTF-8"):
        assert _pack_in(named, tmp_path / locale, LC_ALL=locale) == (0, "")
    assert store_bytes(tmp_path / "C") == store_bytes(tmp_path / "C.UTF-8")
    assert "Ärger" in MemmapDataset(tmp_path / "C").classes


@pytest.mark.usefixtures("small_blocks")
def test_the_same_bytes_from_any_order_of_directories(
    named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(named, tmp_path / "out0", size=24, max_rejects=1)
    expected = store_bytes(tmp_path / "out0")
    original = os.scandir
    for seed in range(1, 6):
        draw = random.Random(seed)

        @contextlib.contextmanager
        def shuffled(path: Any = ".", draw: random.Random = draw) -> Iterator[Iterator[os.DirEntry[str]]]:
            with original(path) as entries:
                found = list(entries)
            draw.shuffle(found)
            yield iter(found)

        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", shuffled)
            pack(named, tmp_path / f"out{seed}", size=24, max_rejects=1, workers=[1, 2, 8][seed % 3])
        assert store_bytes(tmp_path / f"out{seed}") == expected


def test_optional_system_calls_may_be_missing(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(images, tmp_path / "out", size=32)
    for name in ("posix_fallocate", "sched_getaffinity", "fdatasync"):
        monkeypatch.delattr(os, name, raising=False)
    pack(images, tmp_path / "bare", size=32)
    assert store_bytes(tmp_path / "bare") == store_bytes(tmp_path / "out")


def test_without_a_size_equal_images_are_packed_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for n in range(5):
        photo(40, 30, n).save(tmp_path / "images" / f"{n}.png")
    # so many pixels by its header, which no image may have: it will be rejected, and does not count
    size = struct.pack(">II", 70_000, 70_000)
    (tmp_path / "images" / "odd.png").write_bytes(
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + size + b"\x08\x02\0\0\0" + bytes(4)
    )
    report = pack(tmp_path / "images", tmp_path / "out", max_rejects=1)
    assert (report.size, report.rejected) == ((30, 40), 1)
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert np.array_equal(train[3].pixels.numpy(), np.asarray(photo(40, 30, 3)))
    assert train.targets == [-1] * 5


def test_every_input_is_a_row_or_a_reject(images: Path, tmp_path: Path) -> None:
    intact = (images / "class0/000.jpg").read_bytes()
    (images / "class0/cut.jpg").write_bytes(intact[: len(intact) // 2])
    (images / "class1/text.png").write_text("not an image")
    (images / "class1/empty.jpg").touch()
    (images / "class2/folder.jpg").mkdir()
    (images / "class2/dangling.jpg").symlink_to("nowhere")
    (images / "class2/self.jpg").symlink_to("self.jpg")
    os.mkfifo(images / "class2/fifo.jpg")
    report = pack(images, tmp_path / "out", size=32, max_rejects="50%")
    rejects = {line["path"]: line["reason"] for line in read_json_lines(tmp_path / "out/rejected.jsonl")}
    assert report.rows == 24
    assert report.rejected == len(rejects) == 6
    assert rejects["class0/cut.jpg"].startswith("Pillow refuses it: image file is truncated (")
    assert rejects["class1/text.png"] == "Pillow refuses it: cannot identify image file"
    assert rejects["class1/empty.jpg"] == "the file is empty"
    assert rejects["class2/dangling.jpg"] == "there is no such file"
    assert rejects["class2/self.jpg"] == "it cannot be read: Too many levels of symbolic links"
    assert rejects["class2/fifo.jpg"] == "it is no regular file"
    assert sum(report.reasons.values()) == 6
    assert not report.too_many_rejects
    # the rows are those of a folder without the broken files
    for name in rejects:
        path = images / name
        path.rmdir() if path.is_dir() else path.unlink()
    pack(images, tmp_path / "clean", size=32)
    assert (tmp_path / "clean/_tensordict/pixels.memmap").read_bytes() == (
        tmp_path / "out/_tensordict/pixels.memmap"
    ).read_bytes()


def test_nothing_to_pack_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.jpg").write_text("x")
    with pytest.raises(
        PackError,
        match=r"images could be packed: its only input was rejected. For example a.jpg: Pillow refuses it: cannot identify",
    ):
        pack(tmp_path / "images", tmp_path / "out", size=32)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(PackError, match="could be packed"):
        pack(tmp_path / "images", tmp_path / "out", size=32)
    assert list((tmp_path / "out").iterdir()) == []


# -- OUT


def test_an_out_in_the_way_is_refused_unchanged(images: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(OptionsError, match="is a file"):
        pack(images, tmp_path / "thesis.tex", size=32)
    with pytest.raises(PackError, match="cannot be (made|listed): Not a directory"):
        pack(images, tmp_path / "thesis.tex/out", size=32)
    for inside in (images, images / "packed"):
        with pytest.raises(OptionsError, match="Choose a folder outside it"):
            pack(images, inside, size=32)
    assert not (images / "packed").exists()


def test_a_full_disk_is_reported_before_decoding(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 5000, 5000))
    with pytest.raises(
        DiskFullError, match=r"out\.packing needs (\d+) more bytes, its disk has 5000 free: (\d+) are missing"
    ) as e:
        pack(images, tmp_path / "out", size=32)
    needed, missing = map(int, re.findall(r"(\d{5,})", str(e.value).partition(" needs ")[2]))
    # 24 rows, and at least what 24 lines in each of two files take
    assert 73728 + 24 * 400 < needed == missing + 5000 < 73728 + 24 * 600 + 50_000
    monkeypatch.undo()
    assert pack(images, tmp_path / "out", size=32).rows == 24


# -- interruption


@pytest.mark.usefixtures("small_blocks")
def test_a_resume_with_other_decoders_is_refused(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    interrupted(pack, images, out, size=32)
    with monkeypatch.context() as patch:
        patch.setattr("packer.pixels.decoder_choice.decoder_versions", lambda: {"pillow": {"version": "0"}})
        with pytest.raises(PackError, match=r"was started with other decoders \(pillow version: \S+, now 0\)"):
            pack(images, out, size=32)


@pytest.fixture(scope="module")
def slow_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """360 JPEGs that take seconds to decode: 18 pictures, each under 20 names."""
    drawn = make_tree(tmp_path_factory.mktemp("drawn") / "images", each=6, size=(900, 700))
    images = tmp_path_factory.mktemp("slow") / "images"
    for path in sorted(drawn.rglob("*.jpg")):
        for n in range(20):
            target = images / path.parent.name / f"{n:03}_{path.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(path)
    return images


@pytest.mark.usefixtures("delivered_signals")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.nightly)],
)
def test_a_signal_ends_the_command_at_once_and_leaves_no_process(
    tmp_path: Path, slow_images: Path, number: int, code: int
) -> None:
    command = [*PACK, str(slow_images), str(tmp_path / "out"), "--size", "32", "--workers", "2", "--exact"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    journal = tmp_path / "out.packing/.packing/journal"
    deadline = time.monotonic() + 500
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 1) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    # it takes 0.06 s; the rest is for machines that do other work as well
    _, errors = process.communicate(timeout=500)
    assert process.returncode == code
    assert "Traceback" not in errors
    if number != signal.SIGKILL:
        line = re.search(r"^pack: \w+\. To continue: (pack .*)$", errors, re.MULTILINE)
        assert line
        assert shlex.split(line[1]) == ["pack", *command[len(PACK) :]]
    _wait_until_gone(process.pid)
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 360
    assert 0 < json.loads(done.stdout)["resumed_from"] < 360
    pack(slow_images, tmp_path / "reference", size=32, exact=True)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "reference")


def _wait_until_gone(session: int) -> None:
    """Wait until no process of a session is left; an orphan worker fails the test."""
    deadline = time.monotonic() + 500
    while time.monotonic() < deadline:
        alive = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                alive.append(stat.parent.name)
        if not alive:
            return
        time.sleep(0.05)
    raise AssertionError(f"processes left: {alive}")


# -- the face


def test_the_manifest_records_what_shaped_the_rows(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size="24x40", fit="inside", resample="lanczos", channels="gray")
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.height, manifest.width, manifest.channels, manifest.has_content) == (24, 40, 1, True)
    assert manifest.options["fit"] == "inside"
    assert manifest.options["resample"] == "lanczos"
    assert manifest.decoders["pillow"]["version"]


# -- found by attack and review


def test_tasks_and_results_larger_than_any_pipe_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """4 queued tasks of 400 kB one way, results of 1 MB the other: a parent that sends and a worker that answers."""
    from packer.options import RowOptions
    from packer.pixels.geometry import Geometry
    from packer.store.tasks import Task
    from packer.workers.block_worker import PackJob
    from packer.workers.engine import LocalEngine

    (tmp_path / "pixels").touch()
    job = PackJob(str(tmp_path), str(tmp_path / "pixels"), Geometry(8, 8), RowOptions())
    paths = [f"{'x' * 200}/{n}.jpg" for n in range(2000)]
    engine = LocalEngine(job, workers=2)

    def stands_still(number: int, frame: Any) -> None:
        raise AssertionError("the engine stands still: parent and worker wait for each other to read")

    before = signal.signal(signal.SIGALRM, stands_still)
    signal.alarm(40)
    try:
        tasks = (Task(block, block * 2000, paths, [0] * 2000) for block in range(12))
        results = list(engine.run(tasks, 0, ready=lambda: None))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        engine.close()
    assert [result.block for result in results] == list(range(12))
    assert all(len(result.rejects) == 2000 for result in results)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("raises", "text"), [(True, "no memory for a line"), (False, r"holds \d+ of 24 inputs: it was damaged")]
)
def test_a_journal_that_lost_a_line_is_never_sealed(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: bool, text: str
) -> None:
    """An error of the line ends the pack; a line that is not there although none was reported ends it at the seal."""
    pack(images, tmp_path / "reference", size=32)
    with monkeypatch.context() as patch:
        commit, inputs = CommitLog.commit, list[int]()

        def losing(self: CommitLog, results: list[Result]) -> None:
            inputs.extend(result.inputs for result in results)
            if sum(inputs) < 24:
                commit(self, results)
            elif raises:
                raise MemoryError("no memory for a line")

        patch.setattr(CommitLog, "commit", losing)
        with pytest.raises((MemoryError, PackError), match=text):
            pack(images, tmp_path / "out", size=32)
    with pytest.raises(IncompleteStoreError):
        MemmapDataset(tmp_path / "out", as_tuple=False)
    assert pack(images, tmp_path / "out", size=32).rows == 24
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "reference")


@pytest.mark.parametrize("fit", ["pad", "inside"])
def test_padding_of_rgba_is_transparent_and_counted_out(images: Path, tmp_path: Path, fit: str) -> None:
    pack(images, tmp_path / "out", size=40, fit=fit, channels="rgba")
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert train.manifest.mean[3] == 1
    y0, x0, y1, x1 = train[0].content.tolist()
    alpha = train[0].pixels[..., 3]
    assert alpha[y0:y1, x0:x1].min() == 255
    assert int(alpha.sum()) == 255 * (y1 - y0) * (x1 - x0)


def test_splits_are_not_packed_from_nothing(tmp_path: Path) -> None:
    make_tree(tmp_path / "splits/train", classes=2, each=2)
    (tmp_path / "splits/val").mkdir()
    with pytest.raises(ScanError, match="val holds no image. Fill it or remove it"):
        pack(tmp_path / "splits", tmp_path / "new", size=32)
    assert not (tmp_path / "new").exists()


def test_a_script_without_a_main_guard_packs_once_also_under_spawn(images: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, threading, packer\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print(packer.pack(sys.argv[1], sys.argv[2], size=32, workers=2).rows)\n"
        "try:\n    packer.pack(sys.argv[1], sys.argv[2] + '2')\nexcept ValueError as e:\n    print('have 8 sizes' in str(e))\n"
    )
    command = [sys.executable, script, images, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stdout, done.stderr) == (0, "24\nTrue\n", "")


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-", "2>&- >&- <&-"])
def test_closed_standard_streams_cost_nothing(images: Path, tmp_path: Path, closed: str) -> None:
    command = f"{sys.executable} -m packer {images} {tmp_path}/out --size 32 {closed}"
    assert subprocess.run(command, shell=True, capture_output=True, timeout=500).returncode == 0
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", images) == []


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_replaced_store_that_cannot_be_removed_yet_is_in_nobodys_way(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    """NFS keeps what a reader on this host has open, and the folders that it is in."""
    if not exchanges:
        monkeypatch.setattr("ctypes.CDLL", None)
    remove, out = shutil.rmtree, tmp_path / "out"

    def rmtree(folder: Path, **options: Any) -> None:
        if Path(folder).name != ".packing":
            remove(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    for side in (16, 24, 32):
        pack(images, out, size=side, overwrite=side > 16)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["images", "out"]
        assert MemmapDataset(out, as_tuple=False)[0].pixels.shape == (side, side, 3)
    (replaced,) = (path.parent for path in (out / ".packing").glob("*/manifest.json"))
    assert MemmapDataset(replaced, as_tuple=False)[0].pixels.shape == (24, 24, 3)
    monkeypatch.setattr(shutil, "rmtree", remove)
    pack(images, out, size=32)
    assert not (out / ".packing").exists()


def test_out_may_be_a_link(images: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    pack(images, tmp_path / "empty", size=16)
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    pack(images, tmp_path / "link", size=32, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert MemmapDataset(tmp_path / "empty", as_tuple=False)[0].pixels.shape == (32, 32, 3)
