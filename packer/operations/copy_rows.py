"""Copies rows of finished stores into a new store, for `subset` and `merge`: a job of the engine without decoding.

The source stores are only read. There is no journal: an interrupted copy is removed, and starts again.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import os
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.errors import EngineError, OptionsError, PackError
from packer.inputs.samples import Column, Inputs
from packer.operations.row_checks import wrong_rows
from packer.options import RowOptions
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row
from packer.progress import notify
from packer.report import PackReport, Progress
from packer.sample_lines import Reject, Sample, read_rejects
from packer.store import journal as journals
from packer.store.destination import Folder, StagedStore
from packer.store.disk_space import allocate, as_pack_error, check_room, guard_standard_streams
from packer.store.files import sync_names
from packer.store.lock import checked
from packer.store.parts import DIVISION, TOTALS
from packer.store.reports import store_report, summed_report
from packer.store.row_files import row_names
from packer.store.seal import seal
from packer.store.sealed_rows import Ints, SealedRows, damage, line_begins, rows_bytes, tensor_rows
from packer.store.state import check_destination, check_finished, resolved_out
from packer.store.tasks import RejectedInput, Result, Task, block_inputs
from packer.workers.block_worker import Attempt, PackJob, RowMaker
from packer.workers.engine import LocalEngine
from packer.workers.processes import InFlight
from reader.format.blocks import read_blocks
from reader.format.check import check_store
from reader.format.errors import StoreError
from reader.format.filesystem import error_path
from reader.format.manifest import PIXELS, Manifest, TensorSpec, read_manifest, whole_pages
from reader.format.row_values import RowValues
from reader.system import available_cpus

_REMEDY = "Copy the store again, or pack again."
# The tensor of targets that are classes.
_NUMBERS = TensorSpec("int64", ())
# What a message asks to do once the error is fixed.
_AGAIN = "do it again"


@dataclass(frozen=True)
class Selection:
    """Rows of a store, int64[n], in their order in the new store.

    numbers: tensor -> the new number of each class; tensors whose numbers stay are left out.
    """

    path: Path
    manifest: Manifest
    rows: Ints
    numbers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def values(self, name: str, rows: Ints, spec: TensorSpec) -> npt.NDArray[Any]:
        """Return rows of a tensor, [n, *row_shape] of spec: with renumbered classes, and boxes padded to its shape."""
        own, values = self.manifest.tensors[name], tensor_rows(self.path, self.manifest, name, rows)
        if name in self.numbers:
            values = _renumbered(values, self.numbers[name], spec)
        if values.shape[1:] != spec.row_shape:  # boxes: free slots hold zeros, and target -1
            wider = np.full((len(rows), *spec.row_shape), -1 if name.endswith("targets") else 0, values.dtype)
            wider[:, : own.row_shape[0]] = values
            values = wider
        return values


@dataclass(frozen=True)
class CopyPlan:
    """A store to make from selections of rows of other stores, in order; all of these have the fields not given here."""

    selections: list[Selection]
    classes: tuple[str, ...]
    target_count: int | None
    extras: Mapping[str, TensorSpec]
    options: Mapping[str, object]
    labels: Mapping[str, object]
    # whether it lists the rejects of the stores too
    has_rejects: bool = False
    notes: list[str] = field(default_factory=list)


def open_for_copy(store: str | os.PathLike[str]) -> tuple[Path, Manifest]:
    """Check the structure of a store whose rows will be copied.

    Raises:
        PackError: it is not a store, or is a newer pixpack's.
    """
    try:
        path, manifest = Path(store), check_finished(store)
    except StoreError as e:
        raise PackError(str(e)) from None
    return path, manifest


def class_targets(path: Path, manifest: Manifest) -> Ints:
    """Return the class of each row, int64[N], -1 for no label; checked against the digest.

    Raises:
        PackError: it cannot be read, or is damaged.
    """
    name = manifest.tensor_paths()["targets"]
    try:
        what, targets = damage(path, manifest, [name]), np.fromfile(path / name, "<i8")
    except OSError as e:
        raise PackError(f"{path / name} cannot be read: {e.strerror}.") from None
    if what:
        _check_same(path, manifest)
        raise PackError(f"{what} {_REMEDY}")
    try:
        RowValues(manifest).check_targets(str(path), 0, targets)
    except StoreError as e:
        raise PackError(str(e)) from None
    return targets


def copy_target(out: str | os.PathLike[str]) -> Path:
    """Return OUT without dots, and finish a publication that a crash interrupted, before any store is opened."""
    target = resolved_out(out)
    Folder(target).recover()
    return target


def joint_labels(manifests: Sequence[Manifest], *, is_list_given: bool) -> Mapping[str, object]:
    """Return the recorded label options of these stores; {} if they differ.

    Args:
        is_list_given: whether the class list is one that the user gave.
    """
    # digests describe packed inputs, and these rows are others
    digests = ("inputs", "sources", DIVISION, TOTALS, *(["boxes"] if len(manifests) > 1 else []))
    labels = [{name: value for name, value in one.labels.items() if name not in digests} for one in manifests]
    known = labels[0] if all(other == labels[0] for other in labels) else {}
    return known | ({"classes": True} if is_list_given else {})


def copy_plans(plans: Mapping[str, CopyPlan], out: Path, *, overwrite: bool) -> PackReport:
    """Make the store OUT from the plan "", or OUT/<split> from each split's plan.

    If they replace stores, all are made before the first is replaced.

    Raises:
        OptionsError: OUT is inside a store, or one of the stores is inside it.
        PackError: OUT is in the way, a store is damaged or was replaced meanwhile; DiskFullError, LockedError.
    """
    guard_standard_streams()
    to = Folder(out, "copy", overwrite=overwrite)
    check_destination([], out)
    to.check(plans)
    for split, plan in plans.items():
        for selection in plan.selections:
            _check_apart(selection.path, out / split, to.stage)
    reports: dict[str, PackReport] = {}
    try:
        with to.begin(plans):
            try:
                for split, plan in plans.items():
                    reports[split] = _copied(plan, to.store(split))
            except BaseException:
                to.withdraw()
                raise
            to.publish()
    except OSError as e:
        raise as_pack_error(e, to.stage, {}, _AGAIN) from None
    return reports[""] if "" in reports else summed_report(out, reports)


def _copied(plan: CopyPlan, staged: StagedStore) -> PackReport:
    """Make one store in the stage."""
    started, out = time.monotonic(), staged.folder
    copy = _Copy(plan, staged)
    try:
        out.mkdir(exist_ok=True)
        with checked(staged.to.check_same):
            manifest = copy.run()
            check_store(out)  # a store that cannot be opened must not replace one
    except Exception as e:
        with contextlib.suppress(OSError):
            _check_all_same(plan)  # a replaced source is the reason, whatever failed
        if isinstance(e, OSError):
            raise as_pack_error(e, out, copy.sizes, _AGAIN) from None
        if isinstance(e, EngineError):
            raise PackError(f"copying stopped: {e} {_AGAIN.capitalize()}.") from None
        raise
    report = store_report(manifest, Inputs(out, notes=[*plan.notes]), out, time.monotonic() - started, 0)
    return dataclasses.replace(report, out=str(staged.name))


def _check_all_same(plan: CopyPlan) -> None:
    for selection in plan.selections:
        _check_same(selection.path, selection.manifest)


def _check_same(path: Path, manifest: Manifest) -> None:
    """Raise PackError if a store has been replaced since it was opened."""
    try:
        is_same = read_manifest(path).digest == manifest.digest
    except StoreError:
        is_same = False
    if not is_same:
        raise PackError(f"{path} was replaced or removed while it was copied. Do it again.")


def _check_apart(store: Path, out: Path, stage: Path) -> None:
    """Refuse a source store inside OUT or its stage."""
    real, replaced, made = (Path(os.path.realpath(path)) for path in (store, out, stage))
    for folder, places in ((replaced, real.parents), (made, (real, *real.parents))):
        if folder in places:
            raise OptionsError(f"the store {store} is in {folder}, which would be replaced. Choose another OUT.")


class _Copy:
    """A store in the making: its inputs are the copied rows, then the rejects of all stores."""

    def __init__(self, plan: CopyPlan, staged: StagedStore) -> None:
        self._plan, self._staged, self._like = plan, staged, plan.selections[0].manifest
        self._bounds = [0, *itertools.accumulate(len(selection.rows) for selection in plan.selections)]
        self.sizes: dict[str, int] = {}

    def run(self) -> Manifest:
        """Write all files, then the manifest."""
        rejects: list[Reject] = []
        for selection in self._plan.selections:
            _check_intact(selection)
            rejects += read_rejects(selection.path) if self._plan.has_rejects else []
        job = self._job()
        step = self._take_room(job)
        inputs = _CopiedInputs(
            self._staged.folder,
            classes=self._plan.classes,
            targets=self._column("targets", self._target_spec),
            target_kind=self._like.target_kind,
            extras={
                name: self._column(f"extras/{name}", spec)
                for name, spec in self._plan.extras.items()
                if not (name == "masks" and job.layout.has_mask_file)
            },
            rows=self._bounds[-1],
            rejects=rejects,
        )
        header = journals.Header(
            inputs=self._bounds[-1] + len(rejects),
            options=self._plan.options,
            decoders=self._like.decoders,
            labels=self._plan.labels,
        )
        sealed = seal(self._staged, header, job.layout, inputs, self._blocks(job, step, rejects))
        assert sealed is not None  # there are rows
        return sealed

    @property
    def _target_spec(self) -> TensorSpec:
        spec = self._like.tensors["targets"]
        return spec if self._plan.target_count is None else TensorSpec(spec.dtype, (self._plan.target_count,))

    def _column(self, name: str, spec: TensorSpec) -> Column:
        return _StoredColumn(spec, lambda start, stop: self._values(name, spec, start, stop))

    def _job(self) -> CopyJob:
        rows, folder = RowOptions.pick_from(self._plan.options), self._staged.folder.absolute()
        job = CopyJob(
            root="",
            pixels_path=str(folder / PIXELS),
            geometry=Geometry.recorded(self._like),
            rows=rows,
            has_masks=self._like.has_masks,
            lock=self._staged.to.locks[0].identity,
            selections=tuple(self._plan.selections),
            bounds=tuple(self._bounds),
            targets=self._target_spec,
        )
        if not job.layout.has_mask_file:
            return job
        return dataclasses.replace(job, masks_path=str(folder / row_names(job.layout)[1]))

    def _take_room(self, job: CopyJob) -> int:
        """Allocate the file of rows; returns how many rows make a block."""
        unpacked = stored = 0
        for selection in self._plan.selections:
            found = rows_bytes(selection.path, selection.manifest, selection.rows)
            unpacked, stored = unpacked + found[0], stored + found[1]
            for name, entry in selection.manifest.files.items():
                share = entry.size_bytes * len(selection.rows) // selection.manifest.rows
                self.sizes[name] = self.sizes.get(name, 0) + share
        out = self._staged.folder
        self.sizes[PIXELS] = job.layout.file_bytes(stored)
        self._staged.to.check_same()
        for name in row_names(job.layout):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            with error_path(out / name):
                os.close(os.open(out / name, os.O_WRONLY | os.O_CREAT, 0o666))
        sync_names(out)
        check_room(out, self.sizes, _AGAIN)
        for name in row_names(job.layout):
            allocate(out / name, self.sizes[name], lambda done: notify(Progress("allocate", done, self.sizes[PIXELS])))
        rows = self._bounds[-1]
        all_bytes = whole_pages(unpacked) if self._like.has_own_sizes else unpacked
        return block_inputs(rows, max(1, all_bytes // rows))

    def _blocks(self, job: CopyJob, step: int, rejects: list[Reject]) -> Iterator[Result]:
        """Let workers write the rows; yields each finished block."""
        rows = self._bounds[-1]
        workers = min(available_cpus(), -(-rows // step))
        engine = LocalEngine(job, workers=workers, inherited=self._staged.to.locks)
        done = 0
        try:
            for result in engine.run(self._tasks(step), 0, ready=lambda: None):
                for reject in result.rejects:
                    raise PackError(f"row {reject.input} of {self._staged.name} cannot be copied: {reject.reason}.")
                result.sources = []  # copied rows have no source to record
                done += result.rows
                self._staged.to.check_same()
                notify(Progress("copy", done, rows))
                yield result
        finally:
            engine.close()
        rejected = [RejectedInput(rows + n, one.path, one.reason) for n, one in enumerate(rejects)]
        if rejected:
            none = [0] * job.layout.channel_count
            yield Result(-1, len(rejected), sums=none, square_sums=none, rejects=rejected)
        _check_all_same(self._plan)

    def _tasks(self, step: int) -> Iterator[Task]:
        """Cut the rows into blocks; each task has the offsets of its rows' lines."""
        begins: dict[int, Ints] = {}
        for start in range(0, self._bounds[-1], step):
            stop, lines = min(start + step, self._bounds[-1]), list[tuple[int, int]]()
            for number, rows in self._selected_rows(start, stop):
                if number not in begins:
                    selection = self._plan.selections[number]
                    begins = {number: line_begins(selection.path, selection.manifest.rows)[selection.rows]}
                at = start + len(lines) - self._bounds[number]
                lines += zip(rows.tolist(), begins[number][at : at + len(rows)].tolist(), strict=True)
            names = [str(self._staged.name / str(row)) for row in range(start, stop)]
            yield Task(start // step, start, names, [], reused=dict(zip(range(start, stop), lines, strict=True)))

    def _selected_rows(self, start: int, stop: int) -> Iterator[tuple[int, Ints]]:
        """Yield the selections that rows [start, stop) come from: their numbers, and the rows taken from each."""
        for number, (first, last) in enumerate(itertools.pairwise(self._bounds)):
            if first < stop and start < last:
                rows = self._plan.selections[number].rows
                yield number, rows[max(start, first) - first : min(stop, last) - first]

    def _values(self, name: str, spec: TensorSpec, start: int, stop: int) -> npt.NDArray[Any]:
        return np.concatenate(
            [
                self._plan.selections[number].values(name, rows, spec)
                for number, rows in self._selected_rows(start, stop)
            ]
        )


def _check_intact(selection: Selection) -> None:
    """Check the small files of a store against their digests and against each other."""
    path, manifest = selection.path, selection.manifest
    _check_same(path, manifest)
    if what := damage(path, manifest, manifest.files.keys() - {PIXELS}):
        raise PackError(f"{what} {_REMEDY}")
    if wrong := next(wrong_rows(path, manifest, read_blocks(path)), None):
        where = f", row {wrong.rows[0]}" if wrong.rows else ""
        raise PackError(f"{path}/{wrong.file}{where}: {wrong.what}. pack verify {path} lists all damage.")


class _StoredColumn(Column):
    """A tensor of the rows, read from the stores on demand."""

    def __init__(self, spec: TensorSpec, read: Any) -> None:
        super().__init__(spec.dtype, spec.row_shape[0] if spec.row_shape else None)
        self._spec, self._read = spec, read

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row's numbers."""
        return self._spec.row_shape

    def chosen(self, indices: Sequence[int]) -> Column:
        """Return the column of contiguous rows as a store's bytes; rejects have none."""
        if not indices:
            return Column("uint8", None, array("B"))
        values: npt.NDArray[Any] = self._read(indices[0], indices[-1] + 1)
        data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        return Column("uint8", None, array("B", data))


@dataclass
class _CopiedInputs(Inputs):
    """The copied rows, followed by the rejects of their stores."""

    rows: int = 0
    rejects: list[Reject] = field(default_factory=list)

    def line(self, index: int) -> int | None:
        """Return the line of a list that a reject had."""
        return self.rejects[index - self.rows].line


@dataclass(frozen=True)
class CopyJob(PackJob):
    """A job that copies rows of finished stores; bounds: the first row of each selection, then the total."""

    selections: tuple[Selection, ...] = ()
    bounds: tuple[int, ...] = ()
    targets: TensorSpec = _NUMBERS

    def row_maker(self, in_flight: InFlight) -> CopiedRows:
        """Make the reader of the rows, in a worker's process."""
        return CopiedRows(self, in_flight)


class CopiedRows(RowMaker):
    """Reads the rows of finished stores, with one of them open at a time."""

    def __init__(self, job: CopyJob, in_flight: InFlight) -> None:
        self._job, self._in_flight = job, in_flight
        self._number = -1
        self._rows: SealedRows | None = None

    def make(self, task: Task, index: int, attempt: Attempt) -> None:
        """Fill in a row, its mask and its line.

        Raises:
            PackError: it is damaged, or its store was replaced meanwhile.
        """
        number = bisect.bisect_right(self._job.bounds, index) - 1
        selection = self._job.selections[number]
        row, line_begin = task.reused[index]
        self._in_flight.mark(index, is_reading=True)
        try:
            rows = self._opened(number)
            attempt.line = self._line(rows.line(line_begin), selection)
            if block := rows.damaged_block(row):
                last = block.stop - 1
                which = f"row {last} is" if block.start == last else f"rows {block.start} to {last} are"
                raise PackError(
                    f"{selection.path} is damaged: {which} not what was packed."
                    f" Leave them out (pack subset --rows), or pack again; pack verify {selection.path} lists all damage."
                )
            pixels, attempt.mask, frame = rows.row(row)
        except StoreError as e:
            raise PackError(str(e)) from None
        except OSError as e:
            raise PackError(f"{e.filename or selection.path} cannot be read: {e.strerror}.") from None
        attempt.mask_values = [*selection.manifest.mask_values] if attempt.mask else []
        attempt.row = Row(pixels, rows.content(row), 0, 0, {}, frame)

    def _opened(self, number: int) -> SealedRows:
        if self._rows is None or number != self._number:
            if self._rows is not None:
                self._rows.close()
            selection = self._job.selections[number]
            self._rows, self._number = SealedRows(selection.path, selection.manifest.digest), number
        return self._rows

    def _line(self, line: str, selection: Selection) -> str:
        if "targets" not in selection.numbers:
            return line
        sample = Sample.decode(line)
        target = _renumbered(np.array([sample.target]), selection.numbers["targets"], self._job.targets)[0].tolist()
        return dataclasses.replace(sample, target=target).encode()


def _renumbered(values: npt.NDArray[Any], numbers: tuple[int, ...], spec: TensorSpec) -> npt.NDArray[Any]:
    """Renumber classes: class indices, keeping -1, or the columns of a multi-hot target."""
    if spec.dtype == "float32":
        wider = np.zeros((len(values), *spec.row_shape), values.dtype)
        wider[:, numbers] = values
        return wider
    return np.append(np.array(numbers, np.int64), -1)[values]
