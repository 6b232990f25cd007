"""The format: golden bytes, the ways to open a store, what is refused, and that reading never writes."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import golden_make
import numpy as np
import pytest
import torch
from conftest import store_bytes
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from packer.checksums import crc32_combine, sha256_file
from packer.store.manifest_file import encode_manifest
from packer.store.row_files import channel_statistics
from reader import ImageBatch, MemmapDataset, StoreError
from reader.format.blocks import read_blocks
from reader.format.check import check_store, metadata_files
from reader.format.errors import IncompleteStoreError
from reader.format.manifest import FileEntry, Manifest, TensorSpec, read_manifest

GOLDEN = Path(__file__).parents[1] / "golden" / "v1.0"


def test_the_golden_store_of_version_1_0_loads_forever() -> None:
    data = MemmapDataset(GOLDEN)
    manifest, store = data.manifest, data.store
    assert (manifest.rows, manifest.height, manifest.width, manifest.channels) == (5, 4, 6, 3)
    assert manifest.classes == ("bird", "cat", "näïve")
    assert store.targets.tolist() == [0, 0, 1, 2, 2]
    # row r, pixel y x, channel c holds (97 r + 13 y + 7 x + 31 c) mod 256
    r, y, x, c = np.ogrid[:5, :4, :6, :3]
    assert np.array_equal(store.pixels.numpy(), (97 * r + 13 * y + 7 * x + 31 * c) % 256)
    assert store.content is not None
    assert store.content[0].tolist() == [0, 0, 4, 6]
    assert store.extras is not None
    assert store.extras["weight"].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert [block.stop for block in read_blocks(GOLDEN)] == [3, 5]
    assert manifest.labels == golden_make.LABELS


def test_todays_writer_makes_the_golden_bytes(tmp_path: Path) -> None:
    golden_make.main(tmp_path / "out")
    assert store_bytes(tmp_path / "out") == store_bytes(GOLDEN)
    manifest = read_manifest(GOLDEN)
    assert encode_manifest(manifest, read_blocks(GOLDEN)) == (GOLDEN / "manifest.json").read_bytes()
    for name, content in metadata_files(manifest).items():
        assert (GOLDEN / name).read_bytes() == content
    for name, entry in manifest.files.items():
        if name != "_tensordict/pixels.memmap":
            assert sha256_file(GOLDEN / name) == entry.digest
    pixels = (GOLDEN / "_tensordict/pixels.memmap").read_bytes()
    assert manifest.files["_tensordict/pixels.memmap"].digest == f"crc32:{zlib.crc32(pixels):08x}"


def _manifest_of(target_kind: str, count: int | None, content: bool, extras: dict[str, TensorSpec]) -> Manifest:
    names = ["meta.json", "_tensordict/meta.json", "samples.jsonl", "rejected.jsonl"]
    names += ["_tensordict/pixels.memmap", "_tensordict/targets.memmap"]
    names += ["_tensordict/content.memmap"] if content else []
    names += ["_tensordict/extras/meta.json"] if extras else []
    names += [f"_tensordict/extras/{name}.memmap" for name in extras]
    return Manifest(
        rows=3,
        height=4,
        width=5,
        channels=3,
        target_kind=target_kind,
        target_count=count,
        has_content=content,
        extras=extras,
        classes=("a", "b"),
        mean=(0.1, 0.2, 0.3),
        std=(0.1, 0.1, 0.1),
        inputs=3,
        rejected=0,
        options={},
        decoders={},
        files={name: FileEntry(0, "") for name in names},
    )


@pytest.mark.parametrize("with_extras", [False, True])
@pytest.mark.parametrize("content", [False, True])
@pytest.mark.parametrize(
    ("kind", "count", "targets"),
    [
        ("class", None, torch.zeros(3, dtype=torch.int64)),
        ("regression", 2, torch.zeros(3, 2)),
        ("multi-hot", 4, torch.zeros(3, 4)),
    ],
)
def test_our_meta_json_is_what_tensordict_writes(
    tmp_path: Path, kind: str, count: int | None, targets: torch.Tensor, content: bool, with_extras: bool
) -> None:
    extras = {"boxes": TensorSpec("float32", (2, 4)), "area": TensorSpec("float64", ())} if with_extras else {}
    values = TensorDict({"area": torch.zeros(3, dtype=torch.float64), "boxes": torch.zeros(3, 2, 4)}, batch_size=[3])
    ImageBatch(
        pixels=torch.zeros(3, 4, 5, 3, dtype=torch.uint8),
        targets=targets,
        content=torch.zeros(3, 4, dtype=torch.int32) if content else None,
        extras=values if with_extras else None,
        batch_size=[3],
    ).memmap(tmp_path)
    written = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("meta.json")}
    assert metadata_files(_manifest_of(kind, count, content, extras)) == written


def test_a_store_opens_without_our_reader(shared_store: Path) -> None:
    data = MemmapDataset(shared_store)
    manifest, store = data.manifest, data.store
    plain = ImageBatch.load_memmap(shared_store)
    assert torch.equal(plain.pixels, store.pixels)
    assert torch.equal(plain.targets, store.targets)
    bare = TensorDict.load_memmap(shared_store / "_tensordict")
    assert torch.equal(bare["pixels"], store.pixels)
    shape = (manifest.rows, manifest.height, manifest.width, manifest.channels)
    raw = np.memmap(shared_store / "_tensordict/pixels.memmap", np.uint8, "r", shape=shape)
    assert np.array_equal(raw, store.pixels.numpy())


def test_images_is_a_channels_last_view_also_of_one_row(shared_store: Path) -> None:
    store = MemmapDataset(shared_store).store
    assert store.images.shape == (90, 3, 32, 32)
    assert store.images.data_ptr() == store.pixels.data_ptr()
    assert store[:4].images.is_contiguous(memory_format=torch.channels_last)
    assert store[5].images.shape == (3, 32, 32)


# -- what is refused


def test_a_missing_file_or_a_link_is_refused(store: Path, tmp_path: Path) -> None:
    target = store / "_tensordict/targets.memmap"
    moved = tmp_path / "elsewhere"
    shutil.move(target, moved)
    with pytest.raises(StoreError, match=r"targets.memmap is missing \(No such file or directory\)"):
        check_store(store)
    target.symlink_to(moved)
    with pytest.raises(StoreError, match="is a symbolic link; a store holds its own files"):
        check_store(store)


def test_a_folder_or_a_manifest_that_is_a_link_is_refused(store: Path, tmp_path: Path) -> None:
    for name in ("_tensordict", "manifest.json"):
        shutil.move(store / name, tmp_path / "elsewhere")
        (store / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StoreError, match="is a symbolic link; a store holds its own files"):
            check_store(store)
        (store / name).unlink()
        shutil.move(tmp_path / "elsewhere", store / name)


def test_what_is_no_store_is_named(tmp_path: Path, store: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        MemmapDataset(tmp_path / "nothing", as_tuple=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match=r"is not a pixpack store: it has no manifest.json"):
        MemmapDataset(tmp_path / "empty", as_tuple=False)
    with pytest.raises(StoreError, match="is a file, expected the folder of a store"):
        MemmapDataset(store / "meta.json", as_tuple=False)
    (tmp_path / "splits").mkdir()
    shutil.move(store, tmp_path / "splits" / "train")
    with pytest.raises(StoreError, match=r"holds 1 stores\. Open one of them: .*train"):
        MemmapDataset(tmp_path / "splits", as_tuple=False)


def test_an_unfinished_pack_is_named_with_the_command_that_knows_how_far_it_came(tmp_path: Path) -> None:
    (tmp_path / ".packing").mkdir()
    with pytest.raises(
        IncompleteStoreError,
        match=rf"{tmp_path} is incomplete: its command is still running, or was interrupted\."
        rf" To see its progress and to resume it: pack info {tmp_path}$",
    ):
        MemmapDataset(tmp_path, as_tuple=False)


def test_unknown_keys_of_the_manifest_are_ignored(store: Path) -> None:
    head = json.loads((store / "manifest.json").read_bytes())
    write_head(store, head | {"new_field": 1})
    assert len(MemmapDataset(store)) == 90


def write_head(store: Path, head: dict[str, object]) -> None:
    """Write a manifest with a valid digest around any head."""
    import hashlib

    blocks = head.pop("blocks")
    del head["digest"]
    body = json.dumps(head, indent=2).removesuffix("\n}").encode() + b',\n  "blocks": ' + json.dumps(blocks).encode()
    digest = hashlib.sha256(body).hexdigest()
    (store / "manifest.json").write_bytes(body + f',\n  "digest": "sha256:{digest}"\n}}\n'.encode())


# -- arithmetic


@given(st.binary(max_size=300), st.binary(max_size=5000))
def test_crc32_of_two_parts_is_combined(first: bytes, second: bytes) -> None:
    assert crc32_combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_statistics_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).integers(0, 256, (1000, 3))
    mean, std = channel_statistics(1000, values.sum(0).tolist(), (values**2).sum(0).tolist())
    assert mean == pytest.approx((values / 255).mean(0), rel=1e-12)
    assert std == pytest.approx((values / 255).std(0), rel=1e-12)
