"""An update gives the bytes of a new pack of the current inputs, and decodes only changed ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from conftest import content_bytes, store_bytes
from kinds import BROKEN, KINDS, ROWS, SAMPLES, Inputs, MakeStore, Sample, spread

from packer import PackError, PackReport, pack, update

# kinds with classes, or other values of each image, in a separate file
LISTED = ["list", "table", "tar", "boxes", "labels-own-sizes"]
VALUED = ["table", "boxes", "masks", "labels-own-sizes", "regression", "multi-hot"]
# options that an update needs again
GIVEN_AGAIN = ("boxes", "masks", "max_rejects")


@dataclass(frozen=True)
class Change:
    """A change of the inputs of a kind.

    Attributes:
        of: returns the changed samples.
        decoded: number of changed images.
        rows: number of rows after it.
        kinds: the kinds that it applies to.
    """

    of: Callable[[Sequence[Sample]], Sequence[Sample]]
    decoded: int
    rows: int
    kinds: Sequence[str] = tuple(KINDS)


def _with(*names: str) -> Callable[[Sequence[Sample]], Sequence[Sample]]:
    """Add images, sorted by name."""
    new = [Sample(name, (58, 47), 50 + n, 20 + n, name.partition("/")[0]) for n, name in enumerate(names)]
    return lambda samples: sorted([*samples, *new], key=lambda one: one.name)


def _without(chosen: Callable[[Sample], bool]) -> Callable[[Sequence[Sample]], Sequence[Sample]]:
    return lambda samples: [one for one in samples if not chosen(one)]


def _other(which: str, **values: object) -> Callable[[Sequence[Sample]], Sequence[Sample]]:
    """Change values of one sample."""
    return lambda samples: sorted(
        (replace(one, **values) if one.name == which else one for one in samples),  # type: ignore[arg-type]
        key=lambda one: one.name,
    )


def _exchanged(first: str, second: str) -> Callable[[Sequence[Sample]], Sequence[Sample]]:
    """Exchange the images of two samples."""

    def made(samples: Sequence[Sample]) -> Sequence[Sample]:
        images = {one.name: (one.size, one.picture) for one in samples}
        images |= {first: images[second], second: images[first]}
        return [replace(one, size=images[one.name][0], picture=images[one.name][1]) for one in samples]

    return made


CHANGES: dict[str, Change] = {
    "none": Change(lambda samples: samples, 0, ROWS),
    "image-added": Change(_with("bee/0a.jpg"), 1, ROWS + 1),
    "image-removed": Change(_without(lambda one: one.name == "ant/1.jpg"), 0, ROWS - 1),
    "image-replaced": Change(_other("ant/3.jpg", picture=77, size=(70, 41)), 1, ROWS),
    "image-renamed": Change(_other("cat/0.jpg", name="cat/7.jpg"), 1, ROWS),
    "images-exchanged": Change(_exchanged("ant/0.jpg", "cat/1.jpg"), 2, ROWS),
    "reject-repaired": Change(_other(BROKEN, picture=78), 1, ROWS + 1),
    "image-broken": Change(_other("cat/1.jpg", picture=None), 0, ROWS - 1),
    "label-changed": Change(_other("bee/1.jpg", label="cat"), 0, ROWS, LISTED),
    "values-changed": Change(_other("bee/1.jpg", values=19), 0, ROWS, VALUED),
    "class-added": Change(_with("dog/0.jpg", "dog/1.jpg"), 2, ROWS + 2),
    "class-removed": Change(_without(lambda one: one.label == "cat"), 0, ROWS - 3),
}
# changes that renumber the classes of kept rows, and the message that refuses them
RENUMBERED: dict[str, tuple[Callable[[Sequence[Sample]], Sequence[Sample]], str]] = {
    "class-added-in-front": (_with("aphid/0.jpg", "aphid/1.jpg"), r"bee was (1, now 2|3, now 4)"),
    "first-class-removed": (_without(lambda one: one.label == "ant"), r"bee was (1, now 0|3, now 2)"),
}


@pytest.fixture(autouse=True)
def _small_blocks(small_blocks: None) -> None:
    """Blocks of two inputs, so that kept rows move between blocks."""


def _updated(kind: str, samples: Sequence[Sample], out: Path, tmp_path: Path) -> tuple[Inputs, PackReport]:
    """Update a store with the current inputs of its kind."""
    inputs = KINDS[kind](tmp_path / "inputs", samples)
    inputs = replace(inputs, options=inputs.options | {"max_rejects": 2})
    given = {name: inputs.options[name] for name in GIVEN_AGAIN if name in inputs.options}
    return inputs, update(inputs.images, out, workers=1, **given)


@pytest.mark.parametrize(
    ("kind", "change"), spread([*KINDS], [*CHANGES], every=4, known=lambda kind, change: kind in CHANGES[change].kinds)
)
def test_an_update_equals_a_fresh_pack_and_decodes_what_changed_alone(
    kind: str, change: str, store_of: MakeStore, tmp_path: Path
) -> None:
    out, fresh = Path(shutil.copytree(store_of(kind), tmp_path / "out")), store_of(kind)
    inputs, report = _updated(kind, CHANGES[change].of(SAMPLES), out, tmp_path)
    if change != "none":
        fresh = tmp_path / "fresh"
        pack(inputs.images, fresh, workers=1, **inputs.options)
        assert store_bytes(fresh) != store_bytes(store_of(kind))
    same = content_bytes if change == "none" else store_bytes  # its images were written again
    assert same(out) == same(fresh)
    reports = list(report.splits.values()) or [report]
    assert (reports[0].rows, reports[0].rows - reports[0].kept) == (CHANGES[change].rows, CHANGES[change].decoded)


# the classes of a tar have no names, and regression targets are no classes
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("tar", "regression")])
@pytest.mark.parametrize("change", RENUMBERED)
def test_an_update_that_would_renumber_classes_is_refused_and_changes_nothing(
    kind: str, change: str, store_of: MakeStore, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(store_of(kind), tmp_path / "out"))
    changed, sentence = RENUMBERED[change]
    with pytest.raises(PackError, match=sentence):
        _updated(kind, changed(SAMPLES), out, tmp_path)
    assert store_bytes(out) == store_bytes(store_of(kind))


@pytest.mark.parametrize(
    ("kind", "change"),
    spread(
        ["crop", "table", "zip"],
        ["none", "image-replaced", "images-exchanged", "image-broken", "reject-repaired"],
    ),
)
def test_an_update_that_is_resumed_where_none_was_interrupted_equals_a_fresh_pack(
    kind: str, change: str, store_of: MakeStore, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(store_of(kind), tmp_path / "out"))
    inputs, _ = _updated(kind, CHANGES[change].of(SAMPLES), out, tmp_path)
    pack(inputs.images, tmp_path / "fresh", workers=1, **inputs.options)
    assert store_bytes(out) == store_bytes(tmp_path / "fresh")


def test_a_reject_that_was_repaired_before_the_store_was_copied_is_seen_by_a_resume(
    store_of: MakeStore, tmp_path: Path
) -> None:
    inputs = KINDS["crop"](tmp_path / "inputs", CHANGES["reject-repaired"].of(SAMPLES))
    out = Path(shutil.copytree(store_of("crop"), tmp_path / "out", copy_function=shutil.copy))
    assert update(inputs.images, out, workers=1).rows == ROWS + 1
