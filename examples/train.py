#!/usr/bin/env python3
"""Train a classifier on a packed store with the standard recipe for ResNets, on the CPU or a CUDA device.

    python examples/train.py out/ --images images/ --model resnet50 --epochs 90 --batch-size 256 --checkpoint run.pt --compile

With --images, a missing store is packed first, as `pack images/ out/ --fit none --max-size 512` does.

SGD with warmup, a cosine and label smoothing; random crops and flips on the device. Without --val, a tenth of each class is held
out. With --checkpoint the same command continues after an interruption, even in the middle of an epoch, to the same weights.
With --trace, torch.profiler records the work of each thread in steps 5 to 12, for chrome://tracing and Perfetto. NVIDIA's nsys:

    nsys profile --trace=cuda,nvtx,osrt --pytorch=autograd-nvtx python examples/train.py out/ --steps 20
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from pathlib import Path

import torch
from checkpoints import restore, save
from network import accuracy, datasets, network, recipe, views
from torch import nn, profiler

from pixpack import MemmapLoader, PackError, StoreError, packed

SAVE_EVERY_STEPS = 500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store, as `pack` wrote it")
    parser.add_argument("--images", help="pack these into it first, where it is not there yet or not finished")
    parser.add_argument("--model", default="small", help="resnet50 or another of torchvision; default: a small one")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.5, help="for batches of 256; scaled by the batch size")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--val", metavar="STORE", help="measure accuracy on this one")
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction, help="bfloat16 arithmetic; default: on CUDA")
    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="torch.compile the network")
    parser.add_argument("--checkpoint", type=Path, help="continue from this file if it exists; written on the way")
    parser.add_argument("--steps", type=int, default=sys.maxsize, help="stop after so many")
    parser.add_argument("--trace", type=Path, metavar="JSON", help="write a Chrome trace of a few steps")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        if options.images:
            packed(options.images, options.store, fit="none", max_size=512)
        train, held_out = datasets(options.store, options.val)
        learn, look = views(train.manifest)
        loader = MemmapLoader(train, options.batch_size, shuffle=True, device=options.device, transform=learn)
        val_loader = MemmapLoader(held_out, options.batch_size, device=options.device, transform=look)
        model = network(train.manifest, options.model).to(loader.device)
        with tracer(options.trace) if options.trace else contextlib.nullcontext() as trace:
            fit(model, loader, val_loader, options, trace)
    except (PackError, StoreError, ValueError, OSError, ImportError) as e:
        print(f"train.py: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("train.py: interrupted. With --checkpoint the same command continues.", file=sys.stderr)
        return 130
    return 0


def tracer(file: Path) -> profiler.profile:
    """Make a profiler that records all threads for a few steps, after the queues have filled."""
    return profiler.profile(
        schedule=profiler.schedule(wait=2, warmup=2, active=8, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(file)),
        # without this, the profiler sees only the loop's thread, not the loader's
        experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True),
    )


def fit(
    model: nn.Module,
    loader: MemmapLoader,
    val_loader: MemmapLoader,
    options: argparse.Namespace,
    trace: profiler.profile | None,
) -> None:
    """Train from the checkpoint on, and print a line per epoch."""
    optimizer, schedule = recipe(model, options.lr * options.batch_size / 256, options.epochs * len(loader))
    checkpoint, left = options.checkpoint, options.steps
    parts = {"loader": loader, "model": model, "optimizer": optimizer, "schedule": schedule}
    if checkpoint and checkpoint.exists():
        restore(checkpoint, parts, loader.device)
    if options.compile:
        model.compile(backend=options.compile)
    is_half = loader.device.type == "cuda" if options.amp is None else options.amp
    autocast = torch.autocast(loader.device.type, torch.bfloat16, enabled=is_half)
    while left and (epoch := loader.state_dict()["epoch"]) < options.epochs:
        model.train()
        images, start = 0, time.perf_counter()
        sums = torch.zeros(2, device=loader.device)  # kept until the end: reading them waits for the device
        for steps, (pixels, targets) in enumerate(itertools.islice(loader, left), start=1):
            with autocast:
                scores = model(pixels)
                loss = nn.functional.cross_entropy(scores, targets, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if trace:
                trace.step()
            sums += torch.stack([loss.detach() * len(targets), (scores.argmax(1) == targets).sum()])
            images += len(targets)
            if checkpoint and steps % SAVE_EVERY_STEPS == 0:
                save(checkpoint, parts)
        left -= steps
        loss, right = (sums / images).tolist()
        rate = images / (time.perf_counter() - start)
        if checkpoint:
            save(checkpoint, parts)
        state = loader.state_dict()
        if state["epoch"] == epoch:
            ahead = len(loader) - state["position"] // options.batch_size
            print(f"epoch {epoch + 1}: stopped {ahead} steps before its end, loss {loss:.4f}")
            return
        with autocast:
            unseen = accuracy(model, val_loader)
        print(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {right:.3f}, held out {unseen:.3f}, {rate:,.0f} images/s")


if __name__ == "__main__":
    sys.exit(main())
