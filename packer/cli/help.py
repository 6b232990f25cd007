"""How help reads: click's own, with the examples of a docstring as lines that a shell takes."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import click

# of each command: click keeps the help option of the first context, which need not be below that of `pack`
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


class Command(click.Command):
    """A command whose examples are not wrapped."""

    def __init__(self, *, help: str | None = None, **settings: Any) -> None:
        # a paragraph behind "\b" keeps its lines (click.palletsprojects.com, "Preventing Rewrapping")
        text = inspect.cleandoc(help or "").replace("Examples:\n\n", "\b\nExamples:\n")
        super().__init__(help=text, **settings)


# Decorates a function as a command with such help.
command = functools.partial(click.command, cls=Command, context_settings=SETTINGS)
