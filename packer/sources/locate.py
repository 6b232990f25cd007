"""Where the bytes of an input are: a local file, a member of an archive, or an object; the one place that decides which."""

from __future__ import annotations

import os

from packer.options import is_url
from packer.sources.base import Readable
from packer.sources.local import Source
from packer.sources.members import Archive, Place
from packer.sources.remote import RemoteSource
from packer.sources.roots import NOWHERE, Roots


def locate(
    root: str,
    path: str,
    archives: tuple[Archive, ...] = (),
    place: list[int] | None = None,
    roots: Roots = NOWHERE,
) -> Readable:
    """Locate an input of a pack: by its path below root, which may be a URL, or by its numbers in `Inputs.places`."""
    if is_url(root):
        return RemoteSource(root, path)
    if place is None:
        return Source(os.path.join(root, path), roots=roots)
    where = Place(*place)
    archive = archives[where.archive]
    return Source(os.path.join(root, archive.path), where, archive, roots)
