"""Mutants of valid stores as a strategy of hypothesis: one to three changes, at any depth, then sealed again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.hostile.drafts import EVIL, FRAMES, GONE, Draft

# of tests/laws/kinds.py: those that differ in their files
KINDS = ("pad", "regression", "multi-hot", "boxes", "own-sizes", "labels-own-sizes", "jpeg", "jpeg-own-sizes")
# field and value, see drafts.py
Change = tuple[str, Any]

_NUMBERS = st.integers(-9, 300) | st.sampled_from(
    [sign * (1 << bits) - 1 for bits in (31, 32, 63, 80) for sign in (-1, 1)]
)
_TEXTS = st.sampled_from(["class", "multi-hot", "uint8", f"sha256:{0:064}", EVIL, "\udcff", "../../x", "x" * 5000])
_VALUES = st.just(GONE) | st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS | st.text() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=2),
    max_leaves=4,
)
# the letter and the bytes of a number of a tensor; of others it is a byte
_CODES = dict.fromkeys(("targets", "frames", "offsets", "mask_offsets", "box_targets"), ("q", 8))
_CODES |= dict.fromkeys(("shapes", "content", "box_count"), ("i", 4))
_SPLICES = st.tuples(
    st.sampled_from(["", "ffc0", "ffc4", "ffda", "ffd9", "ffdb"]), st.integers(0, 40), st.sampled_from([0, 1, 4, None]),
    st.binary(max_size=9).map(bytes.hex), st.just(1),
)  # fmt: skip


def mutants(base: Path) -> st.SearchStrategy[list[Change]]:
    """Draw changes of a valid store."""
    draft, tensors = Draft(base), list[str]()
    lines = {name: [*map(json.loads, draft.files[name].splitlines())] for name in ("samples.jsonl", "rejected.jsonl")}
    for path, data in draft.files.items():
        name = path.rpartition("/")[2]
        code, size = _CODES.get(name.removesuffix(".memmap"), ("B", 1))
        if name.endswith(".memmap"):
            tensors += [f"{name}/{code}/{n}" for n in range(min(999, len(data) // size))]
    files = [f"after/{name}" for name in (*draft.files, "manifest.json", "other.pickle")]
    changes = [
        _some(_places(draft.head, "head"), _VALUES),
        _some(_places(draft.blocks, "blocks"), _VALUES),
        _some(
            [place for name in lines for n, line in enumerate(lines[name]) for place in _places(line, f"{name}/{n}")],
            _VALUES,
        ),
        _some(
            [f"{name}/{n}" for name in lines for n in range(len(lines[name]))],
            st.sampled_from(["", "5\n", "\xff\n", "[]"]),
        ),
        _some(tensors, _NUMBERS),
        _some(files, st.sampled_from(["pipe", "folder", "pickled", "link", "flipped", 0, 1 << 42])),
    ]
    if FRAMES in draft.files:
        changes.append(_some([f"jpegs/{n}" for n in range(len(draft.jpegs()))], _SPLICES))
    # a file that has become a pipe or 4 TiB cannot be read for another change
    return st.lists(st.one_of(changes), min_size=1, max_size=3, unique_by=lambda change: change[0])


def make_mutant(base: Path, out: Path, changes: Sequence[Change]) -> Path:
    """Write a valid store with these changes; a change that no longer applies after another is left out."""
    draft = Draft(base)
    for change in changes:
        with contextlib.suppress(Exception):
            draft.put(*change)
    return draft.seal(out)


def _some(fields: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Change]:
    return st.tuples(st.sampled_from(fields), values)


def _places(value: Any, above: str = "") -> list[str]:
    """List every place inside a JSON value; above: the value's own place."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, one in inner:
        name = f"{above}/{str(key).replace('/', '%2f')}"
        found += [name, *_places(one, name)]
    return found
