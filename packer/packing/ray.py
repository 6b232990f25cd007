"""Packing on a Ray cluster: parts of the listed inputs are tasks, which Ray places and retries; then they are sealed.

All nodes share IMAGES and OUT. A task packs its part as `pack --part` does, on one CPU.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from packer.errors import EngineError, PackError
from packer.inputs.samples import Inputs
from packer.option_names import Option
from packer.options import PackOptions
from packer.packing.parts import PackStores, pack_part, seal_parts
from packer.progress import notify
from packer.report import PackReport, Progress
from packer.store.destination import Folder
from packer.store.parts import Part

# Inputs per part, which is a Ray task: a few seconds of packing.
RAY_PART_INPUTS = 512

# Far more parts than a cluster has CPUs: a lost or slow node then costs little.
_MOST_PARTS = 1000
# Another node may be lost while parts are retried.
_TRIES = 5


def pack_by_ray(parts: dict[str, Inputs], to: Folder, options: PackOptions, pack: PackStores) -> PackReport:
    """Pack the inputs of each split by tasks, and seal their parts; pack makes one part.

    Raises:
        PackError: Ray is not installed, its cluster cannot be reached, or a part cannot be packed; packed parts are kept.
    """
    try:
        import ray
    except ImportError:
        raise PackError(f"{Option('engine', 'ray')} needs ray: pip install 'pixpack[ray]'.") from None
    total = sum(map(len, parts.values()))
    # from the inputs alone: any run of the same inputs has the same parts
    count = max(1, min(_MOST_PARTS, total // RAY_PART_INPUTS))
    is_ours = not ray.is_initialized()
    try:
        if is_ours:
            ray.init(log_to_driver=False)
        listed = ray.put(parts)
        task: Any = ray.remote(num_cpus=1, max_retries=_TRIES)(_pack_part)
        own = replace(options, engine="local", workers=1, progress=None)
        numbers = range(1, count + 1)
        done = rejected = 0
        # the first part alone: an error common to all parts ends the pack there
        for some in (numbers[:1], numbers[1:]):
            tasks = [task.remote(listed, to.out, Part(number, count), own, pack) for number in some]
            for inputs, rejects in _ended(ray, tasks):
                done, rejected = done + inputs, rejected + rejects
                notify(Progress("pack", done, total, rejected))
    except (ray.exceptions.RayError, ConnectionError, EngineError) as e:
        cause = getattr(e, "cause", None) or e
        first = next(iter(str(cause).splitlines()), "")
        raise PackError(
            f"packing on Ray stopped: {first or type(cause).__name__}. Packed images are kept: give the same command again."
        ) from None
    finally:
        if is_ours:
            ray.shutdown()
    return seal_parts(to.out, max_rejects=options.max_rejects)


def _pack_part(
    parts: dict[str, Inputs], out: Any, part: Part, options: PackOptions, pack: PackStores
) -> tuple[int, int]:
    """Pack one part in a process of Ray; returns its inputs and rejects."""
    report = pack_part(parts, Folder(out), replace(options, part=str(part)), time.perf_counter(), pack)
    return report.inputs, report.rejected


def _ended(ray: Any, tasks: list[Any]) -> Iterator[tuple[int, int]]:
    """Yield the result of each task as it ends, or raise its error."""
    while tasks:
        ended, tasks = ray.wait(tasks)
        yield from ray.get(ended)
