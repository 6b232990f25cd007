"""Errors that a caller of packer may catch, each also a builtin, and those that one module of it raises for another.

The exit code of each is in `cli/app.py`.
"""

from __future__ import annotations


class PackError(RuntimeError):
    """The pack failed or was given up; committed blocks can be resumed."""


class OptionsError(ValueError):
    """An option has a value it cannot have; the command's exit code is 2."""


class ScanError(ValueError):
    """The inputs are not what `pack` can read; says what was found and what was expected."""


class SourceError(PackError):
    """The disk or network of the inputs cannot be read now; the inputs themselves may be intact."""


class UnreadableError(SourceError):
    """An existing file cannot be read from its disk or network; others may be readable."""


class RemoteError(ScanError):
    """A URL cannot be listed or opened; says why."""


class DecodeError(ValueError):
    """This input cannot become a row; the message is what rejected.jsonl says."""


class JpegError(ValueError):
    """libjpeg-turbo refused or warned; the message is its own."""


class FfmpegError(PackError):
    """There is no FFmpeg; says how to get one."""


class NotRequantized(ValueError):
    """FFmpeg does not take this image as it is; says why."""


class JournalError(PackError):
    """The journal of an unfinished pack cannot be resumed."""


class LockedError(PackError):
    """Another pack holds OUT."""


class DiskFullError(PackError):
    """OUT's disk lacks room; the command's exit code is 28."""


class EngineError(RuntimeError):
    """No worker can do the work; says why."""


# From here on for modules of ours alone: no caller sees these.


class Terminated(BaseException):
    """SIGTERM arrived."""
