"""Workers that crash, run out of memory or stall: the image is tried once more, and the others are packed."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Tune, make_tree, store_bytes

from packer import pack
from packer.errors import DecodeError
from packer.operations.verify import verify
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.sample_lines import read_json_lines
from packer.workers.block_worker import BlockWorker

PIXELS = "_tensordict/pixels.memmap"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers inherit their faults by fork")


@pytest.fixture(autouse=True)
def _forked_small_blocks(tune: Tune) -> None:
    """Blocks of 2 inputs, and workers that inherit what a test does to the decoder."""
    tune(least_block_inputs=2)


class Faults:
    """Replaces the decoder in workers: files can be made to do harm, and each attempt is logged as (time, pid, path)."""

    def __init__(self, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._log = log
        self._harm: dict[bytes, tuple[Path, Callable[[], None]]] = {}
        original = Decoder.row

        def row(decoder: Decoder, data: bytes, *memory: Any) -> Any:
            path, harm = self._harm.get(data, (Path("good"), lambda: None))
            with open(log, "a") as file:
                file.write(f"{time.monotonic()} {os.getpid()} {path.name}\n")
            harm()
            return original(decoder, data, *memory)

        monkeypatch.setattr(Decoder, "row", row)

    def make(self, path: Path, harm: Callable[[], None]) -> None:
        self._harm[path.read_bytes()] = path, harm

    def attempts(self) -> list[tuple[float, int, str]]:
        lines = [line.split() for line in self._log.read_text().splitlines()]
        return [(float(seconds), int(pid), name) for seconds, pid, name in lines]


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(tmp_path / "log", monkeypatch)


def segfault() -> None:
    import faulthandler

    faulthandler.disable()
    ctypes.string_at(0)


def out_of_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
    bytearray(1 << 30)


def stall() -> None:
    time.sleep(600)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


REASONS = [
    (segfault, "its worker ended (killed by SIGSEGV)"),
    (out_of_memory, "its worker ended (there was not enough memory for it)"),
    (killed, "its worker ended (killed by SIGKILL, as the system does when memory runs out)"),
    (stall, "decoding it took more than 0.5 seconds"),
]


@pytest.mark.parametrize(("harm", "reason"), REASONS, ids=lambda value: getattr(value, "__name__", ""))
def test_what_ends_a_worker_is_tried_once_more_and_rejected(
    images: Path,
    tmp_path: Path,
    faults: Faults,
    capfd: pytest.CaptureFixture[str],
    tune: Tune,
    harm: Callable[[], None],
    reason: str,
) -> None:
    if harm is stall:
        tune(worker_seconds=0.5)
    deadly = images / "class1/003.jpg"
    faults.make(deadly, harm)
    pack(images, tmp_path / "out", size=32, workers=2, max_rejects=1)
    _only_reject_is(tmp_path, images, deadly, reason)
    first, second = [attempt for attempt in faults.attempts() if attempt[2] == deadly.name]
    assert second[0] - first[0] < 5
    assert second[1] != first[1]
    assert capfd.readouterr().err == ""


def test_what_pillow_logs_is_not_written_to_stderr(tmp_path: Path) -> None:
    """A TIFF of which it says "More samples per pixel than can be decoded", first as headers are read, then as it is decoded."""
    make_tree(tmp_path / "images", classes=1, each=2)
    entries = [(256, 4), (257, 4), (277, 300)]
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    tiff = b"II*\0" + struct.pack("<IH", 8, len(entries)) + directory + bytes(4)
    (tmp_path / "images/odd.tif").write_bytes(tiff)
    with pytest.raises(DecodeError):
        Decoder(Geometry(8, 8)).row(tiff)
    command = [sys.executable, "-m", "packer", str(tmp_path / "images"), str(tmp_path / "out")]
    command += ["--fit", "none", "--quiet", "--max-rejects", "50%"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("delivered_signals")
def test_a_signal_to_all_while_headers_are_read_is_handled_by_the_command_alone(images: Path, tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom packer.cli.app import run\nfrom packer.pixels.decode import Decoder\n"
        # not sys.stdin, which in a worker of multiprocessing is os.devnull
        "Decoder.upright_size = lambda *_: print(flush=True) or os.read(0, 1)\n"
        f"sys.exit(run([{str(images)!r}, {str(tmp_path / 'out')!r}]))\n"
    )
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", script], **pipes, text=True, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    # what is being read does not answer, nor is it waited for
    try:
        assert process.wait(500) == 130
    finally:
        _, errors = process.communicate(timeout=500)
    assert "Traceback" not in errors
    assert errors.strip() == f"pack: interrupted. To continue: pack {images} {tmp_path / 'out'}"


@pytest.mark.usefixtures("delivered_signals")
def test_a_signal_while_those_that_read_headers_end_leaves_none(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutdown = ProcessPoolExecutor.shutdown

    def interrupted(pool: ProcessPoolExecutor, wait: bool = True, **options: Any) -> None:
        if wait:
            signal.raise_signal(signal.SIGINT)
        shutdown(pool, wait, **options)

    monkeypatch.setattr(ProcessPoolExecutor, "shutdown", interrupted)
    children = set(multiprocessing.active_children())
    with pytest.raises(KeyboardInterrupt):
        pack(images, tmp_path / "out")
    assert set(multiprocessing.active_children()) <= children


def _only_reject_is(tmp_path: Path, images: Path, path: Path, reason: str) -> None:
    """Check that one input was rejected and that the rows are those of a folder without it."""
    (reject,) = read_json_lines(tmp_path / "out/rejected.jsonl")
    assert reject == {"path": str(path.relative_to(images)), "reason": reason}
    path.unlink()
    pack(images, tmp_path / "clean", size=32)
    assert (tmp_path / "out" / PIXELS).read_bytes() == (tmp_path / "clean" / PIXELS).read_bytes()
    assert verify(tmp_path / "out").problems == []


@pytest.mark.parametrize("method", ["decode", "write"])
def test_a_worker_that_stops_between_two_images_costs_nothing_but_time(
    images: Path, tmp_path: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """No image is in flight before a block is begun and while one is written."""
    pack(images, tmp_path / "full", size=32)
    tune(worker_seconds=0.5)
    original = getattr(BlockWorker, method)

    def stopping(worker: BlockWorker, *content: Any) -> Any:
        with contextlib.suppress(FileExistsError):
            (tmp_path / "stopped").mkdir()
            os.kill(os.getpid(), signal.SIGSTOP)
        return original(worker, *content)

    monkeypatch.setattr(BlockWorker, method, stopping)
    deadline = time.monotonic() + 500

    def progress(_: Any) -> None:
        assert time.monotonic() < deadline, "the stopped worker was not noticed"

    report = pack(images, tmp_path / "out", size=32, workers=2, progress=progress)
    assert report.rejected == 0
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "full")


_STOPPED = """
import os, signal, sys, time
from pathlib import Path
sys.argv, (who, images, out) = sys.argv[:1], sys.argv[1:]
log = Path(out + ".log")
parent = os.getpid()

def seen(name):
    with open(log, "a") as file:
        print(name, file=file)
    if name.endswith("005.jpg"):
        Path(out + ".pid").write_text(str(os.getpid()))
        if who == "the command":
            os.kill(parent, signal.SIGSTOP)
        else:
            os.killpg(0, signal.SIGSTOP)

from packer import pack
from packer.sources.local import LocalSource
original = LocalSource.read
LocalSource.read = lambda self, **more: seen(self.path) or original(self, **more)
pack(images, out, size=32, workers=2)
"""


@pytest.mark.parametrize("who", ["the command", "all"])
def test_what_is_stopped_for_longer_than_the_timeout_costs_no_image_and_no_decoding(
    tmp_path: Path, tune: Tune, who: str
) -> None:
    tune(worker_seconds=1.5)
    images, out = make_tree(tmp_path / "images", classes=1), tmp_path / "out"
    arguments = [sys.executable, "-c", _STOPPED, who, str(images), str(out)]
    process = subprocess.Popen(arguments, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 500
        while not _read(out.with_suffix(".pid")) or not _is_stopped(process.pid):
            assert time.monotonic() < deadline, "nothing was stopped"
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        time.sleep(4)  # what is tested: more than twice worker_seconds
        os.killpg(process.pid, signal.SIGCONT)
        _, errors = process.communicate(timeout=500)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, errors) == (0, "")
    assert sorted(map(os.path.basename, out.with_suffix(".log").read_text().split())) == [
        f"{n:03}.jpg" for n in range(8)
    ]
    assert (out / "rejected.jsonl").read_text() == ""


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _is_stopped(pid: int | str) -> bool:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] == b"T"


def test_no_worker_outlives_a_killed_pack_also_not_in_an_image_that_never_ends(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", each=2)
    script = (
        "import os, sys, time\nfrom packer import pack\nfrom packer.pixels.decode import Decoder\n"
        "def row(self, data, memory):\n    print(os.getpid(), flush=True)\n    time.sleep(600)\n"
        "Decoder.row = row\npack(sys.argv[1], sys.argv[2], size=32, workers=1)\n"
    )
    command = [sys.executable, "-c", script, str(images), str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    process.kill()
    try:
        # ends when the last process that holds the pipe has ended
        process.communicate(timeout=500)
    except subprocess.TimeoutExpired:
        os.kill(worker, signal.SIGKILL)
        process.communicate()
        raise AssertionError("the worker outlived its pack") from None
