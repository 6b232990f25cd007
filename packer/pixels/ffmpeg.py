"""FFmpeg's JPEG encoder, in this process through PyAV or as the program on PATH: the only module that knows either.

`ffmpeg -noautorotate -i IN -q:v Q OUT` is what both do. Only JPEGs that FFmpeg decodes to full-range YCbCr or gray go through:
of these both give the same pixels (FFmpeg 5.1 and 8.1, `tests/pixels/test_ffmpeg.py`). What the encoder computes depends on the
machine's kind: its DCT for x86 differs from the portable one.
"""

from __future__ import annotations

import contextlib
import math
import platform
import re
import shutil
import subprocess
import tempfile
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

from packer.errors import FfmpegError, NotRequantized

HOW_TO_GET = "pip install 'pixpack[ffmpeg]', or put ffmpeg on PATH (apt-get install ffmpeg)"

# FFmpeg's names of what it may decode a JPEG to. Others (CMYK, RGB, limited range, 4:1:1) it would convert on the way, each
# version in its own manner
_DECODED = ("yuvj420p", "yuvj422p", "yuvj444p", "gray")
# what the encoder takes; gray becomes YCbCr whose chroma says nothing
_ENCODED = "format=yuvj420p|yuvj422p|yuvj444p"
# one image takes 0.15 s; a program that hangs must not block a worker
_SECONDS = 60
_RATE = Fraction(1, 25)


def open_ffmpeg() -> InProcess | OnPath:
    """Return FFmpeg through PyAV, or else the program on PATH.

    Raises:
        FfmpegError: there is neither.
    """
    with contextlib.suppress(ImportError):
        return InProcess()
    program = shutil.which("ffmpeg")
    if program is None:
        raise FfmpegError(f"requantizing needs FFmpeg, and there is none here. Get it: {HOW_TO_GET}.")
    return OnPath(program)


def versions() -> dict[str, str | None]:
    """Return what decides about requantized pixels, for the manifest; raises FfmpegError."""
    return open_ffmpeg().versions() | {"machine": platform.machine()}


class InProcess:
    """FFmpeg's libraries through PyAV; raises ImportError where that is missing."""

    def __init__(self) -> None:
        import av
        import av.filter

        av.logging.set_level(None)
        self._av: ModuleType = av

    def versions(self) -> dict[str, str | None]:
        """Return the versions of PyAV and FFmpeg."""
        return {"av": self._av.__version__, "ffmpeg": self._av.ffmpeg_version_info}

    def encode(self, data: bytes, quality: int, size: tuple[int, int] | None = None) -> bytes:
        """Encode a JPEG again; see `OnPath.encode`."""
        frame = self._decoded(data)
        if size is not None or frame.format.name == "gray":
            frame = self._filtered([frame], _chain(size))
        encoder = self._av.CodecContext.create("mjpeg", "w")
        encoder.width, encoder.height, encoder.pix_fmt = frame.width, frame.height, frame.format.name
        encoder.time_base, encoder.thread_count = _RATE, 1
        encoder.qmin = encoder.qmax = quality
        encoder.options = {"flags": "+qscale"}
        try:
            return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])
        except self._av.FFmpegError as e:
            raise NotRequantized(f"FFmpeg cannot encode it ({e.strerror})") from e

    def compare(self, before: bytes, after: bytes, size: tuple[int, int] | None = None) -> tuple[float, float]:
        """Return PSNR in dB and SSIM of two JPEGs; see `OnPath.compare`."""
        frames = [self._decoded(before), self._decoded(after)]
        frames[0] = self._filtered(frames[:1], _chain(size))
        return self._measured(frames, "psnr", "psnr_avg"), self._measured(frames, "ssim", "All")

    def _measured(self, frames: list[object], name: str, key: str) -> float:
        """Compare two frames by a filter, which writes what it finds to a file: "n:1 Y:0.98 U:0.99 V:0.99 All:0.98 (17.6)"."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "stats")
            # a filter's arguments are parted by colons, as a drive's letter is from its path
            self._filtered(frames, f"{name}=stats_file={path.as_posix().replace(':', chr(92) + ':')}")
            stats = path.read_text(encoding="ascii")
        return float(re.search(rf"\b{key}:(\S+)", stats)[1])  # type: ignore[index]

    def _decoded(self, data: bytes) -> Any:
        # a context an image: tables of the one before must not decode the next
        decoder = self._av.CodecContext.create("mjpeg", "r")
        decoder.thread_count = 1
        try:
            frames = decoder.decode(self._av.Packet(data)) or decoder.decode(None)
        except self._av.FFmpegError as e:
            raise NotRequantized(f"FFmpeg cannot decode it ({e.strerror})") from e
        if not frames or frames[0].is_corrupt:
            raise NotRequantized("FFmpeg cannot decode it")
        _check_format(frames[0].format.name)
        return frames[0]

    def _filtered(self, frames: list[Any], chain: str) -> object:
        """Send one frame, or two, through filters: "scale=8:8,format=gray" -> the frame that comes out."""
        graph = self._av.filter.Graph()
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


class OnPath:
    """The program ffmpeg, one process an image."""

    def __init__(self, program: str) -> None:
        self._program = program

    def versions(self) -> dict[str, str | None]:
        """Return the version that the program states; no PyAV."""
        output = subprocess.run([self._program, "-version"], capture_output=True, text=True, timeout=_SECONDS).stdout
        return {"av": None, "ffmpeg": output.split()[2] if output.startswith("ffmpeg version ") else "unknown"}

    def encode(self, data: bytes, quality: int, size: tuple[int, int] | None = None) -> bytes:
        """Encode a JPEG again, as `ffmpeg -q:v quality` does: 2 is best, 31 smallest. EXIF is lost, nothing is turned.

        Args:
            size: (width, height) to scale to first, by FFmpeg's bicubic filter.

        Raises:
            NotRequantized: FFmpeg decodes it to another format than full-range YCbCr or gray, or not at all.
        """
        # the size of the one packet keeps a parser from cutting at an embedded thumbnail
        source = ["-f", "jpeg_pipe", "-frame_size", str(len(data)), "-i", "pipe:0"]
        sink = ["-frames:v", "1", "-c:v", "mjpeg", "-q:v", str(quality), "-f", "image2pipe", "pipe:1"]
        encoded, log = self._run([*source, "-vf", _chain(size), *sink], data)
        found = re.search(rb"Video: mjpeg[^,]*, (\w+)", log)
        if found is None or not encoded:
            raise NotRequantized("FFmpeg cannot decode it")
        _check_format(found[1].decode())
        return encoded

    def compare(self, before: bytes, after: bytes, size: tuple[int, int] | None = None) -> tuple[float, float]:
        """Return PSNR in dB, infinite where all is equal, and SSIM, of all planes together, by FFmpeg's own filters.

        Args:
            size: (width, height) to which `before` is scaled first.
        """
        graph = f"[0]{_chain(size)},split[a][b];[1]split[c][d];[a][c]psnr;[b][d]ssim"
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, name) for name in ("before.jpg", "after.jpg")]
            for path, data in zip(paths, (before, after), strict=True):
                path.write_bytes(data)
            sources = [word for path in paths for word in ("-noautorotate", "-i", str(path))]
            _, log = self._run([*sources, "-lavfi", graph, "-f", "null", "-"], b"")
        psnr, ssim = re.search(rb"PSNR .*average:(\S+)", log), re.search(rb"SSIM .*All:(\S+)", log)
        if psnr is None or ssim is None:
            raise NotRequantized("FFmpeg cannot compare it")
        return float(psnr[1]), float(ssim[1])

    def _run(self, arguments: list[str], data: bytes) -> tuple[bytes, bytes]:
        command = [self._program, "-hide_banner", "-nostdin", "-v", "info", "-noautorotate", *arguments]
        try:
            done = subprocess.run(command, input=data, capture_output=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise NotRequantized(f"FFmpeg took more than {_SECONDS} seconds for it") from None
        return done.stdout if done.returncode == 0 else b"", done.stderr


def mean_psnr(values: list[float]) -> float | None:
    """Return the PSNR of many images together, from the mean of their squared errors; None where all are equal.

    Example:
        >>> round(mean_psnr([40.0, math.inf]), 2)  # half the error: 3 dB more
        43.01
    """
    error = sum(10 ** (-value / 10) for value in values)
    return -10 * math.log10(error / len(values)) if error else None


def _check_format(name: str) -> None:
    if name not in _DECODED:
        raise NotRequantized(f"FFmpeg decodes it as {name}")


def _chain(size: tuple[int, int] | None) -> str:
    return _ENCODED if size is None else f"scale={size[0]}:{size[1]}:flags=bicubic,{_ENCODED}"
