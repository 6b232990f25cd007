#!/usr/bin/env python3
"""Run a model over a whole store, on the CPU or a CUDA device: row i of a .npy file is the embedding of row i.

    python examples/infer.py out/ embeddings.npy
    numpy.load("embeddings.npy", mmap_mode="r")[7]    # belongs to MemmapDataset("out/")[7]

`network` stands for your model. On CUDA the results come back through a ring of pinned slots on a stream of their own, while the
device works on: the way that batches take, the other way round. No GPU has run this yet, a simulated one has.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import cuda, nn

from reader import CenterCrop, Manifest, MemmapDataset, MemmapLoader, Normalize, StoreError

# One on its way, one that is written to the file, one to begin with.
SLOTS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store, as `pack` wrote it")
    parser.add_argument("out", type=Path, help="a .npy file, float32[N, K]")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--device", default="cuda" if cuda.is_available() else "cpu", help="cpu or cuda")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        data = MemmapDataset(options.store)
        crop = CenterCrop(224) if data.manifest.has_own_sizes else None
        loader = MemmapLoader(data, options.batch_size, device=options.device, transform=crop, rank=0, world_size=1)
        if loader.device.type == "cuda":
            cuda.set_device(loader.device)  # to wait for it from another one would make a context there
        embed(network(data.manifest).to(loader.device), loader, options.out)
    except (StoreError, ValueError, OSError) as e:
        sys.exit(f"infer.py: {e}")
    print(f"{options.out}: {len(data)} embeddings, of the rows of {options.store} in their order")


def network(manifest: Manifest) -> nn.Module:
    """uint8[B, C, H, W] -> float32[B, 64]; the first layer normalizes by the store's own mean and std."""
    body = [nn.Conv2d(manifest.channels, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(Normalize.of(manifest), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


@torch.inference_mode()
def embed(model: nn.Module, loader: MemmapLoader, out: Path) -> None:
    """Write float32[N, K], row i what the model makes of row i; the file has its name only when it is whole."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f"{out.name}.part")
    of_one = model(next(iter(MemmapLoader(loader.dataset, 1, device=loader.device, transform=loader.transform)))[0])
    into = np.lib.format.open_memmap(part, "w+", np.float32, (len(loader.dataset), *of_one.shape[1:]))
    results = (model(images).float() for images, _ in loader)
    start = 0
    for values in on_host(results, loader.device) if loader.device.type == "cuda" else results:
        into[start : start + len(values)] = values.numpy()
        start += len(values)
    into.flush()
    part.replace(out)


def on_host(results: Iterable[torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    """Bring each float32[B, K] from the device, in order, through pinned slots; it is good until the next is asked for.

    A slot is filled again only once its rows were written, a result's memory only once it was copied (record_stream).
    """
    stream = cuda.Stream(device)
    slots: list[torch.Tensor] = []
    coming: deque[tuple[cuda.Event, torch.Tensor]] = deque()  # oldest first: when its copy has ended, where it goes
    for n, result in enumerate(results):
        if n < SLOTS:
            slots.append(torch.empty_like(result, device="cpu", pin_memory=True))
        else:
            copied, slot = coming.popleft()
            copied.synchronize()
            yield slot
        slot, copied = slots[n % SLOTS][: len(result)], cuda.Event(blocking=True)
        stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(stream):
            slot.copy_(result, non_blocking=True)
            copied.record(stream)
        result.record_stream(stream)
        coming.append((copied, slot))
    for copied, slot in coming:
        copied.synchronize()
        yield slot


if __name__ == "__main__":
    main()
