"""Pictures and traces that a command draws for a person: which files they may replace, and how they are written complete.

One of ours, known by a word in it, is replaced, so that a command can be given again; no other file is, whatever its name: it may
be an input. Nothing is written into the folder of a store. Knows nothing of what is drawn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from packer.errors import OptionsError
from packer.store.files import write_atomically
from packer.store.state import enclosing_store
from reader.format.filesystem import error_path

# PNG's text chunk with the keyword Software (PNG specification, 11.3.3.2) and, in a trace, a first key of ours.
SOFTWARE = {"Software": "pixpack"}
_PNG, _TEXT = b"\x89PNG\r\n\x1a\n", b"tEXtSoftware\x00pixpack"
_TRACE = b'{"software": "pixpack", '
# Pillow writes texts before the pixels.
_HEAD_BYTES = 4096
# Names of formats that a program would take a file for.
_FORMATS = (".png", ".svg", ".json", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".pdf", ".html", ".txt")


def check_picture_path(option: str, path: str | os.PathLike[str], formats: tuple[str, ...] = ()) -> None:
    """Refuse a path for a picture or a trace where no file can be made, or where another's would be lost.

    formats: the suffixes of what can be written there, such as ".png"; the suffix of another format is refused. (): any.

    Raises:
        OptionsError: it is a folder, is in none or in a store, is a file that was not drawn by pixpack, or has such a suffix.
    """
    if _is_device(path):
        return
    named, real = f"{option} {os.fspath(path)}".strip(), Path(os.path.realpath(path))
    if real.is_dir() or not real.parent.is_dir():
        raise OptionsError(f"{named} cannot be written: expected a file name in a folder that exists.")
    if (store := enclosing_store(real)) is not None:
        raise OptionsError(f"{named} is in the store {store}, whose files are its own. Choose a path outside it.")
    if _is_another(real):
        raise OptionsError(
            f"{named} is there, and was not drawn by pixpack: it is not overwritten. Choose another name, or remove it."
        )
    if formats and (suffix := Path(path).suffix.lower()) in _FORMATS and suffix not in formats:
        written = " or ".join(each[1:].upper() for each in formats)
        raise OptionsError(
            f"{named} would be {written}, not {suffix[1:].upper()}. Choose a name that ends in {formats[0]}."
        )


def save(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a picture or a trace, complete or not at all; what is not a regular file, such as /dev/stdout, is written to.

    Raises:
        OptionsError: as `check_picture_path`.
    """
    check_picture_path("", path)
    if _is_device(path):
        with error_path(path), open(path, "wb") as file:
            file.write(content)
        return
    write_atomically(Path(os.path.realpath(path)), content)


def marked(trace: Mapping[str, object]) -> bytes:
    """Return a Chrome trace as JSON with a first key by which it is known as one of ours."""
    return json.dumps({"software": "pixpack", **trace}).encode()


def _is_device(path: str | os.PathLike[str]) -> bool:
    """Whether it is there and neither a file nor a folder, such as /dev/stdout; its real path may be no path at all."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _is_another(path: Path) -> bool:
    """Whether a file would be lost that no command of ours has drawn; an empty one, as mktemp makes, is nobody's."""
    if not path.exists():
        return False
    with error_path(path), open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    is_ours = (head.startswith(_PNG) and _TEXT in head) or head.startswith(_TRACE)
    return bool(head) and not is_ours
