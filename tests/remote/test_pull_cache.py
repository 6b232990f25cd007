"""`pack pull URL --cache FOLDER`: a cache that holds all of a store, whatever interrupts it and whoever reads meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import Tune
from range_server import RangeServer, serving

from packer import OptionsError, pull
from packer.cli.app import run
from packer.cli.output import EXIT_DISK_FULL, EXIT_FAILED, EXIT_USAGE
from reader import MemmapDataset
from reader.format.manifest import PIXELS
from reader.remote import opening
from reader.remote.presence import RemoteStore

PULL = (sys.executable, "-m", "packer", "pull")


def _size(store: Path) -> int:
    return sum(entry.size_bytes for entry in MemmapDataset(store).manifest.files.values())


def test_a_filled_cache_opens_without_a_network(
    many_blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    with serving(many_blocks) as server:
        assert run(["pull", server.url, "--cache", str(cache), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert set(server.bytes_of(PIXELS).values()) == {1}
        assert (found["store_bytes"], found["copied_bytes"], found["kept_bytes"]) == (_size(many_blocks),) * 2 + (0,)
    local = MemmapDataset(many_blocks)
    monkeypatch.setenv("PIXPACK_REMOTE_SECONDS", "1")
    remote = MemmapDataset(server.url, cache=cache)
    assert remote.remote is not None
    assert remote.remote.is_complete
    assert torch.equal(remote.store.pixels, local.store.pixels)
    assert remote.source(7) == local.source(7)
    assert torch.equal(MemmapDataset(found["out"])[:][0], local[:][0])
    assert run(["verify", found["out"]]) == 0


def test_a_filled_cache_is_opened_long_before_requests_are_given_up(
    many_blocks: Path, tmp_path: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(many_blocks) as server:
        root = Path(pull(server.url, cache=tmp_path / "cache").out)
    monkeypatch.setenv("PIXPACK_REMOTE_SECONDS", "60")
    tune(cached_store_seconds=0.3)
    started = time.monotonic()
    assert opening.prepared(server.url, tmp_path / "cache", None)[0] == root
    assert time.monotonic() - started < 30


def test_only_what_is_missing_is_fetched(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path)
    _ = remote[100:200]
    reports = [pull(range_server.url, cache=tmp_path) for _ in range(2)]
    assert set(range_server.bytes_of(PIXELS).values()) == {1}
    assert 0 < reports[0].copied_bytes < reports[0].store_bytes == _size(many_blocks)
    assert reports[1].copied_bytes == 0
    # the dataset that was open before reads it as the store that it is now
    assert remote[0:5][0].data_ptr() == remote.store.pixels.data_ptr()


def test_progress_ends_with_all_bytes(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    seen = list[tuple[int, int]]()
    pull(range_server.url, cache=tmp_path, progress=lambda done, total: seen.append((done, total)))
    size = _size(many_blocks)
    assert seen[-1] == (size, size)
    assert sorted(seen) == seen
    assert len(seen) > 2


def test_a_killed_pull_is_resumed_where_it_stopped(range_server: RangeServer, tmp_path: Path) -> None:
    # of what begins behind 12 blocks no answer comes
    range_server.is_ready = lambda name, start, stop: name != PIXELS or start < 12 * 6144
    with subprocess.Popen([*PULL, range_server.url, "--cache", str(tmp_path), "--quiet"], text=True) as process:
        table = None
        while table is None or sum(map(table.has, range(50))) < 12:
            assert process.poll() is None
            found = [*tmp_path.glob("*/.remote/manifest.json")]
            table = RemoteStore(range_server.url, tmp_path).folder.table if found and table is None else table
        process.send_signal(signal.SIGKILL)
    with range_server.lock:
        range_server.asked.clear()
        range_server.is_ready = lambda name, start, stop: True
        range_server.lock.notify_all()
    kept = sum(map(table.has, range(50)))
    assert pull(range_server.url, cache=tmp_path).kept_bytes == kept * 6144
    sent = range_server.bytes_of(PIXELS)
    assert len(sent) == (50 - kept) * 6144 // 64
    assert set(sent.values()) == {1}


def test_a_pull_shares_the_work_with_another(range_server: RangeServer, tmp_path: Path) -> None:
    range_server.delay_seconds = 0.02
    words = [*PULL, range_server.url, "--cache", str(tmp_path), "--json"]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    reports = [json.loads(process.communicate()[0]) for process in running]
    assert set(range_server.bytes_of(PIXELS).values()) == {1}
    pixels = 50 * 6144
    others = reports[0]["store_bytes"] - pixels
    assert sum(report["copied_bytes"] - others for report in reports if report["copied_bytes"]) == pixels


def test_splits_are_filled_one_by_one(many_blocks: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(many_blocks, tmp_path / "url" / split)
    url, cache = f"file://{tmp_path}/url", tmp_path / "cache"
    assert pull(url, cache=cache).files > 8
    shutil.rmtree(tmp_path / "url/train/_tensordict")
    data = MemmapDataset(url, split="train", cache=cache)
    assert torch.equal(data[:][0], MemmapDataset(many_blocks)[:][0])


def test_a_full_disk_is_one_sentence(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pull", range_server.url, "--cache", str(tmp_path), "--quiet"]
    RemoteStore(range_server.url, tmp_path).close()
    with monkeypatch.context() as patch:
        patch.setattr("packer.store.disk_space.shutil.disk_usage", lambda path: SimpleNamespace(free=100_000))
        assert run(words) == EXIT_DISK_FULL
    message = capsys.readouterr().err
    assert f"pack: cache {tmp_path}" in message
    assert (
        f"more for all of {range_server.url}, 100.0 kB are free. Free some space and give the same command" in message
    )
    assert len(message.splitlines()) == 1
    assert not [name for name, _, _ in range_server.asked if name == PIXELS]
    assert run(words) == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            ["URL"],
            EXIT_USAGE,
            "pull copies to OUT, a folder of its own, or to the folder of --cache. Give one of them.",
        ),
        (["URL", "OUT", "--cache", "OUT"], EXIT_USAGE, "or to the folder of --cache. Give one of them."),
        (["OUT", "--cache", "OUT"], EXIT_USAGE, "cannot be read from. Expected a URL with s3, "),
        (["URL/none", "--cache", "OUT"], EXIT_FAILED, "/none is not a store that can be read: "),
        (["URL", "--cache", "STORE"], EXIT_FAILED, "is a store itself. Choose another folder for caches."),
    ],
)
def test_what_cannot_be_filled_is_one_sentence(
    range_server: RangeServer,
    many_blocks: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    says: str,
) -> None:
    named = {"URL": range_server.url, "OUT": str(tmp_path / "out"), "STORE": str(many_blocks)}
    given = [word.replace("URL", named["URL"]) if "URL" in word else named.get(word, word) for word in words]
    assert run(["pull", *given]) == code
    message = capsys.readouterr().err
    assert says in message
    assert len(message.splitlines()) == 1
    assert os.listdir(tmp_path) == [] or words[0] == "URL/none"


def test_python_is_refused_as_the_command_is(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="Give one of them"):
        pull("s3://bucket/out")
