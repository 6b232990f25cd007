"""A URL as a destination: a folder on the local disk stands for it, and what is at the URL is brought there as far as needed.

The pipeline packs into that folder as into any; `packer.store.remote.upload` sends what is committed there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from packer.errors import DiskFullError, OptionsError, PackError, ScanError, SourceError
from packer.inputs.splits import split_folders
from packer.option_names import OVERWRITE, RESUME, Option
from packer.options import OutputOptions, PackOptions
from packer.pixels.layout import RowLayout
from packer.report import PackReport
from packer.sources.object_storage import cause, reason
from packer.store import journal as journals
from packer.store.destination import Folder
from packer.store.out_folder import check_destination
from packer.store.remote.objects import LocalObjects, WebObjects, open_objects
from packer.store.remote.upload import Upload
from packer.store.state import State, command_to_resume
from reader import system
from reader.format.errors import StoreError
from reader.format.filesystem import error_path
from reader.format.manifest import MANIFEST
from reader.format.shown import redacted, shown
from reader.format.urls import file_path, is_url
from reader.remote.leftovers import Scratch

_FOLDER = "out"
_PROBE_BYTES = 8192


class Objects(Folder):
    """A URL that is one store or holds those of splits. Use it as a context: the folder that stands for it is gone behind that.

    Args:
        sources: IMAGES, as text.

    Raises:
        OptionsError: the URL holds something else, or an option does not go with a URL.
        PackError: it cannot be looked at, or a store or an unfinished pack is in the way.
    """

    is_url = True

    def __init__(self, url: str, sources: list[str], options: PackOptions) -> None:
        self._url, self._given, self._options = redacted(url).rstrip("/"), url.rstrip("/"), options
        self._uploads: dict[Path, Upload] = {}
        self._splits: list[str] = []
        _check_options(self._url, options)
        _check_outside(self._given, sources)
        self._scratch = Scratch("upload")
        # stands for the URL
        folder = Path(os.path.realpath(self._scratch.path)) / _FOLDER
        super().__init__(folder, folder)
        try:
            _check_punch(folder.parent)
            with self._explained_errors():
                self._look()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def of(self, store: Path) -> Upload:
        """Return what sends the store that is made in this folder."""
        if store not in self._uploads:
            below = store.relative_to(self.out).as_posix()
            below_url = "" if below == "." else f"/{below}"
            with self._explained_errors():
                self._uploads[store] = Upload(
                    f"{self._url}{below_url}",
                    open_objects(f"{self._given}{below_url}"),
                    store,
                    self.check_same,
                    self._options,
                )
        return self._uploads[store]

    # -- as a destination: what is in the way was looked at, and each store is committed at the URL

    def recover(self) -> None:
        """Do nothing: no step that publishes a store is two."""

    def is_finished(self, split: str) -> bool:
        """Whether the URL holds the finished store of a split, and no pack to it is in progress."""
        store = self.folder(split)
        return (store / MANIFEST).is_file() and journals.header_of(store) is None

    def check(self, options: OutputOptions, splits: Sequence[str] = ("",)) -> None:
        """Do nothing: it was looked at."""

    def log(self, store: Path, layout: RowLayout | None) -> journals.CommitLog:
        """Return what commits blocks of a store at the URL; of a level, which is sent whole, in its folder."""
        return self._uploads[store].of_rows(layout) if store in self._uploads else super().log(store, layout)

    def publish(self) -> None:
        """Let the folder have manifests too, for what compares stores that were just packed: they hold no pixels."""
        for upload in self._uploads.values():
            upload.reveal()

    def withdraw(self, store: Path | None = None) -> None:
        """Leave nothing of a store here, nor at the URL."""
        super().withdraw(store)
        if store in self._uploads:
            self._uploads[store].withdraw()

    def _prepare(self, options: OutputOptions, splits: Sequence[str], kept: Sequence[str]) -> None:
        """Say at the URL that these will be packed; a finished one is replaced. What a resume needs was brought here."""
        for upload in (self.of(self.folder(split)) for split in splits if split not in kept):
            if options.overwrite and not options.resume:
                upload.forget()
            with self._explained_errors():
                upload.announce()

    @property
    def state(self) -> State:
        """Say that nothing is in the way."""
        return State([], [])

    def _splits_there(self, refusal: str) -> list[str]:
        if refusal and self.of(self.out).found.has_store:
            raise PackError(f"{self._url} holds a store; {refusal}. Choose another OUT.")
        return self._splits

    def renamed(self, report: PackReport) -> PackReport:
        """Return a report of the URL, not of the folder that stands for it."""
        splits = {split: self.renamed(one) for split, one in report.splits.items()}
        notes = [self._named(note) for note in report.notes]
        return dataclasses.replace(report, out=self._named(report.out), notes=notes, splits=splits)

    def __enter__(self) -> Objects:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for upload in self._uploads.values():
            upload.end()
        self._scratch.close()
        # a full disk is the local one
        if isinstance(error, PackError | OptionsError | ScanError | StoreError) and not isinstance(
            error, DiskFullError
        ):
            text = self._named(str(error))
            if text != str(error):
                raise type(error)(text) from None

    # -- what is at the URL

    def _look(self) -> None:
        """Find what is at the URL; refuse what is in the way, and bring here what a resume needs."""
        top = self.of(self.out)
        if top.found.has_store or top.found.record is not None:
            self._look_at(top, self.out)
            return
        names = open_objects(self._given).top()
        splits = [split for split in split_folders(names) if split]
        if top.found.foreign and not splits:
            raise OptionsError(
                f"{self._url} is not empty (it holds {shown(top.found.foreign)}) and holds no store. Choose another URL, or an"
                " empty folder."
            )
        self._splits = [split for split in splits if self.of(self.out / split).found.has_store]
        for split in splits:
            self._look_at(self.of(self.out / split), self.out / split)

    def _look_at(self, upload: Upload, store: Path) -> None:
        found, options = upload.found, self._options
        if upload.is_started:
            if options.resume:
                upload.fetch_journal()
            elif not options.overwrite:
                upload.fetch_journal(is_all=False)
                raise PackError(
                    f"{upload.url} is incomplete: its pack was interrupted. Resume with: {_command(store, self._named)} (or start"
                    f" over with {OVERWRITE})."
                )
        elif found.record is not None and not found.record.is_pack:
            if not options.overwrite:
                raise PackError(
                    f"{upload.url} holds an unfinished push. End it by: pack push OUT {upload.url} (or start over with"
                    f" {OVERWRITE})."
                )
        elif found.has_store:
            if options.resume:
                upload.fetch_store()
            elif not options.overwrite:
                raise PackError(
                    f"{upload.url} already holds a store. Replace it with {OVERWRITE}, or choose another OUT."
                )

    @contextlib.contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Turn what storage raises into one sentence."""
        try:
            yield
        except (PackError, OptionsError, ScanError, StoreError, SourceError):
            raise
        except Exception as e:
            raise PackError(f"{self._url} cannot be read: {reason(e)}. Look at the URL and the network.") from cause(e)

    def _named(self, text: str) -> str:
        return text.replace(str(self.out), self._url)


def _check_options(url: str, options: PackOptions) -> None:
    """Refuse what needs a folder that all processes of a pack see."""
    for name, is_given, instead in (
        (Option("part"), options.part is not None, "Pack the parts into a folder"),
        (Option("engine", "ray"), options.engine == "ray", "Pack into a folder that all nodes see"),
    ):
        if is_given:
            raise OptionsError(f"{name} does not go with the URL {url} as OUT. {instead}, then: pack push FOLDER {url}")


def _check_outside(url: str, sources: list[str]) -> None:
    """Refuse a URL that is IMAGES or is in it, or in a store on this disk; raises OptionsError."""
    objects = open_objects(url)
    if isinstance(objects, WebObjects):
        objects.put("", b"")  # raises
    if isinstance(objects, LocalObjects):
        check_destination([_local(source) for source in sources], objects.root)
    for source in (source.rstrip("/") for source in sources if is_url(source)):
        if url == source or url.startswith(f"{source}/"):
            raise OptionsError(f"OUT {redacted(url)} is IMAGES itself, or is inside it. Choose a folder outside it.")


def _local(source: str) -> str:
    """Return the path that a file: URL names; what else is given as it is."""
    return file_path(source) if source.lower().startswith("file:") else source


def _check_punch(folder: Path) -> None:
    """Refuse a folder for temporary files where the blocks that were sent could not be freed; raises PackError."""
    path = folder / "probe"
    try:
        with error_path(path), open(path, "w+b") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            system.punch_hole(file.fileno(), 0, _PROBE_BYTES // 2)
        path.unlink()
    except OSError as e:
        raise PackError(
            f"{folder} cannot hold the blocks on their way to a URL: its file system punches no holes ({e.strerror}). Set TMPDIR"
            " to a folder on another disk, or pack into a folder, then: pack push"
        ) from None


def _command(store: Path, named: Callable[[str], str]) -> str:
    """Return the command that resumes the pack to a URL."""
    header = journals.header_of(store)
    return f"the same command and {RESUME}" if header is None else named(command_to_resume(store, header))
