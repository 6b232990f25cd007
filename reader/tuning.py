"""The one place for sizes and waits that tests shrink: blocks, windows, buffers, clocks. The product always uses the defaults.

Tests set PIXPACK_TESTING=1 and PIXPACK_TUNING="least_block_inputs=2 ..."; child processes inherit both. Without PIXPACK_TESTING=1
the environment is not read.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, fields

_SWITCH = "PIXPACK_TESTING"
_VALUES = "PIXPACK_TUNING"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Sizes in bytes or counts, times in seconds. Each default carries its reason."""

    # A block: few enough bytes that a worker holds several, many enough that a journal line is nothing beside it, and small
    # against the pack, so that workers end together.
    block_bytes: int = 8 << 20
    least_block_inputs: int = 8


_DEFAULTS = Tuning()


def tuning() -> Tuning:
    """Return the defaults, or, under PIXPACK_TESTING=1, what PIXPACK_TUNING changes of them.

    Raises:
        ValueError: PIXPACK_TUNING names a field that does not exist, or gives it no number.
    """
    if os.environ.get(_SWITCH) != "1":
        return _DEFAULTS
    return _parsed(os.environ.get(_VALUES, ""))


@functools.cache
def _parsed(text: str) -> Tuning:
    """Parse "least_block_inputs=2 block_bytes=10000"."""
    types = {field.name: type(getattr(_DEFAULTS, field.name)) for field in fields(Tuning)}
    given = dict(word.split("=", 1) for word in text.split())
    if unknown := given.keys() - types.keys():
        raise ValueError(f"{_VALUES} names {', '.join(sorted(unknown))}. Expected fields of Tuning: {', '.join(types)}.")
    return Tuning(**{name: types[name](value) for name, value in given.items()})
