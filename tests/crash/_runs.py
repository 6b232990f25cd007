"""The kinds of run that power_test.py and fault_test.py put to the test, each on a folder that stands for a disk.

Knows how to bring a disk to where such a run starts, what must come out, and how to continue after an accident.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer import Progress, merge, pack, pull, requantize, seal_parts, subset, update
from reader.manifest import MANIFEST, IncompleteStoreError, StoreError, check_store
from tests.crash._program import TrialError, draw_photographs

# fresh: into a new folder; resume: of an interrupted pack; restart: --overwrite of an interrupted
# pack; overwrite: of a finished store, after one image was replaced; update: likewise, by pack update; splits: train and val;
# resplit: --overwrite of both, after one image was replaced; listed: a manifest whose third column becomes a tensor of its own;
# labelled: with boxes and masks; merge: of two stores, by pack merge; remerge: likewise, with --overwrite of a third;
# pull: of a store to a new folder, by pack pull; seal: of two parts; subset: of a store's rows, some of
# them, in another order
KINDS = (
    "fresh",
    "resume",
    "restart",
    "overwrite",
    "update",
    "splits",
    "resplit",
    "listed",
    "labelled",
    "merge",
    "remerge",
    "pull",
    "seal",
    "subset",
)
# More, whose files are not the same each time they are made: part: the second of two, by pack --part, to be sealed. Or which make
# no store: requantize: of the images, by pack requantize; rerequantize: likewise, of a finished run, after one image was replaced
OTHERS = ("part", "requantize", "rerequantize")
REQUANTIZING = ("requantize", "rerequantize")
COPYING = ("merge", "remerge", "subset")

_SIZE = 32
# pad: so that the store has a content.memmap too
_OPTIONS: dict[str, Any] = {"size": _SIZE, "fit": "pad", "workers": 2, "max_rejects": "20%"}
_REPLACING, _OF_UPDATE = ("overwrite", "update", "resplit", "remerge"), ("workers", "max_rejects")
# of kinds that are no pack: what is done, and its options
_VERBS = {"remerge": "merge", "rerequantize": "requantize"} | {
    verb: verb for verb in ("update", "merge", "pull", "seal", "subset", "requantize")
}
_OF_REQUANTIZE: dict[str, Any] = {"quality": 5, "workers": 2, "max_rejects": "20%"}
_OF_SUBSET: dict[str, Any] = {"rows": [5, 0, 3, 6, 2]}
_OPEN_SECONDS = 0.05
_JOURNAL = ".packing/journal"
ROW_BYTES, MASK_BYTES = _SIZE * _SIZE * 3, _SIZE * _SIZE


@dataclass(frozen=True)
class Run:
    """One pack of source, which is images or lists them, into out; `disk` holds out alone, `start` is what it holds before.

    Of what merges, source and images are the folder that holds the two stores; of what pulls, the folder at the URL.

    expected and before are the files of the disk, path -> bytes, after an undisturbed run and before it.
    """

    kind: str
    source: Path
    images: Path
    disk: Path
    out: Path
    start: Path
    options: dict[str, Any]
    expected: dict[str, bytes]

    @property
    def flags(self) -> list[str]:
        """The option that makes it this kind of run."""
        if self.kind in ("restart", "overwrite", "resplit", "remerge"):
            return ["--overwrite"]
        return []

    def command(self, flags: list[str] | None = None) -> list[str]:
        """Return the words of the command."""
        words = [_VERBS.get(self.kind, "build"), *self._sources, str(self.out)]
        for name, value in self._given.items():
            words += [f"--{name.replace('_', '-')}", str(value).strip("[]").replace(" ", "")]
        return [sys.executable, "-m", "packer", *words, *(self.flags if flags is None else flags), "--quiet"]

    @property
    def _given(self) -> dict[str, Any]:
        """The options to say; an update takes those that shape rows from the store."""
        return {name: self.options[name] for name in _OF_UPDATE} if self.kind == "update" else self.options

    @property
    def _sources(self) -> list[str]:
        if self.kind == "seal":
            return []
        if self.kind == "pull":
            return [self.source.as_uri()]
        stores = "a" if self.kind == "subset" else "ab"
        return [str(self.source / name) for name in stores] if self.kind in COPYING else [str(self.source)]

    def result(self) -> dict[str, bytes]:
        """Return the files that are compared: those of the disk, or what it holds as a store."""
        if self.kind != "part":
            return files(self.disk)
        copy = self.start.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.disk, copy)
        seal_parts(copy / self.out.name, max_rejects=self.options["max_rejects"])
        return files(copy)

    def lay_out(self) -> None:
        """Bring the disk to where the run starts."""
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.copytree(self.start, self.disk)

    def flags_to_resume(self) -> list[str]:
        """Return what a supervisor gives whatever has happened: the same line, with --overwrite where a store is replaced."""
        if self.kind in ("pull", "seal"):
            return self.flags
        if self.kind in COPYING:
            return ["--overwrite"] if any(self.disk.rglob(MANIFEST)) else []
        return [*(flag for flag in self.flags if flag == "--overwrite")]

    def problem(self) -> str:
        """Name a file of DEST that is neither an old one nor a new one, complete; beside those are working files alone."""
        old, found = files(self.start), files(self.disk)
        for name, content in found.items():
            if name.endswith((".tmp", ".part")):
                continue
            if content not in (old.get(name), self.expected.get(name)):
                return f"{name} is neither the old file nor the new one"
        return ""

    def resume(self) -> None:
        """Run the pack to its end, in this process, with one worker; what copies is done again."""
        flags = {flag.removeprefix("--"): True for flag in self.flags_to_resume()}
        match _VERBS.get(self.kind, "pack"):
            case "merge":
                merge(self._sources, self.out, **flags)
            case "subset":
                subset(*self._sources, self.out, **self.options, **flags)
            case "seal":
                seal_parts(self.out, **self.options)
            case "pull":
                pull(*self._sources, self.out)
            case "requantize":
                requantize(self.source, self.out, **self.options | {"workers": 1})
            case verb:
                run = update if verb == "update" else pack
                run(self.source, self.out, **self._given | {"workers": 1}, **flags)


def make_run(kind: str, work: Path, images: int) -> Run:
    """Make the photographs, the disk's beginning and the expected bytes of one kind of run."""
    sources, start, disk = work / "images", work / "start", work / "disk"
    for folder in [sources / "train", sources / "val"] if kind in ("splits", "resplit") else [sources]:
        drawn = draw_photographs(folder, images)
        broken = sorted(path for path in folder.rglob("*") if path.is_file())[images // 2]
        broken.write_text("broken")
    start.mkdir()
    out = Path("out")
    for folder in (work / "reference", work / "stores"):
        folder.mkdir(exist_ok=True)
    if kind in ("resume", "restart"):
        _interrupted_pack(sources, start / out)
    if kind in _REPLACING:
        pack(sources, start / out, **_OPTIONS)
    if kind == "rerequantize":
        requantize(sources, start / out, **_OF_REQUANTIZE)
    if kind in (*_REPLACING, "rerequantize"):
        shutil.copyfile(drawn[0], max(path for path in sources.rglob("*") if path.is_file()))
    reference, source = work / "reference", _listed(sources) if kind == "listed" else sources
    options = _OPTIONS | (_labels(sources) if kind == "labelled" else {})
    if kind in COPYING:
        return _copying_run(kind, sources, start, disk, reference, out)
    if kind == "pull":
        pack(sources, reference / out, **_OPTIONS)
        shutil.copytree(reference / out, work / "url")
        return Run(kind, work / "url", work / "url", disk, disk / out, start, {}, files(reference))
    if kind in REQUANTIZING:
        requantize(sources, reference / out, **_OF_REQUANTIZE)
        return Run(kind, sources, sources, disk, disk / out, start, _OF_REQUANTIZE, files(reference))
    pack(source, reference / out, **options)
    if kind == "seal":
        for part in ("1/2", "2/2"):
            pack(source, start / out, **options, part=part)
        options = {"max_rejects": options["max_rejects"]}
    if kind == "part":
        pack(source, start / out, **options, part="1/2")
        options |= {"part": "2/2"}
    return Run(kind, source, sources, disk, disk / out, start, options, files(reference))


def _copying_run(kind: str, sources: Path, start: Path, disk: Path, reference: Path, out: Path) -> Run:
    """Pack the two stores whose rows are copied."""
    stores = start.parent / "stores"
    for name, shuffle in (("a", 1), ("b", 2)):
        pack(sources, stores / name, **_OPTIONS, shuffle=shuffle)
    options = _OF_SUBSET if kind == "subset" else {}
    if kind == "subset":
        subset(stores / "a", reference / out, **options)
    else:
        merge([stores / "a", stores / "b"], reference / out)
    return Run(kind, stores, stores, disk, disk / out, start, options, files(reference))


def files(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder: relative path -> bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file below a folder, by relative path."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in files(folder).items()}


def are_mixed(run: Run) -> bool:
    """Whether splits open of which one is the old store and one the new."""
    seen = set()
    for manifest in sorted(run.out.glob(f"[!.]*/{MANIFEST}")):
        try:
            check_store(manifest.parent)
        except StoreError:
            continue
        name, content = str(manifest.relative_to(run.disk)), manifest.read_bytes()
        if run.expected.get(name) != files(run.start).get(name):
            seen.add(run.expected.get(name) == content)
    return len(seen) > 1


def check_unfinished(out: Path) -> bool:
    """See that a store without a manifest is called incomplete, or is not there at all; returns whether it was.

    Raises:
        TrialError: it opens, is called something else, or the answer took too long.
    """
    if (out / MANIFEST).exists():
        check_store(out)
        return False
    took = min(_seconds_to_refuse(out) for _ in range(3))
    if took > _OPEN_SECONDS:
        raise TrialError(f"it took {took:.3f} s to say that a store is incomplete")
    return True


def stage_of(out: Path) -> Path:
    """Name the folder in which OUT is made."""
    return out.with_name(f"{out.name}.packing")


def _seconds_to_refuse(out: Path) -> float:
    started = time.process_time()  # on a machine that does other work as well, time passes
    try:
        check_store(out)
    except IncompleteStoreError:
        pass
    except StoreError as e:
        if (stage_of(out) / _JOURNAL).exists():
            raise TrialError(f"an unfinished store is called: {e}") from e
    else:
        raise TrialError("an unfinished store opens")
    return time.process_time() - started


def difference(found: Mapping[str, object], expected: Mapping[str, object]) -> str:
    """Name the files in which two folders differ."""
    return ", ".join(sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)))


def _listed(images: Path) -> Path:
    """Write a manifest of all images, with a column of numbers."""
    paths = sorted(path for path in images.rglob("*") if path.is_file())
    lines = [f"{path.relative_to(images.parent)},{path.parent.name},{n}.5" for n, path in enumerate(paths)]
    (images.parent / "list.csv").write_text("\n".join(["path,target,weight", *lines, ""]))
    return images.parent / "list.csv"


def _labels(images: Path) -> dict[str, str]:
    """Lay a box and a mask beside each image; returns the options that name them."""
    from PIL import Image

    boxes, masks = images.parent / "boxes", images.parent / "masks"
    for path in (path for path in images.rglob("*") if path.is_file()):
        label, mask = boxes / path.relative_to(images), masks / path.relative_to(images)
        for folder in (label.parent, mask.parent):
            folder.mkdir(parents=True, exist_ok=True)
        label.with_suffix(".txt").write_text("0 0.5 0.5 0.5 0.5")
        size = (1, 1)
        if path.read_bytes() != b"broken":
            with Image.open(path) as image:
                size = image.size
        Image.new("L", size, 7).save(mask.with_suffix(".png"))
    return {"boxes": str(boxes), "masks": str(masks)}


class _Interrupted(Exception):
    pass


def _interrupted_pack(images: Path, out: Path) -> None:
    """Pack until half of the images are written; what was handed over is committed."""

    def stop(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done * 2 >= progress.total:
            raise _Interrupted

    try:
        pack(images, out, **_OPTIONS, progress=stop)
    except _Interrupted:
        os.unlink(stage_of(out) / ".packing/lock")
