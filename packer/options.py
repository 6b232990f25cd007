"""What a pack may be asked for, checked in one place for the command and for Python alike. No image library is imported here."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from packer.errors import OptionsError

FITS = ("crop", "pad", "squash", "inside", "none")
RESAMPLES = ("bilinear", "bicubic", "lanczos", "box")
ENGINES = ("local", "ray")
ON_ERROR = ("skip", "fail")
ICC = ("keep", "convert")
CHANNELS = {"rgb": 3, "gray": 1, "rgba": 4}

# What belongs to one run alone, and what is a path.
_OF_A_RUN = ("workers", "resume", "overwrite", "update", "part", "engine", "address")
_PATHS = ("classes", "root", "boxes", "masks")
# of --masks: no folder, but what the label files of --boxes outline
DRAWN = "boxes"

# A 100-megapixel camera passes. An image of this size takes a worker 0.5 GB, with alpha 1 GB (2026-11-22).
MAX_PIXELS = 128_000_000

# Recorded, but not compared by a resume, update or merge: they shape no pixel of an image that was accepted.
_LIMITS = ("max_pixels",)

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.I)

# Above this a row is more than 1 GB in RGB; such a size is a slip of the finger.
_MAX_SIDE = 16384


@dataclass(frozen=True)
class RowOptions:
    """What shapes rows. size is (height, width) or None: as the images are."""

    size: tuple[int, int] | None = None
    fit: str = "crop"
    crop_fraction: float = 1.0
    resample: str = "bilinear"
    exact: bool = False
    channels: str = "rgb"
    strict: bool = False
    max_pixels: int = MAX_PIXELS
    requantize: int | None = None
    max_size: int | str | None = None
    icc: str = "keep"
    bit_depth: int | None = None

    def __post_init__(self) -> None:
        _one_of("fit", self.fit, FITS)
        _one_of("resample", self.resample, RESAMPLES)
        _one_of("channels", self.channels, tuple(CHANNELS))
        _one_of("icc", self.icc, ICC)
        if self.bit_depth is not None and not (isinstance(self.bit_depth, int) and 8 <= self.bit_depth <= 16):
            raise OptionsError(f"--bit-depth is {self.bit_depth!r}, expected 8 to 16 bits.")
        if self.size is not None:
            for side in self.size:
                if not isinstance(side, int) or not 1 <= side <= _MAX_SIDE:
                    raise OptionsError(f"--size is {format_size(self.size)}, expected 1 to {_MAX_SIDE} pixels a side.")
        self._check_own_sizes()
        if not 0.05 <= self.crop_fraction <= 1:
            raise OptionsError(f"--crop-fraction is {self.crop_fraction}, expected 0.05 to 1.")
        if self.crop_fraction != 1 and self.fit != "crop":
            raise OptionsError(f"--crop-fraction belongs to --fit crop, not to --fit {self.fit}.")
        check_quality("--requantize", self.requantize)
        if self.max_pixels < 1:
            raise OptionsError(f"--max-pixels is {self.max_pixels}, expected 1 or more.")

    def _check_own_sizes(self) -> None:
        """Refuse a size for all rows beside --fit none, and --max-size without it."""
        if self.fit == "none" and self.size is not None:
            raise OptionsError(
                "--size gives all rows one size, --fit none leaves each its own. For a limit give --max-size."
            )
        if self.max_size is not None:
            if self.fit != "none":
                raise OptionsError(
                    f"--max-size belongs to --fit none, not to --fit {self.fit}, where --size says it all."
                )
            if not 1 <= side_limit(self.max_size)[0] <= _MAX_SIDE:
                raise OptionsError(f"--max-size is {self.max_size!r}, expected 1 to {_MAX_SIDE} pixels.")

    @property
    def has_own_sizes(self) -> bool:
        """Whether each row keeps the size of its image, up to max_size."""
        return self.fit == "none"

    @property
    def is_exact(self) -> bool:
        """Whether JPEGs are never decoded at a reduced size first: neither are requantized ones."""
        return self.exact or self.requantize is not None


@dataclass(frozen=True)
class InputOptions:
    """What the inputs are, their labels, and their order."""

    classes: str | None = None
    shuffle: int | None = None
    root: str | None = None
    path_column: str | None = None
    target_column: str | None = None
    extension: str | None = None
    missing: tuple[str, ...] = ()
    boxes: str | None = None
    min_visibility: float = 0.1
    max_boxes: int | None = None
    upright_labels: bool = False
    masks: str | None = None

    def __post_init__(self) -> None:
        if self.shuffle is not None and not (isinstance(self.shuffle, int) and self.shuffle >= 0):
            raise OptionsError(f"--shuffle is {self.shuffle!r}, expected a whole number of 0 or more.")
        if self.classes is not None and not isinstance(self.classes, str | os.PathLike):
            raise OptionsError(f"--classes is {self.classes!r}, expected the path of a store or of a file.")
        if not 0 <= self.min_visibility <= 1:
            raise OptionsError(f"--min-visibility is {self.min_visibility}, expected a share from 0 to 1.")
        if self.max_boxes is not None and not (isinstance(self.max_boxes, int) and self.max_boxes >= 1):
            raise OptionsError(f"--max-boxes is {self.max_boxes!r}, expected 1 or more.")
        if self.boxes is None and (self.max_boxes, self.min_visibility) != (None, InputOptions.min_visibility):
            raise OptionsError("--min-visibility and --max-boxes belong to --boxes.")
        if self.draws_masks and self.boxes is None:
            raise OptionsError(
                f"--masks {DRAWN} draws the outlines that --boxes names, and there is no --boxes. A folder of masks so named"
                f" is ./{DRAWN}."
            )
        if self.upright_labels and self.boxes is None and self.masks is None:
            raise OptionsError("--upright-labels belongs to --boxes and --masks.")

    @property
    def draws_masks(self) -> bool:
        """Whether masks are drawn of the outlines in the label files."""
        return self.masks == DRAWN


@dataclass(frozen=True)
class RunOptions:
    """Who decodes, and what a broken image does to the pack."""

    workers: int | None = None
    on_error: str = "skip"
    max_rejects: str = "1%"
    timeout: float = 30.0
    engine: str = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and not (isinstance(self.workers, int) and 1 <= self.workers <= 4096):
            raise OptionsError(f"--workers is {self.workers!r}, expected 1 to 4096.")
        _one_of("on-error", self.on_error, ON_ERROR)
        self.allowed_rejects(0)
        if not isinstance(self.timeout, int | float) or not self.timeout > 0:
            raise OptionsError(f"--timeout is {self.timeout}, expected more than 0 seconds.")
        _one_of("engine", self.engine, ENGINES)
        if self.address is not None and self.engine != "ray":
            raise OptionsError("--address is that of a Ray cluster: give it with --engine ray.")

    def allowed_rejects(self, inputs: int) -> int:
        """Return how many of so many inputs may be rejected; --max-rejects is a count or a percentage."""
        return allowed_rejects(self.max_rejects, inputs)


@dataclass(frozen=True)
class OutputOptions:
    """What may be in OUT already, and which part of the store is made."""

    resume: bool = False
    overwrite: bool = False
    # with resume or overwrite: of each store that is there make a new one, with the rows of what has not changed
    update: bool = False
    part: str | None = None


@dataclass(frozen=True)
class PackOptions(OutputOptions, RunOptions, InputOptions, RowOptions):
    """Options of `pack`; see `pack build --help` for each."""

    def __post_init__(self) -> None:
        RowOptions.__post_init__(self)
        InputOptions.__post_init__(self)
        RunOptions.__post_init__(self)
        if self.part is not None:
            _check_part(self.part, self.size, has_own_sizes=self.has_own_sizes)
            if self.boxes is not None or self.masks is not None:
                raise OptionsError(
                    "--boxes, --masks and --part do not go together yet. Pack as a whole, or with --engine ray."
                )

    @classmethod
    def of(cls, arguments: Mapping[str, Any], **more: Any) -> PackOptions:
        """Return the options among the arguments of a function such as `pack`; paths, sizes and words as they may be given.

        Args:
            more: options that take the place of arguments, or stand beside them.
        """
        given = {option.name: arguments[option.name] for option in fields(cls) if option.name in arguments} | more
        for name in given.keys() & {"root", "boxes", "masks"}:
            given[name] = None if given[name] is None else os.fspath(given[name])
        given |= {name: parse(given[name]) for name, parse in _PARSED.items() if name in given}
        return cls(**given)

    def shaping(self) -> dict[str, Any]:
        """Return every option that shapes the pixels, rows or rejects: what the manifest records and a resume compares."""
        optional: dict[str, Any] = {} if self.requantize is None else {"requantize": self.requantize}
        optional |= {} if self.icc == "keep" else {"icc": self.icc}
        optional |= {} if self.bit_depth is None else {"bit_depth": self.bit_depth}
        if self.boxes is not None:
            optional |= {"min_visibility": self.min_visibility, "max_boxes": self.max_boxes}
        if self.boxes is not None or self.masks is not None:
            optional["upright_labels"] = self.upright_labels
        if self.draws_masks:
            optional["masks"] = DRAWN
        if self.has_own_sizes:
            side, is_short = side_limit(self.max_size)
            optional["max_size"] = f"short:{side}" if is_short else side or None
        return {
            "size": None if self.size is None else list(self.size),
            "fit": self.fit,
            "crop_fraction": self.crop_fraction,
            "resample": self.resample,
            "exact": self.is_exact,
            "channels": self.channels,
            "shuffle": self.shuffle,
            "strict": self.strict,
            "max_pixels": self.max_pixels,
        } | optional

    def words(self) -> list[str]:
        """Return the words of the command that ask for the same store; paths in them hold from any folder.

        Example:
            >>> PackOptions(size=(224, 224), fit="pad", exact=True).words()
            ['--size', '224', '--fit', 'pad', '--exact']
        """
        words = []
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in _OF_A_RUN or value == option.default:
                continue
            name = f"--{option.name.replace('_', '-')}"
            if isinstance(value, tuple) and option.name != "size":
                words += [word for piece in value for word in (name, piece)]
                continue
            words.append(name)
            if option.name == "size":
                words.append(format_size(value))
            elif option.name in _PATHS and not (option.name == "masks" and value == DRAWN):
                words.append(lasting_path(os.fspath(value)))
            elif value is not True:
                words.append(str(value))
        return words


def without_limits(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return of recorded options those that two packs must have in common for their rows to be alike.

    Example:
        >>> without_limits({"fit": "crop", "max_pixels": 1000})
        {'fit': 'crop'}
    """
    return {name: value for name, value in recorded.items() if name not in _LIMITS}


def lasting_path(path: str) -> str:
    """Return a path that means the same from any folder; a URL and standard input do already."""
    return path if is_url(path) or path in ("-", "-0") else os.path.abspath(path)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether what is given as IMAGES, OUT or a store names object storage rather than a path; decided nowhere else."""
    return _URL.match(os.fspath(path)) is not None


def allowed_rejects(limit: str, inputs: int) -> int:
    """Return how many of so many inputs may be rejected under a limit such as "10" or "1%"; shares are rounded down."""
    return allowed_share("--max-rejects", limit, inputs)


def allowed_share(option: str, limit: str, count: int) -> int:
    """Return how many of so many an option allows: a number, or a share such as "1%", rounded down."""
    text = str(limit).strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text)
    if not match or (not match[2] and "." in text) or (match[2] and float(match[1]) > 100):
        raise OptionsError(f"{option} is {text!r}, expected a count such as 10 or a share such as 1%.")
    return math.floor(count * float(match[1]) / 100) if match[2] else int(match[1])


def check_quality(option: str, quality: int | None) -> None:
    """Refuse what is no -q:v of FFmpeg's, 2 (best) to 31 (smallest); None is none."""
    if quality is not None and not (isinstance(quality, int) and 2 <= quality <= 31):
        raise OptionsError(f"{option} is {quality!r}, expected 2 (best) to 31 (smallest), as ffmpeg's -q:v.")


def _check_part(text: str, size: tuple[int, int] | None, *, has_own_sizes: bool) -> None:
    if has_own_sizes:
        raise OptionsError("--fit none and --part do not go together yet. Pack as a whole, or with --engine ray.")
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", str(text))
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise OptionsError(f"--part is {text!r}, expected i/n such as 2/8: the second of eight equal parts.")
    if size is None:
        raise OptionsError("--part needs --size: without it every part would read the headers of all images.")


def parse_size(text: str) -> tuple[int, int]:
    """Parse "224" or "192x256" (height x width).

    Example:
        >>> parse_size("192x256")
        (192, 256)
    """
    match = re.fullmatch(r"(\d{1,9})(?:x(\d{1,9}))?", text.strip().lower())
    if not match:
        raise OptionsError(f"--size is {text!r}, expected pixels such as 224, or height x width such as 192x256.")
    return int(match[1]), int(match[2] or match[1])


def side_limit(max_size: int | str | None) -> tuple[int, bool]:
    """Return the pixels that --max-size allows a side, 0 for any, and whether that is the shorter side.

    Example:
        >>> side_limit(512), side_limit("long:512"), side_limit("short:256"), side_limit(None)
        ((512, False), (512, False), (256, True), (0, False))
    """
    match = re.fullmatch(r"(?:(long|short):)?(\d{1,9})", "0" if max_size is None else str(max_size).strip().lower())
    if not match:
        raise OptionsError(
            f"--max-size is {max_size!r}, expected pixels such as 512 for the longer side, or short:256 for the shorter."
        )
    return int(match[2]), match[1] == "short"


def format_size(size: tuple[int, int]) -> str:
    """Write (height, width) as the command takes it: 224 or 192x256."""
    height, width = size
    return str(height) if height == width else f"{height}x{width}"


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionsError(f"--{name} is {value!r}, expected {', '.join(known[:-1])} or {known[-1]}.")


def parsed_size(size: Any) -> tuple[int, int] | None:
    """Return (height, width) from pixels, a pair or text; None stays None. Raises OptionsError."""
    if size is None:
        return None
    if isinstance(size, str | int):
        return parse_size(str(size))
    try:
        height, width = (operator.index(side) for side in size)
    except (TypeError, ValueError):
        raise OptionsError(f"size is {size!r}, expected pixels, (height, width), or text such as '192x256'.") from None
    return height, width


def missing_words(missing: str | Sequence[str]) -> tuple[str, ...]:
    """Return the words that mean no label, of one or several."""
    return (missing,) if isinstance(missing, str) else tuple(missing)


# Options that may be given in several forms.
_PARSED: dict[str, Callable[[Any], Any]] = {"size": parsed_size, "missing": missing_words, "max_rejects": str}
