"""The command `pack` with all its commands; what each of them raises becomes one line on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn, TextIO

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
from packer.cli.group import cli
from packer.cli.output import EXIT_DISK_FULL, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_USAGE, fail
from packer.cli.signals import continuing, ended, signals_raise
from packer.errors import OptionsError, Terminated
from packer.option_names import COMMAND, named_for
from reader.format.errors import interrupt_behind

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
    code = _flushed(run(arguments))
    if code in (EXIT_INTERRUPTED, EXIT_TERMINATED):
        # all is closed; Python would wait for threads whose requests a server does not answer
        os._exit(code)
    sys.exit(code)


def _flushed(code: int) -> int:
    """Write out what is left for the standard streams; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # its caller closed it
            continue
        try:
            stream.flush()
        except OSError as e:
            _discard(stream)
            # of stderr there is nowhere to say it
            code = code or (EXIT_FAILED if stream is sys.stderr or isinstance(e, BrokenPipeError) else _exit_code(e))
    return code


def _discard(stream: TextIO) -> None:
    """Drop what a stream still holds and cannot write: Python would try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    # numpy starts a thread a CPU for algebra that packing never does; without them it starts in half the time
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = sys.argv[1:] if arguments is None else arguments
    called = cli.commands.get(words[0] if words else "", build.build)
    to_continue = continuing(words)
    try:
        with signals_raise(to_continue), named_for(COMMAND):
            return cli.main(words, prog_name="pack", standalone_mode=False) or 0
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.UsageError as e:
        command, message = e.ctx.command_path if e.ctx else f"pack {called.name}", e.format_message()
        if isinstance(e, click.MissingParameter) and isinstance(e.param, click.Argument):
            message = f"{e.param.human_readable_name} is missing. Expected: {_arguments(called)}."
        if message.startswith("Got unexpected extra argument"):
            message = f"{message}. Expected: {_arguments(called)}."
        if message.startswith("Usage: "):
            # `pack` alone is answered by all of the help, which needs no word before or after it
            click.echo(message, err=True)
            return EXIT_USAGE
        return fail(f"{message} See: {command} --help", EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt, Terminated) as e:
        return ended(e, to_continue)
    except BrokenPipeError:
        # the reader of our stdout is gone; nothing is left to say
        _discard(sys.stdout)
        return EXIT_FAILED
    except Exception as e:
        interrupt = interrupt_behind(e)
        return _exit_code(e) if interrupt is None else ended(interrupt, to_continue)


def _arguments(command: click.Command) -> str:
    """Return how a command is called, without options: pack subset STORE OUT."""
    name = "pack" if command is build.build else f"pack {command.name}"
    words = [
        param.make_metavar(click.Context(command)) for param in command.params if isinstance(param, click.Argument)
    ]
    return " ".join([name, *(word.strip("[]").replace("]...", "") for word in words)])


def _exit_code(error: Exception) -> int:
    """Print an expected error as one line and return its exit code; raise a bug again, for its traceback."""
    if isinstance(error, MemoryError):
        return fail("this process gets no more memory. Free some, or raise its limit (ulimit -v, cgroup).", EXIT_FAILED)
    from packer.errors import DiskFullError, EngineError, PackError, ScanError
    from packer.store.failures import open_files_limit
    from packer.system import FULL, NO_DESCRIPTOR
    from packer.text import system_reason
    from reader.format.errors import StoreError

    if isinstance(error, OptionsError | ScanError):
        return fail(str(error), EXIT_USAGE)
    if isinstance(error, DiskFullError):
        return fail(str(error), EXIT_DISK_FULL)
    if isinstance(error, PackError | StoreError | EngineError):
        return fail(str(error), EXIT_FAILED)
    if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
        what = error.filename or "a file or pipe"
        return fail(
            f"{what} cannot be opened: {system_reason(error)}, {open_files_limit()}. Allow more, and do it again.",
            EXIT_FAILED,
        )
    if isinstance(error, OSError):
        where = error.filename or "standard output or the current folder"
        name = errno.errorcode.get(error.errno or 0, "?")
        return fail(f"{where}: {error.strerror} ({name}).", EXIT_DISK_FULL if error.errno in FULL else EXIT_FAILED)
    raise error


if __name__ == "__main__":
    main()
