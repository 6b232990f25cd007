"""What is at a URL of stores: a store, an unfinished push or pack, both, nothing, or something else.

A first push has the plain names of a store. One that replaces another store is below generations/<digest>/, and manifest.json
names that folder: one small file, by which the URL changes from the old store to the new one. A store that is packed straight to
a URL has such a folder always, and its pixels are objects of their own.

Both ways there, a push and a pack, are a `Publication`: first a record says what is under way, then come objects, and last the
manifest.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from packer.errors import PackError
from packer.option_names import RESUME
from packer.store.remote.objects import LocalObjects, RemoteObjects
from packer.store.state import is_dropped, is_manifest
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
_T = TypeVar("_T")


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

    def is_same(self, other: PushRecord | None) -> bool:
        """Whether another record is of the same store, or of the same run of a pack."""
        return other is not None and (self.store, self.run) == (other.store, other.run)

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
    found = [*objects.below(GENERATIONS)]
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


class Publication:
    """A store that is put at a URL, in the folder that its record names.

    Attributes:
        found: what was at the URL before.
        record: of this store, or of this pack; who puts it says which.
    """

    record: PushRecord

    def __init__(self, objects: ObjectsAtUrl, url: str) -> None:
        self.objects, self.url, self.found = objects, url, inspect_url(objects, url)
        # what is removed once the manifest is there: what others had left
        self._left: list[str] = []

    def announce(self) -> None:
        """Say at the URL that this is under way; of two that begin at a free URL one gets there.

        Raises:
            PackError: something else has started, or ended, at the URL since it was looked at.
        """
        is_free = self.found.record is None and not self.found.has_store
        if is_free:
            self._create(RECORD, self.record.to_bytes())
        now = self._look()
        # listing inputs may have taken hours; one that began and ended meanwhile has these names now
        if now.has_store if is_free else now != self.found and not self.record.is_same(now.record):
            if is_free:
                self.request(lambda: self.objects.remove(RECORD))
            raise self.taken_over()
        if not is_free:
            self.put_record()
        self.list_leftovers()

    def list_leftovers(self) -> None:
        """Take what is at the URL of other stores, and of unfinished ones, for what this one replaces."""
        self._left = self.request(lambda: leftovers(self.objects, self.record.folder))

    def put_record(self) -> None:
        """Say at the URL how far this came."""
        self.request(lambda: self.objects.put(RECORD, self.record.to_bytes()))

    def check_record(self) -> None:
        """See that nothing else has started at the URL, or even ended; a push of the same store does no harm.

        Raises:
            PackError: something has.
        """
        found = self.request(lambda: read_record(self.objects))
        if not self.record.is_same(found or PushRecord(self._look().store, "")):
            raise self.taken_over()

    def put(self, name: str, content: bytes) -> None:
        """Put an object of the store."""
        self.request(lambda: self.objects.put(name_in(self.record.folder, name), content))

    def put_manifest(self, content: bytes) -> None:
        """Put the manifest, by which the URL holds the store: all that it names is there.

        Raises:
            PackError: something else has started at the URL, or was faster.
        """
        self.check_record()
        if not self.record.folder:
            self._create(MANIFEST, content)
            return
        if self._look().content not in (b"", self.found.content):
            raise self.taken_over()
        self.request(lambda: self.objects.put(MANIFEST, content))

    def clean(self, own: Sequence[str] = ()) -> None:
        """Remove all but the store; last the record, by which the same command knows that something may be left.

        Where that is another's by now, so may be what looks left: it removes all that is not its own when it is done.
        """
        if self.record.is_same(self.request(lambda: read_record(self.objects))):
            self.remove([*own, *self._left, f".{MANIFEST}.tmp", RECORD])

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects, the last one when all others are gone."""
        for name in names:
            self.objects.remove(name)

    def request(self, request: Callable[[], _T]) -> _T:
        """Make a request."""
        return request()

    def taken_over(self) -> PackError:
        """Say that another has come in between."""
        return PackError(
            f"another pack or push to {self.url} came in between. Look at what is there (pack info {self.url}), and give the"
            " same command again."
        )

    def _look(self) -> Pushed:
        return self.request(lambda: inspect_url(self.objects, self.url))

    def _create(self, name: str, content: bytes) -> None:
        try:
            self.request(lambda: self.objects.create(name, content))
        except FileExistsError:
            raise self.taken_over() from None
