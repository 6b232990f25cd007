"""Tensors as the manifest has them: dtype, shape of a row, names of their meta.json files; compression, texts and levels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from reader.format.errors import StoreError
from reader.format.fields import (
    INT32_MOST,
    Json,
    check_record,
    integer,
    key,
    one_of,
    read_record,
    record,
    tuple_of,
)
from reader.format.head import COMPRESSED_ROWS, JPEG_ROWS, OWN_MASKS, TEXT_COLUMNS
from reader.format.shown import brief

# An array of numpy, which this package does not import.
Array: TypeAlias = Any

ITEM_BYTES = {"uint8": 1, "int32": 4, "int64": 8, "float32": 4, "float64": 8, "bool": 1}


# numpy has arrays of up to 32 dimensions, of which one is that of rows
_MOST_DIMENSIONS = 30
_SHAPE = tuple_of(integer(0, INT32_MOST), "a list of integers of 0 or more")


@record()
class TensorSpec:
    """One per-row tensor: dtype name and the shape of one row."""

    dtype: str = key(one_of(*ITEM_BYTES))
    row_shape: tuple[int, ...] = key(_SHAPE, "shape")

    def __post_init__(self) -> None:
        check_record("a tensor of the manifest", self)
        if len(self.row_shape) > _MOST_DIMENSIONS:
            raise StoreError(
                f"the manifest names an extra of {len(self.row_shape)} dimensions, expected {_MOST_DIMENSIONS}."
            )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return ITEM_BYTES[self.dtype] * math.prod(self.row_shape)


TOP_META, TENSORS_META, EXTRAS_META = "meta.json", "_tensordict/meta.json", "_tensordict/extras/meta.json"


def metadata_names(*, has_extras: bool) -> list[str]:
    """Return the paths of the meta.json files of a store."""
    return [TOP_META, TENSORS_META, EXTRAS_META] if has_extras else [TOP_META, TENSORS_META]


ZSTD, JPEG = "zstd", "jpeg"
# The tensor `frames`: the bytes [begin, end) of pixels.memmap that each row's frame has.
FRAMES_SPEC = TensorSpec("int64", (2,))
# 200 photographs of 224 x 224 take 0.54 of their raw bytes; at levels 2 and 3 no less, at -1 0.77 (2026-11-23).
LEVEL = 1
# The only predictor: green is subtracted from red and blue, then from each line the line above it.
UP = "up"
# The only sampling of JPEGs: as many samples of each component.
ALL_SAMPLES = "4:4:4"

# Why something cannot be done, behind the path of a store.
NEEDS_RAW = (
    "its rows are compressed: read them by MemmapDataset, or make a raw store: pack subset OUT RAW --no-compress"
)

# No frame unpacks to more than this for each of its bytes. A block of zstd that repeats one byte has 4 bytes for 128 KiB;
# 64 samples of a JPEG take 2 bits at least.
MOST_RATIO = {ZSTD: 1 << 15, JPEG: 1 << 8}

# zstd makes a row longer by 1/256 at most, and by some 100 bytes. A JPEG of noise at quality 100 has 1.6 times the bytes of the
# row, and 620 of tables.
_MOST_BEYOND = {ZSTD: 512, JPEG: 4096}
_MOST_TIMES = 4


class RawPixels:
    """Rows that are in their file uncompressed; it has the attributes that `Compression` has for frames."""

    form = codec = ""
    # from the kind of rows
    batch_type, block_numbers = "", 0
    tensors: ClassVar[Mapping[str, TensorSpec]] = {}

    def unpacked_bytes(self, file_bytes: int) -> int:
        """Return the bytes of all rows, whose file has so many."""
        return file_bytes

    def check_sums(self, pixel_bytes: int, file_bytes: int) -> None:
        """There are none: the size of the file is checked as that of any tensor."""


RAW = RawPixels()


class Compression:
    """How rows are compressed, by `ZstdFrames` or `JpegFrames`: the key `compression` of a manifest.

    pixel_bytes: of all rows, unpacked, with their masks where those are behind the pixels.
    squared_error: the sum over all of these of the square of what was lost.
    """

    # in files of tensordict
    batch_type: ClassVar[str] = "<class 'reader.store.CompressedRows'>"
    # numbers in the line of a block in manifest.json
    block_numbers: ClassVar[int] = 5
    tensors: ClassVar[Mapping[str, TensorSpec]] = {"frames": FRAMES_SPEC}

    codec: str
    pixel_bytes: int
    squared_error: int

    @property
    def form(self) -> str:
        """What asks for such rows, as --compress and the option `compress` of a manifest have it: "zstd", or "jpeg:95"."""
        return self.codec

    def unpacked_bytes(self, file_bytes: int) -> int:
        """Return the bytes of all rows, unpacked."""
        return self.pixel_bytes

    def joined(self, others: Sequence[Compression]) -> Compression:
        """Return that of the rows of several stores."""
        each = [self, *others]
        sums = {name: sum(getattr(one, name) for one in each) for name in ("pixel_bytes", "squared_error")}
        assert isinstance(self, ZstdFrames | JpegFrames)
        return dataclasses.replace(self, **sums)

    @property
    def psnr(self) -> float:
        """The peak signal-to-noise ratio over all bytes of all rows, dB; infinite where nothing was lost."""
        if not self.squared_error:
            return math.inf
        return 10 * math.log10(255 * 255 * self.pixel_bytes / self.squared_error)

    @staticmethod
    def of(form: str, pixel_bytes: int, squared_error: int = 0) -> Compression | None:
        """Return how `reader.frames` packs rows that have so many bytes in this form; None where it is "", raw."""
        if not form:
            return None
        if quality := jpeg_quality(form):
            return JpegFrames(
                codec=JPEG,
                quality=quality,
                subsampling=ALL_SAMPLES,
                pixel_bytes=pixel_bytes,
                squared_error=squared_error,
            )
        return ZstdFrames(codec=ZSTD, level=LEVEL, predictor=UP, pixel_bytes=pixel_bytes)

    @staticmethod
    def of_head(head: Mapping[str, Json]) -> Compression | None:
        """Build from the key `compression` of a manifest's head; None where its rows are raw.

        Raises:
            StoreError: a field is missing or malformed, or rows cannot be such frames.
        """
        features = head["reader_features"]
        is_jpeg = JPEG_ROWS in features
        if is_jpeg and (COMPRESSED_ROWS not in features or OWN_MASKS in features or head["channels"] > 3):
            raise StoreError(
                f"the manifest says {JPEG_ROWS}, expected {COMPRESSED_ROWS} with it, 1 or 3 channels, and no {OWN_MASKS}."
            )
        if COMPRESSED_ROWS not in features:
            return None
        frames = JpegFrames if is_jpeg else ZstdFrames
        return read_record(frames, "compression of the manifest", head.get("compression"))

    def check_sums(self, pixel_bytes: int, file_bytes: int) -> None:
        """Check the bytes of all pixels by those of their rows, 0 where these have sizes of their own, and of their file.

        Raises:
            StoreError: they are others, or no frames of such a file hold them.
        """
        if pixel_bytes not in (0, self.pixel_bytes):
            raise StoreError(f"it lists {self.pixel_bytes} bytes of compressed pixels, the rows need {pixel_bytes}.")
        if self.pixel_bytes // MOST_RATIO[self.codec] > file_bytes:
            raise StoreError(
                f"it lists {self.pixel_bytes} bytes of pixels, more than {file_bytes} bytes of frames can hold."
            )
        if self.squared_error > 255 * 255 * self.pixel_bytes:
            raise StoreError(f"it says squared_error = {self.squared_error}, more than its pixels can differ.")


@record(kw_only=True)
class ZstdFrames(Compression):
    """Each row is a frame of zstd, of what its predictor leaves; nothing is lost."""

    codec: str = key(one_of(ZSTD))
    level: int = key(integer(-7, 22))
    predictor: str = key(one_of(UP))
    pixel_bytes: int = key(integer(1))
    squared_error: int = 0


@record(kw_only=True)
class JpegFrames(Compression):
    """Each row is a JPEG of this quality, 1 to 100."""

    codec: str = key(one_of(JPEG))
    quality: int = key(integer(1, 100))
    subsampling: str = key(one_of(ALL_SAMPLES))
    pixel_bytes: int = key(integer(1))
    squared_error: int = key(integer(0))

    @property
    def form(self) -> str:
        """As of `Compression`, with the quality."""
        return f"{JPEG}:{self.quality}"


def jpeg_quality(form: str) -> int:
    """Return the quality of a form of rows, 0 where they are no JPEGs: "jpeg:95" -> 95."""
    codec, _, quality = form.partition(":")
    return int(quality) if codec == JPEG else 0


def codec_of(form: str) -> str:
    """Return the codec of a form of rows: "jpeg:95" -> "jpeg"."""
    return form.partition(":")[0]


def reader_features_of(form: str) -> tuple[str, ...]:
    """Return what a reader must know of rows in this form."""
    return (COMPRESSED_ROWS, JPEG_ROWS) if jpeg_quality(form) else (COMPRESSED_ROWS,) if form else ()


# All texts of the rows as UTF-8, without gaps: of row 0 all columns, then of row 1.
TEXTS_FILE = "texts.utf8"
# The extra of a text column: the bytes [begin, end) of that file.
TEXT_SPEC = TensorSpec("int64", (2,))
# The longest text. The longest captions of public sets have some 10 KB; a reader takes no more memory for a damaged span.
MOST_TEXT_BYTES = 1 << 20


def text_files(texts: Sequence[str], extras: Mapping[str, TensorSpec], features: Sequence[str]) -> list[str]:
    """Return the files beside the tensors that text columns have, their names checked by extras and reader features.

    Raises:
        StoreError: one is not an extra of two int64 a row, one comes twice, or the feature and any of them are not together.
    """
    if len({*texts}) < len(texts) or any(extras.get(name) != TEXT_SPEC for name in texts):
        raise StoreError(f"the manifest says texts = {brief(list(texts))}, expected names of extras of int64 [2].")
    if bool(texts) != (TEXT_COLUMNS in features):
        raise StoreError(
            f"the manifest says texts = {brief(list(texts))}, expected some where it names {TEXT_COLUMNS}."
        )
    return [TEXTS_FILE] if texts else []


def pixel_decoders(decoders: Mapping[str, object]) -> dict[str, object]:
    """Return those of a manifest's decoders that determine pixels: the library of zstd gives back what it was given."""
    return {name: value for name, value in decoders.items() if name != ZSTD}


def wrong_frames(codec: str, frames: Array, sizes: Array, size_bytes: int) -> Array:
    """Return which rows have frames that are not in the file, or cannot hold the row, bool[n].

    Args:
        codec: as of `Compression`.
        frames: int64[n, 2], the byte where each begins and the byte behind it.
        sizes: int64[n], bytes of each row, unpacked.
        size_bytes: of the file of frames.
    """
    begins, ends = frames[:, 0], frames[:, 1]
    wrong = (begins < 0) | (ends <= begins) | (ends > size_bytes)
    lengths = (ends - begins) * ~wrong
    beyond = lengths - _MOST_BEYOND[codec]
    too_long = beyond // _MOST_TIMES > sizes if codec == JPEG else beyond > sizes + sizes // 128
    return wrong | (sizes // MOST_RATIO[codec] > lengths) | too_long
