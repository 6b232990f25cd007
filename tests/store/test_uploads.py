"""A pack straight to a URL: the store that a pack into a folder makes, a few blocks here, and resumed from what is there."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import Tune, make_tree, store_bytes, tuned
from kinds import spread
from PIL import Image
from test_remote import fsspec

from packer import OptionsError, PackError, pack, pull, push
from packer.cli.app import run
from packer.packing.committer import Committer
from packer.report import Progress
from packer.store import files
from packer.store.remote import objects, upload
from packer.store.remote.at_url import RECORD, PushRecord
from packer.store.remote.objects import LocalObjects, RemoteObjects
from reader import MemmapDataset, system
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST, PIXELS

URL = "memory://bucket/out"


class Stopped(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch, tune: Tune) -> Iterator[None]:
    """Objects in this process's memory; packs with forked workers and blocks of 2 inputs."""
    monkeypatch.setenv("PIXPACK_START_METHOD", "fork")
    tune(least_block_inputs=2)
    _clear()
    yield
    _clear()


def _clear() -> None:
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("images"), classes=2, each=9)


@pytest.fixture(scope="module")
def local(images: Path) -> Path:
    with tuned(least_block_inputs=2):
        pack(images, images.parent / "local", size=16, workers=1)
    return images.parent / "local"


def _there() -> list[str]:
    return sorted(name.removeprefix("/bucket/out/") for name in fsspec.filesystem("memory").store)


def _pulled(tmp_path: Path, url: str = URL) -> dict[str, bytes]:
    shutil.rmtree(tmp_path / "pulled", ignore_errors=True)
    pull(url, tmp_path / "pulled")
    return store_bytes(tmp_path / "pulled")


def _stopping(monkeypatch: pytest.MonkeyPatch, left: int) -> Callable[[], int]:
    """End the process before it changes something at the URL for the n-th time; returns how many changes there were."""
    count = 0

    def dying(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(self: RemoteObjects, *arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count > left:
                raise Stopped
            return change(self, *arguments)

        return changed

    for name in ("put", "create", "send", "remove"):
        monkeypatch.setattr(RemoteObjects, name, dying(getattr(RemoteObjects, name)))
    return lambda: count


def test_what_is_pulled_is_the_store_of_a_local_pack(images: Path, local: Path, tmp_path: Path) -> None:
    report = pack(images, URL, size=16, workers=1)
    assert (report.out, report.rows) == (URL, 18)
    assert _pulled(tmp_path) == store_bytes(local)
    names = [name.split("/", 2)[-1] for name in _there() if name.startswith("generations/")]
    assert [name for name in names if name.startswith(PIXELS)] == [f"{PIXELS}/{n * 1536:016d}" for n in range(9)]
    assert [name for name in _there() if not name.startswith("generations/")] == [MANIFEST]


@pytest.mark.parametrize("options", [{}, {"max_size": 24}])
def test_rows_with_sizes_of_their_own_and_large_blocks_are_cut_into_objects(
    images: Path, tmp_path: Path, tune: Tune, options: dict[str, int]
) -> None:
    tune(object_bytes=1000)
    pack(images, URL, fit="none", workers=1, **options)
    pack(images, tmp_path / "out", fit="none", workers=1, **options)
    assert _pulled(tmp_path) == store_bytes(tmp_path / "out")


def test_splits_go_to_a_url_each(images: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(images, tmp_path / "splits" / split)
    report = pack(tmp_path / "splits", URL, size=16, workers=1)
    assert report.splits["val"].out == f"{URL}/val"
    assert pack(tmp_path / "splits", URL, size=16, workers=1, resume=True).resumed_from == 36
    pack(tmp_path / "splits", tmp_path / "out", size=16, workers=1)
    assert _pulled(tmp_path) == store_bytes(tmp_path / "out")
    with pytest.raises(
        PackError,
        match=r"memory://bucket/out holds the stores of the splits train, val, and .* holds no splits \(.*\)\. Choose another",
    ):
        pack(images, URL, size=16, workers=1, overwrite=True)


def test_the_local_disk_holds_a_few_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tree, most = make_tree(tmp_path / "images", classes=2, each=60, size=(8, 8)), 0

    def look(progress: Progress) -> None:
        nonlocal most
        found = list(tmp_path.glob(f"pixpack-*/out/{PIXELS}"))
        most = max(most, *(path.stat().st_blocks * 512 for path in found), 0)

    report = pack(tree, URL, size=64, workers=1, progress=look)
    # 60 blocks of 24 KiB: 4 that a worker may hold, 2 that wait, 2 that are sent
    assert 0 < most <= 10 * 24576 < report.store_bytes / 5
    assert not list(tmp_path.glob("pixpack-*"))


@pytest.mark.parametrize("options", [{"fit": "none", "max_size": 24, "compress": True}])
def test_levels_at_a_url_are_those_of_a_local_pack(images: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    if "compress" in options:
        pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'pixpack[zstd]'")
    chosen: dict[str, Any] = {"levels": 2, "workers": 1} | options
    report = pack(images, URL, **chosen)
    assert (report.out, report.rows) == (URL, 18)
    pack(images, tmp_path / "out", **chosen)
    assert _pulled(tmp_path) == store_bytes(tmp_path / "out")
    assert any(name.endswith(f"levels/2/{PIXELS}") for name in _there())
    # what is there is what is asked for, and what a push of the same would send
    assert pack(images, URL, resume=True, **chosen).resumed_from == 18
    assert push(tmp_path / "out", URL).copied_bytes == 0


@pytest.mark.parametrize("share", spread([0.65, 0.85, 0.1, 0.97, 0.35], every=3))
def test_a_pack_with_levels_that_was_killed_anywhere_is_resumed(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    chosen: dict[str, Any] = {"size": 32, "levels": 3, "workers": 1}
    with monkeypatch.context() as patch:
        count = _stopping(patch, 1000)
        pack(images, URL, **chosen)
    _clear()
    with monkeypatch.context() as patch:
        _stopping(patch, int(share * count()))
        # how many pieces the journal is sent in is a matter of time: the last share may be all of them
        with contextlib.suppress(Stopped):
            pack(images, URL, **chosen)
    pack(images, URL, resume=True, **chosen)
    pack(images, tmp_path / "out", **chosen)
    assert _pulled(tmp_path) == store_bytes(tmp_path / "out")
    assert not [name for name in _there() if "journal" in name or name == RECORD]


@pytest.mark.parametrize("part", range(7))
def test_a_pack_that_was_killed_anywhere_is_resumed(
    images: Path, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    # of an uninterrupted pack: the record, the journal's header, a block and its line each, the files, and what is removed
    with monkeypatch.context() as patch:
        _stopping(patch, 2 + 5 * part)
        with contextlib.suppress(Stopped):
            pack(images, URL, size=16, workers=1)
    left = _there()
    if MANIFEST not in left:
        with pytest.raises(
            PackError, match="memory://bucket/out is incomplete: its pack was interrupted. Resume with: pack[(]"
        ):
            pack(images, URL, size=16, workers=1)
        with pytest.raises(PackError, match=r"holds no store yet: a pack to it was interrupted .* and resume=True"):
            pull(URL, tmp_path / "pulled")
    report = pack(images, URL, size=16, workers=1, resume=True)
    assert report.resumed_from > 0 or part == 0
    assert _pulled(tmp_path) == store_bytes(local)
    assert not [name for name in _there() if "journal" in name or name == RECORD]


def test_a_source_that_changed_meanwhile_is_packed_again_with_all_behind_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = shutil.copytree(images, tmp_path / "tree")
    with monkeypatch.context() as patch:
        _stopping(patch, 16)
        with pytest.raises(Stopped):
            pack(tree, URL, size=16, workers=1)
    changed = sorted(tree.rglob("*.jpg"))[3]
    shutil.copyfile(sorted(tree.rglob("*.jpg"))[12], changed)
    # and once more interrupted, behind the cut
    with monkeypatch.context() as patch:
        _stopping(patch, 12)
        with pytest.raises(Stopped):
            pack(tree, URL, size=16, workers=1, resume=True)
    assert pack(tree, URL, size=16, workers=1, resume=True).changed_count == 0
    pack(tree, tmp_path / "out", size=16, workers=1)
    assert _pulled(tmp_path) == store_bytes(tmp_path / "out")


def test_a_store_that_is_replaced_stays_until_the_new_one_is_there(
    images: Path, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(local, URL)
    with pytest.raises(PackError, match="memory://bucket/out already holds a store. Replace it with overwrite=True"):
        pack(images, URL, size=8, workers=1)
    with monkeypatch.context() as patch:
        _stopping(patch, 20)
        with pytest.raises(Stopped):
            pack(images, URL, size=8, workers=1, overwrite=True)
    assert _pulled(tmp_path) == store_bytes(local)
    assert pack(images, URL, size=8, workers=1, resume=True).resumed_from > 0
    pack(images, tmp_path / "out", size=8, workers=1)
    assert _pulled(tmp_path) == store_bytes(tmp_path / "out")
    assert [name for name in _there() if not name.startswith("generations/")] == [MANIFEST]
    # and by a push, which removes the objects
    push(local, URL, overwrite=True)
    assert _pulled(tmp_path) == store_bytes(local)
    assert not [name for name in _there() if f"{PIXELS}/" in name]


def test_a_store_where_too_much_is_rejected_replaces_none(images: Path, local: Path, tmp_path: Path) -> None:
    push(local, URL)
    tree = shutil.copytree(images, tmp_path / "tree")
    sorted(tree.rglob("*.jpg"))[0].write_bytes(b"no image")
    with pytest.raises(
        PackError, match="1 of 18 inputs were rejected, more than max_rejects='1%': memory://bucket/out still"
    ):
        pack(tree, URL, size=16, workers=1, overwrite=True)
    assert _pulled(tmp_path) == store_bytes(local)
    assert pack(tree, URL, size=16, workers=1, resume=True, max_rejects=1).rows == 17


def test_blocks_without_a_row_are_packed_and_a_pack_without_one_leaves_nothing(
    images: Path, local: Path, tmp_path: Path
) -> None:
    tree = shutil.copytree(images, tmp_path / "tree")
    for path in tree.rglob("*.jpg"):
        path.write_bytes(b"no image")
    with pytest.raises(PackError, match="nothing of .* could be packed: all 18 inputs were rejected"):
        pack(tree, URL, size=16, workers=1)
    assert _there() == []
    pack(images, URL, size=16, workers=1)
    before = _there()
    with pytest.raises(PackError, match="nothing of .* could be packed"):
        pack(tree, URL, size=16, workers=1, overwrite=True)
    assert _there() == before
    assert _pulled(tmp_path) == store_bytes(local)


def test_splits_are_not_packed_beside_a_store_of_all_or_of_other_splits(
    images: Path, local: Path, tmp_path: Path
) -> None:
    push(local, URL)
    for split in ("train", "val"):
        shutil.copytree(images, tmp_path / "splits" / split)
    with pytest.raises(PackError, match="memory://bucket/out holds a store; the splits of .* cannot be packed into it"):
        pack(tmp_path / "splits", URL, size=16, workers=1, overwrite=True)
    pack(tmp_path / "splits", "memory://bucket/splits", size=16, workers=1)
    shutil.rmtree(tmp_path / "splits/val")
    with pytest.raises(PackError, match="memory://bucket/splits/val is the store of a split that .* does not have"):
        pack(tmp_path / "splits", "memory://bucket/splits", size=8, workers=1, overwrite=True)


def test_of_a_finished_one_resume_confirms_and_push_sends_nothing(images: Path, local: Path) -> None:
    pack(images, URL, size=16, workers=1)
    before = _there()
    assert pack(images, URL, size=16, workers=1, resume=True).resumed_from == 18
    with pytest.raises(PackError, match="memory://bucket/out is finished, but with other options"):
        pack(images, URL, size=8, workers=1, resume=True)
    assert push(local, URL).copied_bytes == 0
    assert _there() == before


def test_push_sends_the_pixels_that_a_url_lacks_of_what_was_packed_straight_to_it(
    images: Path, local: Path, tmp_path: Path
) -> None:
    pack(images, URL, size=16, workers=1)
    before, files = _there(), fsspec.filesystem("memory")
    gone, cut = [name for name in before if f"{PIXELS}/" in name][:2]
    sizes = [files.info(f"/bucket/out/{name}")["size"] for name in (gone, cut)]
    files.rm_file(f"/bucket/out/{gone}")
    files.pipe_file(f"/bucket/out/{cut}", files.cat_file(f"/bucket/out/{cut}")[:-1])
    damaged = shutil.copytree(local, tmp_path / "damaged")
    with open(damaged / PIXELS, "r+b") as file:
        file.write(b"other")
    there = _there()
    with pytest.raises(StoreError, match="is not what the manifest says: nothing of it was sent"):
        push(damaged, URL)
    assert _there() == there
    assert push(local, URL).copied_bytes == sum(sizes)
    assert _there() == before
    assert _pulled(tmp_path) == store_bytes(local)
    assert push(local, URL).copied_bytes == 0


@pytest.mark.parametrize("is_cut", [False, True])
def test_pixels_that_go_or_are_cut_at_the_url_are_seen_before_the_manifest(
    images: Path, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, memory = RemoteObjects.put, fsspec.filesystem("memory")

    def damaging(self: RemoteObjects, name: str, content: bytes) -> None:
        if name.endswith("samples.jsonl"):
            path = next(f"/bucket/out/{name}" for name in _there() if f"{PIXELS}/" in name)
            content_there = memory.cat_file(path)
            memory.rm_file(path)
            if is_cut:
                memory.pipe_file(path, content_there[:-1])
        put(self, name, content)

    monkeypatch.setattr(RemoteObjects, "put", damaging)
    with pytest.raises(PackError, match=rf"{URL}/generations/.*{PIXELS}/0+ is gone or was changed: it was sent before"):
        pack(images, URL, size=16, workers=1)
    assert MANIFEST not in _there()


def test_another_that_begins_at_the_url_is_seen_before_the_manifest(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = RemoteObjects.put

    def taken(self: RemoteObjects, name: str, content: bytes) -> None:
        if name.endswith("samples.jsonl"):
            put(self, RECORD, PushRecord("sha256:other", "").to_bytes())
        put(self, name, content)

    monkeypatch.setattr(RemoteObjects, "put", taken)
    with pytest.raises(PackError, match="another pack or push to memory://bucket/out came in between"):
        pack(images, URL, size=16, workers=1)
    assert MANIFEST not in _there()


def test_a_pack_that_was_started_over_keeps_no_line_of_the_first(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers of equal length: rows of the second pack would stand below the options of the first."""
    for options in ({"resample": "lanczos"}, {"resample": "bicubic", "resume": True, "overwrite": True}):
        with monkeypatch.context() as patch:
            _stopping(patch, 14)
            with pytest.raises(Stopped):
                pack(images, URL, size=16, workers=1, **options)
    with pytest.raises(
        PackError, match=r"was started with other options \(resample='bicubic', now resample='lanczos'\)"
    ):
        pack(images, URL, size=16, workers=1, resample="lanczos", resume=True)
    assert pack(images, URL, size=16, workers=1, resample="bicubic", resume=True).resumed_from > 0
    pack(images, tmp_path / "out", size=16, workers=1, resample="bicubic")
    assert _pulled(tmp_path) == store_bytes(tmp_path / "out")


def test_a_process_whose_pack_was_resumed_by_another_changes_nothing_more(images: Path, tmp_path: Path) -> None:
    tree, is_resumed = shutil.copytree(images, tmp_path / "tree"), False

    def resume(progress: Progress) -> None:
        nonlocal is_resumed
        if progress.stage == "pack" and progress.done >= 4 and not is_resumed:
            is_resumed = True
            for changed in sorted(tree.rglob("*.jpg"))[3:9]:  # as on the disk of the other machine
                shutil.copyfile(sorted(tree.rglob("*.jpg"))[12], changed)
            pack(tree, URL, size=16, workers=1, resume=True)

    with pytest.raises(PackError, match="another pack or push to memory://bucket/out came in between"):
        pack(tree, URL, size=16, workers=1, progress=resume)
    pack(tree, tmp_path / "out", size=16, workers=1)
    assert _pulled(tmp_path) == store_bytes(tmp_path / "out")


def test_a_store_that_another_finished_while_inputs_were_listed_is_not_replaced(
    images: Path, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce, others = upload.Upload.announce, [images]

    def announce_late(self: upload.Upload) -> None:
        if others:
            pack(others.pop(), URL, size=16, workers=1)
        announce(self)

    monkeypatch.setattr(upload.Upload, "announce", announce_late)
    with pytest.raises(PackError, match="another pack or push to memory://bucket/out came in between"):
        pack(images, URL, size=8, workers=1)
    assert _pulled(tmp_path) == store_bytes(local)


def test_what_an_interrupted_pack_left_is_not_removed_with_what_another_has_started(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(upload.Upload, "clean", Mock(side_effect=Stopped))
        with pytest.raises(Stopped):
            pack(images, URL, size=16, workers=1)
    files, other = fsspec.filesystem("memory"), f"generations/{'a' * 16}"
    read = upload.read_store

    def begin_another(*args: Any) -> Any:
        files.pipe_file(f"/bucket/out/{RECORD}", PushRecord("", other, run="b").to_bytes())
        files.pipe_file(f"/bucket/out/{other}/{PIXELS}/{0:016d}", b"its first block")
        return read(*args)

    monkeypatch.setattr(upload, "read_store", begin_another)
    assert pack(images, URL, size=16, workers=1, resume=True).resumed_from == 18
    assert {RECORD, f"{other}/{PIXELS}/{0:016d}"} < set(_there())


def test_requests_are_tried_again_and_an_end_is_one_sentence(
    images: Path, local: Path, tmp_path: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(upload_pause_seconds=(0.0, 0.0))
    put, failures = RemoteObjects.put, 0

    def failing(self: RemoteObjects, name: str, content: bytes) -> None:
        nonlocal failures
        failures += 1
        if failures % 3 or is_down:
            raise OSError("SlowDown: reduce your request rate")
        put(self, name, content)

    monkeypatch.setattr(RemoteObjects, "put", failing)
    is_down = True
    with pytest.raises(
        PackError, match=r"bucket/out cannot be written: SlowDown: .* continue with resume=True"
    ) as caught:
        pack(images, URL, size=16, workers=1)
    assert "\n" not in str(caught.value)
    is_down, failures = False, 0
    tune(uploads_at_once=1)
    pack(images, URL, size=16, workers=1, resume=True)
    assert _pulled(tmp_path) == store_bytes(local)


@pytest.mark.parametrize(("compress", "shape"), spread([True, "jpeg:95"], [{"size": 16}, {"fit": "none"}]))
def test_compressed_rows_are_those_of_a_local_pack_however_often_it_is_interrupted(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: Any, shape: dict[str, Any]
) -> None:
    for _ in range(2):
        with monkeypatch.context() as patch:
            _stopping(patch, 12)
            with pytest.raises(Stopped):
                pack(images, URL, workers=1, compress=compress, resume=True, **shape)
    assert pack(images, URL, workers=1, compress=compress, resume=True, **shape).resumed_from > 0
    pack(images, tmp_path / "out", workers=1, compress=compress, **shape)
    assert _pulled(tmp_path) == store_bytes(tmp_path / "out")


@pytest.fixture
def masks(images: Path, tmp_path: Path) -> Path:
    """A mask for each of the images."""
    for number, path in enumerate(sorted(images.rglob("*.jpg"))):
        with Image.open(path) as image:
            drawn = np.random.default_rng(number).integers(0, 5, image.size[::-1], dtype=np.uint8)
        path = (tmp_path / "masks" / path.relative_to(images)).with_suffix(".png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawn).save(path)
    return tmp_path / "masks"


@pytest.mark.parametrize("left", [3, 14, 22, 33, 45])
def test_masks_in_a_file_of_their_own_are_resumed_with_their_rows(
    images: Path, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    with monkeypatch.context() as patch:
        _stopping(patch, left)
        # blocks that are committed together have one piece of masks: 26 to 58 changes, as their times fall
        with pytest.raises(Stopped) if left < 26 else contextlib.suppress(Stopped):
            pack(images, URL, size=16, workers=1, masks=masks)
    report = pack(images, URL, size=16, workers=1, masks=masks, resume=True)
    assert report.resumed_from > 0 or left == 3
    pack(images, tmp_path / "out", size=16, workers=1, masks=masks)
    assert _pulled(tmp_path) == store_bytes(tmp_path / "out")
    assert not [name for name in _there() if ".packing" in name or name == RECORD]


def test_masks_of_sources_that_changed_are_sent_again(
    images: Path, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        _stopping(patch, 22)
        with pytest.raises(Stopped):
            pack(images, URL, size=16, workers=1, masks=masks)
    changed = sorted(masks.rglob("*.png"))
    shutil.copyfile(changed[9], changed[2])
    assert pack(images, URL, size=16, workers=1, masks=masks, resume=True).changed_count == 1
    pack(images, tmp_path / "out", size=16, workers=1, masks=masks)
    assert _pulled(tmp_path) == store_bytes(tmp_path / "out")


def _committing_together(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Have the first blocks of a pack committed at once, so that their masks are one object, and end the process then."""
    held: list[Any] = []

    def put(self: Committer, result: Any) -> None:
        held.append(result)
        if len(held) > count:
            raise Stopped
        if len(held) == count:
            with self._results.mutex:
                self._results.queue.extend(held)
                self._results.not_empty.notify()

    monkeypatch.setattr(Committer, "put", put)


def test_masks_that_were_sent_again_replace_those_before(
    images: Path, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_sources = sorted(masks.rglob("*.png"))
    for number in range(2):
        with monkeypatch.context() as patch:
            _committing_together(patch, 2)
            with pytest.raises(Stopped):
                pack(images, URL, size=16, workers=1, masks=masks, resume=True)
        if number == 0:
            # in the second block, which is then sent again
            shutil.copyfile(of_sources[9], of_sources[2])
    are_later_written = threading.Event()

    def write_at(descriptor: int, data: memoryview, begin: int) -> None:
        if begin:
            files.write_at(descriptor, data, begin)
            are_later_written.set()
        else:
            are_later_written.wait(10)
            files.write_at(descriptor, data, begin)

    monkeypatch.setattr(upload, "write_at", write_at)
    assert pack(images, URL, size=16, workers=1, masks=masks, resume=True).resumed_from == 6
    pack(images, tmp_path / "out", size=16, workers=1, masks=masks)
    assert _pulled(tmp_path) == store_bytes(tmp_path / "out")


def test_a_url_with_masks_and_compressed_rows_is_read(images: Path, masks: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
    for name, options in (("masks", {"masks": masks}), ("compress", {"compress": True})):
        pack(images, f"file://{tmp_path}/{name}/url", size=16, workers=1, **options)
        pack(images, tmp_path / name / "out", size=16, workers=1, **options)
        remote = MemmapDataset(f"file://{tmp_path}/{name}/url", cache=tmp_path / "cache", as_tuple=False)
        local = MemmapDataset(tmp_path / name / "out", as_tuple=False)
        assert torch.equal(remote[3:12].pixels, local[3:12].pixels)
        if name == "masks":
            assert torch.equal(remote[3:12].extras["masks"], local[3:12].extras["masks"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"size": 16, "part": "1/2"}, "part does not go with the URL memory://bucket/out as OUT. Pack the parts"),
        ({"size": 16, "engine": "ray"}, "engine='ray' does not go with the URL"),
    ],
)
def test_what_needs_a_folder_is_refused(images: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionsError, match=says):
        pack(images, URL, **options)
    assert _there() == []


def test_a_url_that_holds_something_else_is_refused_unchanged(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fsspec.filesystem("memory").pipe_file("/bucket/out/notes.txt", b"mine")
    assert run(["pack", str(images), URL, "--size", "16", "--quiet"][1:]) == 2
    assert "memory://bucket/out is not empty (it holds notes.txt) and holds no store." in capsys.readouterr().err
    assert _there() == ["notes.txt"]
    with pytest.raises(OptionsError, match="is IMAGES itself, or is inside it"):
        pack("memory://bucket", URL, size=16)
    if find_spec("obstore"):
        with pytest.raises(OptionsError, match="https://host/out is a web server's, which is only read"):
            pack(images, "https://host/out", size=16)
    monkeypatch.setattr(system, "punch_hole", lambda *_: (_ for _ in ()).throw(OSError(95, "Operation not supported")))
    with pytest.raises(PackError, match=r"its file system punches no holes \(Operation not supported\). Set TMPDIR"):
        pack(images, "memory://bucket/other", size=16)


def test_a_folder_that_another_thread_removes_first_is_as_good_as_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, sync = LocalObjects(tmp_path / "out"), objects.sync_folder
    there.put("a/b", b"")

    def removed_first(folder: Path) -> None:
        if folder.name == "a":
            folder.rmdir()
        sync(folder)

    monkeypatch.setattr(objects, "sync_folder", removed_first)
    there.remove("a/b")
    assert not (tmp_path / "out/a").exists()


def test_what_a_kill_leaves_of_a_file_at_a_file_url_is_removed(
    images: Path, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url_folder, put, count = tmp_path / "url", LocalObjects.put, 0

    def dying(self: LocalObjects, name: str, content: bytes) -> None:
        nonlocal count
        count += 1
        if count > 12:
            beside = self.root / Path(name).with_name(f".{Path(name).name}.tmp")
            beside.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(content[:10])
            raise Stopped
        put(self, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(LocalObjects, "put", dying)
        with pytest.raises(Stopped):
            pack(images, url_folder.as_uri(), size=16, workers=1)
    for name in (".packing/journal", PIXELS):  # whichever it was that died
        folder = next(url_folder.glob("generations/*")) / name
        (folder / ".0000000000000007.tmp").write_bytes(b"torn")
    assert pack(images, url_folder.as_uri(), size=16, workers=1, resume=True).resumed_from > 0
    assert _pulled(tmp_path, url_folder.as_uri()) == store_bytes(local)
    assert not [path for path in url_folder.rglob("*") if path.suffix == ".tmp" or ".packing" in path.parts]


def test_a_file_url_in_images_is_refused_however_they_are_named(images: Path) -> None:
    for source, inside in itertools.product((images, images.as_uri()), ("out", f"../{images.name}/out")):
        with pytest.raises(OptionsError, match="is inside"):
            pack(str(source), f"{images.as_uri()}/{inside}", size=32)
    assert not (images / "out").exists()
