"""The command `pack` as a group of commands, of which `build` is the default."""

from __future__ import annotations

import click

import packer
from packer.cli.help import SETTINGS
from packer.cli.output import say


class _DefaultToBuild(click.Group):
    """A first word that is not a command's name, options included, belongs to `build`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `build` in front of words that begin with no command."""
        if args and args[0] not in (*self.commands, "-h", "--help", "--version"):
            args = ["build", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were added."""
        return [*self.commands]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show both ways to call: with IMAGES, and with a command's name."""
        formatter.write_usage("pack", "IMAGES OUT [OPTIONS]    (pack build --help lists them)")
        formatter.write_usage("pack", "COMMAND ...", prefix="       ")


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

    \b
    Examples:
        pack images/ out/ --size 224
        pack images/ out/ --fit none --max-size 512
        pack info out/

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 more rejects than allowed, 28 disk full, 130 or 143 interrupted.
    """
