"""The options of packing: each field defines the command's option, `pack`'s keyword and the recorded request.

Imports no image library.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar, cast

from packer import values
from packer.errors import OptionsError
from packer.option_names import Option, written
from packer.report import Progress

_Group = TypeVar("_Group", bound="_Options")

CHANNELS = {"rgb": 3, "gray": 1, "rgba": 4}

# Pillow's limit: a larger image counts as a decompression bomb.
MAX_PIXELS = 178_956_970

# Images that `show` draws.
TILES = 48


def option(
    default: object,
    check: values.Check,
    help: str,
    metavar: str | None = None,
    *,
    records: str = "",
    of_run: bool = False,
) -> Any:
    """Declare an option.

    Args:
        check: converts a value from Python or the command to one form; not called for a default of None.
        help: its meaning in one line, for the command and for Python.
        metavar: stands for the value in the command's help.
        records: "always", or "given" if not the default: the manifest records it, since it shapes pixels or rows.
        of_run: it belongs to one run only, and is left out of the command that makes the same store.
    """
    told = {"check": check, "help": help, "metavar": metavar, "records": records, "of_run": of_run}
    return field(default=default, metadata=told)


@dataclass(frozen=True, kw_only=True)
class _Options:
    """A group of options."""

    def __post_init__(self) -> None:
        """Check each value; raises OptionsError."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None or each.default is not None:
                object.__setattr__(self, each.name, each.metadata["check"](Option(each.name), value))

    @classmethod
    def pick_from(cls: type[_Group], others: object) -> _Group:
        """Take this group's options from other options, or from options by name; the rest keep their defaults."""
        given = others if isinstance(others, Mapping) else vars(others)
        return cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})


@dataclass(frozen=True, kw_only=True)
class ShapeOptions(_Options):
    """The shape of a row, and how an image fills it."""

    size: int | str | tuple[int, int] | None = option(
        None, values.size, "Pixels of a row: 224, or 192x256 (height x width).", "S|HxW", records="always"
    )
    fit: str = option(
        "crop",
        values.one_of("crop", "pad", "squash", "inside", "none"),
        "crop, pad, squash, inside, or none: own sizes.",
        "FIT",
        records="always",
    )
    crop_fraction: float = option(
        1.0, values.number(0.05, 1, kind=float), "Share of the image that a crop keeps.", "F", records="always"
    )
    resample: str = option(
        "bilinear",
        values.one_of("bilinear", "bicubic", "lanczos", "box"),
        "bilinear, bicubic, lanczos or box.",
        "FILTER",
        records="always",
    )
    channels: str = option("rgb", values.one_of(*CHANNELS), "rgb, gray or rgba.", "C", records="always")

    @property
    def sides(self) -> tuple[int, int] | None:
        """size as (height, width)."""
        return cast(tuple[int, int] | None, self.size)

    @property
    def has_own_sizes(self) -> bool:
        """Whether each row keeps the size of its image, up to max_size."""
        return self.fit == "none"

    @property
    def least_sides(self) -> tuple[int, int] | None:
        """Least height and width of a row; None: the common size of all images, which is not known yet."""
        return (1, 1) if self.has_own_sizes else self.sides


@dataclass(frozen=True, kw_only=True)
class RowOptions(ShapeOptions):
    """Options that determine the pixels of rows, and the accepted images."""

    max_size: int | str | None = option(
        None, values.max_size, "With fit none: the longer side, or short:256.", "S|short:S", records="given"
    )
    exact: bool = option(False, values.flag, "Never decode JPEGs at a reduced size.", records="always")
    requantize: int | None = option(
        None, values.quality, "Encode JPEGs by ffmpeg -q:v Q, and pack these.", "Q", records="given"
    )
    compress: int | None = option(
        None,
        values.number(1, 100, "the quality of JPEGs, 1 to 100, such as 90"),
        "Keep rows as JPEGs of this quality, 1 to 100.",
        "Q",
        records="given",
    )
    bit_depth: int = option(
        16, values.number(8, 16, "8 to 16 bits"), "Bits of 16-bit gray, 8 to 16.", "N", records="given"
    )

    @property
    def is_exact(self) -> bool:
        """Whether JPEGs are never decoded at a reduced size first; requantized ones never are."""
        return self.exact or self.requantize is not None


@dataclass(frozen=True, kw_only=True)
class LabelOptions(_Options):
    """Options of lists and labels; an update takes these too."""

    classes: str | os.PathLike[str] | None = option(
        None, values.path, "The class list: a store, or a file of names.", "STORE|FILE"
    )
    root: str | os.PathLike[str] | None = option(
        None, values.path, "Folder that relative paths of a list start from.", "DIR"
    )
    path_column: str | None = option(None, values.text, "Column of a table with the path.", "NAME")
    target_column: str | None = option(None, values.text, "Column with the target, or several.", "NAME,...")
    extension: str | None = option(None, values.text, "Suffix for paths of a list without it.", ".EXT")
    label_separator: str | None = option(None, values.text, "Separator of several labels in a cell.", "TEXT")
    boxes: str | os.PathLike[str] | None = option(
        None, values.path, "Boxes: COCO's json, or a folder of YOLO's .txt.", "JSON|DIR"
    )
    masks: str | os.PathLike[str] | None = option(
        None, values.path, "Folder of masks, each at its image's path.", "DIR"
    )


@dataclass(frozen=True, kw_only=True)
class InputOptions(LabelOptions):
    """Options of inputs and labels."""

    mask_values: str | Sequence[int] | None = option(
        None,
        values.mask_values,
        "Values of masks that become classes 0, 1, ...",
        "VALUE,...",
        records="given",
    )


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(_Options):
    """Options of workers, rejects and progress."""

    workers: int | None = option(None, values.number(1, 4096), "Processes; default: one per CPU.", "N", of_run=True)
    max_rejects: int | str = option("1%", values.max_rejects, "Fail (exit 3) if more images are rejected.", "N|P%")
    progress: Callable[[Progress], None] | None = option(
        None, values.function, "Called a few times a second with a Progress.", of_run=True
    )

    def allowed_rejects(self, inputs: int) -> int:
        """Return how many of this many inputs may be rejected."""
        return values.allowed_share(str(self.max_rejects), inputs)


@dataclass(frozen=True, kw_only=True)
class OutputOptions(_Options):
    """The order of the rows in OUT, and whether OUT may exist already."""

    shuffle: int | None = option(
        None,
        values.number(0, 2**63 - 1, "an integer of 0 or more"),
        "Seed of a random order of the rows.",
        "SEED",
        records="always",
    )
    overwrite: bool = option(False, values.flag, "Replace an existing store.", of_run=True)
    # replace each existing store by a new one that reuses the rows of unchanged inputs
    update: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class PackOptions(OutputOptions, WorkerOptions, InputOptions, RowOptions):
    """The options of `pack`."""

    part: str | None = option(None, values.part, "Pack the i-th of n parts; pack seal joins them.", "i/n")
    engine: str = option(
        "local",
        values.one_of("local", "ray"),
        "local, or ray: parts are its tasks.",
        "ENGINE",
        of_run=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        fit = Option("fit", self.fit)
        if self.has_own_sizes and self.size is not None:
            raise OptionsError(
                f"{Option('size')} gives all rows one size, {fit} leaves each its own. For a limit give"
                f" {Option('max_size')}."
            )
        if self.crop_fraction != 1 and self.fit != "crop":
            raise OptionsError(f"{Option('crop_fraction')} belongs to {Option('fit', 'crop')}, not to {fit}.")
        if self.max_size is not None and not self.has_own_sizes:
            raise OptionsError(
                f"{Option('max_size')} belongs to {Option('fit', 'none')}, not to {fit}: add {Option('fit', 'none')}, or"
                f" give {Option('size')} instead."
            )
        if self.mask_values is not None and self.masks is None:
            raise OptionsError(f"{Option('mask_values')} belongs to {Option('masks')}.")
        compress = Option("compress", self.compress)
        if self.compress and self.channels == "rgba":
            raise OptionsError(f"{compress} takes {Option('channels')} rgb or gray, as a JPEG has no alpha.")
        if self.compress and self.masks is not None:
            raise OptionsError(
                f"{compress} does not go with {Option('masks')}, which a JPEG would change. Leave one of them out."
            )
        if self.engine == "ray" and self.overwrite:
            raise OptionsError(f"{Option('engine', 'ray')} replaces no store: remove OUT, or choose another one.")
        if self.engine == "ray" and self.part is not None:
            raise OptionsError(f"{Option('engine', 'ray')} packs all parts: leave out {Option('part')}.")
        if self.part is None and self.engine == "local":
            return
        parted = Option("part") if self.engine == "local" else Option("engine", "ray")
        if self.least_sides is None:
            raise OptionsError(
                f"{parted} needs {Option('size')} or {Option('fit', 'none')}: one size for all would be found in all"
                " headers alone."
            )

    def shaping(self) -> dict[str, object]:
        """Return every option that shapes pixels, rows or rejects: the manifest records them, and a resume compares them."""
        recorded: dict[str, object] = {}
        for each in fields(self):
            value, records = getattr(self, each.name), each.metadata["records"]
            if records == "always" or (records == "given" and value != each.default):
                recorded[each.name] = [*value] if isinstance(value, tuple) else value
        return recorded | {"exact": self.is_exact}

    def words(self) -> list[str]:
        """Return the words of the command that makes the same store; their paths are valid in any folder.

        Examples:
            >>> PackOptions(size=(224, 224), fit="pad", exact=True).words()
            ['--size', '224', '--fit', 'pad', '--exact']
        """
        words = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.metadata["of_run"] or value == each.default:
                continue
            words.append(f"--{each.name.replace('_', '-')}")
            if each.metadata["check"] is values.path:
                words.append(values.lasting_path(value))
            elif value is not True:
                words.append(str(written(each.name, value)))
        return words
