"""Who called, the command or Python: an error names options as the caller writes them, `--overwrite` or `overwrite=True`.

Errors are raised in the words of the command. What a public function of Python raises is put into Python's where it ends.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import fields

from packer.errors import OptionsError, PackError, ScanError
from packer.options import CHANNELS, DRAWN, ENGINES, FITS, ICC, ON_ERROR, RESAMPLES, PackOptions

_is_command: ContextVar[bool] = ContextVar("is_command", default=False)

_FLAGS = {option.name for option in fields(PackOptions) if option.type == "bool"}
_CHOICES = (*FITS, *RESAMPLES, *ENGINES, *ON_ERROR, *ICC, *CHANNELS, DRAWN)
# --fit none, --max-rejects 1%, --part 2/8, --compress jpeg:95; of "--size is 0" the name alone
_VALUE = rf"(?:{'|'.join(_CHOICES)}|(?:jpeg:|short:)?\d(?:[\w.,/%]*[\w%])?)(?![\w-])"
_OPTION = re.compile(rf"(?<![\w-])--(?P<name>[a-z][a-z-]*[a-z])(?: (?P<value>{_VALUE}))?")
# a line of the command that a sentence tells to run: to the end of the sentence, or to a bracket
_SAID = re.compile(rf"(?<=: )(?P<command>pack \S.*?)(?= \(|\. |\.?$)|{_OPTION.pattern}")


@contextlib.contextmanager
def calls_by_command() -> Iterator[None]:
    """Leave errors in the words of the command, which called."""
    token = _is_command.set(True)
    try:
        yield
    finally:
        _is_command.reset(token)


@contextlib.contextmanager
def in_callers_words() -> Iterator[None]:
    """Put what a public function raises into the words of its caller."""
    try:
        yield
    except (OptionsError, PackError, ScanError) as e:
        if not _is_command.get():
            e.args = (in_python(str(e)),)
        raise


def in_python(sentence: str) -> str:
    """Return a sentence with options, and a call of `pack`, as Python writes them; other commands stay.

    Example:
        >>> in_python("out is a store. Replace it with --overwrite, or give another --size.")
        'out is a store. Replace it with overwrite=True, or give another size.'
        >>> in_python("Resume with: pack in out --fit none --resume (or look: pack info out).")
        "Resume with: pack('in', 'out', fit='none', resume=True) (or look: pack info out)."
    """
    return _SAID.sub(
        lambda said: _call(said["command"]) if said["command"] else _keyword(said["name"], said["value"]), sentence
    )


def _keyword(name: str, value: str | None) -> str:
    name = name.replace("-", "_")
    if value is None:
        return f"{name}=True" if name in _FLAGS else name
    return f"{name}={value if value.isdecimal() or re.fullmatch(r'[0-9.]+', value) else repr(value)}"


def _call(command: str) -> str:
    """Return `pack IMAGES OUT --size 224` as a call; another command as it is."""
    words = shlex.split(command)[1:]
    first = next((n for n, word in enumerate(words) if word.startswith("--")), len(words))
    paths, options = words[:first], words[first:]
    if len(paths) < 2 or not options or paths[0] in ("update", "subset", "push", "pull"):
        return command
    keywords = []
    while options:
        name = options.pop(0)[2:]
        has_value = bool(options) and not options[0].startswith("--")
        value = options.pop(0) if has_value else None
        keywords.append(_keyword(name, value) if has_value else f"{name.replace('-', '_')}=True")
    images = repr(paths[0]) if len(paths) == 2 else repr(paths[:-1])
    return f"pack({', '.join([images, repr(paths[-1]), *keywords])})"
