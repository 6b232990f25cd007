"""`pack doctor`."""

from __future__ import annotations

import dataclasses

import click

from packer.cli.help import command
from packer.cli.options import StorePath
from packer.cli.output import EXIT_FAILED, say, say_json


@command(short_help="What this machine decodes with, and what it lacks.")
@click.argument("path", type=StorePath(), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON on stdout.")
def doctor(path: str, as_json: bool) -> int:
    """Show versions, decoders, what is missing and how to get it, and the disk of PATH, where you plan to put a store.

    The exit code is 1 if packing needs what is missing.

    Examples:

        pack doctor
        pack doctor /data/stores
        pack doctor --json | jq .missing
    """
    from packer.operations.doctor import examine

    report = examine(path)
    if as_json:
        say_json(dataclasses.asdict(report))
    else:
        for name, what in report.found.items():
            say(f"{name:14}{what}")
        for name, fix in report.missing.items():
            say(f"{name:14}missing: {fix}")
    return 0 if report.is_fit else EXIT_FAILED
