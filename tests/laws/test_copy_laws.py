"""Copies of rows, by subset and merge: each row keeps its content and the name of its class, in the requested order."""

from __future__ import annotations

import functools
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Tune, content_bytes, tuned
from kinds import BROKEN, KINDS, SAMPLES, MakeStore, spread, stores_of
from stored_rows import manifest_of, rows_of

from packer import merge, pack, subset, verify

every_kind = pytest.mark.parametrize("kind", KINDS)
SHUFFLED = ("shuffled",)
# kinds whose record has the digest of the whole file of boxes
BOXED = ("boxes", "labels-own-sizes")
PackSome = Callable[..., Path]


@pytest.fixture(autouse=True)
def _small_blocks(small_blocks: None) -> None:
    """Blocks of two inputs, so that rows come from many blocks."""


@pytest.fixture(scope="session")
def intact_of(tmp_path_factory: pytest.TempPathFactory) -> PackSome:
    """Pack a kind without its reject, of all classes or of some: intact_of("crop", "ant bee")."""

    @functools.cache
    def packed(kind: str, labels: str = "ant bee cat", *, backwards: bool = False) -> Path:
        folder = tmp_path_factory.mktemp(f"intact-{kind}")
        chosen = [one for one in SAMPLES if one.name != BROKEN and one.label in labels.split()]
        inputs = KINDS[kind](folder / "inputs", chosen)
        options = dict(inputs.options)
        if backwards:
            names = manifest_of(next(iter(stores_of(packed(kind, labels)).values())))["classes"]
            options["classes"] = folder / "classes.txt"
            options["classes"].write_text("\n".join(reversed(names)))
        with tuned(least_block_inputs=2):
            pack(inputs.images, folder / "out", workers=1, **options)
        return folder / "out"

    return packed


@every_kind
def test_all_rows_are_the_store_again_or_that_of_its_images_without_the_reject(
    kind: str, store_of: MakeStore, intact_of: PackSome, tmp_path: Path
) -> None:
    subset(intact_of(kind), tmp_path / "again", fraction=1)
    assert content_bytes(tmp_path / "again") == content_bytes(intact_of(kind))
    # the order of shuffled rows depends on all inputs, and the digest of boxes on the whole file
    if kind not in (*SHUFFLED, *BOXED):
        subset(store_of(kind), tmp_path / "rows", fraction=1)
        assert content_bytes(tmp_path / "rows") == content_bytes(intact_of(kind))


@every_kind
def test_reversed_rows_are_the_rows_and_reversed_again_the_store(
    kind: str, intact_of: PackSome, tmp_path: Path
) -> None:
    for split, store in stores_of(intact_of(kind)).items():
        there, back = tmp_path / f"there{split}", tmp_path / f"back{split}"
        report = subset(store, there, rows=slice(None, None, -1))
        assert report.rows == manifest_of(store)["rows"]
        assert rows_of(there) == rows_of(store)[::-1]
        assert verify(there).problems == []
        subset(there, back, rows=slice(None, None, -1))
        assert content_bytes(back) == content_bytes(store)


@every_kind
def test_a_subset_has_no_rejects_and_the_rows_that_are_named(kind: str, store_of: MakeStore, tmp_path: Path) -> None:
    store = stores_of(store_of(kind)).get("train", store_of(kind))
    chosen = [11, 0, 5, 5, 12]
    report = subset(store, tmp_path / "few", rows=chosen)
    full = rows_of(store)
    assert (report.rows, report.rejected) == (5, 0)
    assert rows_of(tmp_path / "few") == [full[row] for row in chosen]
    assert verify(tmp_path / "few").problems == []


@every_kind
def test_a_store_that_was_cut_in_two_is_merged_to_the_store(kind: str, intact_of: PackSome, tmp_path: Path) -> None:
    for split, store in stores_of(intact_of(kind)).items():
        halves = [tmp_path / f"first{split}", tmp_path / f"second{split}"]
        for half, rows in zip(halves, (slice(None, 2), slice(2, None)), strict=True):
            subset(store, half, rows=rows)
        merge(halves, tmp_path / f"whole{split}")
        if kind in (*SHUFFLED, *BOXED):
            assert rows_of(tmp_path / f"whole{split}") == rows_of(store)
        else:
            assert content_bytes(tmp_path / f"whole{split}") == content_bytes(store)


@pytest.mark.parametrize("kind", spread([*KINDS]))
def test_merged_rows_keep_their_classes_by_name_where_lists_are_equally_long(
    kind: str, intact_of: PackSome, tmp_path: Path
) -> None:
    parts = [intact_of(kind, "ant bee"), intact_of(kind, "bee cat")]
    merge(parts, tmp_path / "out")
    for split, store in stores_of(tmp_path / "out").items():
        merged, (first, second) = rows_of(store), (rows_of(part / split) for part in parts)
        assert merged == first + second
        assert verify(store).problems == []
        assert all(row["target"] == row["line's target"] for row in merged)


@pytest.mark.parametrize("kind", spread([*KINDS], first=1, known=lambda kind: kind != "regression"))
def test_merged_rows_keep_their_classes_by_name_where_lists_differ_in_order(
    kind: str, intact_of: PackSome, tmp_path: Path
) -> None:
    parts = [intact_of(kind, "ant bee"), intact_of(kind, "ant bee", backwards=True)]
    for n, (one, other) in enumerate((parts, parts[::-1])):
        merge([one, other], tmp_path / str(n))
        for split, store in stores_of(tmp_path / str(n)).items():
            assert rows_of(store) == rows_of(one / split) + rows_of(other / split)


@pytest.mark.parametrize("kind", ["own-sizes", "jpeg-pad", "regression"])
def test_some_rows_of_many_cost_what_is_asked_for(kind: str, store_of: MakeStore, tmp_path: Path, tune: Tune) -> None:
    rows, peaks = rows_of(store_of(kind)), list[int]()
    for repeats in (30, 500):
        many, few = tmp_path / str(repeats), tmp_path / f"few-{repeats}"
        tune(least_block_inputs=repeats)
        subset(store_of(kind), many, rows=[*range(len(rows))] * repeats)
        tracemalloc.start()
        subset(many, few, rows=[len(rows) * repeats - 2, 1])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert rows_of(few) == [rows[-2], rows[1]]
    # each of 6,500 decoded lines takes some 800 bytes
    assert peaks[1] < peaks[0] + (2 << 20)
