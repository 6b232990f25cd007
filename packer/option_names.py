"""Names of options in messages: `--overwrite` for the command `pack`, `overwrite=True` for Python.

A message holds an `Option`, never its spelling. Files always have the command's spelling: a reason in rejected.jsonl is the
same for every caller. So do shell commands in messages.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Types whose values are written as they are; others are written as text.
_SHOWN = (bool, int, float, list, tuple)
COMMAND, PYTHON = "the command", "Python"
# Set in this process only: its workers raise no error that names an option.
_caller = PYTHON


@contextlib.contextmanager
def named_for(caller: str) -> Iterator[None]:
    """Name options as the command, Python or `packed` takes them."""
    global _caller
    before, _caller = _caller, caller
    try:
        yield
    finally:
        _caller = before


@dataclass(frozen=True)
class Option:
    """An option in a message, with the value to give, if any; True for a flag.

    Example:
        >>> f"Start over with {Option('overwrite', True)}, or give {Option('fit', 'none')} without {Option('crop_fraction')}."
        "Start over with overwrite=True, or give fit='none' without crop_fraction."
        >>> with named_for(COMMAND):
        ...     f"Start over with {Option('overwrite', True)}, or give {Option('fit', 'none')} without {Option('crop_fraction')}."
        'Start over with --overwrite, or give --fit none without --crop-fraction.'
    """

    name: str
    value: object = None

    def __str__(self) -> str:
        value = written(self.name, self.value)
        if _caller == COMMAND:
            word = f"--{self.name.replace('_', '-')}"
            given = value if isinstance(value, list | tuple) else [value]
            return word if value is None or value is True else " ".join(f"{word} {shlex.quote(str(v))}" for v in given)
        return self.name if value is None else f"{self.name}={value if isinstance(value, _SHOWN) else str(value)!r}"


def written(name: str, value: Any) -> Any:
    """Return an option's value as its caller writes it: a size and the values of masks as one number or text.

    Example:
        >>> written("size", (224, 224)), written("size", [192, 256]), written("mask_values", [0, 255]), written("fit", "pad")
        (224, '192x256', '0,255', 'pad')
    """
    if isinstance(value, list | tuple) and name == "size":
        height, width = value
        return height if height == width else f"{height}x{width}"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) and name == "mask_values" else value


OVERWRITE = Option("overwrite", True)
