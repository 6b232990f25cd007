"""The options of packing, in groups: name, default, meaning and check of each. Imports no image library."""

from __future__ import annotations

import functools
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from packer import values
from packer.errors import OptionsError
from packer.option_names import Option, written
from packer.report import Progress

_Group = TypeVar("_Group", bound="_Options")

FITS = ("crop", "pad", "squash", "inside", "none")
RESAMPLES = ("bilinear", "bicubic", "lanczos", "box")
ENGINES = ("local", "ray")
CHANNELS = {"rgb": 3, "gray": 1, "rgba": 4}

# What belongs to one run alone, and what is a path.
_OF_A_RUN = ("workers", "progress", "overwrite", "part", "engine")
_PATHS = ("classes", "root", "boxes", "masks")

# Pillow's: it takes what has more for a decompression bomb.
MAX_PIXELS = 178_956_970

# Of `requantize` and `show` how many images.
TILES, TILES_A_LINE = 48, 8

# Above this a row is more than 1 GB in RGB; such a size is a slip of the finger.
_MAX_SIDE = 16384


@dataclass(frozen=True, kw_only=True)
class _Options:
    """A group of options: an option's name, default and meaning stand here and nowhere else; its click decorator is in `cli`."""

    def __post_init__(self) -> None:
        """Check the kind of each value, and bring options that may be given in several forms to one; raises OptionsError."""
        group: Any = type(self)
        for name, kinds in _plain_kinds(group).items():
            object.__setattr__(self, name, values.of_kind(name, getattr(self, name), kinds))
        for name, parse in _PARSED.items():
            if hasattr(self, name):
                value = getattr(self, name)
                try:
                    object.__setattr__(self, name, parse(value))
                except TypeError:
                    raise OptionsError(f"{Option(name)} is {value!r}, expected text or a path.") from None

    @classmethod
    def among(cls: type[_Group], others: object) -> _Group:
        """Return the options of this group that other options, or options by name, have; the rest is as by default."""
        given = others if isinstance(others, Mapping) else vars(others)
        return cls(**{option.name: given[option.name] for option in fields(cls) if option.name in given})


@functools.cache
def _plain_kinds(group: type[Any]) -> dict[str, tuple[type, ...]]:
    """Return the kinds that values may be of, by the annotations, of options that take one kind, or None besides."""
    hints, kinds = typing.get_type_hints(group), {}
    for option in fields(group):
        hint = hints[option.name]
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if option.name not in _PARSED and {*members} - {type(None)} in ({bool}, {int}, {float}, {str}):
            kinds[option.name] = members
    return kinds


@dataclass(frozen=True, kw_only=True)
class ShapeOptions(_Options):
    """What shape a row has, and how an image fills it.

    Args:
        size: side in pixels, (height, width), "224" or "192x256"; None where all images have one size, or each its own.
        fit: "crop": cover, then center crop; "pad": all of it, centered; "squash": stretch; "inside": upper left; "none": each
            row keeps its image's size.
        crop_fraction: share of the resized image that the crop keeps, 0.05 to 1.
        resample: the filter, always antialiased.
        channels: "rgb", "gray" or "rgba".
    """

    size: int | str | tuple[int, int] | None = None
    fit: str = "crop"
    crop_fraction: float = 1.0
    resample: str = "bilinear"
    channels: str = "rgb"

    def __post_init__(self) -> None:
        super().__post_init__()
        values.check_one_of("fit", self.fit, FITS)
        values.check_one_of("resample", self.resample, RESAMPLES)
        values.check_one_of("channels", self.channels, tuple(CHANNELS))
        if (sides := self.sides) is not None and not all(1 <= side <= _MAX_SIDE for side in sides):
            raise OptionsError(
                f"{Option('size')} is {written('size', sides)}, expected 1 to {_MAX_SIDE} pixels a side."
            )
        if self.has_own_sizes and self.size is not None:
            raise OptionsError(
                f"{Option('size')} gives all rows one size, {Option('fit', 'none')} leaves each its own. For a limit give"
                f" {Option('max_size')}."
            )
        if not 0.05 <= self.crop_fraction <= 1:
            raise OptionsError(f"{Option('crop_fraction')} is {self.crop_fraction}, expected 0.05 to 1.")
        if self.crop_fraction != 1 and self.fit != "crop":
            raise OptionsError(
                f"{Option('crop_fraction')} belongs to {Option('fit', 'crop')}, not to {Option('fit', self.fit)}."
            )

    @property
    def sides(self) -> tuple[int, int] | None:
        """size as (height, width)."""
        return values.parsed_size(self.size)

    @property
    def has_own_sizes(self) -> bool:
        """Whether each row keeps the size of its image, up to max_size."""
        return self.fit == "none"

    @property
    def least_sides(self) -> tuple[int, int] | None:
        """Height and width that every row has at least; None: all have the size of all images, which is yet to be found."""
        return (1, 1) if self.has_own_sizes else self.sides


@dataclass(frozen=True, kw_only=True)
class RowOptions(ShapeOptions):
    """What determines the pixels of rows, and which images are accepted.

    Args:
        exact: never decode JPEGs at a reduced size first.
        requantize: ffmpeg's -q:v, 2 (best) to 31: pack what JPEGs would decode to after it.
        max_size: with fit "none", the most pixels of a row's longer side; "short:256": of its shorter side; None: any.
        compress: keep each row as a JPEG of this quality, 1 to 100, which loses some; None or 0: raw.
        bit_depth: over how many bits the values of 16-bit gray files are spread.
    """

    exact: bool = False
    requantize: int | None = None
    max_size: int | str | None = None
    compress: int | None = None
    bit_depth: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 8 <= self.bit_depth <= 16:
            raise OptionsError(f"{Option('bit_depth')} is {self.bit_depth!r}, expected 8 to 16 bits.")
        values.check_max_size(self.max_size, self.fit, _MAX_SIDE)
        values.check_quality(Option("requantize"), self.requantize)
        values.check_jpeg_quality(self.compress)

    @property
    def is_exact(self) -> bool:
        """Whether JPEGs are never decoded at a reduced size first: neither are requantized ones."""
        return self.exact or self.requantize is not None


@dataclass(frozen=True, kw_only=True)
class LabelOptions(_Options):
    """How IMAGES are read as a list, and where their labels are; an update takes these too.

    Args:
        classes: a store, or a file, to take the class list from.
        root: the folder that relative paths of a list start from.
        path_column: the column of a manifest with the path; None: by its usual names.
        target_column: the column with the target, or several, separated by commas; None: by its usual names.
        extension: added to the paths of a list that lack it.
        label_separator: what is between several labels in a cell; None: a cell is one label.
        boxes: COCO's json, or a folder of YOLO's .txt: the boxes become extras, their classes the store's.
        masks: a folder with a mask for each image, which become extras too.
    """

    classes: str | None = None
    root: str | os.PathLike[str] | None = None
    path_column: str | None = None
    target_column: str | None = None
    extension: str | None = None
    label_separator: str | None = None
    boxes: str | os.PathLike[str] | None = None
    masks: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.classes is not None:
            if not isinstance(self.classes, str | os.PathLike):
                raise OptionsError(
                    f"{Option('classes')} is {self.classes!r}, expected the path of a store or of a file."
                )
            object.__setattr__(self, "classes", values.path_text(self.classes))
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class InputOptions(LabelOptions):
    """What the inputs are, their labels, and their order.

    Args:
        shuffle: the seed of a random order of the rows; None: the order of the list, or sorted paths.
        mask_values: the values of masks that are classes 0, 1, ..., "0,255" or numbers; 255, which counts for nothing, stays
            where it is not one of them; None: masks keep their values.
    """

    shuffle: int | None = None
    mask_values: str | Sequence[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_values is not None and self.masks is None:
            raise OptionsError(f"{Option('mask_values')} belongs to {Option('masks')}.")
        if self.shuffle is not None and self.shuffle < 0:
            raise OptionsError(f"{Option('shuffle')} is {self.shuffle!r}, expected an integer of 0 or more.")


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(_Options):
    """How many processes decode, what a broken image does to the pack, and where progress is reported.

    Args:
        workers: processes; None: the CPUs that this process may use.
        max_rejects: more rejects than this count or percentage set `too_many_rejects`; a store that would be replaced stays.
        progress: called a few times a second from the thread that packs.
    """

    workers: int | None = None
    max_rejects: int | str = "1%"
    progress: Callable[[Progress], None] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers is not None and not 1 <= self.workers <= 4096:
            raise OptionsError(f"{Option('workers')} is {self.workers!r}, expected 1 to 4096.")
        if self.progress is not None and not callable(self.progress):
            raise OptionsError(f"progress is {self.progress!r}, expected a function that takes a Progress.")
        self.allowed_rejects(0)

    def allowed_rejects(self, inputs: int) -> int:
        """Return how many of so many inputs may be rejected; --max-rejects is a count or a percentage."""
        return values.allowed_share(Option("max_rejects"), self.max_rejects, inputs)


@dataclass(frozen=True, kw_only=True)
class OutputOptions(_Options):
    """What may be in OUT already.

    Args:
        overwrite: replace an existing store; again, continue with that, unless OUT is what is asked for.
    """

    overwrite: bool = False
    # whether the same call continues what it began before, or confirms that it is finished
    continues: ClassVar[bool] = True
    # of each store that is there make a new one, with the rows of what has not changed
    update: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class PackOptions(OutputOptions, WorkerOptions, InputOptions, RowOptions):
    """Options of `pack`: those of its groups, part and engine.

    Args:
        part: "i/n": only the i-th of n equal parts of the inputs; `packer.seal_parts` makes the store when all are there.
        engine: "local", or "ray": the parts of all inputs are tasks of a Ray cluster, and are then sealed.
    """

    part: str | None = None
    engine: str = "local"

    def __post_init__(self) -> None:
        super().__post_init__()
        values.check_one_of("engine", self.engine, ENGINES)
        if self.engine == "ray" and self.overwrite:
            raise OptionsError(f"{Option('engine', 'ray')} replaces no store: remove OUT, or choose another one.")
        if self.compress:
            values.check_jpeg_rows(self.compress, self.channels, has_masks=self.masks is not None)
        if self.part is None and self.engine == "local":
            return
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", str(self.part))
        if self.part is not None and (not match or not 1 <= int(match[1]) <= int(match[2])):
            raise OptionsError(
                f"{Option('part')} is {self.part!r}, expected i/n such as 2/8: the second of eight equal parts."
            )
        if self.least_sides is None:
            raise OptionsError(
                f"{self._parted} needs {Option('size')} or {Option('fit', 'none')}: one size for all would be found in all"
                " headers alone."
            )
        if self.boxes is not None or self.masks is not None:
            raise OptionsError(f"{Option('boxes')} and {Option('masks')} do not go together with {self._parted} yet.")

    @property
    def _parted(self) -> Option:
        """The option by which inputs are packed in parts."""
        return Option("part") if self.engine == "local" else Option("engine", "ray")

    @property
    def has_mask_file(self) -> bool:
        """Whether masks are in a file of their own: those of rows with sizes of their own are behind the pixels."""
        return self.masks is not None and not self.has_own_sizes

    def shaping(self) -> dict[str, object]:
        """Return every option that shapes the pixels, rows or rejects: what the manifest records and a resume compares."""
        optional: dict[str, object] = {} if self.requantize is None else {"requantize": self.requantize}
        optional |= {} if self.bit_depth == 16 else {"bit_depth": self.bit_depth}
        optional |= {} if self.mask_values is None else {"mask_values": [*map(int, self.mask_values)]}
        optional |= {"max_size": values.recorded_limit(self.max_size)} if self.has_own_sizes else {}
        optional |= {"compress": self.compress} if self.compress else {}
        return {
            "size": None if self.sides is None else list(self.sides),
            "fit": self.fit,
            "crop_fraction": self.crop_fraction,
            "resample": self.resample,
            "exact": self.is_exact,
            "channels": self.channels,
            "shuffle": self.shuffle,
        } | optional

    def words(self) -> list[str]:
        """Return the words of the command that ask for the same store; paths in them hold from any folder.

        Examples:
            >>> PackOptions(size=(224, 224), fit="pad", exact=True).words()
            ['--size', '224', '--fit', 'pad', '--exact']
        """
        words = []
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in _OF_A_RUN or value == option.default:
                continue
            name = f"--{option.name.replace('_', '-')}"
            value = written(option.name, value)
            words.append(name)
            if option.name in _PATHS:
                words.append(values.lasting_path(os.fspath(value)))
            elif value is not True:
                words.append(str(value))
        return words


_PARSED: dict[str, Callable[[Any], object]] = {
    "size": values.parsed_size,
    "root": values.path_text,
    "boxes": values.path_text,
    "masks": values.path_text,
    "mask_values": values.mask_values,
    "max_rejects": str,
}
