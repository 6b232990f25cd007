"""A line on a terminal that says how much of a store its cache has, while that grows; knows nothing of who reads."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from typing import TextIO

from reader.format.filesystem import size_text
from reader.remote.presence import RemoteStore
from reader.tuning import tuning

_log = logging.getLogger("reader")

_COLUMNS = 80
_ERASED = "\r\x1b[K"


class CacheLine:
    """The line, on stderr where that is a terminal: "cache 34 % of 12.3 GB, 180.0 MB/s, 0:45 left: s3://bucket/out".

    It is gone once the cache has all that it may hold. A bar of tqdm that is open has the terminal to itself, and a logger
    "reader" that shows no warnings shows no line either.

    Args:
        is_shown: False: not here, as another rank shows it.
    """

    def __init__(self, remote: RemoteStore, *, is_shown: bool) -> None:
        is_shown = is_shown and _is_terminal(sys.stderr) and _log.isEnabledFor(logging.WARNING)
        self._remote, self._stream = remote, sys.stderr if is_shown else None
        self._next = self._started = time.monotonic()
        self._had = remote.folder.present_bytes() if is_shown else 0
        self._is_drawn = False

    def update(self) -> None:
        """Draw it, if that is due."""
        if self._stream is None or (now := time.monotonic()) < self._next:
            return
        self._next = now + tuning().cache_line_seconds
        folder = self._remote.folder
        has, room = folder.present_bytes(), min(self._remote.limit or folder.starts[-1], folder.starts[-1])
        # what a small cache lacks may be less than a block
        if has > room - folder.largest or self._remote.is_complete:
            self.close()
            return
        if _has_bars():
            self._erase()
            return
        rate = (has - self._had) / max(now - self._started, 1e-9)
        speed = f", {size_text(int(rate))}/s, {_minutes((room - has) / rate)} left" if rate > 0 else ""
        text = f"cache {100 * has / room:.0f} % of {size_text(room)}{speed}: {self._remote.url}"
        self._write(_ERASED + text[: self._columns() - 1])
        self._is_drawn = True

    def close(self) -> None:
        """Remove it, for good."""
        self._erase()
        self._stream = None

    def _erase(self) -> None:
        if self._is_drawn:
            self._write(_ERASED)
            self._is_drawn = False

    def _write(self, text: str) -> None:
        # a terminal that is gone is no reason to end a training
        with contextlib.suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()

    def _columns(self) -> int:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            if self._stream is not None:
                return os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        return _COLUMNS


def _is_terminal(stream: TextIO) -> bool:
    # a program may have closed it, or have put in its place what can only be written to
    with contextlib.suppress(AttributeError, ValueError):
        return bool(stream.isatty())
    return False


def _minutes(seconds: float) -> str:
    """Return 90.4 as "1:30"."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _has_bars() -> bool:
    """Say whether this process draws bars of tqdm."""
    bars = getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", None)
    return bool(bars)
