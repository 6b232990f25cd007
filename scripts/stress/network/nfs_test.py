"""Does packing and reading hold on NFS: the bytes, who holds OUT, interrupted packs, parts, and readers while OUT is replaced?

    sudo python -m scripts.stress.network.nfs_test                  a folder exported by this kernel, mounted twice over loopback
    python -m scripts.stress.network.nfs_test --mounts /mnt/a /mnt/b    two mounts of one folder, of any network file system

The two mounts share no cache, so each stands for a host. What must come out:

    pack       the bytes of a pack to a local disk, seen through both mounts; `pack verify` finds nothing
    resume     a pack that was killed resumes through the other mount, not from the beginning, to the same bytes
    lock       a second pack is refused through either mount, naming process and host; the holder killed, OUT is taken over
    in_parts   packed through both mounts, sealed through one: the same bytes
    together   rows that share pages, written through both mounts in turns to one file, as workers on nodes do: all are kept
    read       with nothing in the cache, every residency gives the rows
    replaced   readers on the mount that replaces the store keep the old rows; on the other mount they have these too, or
               get an error that it was packed again. With the readers gone, nothing is left beside OUT

Says in one sentence where NFS cannot be had. Prints a line for each, and one JSON object last; exits 1 at the first failure.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from packer.store.disk_space import allocate
from packer.store.files import write_at
from packer.workers.ray_node import open_shared
from reader import system
from reader.format.manifest import PIXELS
from scripts.common.figures import BenchmarkError, photographs, repeat_files
from scripts.common.timing import timed
from scripts.stress._runs import TrialError, difference, digests
from scripts.stress.network._loopback import NoNfsError, two_mounts

SIZE = 32
SHAPE = ("--size", str(SIZE), "--workers", "2", "--exact")
RESIDENCIES = ("cache", "disk", "ram")
# What another client has changed is seen within so many seconds: attributes are cached for up to 60.
_SEEN_SECONDS = 90
# several to a page, which does not end where a row does
_TOGETHER_ROWS, _TOGETHER_BYTES = 600, 1003
# images, out, then: kill this process, or wait for the end of stdin, as soon as a block is in the journal
_STOPPED = """
import os, signal, sys
from packer import pack
def stop(progress):
    if progress.stage == "pack" and open(sys.argv[2] + ".packing/.packing/journal", "rb").read().count(b"\\n") > 1:
        if sys.argv[3] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        print("held", flush=True)
        sys.stdin.read()
pack(sys.argv[1], sys.argv[2], size=int(sys.argv[4]), workers=2, exact=True, progress=stop)
"""
# a loader for each store and residency, read on a signal and then closed; a line each: the checksum of its rows, or the error.
# One process for both mounts, which share no cache all the same: in an emulated machine, importing torch takes minutes.
_READER = """
import contextlib, gc, os, sys, zlib
from reader import MemmapDataset, MemmapLoader, StoreError
stores = zip(sys.argv[1::2], sys.argv[2::2])
loaders = [MemmapLoader(MemmapDataset(out), 9, shuffle="full", residency=residency, as_tuple=False) for out, residency in stores]
print("open", flush=True)
sys.stdin.readline()
while loaders:
    loader = loaders.pop(0)
    # nothing of it in the cache, but for what is mapped
    with contextlib.suppress(StoreError, OSError), open(loader.dataset.opened_store.pixel_paths()[0], "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        rows = sorted((int(row), pixels.numpy().tobytes()) for batch in loader for row, pixels in zip(batch.rows, batch.pixels))
        print(zlib.crc32(b"".join(pixels for _, pixels in rows)), flush=True)
    except StoreError as e:
        print(e, flush=True)
    loader = None
    gc.collect()
"""


@dataclass(frozen=True)
class Mounts:
    """Images, a folder on a local disk with `whole`, their store, and two mounts of one folder."""

    images: Path
    local: Path
    one: Path
    other: Path

    def pack(self, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Pack the images."""
        return command(self.images, out, *SHAPE, *options)

    def check_bytes(self, out: Path, what: str) -> None:
        """Compare a store with the one on the local disk; raises TrialError."""
        until = time.monotonic() + _SEEN_SECONDS
        while (found := digests_if_seen(out)) != (wanted := digests(self.local / "reference")):
            if time.monotonic() > until:
                raise TrialError(f"{what}: {difference(found, wanted)} differ from a local pack's")
            time.sleep(0.5)


def main() -> int:
    """Run all trials."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mounts", type=Path, nargs=2, metavar="FOLDER", help="two mounts of one folder")
    parser.add_argument("--images", type=Path, help="JPEGs to pack (default: photographs, or drawn ones)")
    parser.add_argument("--count", type=int, default=90)
    parser.add_argument(
        "--only", nargs="+", choices=[trial.__name__ for trial in TRIALS], help="these trials, and packed"
    )
    parser.add_argument("--work", type=Path, help="folder to export below (default: the temporary one)")
    options = parser.parse_args()
    try:
        with contextlib.ExitStack() as undo:
            work = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="pixpack-nfs-", dir=options.work)))
            one, other = options.mounts or undo.enter_context(two_mounts(work))
            repeat_files(photographs(options.images, work, SIZE), work / "images", options.count, link=False)
            mine = [Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="pixpack-nfs-", dir=one)))]
            mounts = Mounts(work / "images", work, mine[0], other / mine[0].name)
            done = tried(mounts, options.only)
    except NoNfsError as e:
        print(f"nfs_test: nothing was tried: {e}", file=sys.stderr)
        return 1
    except (TrialError, BenchmarkError) as e:
        print(f"nfs_test: {e}", file=sys.stderr)
        return 1
    print(json.dumps({"benchmark": "nfs_test", "images": options.count, **done}))
    return 0


def tried(mounts: Mounts, only: list[str] | None) -> dict[str, object]:
    """Run the trials one after the other; returns the report."""
    expect(mounts.pack(mounts.local / "reference"), 0, "a local pack")
    seconds = {}
    for trial in TRIALS:
        if only and trial.__name__ not in ("packed", *only):
            continue
        answer, taken = timed(functools.partial(trial, mounts))
        seconds[trial.__name__] = round(taken, 1)
        print(f"{trial.__name__:9} {answer}", flush=True)
    return {"file_system": system.file_system(mounts.one), "seconds": seconds}


# -- trials: each returns what it saw


def packed(mounts: Mounts) -> str:
    expect(mounts.pack(mounts.one / "out"), 0, "pack")
    for mount in (mounts.one, mounts.other):
        mounts.check_bytes(mount / "out", f"pack, seen through {mount}")
    expect(command("verify", mounts.other / "out"), 0, "verify")
    return f"the bytes of a local pack, on {system.file_system(mounts.one)}"


def resumed(mounts: Mounts) -> str:
    out = mounts.one / "killed"
    killed = stopped(mounts, out, "kill")
    killed.communicate(timeout=120)
    if killed.returncode != -signal.SIGKILL:
        raise TrialError(f"the pack that was to be killed ended by itself, exit code {killed.returncode}")
    done = mounts.pack(mounts.other / "killed", "--resume", "--json")
    expect(done, 0, "--resume through the other mount")
    before = json.loads(done.stdout)["resumed_from"]
    if not before:
        raise TrialError("--resume through the other mount began from the beginning")
    mounts.check_bytes(out, "a resumed pack")
    return f"resumed after {before} images through the other mount, the same bytes"


def locked(mounts: Mounts) -> str:
    holder = stopped(mounts, mounts.one / "held", "hold")
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        for mount in (mounts.one, mounts.other):
            refused = mounts.pack(mount / "held", "--resume")
            expect(refused, 1, f"a second pack through {mount}")
            if f"is being packed by process {holder.pid} on {os.uname().nodename}" not in refused.stderr:
                raise TrialError(f"a second pack through {mount} does not name the holder: {refused.stderr}")
    finally:
        holder.kill()
        holder.communicate()
    expect(mounts.pack(mounts.other / "held", "--resume"), 0, "--resume after the holder was killed")
    mounts.check_bytes(mounts.one / "held", "a pack that was taken over")
    return "refused through both mounts, taken over when the holder was killed"


def in_parts(mounts: Mounts) -> str:
    for number, mount in ((1, mounts.one), (2, mounts.other)):
        expect(mounts.pack(mount / "parts", "--part", f"{number}/2"), 0, f"--part {number}/2")
    expect(command("seal", mounts.other / "parts"), 0, "seal")
    mounts.check_bytes(mounts.one / "parts", "sealed parts")
    return "packed through both mounts, sealed, the same bytes"


def together(mounts: Mounts) -> str:
    name, draw = "rows", random.Random(0)
    (mounts.one / name).touch()
    allocate(mounts.one / name, _TOGETHER_ROWS * _TOGETHER_BYTES, lambda done: None)
    # the lock that a worker holds, and the descriptor that it writes by
    locks = [open_shared(str(mount / name)) for mount in (mounts.one, mounts.other)]
    files = [os.open(mount / name, os.O_WRONLY) for mount in (mounts.one, mounts.other)]
    rows = [bytes([row % 255 + 1]) * _TOGETHER_BYTES for row in range(_TOGETHER_ROWS)]
    for row in draw.sample(range(_TOGETHER_ROWS), _TOGETHER_ROWS):
        write_at(draw.choice(files), memoryview(rows[row]), row * _TOGETHER_BYTES)
        if draw.random() < 0.3:
            os.fdatasync(draw.choice(files))
    for descriptor in (*files, *locks):
        os.fsync(descriptor)
        os.close(descriptor)
    found = (mounts.other / name).read_bytes()
    parts = [found[i : i + _TOGETHER_BYTES] for i in range(0, _TOGETHER_ROWS * _TOGETHER_BYTES, _TOGETHER_BYTES)]
    if lost := sum(part != row for part, row in zip(parts, rows, strict=True)):
        raise TrialError(f"{lost} of {len(rows)} rows that two mounts wrote to one file are lost or torn")
    return f"{len(rows)} rows of {_TOGETHER_BYTES} bytes written through both mounts, all kept"


def read(mounts: Mounts) -> str:
    names, wanted = ("auto", *RESIDENCIES), checksum(mounts.local / "reference")
    found = Readers([(mounts.other / "out", name) for name in names]).answers()
    if found != [wanted] * len(names):
        raise TrialError(f"readers got {found}, expected {wanted} of each")
    return f"the rows by {', '.join(names)}"


def replaced(mounts: Mounts) -> str:
    out, wanted = mounts.one / "out", checksum(mounts.local / "reference")
    # a mapped page of a file that is gone from the server ends its process: "cache" is for readers on this host
    names = ("disk", "ram")
    readers = Readers([(out, name) for name in RESIDENCIES] + [(mounts.other / "out", name) for name in names])
    expect(mounts.pack(out, "--overwrite", "--resample", "box"), 0, "--overwrite under readers")
    *here, disk, ram = readers.answers()
    if here != [wanted] * len(RESIDENCIES):
        raise TrialError(f"readers of a replaced store got {here}, expected {wanted} of each")
    there = dict(zip(names, (disk, ram), strict=True))
    if wrong := {
        name: answer for name, answer in there.items() if answer != wanted and "was packed again" not in answer
    }:
        raise TrialError(f"readers of a store that another mount replaced got {wrong}, expected {wanted}, or an error")
    expect(mounts.pack(out, "--overwrite"), 0, "--overwrite without readers")
    mounts.check_bytes(out, "a replaced store")
    if left := [path for path in (out / ".packing", out.with_name("out.packing")) if path.exists()]:
        raise TrialError(f"{', '.join(map(str, left))} left of a replaced store")
    return f"old rows for readers on this mount; on the other: {there}"


TRIALS = (packed, resumed, locked, in_parts, together, read, replaced)


# -- what trials are made of


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "packer", *map(str, words)], capture_output=True, text=True, timeout=300
    )


def expect(done: subprocess.CompletedProcess[str], code: int, what: str) -> None:
    if done.returncode != code:
        raise TrialError(f"{what}: exit code {done.returncode}, expected {code}: {done.stderr.strip()}")


def stopped(mounts: Mounts, out: Path, how: str) -> subprocess.Popen[str]:
    """Start a pack that is killed, or held up, when a block is committed."""
    words = [sys.executable, "-c", _STOPPED, str(mounts.images), str(out), how, str(SIZE)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Readers:
    """A process that has stores open, each by a residency."""

    def __init__(self, stores: list[tuple[Path, str]]) -> None:
        self._stores = stores
        words = [sys.executable, "-c", _READER, *(str(word) for store in stores for word in store)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def answers(self) -> list[str]:
        """Let them read; returns what each gave or said."""
        output, errors = self._process.communicate("\n", timeout=300)
        if self._process.returncode or len(lines := output.splitlines()) != len(self._stores):
            last = (errors.strip().splitlines() or ["nothing was said"])[-1]
            raise TrialError(f"readers ended with exit code {self._process.returncode} before all had read: {last}")
        return lines


def checksum(out: Path) -> str:
    return str(zlib.crc32((out / PIXELS).read_bytes()))


def digests_if_seen(out: Path) -> dict[str, str]:
    """Return the sha256 of every file; none while OUT is not seen, or changes."""
    with contextlib.suppress(OSError):
        return digests(out)
    return {}


if __name__ == "__main__":
    sys.exit(main())
