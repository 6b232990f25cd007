"""Images in object storage: the store of a local folder, byte for byte; requests in flight.

Against moto's S3 server on loopback where moto and s3fs are installed, else in memory alone.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
from conftest import Tune, content_bytes, interrupted, photo, unparted_bytes
from redecoding import rows_of_other_sources

from packer import ScanError, pack, seal_parts
from packer.errors import SourceError, UnreadableError
from packer.inputs.remote import list_objects
from packer.operations.verify import verify
from packer.sample_lines import read_json_lines
from packer.sources import object_storage
from packer.sources import remote as remotes
from packer.sources.remote import SOURCE_OBJECTS_AHEAD, SOURCE_REQUESTS

ROOT = Path(__file__).resolve().parents[2]
# Waited for at most; under load what is waited for takes seconds.
_LONGEST_SECONDS = 60.0
fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'pixpack[remote]'")


@pytest.fixture(autouse=True)
def _memory(tune: Tune) -> Iterator[None]:
    """Objects in this process's memory, which forked workers inherit; blocks of 2 inputs, of which a worker has two."""
    tune(least_block_inputs=2, source_objects_ahead=4)
    yield
    fsspec.filesystem("memory").store.clear()


def _upload(folder: Path, url: str) -> str:
    files, root = fsspec.core.url_to_fs(url)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        files.pipe_file(f"{root}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return url


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server on loopback."""
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'pixpack[remote]'")
    server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[s3]' flask flask-cors")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    yield "http://{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket, s3://pictures."""
    _set_aws(monkeypatch, s3_server)
    # workers are forked no more: requests are made by a thread
    monkeypatch.setattr("packer.workers.processes.MOST_FORKING_THREADS", 1)
    files = fsspec.filesystem("s3")
    files.mkdir("pictures")
    yield "s3://pictures"
    files.rm("pictures", recursive=True)
    _forget()


def _set_aws(monkeypatch: pytest.MonkeyPatch, address: str, *, credentials: bool = True) -> None:
    _forget()
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    settings = {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    settings |= {"AWS_SHARED_CREDENTIALS_FILE": os.devnull, "AWS_CONFIG_FILE": os.devnull, "AWS_MAX_ATTEMPTS": "1"}
    if credentials:
        settings |= {"AWS_ACCESS_KEY_ID": "some", "AWS_SECRET_ACCESS_KEY": "thing"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def _forget() -> None:
    """Drop connections that were made with other settings."""
    object_storage.open_url.cache_clear()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.mark.slow
def test_a_folder_in_s3_gives_the_bytes_of_the_local_one(images: Path, tmp_path: Path, s3: str) -> None:
    (images / "class1/broken.jpg").write_bytes(b"no image")
    (images / "class1/empty.jpg").write_bytes(b"")
    (images / "class1/notes.txt").write_bytes(b"not an image")
    url = _upload(images, f"{s3}/set")
    pack(images, tmp_path / "full", size=32)
    report = pack(url, tmp_path / "out", size=32, workers=2)
    assert (report.rows, report.rejected, report.ignored) == (24, 2, 1)
    assert content_bytes(tmp_path / "out") == content_bytes(tmp_path / "full")
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", url) == []


def test_a_size_is_found_in_the_headers_and_parts_are_sealed(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for n in range(6):
        photo(40, 30, n).save(tmp_path / f"images/{n}.jpg")
    url = _upload(tmp_path / "images", "memory://flat")
    pack(tmp_path / "images", tmp_path / "full")
    pack(url, tmp_path / "out")
    assert content_bytes(tmp_path / "out") == content_bytes(tmp_path / "full")
    for part in ("2/2", "1/2"):
        pack(url, tmp_path / "parts", size="30x40", part=part)
    seal_parts(tmp_path / "parts")
    assert unparted_bytes(tmp_path / "parts") == unparted_bytes(tmp_path / "out")


def test_an_object_that_was_replaced_is_noticed_by_a_resume(images: Path, tmp_path: Path) -> None:
    url = _upload(images, "memory://set")

    interrupted(pack, url, tmp_path / "out", size=32, workers=1, inputs=12)
    data = (images / "class2/000.jpg").read_bytes()
    (images / "class0/002.jpg").write_bytes(data)
    fsspec.filesystem("memory").pipe_file("/set/class0/002.jpg", data)
    report = pack(url, tmp_path / "out", size=32)
    assert (report.changed_paths, report.resumed_from) == (["class0/002.jpg"], 2)
    pack(images, tmp_path / "full", size=32)
    assert content_bytes(tmp_path / "out") == content_bytes(tmp_path / "full")


def test_an_object_that_cannot_be_read_is_rejected_and_the_network_gets_a_second_try(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = _upload(images, "memory://set")
    original, failed = type(fsspec.filesystem("memory")).cat_file, set()

    def cat_file(self: Any, path: str, **bounds: Any) -> Any:
        if path.endswith("class0/001.jpg"):
            raise PermissionError("Forbidden.")
        if path.endswith("class1/001.jpg"):
            raise FileNotFoundError(path)
        if path not in failed:
            failed.add(path)
            raise ConnectionResetError("the peer is gone")
        return original(self, path, **bounds)

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", cat_file)
    pack(url, tmp_path / "out", size=32, max_rejects=2)
    reasons = [line["reason"] for line in read_json_lines(tmp_path / "out/rejected.jsonl")]
    denied = "it cannot be read: access is denied (Forbidden). Look at the credentials and the bucket's rights"
    assert reasons == [denied, "there is no such file"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError("ExpiredToken"), r"memory://set cannot be read: access is denied \(ExpiredToken\)"),
        (ConnectionResetError("the peer is gone"), r"memory://set/class\d/\d+.jpg cannot be read: the peer is gone"),
        (FileNotFoundError("NoSuchBucket"), "memory://set is gone, or empty"),
    ],
)
def test_storage_that_refuses_or_vanishes_stops_the_pack_unsealed_and_it_continues(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    url = _upload(images, "memory://set")
    pack(url, tmp_path / "full", size=32)
    # of the worker, which is forked, too
    kind, expired = type(fsspec.filesystem("memory")), multiprocessing.get_context("fork").Event()
    with monkeypatch.context() as patch:
        for name in ("cat_file", "info"):
            patch.setattr(kind, name, _expiring(getattr(kind, name), error, expired))
        with pytest.raises(SourceError, match=rf"{text}.*\. Packed images are kept"):
            pack(url, tmp_path / "out", size=32, workers=1, max_rejects="100%", progress=_set_at(4, expired))
    assert not (tmp_path / "out/manifest.json").exists()
    pack(url, tmp_path / "out", size=32)
    assert content_bytes(tmp_path / "out") == content_bytes(tmp_path / "full")


def _expiring(call: Callable[..., Any], error: Exception, expired: Event) -> Callable[..., Any]:
    """Let calls fail once that is set; one for the last image waits for it, as all others may be answered before."""

    def called(files: Any, path: str, *positional: Any, **named: Any) -> Any:
        if path.endswith("class2/007.jpg"):
            expired.wait(_LONGEST_SECONDS)
        if expired.is_set():
            raise error
        return call(files, path, *positional, **named)

    return called


def _set_at(done: int, event: Event) -> Callable[[Any], None]:
    return lambda progress: event.set() if progress.stage == "pack" and progress.done >= done else None


def test_requests_are_in_flight_while_others_wait_and_never_too_many(
    tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer comes before so many are asked for: one at a time would wait forever."""
    requests, ahead = SOURCE_REQUESTS, SOURCE_OBJECTS_AHEAD
    tune(source_objects_ahead=ahead)
    asked, full, most = set(), threading.Barrier(requests), 0

    def fetch(source: remotes.RemoteSource, most_bytes: int | None = None) -> bytes:
        nonlocal most
        asked.add(source.path)
        full.wait(500)
        most = max(most, len(asked) - taken)
        return source.path.encode()

    taken = 0
    monkeypatch.setattr(remotes.RemoteSource, "fetch", fetch)
    fetcher = remotes.ObjectPrefetch("memory://x")
    count = 10 * requests
    for start in range(0, count, 8):
        fetcher.expect((n, str(n)) for n in range(start, start + 8))
    for taken in range(count):
        assert fetcher.source(taken, str(taken)).read()[0] == str(taken).encode()
    assert len(asked) == count
    assert requests <= most <= ahead + 1


def test_latency_is_hidden(images: Path, tmp_path: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 answers none but the last comes before the next one is asked for, over blocks of four."""
    tune(least_block_inputs=4, source_objects_ahead=4)
    url = _upload(images, "memory://set")
    original = type(fsspec.filesystem("memory")).cat_file
    asked = [threading.Event() for _ in range(24)]
    numbers = itertools.count()

    def slow(self: Any, path: str, **bounds: Any) -> Any:
        number = next(numbers)
        asked[number].set()
        assert asked[min(number + 1, 23)].wait(500)
        return original(self, path, **bounds)

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", slow)
    assert pack(url, tmp_path / "out", size=32, workers=1).rows == 24


Url = Callable[[pytest.MonkeyPatch, str], str]


def _no_credentials(monkeypatch: pytest.MonkeyPatch, address: str) -> str:
    _set_aws(monkeypatch, address, credentials=False)
    return "s3://pictures/set"


def _nobody_answers(monkeypatch: pytest.MonkeyPatch, address: str) -> str:
    _set_aws(monkeypatch, "http://127.0.0.1:9")
    return "s3://pictures/set"


BAD_URLS: list[tuple[Url, str]] = [
    (lambda m, a: "s3://nowhere/set", "s3://nowhere/set cannot be listed: The specified bucket does not exist."),
    (
        _no_credentials,
        "s3://pictures/set cannot be listed: there are no credentials (Unable to locate credentials). Set",
    ),
    (_nobody_answers, "s3://pictures/set cannot be listed: Could not connect to the endpoint URL"),
]


@pytest.mark.parametrize(("make", "sentence"), BAD_URLS)
def test_what_is_wrong_with_s3_is_one_sentence(
    s3: str, s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Url, sentence: str
) -> None:
    with monkeypatch.context() as patch:
        url = make(patch, s3_server)
        with pytest.raises((ScanError, SourceError)) as caught:
            pack(url, tmp_path / "out", size=32)
    _forget()
    assert str(caught.value).startswith(sentence)
    # a wrong URL is wrong usage; what storage refuses or does not answer may be read later
    is_away = isinstance(caught.value, SourceError)
    assert is_away == str(caught.value).endswith(". Give the same command again when it can be read.")
    assert is_away == (make in (_no_credentials, _nobody_answers))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://nowhere.invalid/b", "ftp://nowhere.invalid/b cannot be opened: "),
        ("nothing://a/b", "nothing://a/b cannot be opened: Protocol not known: nothing. Expected for example s3://"),
        ("memory://one/a.jpg", "memory://one/a.jpg is one object. Expected a folder of images"),
        ("memory://none", "memory://none holds no image (0 files seen)."),
    ],
)
def test_a_url_that_cannot_be_packed_is_a_usage_error(tmp_path: Path, url: str, sentence: str) -> None:
    fsspec.filesystem("memory").pipe_file("/one/a.jpg", b"x")
    with pytest.raises(ScanError) as caught:
        pack(url, tmp_path / "out", size=32)
    assert str(caught.value).startswith(sentence)


def test_a_web_server_that_does_not_answer_is_no_empty_folder() -> None:
    pytest.importorskip("aiohttp")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/photos"
        with pytest.raises(UnreadableError, match=r"photos cannot be listed: .*127"):
            list_objects(url)


def test_a_file_system_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ScanError, match=r"cannot be opened: .*fsspec.* For s3:// install 'pixpack\[remote\]'"):
        pack("memory://x/y", tmp_path / "out", size=32)
