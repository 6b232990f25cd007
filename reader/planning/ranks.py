"""Finds this process's rank and world size: from arguments, torch.distributed, or the variables RANK and WORLD_SIZE.

Starts no process group and talks to no other process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from reader.transforms.random import integer


@dataclass(frozen=True)
class Ranks:
    """A rank, and the number of ranks."""

    rank: int
    world_size: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"


def given_ranks(rank: int | None, world_size: int | None) -> Ranks | None:
    """Return the caller's ranks; None if neither is given.

    Raises:
        ValueError: only one of the two is given, or they are not integers.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank is {rank} and world_size {world_size}: give both, or neither.")
    return None if rank is None else Ranks(integer("rank", rank), integer("world_size", world_size))


def ranks_now(given: Ranks | None, *, must_know: bool) -> Ranks:
    """Return the rank and world size now: as given, else from torch.distributed or the environment, else 0 of 1.

    must_know: False if the program may not have set up its processes yet: an unknown rank is 0.

    Raises:
        ValueError: WORLD_SIZE is above 1, but the rank is unknown.
    """
    if given is not None:
        return given
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1 and must_know and "RANK" not in os.environ:
        raise ValueError(
            f"WORLD_SIZE is {world_size}, but RANK is not set and torch.distributed is not initialized. Call init_process_group"
            " before, or give rank= and world_size= (0 and 1 for all rows)."
        )
    return Ranks(int(os.environ.get("RANK", "0")), world_size) if world_size > 1 else Ranks(0, 1)


def ranks_here() -> int:
    """Return the number of ranks on this host, from the launcher's variable; 1 without one."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
