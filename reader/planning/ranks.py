"""Finds out which rank of how many this process is, how many of them run on this host, and whether they share each batch.

Asks the arguments, torch.distributed, Ray Train, accelerate, and the variables that launchers set (torchrun, accelerate, Slurm
scripts: RANK, WORLD_SIZE). Starts no process group, talks to no other process and imports no framework.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch

from reader.system import available_cpus
from reader.transforms.random import integer

# Where no process group is, and a launcher set them for one.
_VARIABLES = "RANK and WORLD_SIZE"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Ranks:
    """A rank, the number of ranks, and who says so."""

    rank: int
    world_size: int
    source: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"

    @property
    def is_known(self) -> bool:
        """Say whether anything says so; else the program may still start a process group."""
        return bool(self.source)

    @property
    def is_guessed(self) -> bool:
        """Say whether only variables of the environment say so."""
        return self.source == _VARIABLES


def given_ranks(rank: int | None, world_size: int | None) -> Ranks | None:
    """Return the ranks that a caller gave; None: neither.

    Raises:
        ValueError: one of the two alone, or no integers.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank is {rank} and world_size {world_size}: give both, or neither.")
    if rank is None or world_size is None:
        return None
    return Ranks(integer("rank", rank), integer("world_size", world_size), "the arguments")


def ranks_now(given: Ranks | None) -> Ranks:
    """Return what rank this process is now: as given, else as torch.distributed, Ray Train or a launcher says, else 0 of 1.

    Raises:
        ValueError: WORLD_SIZE says that there are several, and nothing says which one this is.
    """
    ranks = ranks_expected(given)
    if ranks.is_guessed and "RANK" not in os.environ:
        raise ValueError(
            f"WORLD_SIZE is {ranks.world_size}, but RANK is not set and torch.distributed is not initialized, so the loader"
            " cannot know which rows are this process's. Call init_process_group before the first iteration, or give rank="
            " and world_size= (0 and 1 for all rows)."
        )
    return ranks


def ranks_expected(given: Ranks | None) -> Ranks:
    """Return what `ranks_now` will probably return once processes are set up; an unknown rank is 0."""
    if given is not None:
        return given
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    world_size = _variable("WORLD_SIZE", 1)
    return Ranks(_variable("RANK", 0), world_size, _VARIABLES) if world_size > 1 else Ranks(0, 1)


def ranks_here(ranks: Ranks) -> int:
    """Return the number of ranks on this host, from the variables of launchers; 1 if there are none."""
    if ranks.world_size == 1:
        return 1
    # torchrun, accelerate and Ray Train; Open MPI
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        if name in os.environ:
            return max(1, _variable(name, 1))
    # Lightning names no number of them; ranks that meet on the loopback device are all here
    return ranks.world_size if os.environ.get("MASTER_ADDR") in _LOOPBACK else 1


def share_of_cpus(processes: int) -> int:
    """Return the share of this process's CPUs that each of so many ranks of the host has, 1 or more."""
    return max(1, available_cpus() // processes)


def _variable(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "").strip()
    try:
        return int(text) if text else otherwise
    except ValueError:
        raise ValueError(f"the variable {name} is {text!r}, expected an integer.") from None
