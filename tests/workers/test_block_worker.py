"""Reading sources while they change: whatever is done to a file at whatever call, a row is exactly one version of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import photo
from PIL import Image

from packer.errors import DecodeError
from packer.options import RowOptions
from packer.pixels.decoder_choice import row_decoder
from packer.pixels.geometry import Geometry
from packer.sources.local import LocalSource
from packer.store.tasks import Task
from packer.workers.block_worker import BlockWorker, PackJob

CALLS = ("stat", "open", "fstat", "lseek", "read", "close")
# what a call gives at most, so that a photograph takes several
PIECE = 2000

_ROWS = RowOptions()


def deleted(path: Path, other: bytes) -> None:
    path.unlink(missing_ok=True)


def emptied(path: Path, other: bytes) -> None:
    os.truncate(path, 0)


def truncated(path: Path, other: bytes) -> None:
    os.truncate(path, path.stat().st_size // 2)


def appended(path: Path, other: bytes) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


def renamed_over(path: Path, other: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(other)
    beside.replace(path)


def rewritten(path: Path, other: bytes) -> None:
    path.write_bytes(other)


def replaced_by_a_folder(path: Path, other: bytes) -> None:
    path.unlink()
    path.mkdir()


CHANGES = [deleted, emptied, truncated, appended, renamed_over, rewritten, replaced_by_a_folder]


class Watched:
    """Counts the calls by which a source is read; runs `change` before the n-th, or before every one from the n-th on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at, self.ever_after = 0, 0, False
        self.change: Callable[[], None] = lambda: None
        self._is_changing = True
        for name in CALLS:
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def start(self, at: int, change: Callable[[], None], *, ever_after: bool = False) -> None:
        self.count, self.at, self.change, self.ever_after, self._is_changing = 0, at, change, ever_after, False

    def stop(self) -> None:
        self._is_changing = True

    def _watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not self._is_changing:
                self.count += 1
                if self.count == self.at or (self.ever_after and self.count > self.at):
                    self._is_changing = True
                    self.change()
                    self._is_changing = False
                if name == "read":
                    return original(arguments[0], min(arguments[1], PIECE))
            return original(*arguments, **options)

        return call


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.mark.parametrize("change", CHANGES)
def test_a_row_is_one_version_of_its_file_whenever_that_changes(
    tmp_path: Path,
    watched: Watched,
    change: Callable[[Path, bytes], None],
) -> None:
    # PPM: no checksum, no entropy code; half of one file and half of another decode as well as either
    path = tmp_path / "a.ppm"
    for seed, size in ((1, (60, 50)), (2, (61, 53))):
        photo(*size, seed).save(tmp_path / f"{seed}.ppm")
    first, other = (tmp_path / "1.ppm").read_bytes(), (tmp_path / "2.ppm").read_bytes()
    geometry = Geometry(32, 32)
    worker = BlockWorker(PackJob(str(tmp_path), "", geometry, _ROWS))
    decoded = []
    for at in range(1, 100):
        _restore(path, first)
        watched.start(at, lambda: change(path, other))
        result = worker.decode(Task(0, 0, [path.name], [0]))
        watched.stop()
        decoded += _checked(worker, result, {first, path.read_bytes() if path.is_file() else b""})
        if watched.count < at:
            break
    else:
        raise AssertionError("reading does not end")
    assert at > 2 * len(first) // PIECE
    assert decoded


def test_a_file_that_never_stands_still_is_rejected(tmp_path: Path, watched: Watched) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"x" * 3 * PIECE)
    number = iter(range(10**6))
    # the size stays
    watched.start(3, lambda: path.write_bytes(bytes([next(number) % 256]) * 3 * PIECE), ever_after=True)
    with pytest.raises(DecodeError, match="it was changed while it was read; pack it when its writer is done"):
        LocalSource(str(path)).read()
    watched.stop()


def test_a_file_that_stands_still_is_read_once(tmp_path: Path, watched: Watched) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"x" * PIECE)
    watched.start(0, lambda: None)
    assert LocalSource(str(path)).read()[0] == b"x" * PIECE
    watched.stop()
    assert watched.count == len(["open", "fstat", "lseek", "read", "fstat", "close"])


def _restore(path: Path, content: bytes) -> None:
    """Put back the first version, with the times of an old file."""
    if path.is_dir():
        shutil.rmtree(path)
    path.write_bytes(content)
    os.utime(path, (1e9, 1e9))


def _rows(worker: BlockWorker, result: Any) -> bytes:
    return bytes(worker._held[result.block].memory[: result.size_bytes])


def _checked(worker: BlockWorker, result: Any, versions: set[bytes]) -> list[bytes]:
    """Check that a row is what one of the versions decodes to; returns that version, nothing for a reject."""
    pixels = _rows(worker, result)
    if not result.rows:
        assert result.rejects[0].reason
        assert "made the decoder fail" not in result.rejects[0].reason
        return []
    digest = json.loads(result.samples[0])["sha256"]
    (version,) = [v for v in versions if hashlib.sha256(v).hexdigest() == digest]
    assert pixels == row_decoder(worker._job.geometry, _ROWS).row(version).pixels
    return [version]


@pytest.mark.parametrize("fit", ["pad", "none"])
def test_rows_are_written_at_a_byte_and_their_masks_at_one_byte_a_pixel(tmp_path: Path, fit: str) -> None:
    for n in range(2):
        photo(16, 16, n).save(tmp_path / f"{n}.png")
        photo(16, 16, n).convert("L").save(tmp_path / f"{n}-mask.png")
    for name in ("pixels", "masks"):
        (tmp_path / name).touch()
    files = {"pixels_path": str(tmp_path / "pixels"), "masks_path": str(tmp_path / "masks")}
    geometry = Geometry(0, 0, "none") if fit == "none" else Geometry(16, 16, fit)
    job = PackJob(str(tmp_path), **files, geometry=geometry, rows=_ROWS, has_masks=True, masks_root=str(tmp_path))
    worker = BlockWorker(job)
    task = Task(0, 0, ["0.png", "1.png"], [0, 0], masks=["0-mask.png", "1-mask.png"])
    result, offset = worker.decode(task), 5 * 16 * 16 * 3
    rows = _rows(worker, result)
    worker.write(0, offset)
    assert (tmp_path / "pixels").read_bytes() == bytes(offset) + rows
    assert result.size_bytes == len(rows) == 2 * 16 * 16 * (4 if fit == "none" else 3)
    masks = b"".join(Image.open(tmp_path / f"{n}-mask.png").tobytes() for n in range(2))
    written = (tmp_path / "masks").read_bytes()
    assert written == (b"" if fit == "none" else bytes(5 * 16 * 16) + masks)
