"""`pack push` and `pack pull`."""

from __future__ import annotations

import click

from packer.cli import messages
from packer.cli.options import StorePath, answers, options_of
from packer.cli.output import Output


@click.command()
@click.argument("out", type=StorePath())
@click.argument("url", type=StorePath())
@options_of("overwrite")
@answers
def push(out: str, url: str, overwrite: bool, output: Output) -> int:
    """Copy the files of the store OUT to URL, the manifest last.

    Each file is checked before it is sent. Nothing is sent if the store is already there. With --overwrite, another store at
    URL is removed first. If OUT is a folder of splits, each store is copied below URL under its name.

    \b
    Examples:
        pack push out/ s3://bucket/stores/out
        pack push out/ s3://bucket/stores/out --overwrite
    """
    from packer.operations.transfer import push as run

    with output.progress("B") as bar:
        report = run(out, url, overwrite=overwrite, progress=lambda done, total: bar.bytes_done(done, total, "push"))
    output.report(report, messages.transferred(report, f"{report.out} is at {report.url}"))
    return 0


@click.command()
@click.argument("url", type=StorePath())
@click.argument("out", type=StorePath())
@answers
def pull(url: str, out: str, output: Output) -> int:
    """Copy the store at URL to OUT, and check every byte.

    The same command continues an interrupted pull. If URL holds splits, each store is copied below OUT under its name.

    \b
    Examples:
        pack pull s3://bucket/stores/out out/
    """
    from packer.operations.transfer import pull as run

    with output.progress("B") as bar:
        report = run(url, out, progress=lambda done, total: bar.bytes_done(done, total, "pull"))
    output.report(report, messages.transferred(report, f"{report.url} is at {report.out}"))
    return 0
