"""`pack push` and `pack pull`."""

from __future__ import annotations

import click

from packer.cli.help import command
from packer.cli.options import REPORT, StorePath
from packer.cli.output import print_transfer
from packer.cli.progress import ProgressBar


@command(short_help="Copy a store to object storage.")
@click.argument("out", type=StorePath())
@click.argument("url", type=StorePath())
@click.option("--overwrite", is_flag=True, help="Replace another store at URL, which is gone as soon as this begins.")
@REPORT
def push(out: str, url: str, overwrite: bool, as_json: bool, quiet: bool) -> int:
    """Copy the files of the store OUT to URL, the manifest last. Each is compared with its checksum before it is sent.

    Nothing is sent if the store is already there. Of a folder of splits, each store is copied below URL by its name.

    Examples:

        pack push out/ s3://bucket/stores/out
        pack push out/ s3://bucket/stores/out --overwrite
    """
    from packer.operations.transfer import push as run

    with ProgressBar(hidden=quiet or as_json, unit="B") as bar:
        report = run(out, url, overwrite=overwrite, progress=lambda done, total: bar.bytes_done(done, total, "push"))
    print_transfer(report, f"{report.out} is at {report.url}", as_json=as_json, quiet=quiet)
    return 0


@command(short_help="Copy a store from object storage.")
@click.argument("url", type=StorePath())
@click.argument("out", type=StorePath())
@REPORT
def pull(url: str, out: str, as_json: bool, quiet: bool) -> int:
    """Copy the store at URL to OUT, and compare every byte with its checksum. The same command continues an interrupted pull.

    If URL holds splits, each store is copied below OUT by its name.

    Examples:

        pack pull s3://bucket/stores/out out/
    """
    from packer.operations.transfer import pull as run

    with ProgressBar(hidden=quiet or as_json, unit="B") as bar:
        report = run(url, out, progress=lambda done, total: bar.bytes_done(done, total, "pull"))
    print_transfer(report, f"{report.url} is at {report.out}", as_json=as_json, quiet=quiet)
    return 0
