#!/usr/bin/env python3
"""See where the time of a training loop goes: torch.profiler over some of its steps, as a Chrome trace.

    python examples/profile_loader.py out/ profile/
    nsys profile ... python examples/profile_loader.py out/ profile/ --device cuda --nvtx      (the first one prints it)

Writes trace.json, for chrome://tracing and Perfetto. Where pixpack.wait is long in the loop's thread, the loop waits for data;
in the loader's, data wait for the loop. The profiler looks away for the first steps, in which queues fill and memory is touched
for the first time. `pack bench --trace` does the like without a network.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from network import datasets, network, views
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from pixpack import MemmapLoader, StoreError
from reader.bench import loop_ms

# Steps that the profiler leaves out, runs without recording (its own start is slow), and records.
SCHEDULE = {"wait": 2, "warmup": 2, "active": 8}
NSYS = "nsys profile --trace=cuda,nvtx,osrt --output={} python examples/profile_loader.py {} {} --device cuda --nvtx"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store with classes, as `pack` wrote it")
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--nvtx", action="store_true", help="name the stages for nsys instead; needs CUDA")
    options = parser.parse_args()
    try:
        train, _ = datasets(options.store, None)
        learn, _ = views(train.manifest)
        loader = MemmapLoader(train, options.batch_size, shuffle=True, device=options.device, transform=learn)
        options.folder.mkdir(parents=True, exist_ok=True)
        (under_nsys if options.nvtx else under_profiler)(loader, options.folder)
    except (StoreError, ValueError) as e:
        print(f"profile_loader.py: {e}", file=sys.stderr)
        return 1
    print(f"With NVIDIA's nsys: {NSYS.format(options.folder / 'nsys', options.store, options.folder)}")
    return 0


def under_profiler(loader: MemmapLoader, folder: Path) -> None:
    trace = folder / "trace.json"
    # without this the profiler sees the thread alone that started it, and not the loader's
    all_threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    cuda = [ProfilerActivity.CUDA] if loader.device.type == "cuda" else []
    with profile(
        activities=[ProfilerActivity.CPU, *cuda],
        schedule=schedule(**SCHEDULE, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
        experimental_config=all_threads,
    ) as profiler:
        steps(loader, profiler.step)
    for stage, milliseconds in sorted(loop_ms(json.loads(trace.read_text(encoding="utf-8"))).items()):
        print(f"the loop: {milliseconds:,.1f} ms in {stage}")
    print(f"wrote {trace}")


def under_nsys(loader: MemmapLoader, folder: Path) -> None:
    """Run the same steps with every record_function as an NVTX range: nsys does the recording."""
    if loader.device.type != "cuda":
        raise ValueError("--nvtx names ranges for nsys, which follows CUDA. Leave it out on a CPU.")
    with torch.autograd.profiler.emit_nvtx():
        steps(loader, lambda: None)


def steps(loader: MemmapLoader, done: Callable[[], None]) -> None:
    """Train on as many batches as the schedule has, over as many epochs as that takes; done() ends a step."""
    model = network(loader.dataset.manifest).to(loader.device)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for images, targets in itertools.islice(batches, sum(SCHEDULE.values())):
        with record_function("pixpack.step"):
            loss = torch.nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        done()
    loader.close()


if __name__ == "__main__":
    sys.exit(main())
