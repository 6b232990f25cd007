"""`pack info`."""

from __future__ import annotations

import os

import click

from packer.cli import messages
from packer.cli.help import command
from packer.cli.options import StorePath
from packer.cli.output import say, say_json
from packer.cli.progress import ProgressBar


@command(short_help="What a store holds.")
@click.argument("out", type=StorePath())
@click.option("--brief", is_flag=True, help="Read the manifest alone, not the targets and samples.jsonl.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it, but for the table of blocks, as JSON.")
def info(out: str, brief: bool, as_json: bool) -> int:
    """Show what the store OUT holds, how it was made, and what its sources were. Reads no pixels.

    OUT may also be a folder of splits. Of a pack that has not finished, out.packing, it says how far that
    is and which line continues it, with exit code 1.

    Examples:

        pack info out/
        pack info out/ --json | jq .rows
        pack info out.packing/
    """
    return _brief(out, as_json) if brief else _described(out, as_json)


def _described(out: str, as_json: bool) -> int:
    """Print what is known of the store OUT."""
    from packer.operations.info import describe

    with ProgressBar(hidden=as_json, unit=" rows") as bar:
        found = describe(out, progress=bar.update)
    if as_json:
        say_json(found.to_json())
        return 0
    for split, manifest in found.manifests.items():
        name = os.path.join(out, split) if split else out
        say(
            messages.table(
                messages.manifest_lines(name, manifest) | messages.source_lines(manifest, found.sources[split])
            )
        )
    return 0


def _brief(out: str, as_json: bool) -> int:
    """Print the manifest of a store, or of each split."""
    from packer.inputs.splits import stores_of
    from packer.store.state import check_finished

    heads = {split: check_finished(store) for split, store in stores_of(out).items()}
    if as_json:
        from packer.store.manifest_file import manifest_head

        found = {split: manifest_head(head) | {"digest": head.digest} for split, head in heads.items()}
        say_json(found.get("") or {"splits": found})
        return 0
    names = {split: os.path.join(out, split) if split else out for split in heads}
    say("\n\n".join(messages.table(messages.manifest_lines(names[split], heads[split])) for split in heads))
    return 0
