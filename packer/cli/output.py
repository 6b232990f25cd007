"""What the command prints of a report, and the exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from packer.cli import messages
from reader.format.shown import redacted, shown_lines

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from packer.operations.transfer import CopyReport
    from packer.report import PackReport

EXIT_FAILED, EXIT_USAGE, EXIT_REJECTS, EXIT_DISK_FULL = 1, 2, 3, 28
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143


def print_report(
    report: DataclassInstance, text: str, *, as_json: bool, quiet: bool, notes: Iterable[str] = ()
) -> None:
    """Print the notes on stderr, then a report, a dataclass, as JSON or as this text: what to do next comes last."""
    for note in () if quiet else notes:
        say(f"pack: note: {note}", err=True)
    if as_json:
        say_json(dataclasses.asdict(report))
    elif not quiet:
        say(text)


def print_packed(
    report: PackReport,
    max_rejects: str,
    *,
    has_said_found: bool,
    as_json: bool,
    quiet: bool,
    is_new: bool = False,
) -> int:
    """Print what a pack did, and of a new store how to read it; returns the exit code.

    has_said_found: the progress of this pack named its layout.
    """
    # of a pack that finds its store finished, the seconds are none
    is_done = is_new and report.seconds and not report.too_many_rejects and not report.part
    step = [messages.next_step(report)] if is_done else []
    text = "\n".join([messages.summary(report, has_said_found=has_said_found), *step])
    print_report(report, text, as_json=as_json, quiet=quiet, notes=report.notes)
    if report.too_many_rejects:
        return fail(messages.too_many_rejects(report, max_rejects), EXIT_REJECTS)
    return 0


def print_copied_rows(report: PackReport, done: str, *, as_json: bool, quiet: bool) -> None:
    """Print a store that was made without decoding, and how: what was done in how many seconds."""
    text = "\n".join([*messages.store_lines(report), done, *messages.reject_lines(report)])
    print_report(report, text, as_json=as_json, quiet=quiet, notes=report.notes)


def print_transfer(report: CopyReport, what: str, *, as_json: bool, quiet: bool) -> None:
    """Print what a push or a pull copied, and how fast."""
    speed = f"{messages.size(int(report.copied_bytes / report.seconds))}/s"
    present = f", {messages.size(report.kept_bytes)} were there" if report.kept_bytes else ""
    text = f"{what}: {messages.size(report.copied_bytes)} copied in {report.seconds:.1f} s ({speed}){present}"
    print_report(report, text, as_json=as_json, quiet=quiet)


def fail_of_rejects(rejected: int, inputs: int, allowed: str) -> int:
    """Print that more inputs were rejected than allowed; returns the exit code."""
    return fail(messages.rejected_of(rejected, inputs, allowed), EXIT_REJECTS)


def fail(message: str, code: int) -> int:
    """Print why a command fails, on one line; returns its exit code, also where stderr takes nothing."""
    with contextlib.suppress(OSError):
        say(f"pack: {' '.join(message.splitlines())}", err=True)
    return code


def say(text: str = "", *, err: bool = False) -> None:
    """Print text without control characters and credentials of URLs; what a stream's encoding lacks is escaped."""
    text, stream = redacted(shown_lines(text)), sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    click.echo(text, err=err)


def say_json(value: object) -> None:
    """Print a value as one line of JSON, ASCII, without credentials of URLs."""
    click.echo(redacted(json.dumps(value)))
