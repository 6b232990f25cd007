"""Rows of several stores as one dataset: gathered together, classes by name, and what is refused."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_tree
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

from packer import pack, pack_dataset, subset
from reader import MemmapDataset, MemmapLoader, StoreError, concat


def made(out: Path, count: int, names: list[str], *, side: int = 8, seed: int = 0, **options: Any) -> Path:
    """Pack random images, class by class in turns, each a picture of its own."""
    images = np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    dataset = [(image, n % len(names)) for n, image in enumerate(images)]
    pack_dataset(dataset, out, size=side, classes=names, **options)
    return out


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("several")
    return [
        made(root / "a", 30, ["cat", "dog"]),
        made(root / "b", 21, ["dog", "owl", "cat"], seed=1),
        made(root / "c", 5, ["owl"], seed=2),
    ]


def test_rows_are_those_of_each_store_with_classes_by_name(stores: list[Path]) -> None:
    parts = [MemmapDataset(path) for path in stores]
    joined = concat(parts)
    assert len(joined) == 56
    assert joined.classes == ["cat", "dog", "owl"]
    named = [part.classes[target] for part in parts for target in part.targets]
    assert [joined.classes[target] for target in joined.targets] == named
    for position, (part, row) in {0: (0, 0), 29: (0, 29), 30: (1, 0), 50: (1, 20), 55: (2, 4), -1: (2, 4)}.items():
        image, target = joined[position]
        assert torch.equal(image, parts[part][row][0])
        assert joined.classes[target] == parts[part].classes[parts[part][row][1]]
    order = np.random.default_rng(0).permutation(56)
    images, targets = joined[order]
    every = torch.cat([part[:][0] for part in parts])
    assert torch.equal(images, every[order])
    assert targets.tolist() == [joined.targets[n] for n in order]
    assert torch.equal(joined[25:35][0], every[25:35])
    assert torch.equal(joined[31:35][0], every[31:35])
    assert joined[31:35][1].tolist() == joined.targets[31:35]
    assert np.array_equal(joined.numpy(), every.movedim(1, -1).numpy())
    assert joined.samples[30][0] == f"b/{parts[1].samples[0][0]}"
    assert joined.source(31) == parts[1].source(1)
    assert torch.equal(joined.loader(joined.samples[31][0]), parts[1][1][0])


def test_mean_and_std_are_those_of_all_rows(tmp_path: Path) -> None:
    # of one color each, whose means are far apart
    for name, color, count in (("dark", 10, 1), ("light", 250, 3)):
        pack_dataset([(np.full((8, 8, 3), color, np.uint8), 0)] * count, tmp_path / name, size=8, classes=["one"])
    joined = concat([MemmapDataset(tmp_path / name) for name in ("dark", "light")])
    pixels = joined.numpy().reshape(-1, 3) / 255
    assert np.allclose(joined.manifest.mean, pixels.mean(0), atol=1e-6)
    assert np.allclose(joined.manifest.std, pixels.std(0), atol=1e-6)


def test_subsets_and_splits_know_the_rows_of_all_stores(stores: list[Path]) -> None:
    joined = concat(
        [MemmapDataset(stores[0]).subset([5, 2]), MemmapDataset(stores[1]), MemmapDataset(stores[0]).subset([7])]
    )
    full = MemmapDataset(stores[0])
    assert torch.equal(joined[[0, 1, 23]][0], full[[5, 2, 7]][0])
    as_batch = concat([MemmapDataset(stores[0], as_tuple=False), MemmapDataset(stores[1], as_tuple=False)])
    part, rest = as_batch.split(0.5, stratify=True)
    assert sorted([*part[:].rows.tolist(), *rest[:].rows.tolist()]) == list(range(51))
    assert torch.equal(as_batch[part[:].rows].pixels, part[:].pixels)


def test_it_pickles_to_paths_and_serves_workers(stores: list[Path]) -> None:
    joined = concat([MemmapDataset(path) for path in stores]).subset(range(20, 40))
    again = pickle.loads(pickle.dumps(joined))
    assert len(pickle.dumps(joined)) < 3000
    assert torch.equal(again[:][0], joined[:][0])
    with_worker = [
        targets for _, targets in DataLoader(joined, batch_size=7, num_workers=1, multiprocessing_context="fork")
    ]
    assert torch.cat(with_worker).tolist() == joined.targets


def test_a_store_that_was_packed_again_is_refused_when_unpickled(stores: list[Path], tmp_path: Path) -> None:
    shutil.copytree(stores[0], tmp_path / "a")
    pickled = pickle.dumps(concat([MemmapDataset(tmp_path / "a"), MemmapDataset(stores[1])]))
    made(tmp_path / "a", 30, ["cat", "dog"], seed=9, overwrite=True)
    with pytest.raises(StoreError, match="packed again"):
        pickle.loads(pickled)


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root, paths = tmp_path_factory.mktemp("ragged"), []
    for n, count in enumerate((5, 9)):
        images = make_tree(root / f"images-{n}", classes=2, each=count)
        pack(images, root / "ab"[n], fit="none", workers=1)
        paths.append(root / "ab"[n])
    return paths


@pytest.fixture(scope="module")
def compressed(stores: list[Path], ragged: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """Each store, and the same with its rows compressed."""
    pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'pixpack[zstd]'")
    root, made_of = tmp_path_factory.mktemp("compressed"), {}
    for n, path in enumerate([*stores, *ragged]):
        made_of[path] = root / str(n) / path.name
        made_of[path].parent.mkdir()
        subset(path, made_of[path], compress=True)
    return made_of


def test_a_damaged_frame_names_the_store_and_its_row(
    stores: list[Path], compressed: dict[Path, Path], tmp_path: Path
) -> None:
    shutil.copytree(compressed[stores[1]], tmp_path / "b")
    file = tmp_path / "b/_tensordict/frames.memmap"
    table = np.fromfile(file, "<i8").reshape(-1, 2)
    # within the file of another store, were it not checked
    table[4] += 1 << 20
    table[5, 1] = table[5, 0] + 9
    table.tofile(file)
    joined = concat([MemmapDataset(compressed[stores[0]]), MemmapDataset(tmp_path / "b")])
    for row in (4, 5):
        with pytest.raises(StoreError, match=rf"/b: row {row}: its frame .* run pack verify .*/b$"):
            joined[[1, 30 + row]]
    assert len(joined[:34][0]) == 34


def test_raw_and_compressed_rows_are_not_joined(stores: list[Path], compressed: dict[Path, Path]) -> None:
    with pytest.raises(StoreError, match=r"a has raw rows, .*a has compressed ones.*pack subset OUT NEW --compress"):
        concat([MemmapDataset(compressed[stores[0]]), MemmapDataset(stores[0])])


def test_rows_on_a_device_are_numbered_as_those_of_a_batch(stores: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader.loading.reading.free_bytes", lambda device: 1 << 30)
    joined = concat([MemmapDataset(path, as_tuple=False) for path in stores])
    (batch,) = MemmapLoader(joined, 4, sampler=[50, 3, 29, 30], residency="gpu", as_tuple=False)
    assert batch.rows is not None
    assert batch.rows.tolist() == [50, 3, 29, 30]
    assert batch.targets.tolist() == [joined.targets[row] for row in batch.rows]
    assert torch.equal(batch.pixels, joined[[50, 3, 29, 30]].pixels)


def test_a_sum_of_stores_with_other_classes_is_refused(stores: list[Path]) -> None:
    one, other = (MemmapDataset(path) for path in stores[:2])
    assert one.classes != other.classes
    with pytest.raises(
        StoreError, match=r"has other classes than .*take reader.concat\(\[a, b\]\), which joins them by name"
    ):
        one + other
    alike = one + one.subset([4, 2])
    assert (len(alike), alike[len(one)][1]) == (len(one) + 2, one[4][1])
    assert len(one + list(range(3))) == len(one) + 3


def test_torchs_own_concatenations_are_taken_by_a_loader(stores: list[Path]) -> None:
    one, other = MemmapDataset(stores[0]), MemmapDataset(stores[2])
    nested = Subset(ConcatDataset([Subset(one, [3, 1]), ConcatDataset([other, one])]), range(1, 9))
    expected = [one[1][0], *(image for image in other[:][0]), one[0][0], one[1][0]]
    with MemmapLoader(nested, 8) as loader:
        images, _ = next(iter(loader))
    assert torch.equal(images, torch.stack(expected))


def test_joining_what_is_joined_maps_each_store_once(stores: list[Path]) -> None:
    a, b, c = (MemmapDataset(path) for path in stores)
    joined = concat([concat([a, b]), concat([b, c])])
    assert [store.path.name for store, _ in joined.opened_store.parts] == ["a", "b", "c"]
    assert torch.equal(joined[[30, 51, 72]][0], torch.stack([b[0][0], b[0][0], c[0][0]]))


def test_given_classes_decide_the_numbers(stores: list[Path]) -> None:
    joined = concat([MemmapDataset(path) for path in stores], classes=["emu", "owl", "dog", "cat"])
    assert joined.classes == ["emu", "owl", "dog", "cat"]
    assert joined.targets[:2] == [3, 2]
    with pytest.raises(StoreError, match=r"c has the class 'owl', which is not in classes="):
        concat([MemmapDataset(stores[2])], classes=["dog"])


def test_multi_hot_targets_move_to_the_joined_columns(tmp_path: Path) -> None:
    for name, classes, row in (("a", "x;y", "x"), ("b", "y;z", "z")):
        folder = tmp_path / f"images-{name}"
        folder.mkdir()
        Image.new("RGB", (8, 8)).save(folder / "0.png")
        Image.new("RGB", (8, 8)).save(folder / "1.png")
        (tmp_path / f"{name}.csv").write_text(
            f'path,tags\nimages-{name}/0.png,{row}\nimages-{name}/1.png,"{classes}"\n'
        )
        pack(tmp_path / f"{name}.csv", tmp_path / name, size=8, target_column="tags", workers=1)
    joined = concat([MemmapDataset(tmp_path / "a"), MemmapDataset(tmp_path / "b")])
    assert joined.classes == ["x", "y", "z"]
    assert joined[:][1].tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1]]


def test_padding_of_one_store_is_none_in_the_other(tmp_path: Path, stores: list[Path]) -> None:
    wide = np.zeros((4, 8, 3), np.uint8)
    pack_dataset([(wide, 0)], tmp_path / "pad", size=8, fit="pad", classes=["cat"])
    joined = concat([MemmapDataset(path, as_tuple=False) for path in (tmp_path / "pad", stores[2])])
    assert joined[[0, 1]].content.tolist() == [[2, 0, 6, 8], [0, 0, 8, 8]]
    assert joined[2].content.tolist() == [0, 0, 8, 8]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"side": 16}, r"other has rows uint8\[16, 16, 3\], .*a has uint8\[8, 8, 3\]: rows of one batch must be alike"),
        ({"names": ["Cat", "dog"]}, r"a has a class 'cat', .*other a class 'Cat': are they one\?"),
    ],
)
def test_rows_of_different_kinds_and_classes_that_clash_are_refused(
    stores: list[Path], tmp_path: Path, other: dict[str, Any], message: str
) -> None:
    made(tmp_path / "other", 3, **{"names": ["cat", "dog"]} | other)
    with pytest.raises(StoreError, match=message):
        concat([MemmapDataset(stores[0]), MemmapDataset(tmp_path / "other")])


def test_what_concat_cannot_join_is_refused_in_one_sentence(stores: list[Path]) -> None:
    one = MemmapDataset(stores[0])
    with pytest.raises(ValueError, match="concat was given nothing, expected a list or dict"):
        concat([])
    with pytest.raises(ValueError, match="concat was given str"):
        concat(["a"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="different as_tuple"):
        concat([one, MemmapDataset(stores[1], as_tuple=False)])
    with pytest.raises(ValueError, match="are no one array"):
        _ = concat([one, MemmapDataset(stores[1])]).store


def test_a_store_at_a_url_is_refused_with_the_way_out(stores: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
    pytest.importorskip("fcntl", reason="a cache needs locks of bytes")
    remote = MemmapDataset(stores[0].as_uri(), cache=tmp_path)
    with pytest.raises(
        ValueError, match=r"file://.*/a is at a URL, .* fetch it first with pack pull file:.*a --cache "
    ):
        concat([MemmapDataset(stores[1]), remote])


def test_a_store_at_a_url_that_is_all_in_its_cache_is_joined_and_needs_no_network(
    stores: list[Path], tmp_path: Path
) -> None:
    pytest.importorskip("fcntl", reason="a cache needs locks of bytes")
    shutil.copytree(stores[0], tmp_path / "url")
    remote = MemmapDataset((tmp_path / "url").as_uri(), cache=tmp_path / "cache")
    assert remote.store is not None
    shutil.rmtree(tmp_path / "url")
    joined, expected = (concat([MemmapDataset(stores[1]), other]) for other in (remote, MemmapDataset(stores[0])))
    for again in (joined, pickle.loads(pickle.dumps(joined))):
        assert torch.equal(again[[40, 3, 22]][0], expected[[40, 3, 22]][0])
    with MemmapLoader(joined, 7, shuffle="block", seed=0, as_tuple=False) as loader:
        for batch in loader:
            assert torch.equal(batch.images, expected[batch.rows][0])


def test_a_damaged_target_names_the_store_and_its_row(stores: list[Path], tmp_path: Path) -> None:
    shutil.copytree(stores[1], tmp_path / "b")
    file = tmp_path / "b/_tensordict/targets.memmap"
    targets = np.fromfile(file, np.int64)
    targets[4] = 17
    targets.tofile(file)
    joined = concat([MemmapDataset(stores[0]), MemmapDataset(tmp_path / "b")])
    with pytest.raises(StoreError, match=r"b: row 4: its target is 17, expected -1 to 2"):
        joined[[1, 34]]
    with pytest.raises(StoreError, match=r"row 4: its target is 17"):
        _ = joined.targets
    assert len(joined[:34][0]) == 34


def test_columns_of_numbers_are_joined_in_one_order_alone(stores: list[Path]) -> None:
    full = MemmapDataset(stores[0])
    one, other = (full.with_targets(np.ones((30, 2)), classes=names) for names in (["x", "y"], ["y", "x"]))
    assert concat([one, one]).classes == ["x", "y"]
    with pytest.raises(StoreError, match=r"has target columns \['y', 'x'\], .* has \['x', 'y'\]"):
        concat([one, other])
    with pytest.raises(StoreError, match="leave classes= out"):
        concat([one], classes=["y", "x"])


def test_a_class_that_is_given_twice_is_refused(stores: list[Path]) -> None:
    with pytest.raises(ValueError, match="classes has a name twice"):
        concat([MemmapDataset(stores[0])], classes=["cat", "cat", "dog"])


def test_what_a_program_makes_of_a_row_by_itself_is_never_left_out(stores: list[Path]) -> None:
    def changed(kind: Any) -> Any:
        """Return a class that adds 10 to each target."""

        class Changed(kind):
            def __getitem__(self, index: Any) -> Any:
                image, target = super().__getitem__(index)
                return image, target + 10

            def __getitems__(self, indices: list[int]) -> Any:
                return [self[n] for n in indices] if kind is Subset else super().__getitems__(indices)

        return Changed

    own, plain = changed(MemmapDataset)(stores[0]), MemmapDataset(stores[0])
    assert next(iter(DataLoader(own, 4)))[1].tolist() == [10, 11, 10, 11]
    assert next(iter(DataLoader(Subset(own, [1, 2]), 4)))[1].tolist() == [11, 10]
    for dataset in (own, changed(Subset)(plain, [0]), changed(ConcatDataset)([plain]), ConcatDataset([plain, own])):
        with pytest.raises(ValueError, match="Changed has its own __getitem__, which this loader does not call"):
            MemmapLoader(dataset, 4)
    for part in (lambda: own.subset([1]), lambda: own.with_targets([0] * 30), lambda: concat([plain, own])):
        with pytest.raises(ValueError, match="Changed has its own __getitem__, which would be lost"):
            part()
    assert own._repr_html_().count("<img ") == 24


def test_a_default_device_is_not_that_of_rows_of_joined_stores(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", each=2)
    for fit in ("pad", "crop"):
        pack(tmp_path / "images", tmp_path / fit, size=32, fit=fit)
    both = concat([MemmapDataset(tmp_path / fit, as_tuple=False) for fit in ("pad", "crop")])
    with torch.device("meta"):
        rows = both[[0, 7]]
        images = [images for images, _ in MemmapLoader(both, 5, prefetch=0)]
    assert rows.content[1].tolist() == [0, 0, 32, 32]
    assert sum(map(len, images)) == len(both)
