"""What bounds packing of other inputs than photographs of 500 x 375: of large ones, of small ones, of very many?

    python -m scripts.benchmarks.packing.bench_inputs large    # photographs of 4000 x 3000, with DCT scaling and with --exact
    python -m scripts.benchmarks.packing.bench_inputs small    # 60,000 PNGs of 32 x 32 and a tar of them, beside reading them
    python -m scripts.benchmarks.packing.bench_inputs icc      # photographs without ICC profile, with sRGB's, with Display P3's
    python -m scripts.benchmarks.packing.bench_inputs objects  # photographs in S3 on loopback, 30 ms late, and in a folder
    python -m scripts.benchmarks.packing.bench_inputs many     # list a million files, pack 1,000 and all: seconds, memory

Photographs have 500 x 375. All but many run in turns, which one begins moves on by one each run; files are in the page cache.
Checked: no input is rejected; DCT-scaled rows are within 2 levels of exact ones on average. small: `decode` is Pillow's open and
load, as any program decodes; `row` makes rows as pack does, and drops them. objects: by the command, from a server on
the same cores. many makes hard links of a few JPEGs of 8 x 8. Its memory is the peak of the share (PSS)
of anonymous and shared pages, looked at every 10 ms. Linux only.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms

import packer
from packer.cli.messages import profile_table
from packer.inputs.scan import scan
from packer.pixels.formats.jpeg import profile_segments
from packer.progress import listening
from packer.report import Progress
from packer.sources.local import LocalSource
from reader.format.manifest import PIXELS, read_manifest
from scripts.benchmarks.packing._pack_ways import ListedFolder, Task, command_environment, in_processes, make_rows
from scripts.benchmarks.packing.bench_pack import SCALED_LEVELS, seen, watched_pack
from scripts.common.arguments import bench_parser
from scripts.common.figures import BenchmarkError, machine, ratios, spread, table
from scripts.common.program import reported
from scripts.common.s3_server import KEYS, Server, serving
from scripts.common.timing import in_turns, seconds, timed
from scripts.samples.scenes import SCENES, draw, with_noise

LARGE, SMALL, TINY = (4000, 3000), (32, 32), (8, 8)
# height, width that scenes are drawn in
DRAWN = (375, 500)
# ext4 takes 65,000 links to one file
LINKS, FOLDER_FILES = 50_000, 1000
# XYZ under D50 of red, green and blue; and the bytes of HP's sRGB, the most common profile
SRGB = ((0.4361, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141))
P3 = ((0.5151, 0.2412, -0.0011), (0.2919, 0.6922, 0.0419), (0.1572, 0.0666, 0.7841))
PROFILE_BYTES = 3144
COUNTS = {"large": 24, "icc": 2000, "objects": 2000, "small": 60_000, "many": 1_000_000}
# Of a bucket in the region of the machine.
LATENCY_SECONDS = 0.03


def main() -> int:
    options = parse()
    count = options.count or COUNTS[options.kind]

    def measured(work: Path) -> dict[str, Any]:
        head = {"kind": options.kind, "count": count, "workers": options.workers}
        return head | KINDS[options.kind](work, count, options.workers, options.runs) | {"machine": machine(work)}

    return reported("bench_inputs", measured, json=options.json, work=options.work)


def parse() -> argparse.Namespace:
    about = {"count": f"inputs (default: {COUNTS})", "runs": "timed turns of each way, but for many"}
    parser = bench_parser(__doc__, about=about, count=None, workers=2, runs=3, work=None, json=None)
    parser.add_argument("kind", choices=sorted(COUNTS))
    return parser.parse_args()


# -- the kinds


def large(work: Path, count: int, workers: int, runs: int) -> dict[str, Any]:
    """Pack with and without DCT scaling, in turns."""
    images = drawn(work / "images", count, LARGE, "jpg")
    rows: dict[str, np.ndarray] = {}

    def packed(name: str, exact: bool) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            profile = pack(images, work / name, 224, workers, exact=exact)
            rows[name] = np.fromfile(work / name / PIXELS, np.uint8)
            return profile

        return run

    found, profiles = rates_in_turns({"pack": packed("pack", False), "exact": packed("exact", True)}, count, runs)
    levels = float(np.abs(rows["pack"].astype(np.int16) - rows["exact"]).mean())
    if levels > SCALED_LEVELS:
        raise BenchmarkError(f"DCT-scaled rows are {levels:.1f} levels off on average, expected {SCALED_LEVELS} at most.")
    report = rates(found, profiles, ours="pack")
    print(f"DCT-scaled rows are {levels:.2f} levels off on average")
    size_bytes = sum(path.stat().st_size for path in images.rglob("*.jpg"))
    return report | {"levels": round(levels, 2), "mean_source_bytes": size_bytes // count}


def small(work: Path, count: int, workers: int, runs: int) -> dict[str, Any]:
    """Pack small PNGs, and a tar of them, beside reading them, and decoding them, in as many processes."""
    images = drawn(work / "images", count, SMALL, "png")
    inputs = scan(images)[""]
    paths = [images / name for name in inputs.paths]
    archive = work / "images.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(images, arcname=".", filter=None)
    job = ListedFolder(images, work, paths, inputs.paths, [], [], SMALL[0], workers)
    ways = {
        "read": lambda: in_processes(job, read_alone) and {},
        "row": lambda: in_processes(job, make_rows) and {},
        "decode": lambda: in_processes(job, decode_by_pillow) and {},
        "tar": lambda: pack(archive, work / "tar", SMALL[0], workers),
        "pack": lambda: pack(images, work / "pack", SMALL[0], workers),
    }
    found = rates(*rates_in_turns(ways, count, runs), ours="pack")
    if not np.array_equal(*(np.fromfile(work / name / PIXELS, np.uint8) for name in ("tar", "pack"))):
        raise BenchmarkError("the rows of the tar are not those of the folder.")
    return found


def icc(work: Path, count: int, workers: int, runs: int) -> dict[str, Any]:
    """Pack the same photographs without a profile, with sRGB's and with Display P3's, and the latter converted, in turns."""
    plain = drawn(work / "plain", count, DRAWN[::-1], "jpg")
    profiles = {"srgb": with_primaries(SRGB), "p3": with_primaries(P3)}
    folders = {name: tagged(plain, work / name, profile) for name, profile in profiles.items()}
    ways = {
        "plain": lambda: pack(plain, work / "out-plain", 224, workers),
        "srgb": lambda: pack(folders["srgb"], work / "out-srgb", 224, workers),
        "p3": lambda: pack(folders["p3"], work / "out-p3", 224, workers),
        "converted": lambda: pack(folders["p3"], work / "out-converted", 224, workers, icc="convert"),
    }
    found, given = rates_in_turns(ways, count, runs)
    counted = {name: sum(read_manifest(work / f"out-{name}").icc.values()) for name in ways}
    if counted != {"plain": 0, "srgb": 0, "p3": count, "converted": count}:
        raise BenchmarkError(f"images with another profile were counted as {counted}.")
    return rates(found, given, ours="plain")


def objects(work: Path, count: int, workers: int, runs: int) -> dict[str, Any]:
    """Pack the same photographs from a folder and from object storage by the command, in turns."""
    images = drawn(work / "photos", count, DRAWN[::-1], "jpg")
    with serving(images, LATENCY_SECONDS) as server:
        ways = {
            "folder": partial(pack_by_command, str(images), work / "out-folder", workers, None),
            "objects": partial(pack_by_command, f"s3://{images.name}", work / "out-objects", workers, server),
        }
        found = in_turns(ways, runs, untimed=1)
    if len({read_manifest(work / f"out-{name}").files[PIXELS].digest for name in ways}) > 1:
        raise BenchmarkError("the rows of objects are not those of the folder.")
    lines = [["", "seconds", "CPU s of pack", "CPU s of server", "seconds: folder/it", "CPU s: folder/it"]]
    report: dict[str, Any] = {}
    folder = [*zip(*found["folder"], strict=True)]
    for name, turns in found.items():
        taken = [*zip(*turns, strict=True)]
        figures = [spread(values, 2) for values in taken]
        figures += [ratios(*pair) for pair in zip(folder[:2], taken, strict=False)]
        lines.append([name, *(f"{figure['median']:.2f}" for figure in figures)])
        names = ("seconds", "cpu_seconds", "server_cpu_seconds", "folder/seconds", "folder/cpu_seconds")
        report[name] = dict(zip(names, figures, strict=True))
    print(table(lines))
    return report


def many(work: Path, count: int, workers: int, runs: int) -> dict[str, Any]:
    """List all inputs, then pack a few and all of them, looking at memory."""
    few, all_of_them = linked(work / "few", min(1000, count)), linked(work / "all", count)
    report: dict[str, Any] = {}
    before, reports = resident_bytes(), list[Progress]()
    with listening(reports.append):
        found, taken = timed(lambda: scan(all_of_them))
    inputs = found.pop("")
    report["list_seconds"] = round(taken, 2)
    report["list_bytes_per_image"] = round((resident_bytes() - before) / count, 1)
    report["path_characters"] = round(sum(map(len, inputs.paths[:1000])) / len(inputs.paths[:1000]), 1)
    report["progress_calls"] = len(reports)
    del inputs
    lines = [["", "images", "seconds", "images/s", "worker", "parent"]]
    for name, images, number in (("few", few, min(1000, count)), ("all", all_of_them, count)):
        job = ListedFolder(images, work, [], [], [], [], TINY[0], workers)
        peaks, taken = timed(partial(watched_pack, job, work / f"store-{name}"))
        report[name] = {"images": number, "seconds": round(taken, 2), "own_mib": peaks}
        rate = f"{number / taken:,.0f}"
        lines.append([name, f"{number:,}", f"{taken:.1f}", rate, seen(peaks["worker"]), seen(peaks["parent"])])
    print(table(lines))
    print(
        f"listed in {report['list_seconds']} s, {report['list_bytes_per_image']} bytes an image of"
        f" {report['path_characters']} characters; progress reported {report['progress_calls']} times"
    )
    return report


KINDS = {"large": large, "small": small, "icc": icc, "objects": objects, "many": many}


# -- running


def read_alone(job: ListedFolder) -> Task:
    """Return what reads file i as pack does."""
    return lambda i: LocalSource(str(job.paths[i])).read() and None


def decode_by_pillow(job: ListedFolder) -> Task:
    """Return what decodes file i as any program would: Pillow's open and load."""

    def decode(i: int) -> None:
        with Image.open(job.paths[i]) as image:
            image.load()

    return decode


def pack(images: Path, out: Path, size: int, workers: int, **options: Any) -> dict[str, Any]:
    """Pack from this process; returns the profile."""
    report = packer.pack(images, out, size=size, workers=workers, max_rejects=0, overwrite=out.exists(), **options)
    if report.rejected:
        raise BenchmarkError(f"{report.rejected} inputs were rejected: {report.reasons}")
    return report.profile


def pack_by_command(images: str, out: Path, workers: int, server: Server | None) -> tuple[float, float, float]:
    """Pack by the command; returns seconds, its CPU seconds, and those of the server."""
    words = [
        sys.executable,
        "-m",
        "packer",
        images,
        str(out),
        "--size",
        "224",
        "--workers",
        str(workers),
        "--max-rejects",
        "0",
    ]
    words += ["--overwrite"] * out.exists()
    environment = command_environment() | (KEYS | {"AWS_ENDPOINT_URL": server.url} if server else {})
    served, used = server.cpu_seconds() if server else 0.0, children_seconds()
    done, taken = timed(lambda: subprocess.run(words, capture_output=True, text=True, env=environment))
    if done.returncode:
        raise BenchmarkError(f"pack ended with exit code {done.returncode}: {done.stderr.strip()}")
    return taken, children_seconds() - used, (server.cpu_seconds() if server else 0.0) - served


def children_seconds() -> float:
    """Return the CPU time of the processes that this one has waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rates_in_turns(
    ways: dict[str, Callable[[], dict[str, Any]]], count: int, runs: int
) -> tuple[dict[str, list[float]], dict[str, dict[str, Any]]]:
    """Run every way once untimed, then in turns; returns images/s of each run, and what each way gave last."""
    given: dict[str, dict[str, Any]] = {}
    turns = {name: lambda name=name: given.update({name: ways[name]()}) for name in ways}
    found = in_turns({name: partial(seconds, turn) for name, turn in turns.items()}, runs, untimed=1)
    return {name: [count / took for took in values] for name, values in found.items()}, given


def rates(found: dict[str, list[float]], profiles: dict[str, dict[str, Any]], *, ours: str) -> dict[str, Any]:
    """Print a table of all ways and the profiles; returns the figures."""
    lines = [["", "images/s", "min..max", f"{ours} against it"]]
    for name, values in found.items():
        ratio = statistics.median(a / b for a, b in zip(found[ours], values, strict=True))
        lines.append(
            [name, f"{statistics.median(values):,.1f}", f"{min(values):,.1f}..{max(values):,.1f}", f"{ratio:.2f}"]
        )
    print(table(lines))
    for name, profile in profiles.items():
        if profile:
            print(f"\n{name}, the last run:\n{profile_table(profile, None)}")
    return {
        "images_per_second": {name: spread(values, 1) for name, values in found.items()},
        "ratio": {f"{ours}/{name}": ratios(found[ours], values) for name, values in found.items() if name != ours},
        "profile": profiles,
    }


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- files


def drawn(root: Path, count: int, size: tuple[int, int], suffix: str) -> Path:
    """Fill a folder with pictures of size (width, height), in ten class folders; each is of its own noise."""
    rng = np.random.default_rng(0)
    scenes = [Image.fromarray(draw(name, rng, *DRAWN)).resize(size) for name in sorted(SCENES)]
    for i in range(count):
        path = root / f"class{i % 10}" / f"{i:06}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with_noise(scenes[i % len(scenes)], rng).save(
            path, **({"quality": 88} if suffix == "jpg" else {"compress_level": 1})
        )
    os.sync()
    return root


def with_primaries(primaries: tuple[tuple[float, ...], ...]) -> bytes:
    """Return littleCMS's profile of sRGB with other red, green and blue (XYZ under D50), as long as a camera's."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    for number in range(struct.unpack_from(">I", profile, 128)[0]):
        name, at, _ = struct.unpack_from(">4sII", profile, 132 + 12 * number)
        if name in (names := (b"rXYZ", b"gXYZ", b"bXYZ")):
            struct.pack_into(">3i", profile, at + 8, *(round(v * 65536) for v in primaries[names.index(name)]))
    return bytes(profile).ljust(PROFILE_BYTES, b"\0")


def tagged(images: Path, root: Path, profile: bytes) -> Path:
    """Copy JPEGs with a profile in front of all else."""
    for path in images.rglob("*.jpg"):
        copy, data = root / path.relative_to(images), path.read_bytes()
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data[:2] + profile_segments(profile) + data[2:])
    os.sync()
    return root


def linked(root: Path, count: int) -> Path:
    """Fill a folder with hard links to JPEGs of 8 x 8, 1,000 in a folder."""
    originals = root.with_name(f"{root.name}-originals")
    originals.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (*TINY, 3), np.uint8)
    for i in range(count):
        original, folder = originals / f"{i // LINKS}.jpg", root / f"class{i // FOLDER_FILES:04}"
        if i % LINKS == 0:
            Image.fromarray(pixels).save(original)
        if i % FOLDER_FILES == 0:
            folder.mkdir(parents=True)
        os.link(original, folder / f"{i:07}.jpg")
    return root


if __name__ == "__main__":
    sys.exit(main())
