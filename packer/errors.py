"""Errors that a caller of packer may catch, each also a builtin; and errors between its own modules.

The exit code of each is in `cli/app.py`.
"""

from __future__ import annotations


class PackError(RuntimeError):
    """The pack failed or stopped; it can be resumed after the committed blocks."""


class OptionsError(ValueError):
    """An option has an invalid value; the command's exit code is 2."""


class ScanError(ValueError):
    """`pack` cannot read the inputs; the message names what was found and what was expected."""


class SourceError(PackError):
    """The disk or network of the inputs cannot be read now; the inputs themselves may be intact."""


class UnreadableError(SourceError):
    """An existing file cannot be read from its disk or network; others may be readable."""


class RemoteError(ScanError):
    """A URL cannot be listed or opened; the message gives the reason."""


class DecodeError(ValueError):
    """This input cannot become a row; the message is the reason in rejected.jsonl."""


class JpegError(ValueError):
    """libjpeg-turbo failed or warned; the message is the library's."""


class FfmpegError(PackError):
    """FFmpeg is missing; the message says how to install it."""


class NotRequantized(ValueError):
    """FFmpeg would convert this image, or cannot read it; the message gives the reason."""


class JournalError(PackError):
    """The journal of an unfinished pack cannot be resumed."""


class LockedError(PackError):
    """Another pack holds OUT."""


class DiskFullError(PackError):
    """OUT's disk lacks room; the command's exit code is 28."""


class EngineError(RuntimeError):
    """No worker can do the work; the message gives the reason."""


# From here on for packer's own modules: no caller sees these.


class Terminated(BaseException):
    """SIGTERM arrived."""
