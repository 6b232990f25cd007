"""What is at a URL of stores: a store, an unfinished push or pack, both, nothing, or something else.

A first push has the plain names of a store. One that replaces another store is below generations/<digest>/, and manifest.json
names that folder: one small file, by which the URL changes from the old store to the new one. A store that is packed straight to
a URL has such a folder always, and its pixels are objects of their own. Writes nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from packer.errors import PackError
from packer.option_names import RESUME
from packer.store.out_folder import is_dropped
from packer.store.remote.objects import LocalObjects, RemoteObjects
from packer.store.state import is_manifest
from reader.format.at_url import Pointer, read_pointer
from reader.format.errors import StoreError
from reader.format.head import GENERATIONS
from reader.format.manifest import MANIFEST, REJECTED, SAMPLES
from reader.format.shown import redacted
from reader.format.splits import FOLDER
from reader.format.tensors import LEVELS_FOLDER, TEXTS_FILE
from reader.tuning import tuning

# What a push in progress has sent. Beside the manifest, gone with the last that the push leaves behind.
RECORD = ".pushing.json"

# A name and a digest for each of up to some thousand extras.
_MOST_RECORD_BYTES = 16 << 20

_FOLDER = "_tensordict"
_SMALL = ("meta.json", SAMPLES, REJECTED, TEXTS_FILE)
# the files of a store, and of a copy to a disk that was killed
_OWN = re.compile(
    rf"(?:{GENERATIONS}/[0-9a-f]{{16}}/)?(?:{LEVELS_FOLDER}/[24]/)?(?:\.?meta\.json|\.?{SAMPLES}|\.?{REJECTED}|\.?{re.escape(TEXTS_FILE)}|\.?{MANIFEST}"
    rf"|{_FOLDER}/(?:extras/)?\.?(?:meta\.json|[A-Za-z0-9_-]+\.memmap)"
    rf"|{_FOLDER}/pixels\.memmap/\.?[0-9]{{16,}}|{re.escape(FOLDER)}/(?:journal|masks)/\.?[0-9]{{16,}})(?:\.tmp)?"
)

ObjectsAtUrl = LocalObjects | RemoteObjects


@dataclass(frozen=True)
class PushRecord:
    """What the record of a push or pack says: of which store, into which folder ("": plain names), what was sent: name -> digest.

    A pack does not know its store yet: "", as in a record that makes no sense, which has no folder either. run: the process that
    packs, which a resume replaces.
    """

    store: str
    folder: str
    files: Mapping[str, str] = field(default_factory=dict)
    run: str = ""

    @property
    def is_pack(self) -> bool:
        """Whether a pack is in progress, no push."""
        return not self.store and bool(self.folder)

    def to_bytes(self) -> bytes:
        """Return what is put at the URL."""
        known = {"store": self.store, "folder": self.folder, "files": dict(self.files)}
        return json.dumps(known | ({"run": self.run} if self.run else {})).encode()


@dataclass(frozen=True)
class Pushed:
    """What is at a URL. content: the manifest.json there, b"" where there is none.

    store, folder: digest and folder of the store ("" where there is none, or its manifest is damaged). foreign: what is there
    that is neither a store nor of a push.
    """

    content: bytes = b""
    store: str = ""
    folder: str = ""
    has_block_objects: bool = False
    record: PushRecord | None = None
    foreign: str = ""

    @property
    def has_store(self) -> bool:
        """Whether there is a store, damaged perhaps."""
        return bool(self.content)


def inspect_url(objects: ObjectsAtUrl, url: str) -> Pushed:
    """Find out what is at a URL, before anything is written there.

    Raises:
        RemoteError: it is a file.
    """
    names = objects.top()
    record = read_record(objects) if RECORD in names else None
    if MANIFEST not in names:
        own = {RECORD, f".{RECORD}.tmp", f".{MANIFEST}.tmp"}
        others = (name for name in names if name not in own and not is_dropped(name))
        foreign = next(others, "") if record is None else ""
        return Pushed(record=record, foreign=foreign)
    content = _read_manifest(objects, url, MANIFEST)
    if not is_manifest(content):
        return Pushed(record=record, foreign=MANIFEST)
    found = Pointer("", "", has_block_objects=False)
    with contextlib.suppress(StoreError):
        found = read_pointer(content, f"{url}/{MANIFEST}")
    return Pushed(content, *found, record)


def read_record(objects: ObjectsAtUrl) -> PushRecord | None:
    """Return the record of the push in progress; None where there is none. Of one that makes no sense, an empty one."""
    try:
        if objects.size(RECORD) > _MOST_RECORD_BYTES:
            return PushRecord("", "")
        content = objects.read(RECORD)
    except FileNotFoundError:
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        found = json.loads(content)
        return PushRecord(str(found["store"]), str(found["folder"]), dict(found["files"]), str(found.get("run", "")))
    return PushRecord("", "")


def name_in(folder: str, name: str) -> str:
    """Return the name of a file in a folder of the URL ("": plain names)."""
    return f"{folder}/{name}" if folder else name


def leftovers(objects: ObjectsAtUrl, folder: str) -> list[str]:
    """List the files of other stores, and of pushes to them, than that in a folder of the URL ("": plain names)."""
    found = objects.below(GENERATIONS)
    if folder:
        top = [name for name in objects.top() if name.removeprefix(".").removesuffix(".tmp") in _SMALL]
        below = [*objects.below(_FOLDER), *objects.below(LEVELS_FOLDER)]
        found = [*top, *below, *(name for name in found if not name.startswith(f"{folder}/"))]
    return [name for name in found if _OWN.fullmatch(name)]


def read_store(objects: ObjectsAtUrl, url: str) -> tuple[bytes, Pointer]:
    """Return the manifest of the store at a URL, as the store that was pushed has it, and where it is.

    Raises:
        PackError: there is no store, or its manifest is damaged.
        StoreError: the manifest was changed, or needs a newer reader.
    """
    try:
        content = _read_manifest(objects, url, MANIFEST)
    except FileNotFoundError as e:
        if (record := read_record(objects)) is None:
            # of a bucket that is not there storage says that
            what = f"there is no {MANIFEST}" if MANIFEST in str(e) else redacted(str(e)).rstrip(".")
            raise PackError(
                f"{url} holds no store: {what}. Expected one that was sent by: pack push OUT {url}"
            ) from None
        if record.is_pack:
            raise PackError(
                f"{url} holds no store yet: a pack to it was interrupted or is running. Resume it by the same pack command and"
                f" {RESUME}."
            ) from None
        raise PackError(
            f"{url} holds no store yet: a push to it was interrupted or is in progress. End it by: pack push OUT {url}"
        ) from None
    if not is_manifest(content):
        raise PackError(f"{url} holds no store: its {MANIFEST} is another program's. Look at the URL.")
    found = read_pointer(content, f"{url}/{MANIFEST}")
    if found.folder:
        name = name_in(found.folder, MANIFEST)
        content = _read_manifest(objects, url, name)
        if read_pointer(content, f"{url}/{name}") != (found.digest, "", False):
            raise PackError(f"{url}/{name} is not what {url}/{MANIFEST} names. Push the store again.")
    return content, found


def _read_manifest(objects: ObjectsAtUrl, url: str, name: str) -> bytes:
    if objects.size(name) > tuning().fetched_manifest_bytes:
        raise PackError(f"{url}/{name} is larger than a manifest can be. Look at the URL.")
    return objects.read(name)
