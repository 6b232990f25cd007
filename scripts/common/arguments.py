"""The options that benchmarks have in common: one name, one type and one help each, with defaults of their own.

Knows argparse. An option that one benchmark alone has is added by that benchmark.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Where the benchmarks that read leave the store that they make.
READ_WORK = Path(tempfile.gettempdir()) / "pixpack-bench-read"
# Name -> metavar of a path, or "" of a count; and its help.
_OPTIONS = {
    "rows": ("", "rows of the store to make"),
    "size": ("", "side of a row in pixels"),
    "batch_size": ("", "rows a batch"),
    "rounds": ("", "timed turns of each way"),
    "runs": ("", "timed turns of each way"),
    "threads": ("", "threads"),
    "workers": ("", "processes"),
    "count": ("", "files"),
    "images": ("DIR", "default: ../shared/photos, else make_sample.py's"),
    "store": ("OUT", "read this store instead of making one"),
    "work": ("DIR", "folder for what is made"),
    "json": ("FILE", "write the JSON line there too"),
}


class Count(argparse.Action):
    """An int of 1 or more."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, type=int, **options)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: Any = None
    ) -> None:
        if value < 1:
            parser.error(f"{self.option_strings[0]} is {value}, expected 1 or more.")
        setattr(namespace, self.dest, value)


def counts_parser(doc: str | None, **defaults: int) -> argparse.ArgumentParser:
    """Return a parser with options that are ints: counts_parser(__doc__, images=3000, seed=0); doc as of `bench_parser`."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    return parser


def bench_parser(doc: str | None, *, about: dict[str, str] | None = None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with the named options and their defaults: bench_parser(__doc__, rows=20_000, json=None).

    Args:
        doc: a module's; its first line is the description.
        about: what an option says where the common text does not fit.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for name, default in defaults.items():
        metavar, text = _OPTIONS[name]
        kind: dict[str, Any] = {"type": Path, "metavar": metavar} if metavar else {"action": Count}
        text = (about or {}).get(name, text) + (f" (default: {default})" if default is not None else "")
        parser.add_argument(f"--{name.replace('_', '-')}", **kind, default=default, help=text)
    return parser
