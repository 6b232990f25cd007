"""The table of kinds is correct: each packs, with its rows and one reject, into more than one block."""

from __future__ import annotations

import json

import pytest
from kinds import BROKEN, KINDS, ROWS, MakeStore, stores_of

from packer import verify
from reader import MemmapDataset


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_packs_all_rows_and_records_its_reject(kind: str, store_of: MakeStore) -> None:
    out = store_of(kind)
    stores = stores_of(out)
    assert (stores.keys() == {"train", "val"}) == (kind == "splits")
    first = next(iter(stores.values()))
    data = MemmapDataset(first)
    assert len(data) == ROWS
    rejects = [json.loads(line)["path"] for line in (first / "rejected.jsonl").read_text().splitlines()]
    assert len(rejects) == 1
    assert len(json.loads((first / "manifest.json").read_text())["blocks"]) > 3
    assert all(verify(store).problems == [] for store in stores.values())
    assert BROKEN.partition("/")[2] in rejects[0] or kind == "tar"
