"""A dataset of a store at a URL has the face of a local one, and fetches what it needs alone."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Tune, make_tree
from range_server import RangeServer, serving
from rights import modes_hold
from torch.utils.data import DataLoader

from packer import pack
from packer.operations.verify import verify
from reader import MemmapDataset, MemmapLoader, StoreError
from reader.format.at_url import encode_pointer, generation_of
from reader.format.blocks import read_blocks
from reader.format.manifest import MANIFEST, PIXELS, SAMPLES
from reader.format.row_kinds import PAGE_BYTES
from reader.remote.folder import INSIDE


@pytest.fixture
def remote(range_server: RangeServer, tmp_path: Path) -> MemmapDataset:
    return MemmapDataset(range_server.url, cache=tmp_path / "cache")


def test_opening_fetches_no_pixel_and_each_file_once(range_server: RangeServer, remote: MemmapDataset) -> None:
    assert sorted(name for name, _, _ in range_server.asked) == ["_tensordict/targets.memmap", MANIFEST]
    assert range_server.asked.total() == 2
    assert len(remote) == 400
    assert repr(remote) == f"MemmapDataset('{range_server.url}': 400 rows of uint8[16, 16, 3], 3 classes)"


def test_opening_takes_two_round_trips(tmp_path: Path) -> None:
    """The manifest, then all files at once."""
    make_tree(tmp_path / "images", each=3)
    pack(tmp_path / "images", tmp_path / "out", size=32, fit="pad")
    names = {"_tensordict/content.memmap", "_tensordict/targets.memmap"}
    with serving(tmp_path / "out") as range_server:
        # neither file is sent before both are asked for
        range_server.is_ready = lambda name, start, stop: (
            name == MANIFEST or names <= {name for name, _, _ in range_server.asked}
        )
        MemmapDataset(range_server.url, cache=tmp_path / "cache")
        assert {name for name, _, _ in range_server.asked} == {*names, MANIFEST}
        assert range_server.asked.total() == 3
        assert not range_server.was_late


def test_every_way_to_index_gives_the_bytes_of_the_local_store(remote: MemmapDataset, many_blocks: Path) -> None:
    local = MemmapDataset(many_blocks)
    for index in (
        3,
        -1,
        slice(5, 40),
        slice(0, 400, 7),
        [7, 390, 7],
        torch.tensor([1, 200]),
        torch.arange(400) % 5 == 0,
    ):
        (images, targets), (expected, known) = remote[index], local[index]
        assert torch.equal(images, expected)
        assert torch.equal(torch.as_tensor(targets), torch.as_tensor(known))
    part, other = remote.subset([9, 8, 300]), local.subset([9, 8, 300])
    assert torch.equal(part[:][0], other[:][0])
    assert [len(p) for p in remote.split(0.9)] == [360, 40]
    assert remote.targets == local.targets


def test_a_row_fetches_its_block_alone_and_once(
    range_server: RangeServer, remote: MemmapDataset, many_blocks: Path
) -> None:
    blocks = read_blocks(many_blocks)
    range_server.asked.clear()
    assert remote[13][0].shape == (3, 16, 16)
    remote[13], remote[14]
    size = blocks[1].size_bytes
    assert dict(range_server.asked) == {(PIXELS, size, 2 * size): 1}


def test_slices_are_copies_until_all_is_there(remote: MemmapDataset) -> None:
    images = remote[0:8][0]
    images.zero_()
    assert remote[0:8][0].any()
    assert not (remote.path / MANIFEST).exists()


def test_a_cache_that_is_not_complete_is_no_store(remote: MemmapDataset) -> None:
    with pytest.raises(StoreError, match="is the cache of a store at a URL, and not complete"):
        MemmapDataset(remote.path)


def test_a_complete_cache_is_a_store_without_a_network(
    remote: MemmapDataset, range_server: RangeServer, many_blocks: Path, tmp_path: Path
) -> None:
    pixels = remote.store.pixels
    assert torch.equal(pixels, MemmapDataset(many_blocks).store.pixels)
    assert set(range_server.bytes_of(PIXELS).values()) == {1}
    range_server.shutdown()
    range_server.server_close()
    assert verify(remote.path).problems == []
    assert torch.equal(MemmapDataset(remote.path)[:][0], remote[:][0])
    again = MemmapDataset(range_server.url, cache=tmp_path / "cache")
    assert (again.numpy() == pixels.numpy()).all()


def test_sources_are_fetched_when_asked_for(
    remote: MemmapDataset, range_server: RangeServer, many_blocks: Path
) -> None:
    local = MemmapDataset(many_blocks)
    assert not (remote.path / SAMPLES).exists()
    assert remote.source(321) == local.source(321)
    assert remote.samples == local.samples
    assert [count for (name, _, _), count in range_server.asked.items() if name == SAMPLES] == [1]


def test_it_pickles_to_a_url_and_no_secret(
    remote: MemmapDataset, range_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    data = pickle.dumps(remote)
    assert len(data) < 1000
    assert b"hush" not in data
    range_server.asked.clear()
    again = pickle.loads(data)
    assert torch.equal(again[40:60][0], remote[40:60][0])
    # the manifest was there; whoever fetches blocks asks whether it is still the same
    assert all(name in (PIXELS, MANIFEST) for name, _, _ in range_server.asked)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_of_a_dataloader_share_one_cache(
    remote: MemmapDataset, range_server: RangeServer, many_blocks: Path, context: str
) -> None:
    local, got = MemmapDataset(many_blocks), []
    remote[0]  # a fetcher runs when workers are forked
    for images, _ in DataLoader(remote, batch_size=25, num_workers=2, multiprocessing_context=context):
        got.append(images.clone())
    assert torch.equal(torch.cat(got), local[:][0])
    assert set(range_server.bytes_of(PIXELS).values()) == {1}


def test_rows_with_sizes_of_their_own(tmp_path: Path, tune: Tune) -> None:

    tune(least_block_inputs=2)
    make_tree(tmp_path / "images", each=8)
    pack(tmp_path / "images", tmp_path / "out", fit="none")
    remote, local = MemmapDataset(f"file://{tmp_path}/out", cache=tmp_path / "cache"), MemmapDataset(tmp_path / "out")
    for index in (5, slice(3, 9), [20, 1]):
        found, expected = remote[index][0], local[index][0]
        pairs = [(found, expected)] if isinstance(index, int) else zip(found, expected, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert not remote.remote.is_complete
    assert remote.store is not None
    assert (remote.path / PIXELS).read_bytes() == (tmp_path / "out" / PIXELS).read_bytes()


@pytest.mark.parametrize("way", ["index", "list", "loader"])
def test_rows_with_sizes_of_their_own_fetch_no_block_beside_theirs(tmp_path: Path, tune: Tune, way: str) -> None:
    tune(least_block_inputs=2)
    make_tree(tmp_path / "images", each=8)
    pack(tmp_path / "images", tmp_path / "out", fit="none")
    local = MemmapDataset(tmp_path / "out", as_tuple=False)
    ends = [*itertools.accumulate(block.size_bytes for block in read_blocks(tmp_path / "out"))]
    assert ends[1] % PAGE_BYTES, "the third block begins in a page of the second"
    # those of two blocks
    rows = local.store.offsets.tolist().index(ends[1])
    with serving(tmp_path / "out") as server:
        remote = MemmapDataset(server.url, cache=tmp_path / "cache", as_tuple=False)
        server.asked.clear()
        if way == "index":
            found = [remote[n].images for n in range(rows)]
        elif way == "list":
            found = remote[[*range(rows)]].images
        else:
            half = remote.subset(slice(rows))
            found = [image for batch in MemmapLoader(half, 3, as_tuple=False) for image in batch.images]
        assert all(map(torch.equal, found, local[[*range(rows)]].images))
        assert dict(server.asked) == {(PIXELS, 0, ends[0]): 1, (PIXELS, ends[0], ends[1]): 1}


def test_a_pushed_replacement_is_followed(many_blocks: Path, tmp_path: Path) -> None:
    """`pack push --overwrite` leaves a manifest that names a folder."""
    digest = MemmapDataset(many_blocks).manifest.digest
    folder = generation_of(digest)
    shutil.copytree(many_blocks, tmp_path / "url" / folder)
    (tmp_path / "url" / MANIFEST).write_bytes(encode_pointer(digest, folder))
    found = MemmapDataset(f"file://{tmp_path}/url", cache=tmp_path / "cache")
    assert torch.equal(found[390:][0], MemmapDataset(many_blocks)[390:][0])


def test_a_split_is_a_folder_below_the_url(many_blocks: Path, tmp_path: Path) -> None:
    shutil.copytree(many_blocks, tmp_path / "url/val")
    assert len(MemmapDataset(f"file://{tmp_path}/url", split="val", cache=tmp_path / "cache")) == 400


# -- what is refused, and how


def _no_cache(url: str, path: Path) -> object:
    return MemmapDataset(url)


def _no_url(url: str, path: Path) -> object:
    return MemmapDataset(path, cache=path)


def _no_store(url: str, path: Path) -> object:
    return MemmapDataset(f"{url}/_tensordict", cache=path)


def _small(url: str, path: Path) -> object:
    return MemmapDataset(url, cache=path, cache_size="20 kB")


def _file_in_place(url: str, path: Path) -> object:
    (path / "file").write_bytes(b"")
    return MemmapDataset(url, cache=path / "file")


def _in_a_store(url: str, path: Path) -> object:
    (path / MANIFEST).write_bytes(b"")
    return MemmapDataset(url, cache=path)


@pytest.mark.parametrize(
    ("opening", "kind", "says"),
    [
        (_no_cache, ValueError, "needs cache=FOLDER, on a local disk"),
        (_no_url, ValueError, "cache and cache_size are for a store at a URL"),
        (_no_store, StoreError, "/_tensordict is not a store that can be read: .*manifest.json does not exist"),
        (_small, StoreError, "cache_size is 20.0 kB, expected at least 49.2 kB: 8 blocks of this store."),
        (_file_in_place, StoreError, "file cannot be made: File exists. Choose a folder on a local disk"),
        (_in_a_store, StoreError, "is a store itself. Choose another folder for caches"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence(
    range_server: RangeServer, tmp_path: Path, opening: Callable[[str, Path], object], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        opening(range_server.url, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_cache_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reader.remote import folder

    monkeypatch.setattr(folder.system, "file_system", lambda path: "nfs4")
    with pytest.raises(StoreError, match=r"is on a network file system \(nfs4\)"):
        folder.check_cache_folder(tmp_path)


def test_a_cache_that_cannot_be_written_is_refused(many_blocks: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o555)
    with (
        modes_hold(),
        pytest.raises(StoreError, match="cannot be written. Choose a folder on a local disk that this user may write"),
    ):
        MemmapDataset(many_blocks.as_uri(), cache=tmp_path / "cache")


def test_a_file_that_is_not_what_the_manifest_says_is_named(many_blocks: Path, tmp_path: Path) -> None:
    shutil.copytree(many_blocks, tmp_path / "url")
    targets = tmp_path / "url/_tensordict/targets.memmap"
    os.truncate(targets, 80)
    with pytest.raises(StoreError, match=r"targets.memmap ends at byte 80, expected 3200 or more: it was cut short"):
        MemmapDataset(f"file://{tmp_path}/url", cache=tmp_path / "cache")
    os.truncate(targets, 3200)
    with pytest.raises(StoreError, match=r"targets.memmap is not what its manifest says. It was cut short or replaced"):
        MemmapDataset(f"file://{tmp_path}/url", cache=tmp_path / "cache")
    assert [*tmp_path.glob("cache/**/.targets*")] == []
    # nothing that was begun is taken for finished
    shutil.copy(many_blocks / "_tensordict/targets.memmap", tmp_path / "url/_tensordict/targets.memmap")
    assert len(MemmapDataset(f"file://{tmp_path}/url", cache=tmp_path / "cache")) == 400


def test_a_manifest_that_was_changed_is_refused(many_blocks: Path, tmp_path: Path) -> None:
    shutil.copytree(many_blocks, tmp_path / "url")
    text = (tmp_path / "url" / MANIFEST).read_bytes()
    (tmp_path / "url" / MANIFEST).write_bytes(text.replace(b'"rows": 400', b'"rows": 401'))
    with pytest.raises(StoreError, match=r"url/manifest.json was changed after it was written"):
        MemmapDataset(f"file://{tmp_path}/url", cache=tmp_path / "cache")


def test_a_changed_object_is_named_and_no_byte_of_it_read(many_blocks: Path, tmp_path: Path) -> None:
    shutil.copytree(many_blocks, tmp_path / "url")
    remote = MemmapDataset(f"file://{tmp_path}/url", cache=tmp_path / "cache")
    expected = remote[0][0].clone()
    with open(tmp_path / "url" / PIXELS, "r+b") as file:
        file.seek(10 * 768)
        file.write(b"changed")
    with pytest.raises(StoreError, match=rf"{PIXELS} is not what its manifest says, rows 8 to 15: it was changed"):
        remote[10]
    assert torch.equal(remote[0][0], expected)


def test_a_replaced_store_is_another_cache(many_blocks: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/url"
    shutil.copytree(many_blocks, tmp_path / "url")
    before = MemmapDataset(url, cache=tmp_path / "cache")
    shutil.rmtree(tmp_path / "url")
    make_tree(tmp_path / "images", each=3)
    pack(tmp_path / "images", tmp_path / "url", size=16)
    with pytest.raises(StoreError, match=r"url was replaced by another store while it was read .*Open it again"):
        before[300]
    after = MemmapDataset(url, cache=tmp_path / "cache")
    assert torch.equal(after[:][0], MemmapDataset(tmp_path / "url")[:][0])
    assert after.path != before.path
    assert (before.path / INSIDE).is_dir()
    with pytest.raises(StoreError, match="another store than it was when this dataset was opened"):
        pickle.loads(pickle.dumps(before))[300]
