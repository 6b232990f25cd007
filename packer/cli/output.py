"""What the command prints of a report, and the exit codes."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from packer.cli import messages
from packer.cli.messages import profile_table

if TYPE_CHECKING:
    from packer.operations.transfer.copy import CopyReport
    from packer.report import PackReport

EXIT_FAILED, EXIT_USAGE, EXIT_REJECTS, EXIT_DISK_FULL = 1, 2, 3, 28
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143


def print_packed(report: PackReport, max_rejects: str, *, profile: bool, as_json: bool, quiet: bool) -> int:
    """Print what a pack did; returns the exit code."""
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif not quiet:
        click.echo(messages.summary(report))
        if profile and report.profile:
            click.echo(profile_table(report.profile))
    for note in [] if quiet else report.notes:
        click.echo(f"pack: note: {note}", err=True)
    if report.too_many_rejects:
        return fail(messages.too_many_rejects(report, max_rejects), EXIT_REJECTS)
    return 0


def print_copied_rows(report: PackReport, as_json: bool, quiet: bool) -> int:
    """Print what a subset or a merge made; returns the exit code."""
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif not quiet:
        click.echo(
            "\n".join([*messages.store_lines(report), messages.rows_copied(report), *messages.reject_lines(report)])
        )
    for note in [] if quiet else report.notes:
        click.echo(f"pack: note: {note}", err=True)
    return 0


def fail_of_rejects(rejected: int, inputs: int, allowed: str) -> int:
    return fail(messages.rejected_of(rejected, inputs, allowed), EXIT_REJECTS)


def fail(message: str, code: int) -> int:
    click.echo(f"pack: {message}", err=True)
    return code


def print_transfer(report: CopyReport, what: str, as_json: bool, quiet: bool) -> int:
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif not quiet:
        speed = f"{messages.size(int(report.copied_bytes / report.seconds))}/s"
        kept = f", {messages.size(report.kept_bytes)} were there" if report.kept_bytes else ""
        click.echo(f"{what}: {messages.size(report.copied_bytes)} copied in {report.seconds:.1f} s ({speed}){kept}")
    return 0
