"""`pack doctor`."""

from __future__ import annotations

import dataclasses

import click

from packer.cli.help import command
from packer.cli.options import StorePath
from packer.cli.output import EXIT_FAILED, say, say_json


@command(short_help="What this machine has and lacks for packing.")
@click.argument("path", type=StorePath(), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON on stdout.")
def doctor(path: str, as_json: bool) -> int:
    """Check decoders, packages, CPUs, memory, GPUs, and the file system of PATH, where you plan to put a store.

    Reports what is missing and how to install it; the exit code is 1 if packing needs it.

    \b
    Examples:
      pack doctor
      pack doctor /data/stores
      pack doctor --json | jq '.findings[] | select(.level != "ok")'
    """
    from packer.operations.doctor import examine

    report = examine(path)
    if as_json:
        say_json(dataclasses.asdict(report))
    else:
        for finding in report.findings:
            level = "" if finding.level == "ok" else f"{finding.level}: "
            say(f"{finding.name:14}{level}{finding.found}")
            if finding.fix:
                say(f"{'':14}fix: {finding.fix}")
    return 0 if report.is_fit else EXIT_FAILED
