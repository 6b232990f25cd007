"""The table of orders, the store that they are of, and the digests of the rows that a loader gives in each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from digests import Table, digest

from reader import (
    ConstantPixels,
    MemmapDataset,
    MemmapLoader,
    RandomResizedCrop,
    RASampler,
    SizeRamp,
    concat,
)

# Names of stores, rows of each, and pixels of a row: 16 bytes.
STORES = {"a": 53, "b": 31}
SIDE = 4
# of `reader.tuning.Tuning`: blocks of 7 rows, and windows of 3 blocks
TUNING = {"shuffle_block_bytes": 7 * SIDE * SIDE, "shuffle_window_blocks": 3}
BATCH = 6
RANKS = ((0, 1), (0, 3), (1, 3), (2, 3))
SEEDS = (0, 1)
EPOCHS = (0, 1, 7)
ENDS: dict[str, dict[str, Any]] = {"": {}, ", drop_last": {"drop_last": True}, ", no pad": {"pad": False}}


def make_stores(root: Path) -> None:
    """Pack the stores below a folder."""
    from packer import pack_dataset

    for name, count in STORES.items():
        rows = [(np.full((SIDE, SIDE), n, np.uint8), n % 5) for n in range(count)]
        pack_dataset(rows, root / name, size=SIDE, channels="gray", workers=1)


def _random_sampler(data: MemmapDataset, seed: int, rank: tuple[int, int]) -> dict[str, Any]:
    return {"sampler": torch.utils.data.RandomSampler(data, generator=torch.Generator().manual_seed(seed))}


def _distributed(data: MemmapDataset, seed: int, rank: tuple[int, int]) -> dict[str, Any]:
    return {"sampler": torch.utils.data.DistributedSampler(data, rank[1], rank[0], seed=seed)}


def _repeated(data: MemmapDataset, seed: int, rank: tuple[int, int]) -> dict[str, Any]:
    return {"sampler": RASampler(data, rank[1], rank[0], seed=seed)}


# What a loader is given beside batch size, seed, ranks and ends; "dataset": "a", "both" joined, or a "part" of a.
_WEIGHTS = np.arange(STORES["a"]) % 8 / 8
_SHARES = {"a": 0.75, "b": 0.25}
Options = dict[str, Any] | Callable[[MemmapDataset, int, tuple[int, int]], dict[str, Any]]
ORDERS: dict[str, Options] = {
    "sequential": {},
    "full": {"shuffle": "full"},
    "block": {"shuffle": "block"},
    "shuffle=True": {"shuffle": True},
    "block of canonical nodes": {"shuffle": "block", "canonical_nodes": 6},
    "weights": {"weights": _WEIGHTS},
    "weights of epoch_rows": {"weights": _WEIGHTS, "epoch_rows": 25},
    "mixture": {"dataset": "both", "weights": _SHARES},
    "mixture of epoch_rows": {"dataset": "both", "weights": _SHARES, "epoch_rows": 100},
    "joined sequential": {"dataset": "both"},
    "joined full": {"dataset": "both", "shuffle": "full"},
    "joined block": {"dataset": "both", "shuffle": "block"},
    "part full": {"dataset": "part", "shuffle": "full"},
    "part block": {"dataset": "part", "shuffle": "block"},
    "fewer epoch_rows full": {"shuffle": "full", "epoch_rows": 20},
    "more epoch_rows block": {"shuffle": "block", "epoch_rows": 70},
    "sequential epoch_rows": {"epoch_rows": 40},
    "sampler of a list": {"sampler": [*range(40, 3, -3), *range(9)]},
    "sampler of batches": {"sampler": [[5, 3], [1], [8, 50, 2, 7], [11, 12]]},
    "RandomSampler": _random_sampler,
    "DistributedSampler": _distributed,
    "RASampler": _repeated,
    "constant pixels": {
        "batch_size": ConstantPixels(3, SIDE, 1),
        "transform": RandomResizedCrop(SIDE),
        "size": SizeRamp(2, SIDE, 0, 8, multiple=1),
        "shuffle": "full",
    },
}


def table_of(stores: Path) -> Table:
    """Return the digests of rows: {"full, drop_last": {"rank 0 of 3, seed 1": "one for each of EPOCHS"}}."""
    given = {name: MemmapDataset(stores / name) for name in STORES}
    data = {"a": given["a"], "both": concat(given), "part": given["a"].subset(range(45, 2, -1))}
    return {
        name + end: {
            f"rank {rank} of {world_size}, seed {seed}": _digests(data, options, seed, (rank, world_size), more)
            for rank, world_size in RANKS
            for seed in SEEDS
        }
        for name, options in ORDERS.items()
        for end, more in ENDS.items()
    }


def _digests(
    data: dict[str, MemmapDataset], options: Options, seed: int, ranks: tuple[int, int], more: dict[str, Any]
) -> str:
    chosen = dict(options if isinstance(options, dict) else options(data["a"], seed, ranks))
    of, batch_size = data[chosen.pop("dataset", "a")], chosen.pop("batch_size", BATCH)
    how = {
        "seed": seed,
        "rank": ranks[0],
        "world_size": ranks[1],
        "as_tuple": False,
        "residency": "cache",
        "prefetch": 0,
    }
    try:
        loader = MemmapLoader(of, batch_size, **(how | chosen | more))
        found = []
        for epoch in EPOCHS:
            # the second follows the first, and the third is far from both
            if epoch > 1:
                loader.set_epoch(epoch)
            found.append(digest([batch.rows for batch in loader]))
        return " ".join(found)
    except ValueError as e:
        return f"{type(e).__name__}: {e}"
