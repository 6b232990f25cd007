#!/usr/bin/env python3
"""Run a trained network over all rows of a store, on the CPU or CUDA: row i of a .npy file belongs to row i of the store.

    python examples/train.py out/ --checkpoint run.pt && python examples/infer.py out/ scores.npy --checkpoint run.pt
    python examples/infer.py new/ embeddings.npy --checkpoint run.pt --trained-on out/ --embeddings

Writes scores of each class, or the input of the last layer; the images may have no labels. On CUDA, results come back through
a ring of pinned slots on a separate stream.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from checkpoints import restore
from network import network, side_of
from torch import cuda, nn

from pixpack import MemmapDataset, MemmapLoader, ResizeCenterCrop, StoreError

SLOTS = 3  # one under way, one being written to the file, one to start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store, as `pack` wrote it")
    parser.add_argument("out", type=Path, help="a .npy file, float32[N, K]")
    parser.add_argument("--checkpoint", type=Path, required=True, help="as train.py left it")
    parser.add_argument("--trained-on", metavar="STORE", help="the store that train.py had; default: this one")
    parser.add_argument("--model", default="small", help="the --model that train.py had")
    parser.add_argument("--embeddings", action="store_true", help="what the last layer gets, not its scores")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--device", default="cuda" if cuda.is_available() else "cpu", help="cpu or cuda")
    options = parser.parse_args()
    try:
        data, trained = MemmapDataset(options.store), MemmapDataset(options.trained_on or options.store)
        crop = ResizeCenterCrop(side_of(trained.manifest))  # as train.py measures accuracy
        # as_tuple=False: rows may have no label, which a loop over (images, targets) refuses
        loader = MemmapLoader(
            data, options.batch_size, device=options.device, transform=crop, rank=0, world_size=1, as_tuple=False
        )
        model = network(trained.manifest, options.model).to(loader.device).eval()
        restore(options.checkpoint, {"model": model}, loader.device)
        if options.embeddings:
            *_, last = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
            last.register_forward_hook(lambda layer, got, scores: got[0])
        if loader.device.type == "cuda":
            cuda.set_device(loader.device)  # waiting for it with another device current would make a context there
        write(model, loader, options.out)
    except (StoreError, ValueError, OSError, ImportError) as e:
        sys.exit(f"infer.py: {e}")
    print(f"{options.out}: {'embeddings' if options.embeddings else 'scores'} of {len(data)} rows, in their order")


@torch.inference_mode()
def write(model: nn.Module, loader: MemmapLoader, out: Path) -> None:
    """Write float32[N, K], row i the model's output for row i; the file gets its name only when it is complete."""
    part = out.with_name(f"{out.name}.part")
    results = (model(batch.images).float() for batch in loader)
    start = 0
    for values in on_host(results, loader.device) if loader.device.type == "cuda" else results:
        if start == 0:
            into = np.lib.format.open_memmap(part, "w+", np.float32, (len(loader.dataset), *values.shape[1:]))
        into[start : start + len(values)] = values.numpy()
        start += len(values)
    into.flush()
    part.replace(out)


def on_host(results: Iterable[torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    """Bring each float32[B, K] from the device, in order, through pinned slots; each is valid until the next request.

    A slot is reused only once its rows were written, and a result's memory only once it was copied (record_stream).
    """
    stream = cuda.Stream(device)
    slots: list[torch.Tensor] = []
    coming: deque[tuple[cuda.Event, torch.Tensor]] = deque()  # oldest first: the end of its copy, and its slot
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
