"""Read the same rows from object storage by LitData, Mosaic Streaming and ours, in turns over one link: who is how much faster?

    python -m scripts.studies.peers.remote --rows 4000 --rounds 3 --latency-ms 50 --megabytes-per-second 100

The rows of one store are written into each peer's format, see scripts.studies.peers. A server on loopback, in a process of its
own, answers GET and HEAD as S3 does, after a latency, over a bandwidth that all connections share. In turns each library reads
two epochs of shuffled batches in a process of its own, with an empty cache that holds all: the first fetches, the second reads
the cache. Peers have --threads workers. Opening is not timed, the start of workers is; every eighth batch is compared with the
store, outside of the clock. Ratios are taken within a round.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from scripts.benchmarks.reading.bench_read import cached_store
from scripts.common.arguments import bench_parser
from scripts.common.figures import BenchmarkError, machine, publish, table
from scripts.common.shaped_server import serving
from scripts.studies.peers.__main__ import job_of
from scripts.studies.peers._environment import NotInstalled, clean, python_with
from scripts.studies.peers._reader import PeerJob, load
from scripts.studies.peers._turns import ReadFailed, packed

_LIBRARIES = Path(__file__).resolve().parent / "libraries"
_OURS = "pixpack"
_PEERS = ("litdata", "streaming")
_LONGEST_SECONDS = 600


def main() -> int:
    """Measure, and print a table and one JSON object last."""
    work = Path(tempfile.gettempdir()) / "pixpack-peers"
    parser = bench_parser(__doc__, rows=1000, rounds=3, size=160, batch_size=64, threads=1, work=work, json=None)
    parser.add_argument("--latency-ms", type=float, default=50.0, help="until a request is answered (default: 50)")
    parser.add_argument("--megabytes-per-second", type=float, default=100.0, help="of the link (default: 100)")
    options = parser.parse_args()
    try:
        report = measure(options)
    except (BenchmarkError, NotInstalled, ReadFailed, ValueError) as e:
        print(f"peers.remote: {e}", file=sys.stderr)
        return 1
    print(text(report))
    publish(report, options.json)
    return 0


class RemoteReader(NamedTuple):
    """What reads, with which Python, and the folder that is served to it."""

    job: PeerJob
    python: Path
    served: Path


def measure(options: Any) -> dict[str, Any]:
    """Let each library read, --rounds times."""
    store = cached_store(options.work, options.rows, options.size)
    libraries = {name: _prepared(name, store, options) for name in (*_PEERS, _OURS)}
    latency, rate = options.latency_ms / 1e3, options.megabytes_per_second * 1e6
    found: dict[str, list[list[dict[str, float]]]] = {name: [] for name in libraries}
    with tempfile.TemporaryDirectory(prefix="pixpack-peers-") as scratch:
        bucket = Path(scratch, "root", "bucket")
        bucket.mkdir(parents=True)
        for name, library in libraries.items():
            (bucket / name).symlink_to(library.served.resolve())
        with serving(bucket.parent, latency, rate) as endpoint:
            for number in range(options.rounds):
                first = number % len(libraries)
                for name in [*libraries][first:] + [*libraries][:first]:
                    found[name].append(_turn(libraries[name], name, endpoint, Path(scratch, "cache")))
    return {
        "benchmark": "peers_remote",
        "machine": machine(store),
        "rows": options.rows,
        "size": options.size,
        "batch_size": options.batch_size,
        "threads": options.threads,
        "latency_ms": options.latency_ms,
        "megabytes_per_second": options.megabytes_per_second,
        "rounds": options.rounds,
        "libraries": {name: _summary(found[name], found[_OURS]) for name in libraries},
        "load_average_after": [round(value, 2) for value in os.getloadavg()],
    }


def _prepared(name: str, store: Path, options: Any) -> RemoteReader:
    """Install a library and write the rows in its format, unless an earlier run has; ours reads the store."""
    peer, folder = load(str(_LIBRARIES / f"with_{name}.py")), options.work / f"{name}-remote"
    job = job_of(peer, store, folder, options)
    if name == _OURS:
        return RemoteReader(job, Path(sys.executable), store)
    requirements = [f"torch=={version('torch').partition('+')[0]}", *peer.REQUIREMENTS, *peer.REMOTE]
    python = python_with(requirements, peer.SYSTEM, folder)
    return RemoteReader(job, python, packed(job, python, Path(job.packed), folder / "pack.log"))


def _turn(library: RemoteReader, name: str, endpoint: str, cache: Path) -> list[dict[str, float]]:
    """Read two epochs in a new process, with an empty cache."""
    environment = (dict(os.environ) if name == _OURS else clean()) | {
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "S3_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }
    job = json.dumps(dataclasses.asdict(library.job))
    words = ["-m", "scripts.studies.peers._remote_reader", job, f"s3://bucket/{name}"]
    done = subprocess.run(
        [str(library.python), *words, str(cache)],
        capture_output=True,
        env=environment,
        text=True,
        timeout=_LONGEST_SECONDS,
    )
    shutil.rmtree(cache, ignore_errors=True)
    if done.returncode:
        says = [line for line in done.stderr.splitlines() if "Error" in line] or done.stderr.splitlines()
        raise ReadFailed(f"{name}: {(says or ['it ended without a word'])[-1].strip()}")
    answer: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _summary(turns: list[list[dict[str, float]]], ours: list[list[dict[str, float]]]) -> dict[str, Any]:
    """Return medians of images/s of each epoch, of seconds to the first batch, and of our speed over theirs in a round."""
    summary: dict[str, Any] = {
        "first_batch_seconds": round(statistics.median(turn[0]["first_batch"] for turn in turns), 3)
    }
    for epoch, name in enumerate(("first", "second")):
        speeds, own = ([t[epoch]["images"] / t[epoch]["seconds"] for t in some] for some in (turns, ours))
        ratio = statistics.median(a / b for a, b in zip(own, speeds, strict=True))
        summary[name] = {"images_per_second": round(statistics.median(speeds), 1), "ours_to_it": round(ratio, 2)}
    return summary


def text(report: dict[str, Any]) -> str:
    """Return a table."""
    lines = [["", "first batch, s", "first epoch, images/s", "ours to it", "second epoch, images/s", "ours to it"]]
    for name, found in report["libraries"].items():
        cells = [str(found[epoch][key]) for epoch in ("first", "second") for key in ("images_per_second", "ours_to_it")]
        lines.append([name, str(found["first_batch_seconds"]), *cells])
    link = f"{report['latency_ms']:.0f} ms, {report['megabytes_per_second']:.0f} MB/s"
    return f"{report['rows']} rows over a link of {link}, {report['rounds']} rounds: medians\n{table(lines)}"


if __name__ == "__main__":
    sys.exit(main())
