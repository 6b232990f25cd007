"""The command `pack` as a group of commands, of which `build` is the default."""

from __future__ import annotations

import click

from packer.version import __version__

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _DefaultToBuild(click.Group):
    """A first word that is no command's name, options included, belongs to `build`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `build` in front of words that begin with no command."""
        if args and args[0] not in (*self.commands, "-h", "--help", "--version"):
            args = ["build", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show both ways to call: with IMAGES, and with a command's name."""
        formatter.write_usage("pack", "IMAGES OUT [OPTIONS]    (pack build --help lists them)")
        formatter.write_usage("pack", "COMMAND ...", prefix="       ")


def _print_version(ctx: click.Context, option: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        click.echo(f"pixpack {__version__}\ncompiled part: {_compiled_part()}")
        ctx.exit()


def _compiled_part() -> str:
    try:
        from packer.pixels.native.live import native
    except ImportError as e:
        return f"not used: {e}"
    live = native()
    return "used" if live.row else live.reason


@click.group(cls=_DefaultToBuild, context_settings=_SETTINGS)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Decode a folder of images once; train from the result at the speed of memory.

    \b
    Examples:
      pack images/ out/ --fit none --max-size 512
                                          decode, each image whole and up to 512 pixels, write the store out/
      pack plan images/                   what each choice of row sizes would mean for random crops
      pack update images/ out/            bring it up to date, decoding only what has changed
      pack subset out/ some/ --class cat  a store of some of its rows
      pack merge out/ more/ all/          a store of the rows of several
      pack info out/                      what it holds
      pack seal out/                      join what pack --part has packed
      pack verify out/                    read every byte of it and compare
      pack push out/ s3://bucket/out      copy it to object storage; pack pull copies it back
      pack show out/ -o sheet.png         look at it
      pack requantize images/ less/ -q 3  the folder as smaller JPEGs, by FFmpeg
      pack doctor                         what this machine lacks
      pack bench out/                     time reading it, beside this machine's limits

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 more rejects than allowed, 28 disk full, 130 or 143 interrupted.
    """
