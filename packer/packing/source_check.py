"""The sources of a store, read again and compared with the sha256 that samples.jsonl has of each. Decodes nothing."""

from __future__ import annotations

import functools
import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from packer.errors import DecodeError, OptionsError, ScanError
from packer.inputs.scan import scan
from packer.option_names import Option
from packer.packing.redecode import NO_MEMBER, Finder
from packer.sources import roots
from packer.sources.base import Readable
from packer.sources.local import MISSING, LocalSource
from reader.format.samples import Sample, read_rejects, read_samples
from reader.system import available_cpus
from reader.tuning import tuning

# Files in memory at once are as many as threads; these wait to be read.
_CHUNK = 256
# An object takes tens of milliseconds to come.
_REMOTE_THREADS = 16


@dataclass(frozen=True)
class SourcesReport:
    """The number of compared sources, and the paths of those that differ, are gone, or are in IMAGES but not in the store."""

    compared: int
    differ: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)

    @property
    def are_same(self) -> bool:
        """Whether all sources of the store are what was packed."""
        return not (self.differ or self.gone)


def check_sources(out: Path, images: str, split: str = "") -> SourcesReport:
    """Compare all sources of a store with what was packed.

    Args:
        images: the folder or URL that the paths in samples.jsonl start from, or the tar or zip that was packed.
        split: which of those in that tar or zip.

    Raises:
        OptionsError: the store was made of a dataset, whose items are no files.
        SourceError: the sources cannot be read now.
    """
    finder, known, count = Finder(images), set[str](), 0

    def pairs() -> Iterator[tuple[Sample, Callable[[], Readable]]]:
        nonlocal count
        for sample in read_samples(out):
            if sample.sha256 is None:
                raise OptionsError(
                    f"{out} was packed from a dataset, whose items are no files: leave {Option('images')} out."
                )
            count += 1
            known.add(sample.path)
            yield sample, functools.partial(finder.source, sample)

    differ: list[str] = []
    gone: list[str] = []
    for path, is_gone in changed(pairs(), threads=_REMOTE_THREADS if finder.is_remote else available_cpus()):
        (gone if is_gone else differ).append(path)
    known.update(reject.path for reject in read_rejects(out))
    return SourcesReport(count, differ, gone, [path for path in _listed(images, split) if path not in known])


def changed(pairs: Iterable[tuple[Sample, Callable[[], Readable]]], *, threads: int) -> Iterator[tuple[str, bool]]:
    """Yield the path of each source that has other bytes than its line of samples.jsonl says, and whether it is gone.

    Args:
        pairs: lines, and what locates the source of each.
    """
    remaining = iter(pairs)
    with ThreadPoolExecutor(threads, thread_name_prefix="pixpack-compare") as pool:
        while chunk := list(islice(remaining, _CHUNK)):
            for (sample, _), what in zip(chunk, pool.map(lambda pair: _compared(*pair), chunk), strict=True):
                if what:
                    yield sample.path, what == "gone"


def _compared(sample: Sample, locate: Callable[[], Readable]) -> str:
    """Return "" if a source has the bytes that were packed, "gone" if it does not exist, else "differs"."""
    try:
        source = locate()
        if isinstance(source, LocalSource) and source.member is None:
            size_bytes, *_ = roots.retried(source.state, tuning().source_pause_seconds, time.sleep)
            if size_bytes != sample.size_bytes:
                return "gone" if size_bytes < 0 else "differs"
        read = functools.partial(source.read, max_pixels=sys.maxsize)
        data, _ = roots.retried(read, tuning().source_pause_seconds, time.sleep)
    except DecodeError as e:
        return "gone" if str(e) in MISSING or str(e).endswith(NO_MEMBER) else "differs"
    return "" if hashlib.sha256(data).hexdigest() == sample.sha256 else "differs"


def _listed(images: str, split: str) -> list[str]:
    """List the images that exist now; [] unless they are a folder, a tar or a zip."""
    try:
        parts = scan([images])
    except ScanError:
        return []
    if split in parts:
        return parts[split].paths[:]
    return [f"{name}/{path}" for name, inputs in parts.items() for path in inputs.paths]
