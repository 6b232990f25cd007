"""Options of the command: those of packing, from the fields of `packer.options`, and those that several commands share."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any

import click

from packer.cli.output import Output
from packer.errors import OptionsError, PackError
from packer.options import PackOptions
from reader.format.filesystem import user_path

JSON = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
_QUIET = click.option("--quiet", is_flag=True, help="Print nothing but errors.")


class StorePath(click.Path):
    """A path or URL; "" is refused: as a folder it would be the current one, as a URL the root."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return a path or URL; an empty one is a usage error, as from an unset variable in a script."""
        if value == "":
            self.fail("it is empty, expected a path or URL.", param, ctx)
        return super().convert(user_path(value), param, ctx)


def options_of(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the named options of packing to a command, in the order of `PackOptions`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        """Add the options, so that --help lists them in their order."""
        for each in reversed(fields(PackOptions)):
            if each.name in names:
                command = _click_option(each)(command)
        return command

    return decorate


def _click_option(option: Field[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    name, help = f"--{option.name.replace('_', '-')}", option.metadata["help"]
    if option.default is False:
        return click.option(name, is_flag=True, help=help)
    return click.option(name, default=option.default, metavar=option.metadata["metavar"], help=help)


def names_of(group: type[Any]) -> list[str]:
    """Return the names of a group's options that are command-line options: all but the progress callback."""
    return [each.name for each in fields(group) if each.name != "progress"]


def answers(function: Callable[..., int]) -> Callable[..., int]:
    """Add --json and --quiet to a command, and call it with the `Output` that they select."""

    @JSON
    @_QUIET
    @functools.wraps(function)
    def called(*, as_json: bool, quiet: bool, **words: Any) -> int:
        """Call the command with its output."""
        return function(output=Output(as_json, quiet), **words)

    return called


def takes_images(*names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add IMAGES, OUT, -0, the named options of packing, --json and --quiet to a command."""

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        """Add the arguments and options to a command."""

        @click.argument("images", type=StorePath(), nargs=-1)
        @click.argument("out", type=StorePath())
        @options_of(*names)
        @click.option("-0", "nul", is_flag=True, help="Read paths from standard input, NUL-separated.")
        @answers
        @functools.wraps(function)
        def called(*, images: tuple[str, ...], nul: bool, **words: Any) -> int:
            """Call the command, once the words name IMAGES."""
            if nul and images not in ((), ("-",)):
                raise click.UsageError(f"{images[0]} and -0 cannot be packed together.")
            if not nul and not images:
                raise click.UsageError("OUT is missing. Expected: pack IMAGES OUT.")
            return function(images=("-0",) if nul else images, **words)

        return called

    return decorate


def need_torch(command: str) -> None:
    """Raise PackError if torch or tensordict is missing, for a command that reads like a training program."""
    for name in ("torch", "tensordict"):
        if importlib.util.find_spec(name) is None:
            raise PackError(f"{command} needs {name}. Run it where you train, or: pip install torch tensordict")


def parse_rows(text: str, most: int = 10_000_000) -> list[int]:
    """Parse row numbers and inclusive spans: "0,7,20-29"."""
    spans = []
    for piece in text.split(","):
        if not (match := re.fullmatch(r"([0-9]{1,15})(?:-([0-9]{1,15}))?", piece.strip())):
            raise OptionsError(f"--rows is {text[:60]!r}, expected rows such as 0,7,20-29.")
        spans.append(range(int(match[1]), int(match[2] or match[1]) + 1))
        if not spans[-1]:
            raise OptionsError(f"--rows has {piece!r}, expected the smaller row first.")
    # a typo must not fill the memory
    if (count := sum(map(len, spans))) > most:
        raise OptionsError(f"--rows names {count:,} rows, expected up to {most:,}.")
    return [*itertools.chain.from_iterable(spans)]


def read_rows() -> list[int]:
    """Read row numbers, separated by white space, from standard input."""
    words = sys.stdin.buffer.read().split() if sys.stdin is not None else []
    if wrong := next((word for word in words if not re.fullmatch(rb"[0-9]{1,15}", word)), None):
        raise OptionsError(f"standard input has {wrong[:40].decode(errors='replace')!r}, expected row numbers.")
    if not words:
        raise OptionsError("standard input is empty, expected row numbers.")
    return [*map(int, words)]
