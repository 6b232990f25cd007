"""The command `pack` as a group of commands, of which `build` is the default."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

import packer
from packer.cli.help import (
    SETTINGS,
    command_records,
    option_records,
    write_documentation,
    write_sections,
    write_text_and_examples,
)
from packer.cli.output import say

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# So near to a command's name is a slip of the finger: inof, verfiy, updtae.
_LIKENESS = 0.7


class _DefaultToBuild(click.Group):
    """A first word that is not a command's name, options included, belongs to `build`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `build` in front of words that begin with no command; `help X` is `X --help`."""
        if args and args[0] == "help":
            args = self._help_of(ctx, args[1:])
        elif args and args[0] not in (*self.commands, "-h", "--help", "--version"):
            if not ctx.resilient_parsing:
                self._check_slip(ctx, args)
            args = ["build", *args]
        return super().parse_args(ctx, args)

    def _help_of(self, ctx: click.Context, names: list[str]) -> list[str]:
        """Return the words that show the help of a command, or of all of them."""
        if not names:
            return ["--help"]
        if names[0] in self.commands:
            return [names[0], "--help"]
        near = _near(names[0], self.commands)
        hint = f"Did you mean {near[0]}?" if near else f"Expected one of {', '.join(self.commands)}."
        raise click.UsageError(f"there is no command {names[0]!r}. {hint} A folder named help is ./help.", ctx)

    def _check_slip(self, ctx: click.Context, args: list[str]) -> None:
        """Raise a usage error where the first word is nothing that could be packed, and nearly a command's name or alone."""
        word = args[0]
        own = _near(word, ("--version", "--help")) if len(args) == 1 else []
        if own and word not in {name for param in self.commands["build"].params for name in param.opts}:
            raise click.UsageError(f"No such option {word!r}. Did you mean {own[0]}?", ctx)
        if os.path.lexists(word):
            return
        near = _near(word, self.commands)
        hint = f" Did you mean {near[0]}?" if near else ""
        is_name = "://" not in word and not word.startswith("-")
        if near or (len(args) == 1 and is_name):
            raise click.UsageError(f"{word!r} is not a command, and no such folder exists.{hint}", ctx)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show both ways to call: with IMAGES, and with a command's name."""
        formatter.write_usage("pack", "IMAGES OUT [OPTIONS]    (pack build --help lists them)")
        formatter.write_usage("pack", "COMMAND ...", prefix="       ")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command is for, and its examples."""
        write_text_and_examples(ctx, formatter, self.help or "")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by what they do, then the options."""
        write_sections(ctx, formatter, command_records(self) | {"Options": [*option_records(self, ctx).values()]})

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write where the documentation is."""
        write_documentation(formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a first word: a command, an option of `build`, or a path."""
        from click.shell_completion import CompletionItem

        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            build = self.commands["build"]
            with click.Context(build, parent=ctx, info_name="build", resilient_parsing=True) as inner:
                return found + [item for item in build.shell_complete(inner, incomplete) if item.value != "--help"]
        # the path first: bash drops what stands before it
        return [CompletionItem(incomplete, type="file"), *found]


def _near(word: str, names: Iterable[str]) -> list[str]:
    """Return the name that a word is a slip of, if any."""
    from difflib import get_close_matches

    return get_close_matches(word, names, 1, _LIKENESS)


def _print_version(ctx: click.Context, option: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        say(f"pixpack {packer.__version__}\n{_decoders()}")
        ctx.exit()


def _decoders() -> str:
    """Name what decodes and resizes here, a line each."""
    try:
        from packer.pixels.compiled import native
        from packer.pixels.formats.versions import decoder_versions
    except ImportError as e:
        return f"decoder: none: {e}\ncompiled part: not used: {e}"
    found, live = decoder_versions(), native()
    jpeg, pillow = found["libjpeg-turbo"], found["pillow"]
    if live.version:
        decoder = f"libjpeg-turbo {live.version}, through the compiled part"
    elif jpeg["jpeg4py"]:
        decoder = f"libjpeg-turbo {jpeg['turbojpeg'] or 'of unknown version'}, through jpeg4py {jpeg['jpeg4py']}"
    else:
        decoder = f"Pillow's libjpeg-turbo {pillow['libjpeg_turbo'] or 'of unknown version'}"
    return (
        f"decoder: {decoder}\n"
        f"resizing: {pillow['distribution']} {pillow['version']}, SIMD: {pillow['simd'] or 'none'}\n"
        f"compiled part: {'used' if live.row else live.reason}"
    )


@click.group(cls=_DefaultToBuild, context_settings=SETTINGS)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version, the decoders and their SIMD, and exit.",
)
def cli() -> None:
    """Decode a folder of images once; train from the result at the speed of memory.

    Examples:

        pack images/ out/ --size 224
        pack images/ out/ --fit none --max-size 512
        pack info out/

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 more rejects than allowed, 28 disk full, 130 or 143 interrupted.
    """
