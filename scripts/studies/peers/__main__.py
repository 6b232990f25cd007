"""Pack and read the same photographs by other libraries and by ours, in turns: who is how much faster?

    python -m scripts.studies.peers                  every peer that installs, into ./peers-results
    python -m scripts.studies.peers --only ffcv      one of them
    python -m scripts.studies.peers --redraw         table and picture again from the figures in --out

A peer is a module libraries/with_NAME.py, installed in a virtual environment of its own under --work, which is kept for
the next run; FFCV and SPDL need system packages, too, which apt-get brings where it may (PIXPACK_APT=no forbids it).

Packing: two processes, one the peer's, one ours, of which one sleeps while the other has its turn: --photographs files become
rows of --size in its format, decoded by --threads processes (or threads), by the same Pillow where the peer leaves decoding
to Python. --pack-rounds times, the processes' start included, imports not; ours also syncs its rows to disk, as it always does.
What the peer wrote is read back and compared with the rows of our store: equal to the byte, or as near as its decoder comes.

Reading: the rows of one store are written into the peer's format, the number of the row as its label. Two processes take turns
again: an epoch of batches of --batch-size, as shuffled as the peer can, from a warm page cache, with --threads threads, into
torch uint8 CPU tensors, the last short batch left out. Each also copies consecutive slices of the mapped store into a ring of
buffers, for comparison. --rounds times. Two figures of each epoch: steady, after its first 6 batches; and all of it, from
iter() to the last batch. Before, an epoch of each is checked: no row comes twice, and every eighth batch equals the store's
rows bit for bit. A peer without a packed form decodes the photographs in each epoch instead, and ours reads their rows.

Ratios are taken within a round. A peer that does not install is reported with the reason. Each becomes NAME.json; README.md and
peers.svg are of all that are in the folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

_LIBRARIES = Path(__file__).resolve().parent / "libraries"

try:
    from scripts.studies.peers import _show
except ModuleNotFoundError as e:
    sys.exit(f"scripts.studies.peers needs {e.name}: pip install 'pixpack[test]'")
import packer  # noqa: E402
from packer.errors import LockedError, ScanError  # noqa: E402
from reader import StoreError  # noqa: E402
from reader.format.manifest import PIXELS, read_manifest  # noqa: E402
from scripts.benchmarks.reading.bench_read import cached_store, verified_store  # noqa: E402
from scripts.common.arguments import Count, bench_parser  # noqa: E402
from scripts.common.figures import BenchmarkError, machine, publish  # noqa: E402
from scripts.studies.peers._environment import NotInstalled, python_with  # noqa: E402
from scripts.studies.peers._photographs import lent_pillow, photograph_store  # noqa: E402
from scripts.studies.peers._reader import PeerJob, load  # noqa: E402
from scripts.studies.peers._turns import OURS, ReadFailed, compare, compare_packing, packed  # noqa: E402

NAMES = sorted(path.stem.removeprefix("with_") for path in _LIBRARIES.glob("with_*.py") if path.stem != f"with_{OURS}")
LIBRARIES = ("torch", "numpy")


def main() -> int:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    failed = []
    try:
        stores = None if options.redraw else (given_store(options), given_photographs(options))
    except (BenchmarkError, LockedError, ScanError, StoreError, packer.PackError) as e:
        print(f"peers: {e}", file=sys.stderr)
        return 1
    for name in options.only or NAMES if stores else []:
        report = measure(name, *stores, options)
        (options.out / f"{name}.json").write_text(json.dumps(report) + "\n", encoding="ascii")
        failed += [name] if "failed" in report else []
    found = {name: json.loads(path.read_text()) for name in NAMES if (path := options.out / f"{name}.json").exists()}
    print(_show.table(found))
    _show.save(found, options.out)
    publish({"benchmark": "peers", "peers": found}, None)
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    counts = {"rounds": 20, "rows": 10_000, "size": 224, "batch_size": 256, "threads": 2}
    about = {"threads": "threads or workers of each", "work": "environments and stores stay there"}
    work = Path(tempfile.gettempdir()) / "pixpack-peers"
    parser = bench_parser(__doc__, about=about, **counts, images=None, store=None, work=work)
    parser.prog = "scripts.studies.peers"
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--photographs", action=Count, default=2048, help="files to pack, repeated (default: 2048)")
    parser.add_argument("--pack-rounds", action=Count, default=3, help="timed turns of packing (default: 3)")
    parser.add_argument("--redraw", action="store_true", help="measure nothing; draw what is in --out again")
    parser.add_argument("--out", type=Path, default=Path("peers-results"), help="default: ./peers-results")
    return parser.parse_args()


def given_store(options: argparse.Namespace) -> Path:
    """Return a whole store with enough batches, in the page cache."""
    out = (
        verified_store(options.store)
        if options.store
        else cached_store(options.work, options.rows, options.size, options.images)
    )
    return with_enough_batches(out, options)


def given_photographs(options: argparse.Namespace) -> Path:
    """Return a whole store of the photographs that are to be packed."""
    out = photograph_store(options.images, options.work, options.photographs, options.size)
    return with_enough_batches(verified_store(out), options)


def with_enough_batches(out: Path, options: argparse.Namespace) -> Path:
    batches = read_manifest(out).rows // options.batch_size
    if batches < _show.LEAST_BATCHES:
        raise BenchmarkError(
            f"{out} has {batches} batches of {options.batch_size}, expected {_show.LEAST_BATCHES} or more, of which 6 begin"
            " an epoch. Use a smaller --batch-size."
        )
    return out


def measure(name: str, store: Path, photographs: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Install a peer and time its packing and its reading; or say why that could not be."""
    print(f"peers: {name}", file=sys.stderr, flush=True)
    peer, folder = load(str(_LIBRARIES / f"with_{name}.py")), options.work / name
    report = {"peer": peer.TITLE, "machine": machine(store), "orders": peer.WAYS}
    try:
        python = python_with([f"torch=={version('torch').partition('+')[0]}", *peer.REQUIREMENTS], peer.SYSTEM, folder)
        # the one is packed from photographs, the other from rows, so that 20,000 need no decoding
        packing, reading = job_of(peer, photographs, folder, options), job_of(peer, store, folder, options)
        packing = dataclasses.replace(
            packing,
            photographs=str(options.work / "photographs"),
            pillow=str(lent_pillow(options.work)),
            levels=getattr(peer, "LEVELS", 0),
        )
        if hasattr(peer, "pack"):
            report["packing"] = compare_packing(packing, list(peer.WAYS), python, folder, options.pack_rounds)
            packed(reading, python, Path(reading.packed), folder / "pack.log")
        else:
            reading = packing
        found = compare(reading, list(peer.WAYS), python, folder / "read.log", options.rounds)
    except NotInstalled as e:
        return report | {"not_installed": str(e)}
    except ReadFailed as e:
        return report | {"failed": str(e)}
    shape = {"rows": reading.shape[0], "row_shape": reading.shape[1:]}
    shape |= {"batch_size": reading.batch_size, "threads": reading.threads}
    return report | shape | found | {"load_average_after": [round(value, 2) for value in os.getloadavg()]}


def job_of(peer: ModuleType, store: Path, folder: Path, options: argparse.Namespace) -> PeerJob:
    """Return what to do with a store's rows; their packed form is named after the store's content."""
    manifest = read_manifest(store)
    return PeerJob(
        module=str(peer.__file__),
        store=str(store),
        pixels=str(store / PIXELS),
        shape=(manifest.rows, manifest.height, manifest.width, manifest.channels),
        packed=str(folder / f"packed-{manifest.digest.removeprefix('sha256:')[:12]}"),
        batch_size=options.batch_size,
        threads=options.threads,
        libraries=(*LIBRARIES, *libraries(peer)),
    )


def libraries(peer: ModuleType) -> list[str]:
    """Name the distributions that a peer requires: "ffcv==1.0.2" -> "ffcv"."""
    return [requirement.partition("==")[0] for requirement in peer.REQUIREMENTS]


if __name__ == "__main__":
    sys.exit(main())
