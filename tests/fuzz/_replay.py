"""Makes recorded calls of the compiled part, and prints a digest of what each returned and wrote.

    python _replay.py LIBRARY CALLS

Runs by any Python 3 without packages, also under an emulator; knows nothing of what the functions do.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import sys
from typing import Any


def made_by(function: Any, arguments: list[Any]) -> str:
    """Call a function; returns a digest of its result, or of its refusal, and of the bytearrays that it was given."""
    try:
        result = function(*arguments)
    except ValueError as e:
        result = str(e)
    written = [bytes(argument) for argument in arguments if isinstance(argument, bytearray)]
    return hashlib.sha256(repr((result, written)).encode()).hexdigest()


def load(path: str) -> Any:
    """Import the extension in a file."""
    spec = importlib.util.spec_from_file_location("_native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    native = load(sys.argv[1])
    with open(sys.argv[2], "rb") as file:
        for name, arguments in pickle.load(file):
            print(name, made_by(getattr(native, name), arguments))
