"""Mutants of valid stores as a strategy of hypothesis: one to three changes, at any depth, then sealed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.hostile.drafts import EVIL, GONE, PICKLE, Draft

_NUMBERS = st.integers(-9, 300) | st.sampled_from(
    [sign * (1 << bits) - 1 for bits in (31, 32, 63, 80) for sign in (-1, 1)]
)
_TEXTS = st.text() | st.sampled_from(["class", "multi-hot", "uint8", f"sha256:{0:064}", EVIL, "../../x", "x" * 5000])
_SCALARS = st.none() | st.booleans() | _NUMBERS | _TEXTS | st.floats()
_VALUES = st.just(GONE) | _SCALARS | st.lists(_SCALARS, max_size=3) | st.dictionaries(_TEXTS, _SCALARS, max_size=2)
_SPLICES = st.tuples(
    st.sampled_from(["", "ffc0", "ffc4", "ffda", "ffd9", "ffdb"]), st.integers(0, 40), st.sampled_from([0, 1, 4, None]),
    st.binary(max_size=9).map(bytes.hex),
)  # fmt: skip


def mutants(base: Path) -> st.SearchStrategy[dict[str, Any]]:
    """Draw changes of a valid store, see drafts.py."""
    draft = Draft(base)
    files = [f"after/{name}" for name in (*draft.files, "manifest.json", "other.pickle")]
    tensors = [name.rpartition("/")[2] for name in draft.files if name.endswith(".memmap")]
    numbers = st.builds("{}/{}/{}".format, st.sampled_from(tensors), st.sampled_from("qi"), st.integers(0, 30))
    changes = [
        st.tuples(st.sampled_from(files), st.sampled_from(["pipe", "folder", PICKLE, 0, 1 << 42])),
        st.tuples(numbers, _NUMBERS),
    ]
    for name, value in draft.content.items():
        if places := _places(value, name):
            changes.append(st.tuples(st.sampled_from(places), _SPLICES if name == "jpegs" else _VALUES))
    return st.lists(st.one_of(changes), min_size=1, max_size=3).map(dict)


def _places(value: Any, above: str) -> list[str]:
    """List every place inside a JSON value; above: the value's own place."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, one in inner:
        name = f"{above}/{str(key).replace('/', '%2f')}"
        found += [name, *_places(one, name)]
    return found
