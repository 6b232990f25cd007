"""How long packing takes, and how many epochs of decoding that is: measured on a few of the images, in this process."""

from __future__ import annotations

import hashlib
import io
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import numpy as np
from PIL import Image

from packer.errors import DecodeError
from packer.inputs.samples import Inputs
from packer.operations.planning.crop_boxes import boxes_in
from packer.operations.planning.read_rates import ReadRates, RowForms
from packer.options import MAX_PIXELS
from packer.packing.image_sizes import sources_of
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row

_SAMPLE = 64
# Large images are decoded until so much time has passed.
_MOST_SECONDS = 3.0

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


@dataclass(frozen=True)
class PackTime:
    """Estimated from the processor time of some images, as if workers did not disturb one another.

    sampled: images that were decoded. workers: the processes that the estimate is for.
    pack_seconds: to pack all images, less writing. epoch_seconds: to decode all, cut a random box and resize it to the crop with
    Pillow, as an epoch of ImageFolder does. compressed_share: what the rows of these images take with --compress, of raw.
    rates: what a core reads of both; both None where the library for that is not installed. disk_bytes_per_second: of the disk
    that the images are on, where raw rows do not fit into memory; None where it was not measured.
    """

    sampled: int
    workers: int
    pack_seconds: float
    epoch_seconds: float
    compressed_share: float | None = None
    rates: ReadRates | None = None
    disk_bytes_per_second: float | None = None

    @property
    def epochs(self) -> float:
        """As many epochs of decoding take as long as packing."""
        return self.pack_seconds / self.epoch_seconds


def pack_time(
    splits: dict[str, Inputs],
    geometry: Geometry,
    *,
    channels: str,
    crop: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    workers: int,
) -> PackTime | None:
    """Pack and crop up to 64 images, evenly spread, in memory; None where none of them can be decoded."""
    decoder, draw = Decoder(geometry, channels=channels), np.random.default_rng(0)
    count, until = 0, time.monotonic() + _MOST_SECONDS
    pack_seconds = epoch_seconds = 0.0
    forms = RowForms(geometry, channels)
    for data in _sampled(splits):
        if count and time.monotonic() > until:
            break
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(io.BytesIO(data)) as image:
                    box = boxes_in(np.array([image.size], np.float64), scale, ratio, draw)[0]
                seconds, row = _timed(_packed, decoder, data)
                epoch, _ = _timed(_cropped, data, box.tolist(), crop)
        except Exception:  # whatever is wrong with it, packing says it, with a reason
            continue
        pack_seconds, epoch_seconds, count = pack_seconds + seconds, epoch_seconds + epoch, count + 1
        forms.add(row)
    if not count:
        return None
    share = sum(map(len, splits.values())) / count / workers
    rates = forms.rates()
    compressed = None if rates is None else rates.share
    return PackTime(count, workers, pack_seconds * share, epoch_seconds * share, compressed, rates)


def _sampled(splits: dict[str, Inputs]) -> Iterator[bytes]:
    """Read images spread evenly over all inputs; unreadable ones are skipped."""
    total, first = sum(map(len, splits.values())), 0
    wanted = sorted({n * total // _SAMPLE for n in range(_SAMPLE)})
    for inputs in splits.values():
        for index in [n - first for n in wanted if first <= n < first + len(inputs)]:
            try:
                data, _ = sources_of(inputs, index, index + 1)[0].read(max_pixels=MAX_PIXELS)
            except DecodeError:
                continue
            yield data
        first += len(inputs)


def _packed(decoder: Decoder, data: bytes) -> Row:
    """Do for an image what a worker of a pack does, but for writing; returns its row."""
    hashlib.sha256(data)
    row = decoder.row(data)
    zlib.crc32(row.pixels)
    return row


def _cropped(data: bytes, box: list[float], crop: int) -> None:
    """Do for an image what ImageFolder with RandomResizedCrop does."""
    x0, y0, width, height = box
    with Image.open(io.BytesIO(data)) as image:
        picture = image.convert("RGB")
    picture.resize((crop, crop), Image.Resampling.BILINEAR, box=(x0, y0, x0 + width, y0 + height))


def _timed(
    call: Callable[Arguments, Made], *arguments: Arguments.args, **keywords: Arguments.kwargs
) -> tuple[float, Made]:
    """Return the processor seconds of a call, and what it made."""
    started = time.process_time()
    made = call(*arguments, **keywords)
    return time.process_time() - started, made
