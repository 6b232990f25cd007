"""`pack_dataset`: items of a map-style dataset, read once each by worker processes, become the rows of a store.

Knows the forms of images and targets. Imports no torch: a tensor is recognized by its methods.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from packer.errors import DecodeError, OptionsError, ScanError, SourceError
from packer.inputs.class_lists import MOST_CLASSES, checked_names
from packer.inputs.labels import MOST_FLOAT32
from packer.inputs.samples import Column, Inputs, Paths
from packer.options import CHANNELS, OutputOptions, PackOptions, ShapeOptions, WorkerOptions, option
from packer.packing.keywords import takes
from packer.packing.pack import pack_parts
from packer.pixels.decode import MODES
from packer.pixels.pillow import to_mode
from packer.pixels.row import Row
from packer.report import PackReport
from packer.sample_lines import Sample
from packer.sources.roots import check_system
from packer.store.destination import Folder
from packer.store.state import resolved_out
from packer.store.tasks import Task
from packer.workers.block_worker import Attempt, PackJob, RowMaker
from packer.workers.processes import InFlight
from reader.format.manifest import TARGET_DTYPES
from reader.format.values import Json

# the keys of dict items, in most image datasets of the Hugging Face Hub
_IMAGE, _LABEL = "image", "label"


class MapDataset(Protocol):
    """A map-style dataset, as torch calls it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(OutputOptions, WorkerOptions, ShapeOptions):
    """Options of `pack_dataset`. Without size, rows have that of the first image; fit "none" is refused."""

    classes: Sequence[str] | None = option(
        None, lambda _, names: names, "Names of the classes; without it those of the dataset, else 0, 1, ..."
    )


@takes(DatasetOptions)
def pack_dataset(dataset: MapDataset, out: str | os.PathLike[str], options: DatasetOptions) -> PackReport:
    """Read each item of a dataset once, into the store OUT. Options mean what they do for `pack`.

    An item is (image, target), or a dict with `image` and `label`, as in HF datasets. The image is a PIL image, a uint8
    array [H, W] or [H, W, C], or a uint8 tensor [C, H, W]; it counts as upright. The first item's target determines the kind
    of all. An integer is a class; a float, or several numbers, a regression target; several zeros and ones a multi-hot
    target. An item that raises, or has another form, is rejected with the reason. Without size, so are images of another size
    than the first.

    Args:
        dataset: len() and dataset[i]; read by worker processes, so under spawn it must pickle and not be from __main__.
        out: the store to make.
        options: the fields of `DatasetOptions`, as keywords.

    Raises:
        ScanError: the dataset is empty, or its first item is not a pair of image and target.
        OptionsError, PackError: as `pack`.

    Examples:
        >>> pixels = np.zeros((10, 8, 8, 3), np.uint8)
        >>> pack_dataset([(image, n % 2) for n, image in enumerate(pixels)], out_path, workers=1).rows
        10
    """
    started, to = time.perf_counter(), Folder(resolved_out(out), overwrite=options.overwrite)
    to.recover()
    if options.has_own_sizes:
        raise OptionsError(
            "fit 'none' needs to know all sizes before, and a dataset does not say them. Pack the files, by pack."
        )
    first, first_target = _first(dataset)
    pack_options = PackOptions.pick_from(vars(options) | {"size": options.size or first.size[::-1], "classes": None})
    kind = _Kind.from_target(first_target)
    classes = [*(options.classes if options.classes is not None else _class_names(dataset))]
    names = checked_names(classes, "the list of classes") if classes else ()
    if kind.name == "multi-hot" and names and len(names) != kind.count:
        raise OptionsError(f"there are {len(names)} classes, the first target has {kind.count} values.")
    inputs = Inputs(Path("."), classes=names if kind.name != "regression" else (), target_kind=kind.name)
    inputs.paths = Paths(map(str, range(len(dataset))))
    blank: object = -1 if kind.count is None else [0] * kind.count
    inputs.targets = Column.from_rows(kind.dtype, [blank] * len(dataset), kind.count)
    inputs.roots = _roots(dataset)
    inputs.identity = hashlib.sha256(first.tobytes() + repr(first_target).encode()).hexdigest()
    if options.shuffle is not None:
        inputs = inputs.shuffled(options.shuffle)
    make_job = functools.partial(
        DatasetJob,
        dataset=dataset,
        kind=kind,
        only=None if options.size else first.size,
        class_count=len(inputs.classes),
    )
    return pack_parts({"": inputs}, to, pack_options, started, make_job)


@dataclass(frozen=True)
class _Kind:
    """The kind of a dataset's targets: see `reader.format.manifest`."""

    name: str
    count: int | None = None

    @classmethod
    def from_target(cls, target: object) -> _Kind:
        """Determine the kind by a plain target, as `_plain` returns it."""
        if not isinstance(target, list):
            return cls("regression", 1) if isinstance(target, float) else cls("class")
        return cls(
            "multi-hot" if set(target) <= {0, 1} and float not in map(type, target) else "regression", len(target)
        )

    @property
    def dtype(self) -> str:
        """The store's dtype for targets of this kind."""
        return TARGET_DTYPES[self.name]

    def checked(self, target: Json, class_count: int) -> object:
        """Return a target in the form of samples.jsonl; raises DecodeError if its kind differs."""
        values = target if isinstance(target, list) else [target]
        if self.name == "class":
            is_right = type(target) is int and -1 <= target < (class_count or MOST_CLASSES)
        elif self.name == "multi-hot":
            is_right = isinstance(target, list) and all(type(value) is int and value in (0, 1) for value in values)
        else:
            # false for nan
            is_right = all(type(value) in (int, float) and abs(value) < MOST_FLOAT32 for value in values)
        if not is_right or (self.count is not None and len(values) != self.count):
            width = f" of {self.count}" if self.count else f" below {class_count}" if class_count else ""
            raise DecodeError(f"its target is {str(target)[:60]}, expected {self.name}{width}, as of the first item")
        return values if self.count is not None else target


@dataclass(frozen=True)
class DatasetJob(PackJob):
    """A job whose samples are items of a dataset; `only` is the (width, height) that all must have, None: any."""

    dataset: MapDataset = ()
    kind: _Kind = _Kind("class")
    only: tuple[int, int] | None = None
    class_count: int = 0

    def row_maker(self, in_flight: InFlight) -> DatasetRows:
        """Make the row maker, in a worker's process."""
        # as torch's DataLoader does: the threads of a forked process are gone
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)
        return DatasetRows(self, in_flight)


class DatasetRows(RowMaker):
    """Makes rows of a dataset's items."""

    def __init__(self, job: DatasetJob, in_flight: InFlight) -> None:
        self._job, self._in_flight = job, in_flight

    def make(self, task: Task, index: int, attempt: Attempt) -> None:
        """Fill in the row and the line of an item; raises DecodeError."""
        job, path = self._job, task.paths[index - task.start]

        def read() -> object:
            """Get the item; a disk error stops the pack instead of rejecting the item."""
            try:
                return job.dataset[int(path)]
            except OSError as e:
                check_system(str(e.filename or f"item {path} of the dataset"), e, job.roots)
                raise

        self._in_flight.mark(index)
        try:
            item = read()
        except (MemoryError, SourceError):
            raise
        except Exception as e:
            raise DecodeError(f"the dataset raised {type(e).__name__}: {e}") from e
        image, target = _pair(item)
        if job.only not in (None, image.size):
            raise DecodeError(f"it has {image.width} x {image.height} pixels, the first item {job.only}; give a size")
        target = job.kind.checked(target, job.class_count)
        image = to_mode(image, MODES[job.rows.channels])
        row_image, content = job.geometry.to_row(image, job.geometry.resized(*image.size))
        attempt.line = Sample(path, target, None, None, *image.size, {"decoder": "dataset"}).encode()
        attempt.row = Row(row_image.tobytes(), content, *image.size)


def _roots(dataset: object) -> tuple[str, ...]:
    """Return the folder that a torchvision dataset, or the dataset of a Subset, reads from."""
    inner = dataset
    while not isinstance(getattr(inner, "root", None), str | os.PathLike) and hasattr(inner, "dataset"):
        inner = inner.dataset
    root = getattr(inner, "root", None)
    return (os.path.abspath(root),) if isinstance(root, str | os.PathLike) and os.path.isdir(root) else ()


def _first(dataset: MapDataset) -> tuple[Image.Image, object]:
    """Return the first item, which determines the form of all."""
    if not len(dataset):
        raise ScanError("the dataset is empty. Expected items of an image and a target.")
    try:
        image, target = _pair(dataset[0])
        numbers = target if isinstance(target, list) else [target]
        if not numbers or not all(type(number) in (int, float) for number in numbers):
            raise DecodeError(f"its target is {str(target)[:60]}, expected a class's number, or a list of numbers")
    except DecodeError as e:
        raise ScanError(f"the first item cannot be packed: {e}.") from e
    return image, target


def _class_names(dataset: object) -> Sequence[str]:
    """Return a dataset's class names: from `classes` in torchvision, from the feature of the labels in HF datasets."""
    if hasattr(dataset, "classes"):
        return dataset.classes or ()
    features = getattr(dataset, "features", None)
    return getattr(features[_LABEL], "names", ()) if isinstance(features, Mapping) and _LABEL in features else ()


def _pair(item: object) -> tuple[Image.Image, object]:
    if isinstance(item, Mapping):
        if missing := [key for key in (_IMAGE, _LABEL) if key not in item]:
            found = ", ".join(map(str, item))
            raise DecodeError(
                f"it is a dict of {found}, expected {_IMAGE} and {_LABEL}; rename the column of {missing[0]}s"
            )
        item = item[_IMAGE], item[_LABEL]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DecodeError(f"it is {_described(item)}, expected an image and a target")
    return _image(item[0]), _plain(item[1])


def _image(value: Any) -> Image.Image:
    if isinstance(value, Image.Image):
        return value
    is_tensor = hasattr(value, "detach")
    if not (is_tensor or isinstance(value, np.ndarray)) or str(value.dtype).removeprefix("torch.") != "uint8":
        raise DecodeError(
            f"its image is {_described(value)}, expected a PIL image, a uint8 array or a uint8 tensor, before any ToTensor"
        )
    array: npt.NDArray[Any] = value.cpu().numpy() if is_tensor else value
    if is_tensor and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in CHANNELS.values()) or not array.size:
        raise DecodeError(f"its image is {_described(value)}, expected [H, W] or 1, 3 or 4 channels")
    return Image.fromarray(np.ascontiguousarray(array))


def _plain(target: Any) -> object:
    """Return a target as Python's own number, or a list of those; None is no class."""
    if hasattr(target, "tolist"):  # an array, a tensor, or a numpy scalar
        target = target.tolist()
    if isinstance(target, list | tuple):
        return [_plain(value) for value in target]
    return -1 if target is None else int(target) if isinstance(target, bool) else target


def _described(value: Any) -> str:
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{[*value.shape]}"
