"""`pack doctor`."""

from __future__ import annotations

import dataclasses

import click

from packer.cli.options import JSON, StorePath
from packer.cli.output import EXIT_FAILED, say, say_json


@click.command()
@click.argument("path", type=StorePath(), default=".")
@JSON
def doctor(path: str, as_json: bool) -> int:
    """Show this machine's decoders, and the missing ones.

    Also shows how to install those, and the disk of PATH, where you plan to put a store. Exit code 1 if packing needs a
    missing one.

    \b
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
