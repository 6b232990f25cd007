"""`python -m packer` is the command `pack`, and so is the script that is installed: signals first, then all that takes time."""

from __future__ import annotations

import gc
import os
import signal
from typing import NoReturn

# Of new objects, before cycles among them are looked for: what is imported stays, and looking through it takes 6 ms of a start.
_OBJECTS = 50_000


def main() -> NoReturn:
    """Run the command; before and after its own handling of signals, they end the process silently."""
    gc.set_threshold(_OBJECTS)
    for number in (signal.SIGINT, signal.SIGTERM):
        # who started this may want one ignored, as nohup and a shell's & do
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)
    from packer.cli.app import main as run_command

    run_command()


def _end(number: int, frame: object) -> NoReturn:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
