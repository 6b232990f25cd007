"""Properties of orders: every row once, every rank alike, any range at once, and as random as a permutation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader.shuffling import BlockOrder, Cut, drawn, permuted, wrapped

COUNTS = st.integers(1, 3000)

FROZEN_TEN = [1, 0, 4, 3, 8, 2, 6, 7, 5, 9]
FROZEN_TWO = [0, 0, 0, 1, 1, 1, 0, 0]
FROZEN_MILLION = [160046, 390695, 686352, 97604]
FROZEN_BLOCKS = [0, 2, 9, 1, 8, 4, 6, 7, 5, 3]


@given(COUNTS, st.integers(0, 2**31), st.integers(0, 1000))
def test_a_permutation_holds_every_row_once(count: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permuted(count, 0, count, seed=seed, epoch=epoch)), np.arange(count))


@given(COUNTS, st.data())
def test_any_range_of_a_permutation_is_computed_alone(count: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    full = permuted(count, 0, count, seed=5, epoch=2)
    assert np.array_equal(permuted(count, start, stop, seed=5, epoch=2), full[start:stop])


def test_a_permutation_beyond_32_bits_needs_no_array_of_its_length() -> None:
    rows = permuted(10**11, 10**10, 10**10 + 1000, seed=1)
    assert rows.dtype == np.int64
    assert len(set(rows.tolist())) == 1000
    assert rows.min() >= 0
    assert rows.max() < 10**11


def test_the_order_is_frozen() -> None:
    # a checkpoint of an old version must resume to the same rows: these numbers never change
    assert permuted(10, 0, 10, seed=0, epoch=0).tolist() == FROZEN_TEN
    assert [permuted(2, 0, 1, seed=seed).item() for seed in range(8)] == FROZEN_TWO
    assert permuted(1_000_000, 0, 4, seed=7, epoch=3).tolist() == FROZEN_MILLION
    assert BlockOrder(10, 3, 2, seed=0, epoch=0).rows(0, 10).tolist() == FROZEN_BLOCKS


def test_seeds_and_epochs_give_unrelated_orders() -> None:
    orders = [permuted(1000, 0, 1000, seed=s, epoch=e) for s in range(3) for e in range(3)]
    same = [np.mean(a == b) for i, a in enumerate(orders) for b in orders[:i]]
    assert max(same) < 0.01


def test_a_permutation_mixes_like_a_uniform_one() -> None:
    count = 100_000
    rows = permuted(count, 0, count, seed=11, epoch=0)
    # of a uniform permutation both means are count / 3; 0.5 % is 5 standard errors
    assert np.abs(rows - np.arange(count)).mean() == pytest.approx(count / 3, rel=0.005)
    assert np.abs(np.diff(rows)).mean() == pytest.approx(count / 3, rel=0.005)
    # a batch of a store sorted into 100 classes holds each class as often as chance says (chi-squared, mean 1 a degree)
    labels = (rows // (count // 100))[: count // 1000 * 1000].reshape(-1, 1000)
    counts = np.stack([np.bincount(batch, minlength=100) for batch in labels])
    assert ((counts - 10) ** 2 / 10).sum(axis=1).mean() == pytest.approx(99, rel=0.1)


@given(COUNTS, st.integers(1, 200), st.integers(1, 9), st.integers(0, 99))
def test_blocks_hold_every_row_once_and_stay_together(count: int, block: int, window: int, seed: int) -> None:
    order = BlockOrder(count, block, window, seed=seed, epoch=1)
    rows = order.rows(0, count)
    assert np.array_equal(np.sort(rows), np.arange(count))
    middle = count // 3
    assert np.array_equal(order.rows(middle, count), rows[middle:])
    # rows of one window come from at most `window` blocks
    position = windows = 0
    while position < count:
        end = order.window_end(position)
        assert len(np.unique(rows[position:end] // block)) <= window
        position, windows = end, windows + 1
    assert windows == -(-count // (block * window))
    assert order.window_end(count + middle) == count + order.window_end(middle)


@given(st.integers(0, 500), st.integers(1, 40), st.integers(1, 7), st.sampled_from(["pad", "drop_last", "pad=False"]))
def test_ranks_share_every_epoch(count: int, batch: int, world: int, last: str) -> None:
    options = {"drop_last": last == "drop_last", "pad": last != "pad=False"}
    if last == "drop_last" and batch * world > count:
        with pytest.raises(ValueError, match="drop_last leaves nothing"):
            Cut(count, batch, rank=0, world_size=world, **options)
        return
    taken, sizes = list[int](), set[tuple[int, ...]]()
    for rank in range(world):
        cut, position, spans = Cut(count, batch, rank=rank, world_size=world, **options), 0, list[range]()
        for left in range(cut.steps(), 0, -1):
            assert cut.steps(position) == left
            step = cut.step(position)
            spans.append(range(step.start, step.stop))
            position = step.after
        assert cut.steps(position) == 0
        assert all(0 < len(span) <= batch for span in spans)
        taken += [row for span in spans for row in wrapped(np.arange, count, span.start, span.stop).tolist()]
        sizes.add(tuple(map(len, spans)))
    again, missing = len(taken) - len({*taken}), {*range(count)} - {*taken}
    assert again < (world if last == "pad" else 1)
    assert len(missing) < (batch * world if last == "drop_last" else 1)
    # without padding later ranks may have one row or one step less
    assert len(sizes) == 1 if last != "pad=False" else max(map(sum, sizes)) - min(map(sum, sizes)) <= 1


def test_draws_follow_the_weights() -> None:
    cumulative = np.cumsum([1.0, 0.0, 3.0])
    rows = drawn(cumulative, 0, 40_000, seed=3, epoch=1)
    assert np.bincount(rows, minlength=3)[1] == 0
    assert np.mean(rows == 2) == pytest.approx(0.75, abs=0.01)
    assert np.array_equal(drawn(cumulative, 100, 200, seed=3, epoch=1), rows[100:200])


def test_a_draw_at_the_end_of_a_share_gives_no_row_of_weight_0() -> None:
    # half of the products are rounded down to 0, where the share begins, and half up to the sum, where it ends
    assert {*drawn(np.cumsum([0, 5e-324, 0]), 0, 100, seed=0).tolist()} == {1}
