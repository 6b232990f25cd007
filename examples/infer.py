#!/usr/bin/env python3
"""Run a model over a whole store, on the CPU or a CUDA device: row i of a .npy file is the embedding of row i.

    python examples/infer.py out/ embeddings.npy
    numpy.load("embeddings.npy", mmap_mode="r")[7]    # belongs to MemmapDataset("out/")[7]

`network` stands for your model. On CUDA the results come back through a ring of pinned slots on a stream of their own, while the
device works on: the way that batches take, the other way round. No GPU has run this yet.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import deque
from pathlib import Path

import numpy as np
import torch
from torch import cuda, nn

from reader import Manifest, MemmapDataset, MemmapLoader, Normalize, StoreError

# One on its way, one that is written to the file, one to begin with.
SLOTS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store, as `pack` wrote it")
    parser.add_argument("out", type=Path, help="a .npy file, float32[N, K]")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--device", default="cuda" if cuda.is_available() else "cpu", help="cpu or cuda")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        data = MemmapDataset(options.store)
        loader = MemmapLoader(data, options.batch_size, device=options.device, rank=0, world_size=1)
        embed(network(data.manifest).to(loader.device), loader, options.out)
    except (StoreError, ValueError, OSError) as e:
        print(f"infer.py: {e}", file=sys.stderr)
        return 1
    print(f"{options.out}: {len(data)} embeddings, of the rows of {options.store} in their order")
    return 0


def network(manifest: Manifest) -> nn.Module:
    """uint8[B, C, H, W] -> float32[B, 64]; the first layer normalises by the store's own mean and std."""
    body = [nn.Conv2d(manifest.channels, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(Normalize.of(manifest), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


@torch.inference_mode()
def embed(model: nn.Module, loader: MemmapLoader, out: Path) -> None:
    """Write float32[N, K], row i what the model makes of row i; the file has its name only when it is whole."""
    part = out.with_name(f"{out.name}.part")
    into: np.ndarray | None = None
    ring, start = None, 0
    for batch in loader:
        result = model(batch.images).float()
        if into is None:
            shape = (len(loader.dataset), *result.shape[1:])
            into = np.lib.format.open_memmap(part, "w+", np.float32, shape)
            ring = HostRing(into, loader.device) if loader.device.type == "cuda" else None
        if ring is None:
            into[start : start + len(result)] = result.numpy()
        else:
            ring.put(start, result)
        start += len(result)
    if into is None:
        raise ValueError(f"{loader.dataset.path} has no rows.")
    if ring is not None:
        ring.flush()
    into.flush()
    os.replace(part, out)


class HostRing:
    """Brings results from a device to rows of an array, through pinned slots that are allocated once.

    Two hazards. A slot is filled again only once its rows were written. A result's memory may be used again by the next
    kernels once the loop drops it: the copying stream is recorded on it.
    """

    def __init__(self, into: np.ndarray, device: torch.device) -> None:
        self._into, self._device = into, device
        self._stream = cuda.Stream(device)
        self._free: list[torch.Tensor] = []
        # oldest first: when its copy has ended, the slot, where its rows go, and how many
        self._coming: deque[tuple[cuda.Event, torch.Tensor, int, int]] = deque()

    def put(self, start: int, result: torch.Tensor) -> None:
        """Start to bring a result, float32[B, K], of the caller's current stream, to rows start, start + 1, ..."""
        if not self._coming and not self._free:
            self._free = [pinned_like(result) for _ in range(SLOTS)]
        if not self._free:
            self._write_oldest()
        slot = self._free.pop()
        made, there = cuda.Event(blocking=True), cuda.Event(blocking=True)
        made.record(cuda.current_stream(self._device))
        with cuda.stream(self._stream):
            self._stream.wait_event(made)
            start_copy(slot[: len(result)], result)
            there.record(self._stream)
        result.record_stream(self._stream)
        self._coming.append((there, slot, start, len(result)))

    def flush(self) -> None:
        """Wait for all that is on its way and write it."""
        while self._coming:
            self._write_oldest()

    def _write_oldest(self) -> None:
        there, slot, start, count = self._coming.popleft()
        there.synchronize()
        self._into[start : start + count] = slot[:count].numpy()
        self._free.append(slot)


def pinned_like(result: torch.Tensor) -> torch.Tensor:
    """Allocate pinned memory for a result."""
    return torch.empty(result.shape, dtype=result.dtype, pin_memory=True)


def start_copy(slot: torch.Tensor, result: torch.Tensor) -> None:
    """Copy on the current stream, without waiting."""
    slot.copy_(result, non_blocking=True)


if __name__ == "__main__":
    sys.exit(main())
