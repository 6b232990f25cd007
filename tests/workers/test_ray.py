"""Packing on a Ray cluster of two nodes on this machine: the bytes of a local pack, whatever happens to nodes and driver."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import pytest
from conftest import PACK, Tune, harm_at, make_tree, store_bytes

from packer import OptionsError, PackError, pack, seal_parts, update
from packer.packing import build
from packer.packing import pack as pipeline
from packer.report import Progress
from packer.workers import ray
from packer.workers import ray_node as nodes
from reader.format.samples import read_json_lines


@pytest.fixture
def photos(tmp_path: Path, tune: Tune) -> Path:
    """150 small JPEGs in 75 blocks, one of them broken."""
    tune(least_block_inputs=2)
    images = make_tree(tmp_path / "images", each=50, size=(60, 40))
    (images / "class1/007.jpg").write_bytes(b"no image")
    return images


def _reference(images: Path, tmp_path: Path) -> dict[str, bytes]:
    pack(images, tmp_path / "reference", size=32, workers=1)
    return store_bytes(tmp_path / "reference")


@pytest.mark.slow
def test_a_cluster_gives_the_bytes_of_one_machine_also_where_a_node_is_killed(
    cluster: Any, node: Any, photos: Path, tmp_path: Path
) -> None:
    reference = _reference(photos, tmp_path)
    report = pack(photos, tmp_path / "out", size=32, engine="ray", address=cluster.address)
    assert (report.rows, report.rejected) == (149, 1)
    assert store_bytes(tmp_path / "out") == reference
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done >= 20 and not killed:
            killed.append(progress.done)
            cluster.remove_node(node, allow_graceful=False)

    pack(photos, tmp_path / "other", size=32, engine="ray", address=cluster.address, progress=kill)
    assert killed
    assert store_bytes(tmp_path / "other") == reference


@pytest.mark.slow
def test_a_part_on_a_cluster_goes_with_one_of_this_machine(
    cluster: Any, photos: Path, tmp_path: Path, tune: Tune
) -> None:
    # five of the largest rows a block, so that blocks follow from the sizes of all images
    tune(block_bytes=5 * 24 * 32 * 3, least_block_inputs=150)
    chosen: dict[str, Any] = {"fit": "none", "max_size": 32}
    pack(photos, tmp_path / "reference", workers=1, **chosen)
    pack(photos, tmp_path / "out", part="2/2", engine="ray", address=cluster.address, **chosen)
    pack(photos, tmp_path / "out", part="1/2", workers=1, **chosen)
    assert seal_parts(tmp_path / "out").rows == 149
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "reference")


@pytest.mark.slow
def test_an_update_on_a_cluster_keeps_rows(cluster: Any, photos: Path, tmp_path: Path) -> None:
    reference = _reference(photos, tmp_path)
    report = update(photos, tmp_path / "reference", engine="ray", address=cluster.address)
    assert (report.rows, report.kept, report.rejected) == (149, 149, 1)
    assert store_bytes(tmp_path / "reference") == reference


@pytest.mark.slow
def test_the_pack_of_a_killed_driver_is_resumed_locally(cluster: Any, photos: Path, tmp_path: Path) -> None:
    reference, out = _reference(photos, tmp_path), tmp_path / "out"
    script = (
        "import os, signal, sys\nfrom packer import pack\n"
        "def kill(progress):\n"
        "    if progress.stage == 'pack' and progress.done >= 40:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "pack(sys.argv[1], sys.argv[2], size=32, engine='ray', address=sys.argv[3], progress=kill)\n"
    )
    command = [sys.executable, "-c", script, str(photos), str(out), cluster.address]
    assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
    report = pack(photos, out, size=32, resume=True, engine="local")
    assert 0 < report.resumed_from < 150
    assert store_bytes(out) == reference


@pytest.mark.slow
def test_a_node_with_other_decoders_or_another_folder_is_refused_by_name(
    cluster: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, here = ray.RayWorkers.__init__, os.uname().nodename
    for index, changed, sentence in (
        (
            1,
            ("/nowhere/out/.packing/lock", b""),
            f"node {here} does not see /nowhere/out. OUT must be on a file system",
        ),
        (2, {"pillow": "0"}, f"node {here} has other decoders"),
    ):

        def init(self: Any, *given: Any, index: int = index, changed: Any = changed) -> None:
            original(self, *given[:index], changed, *given[index + 1 :])

        monkeypatch.setattr(ray.RayWorkers, "__init__", init)
        with pytest.raises(PackError) as caught:
            pack(photos, tmp_path / f"out{index}", size=32, engine="ray", address=cluster.address)
        assert str(caught.value).startswith(f"packing stopped: {sentence}")


def test_an_address_that_nobody_answers_at_is_one_sentence(images: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'pixpack[ray]'")
    command = [*PACK, str(images), str(tmp_path / "out"), "--size", "32", "--engine", "ray", "--address", "127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, (tmp_path / "out").exists()) == (1, False)
    assert done.stderr == (
        "pack: no Ray cluster answers at 127.0.0.1:9: Connection refused. Start one with: ray start --head\n"
    )


@pytest.mark.parametrize("by", ["--address", "RAY_ADDRESS"])
def test_who_accepts_a_connection_and_is_no_ray_is_one_sentence_and_out_is_untouched(
    images: Path, tmp_path: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'pixpack[ray]'")
    tune(ray_answer_seconds=1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(PackError) as caught:
            pack(images, tmp_path / "out", size=32, engine="ray", address=address if by == "--address" else None)
    assert str(caught.value) == (
        f"{address} accepts connections, but no Ray cluster answers there within 1 seconds."
        " Give the address that `ray start --head` prints."
    )
    assert not (tmp_path / "out").exists()


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a Ray cluster of one CPU that asks for the token "secret"."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'pixpack[ray]'")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start = ["start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=1"]
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", *start, "--include-dashboard=false", "--disable-usage-stats"],
        env=os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert head.stdout is not None
    for line in head.stdout:
        if "runtime started" in line:
            break
    yield f"127.0.0.1:{port}"
    head.terminate()
    head.communicate()


@pytest.mark.slow
def test_a_cluster_that_asks_for_a_token_gets_it_by_itself_and_a_wrong_one_is_one_sentence(
    images: Path, guarded: str, tmp_path: Path
) -> None:
    command = [*PACK, str(images), str(tmp_path / "out"), "--size", "32", "--engine", "ray", "--address", guarded]
    done = subprocess.run(command, env=os.environ | {"RAY_AUTH_TOKEN": "wrong"}, capture_output=True, text=True)
    assert (done.returncode, (tmp_path / "out").exists()) == (1, False)
    assert done.stderr == (
        f"pack: the Ray cluster at {guarded} asks for a token, and was not shown the right one. Set RAY_AUTH_MODE=token,"
        " and RAY_AUTH_TOKEN to what `ray get-auth-token` says on its head node.\n"
    )
    done = subprocess.run(command, env=os.environ | {"RAY_AUTH_TOKEN": "secret"}, capture_output=True, text=True)
    assert (done.returncode, (tmp_path / "out/manifest.json").exists()) == (0, True), done.stderr


@pytest.mark.parametrize("address", ["head-node", "head-node:", ":6379", "ray://head-node:10001", "host:70000"])
def test_an_address_that_is_none_is_refused_before_anything_is_started(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    with pytest.raises(
        PackError, match=f"^address is '{address}', expected host:port, as `ray start --head` prints it"
    ):
        pack(images, tmp_path / "out", size=32, engine="ray", address=address)
    assert not (tmp_path / "out").exists()


class _BrokenCluster:
    """A cluster whose nodes cannot import what a worker is made of; what Ray then says, when asked for a result."""

    util = types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def __init__(self) -> None:
        self.asked = 0

    def is_initialized(self) -> bool:
        return True

    def remote(self, **_: Any) -> Any:
        self.asked += 1
        actor = types.SimpleNamespace(work=types.SimpleNamespace(remote=lambda *_: object()))
        made = types.SimpleNamespace(remote=lambda: actor)
        return lambda _: types.SimpleNamespace(options=lambda **_: made)

    def wait(self, waiting: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return waiting, []

    def get(self, done: object) -> None:
        raise RuntimeError("The actor died.\nModuleNotFoundError: No module named 'packer'")

    def kill(self, actor: object) -> None:
        pass


def test_nodes_without_the_package_end_the_pack_with_one_sentence(
    images: Path, tmp_path: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = _BrokenCluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)  # type: ignore[arg-type]
    tune(ray_poll_seconds=0.01)
    with pytest.raises(PackError) as caught:
        pack(images, tmp_path / "out", size=32, workers=2, engine="ray")
    assert str(caught.value) == (
        "packing stopped: a worker cannot start on its node: ModuleNotFoundError: No module named 'packer'."
        " Is pixpack installed there? What is packed is kept: continue with resume=True."
    )
    assert cluster.asked < 20


def test_without_ray_the_package_is_named(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        PackError, match=r"engine='ray' needs ray, which is not installed: pip install 'pixpack\[ray\]'"
    ):
        pack(images, tmp_path / "out", size=32, engine="ray")
    with pytest.raises(OptionsError, match="address is that of a Ray cluster: give it with engine='ray'"):
        pack(images, tmp_path / "out", size=32, address="127.0.0.1:6379")


class _Forked:
    """Workers that connect to this process as those on a node do, without Ray; they inherit what a test does to the decoder."""

    cpus = 2

    def prepare(self, job: Any, count: int) -> None:
        pass

    def start(self, job: Any) -> tuple[Any, Any]:
        with Listener(("127.0.0.1", 0)) as listener:
            child = os.fork()
            if not child:
                connection = Client(listener.address)
                nodes.work(job, connection)
                os._exit(0)
            connection = listener.accept()
        return _Process(child), connection

    def close(self) -> None:
        pass


class _Process:
    exitcode = None

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def join(self, seconds: float) -> None:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="workers inherit their faults by fork")
@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda: time.sleep(600), "decoding it took more than 1.5 seconds (--timeout)"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "its worker ended (the connection to it broke)"),
    ],
)
def test_a_connected_worker_that_stalls_or_dies_is_replaced(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tune: Tune, harm: Any, reason: str
) -> None:
    harm_at(images / "class1/003.jpg", harm, monkeypatch)
    tune(least_block_inputs=2)
    monkeypatch.setattr(build.Build, "_launcher", lambda self: _Forked())
    pack(images, tmp_path / "out", size=32, timeout=1.5, max_rejects=1)
    (reject,) = read_json_lines(tmp_path / "out/rejected.jsonl")
    assert reject == {"path": "class1/003.jpg", "reason": reason}
    monkeypatch.undo()
    tune(least_block_inputs=2)
    (images / "class1/003.jpg").unlink()
    pack(images, tmp_path / "clean", size=32)
    pixels = "_tensordict/pixels.memmap"
    assert (tmp_path / "out" / pixels).read_bytes() == (tmp_path / "clean" / pixels).read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")
def test_a_node_says_that_a_source_went_away_and_none_of_its_images_is_rejected(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tune: Tune
) -> None:
    tune(least_block_inputs=2, source_pause_seconds=(0.01,))
    pack(images, tmp_path / "reference", size=32)
    monkeypatch.setattr(pipeline, "_check_ray", lambda address: None)
    with monkeypatch.context() as patch:
        patch.setattr(build.Build, "_launcher", lambda self: _Forked())
        harm_at(images / "class1/003.jpg", lambda: images.rename(tmp_path / "away"), patch)
        with pytest.raises(
            PackError, match=f"cannot be read: {images} is gone; tried 2 times within 0.01 seconds. What is"
        ):
            # a second worker may start when the images are away already, and say that
            pack(images, tmp_path / "out", size=32, engine="ray", workers=1)
    assert not (tmp_path / "out/manifest.json").exists()
    (tmp_path / "away").rename(images)
    pack(images, tmp_path / "out", size=32, resume=True)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "reference")


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")
def test_a_node_that_does_not_see_the_images_stops_the_pack(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a node with an empty folder where its mount should be: it would find all images missing."""
    original = build.witness
    monkeypatch.setattr(pipeline, "_check_ray", lambda address: None)
    monkeypatch.setattr(build.Build, "_launcher", lambda self: _Lacking(self, original(self._inputs)))
    with pytest.raises(
        PackError, match=r"on node .*, .*not-mounted/class0/000.jpg is not there. Images must be where all nodes see"
    ):
        pack(images, tmp_path / "out", size=32, engine="ray", max_rejects="100%")
    assert not (tmp_path / "out/manifest.json").exists()


class _Lacking(_Forked):
    """Workers to which the witness of a pack is missing."""

    def __init__(self, build: Any, witness: str) -> None:
        self._witness = witness

    def start(self, job: Any) -> tuple[Any, Any]:
        import dataclasses

        assert os.path.exists(self._witness)
        return super().start(dataclasses.replace(job, witness=self._witness.replace("/images/", "/not-mounted/")))


class _Messages:
    """The other end of a connection, as a queue of what was said."""

    def __init__(self) -> None:
        self.sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.send = self.sent.put


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="holds up fdatasync")
def test_a_block_is_reported_as_written_once_it_is_on_disk_and_its_worker_resumes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a shared file system rows are in their machine's memory until it has synced them."""
    (tmp_path / "pixels").touch()
    may_end, started, synced = threading.Event(), threading.Event(), []

    def sync(descriptor: int) -> None:
        started.set()
        assert may_end.wait(60)
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fdatasync", sync)
    connection = _Messages()
    end = nodes._SyncingEnd(connection, [str(tmp_path / "pixels")])  # type: ignore[arg-type]
    end.send(("written", 0, {}))
    assert started.wait(60)
    for message in (("mark", 7, 1, 0, 0), ("written", 1, {}), ("written", 2, {})):
        end.send(message)
    assert connection.sent.get(timeout=60) == ("mark", 7, 1, 0, 0)
    assert connection.sent.empty()
    may_end.set()
    assert [connection.sent.get(timeout=60)[1] for _ in range(3)] == [0, 1, 2]
    assert synced == [(tmp_path / "pixels").stat().st_ino] * 2


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="spoils fdatasync")
def test_an_error_of_the_sync_ends_the_pack_and_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "pixels").touch()
    monkeypatch.setattr(os, "fdatasync", fails)
    connection = _Messages()
    nodes._SyncingEnd(connection, [str(tmp_path / "pixels")]).send(("written", 0, {}))  # type: ignore[arg-type]
    kind, error = connection.sent.get(timeout=60)
    assert (kind, error.errno, error.filename) == ("failed", errno.EIO, str(tmp_path / "pixels"))


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")
def test_rows_of_their_own_sizes_are_the_same_bytes_from_connected_workers(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tune: Tune
) -> None:
    (images / "class1/003.jpg").write_bytes(b"no image")
    tune(least_block_inputs=2)
    options: dict[str, Any] = {"fit": "none", "max_size": 50, "max_rejects": 1, "workers": 2}
    pack(images, tmp_path / "reference", **options)
    monkeypatch.setattr(pipeline, "_check_ray", lambda address: None)
    monkeypatch.setattr(build.Build, "_launcher", lambda self: _Forked())
    pack(images, tmp_path / "out", engine="ray", **options)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "reference")


def test_the_worker_that_answers_is_the_one_that_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two that start connects first: its actor, not the other's, is that of its connection."""
    workers = object.__new__(ray.RayWorkers)
    ended: list[object] = []
    library: Any = types.SimpleNamespace(is_initialized=lambda: True, kill=ended.append)
    connection = types.SimpleNamespace(recv=lambda: ("2", "node", True, {}))
    workers.__dict__.update(_ray=library, _decoders={}, _starting=[("first", "1", None), ("second", "2", None)])
    monkeypatch.setattr(workers, "_accept", lambda job: connection)
    process, _ = workers.start(None)  # type: ignore[arg-type]
    process.kill()
    assert ended == ["second"]
    assert workers.__dict__["_starting"] == [("first", "1", None)]
