"""Targets and extras of a user's own: in every way that rows are given, for subsets and joined datasets, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from reader import MemmapDataset, MemmapLoader, concat

N = 90


@pytest.mark.parametrize("residency", ["cache", "ram", "disk"])
@pytest.mark.parametrize(
    ("targets", "classes", "kind"),
    [
        (np.arange(N) % 7 - 1, list("abcdef"), "class"),
        (torch.arange(N) % 3, None, "class"),
        (torch.arange(2 * N).view(N, 2) / 7, None, "regression"),
        ((torch.arange(3 * N).view(N, 3) % 2).bool(), None, "multi-hot"),
    ],
)
def test_other_targets_are_those_of_every_row_however_it_is_read(
    train: MemmapDataset, targets: Any, classes: list[str] | None, kind: str, residency: str
) -> None:
    data = train.with_targets(targets, classes=classes)
    expected = torch.as_tensor(targets).to({"class": torch.int64, "regression": torch.float32}.get(kind, torch.uint8))
    assert (data.manifest.target_kind, data.targets) == (kind, expected.tolist())
    assert data.classes == (classes if classes else [] if kind == "regression" else train.classes)
    assert torch.equal(data[:][1], expected)
    assert torch.equal(data[[8, 3]][1], expected[[8, 3]])
    assert torch.equal(torch.as_tensor(data[7][1]), expected[7])
    assert torch.equal(data.store.targets, expected)
    with MemmapLoader(data, 16, shuffle="full", residency=residency, as_tuple=False) as loader:
        for batch in loader:
            assert torch.equal(batch.targets, expected[batch.rows])
            assert torch.equal(batch.images, train[batch.rows][0])
    workers = DataLoader(data, batch_size=40, num_workers=1, multiprocessing_context="fork")
    assert torch.equal(torch.cat([found for _, found in workers]), expected)
    assert torch.equal(pickle.loads(pickle.dumps(data))[[5]][1], expected[[5]])
    assert train[7][1] == train.targets[7]


def test_extras_stand_in_batches_beside_those_of_the_store(train: MemmapDataset) -> None:
    data = MemmapDataset(train.path, as_tuple=False).with_extras(
        weight=torch.rand(N), box=np.arange(4 * N).reshape(N, 4)
    )
    again = data.with_extras(flag=torch.arange(N) % 2 == 0)
    assert again[7].extras["box"].tolist() == [28, 29, 30, 31]
    assert again[[7, 8]].extras["flag"].tolist() == [False, True]
    assert again[3:5].extras["box"].dtype == torch.int64
    with MemmapLoader(again, 8, shuffle="full", as_tuple=False) as loader:
        batch = next(iter(loader))
    assert torch.equal(batch.extras["weight"], data[batch.rows].extras["weight"])
    assert sorted(batch.extras.keys()) == ["box", "flag", "weight"]
    assert sorted(pickle.loads(pickle.dumps(again))[2].extras.keys()) == ["box", "flag", "weight"]


def test_a_subset_is_relabelled_by_its_own_positions(train: MemmapDataset) -> None:
    part = train.subset([40, 3, 17]).with_targets([2, 0, 1])
    assert part.targets == [2, 0, 1]
    assert part.subset([1])[0][1] == 0
    assert part.at_rows(None).targets[39:42] == [-1, 2, -1]
    with pytest.raises(ValueError, match="row 3 is in the dataset twice, with different values"):
        train.subset([3, 3]).with_targets([0, 1])


def test_joined_datasets_take_relabelled_ones_and_are_relabelled(train: MemmapDataset) -> None:
    first = train.subset(range(50)).with_targets([1] * 50)
    both = concat({"own": train, "made": first})
    assert both.targets == train.targets + [1] * 50
    assert both[[89, 90]][1].tolist() == [train.targets[89], 1]
    relabelled = both.with_targets(np.arange(140) % 2).with_extras(index=torch.arange(140))
    assert relabelled.targets == [0, 1] * 70
    assert relabelled[91:95][1].tolist() == [1, 0, 1, 0]
    assert pickle.loads(pickle.dumps(relabelled))[[139, 0]][1].tolist() == [1, 0]
    assert relabelled.groups is not None
    relabelled.as_tuple = False
    assert relabelled[91:95].extras["index"].tolist() == [91, 92, 93, 94]
    assert relabelled[139].extras["index"].item() == 139
    with pytest.raises(ValueError, match="come last"):
        concat([relabelled, relabelled])


def test_a_state_continues_with_other_labels_and_copies_in_memory_are_apart(train: MemmapDataset) -> None:
    other = train.with_targets([0] * N)
    with MemmapLoader(train, 8, residency="ram") as one, MemmapLoader(other, 8, residency="ram") as two:
        next(iter(one))
        two.load_state_dict(one.state_dict())
        _, targets = next(iter(two))
    assert targets.tolist() == [0] * 8


@pytest.mark.parametrize(
    ("targets", "classes", "message"),
    [
        ([0] * 5, None, r"targets has the shape \[5\], expected \[90, ...\]: one for each row"),
        ([3] * N, None, "a target is 3, expected -1 to 2, as there are 3 classes: give classes="),
        ([-2] * N, None, "a target is -2, expected -1 to 2"),
        (np.zeros(N), None, r"targets are float64\[90\], expected int64\[N\] of classes"),
        (np.full((N, 2), 2), None, r"targets are int64\[90, 2\], expected"),
        (["x"] * N, None, "targets is a list, expected numbers"),
        (np.ones((N, 2), bool), ["a"], "targets have 2 columns, expected one for each of 1 classes"),
        ([0] * N, ["a", "a"], "classes has a name twice"),
    ],
)
def test_targets_that_do_not_fit_are_refused(
    train: MemmapDataset, targets: Any, classes: list[str] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train.with_targets(targets, classes=classes)


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"pixels": [0] * N}, "has 'pixels' already"),
        ({"a b": [0] * N}, "an extra is named 'a b', expected letters"),
        ({"half": torch.zeros(N, dtype=torch.float16)}, "half is float16, expected one of uint8"),
        ({"short": [1]}, r"short has the shape \[1\], expected \[90, ...\]"),
    ],
)
def test_extras_that_do_not_fit_are_refused(train: MemmapDataset, extras: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train.with_extras(**extras)


def test_the_store_has_other_targets_also_where_it_was_looked_at_before(train: MemmapDataset) -> None:
    assert len(train.store.targets) == N
    changed = train.with_targets([2] * N).with_extras(weight=torch.arange(N))
    assert changed.store.targets.tolist() == [2] * N
    assert changed.store.extras is not None
    assert changed.store.extras["weight"].tolist() == list(range(N))


def test_labels_of_joined_datasets_are_never_lost_or_those_of_others(
    train: MemmapDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reader.loading.reading.free_bytes", lambda device: 1 << 30)
    one, two = (concat([train.with_targets([label] * N), train]) for label in (1, 2))
    assert one.opened_store.given_id != two.opened_store.given_id
    loaders = [MemmapLoader(data, 2, sampler=[0, N - 1], residency="gpu") for data in (one, two)]
    # of one copy of their pixels
    assert loaders[0].resident is loaders[1].resident
    assert [targets.tolist() for loader in loaders for _, targets in loader] == [[1, 1], [2, 2]]
    with pytest.raises(ValueError, match="of joined datasets come last"):
        concat([concat([train]).with_targets([1] * N), train])


def test_boxes_keep_their_classes_when_rows_get_other_targets(train: MemmapDataset) -> None:
    boxes = {"boxes": torch.ones(N, 1, 4), "box_count": torch.ones(N, dtype=torch.int32)}
    full = train.with_extras(**boxes, box_targets=torch.ones(N, 1, dtype=torch.int64))
    measured = full.with_targets(torch.rand(N, 2))
    assert measured.classes == train.classes
    others = [*reversed(train.classes)]
    joined = concat([measured, measured], classes=others)
    index = others.index(train.classes[1])
    assert joined[[0, N]][1]["box_targets"].tolist() == [[index], [index]]
    with pytest.raises(
        ValueError, match=f"targets have 7 columns, expected one for each of {len(train.classes)} classes"
    ):
        full.with_targets(torch.zeros(N, 7, dtype=torch.uint8))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64, np.int16])
def test_classes_may_be_integers_of_any_kind(train: MemmapDataset, kind: Any) -> None:
    labels = np.arange(len(train), dtype=kind) % 3
    assert train.with_targets(labels).targets == labels.tolist()
    with pytest.raises(ValueError, match="a target is 3, expected -1 to 2"):
        train.with_targets(labels + kind(1))


def test_a_default_device_changes_no_given_column(train: MemmapDataset) -> None:
    with torch.device("meta"):
        given = train.with_targets([1] * len(train)).with_extras(q=np.ones(len(train)))
    assert given.targets == [1] * len(train)
    assert next(iter(MemmapLoader(given, 2, as_tuple=False))).extras["q"].tolist() == [1.0, 1.0]
