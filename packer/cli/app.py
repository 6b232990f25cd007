"""The command `pack` and its subcommands; an error becomes one line on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

import click

from packer.cli.commands import (
    bench,
    build,
    compare,
    doctor,
    info,
    merge,
    plan,
    push,
    requantize,
    seal,
    show,
    subset,
    update,
    verify,
)
from packer.cli.output import (
    EXIT_DISK_FULL,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_USAGE,
    discard,
    fail,
)
from packer.cli.signals import command_to_continue, report_signal, signals_raise
from packer.errors import DiskFullError, EngineError, OptionsError, PackError, ScanError, Terminated
from packer.option_names import COMMAND, named_for
from packer.system import FULL
from reader.format.errors import StoreError, interrupt_behind


class _DefaultToBuild(click.Group):
    """Runs `build` if the first word is not a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `build` if the first word is not a command."""
        if args and args[0] not in (*self.commands, "-h", "--help", "--version"):
            args = ["build", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of their registration."""
        return [*self.commands]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show both ways to call: with IMAGES, and with a command's name."""
        formatter.write_usage("pack", "IMAGES OUT [OPTIONS]    (pack build --help lists them)")
        formatter.write_usage("pack", "COMMAND ...", prefix="       ")


@click.group(
    cls=_DefaultToBuild,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(package_name="pixpack", message="%(package)s %(version)s")
def cli() -> None:
    """Decode a folder of images once; train from the result at the speed of memory.

    \b
    Examples:
        pack images/ out/ --size 224
        pack images/ out/ --fit none --max-size 512
        pack info out/

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 more rejects than allowed, 28 disk full, 130 or 143 interrupted.
    """


for _command in (
    build.build,
    update.update,
    seal.seal,
    subset.subset,
    merge.merge,
    push.push,
    push.pull,
    plan.plan,
    info.info,
    verify.verify,
    compare.compare,
    requantize.requantize,
    doctor.doctor,
    show.show,
    bench.bench,
):
    cli.add_command(_command)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command and exit with its code; every expected error is one line on stderr."""
    code = run(arguments)
    if code in (EXIT_INTERRUPTED, EXIT_TERMINATED):
        # everything is closed; Python would wait for threads whose requests a server does not answer
        os._exit(code)
    sys.exit(code)


def run(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    # numpy's BLAS starts a thread per CPU, which packing never uses; without them the import takes half the time
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = sys.argv[1:] if arguments is None else arguments
    to_continue = command_to_continue(words)
    try:
        with signals_raise(to_continue), named_for(COMMAND):
            return cli.main(words, prog_name="pack", standalone_mode=False) or 0
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.UsageError as e:
        message = e.format_message()
        if message.startswith("Usage: "):
            # `pack` without arguments prints the full help, without an error line
            click.echo(message, err=True)
            return EXIT_USAGE
        command = e.ctx.command_path if e.ctx else f"pack {words[0] if words[0] in cli.commands else 'build'}"
        sentence = message if message.endswith("?") else f"{message.removesuffix('.')}."
        return fail(f"{sentence} See: {command} --help", EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt, Terminated) as e:
        return report_signal(e, to_continue)
    except BrokenPipeError:
        # the reader of stdout is gone; nothing is left to print
        discard(sys.stdout)
        return EXIT_FAILED
    except Exception as e:
        interrupt = interrupt_behind(e)
        return _exit_code(e) if interrupt is None else report_signal(interrupt, to_continue)


def _exit_code(error: Exception) -> int:
    """Print an expected error as one line and return its exit code; re-raise a bug, for its traceback."""
    if isinstance(error, MemoryError):
        return fail("this process gets no more memory. Free some, or raise its limit (ulimit -v, cgroup).", EXIT_FAILED)
    if isinstance(error, OptionsError | ScanError):
        return fail(str(error), EXIT_USAGE)
    if isinstance(error, DiskFullError):
        return fail(str(error), EXIT_DISK_FULL)
    if isinstance(error, PackError | StoreError | EngineError):
        return fail(str(error), EXIT_FAILED)
    if isinstance(error, OSError):
        if not error.filename:
            discard(sys.stdout)
        where = error.filename or "standard output or the current folder"
        name = errno.errorcode.get(error.errno or 0, "?")
        return fail(f"{where}: {error.strerror} ({name}).", EXIT_DISK_FULL if error.errno in FULL else EXIT_FAILED)
    raise error
