"""Decodes photographs by one library, for decoders.py: a process of its own, whose PYTHONPATH says which Pillow it has.

    python -m scripts.studies.claims.pictures._decoding NAME LIST     LIST: a path a line

Its first line of output is JSON: the kinds of turn it knows, and versions. Then each line of input, KIND or KIND PATH, is
a turn over all photographs, which are in memory; it answers with the seconds, and leaves the last pixels in PATH.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packer.pixels.formats.jpeg import read_header
from packer.pixels.geometry import Geometry
from scripts.common.timing import timed

SIDE = 224
# What a turn can do: decode whole; make a row of 224 x 224; decode the central square alone, by a decoder that can.
DECODE, ROW, SQUARE = "decode", "row", "square"

Pixels = Any
DecodeCall = Callable[[], Pixels]
# versions, and the turns by kind
Way = tuple[dict[str, Any], dict[str, DecodeCall]]


def main() -> None:
    name, listed = sys.argv[1:]
    files = [Path(line).read_bytes() for line in Path(listed).read_text(encoding="utf-8").splitlines()]
    about, turns = WAYS[name](files)
    # what cannot run fails here, before it is said to be there
    for turn in turns.values():
        turn()
    print(json.dumps({"kinds": list(turns), "about": about}), flush=True)
    for line in sys.stdin:
        kind, _, path = line.strip().partition(" ")
        pixels, seconds = timed(turns[kind])
        if path:
            np.save(path, np.asarray(pixels))
        print(seconds, flush=True)


def over(files: Sequence[bytes], call: Callable[[bytes], Pixels]) -> DecodeCall:
    """Return a turn: the call for each photograph, whose pixels are dropped but for the last."""

    def turn() -> Pixels:
        pixels = None
        for data in files:
            pixels = call(data)
        return pixels

    return turn


def to_row(image: Any) -> np.ndarray:
    """Resize and crop by Pillow, as pack does."""
    geometry = Geometry(SIDE, SIDE)
    return np.asarray(geometry.to_row(image, geometry.resized(*image.size))[0])


def square(width: int, height: int) -> tuple[int, int, int]:
    """Return x, y and side of the central square."""
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side


# -- the libraries


def pillow(files: Sequence[bytes]) -> Way:
    from PIL import Image, __version__, features

    def opened(data: bytes) -> Any:
        return Image.open(io.BytesIO(data)).convert("RGB")

    about = {"Pillow": __version__, "libjpeg_turbo flag": features.check("libjpeg_turbo")}
    about["libjpeg-turbo"] = features.version("libjpeg_turbo")
    turns = {DECODE: over(files, lambda data: np.asarray(opened(data)))}
    return about, turns | {ROW: over(files, lambda data: to_row(opened(data)))}


def with_rows(files: Sequence[bytes], decode: Callable[[bytes], np.ndarray]) -> dict[str, DecodeCall]:
    """Return the turns of a library that decodes to an array, which Pillow makes a row of."""
    from PIL import Image

    return {DECODE: over(files, decode), ROW: over(files, lambda data: to_row(Image.fromarray(decode(data))))}


def jpeg4py(files: Sequence[bytes]) -> Way:
    import jpeg4py

    from packer.pixels.formats.jpeg import library_version, version

    about = {"jpeg4py": version(), "libjpeg-turbo": library_version()}
    return about, with_rows(files, lambda data: jpeg4py.JPEG(np.frombuffer(data, np.uint8)).decode())


def simplejpeg(files: Sequence[bytes]) -> Way:
    import simplejpeg

    return {"simplejpeg": simplejpeg.__version__}, with_rows(files, simplejpeg.decode_jpeg)


def pyturbojpeg(files: Sequence[bytes]) -> Way:
    import turbojpeg

    turbo, rgb = turbojpeg.TurboJPEG(), turbojpeg.TJPF_RGB

    def cropped(data: bytes) -> np.ndarray:
        """Cut the JPEG at its blocks without decoding it, then decode what is left."""
        header = read_header(data)
        x, y, side = square(header.width, header.height)
        return turbo.decode(turbo.crop(data, x, y, side, side), rgb)

    turns = with_rows(files, lambda data: turbo.decode(data, rgb))
    return {"PyTurboJPEG": turbojpeg.__version__}, turns | {SQUARE: over(files, cropped)}


def opencv(files: Sequence[bytes]) -> Way:
    import cv2

    cv2.setNumThreads(1)
    flags, geometry = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION, Geometry(SIDE, SIDE)

    def decode(data: bytes) -> np.ndarray:
        return cv2.imdecode(np.frombuffer(data, np.uint8), flags)

    def row(data: bytes) -> np.ndarray:
        pixels = decode(data)
        size = geometry.resized(pixels.shape[1], pixels.shape[0])
        left, top = geometry.origin(size)
        # of OpenCV's ways to shrink the one without aliasing
        resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        return np.ascontiguousarray(resized[top : top + SIDE, left : left + SIDE])

    built = next(
        line.partition("(")[2].strip("() ") for line in cv2.getBuildInformation().splitlines() if "JPEG:" in line
    )
    return {"opencv": cv2.__version__, "built with": built}, {DECODE: over(files, decode), ROW: over(files, row)}


def dali(files: Sequence[bytes]) -> Way:
    """All photographs as one batch of a pipeline with one thread; its rows are not compared."""
    from nvidia.dali import __version__, fn, pipeline_def

    arrays, headers = [np.frombuffer(data, np.uint8) for data in files], [read_header(data) for data in files]
    squares = [square(header.width, header.height) for header in headers]
    starts = [np.array([y, x], np.int32) for x, y, _ in squares]
    shapes = [np.array([side, side], np.int32) for _, _, side in squares]

    def given(batch: list[np.ndarray]) -> Any:
        return fn.external_source(source=lambda: batch, batch=True)

    @pipeline_def(batch_size=len(files), num_threads=1, device_id=None, prefetch_queue_depth=1)
    def pipeline(is_square: bool) -> Any:
        source = given(arrays)
        if not is_square:
            return fn.decoders.image(source, jpeg_fancy_upsampling=True)
        start, shape = given(starts), given(shapes)
        return fn.decoders.image_slice(source, start=start, shape=shape, axis_names="HW", jpeg_fancy_upsampling=True)

    def turn(is_square: bool) -> DecodeCall:
        built = pipeline(is_square)
        built.build()
        return lambda: built.run()[0].at(len(files) - 1)

    return {"DALI": __version__}, {DECODE: turn(False), SQUARE: turn(True)}


def pixpack(files: Sequence[bytes]) -> Way:
    from packer.pixels.decode import Decoder
    from packer.pixels.formats.versions import decoder_versions

    decoder = Decoder(Geometry(SIDE, SIDE))
    row = over(files, lambda data: np.frombuffer(decoder.row(data).pixels, np.uint8).reshape(SIDE, SIDE, 3))
    return decoder_versions(), {ROW: row}


WAYS: dict[str, Callable[[Sequence[bytes]], Way]] = {
    "pillow": pillow,
    "jpeg4py": jpeg4py,
    "simplejpeg": simplejpeg,
    "pyturbojpeg": pyturbojpeg,
    "opencv": opencv,
    "dali": dali,
    "pixpack": pixpack,
}

if __name__ == "__main__":
    main()
