"""`concat`: rows of several stores as one dataset, without copying a pixel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from reader.dataset.dataset import MemmapDataset
from reader.dataset.groups import Groups
from reader.dataset.indexing import check_plain
from reader.dataset.joined import JoinedStores, distinct_names
from reader.dataset.opened_store import OpenedStore
from reader.rows import Rows

_SHARED = ("transform", "target_transform", "transforms", "as_tuple", "as_pil")


def concat(
    datasets: Sequence[MemmapDataset] | Mapping[str, MemmapDataset], *, classes: Sequence[str] | None = None
) -> MemmapDataset:
    """Return a dataset of the rows of several datasets, one after the other, without copying a pixel.

    It has what each of them has: subset, split, samples, workers of a DataLoader. Their classes are joined by name, so that a
    class has one number whatever store it is from. In a batch, `rows` counts the rows of all stores, one store behind the other.

    Args:
        datasets: whole stores or subsets; a dict names them for `MemmapLoader(weights={"a": 0.7, "b": 0.3})`, of a list the
            names are those of their folders.
        classes: the list of classes to take; without it those of the first store, then what the others have beside them.

    Raises:
        ValueError: there is none, or they have different transforms, or one is at a URL and not all in its cache.
        StoreError: rows are not alike (size, channels, kind of targets, extras), or classes clash.

    Example:
        >>> both = concat({"a": MemmapDataset(store_path), "b": MemmapDataset(store_path).subset([3, 4])})
        >>> len(both), both.groups.names
        (92, ('a', 'b'))
    """
    if not isinstance(datasets, Iterable):
        raise ValueError(f"concat was given {datasets!r}, expected a list or dict of one MemmapDataset or more.")
    given = list(datasets.values() if isinstance(datasets, Mapping) else datasets)
    if not given or not all(isinstance(dataset, MemmapDataset) for dataset in given):
        kinds = ", ".join(sorted({type(dataset).__name__ for dataset in given})) or "nothing"
        raise ValueError(f"concat was given {kinds}, expected a list or dict of one MemmapDataset or more.")
    if classes is not None and len({*classes}) < len(classes):
        raise ValueError("classes has a name twice.")
    names = [*datasets] if isinstance(datasets, Mapping) else distinct_names([dataset.path for dataset in given])
    _check_one_form(given)
    stores = _stores_of(given)
    joined = JoinedStores([*stores.values()], classes)
    firsts = dict(zip(stores, (first for _, first in joined.parts), strict=True))
    rows = [_rows_in(dataset, firsts) for dataset in given]
    counts = [len(some) for some in rows]
    groups = Groups(tuple(map(str, names)), np.repeat(np.arange(len(given), dtype=np.int32), counts))
    return given[0].of_store(joined, np.concatenate(rows), groups)


# A store is named by its path, digest and given columns: two datasets of one store share its mapping.
_Key = tuple[Path, str, str]


def _key(store: OpenedStore) -> _Key:
    return store.path, store.manifest.digest, store.given_id


def _stores_of(datasets: Sequence[MemmapDataset]) -> dict[_Key, OpenedStore]:
    """Return the stores of datasets, each once, in order, including those of joined datasets."""
    stores: dict[_Key, OpenedStore] = {}
    for dataset in datasets:
        for store, _ in dataset.opened_store.parts:
            stores.setdefault(_key(store), store)
    return stores


def _rows_in(dataset: MemmapDataset, firsts: Mapping[_Key, int]) -> Rows:
    """Return a dataset's rows by their numbers in the joined stores."""
    rows = dataset.store_rows(np.arange(len(dataset)))
    joined = np.empty_like(rows)
    for store, first in dataset.opened_store.parts:
        inside = (rows >= first) & (rows < first + store.manifest.rows)
        joined[inside] = rows[inside] - first + firsts[_key(store)]
    return joined


def _check_one_form(datasets: Sequence[MemmapDataset]) -> None:
    for name in _SHARED:
        values = [getattr(dataset, name) for dataset in datasets]
        if any(value is not values[0] and value != values[0] for value in values[1:]):
            raise ValueError(
                f"the datasets have different {name}: {values[0]!r} and others. Give all the same, or none, and the loader"
                " transform=."
            )
    for dataset in datasets:
        check_plain(dataset, MemmapDataset)
        opened, remote = dataset.opened_store, dataset.opened_store.at_url
        if isinstance(opened, JoinedStores) and opened.given_id != opened.joined_id:
            raise ValueError(
                "with_targets and with_extras of joined datasets come last: join all of them, then call it."
            )
        if remote is not None:
            raise ValueError(
                f"{remote} is at a URL, its cache has not all of it, and concat takes stores on disk: fetch it first with"
                f" pack pull {remote} --cache {dataset.path.parent}"
            )
