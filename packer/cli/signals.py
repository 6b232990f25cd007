"""Signals that end the command, raised as exceptions so that everything is closed on the way out."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, NoReturn

from packer.cli.output import EXIT_INTERRUPTED, EXIT_TERMINATED, fail


class Terminated(BaseException):
    """SIGTERM arrived."""


class signals_raise:
    """Turn SIGINT and SIGTERM into exceptions for the time of the command, so that everything is closed on the way out."""

    def __enter__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            # who started this may want one ignored, as nohup and a shell's & do
            if signal.getsignal(number) == signal.SIG_IGN:
                continue
            try:
                self._before[number] = signal.signal(number, _raise_signal)
            except ValueError:  # not the main thread: someone else handles signals there
                return

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _raise_signal(number: int, frame: FrameType | None) -> NoReturn:
    error = KeyboardInterrupt() if number == signal.SIGINT else Terminated()
    while frame is not None:
        # importlib's callbacks lose what is raised in them. Nothing has to be closed: a killed pack can be resumed too
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(ended(error))
        frame = frame.f_back
    raise error


def ended(error: BaseException) -> int:
    """Print which signal ended the command and how to continue; returns the exit code."""
    what, code = ("terminated", EXIT_TERMINATED) if isinstance(error, Terminated) else ("interrupted", EXIT_INTERRUPTED)
    return fail(f"{what}. Run a pack again with --resume; run any other command again as it was.", code)
