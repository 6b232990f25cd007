"""Where the bytes of an input are: a local file, a member of an archive, or an object. Only this module decides which."""

from __future__ import annotations

import functools
import os

from packer.sources.base import Readable
from packer.sources.local import LocalSource
from packer.sources.members import Archive, Member
from packer.sources.roots import NOWHERE, Roots
from reader.format.urls import is_url

# Asked for each input of a pack, with one root.
_is_url = functools.lru_cache(8)(is_url)


def locate(
    root: str, path: str, archives: tuple[Archive, ...] = (), member: list[int] | None = None, roots: Roots = NOWHERE
) -> Readable:
    """Locate an input of a pack: by its path below root, which may be a URL, or by its numbers in `Inputs.members`."""
    if _is_url(root):
        from packer.sources.remote import RemoteSource

        return RemoteSource(root, path)
    if member is None:
        return LocalSource(os.path.join(root, path), roots=roots)
    where = Member(*member)
    archive = archives[where.archive]
    return LocalSource(os.path.join(root, archive.path), where, archive, roots)
