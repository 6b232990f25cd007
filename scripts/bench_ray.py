#!/usr/bin/env python3
"""What does a Ray cluster cost: the same pack on this machine's processes and on a cluster of two nodes on it?

    python scripts/bench_ray.py --images 5000 --rounds 5

Both ways take turns with the same number of workers, on nodes that share this machine's CPUs; both stores must be the same
bytes. `running` is from the first committed block to the last, `whole` is all of the call: it includes joining the cluster
and starting its workers. Ratios are of Ray to local within a round. Prints a table, and one JSON object last.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _bench import BenchError, machine, photographs, repeat_files, spread

from packer import pack
from packer.report import Progress
from reader.manifest import check_store


def main() -> int:
    """Time both ways in turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=2, help="half of them on each node")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="pixpack-ray-") as folder:
            result = measure(Path(folder), options)
    except BenchError as e:
        print(f"bench_ray: {e}", file=sys.stderr)
        return 1
    for name in ("running", "whole"):
        local, ray, ratio = (result[name][way]["median"] for way in ("local_seconds", "ray_seconds", "ratio"))
        print(f"{name:8} local {local:6.2f} s, ray {ray:6.2f} s, ratio {ratio:.3f}")
    print(json.dumps(result))
    return 0


def measure(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Make the photographs and the cluster, and take turns."""
    try:
        from ray.cluster_utils import Cluster
    except ImportError:
        raise BenchError("ray is not installed: pip install 'pixpack[ray]'.") from None
    repeat_files(photographs(None, work, options.size), work / "images", options.images, link=False)
    node = {"num_cpus": -(-options.workers // 2), "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        ways = {"local": {}, "ray": {"engine": "ray", "address": cluster.address}}
        times = [
            {way: timed(work, options, chosen) for way, chosen in ways.items()} for _ in range(options.rounds + 1)
        ][1:]
    finally:
        cluster.shutdown()
    result: dict[str, Any] = {"benchmark": "bench_ray", "images": options.images, "workers": options.workers}
    result |= {"size": options.size, "rounds": options.rounds, "machine": machine(work)}
    for place, name in enumerate(("running", "whole")):
        local, ray = ([turn[way][place] for turn in times] for way in ways)
        ratios = [b / a for a, b in zip(local, ray, strict=True)]
        seconds = {"local_seconds": spread(local, 3), "ray_seconds": spread(ray, 3)}
        result[name] = seconds | {"ratio": spread(ratios, 3)}
    return result


def timed(work: Path, options: argparse.Namespace, chosen: dict[str, Any]) -> tuple[float, float]:
    """Pack once; returns seconds from the first committed block to the last, and of the whole call."""
    marks: list[float] = []

    def mark(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done:
            marks.append(time.monotonic())

    begun = time.monotonic()
    pack(work / "images", work / "out", size=options.size, workers=options.workers, progress=mark, **chosen)
    whole = time.monotonic() - begun
    digest = check_store(work / "out").digest
    if (work / "digest").exists() and (work / "digest").read_text() != digest:
        raise BenchError("the two stores are not the same bytes.")
    (work / "digest").write_text(digest)
    shutil.rmtree(work / "out")
    return marks[-1] - marks[0], whole


if __name__ == "__main__":
    sys.exit(main())
