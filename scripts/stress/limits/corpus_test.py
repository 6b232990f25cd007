"""Do the bad images of a corpus cost a good one, half a second, 300 MB, or an open file?

    python -m scripts.stress.limits.corpus_test CORPUS --images 1000 --orders 20

CORPUS holds hostile.tar and MANIFEST.csv (columns path, percent-encoded, expected, poisons_jpeg4py). Two series:

    poison    the files after which jpeg4py's handle refuses good images, shuffled among --images good ones, in --orders
              orders, each packed by one worker: every good image must become the row that it is without them
    worker    one fresh process decodes every file of the corpus as a worker of `pack` does: the slowest reject in seconds of
              its CPU, its peak of resident memory over what must be rejected and over all, and its open files before and after

Prints one line a series and one JSON object last; exits 1 where a good image was lost, a reject took more than 0.5 s, all
rejects (the bombs among them) more than 300 MB, or a file was left open.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import random
import re
import sys
import tarfile
import time
import urllib.parse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import reader
from packer import pack
from packer.options import RowOptions
from packer.pixels.geometry import Geometry
from packer.store.blocks import Task
from packer.workers.block_worker import BlockWorker, PackJob
from reader.format.manifest import SAMPLES
from reader.format.samples import read_json_lines
from scripts.common.figures import BenchmarkError
from scripts.common.program import reported

_SIZE = 32
_MOST_SECONDS = 0.5
_MOST_BYTES = 300_000_000


class CorpusError(BenchmarkError):
    """A bad image cost more than itself; says which, and what."""


def main() -> int:
    """Run both series."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("corpus", type=Path, help="folder of hostile.tar and MANIFEST.csv")
    parser.add_argument("--images", type=int, default=1000, help="good images of the first series")
    parser.add_argument("--orders", type=int, default=20, help="orders of the first series")
    options = parser.parse_args()

    def trial(work: Path) -> dict[str, Any]:
        rows = unpack(options.corpus, work / "corpus")
        poison = poison_series(work, rows, options.images, options.orders)
        return {"poison": poison, "worker": worker_series(work / "corpus", rows)}

    return reported("corpus_test", trial)


def unpack(corpus: Path, root: Path) -> list[dict[str, str]]:
    """Unpack the corpus; returns the rows of its manifest, their paths decoded."""
    with tarfile.open(corpus / "hostile.tar") as tar:
        # names and links stay as they are: they are what is tested
        tar.extractall(root, filter="fully_trusted" if hasattr(tarfile, "fully_trusted_filter") else None)
    with open(corpus / "MANIFEST.csv", encoding="utf-8", newline="") as file:
        return [row | {"path": os.fsdecode(urllib.parse.unquote_to_bytes(row["path"]))} for row in csv.DictReader(file)]


# -- poison


def poison_series(work: Path, rows: list[dict[str, str]], images: int, orders: int) -> dict[str, int]:
    """Pack good and poisonous files in many orders and compare each good row with the one of a pack without poison."""
    good, bad = make_good(work / "good", images), [str(work / "corpus" / row["path"]) for row in poisons(rows)]
    expected = rows_by_name(work, good)
    for seed in range(orders):
        order = good + bad
        random.Random(seed).shuffle(order)
        found = rows_by_name(work, order)
        wrong = [name for name in expected if found.get(name) != expected[name]]
        if wrong:
            raise CorpusError(f"seed {seed}: {len(wrong)} good images are lost or differ, {wrong[0]} among them.")
    print(
        f"poison: {len(bad)} files among {images} good ones, {orders} orders, one worker: no good image lost or changed"
    )
    return {"images": images, "poisons": len(bad), "orders": orders}


def poisons(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows of files that poison jpeg4py."""
    return [row for row in rows if row["poisons_jpeg4py"] == "True"]


def make_good(folder: Path, count: int) -> list[str]:
    """Write small JPEGs of noise, each with pixels of its own."""
    folder.mkdir()
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), np.uint8)
        Image.fromarray(pixels).resize((48, 40)).save(folder / f"{number:05}.jpg", quality=90)
    return [str(path) for path in sorted(folder.iterdir())]


def rows_by_name(work: Path, paths: list[str]) -> dict[str, tuple[dict[str, Any], bytes]]:
    """Pack a list of files with one worker; returns the record and the pixels of each good one.

    The record too: Pillow gives the same pixels for what a poisoned handle refuses, and only the record shows it.
    """
    manifest, out = work / "list.jsonl", work / "out"
    manifest.write_text("".join(json.dumps({"path": path}) + "\n" for path in paths))
    report = pack(manifest, out, size=_SIZE, workers=1, max_rejects="100%", overwrite=out.exists())
    if report.inputs != len(paths) or report.rows + report.rejected != len(paths):
        raise CorpusError(f"{len(paths)} files were listed, {report.rows} rows and {report.rejected} rejects came out.")
    data = reader.MemmapDataset(out)
    pixels, samples = data.numpy(), read_json_lines(out / SAMPLES)
    rows = ((sample, pixels[row].tobytes()) for row, sample in enumerate(samples))
    return {sample["path"]: (sample, data) for sample, data in rows if "/good/" in f"/{sample['path']}"}


# -- one worker


def worker_series(corpus: Path, rows: list[dict[str, str]]) -> dict[str, Any]:
    """Decode what must be rejected, then everything else, in one fresh process."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    # in this order, as a peak is never taken back
    order = sorted(rows, key=lambda row: row["expected"].startswith("decoded"))
    broken = sum(not row["expected"].startswith("decoded") for row in rows)
    process = context.Process(target=decode_all, args=(str(corpus), [row["path"] for row in order], broken, sending))
    process.start()
    sending.close()
    try:
        found: dict[str, Any] = receiving.recv()
    except EOFError:
        raise CorpusError("the process that decodes the corpus ended without a word.") from None
    finally:
        process.join()
    slowest, seconds = found["slowest_reject"]
    if seconds > _MOST_SECONDS:
        raise CorpusError(f"rejecting {slowest} took {seconds:.2f} s, expected at most {_MOST_SECONDS}.")
    if found["broken_peak_bytes"] > _MOST_BYTES:
        raise CorpusError(
            f"files to reject took {found['broken_peak_bytes'] / 1e6:.0f} MB, expected at most {_MOST_BYTES / 1e6:.0f}."
        )
    if found["open_after"] != found["open_before"]:
        raise CorpusError(f"{found['open_before']} files were open before the corpus, {found['open_after']} after.")
    peak, total_peak = found["broken_peak_bytes"] / 1e6, found["peak_bytes"] / 1e6
    print(
        f"worker: {len(rows)} files; slowest reject {seconds:.3f} s ({slowest}); {found['open_after']} files left open,"
    )
    print(f"        as before; peak {peak:.0f} MB over {broken} that must be rejected, {total_peak:.0f} MB over all")
    return found


def decode_all(root: str, paths: list[str], broken: int, pipe: Any) -> None:
    """Decode each file as a block of its own, as a worker does, and report what it took."""
    job = PackJob(root, os.devnull, Geometry(_SIZE, _SIZE), RowOptions())
    warnings.simplefilter("ignore")
    worker = BlockWorker(job)
    # what the libraries open once, for good
    worker.decode(Task(0, 0, [paths[-1]], [-1]))
    before, broken_peak, slowest = open_files(), 0, ("", 0.0)
    for number, path in enumerate(paths):
        started = time.process_time()
        result = worker.decode(Task(number + 1, 0, [path], [-1]))
        seconds = time.process_time() - started
        worker.write(0, 0)
        if result.rejects and seconds > slowest[1]:
            slowest = (path.encode("utf-8", "backslashreplace").decode(), seconds)
        if number + 1 == broken:
            broken_peak = peak_bytes()
    found = {"files": len(paths), "broken": broken, "slowest_reject": slowest, "broken_peak_bytes": broken_peak}
    pipe.send(found | {"peak_bytes": peak_bytes(), "open_before": before, "open_after": open_files() - 1})


def open_files() -> int:
    """Count this process's open files."""
    return len(os.listdir("/proc/self/fd"))


def peak_bytes() -> int:
    """Return the most resident memory that this process has had; getrusage would count the parent's from before exec."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 if match else 0


if __name__ == "__main__":
    sys.exit(main())
