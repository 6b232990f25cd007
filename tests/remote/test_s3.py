"""A store in S3, as moto's server on loopback has it: pushed, read, replaced; what is refused, and how."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_remote import fsspec, s3, s3_server  # noqa: F401 (fixtures)

from packer import push
from reader import MemmapDataset, MemmapLoader, StoreError


@pytest.fixture
def url(many_blocks: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> str:  # noqa: F811
    push(many_blocks, f"{s3}/deep/out")
    return f"{s3}/deep/out"


def test_a_pushed_store_is_read_as_the_local_one(url: str, many_blocks: Path, tmp_path: Path) -> None:
    remote, local = MemmapDataset(url, cache=tmp_path), MemmapDataset(many_blocks)
    assert torch.equal(remote[100:300][0], local[100:300][0])
    batches = MemmapLoader(remote, 32, shuffle=True, as_tuple=False)
    assert all(torch.equal(b.pixels, local[b.rows][0].movedim(1, -1)) for b in batches)
    assert remote.source(5) == local.source(5)


def test_missing_credentials_are_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(StoreError, match=r"manifest.json cannot be read: .*Look at the URL, the network and the keys"):
        MemmapDataset(url, cache=tmp_path)
