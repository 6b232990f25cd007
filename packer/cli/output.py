"""The output of the command: reports, errors with their exit codes, and progress, as tqdm's bar on a terminal.

The only module that knows tqdm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import click

from packer.cli import messages
from reader.format.shown import redacted, shown_lines

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from packer.report import PackReport, Progress

EXIT_FAILED, EXIT_USAGE, EXIT_REJECTS, EXIT_DISK_FULL = 1, 2, 3, 28
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
# Stages that count bytes.
_BYTES = ("allocate", "digest", "verify", "push", "pull")


@dataclass(frozen=True)
class Output:
    """The output of a command, as set by --json and --quiet."""

    as_json: bool
    quiet: bool

    def progress(self, unit: str = " images") -> ProgressBar:
        """Return a progress bar that counts these units."""
        return ProgressBar(hidden=self.quiet or self.as_json, unit=unit)

    def report(self, report: DataclassInstance, text: str, notes: Iterable[str] = ()) -> None:
        """Print the notes on stderr, then the report as JSON or text; the next step comes last."""
        for note in () if self.quiet else notes:
            say(f"pack: note: {note}", err=True)
        if self.as_json:
            say_json(dataclasses.asdict(report))
        elif not self.quiet:
            say(text)

    def packed(self, report: PackReport, text: str, max_rejects: str) -> int:
        """Print the report of a new store; returns the exit code."""
        self.report(report, text, report.notes)
        return fail(messages.too_many_rejects(report, max_rejects), EXIT_REJECTS) if report.too_many_rejects else 0


def fail(message: str, code: int) -> int:
    """Print on one line why a command fails; return its exit code, even if stderr cannot be written."""
    try:
        say(f"pack: {' '.join(message.splitlines())}", err=True)
    except OSError:
        discard(sys.stderr)
    return code


def discard(stream: TextIO) -> None:
    """Drop the unwritten text of a broken stream: Python would try again at exit."""
    with contextlib.suppress(OSError):  # a Python object without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: str, *, err: bool = False) -> None:
    """Print text without control characters and credentials of URLs; escape characters that the stream cannot encode."""
    text, stream = redacted(shown_lines(text)), sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)


def say_json(value: object) -> None:
    """Print a value as one line of JSON, ASCII, without credentials of URLs."""
    click.echo(redacted(json.dumps(value)))


class ProgressBar:
    """Progress of a command on stderr.

    Args:
        hidden: show nothing.
        unit: the counted unit; "B": bytes.
    """

    def __init__(self, *, hidden: bool, unit: str = " images") -> None:
        # sys.stderr is None if the caller closed it
        self._hidden = hidden or sys.stderr is None or not sys.stderr.isatty()
        self._unit, self._stage = unit, ""
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def update(self, progress: Progress) -> None:
        """Show where a pack is."""
        if self._hidden:
            return
        if progress.found:
            self.__exit__()
            say(f"found {progress.found}", err=True)
            return
        bar = self._stage_bar(f"{progress.split} {progress.stage}".strip(), progress.total, progress.done)
        waits = "" if progress.stage == "wait" or not progress.waits_for else "waiting for the source: "
        rejected = f"{progress.rejected:,} rejected" if progress.stage == "pack" else ""
        bar.update(progress.done - bar.n)
        is_due = bool(progress.waits_for) or progress.done == progress.total
        bar.set_postfix_str(f"{waits}{progress.waits_for}" if progress.waits_for else rejected, refresh=is_due)

    def bytes_done(self, done: int, total: int, stage: str = "verify") -> None:
        """Show bytes read."""
        if not self._hidden:
            bar = self._stage_bar(stage, total)
            bar.update(done - bar.n)

    def _stage_bar(self, stage: str, total: int, done: int = 0) -> Any:
        """Return the bar of a stage; done: work of an earlier run, left out of the speed."""
        if self._bar is None or stage != self._stage:
            from tqdm import tqdm

            # tqdm's monitor is a thread: workers could not be forked beside it
            tqdm.monitor_interval = 0
            self.__exit__()
            size = shutil.get_terminal_size()
            unit = "B" if stage.endswith(_BYTES) else self._unit
            self._bar = tqdm(
                total=total or None,
                desc=stage,
                initial=done,
                unit=unit,
                unit_scale=unit == "B",
                # the time left follows from the mean speed of the stage: blocks come in bursts
                smoothing=0,
                # a terminal of unknown size counts as 80 x 24: tqdm would draw nothing; two columns are left for a ^C
                ncols=size.columns - 2,
                nrows=size.lines,
                leave=False,
                file=sys.stderr,
            )
            self._stage = stage
        return self._bar


def clear_bars() -> None:
    """Clear all bars from the terminal before an exit that skips `with` blocks."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)  # None: not imported, or not yet all of it
    for bar in list(getattr(tqdm, "_instances", ())):
        bar.close()
