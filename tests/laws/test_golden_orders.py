"""Each order gives the rows that it gave when its digests were taken: by epoch, seed, rank and what becomes of the last batch.

A checkpoint names a seed and a position: what an order gives never changes. `tests/support/take_digests.py` takes digests again.
"""

from __future__ import annotations

import golden_orders
import pytest
from conftest import tuned
from digests import Table, changed, recorded


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The digests as they are today."""
    root = tmp_path_factory.mktemp("orders")
    golden_orders.make_stores(root)
    with tuned(**golden_orders.TUNING):
        return golden_orders.table_of(root)


@pytest.mark.parametrize("name", golden_orders.ORDERS)
def test_an_order_gives_the_rows_that_it_gave(name: str, found: Table) -> None:
    def only(table: Table) -> Table:
        return {case: texts for case, texts in table.items() if case.partition(",")[0] == name}

    assert changed(only(found), only(recorded("orders"))) == {}


def test_each_order_was_recorded_and_is_taken_by_a_loader() -> None:
    table = recorded("orders")
    assert {case.partition(",")[0] for case in table} == {*golden_orders.ORDERS}
    assert [name for name in golden_orders.ORDERS if any("Error: " in text for text in table[name].values())] == []
