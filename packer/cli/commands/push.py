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
@click.option(
    "--overwrite", is_flag=True, help="Replace another store, which stays complete at the URL until the new one is."
)
@REPORT
def push(out: str, url: str, overwrite: bool, as_json: bool, quiet: bool) -> int:
    """Copy the store OUT to URL. Each file is compared with its checksum before it is sent.

    The same command works in every state: it starts, continues after an interruption, and sends nothing if the store is already
    at URL. Anything else at URL is refused; --overwrite replaces another store. Of a folder of splits, each store is copied to
    URL/<split>.

    \b
    Examples:
      pack push out/ s3://bucket/stores/out
      pack push out/ s3://bucket/stores/out --overwrite
    """
    from packer.operations.transfer.splits import push as run

    with ProgressBar(hidden=quiet or as_json, unit="B") as bar:
        report = run(out, url, overwrite=overwrite, progress=lambda done, total: bar.bytes_done(done, total, "push"))
    print_transfer(report, f"{report.out} is at {report.url}", as_json=as_json, quiet=quiet)
    return 0


@command(short_help="Copy a store from object storage.")
@click.argument("url", type=StorePath())
@click.argument("out", type=StorePath(), required=False)
@click.option(
    "--cache",
    type=StorePath(),
    metavar="FOLDER",
    help="Instead of OUT: fill the cache that training reads URL through.",
)
@REPORT
def pull(url: str, out: str | None, cache: str | None, as_json: bool, quiet: bool) -> int:
    """Copy the store at URL to OUT, and compare every byte with its checksum. The same command continues an interrupted pull.

    If URL holds splits, each store is copied to OUT/<split>. With --cache, the full store is put into the cache that
    MemmapDataset(URL, cache=FOLDER) reads, and then opens without a network.

    \b
    Examples:
      pack pull s3://bucket/stores/out out/
      pack pull s3://bucket/stores/out --cache /nvme/pixpack
    """
    from packer.operations.transfer.splits import pull as run

    with ProgressBar(hidden=quiet or as_json, unit="B") as bar:
        report = run(url, out, cache=cache, progress=lambda done, total: bar.bytes_done(done, total, "pull"))
    print_transfer(report, f"{report.url} is at {report.out}", as_json=as_json, quiet=quiet)
    return 0
