"""A store in S3, as moto's server on loopback has it: pushed, read, replaced; what is refused, and how."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from conftest import make_tree, store_bytes
from test_remote import fsspec, s3, s3_server  # noqa: F401 (fixtures)

from packer import PackError, pack, pull, push
from packer.cli.app import run
from reader import MemmapDataset, MemmapLoader, StoreError
from reader.format.manifest import MANIFEST


@pytest.fixture
def url(many_blocks: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> str:  # noqa: F811
    monkeypatch.setenv("PIXPACK_REMOTE_SECONDS", "3")
    push(many_blocks, f"{s3}/deep/out")
    return f"{s3}/deep/out"


def test_a_pushed_store_is_read_as_the_local_one(url: str, many_blocks: Path, tmp_path: Path) -> None:
    remote, local = MemmapDataset(url, cache=tmp_path), MemmapDataset(many_blocks)
    assert torch.equal(remote[100:300][0], local[100:300][0])
    batches = MemmapLoader(remote, 32, shuffle=True, as_tuple=False)
    assert all(torch.equal(b.pixels, local[b.rows][0].movedim(1, -1)) for b in batches)
    assert remote.source(5) == local.source(5)


def test_a_store_that_was_replaced_by_a_push_is_another(url: str, many_blocks: Path, tmp_path: Path) -> None:
    before = MemmapDataset(url, cache=tmp_path / "cache")
    make_tree(tmp_path / "images", each=3)
    pack(tmp_path / "images", tmp_path / "out", size=16)
    push(tmp_path / "out", url, overwrite=True)
    with pytest.raises(StoreError, match=r"was replaced by another store while it was read .*Open it again"):
        before[5]
    after = MemmapDataset(url, cache=tmp_path / "cache")
    assert torch.equal(after[:][0], MemmapDataset(tmp_path / "out")[:][0])
    # and once more, now with files of two generations
    push(many_blocks, url, overwrite=True)
    assert torch.equal(MemmapDataset(url, cache=tmp_path / "cache")[:][0], MemmapDataset(many_blocks)[:][0])


@pytest.mark.parametrize(
    ("missing_url", "says"),
    [
        (
            "s3://pictures/nothing",
            "s3://pictures/nothing is not a store that can be read: .*/manifest.json does not exist",
        ),
        (
            "s3://no-such-bucket/out",
            "s3://no-such-bucket/out is not a store that can be read: .*/manifest.json does not exist",
        ),
    ],
)
def test_what_is_not_there_is_one_sentence(url: str, tmp_path: Path, missing_url: str, says: str) -> None:
    with pytest.raises(StoreError, match=says) as caught:
        MemmapDataset(missing_url, cache=tmp_path)
    assert "\n" not in str(caught.value)


def test_another_programs_manifest_is_no_store(url: str, tmp_path: Path) -> None:
    other = url.replace("/deep/out", "/other")
    fsspec.filesystem("s3").pipe_file(f"{other}/{MANIFEST}", b'{"hello": 1}')
    with pytest.raises(
        StoreError, match=r"/other is not a store: its manifest.json is another program's. Look at the URL"
    ):
        MemmapDataset(other, cache=tmp_path)


@pytest.mark.parametrize(
    ("missing_url", "says"),
    [
        ("s3://pictures/nothing", "s3://pictures/nothing holds no store: there is no manifest.json. Expected one that"),
        ("s3://no-such-bucket/out", "s3://no-such-bucket/out holds no store: The specified bucket does not exist. Exp"),
    ],
)
def test_a_pull_of_nothing_is_one_sentence(url: str, tmp_path: Path, missing_url: str, says: str) -> None:
    with pytest.raises(PackError, match=says) as caught:
        pull(missing_url, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_missing_credentials_are_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(
        StoreError, match=r"manifest.json cannot be read: there are no credentials. Set AWS_ACCESS_KEY_ID"
    ):
        MemmapDataset(url, cache=tmp_path)


def test_no_file_of_a_cache_holds_credentials(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-mine")
    remote = MemmapDataset(url, cache=tmp_path)
    assert remote.store is not None
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == MANIFEST for path in files)
    assert not [path for path in files if b"a-secret-of-mine" in path.read_bytes()]


def test_a_complete_cache_copied_elsewhere_is_a_store(url: str, many_blocks: Path, tmp_path: Path) -> None:
    remote = MemmapDataset(url, cache=tmp_path / "cache")
    assert remote.store is not None
    shutil.copytree(remote.path, tmp_path / "copy", ignore=shutil.ignore_patterns(".remote"))
    assert torch.equal(MemmapDataset(tmp_path / "copy")[:][0], MemmapDataset(many_blocks)[:][0])


def test_a_store_that_is_packed_straight_to_s3_is_read_there(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tree(tmp_path / "images", each=3)
    pack(tmp_path / "images", tmp_path / "out", size=16, workers=1)
    missing_url = url.replace("/deep/out", "/packed/out")
    assert run([str(tmp_path / "images"), missing_url, "--size", "16", "--quiet", "--workers", "1"]) == 0
    assert run(["verify", missing_url]) == 0
    assert f"{missing_url} is intact: 9 rows, " in capsys.readouterr().out
    remote, local = MemmapDataset(missing_url, cache=tmp_path / "cache"), MemmapDataset(tmp_path / "out")
    assert torch.equal(remote[2:7][0], local[2:7][0])
    assert sorted(torch.cat([b.rows for b in MemmapLoader(remote, 4, shuffle=True, as_tuple=False)]).tolist()) == [
        *range(9)
    ]
    pull(missing_url, tmp_path / "pulled")
    assert store_bytes(tmp_path / "pulled") == store_bytes(tmp_path / "out")
