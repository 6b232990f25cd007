"""Options that several commands share, and what their values are parsed to."""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from packer.errors import OptionsError
from packer.option_names import Option
from packer.options import WorkerOptions
from reader.format.filesystem import user_path


class Range(click.FloatRange):
    """A number within bounds; nan, which is neither below nor above one, is not."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the number; as a usage error where it is out of bounds."""
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class StorePath(click.Path):
    """A path or URL; "" is none: as a folder it would be the current one, as a URL the root."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return what is named; as a usage error where nothing is, as of a variable that a script did not set."""
        if value == "":
            self.fail("it is empty, expected a path or URL.", param, ctx)
        return super().convert(user_path(value), param, ctx)


def combined(*options: Callable[..., object]) -> Callable[..., Any]:
    """Put several options in one, which a command then has in this order."""
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


REPORT = combined(
    click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout."),
    click.option("--quiet", is_flag=True, help="Print nothing but errors."),
)
WORKERS = click.option(
    "--workers", type=int, metavar="N", help="Worker processes. [default: the CPUs this process may use]"
)
# Of what replaces no store.
MAX_REJECTS = click.option(
    "--max-rejects",
    default=WorkerOptions.max_rejects,
    metavar="N|P%",
    help="More rejects than this end with exit code 3.",
)
COMPRESS = click.option(
    "--compress",
    type=click.IntRange(1, 100),
    metavar="Q",
    help="Keep rows as JPEGs of this quality, which loses some: 0.14 of the disk at 90, 0.21 at 95. Reading takes more CPU.",
)
# Of `build` and `update`: what the inputs are, and what belongs to one run alone.
INPUTS = combined(
    click.option(
        "-0", "nul", is_flag=True, help="Read paths from standard input, NUL-separated, as find -print0 writes them."
    ),
    click.option(
        "--boxes",
        type=StorePath(),
        metavar="JSON|DIR",
        help="Boxes of the images: COCO's json, or the folder of YOLO's .txt files, which may be IMAGES itself.",
    ),
    click.option(
        "--masks",
        type=StorePath(),
        metavar="DIR",
        help="Masks of the images, palette or gray, by the same relative path: a.png for a.jpg.",
    ),
    click.option(
        "--classes",
        metavar="STORE|FILE",
        help="Take the class list from a store or a file: one name a line, .json, or YOLO's data.yaml.",
    ),
    click.option(
        "--root",
        metavar="DIR",
        help="Folder that relative paths of a list start from; on standard input, classes are the folders below it.",
    ),
    click.option(
        "--path-column",
        metavar="NAME",
        help="Column of a table that holds the path.  [default: path, file_name, image or the like]",
    ),
    click.option(
        "--target-column",
        metavar="NAME[,NAME]",
        help="Column that holds the target; several of 0 and 1 are several labels, of other numbers one vector."
        "  [default: target, label, class or cls]",
    ),
    click.option("--extension", metavar=".EXT", help="Add this to the paths of a list that lack it."),
    click.option(
        "--label-separator",
        metavar="TEXT",
        help="What is between several labels in a cell, such as ';' or ' '.  [default: a cell is one label]",
    ),
)
RUN = combined(
    WORKERS,
    click.option(
        "--max-rejects",
        default=WorkerOptions.max_rejects,
        metavar="N|P%",
        help="More rejects than this end with exit code 3; a store that would be replaced stays.",
    ),
    REPORT,
)
# Of `subset` and `merge`.
COPY = combined(click.option("--overwrite", is_flag=True, help="Replace an existing store."), REPORT)


def images_argument(images: tuple[str, ...], nul: bool) -> tuple[str, ...]:
    """Return IMAGES as `pack` takes it."""
    if nul and images in ((), ("-",)):
        return ("-0",)
    if not images or (nul and images != ("-0",)):
        raise click.UsageError(
            f"{images[0]} and -0 cannot be packed together." if images else "OUT is missing. Expected: pack IMAGES OUT."
        )
    return images


def parse_rows(text: str) -> list[int]:
    """Return the rows that are named; for what shows them, not for all of a store."""
    spans = row_spans(text)
    if not 1 <= sum(map(len, spans)) <= 10_000:
        raise OptionsError(f"--rows {text!r} names {sum(map(len, spans))} rows, expected 1 to 10,000.")
    return [row for span in spans for row in span]


def row_spans(text: str) -> list[range]:
    """Parse rows and spans of them, whose ends are included: "0,7,20-29"."""
    spans = []
    for piece in text.split(","):
        if not (match := re.fullmatch(r"([0-9]{1,15})(?:-([0-9]{1,15}))?", piece.strip())):
            raise OptionsError(f"--rows is {text[:60]!r}, expected rows such as 0,7,20-29.")
        spans.append(range(int(match[1]), int(match[2] or match[1]) + 1))
        if not spans[-1]:
            raise OptionsError(f"--rows has {piece!r}, expected the smaller row first.")
    return spans


def checked_spans(spans: list[range], store: str) -> Iterator[int]:
    """Give the rows of spans, once it is known that a store has them: a slip of the finger must not fill the memory."""
    from packer.inputs.splits import check_one_store
    from packer.operations.copy_rows import open_for_copy

    check_one_store(store, Option("rows"))
    count = open_for_copy(store)[1].rows
    if wrong := next((span[-1] for span in spans if span[-1] >= count), None):
        raise OptionsError(f"row {wrong} is out of range: the store has rows 0 to {count - 1}.")
    return itertools.chain.from_iterable(spans)


def read_rows() -> list[int]:
    """Read row numbers from standard input, whatever white space is between them."""
    if sys.stdin is None:
        raise OptionsError("standard input is closed, expected row numbers.")
    words = (sys.stdin.buffer.read() if hasattr(sys.stdin, "buffer") else sys.stdin.read().encode()).split()
    if wrong := next((word for word in words if not re.fullmatch(rb"[0-9]{1,15}", word)), None):
        raise OptionsError(f"standard input has {wrong[:40].decode(errors='replace')!r}, expected row numbers.")
    if not words:
        raise OptionsError("standard input is empty, expected row numbers.")
    return [*map(int, words)]
