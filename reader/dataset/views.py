"""Views of a store for its user: of a mapping of its own, in which he may change what he likes."""

from __future__ import annotations

import functools
import mmap

import torch

from reader.format.manifest import Manifest
from reader.store import Batch, store_of


class Views:
    """Tensors over a mapping of a store that belongs to its user.

    The storage of each is its rows alone: torch pickles, copies and sends whole storages.
    """

    def __init__(
        self, manifest: Manifest, maps: dict[str, mmap.mmap | None], made: dict[str, torch.Tensor] | None = None
    ) -> None:
        """maps: of each tensor's file, None where it has no bytes. made: those that stand in memory; they are copied."""
        self._manifest, self._maps, self._made = manifest, maps, made or {}

    def tensor(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Return rows [start, stop) of a tensor."""
        if name in self._made:
            return self._made[name][start:stop].clone()
        spec = self._manifest.tensors[name]
        dtype, shape = getattr(torch, spec.dtype), (stop - start, *spec.row_shape)
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return torch.frombuffer(self._maps[name], dtype=dtype, count=count, offset=start * spec.row_bytes).view(shape)

    def rows(self, start: int, stop: int) -> Batch:
        """Return rows [start, stop) of a store whose rows have one size."""
        return store_of(self._manifest, {name: self.tensor(name, start, stop) for name in self._manifest.tensors})

    @functools.cached_property
    def store(self) -> Batch:
        """All of the store."""
        return store_of(
            self._manifest, {name: self.tensor(name, 0, self._manifest.count(name)) for name in self._manifest.tensors}
        )
