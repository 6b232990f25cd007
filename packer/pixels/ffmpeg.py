"""FFmpeg's JPEG encoder, in this process through PyAV: the only module that knows it.

It does what `ffmpeg -noautorotate -i IN -q:v Q OUT` does. Only JPEGs that FFmpeg decodes to full-range YCbCr or gray go through:
of these both give the same pixels (FFmpeg 5.1 and 8.1, `tests/pixels/test_ffmpeg.py`). What the encoder computes depends on the
machine's kind: its DCT for x86 differs from the portable one.
"""

from __future__ import annotations

import math
import platform
import re
import tempfile
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

from packer.errors import FfmpegError, NotRequantized

HOW_TO_GET = "pip install 'pixpack[ffmpeg]'"

# FFmpeg's names of what it may decode a JPEG to. Others (CMYK, RGB, limited range, 4:1:1) it would convert on the way, each
# version in its own manner
_DECODED = ("yuvj420p", "yuvj422p", "yuvj444p", "gray")
# what the encoder takes; gray becomes YCbCr whose chroma says nothing
_ENCODED = "format=yuvj420p|yuvj422p|yuvj444p"
_RATE = Fraction(1, 25)


def versions() -> dict[str, str]:
    """Return what decides about requantized pixels, for the manifest; raises FfmpegError."""
    av = Ffmpeg().av
    return {"av": av.__version__, "ffmpeg": av.ffmpeg_version_info, "machine": platform.machine()}


class Ffmpeg:
    """FFmpeg's libraries through PyAV.

    Raises:
        FfmpegError: PyAV is missing.
    """

    def __init__(self) -> None:
        try:
            import av
            import av.filter
        except ImportError:
            raise FfmpegError(f"requantizing needs PyAV, and there is none here. Get it: {HOW_TO_GET}.") from None

        av.logging.set_level(None)
        self.av: ModuleType = av

    def encode(self, data: bytes, quality: int, size: tuple[int, int] | None = None) -> bytes:
        """Encode a JPEG again, as `ffmpeg -q:v quality` does: 2 is best, 31 smallest. EXIF is lost, nothing is turned.

        Args:
            size: (width, height) to scale to first, by FFmpeg's bicubic filter.

        Raises:
            NotRequantized: FFmpeg decodes it to another format than full-range YCbCr or gray, or not at all.
        """
        frame = self._decoded(data)
        if size is not None or frame.format.name == "gray":
            frame = self._filtered([frame], _chain(size))
        encoder = self.av.CodecContext.create("mjpeg", "w")
        encoder.width, encoder.height, encoder.pix_fmt = frame.width, frame.height, frame.format.name
        encoder.time_base, encoder.thread_count = _RATE, 1
        encoder.qmin = encoder.qmax = quality
        encoder.options = {"flags": "+qscale"}
        try:
            return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])
        except self.av.FFmpegError as e:
            raise NotRequantized(f"FFmpeg cannot encode it ({e.strerror})") from e

    def compare(self, before: bytes, after: bytes, size: tuple[int, int] | None = None) -> tuple[float, float]:
        """Return PSNR in dB, infinite where all is equal, and SSIM, of all planes together, by FFmpeg's own filters.

        Args:
            size: (width, height) to which `before` is scaled first.
        """
        frames = [self._decoded(before), self._decoded(after)]
        frames[0] = self._filtered(frames[:1], _chain(size))
        return self._measured(frames, "psnr", "psnr_avg"), self._measured(frames, "ssim", "All")

    def _measured(self, frames: list[object], name: str, key: str) -> float:
        """Compare two frames by a filter, which writes what it finds to a file: "n:1 Y:0.98 U:0.99 V:0.99 All:0.98 (17.6)"."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "stats")
            self._filtered(frames, f"{name}=stats_file={path}")
            stats = path.read_text(encoding="ascii")
        return float(re.search(rf"\b{key}:(\S+)", stats)[1])  # type: ignore[index]

    def _decoded(self, data: bytes) -> Any:
        # a context an image: tables of the one before must not decode the next
        decoder = self.av.CodecContext.create("mjpeg", "r")
        decoder.thread_count = 1
        try:
            frames = decoder.decode(self.av.Packet(data)) or decoder.decode(None)
        except self.av.FFmpegError as e:
            raise NotRequantized(f"FFmpeg cannot decode it ({e.strerror})") from e
        if not frames or frames[0].is_corrupt:
            raise NotRequantized("FFmpeg cannot decode it")
        if (name := frames[0].format.name) not in _DECODED:
            raise NotRequantized(f"FFmpeg decodes it as {name}")
        return frames[0]

    def _filtered(self, frames: list[Any], chain: str) -> object:
        """Send one frame, or two, through filters: "scale=8:8,format=gray" -> the frame that comes out."""
        graph = self.av.filter.Graph()
        sources = [graph.add_buffer(width=f.width, height=f.height, format=f.format, time_base=_RATE) for f in frames]
        steps = [graph.add(*step.split("=", 1)) for step in chain.split(",")]
        for pad, source in enumerate(sources):
            source.link_to(steps[0], 0, pad)
        for one, other in zip(steps, [*steps[1:], graph.add("buffersink")], strict=True):
            one.link_to(other)
        graph.configure()
        for source, frame in zip(sources, frames, strict=True):
            frame.pts = 0
            source.push(frame)
        for source in sources:
            source.push(None)
        return graph.pull()


def mean_psnr(values: list[float]) -> float | None:
    """Return the PSNR of many images together, from the mean of their squared errors; None where all are equal.

    Example:
        >>> round(mean_psnr([40.0, math.inf]), 2)  # half the error: 3 dB more
        43.01
    """
    error = sum(10 ** (-value / 10) for value in values)
    return -10 * math.log10(error / len(values)) if error else None


def _chain(size: tuple[int, int] | None) -> str:
    return _ENCODED if size is None else f"scale={size[0]}:{size[1]}:flags=bicubic,{_ENCODED}"
