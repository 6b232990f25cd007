"""What does a Ray cluster cost: the same pack on this machine's processes and on a cluster of two nodes on it?

    python -m scripts.benchmarks.packing.bench_ray --images 5000 --rounds 5

Both ways take turns with the same number of workers, on nodes that share this machine's CPUs; both stores must be the same
bytes. `running` is from the first committed block to the last, `whole` is all of the call: it includes joining the cluster
and starting its workers. Ratios are of Ray to local within a round.

What more workers would do is a model of what is measured here: a worker's seconds an image by stage (local), what the
command's process spends on an image with so many connections (_driver.py), and its journal. The slowest of the three decides;
that the file system takes the rows so fast, and that hosts have a core for each worker, is assumed. Prints tables, and one
JSON object last.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from packer import pack
from packer.clock import Profile, added
from packer.report import Progress
from reader.format.check import check_store
from scripts.benchmarks.packing import _driver
from scripts.common.arguments import bench_parser
from scripts.common.figures import BenchmarkError, machine, photographs, ratios, repeat_files, spread
from scripts.common.program import reported
from scripts.common.timing import in_turns, timed


def main() -> int:
    """Time both ways in turns."""
    parser = bench_parser(__doc__, about={"workers": "half of them on each node"}, size=224, workers=2, rounds=5)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument(
        "--model", type=int, nargs="*", default=[8, 64, 512], metavar="WORKERS", help="numbers to model"
    )
    options = parser.parse_args()
    return reported("bench_ray", lambda work: measure(work, options), text=text)


def text(result: dict[str, Any]) -> str:
    """Draw the report for a person."""
    lines = []
    for name in ("running", "total"):
        local, ray, ratio = (result[name][way]["median"] for way in ("local_seconds", "ray_seconds", "ratio"))
        lines.append(f"{name:8} local {local:6.2f} s, ray {ray:6.2f} s, ratio {ratio:.3f}")
    lines.append("ms an image: " + ", ".join(f"{name} {value:.3f}" for name, value in result["milliseconds"].items()))
    form = "{workers:4} workers: {decoded:7,} decoded, {served:7,} served, {recorded:7,} recorded images/s"
    return "\n".join([*lines, *(form.format(**row) for row in result["model"])])


def measure(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Make the photographs and the cluster, and take turns."""
    try:
        from ray.cluster_utils import Cluster
    except ImportError:
        raise BenchmarkError("ray is not installed: pip install 'pixpack[ray]'.") from None
    repeat_files(photographs(None, work, options.size), work / "images", options.images, link=False)
    node = {"num_cpus": -(-options.workers // 2), "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        ways = {"local": {}, "ray": {"engine": "ray", "address": cluster.address}}
        turns = {way: partial(pack_seconds, work, options, chosen) for way, chosen in ways.items()}
        times = in_turns(turns, options.rounds, untimed=1)
    finally:
        cluster.shutdown()
    result: dict[str, Any] = {"images": options.images, "workers": options.workers}
    result |= {"size": options.size, "rounds": options.rounds, "machine": machine(work)}
    for index, name in enumerate(("running", "total")):
        local, ray = ([turn[index] for turn in times[way]] for way in ways)
        result[name] = {"local_seconds": spread(local, 3), "ray_seconds": spread(ray, 3), "ratio": ratios(ray, local)}
    costs = milliseconds(times["local"][0][2], options.images)
    return result | {"milliseconds": costs, "model": [modelled(costs, workers) for workers in options.model]}


def milliseconds(profile: Profile, images: int) -> dict[str, float]:
    """Return what an image costs a worker by stage, and the thread that commits; idle and starting left out."""
    workers = added([{"": stages} for name, stages in profile.items() if name.startswith("worker")])[""]
    spent = {stage: seconds for stage, seconds in workers.items() if stage not in ("wait", "start")}
    spent |= {stage: profile["commit"].get(stage, 0.0) for stage in ("sync", "journal")}
    return {stage: seconds / images * 1e3 for stage, seconds in spent.items()}


def modelled(costs: dict[str, float], workers: int) -> dict[str, int]:
    """Return images a second that so many workers decode and write, and that the command's process serves and records."""
    worker = sum(spent for stage, spent in costs.items() if stage not in ("sync", "journal"))
    served = _driver.driver_seconds(workers, max(4 * workers, 200))
    rates = {"decoded": workers * 1e3 / worker, "served": 1 / served, "recorded": 1e3 / costs["journal"]}
    return {"workers": workers} | {name: round(rate) for name, rate in rates.items()}


def pack_seconds(work: Path, options: argparse.Namespace, chosen: dict[str, Any]) -> tuple[float, float, Profile]:
    """Pack once; returns seconds from the first committed block to the last, of the complete call, and its profile."""
    marks: list[float] = []

    def mark(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done:
            marks.append(time.monotonic())

    shape: dict[str, Any] = {"size": options.size, "workers": options.workers}
    report, total = timed(lambda: pack(work / "images", work / "out", progress=mark, **shape, **chosen))
    digest = check_store(work / "out").digest
    if (work / "digest").exists() and (work / "digest").read_text() != digest:
        raise BenchmarkError("the two stores are not the same bytes.")
    (work / "digest").write_text(digest)
    shutil.rmtree(work / "out")
    return marks[-1] - marks[0], total, report.profile


if __name__ == "__main__":
    sys.exit(main())
