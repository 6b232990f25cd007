"""Signals that end the command, raised as exceptions so that everything is closed on the way out."""

from __future__ import annotations

import functools
import os
import shlex
import signal
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

from packer.cli.output import EXIT_INTERRUPTED, EXIT_TERMINATED, clear_bars, fail
from packer.errors import Terminated


class signals_raise:
    """Turn SIGINT and SIGTERM into exceptions while the command runs, so that everything is closed on the way out.

    Args:
        to_continue: the line that continues the command, as `command_to_continue` returns it.
    """

    def __init__(self, to_continue: str) -> None:
        self._handler = functools.partial(_raise_signal, to_continue)

    def __enter__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            # the caller may have set a signal to be ignored, as nohup and a shell's & do
            if signal.getsignal(number) == signal.SIG_IGN:
                continue
            try:
                self._before[number] = signal.signal(number, self._handler)
            except ValueError:  # not the main thread: someone else handles signals there
                return

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _raise_signal(to_continue: str, number: int, frame: FrameType | None) -> NoReturn:
    error = KeyboardInterrupt() if number == signal.SIGINT else Terminated()
    while frame is not None:
        # importlib's callbacks lose exceptions. Nothing has to be closed: a killed pack can be resumed too
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            clear_bars()
            os._exit(report_signal(error, to_continue))
        frame = frame.f_back
    raise error


def report_signal(error: BaseException, to_continue: str) -> int:
    """Print which signal ended the command and the line that continues it; returns the exit code."""
    what, code = ("terminated", EXIT_TERMINATED) if isinstance(error, Terminated) else ("interrupted", EXIT_INTERRUPTED)
    return fail(f"{what}. To continue: {to_continue}", code)


def command_to_continue(arguments: Sequence[str]) -> str:
    """Return the line that continues a command: the same words, and standard input given again."""
    reads_list = "-" in arguments or "-0" in arguments
    return f"{shlex.join(['pack', *arguments])}{' (with the same standard input)' if reads_list else ''}"
