"""Parts of one pack, in any order and on any host, and what `pack seal` makes of them: the bytes of one pack, or one sentence."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import PACK, Tune, make_splits, make_tree, store_bytes
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from redecoding import rows_of_other_sources

from packer import LockedError, OptionsError, PackError, pack, seal_parts
from packer.errors import JournalError
from packer.operations.verify import verify
from packer.packing import build, resume
from packer.packing.parts import division
from packer.report import Progress
from packer.store import journal as journals
from packer.store.blocks import block_inputs
from packer.store.journal import Header
from packer.store.parts import Part
from packer.store.state import check_finished
from reader import IncompleteStoreError, MemmapDataset
from reader.format.blocks import read_blocks
from reader.format.manifest import PIXELS


@pytest.fixture(autouse=True)
def _small_blocks(tune: Tune) -> None:
    """Cut 25 inputs into 13 blocks."""
    tune(least_block_inputs=2)


@pytest.fixture
def reference(images: Path, tmp_path: Path) -> dict[str, bytes]:
    """The bytes of one pack of `images`, which hold two broken files."""
    for name in ("class0/001a.jpg", "class1/004.jpg"):
        (images / name).write_bytes(b"no image")
    return _packed(images, tmp_path / "reference")


def _packed(images: Path, out: Path, **options: Any) -> dict[str, bytes]:
    pack(images, out, size=32, fit="pad", workers=1, max_rejects="20%", **options)
    return store_bytes(out)


def _pack_parts(images: Path, out: Path, count: int, numbers: Any = None, **options: Any) -> None:
    chosen: dict[str, Any] = {"size": 32, "fit": "pad", "workers": 1, "max_rejects": "50%"} | options
    for number in numbers or range(1, count + 1):
        pack(images, out, part=f"{number}/{count}", **chosen)


@pytest.mark.parametrize("max_size", ["short:30"])
def test_parts_of_rows_with_sizes_of_their_own_are_the_bytes_of_one_pack(
    images: Path, tmp_path: Path, tune: Tune, max_size: int | str | None
) -> None:
    # as many inputs a block as have room in it, so that blocks follow from the sizes of all images
    tune(block_bytes=10_000, least_block_inputs=30)
    for name in ("class0/001a.jpg", "class1/004.jpg", "class2/007.jpg"):
        (images / name).write_bytes(b"no image")
    chosen: dict[str, Any] = {"size": None, "fit": "none", "max_size": max_size}
    pack(images, tmp_path / "reference", workers=1, max_rejects="20%", **chosen)
    out = tmp_path / "out"
    _interrupt(images, out, "2/3", **chosen)
    _pack_parts(images, out, 3, [3, 1, 2], **chosen)
    report = seal_parts(out, max_rejects="20%")
    assert store_bytes(out) == store_bytes(tmp_path / "reference")
    assert (report.rows, report.rejected, report.has_own_sizes) == (22, 3, True)
    assert len(read_blocks(out)) > 3
    assert verify(out).problems == rows_of_other_sources(out, images) == []


def test_a_part_that_is_not_the_first_reads_no_headers_of_others(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "count_sizes", _spied := Mock(side_effect=division.count_sizes))

    def spans() -> list[range]:
        """Return of which inputs headers were read since it was last asked."""
        seen = [call.args[2] for call in _spied.call_args_list]
        _spied.reset_mock()
        return seen

    chosen: dict[str, Any] = {"size": None, "fit": "none"}
    _pack_parts(images, tmp_path / "out", 3, [2], **chosen)
    assert spans() == [range(24), range(8, 16)]
    _pack_parts(images, tmp_path / "out", 3, [1, 3], **chosen)
    assert spans() == [range(8), range(16, 24)]
    # started over, beside the others; and what it reports
    report = pack(images, tmp_path / "out", fit="none", part="2/3", overwrite=True)
    assert spans() == [range(8, 16)]
    sizes = [Image.open(io.BytesIO(path.read_bytes())).size for path in sorted(images.rglob("*.jpg"))[8:16]]
    assert report.size == (max(height for _, height in sizes), max(width for width, _ in sizes))
    assert (report.has_own_sizes, report.store_bytes) == (True, sum(width * height * 3 for width, height in sizes))


def test_a_part_whose_inputs_are_others_since_images_have_other_sizes_is_started_over(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "block_inputs", lambda count, row_bytes: 8)
    chosen: dict[str, Any] = {"size": None, "fit": "none"}
    _pack_parts(images, tmp_path / "out", 3, [2], **chosen)
    # as of larger images: part 2 is inputs 6 to 12, no longer 8 to 16
    monkeypatch.setattr(division, "block_inputs", lambda count, row_bytes: 6)
    report = pack(images, tmp_path / "out", fit="none", part="2/3", overwrite=True)
    assert (report.inputs, report.resumed_from) == (6, 0)
    _pack_parts(images, tmp_path / "out", 3, [1, 3], **chosen)
    seal_parts(tmp_path / "out")
    pack(images, tmp_path / "reference", fit="none")
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "reference")


@given(st.integers(0, 500), st.integers(1, 40), st.integers(1, 9))
def test_parts_hold_every_input_once_in_complete_blocks(inputs: int, count: int, step: int) -> None:
    spans = [Part(number, count).span(inputs, step) for number in range(1, count + 1)]
    assert [index for span in spans for index in span] == list(range(inputs))
    assert all(span.start % step == 0 or not span for span in spans)
    assert max(map(len, spans)) - min(map(len, spans)) <= 2 * step


@pytest.mark.parametrize("count", [1, 20])
def test_sealed_parts_are_the_bytes_of_one_pack(
    images: Path, tmp_path: Path, reference: dict[str, bytes], count: int
) -> None:
    out = tmp_path / "out"
    order = random.Random(count).sample(range(1, count + 1), count)
    _pack_parts(images, out, count, order)
    with pytest.raises(
        IncompleteStoreError, match=rf"sealed: {count} of {count} are packed\. Continue with: pack seal "
    ):
        check_finished(out)
    with pytest.raises(IncompleteStoreError, match="is incomplete"):
        MemmapDataset(out, as_tuple=False)
    report = seal_parts(out, max_rejects="20%")
    assert store_bytes(out) == reference
    assert (report.rows, report.inputs, report.rejected, report.too_many_rejects) == (23, 25, 2, False)
    assert verify(out).problems == rows_of_other_sources(out, images) == []
    # done once more, nothing is done
    assert seal_parts(out).rows == 23
    assert store_bytes(out) == reference


class _Stop(Exception):
    pass


def test_splits_are_sealed_each(tmp_path: Path) -> None:
    make_splits(tmp_path / "images", ("train", "val"), each=3)
    expected = _packed(tmp_path / "images", tmp_path / "reference")
    _pack_parts(tmp_path / "images", tmp_path / "out", 2)
    assert list(seal_parts(tmp_path / "out").splits) == ["train", "val"]
    assert store_bytes(tmp_path / "out") == expected


def test_columns_of_a_manifest_and_lines_of_rejects_reach_the_store(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", each=4)
    lines = [f"{p.relative_to(images)},{n}.25,{n / 3}" for n, p in enumerate(sorted(images.rglob("*.jpg")))]
    (images / "list.csv").write_text("\n".join(["path,target,weight", *lines, "gone.jpg,0.5,", ""]))
    expected = _packed(images / "list.csv", tmp_path / "reference", shuffle=3)
    _pack_parts(images / "list.csv", tmp_path / "out", 3, shuffle=3)
    report = seal_parts(tmp_path / "out", max_rejects=1)
    assert store_bytes(tmp_path / "out") == expected
    assert report.reject_lines == {"there is no such file": [14]}


def _interrupt(images: Path, out: Path, part: str, **options: Any) -> None:
    def stop(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done * 2 >= progress.total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(images, out, part=part, progress=stop, **({"size": 32, "fit": "pad", "workers": 1} | options))


def test_an_interrupted_part_is_named_and_resumed(images: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    out = tmp_path / "out"
    _interrupt(images, out, "2/2")
    _pack_parts(images, out, 2, [1])
    with pytest.raises(PackError, match=r"part 2/2 of .* is unfinished: \d+ of its 13 images .* part='2/2'\)"):
        seal_parts(out)
    said = (
        r"sealed: 1 of 2 are packed, 2/2 at \d+ of 13 images\. When all are: pack seal .*out\."
        r" Continue with: pack\(.*, part='2/2'\)$"
    )
    with pytest.raises(IncompleteStoreError, match=said):
        check_finished(tmp_path / "out.packing")
    # also where it had not begun: a job that is started again by its scheduler says the same
    _pack_parts(images, out, 2, [1, 2])
    seal_parts(out, max_rejects=5)
    assert store_bytes(out) == reference


def test_a_part_may_be_packed_again(images: Path, tmp_path: Path) -> None:
    (images / "class0/000.jpg").rename(tmp_path / "good.jpg")
    (images / "class0/000.jpg").write_bytes(b"no image")
    _pack_parts(images, tmp_path / "out", 3)
    (tmp_path / "good.jpg").replace(images / "class0/000.jpg")
    _pack_parts(images, tmp_path / "out", 3, [1], overwrite=True)
    assert seal_parts(tmp_path / "out").rejected == 0
    assert store_bytes(tmp_path / "out") == _packed(images, tmp_path / "reference")


Prepare = Callable[[Path, Path], None]

REFUSALS: list[tuple[Prepare, str]] = [
    (lambda i, o: _pack_parts(i, o, 3, [1, 3]), r"part 2/3 of .* is missing\. Pack it, .* part='2/3'"),
    (lambda i, o: _pack_parts(i, o, 4, [4]), r"part 1/4 of .* and 2 more are missing"),
    (lambda i, o: o.mkdir(), r"holds no part of a pack\. Parts are made by: pack IMAGES"),
    (lambda i, o: None, r"holds no part of a pack"),
]


@pytest.mark.parametrize(("prepare", "message"), REFUSALS)
def test_what_cannot_be_sealed_is_named(images: Path, tmp_path: Path, prepare: Prepare, message: str) -> None:
    prepare(images, tmp_path / "out")
    with pytest.raises(PackError, match=message):
        seal_parts(tmp_path / "out")


def _other_inputs(images: Path, out: Path) -> None:
    (images / "class0/001.jpg").unlink()


BESIDE: list[tuple[Prepare, dict[str, Any], str]] = [
    (
        lambda i, o: None,
        {"fit": "crop"},
        r"part 1/2 of .* was started with other options \(fit='pad', now fit='crop'\)",
    ),
    (_other_inputs, {}, r"part 1/2 of .* was started with other inputs"),
    (lambda i, o: None, {"part": "2/3"}, r"is packed in 2 parts, this is part 2/3"),
    (lambda i, o: (o.mkdir(), (o / "mine.txt").touch()), {}, r"is not empty \(it holds mine.txt\)"),
    (lambda i, o: None, {"part": None}, r"holds parts of a pack\. Continue with part='i/n'"),
    (lambda i, o: None, {"part": None}, r"holds parts of a pack\. Continue with part='i/n'"),
]


@pytest.mark.parametrize(("change", "options", "message"), BESIDE)
def test_a_part_of_another_pack_is_refused(
    images: Path, tmp_path: Path, change: Prepare, options: dict[str, Any], message: str
) -> None:
    _pack_parts(images, tmp_path / "out", 2, [1])
    change(images, tmp_path / "out")
    with pytest.raises((PackError, OptionsError), match=message):
        pack(images, tmp_path / "out", **{"size": 32, "fit": "pad", "part": "2/2"} | options)


def test_parts_of_other_decoders_are_refused(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pack_parts(images, tmp_path / "out", 2, [1])
    monkeypatch.setattr(resume, "pixel_versions", lambda quality: {"pillow": {"version": "0"}})
    with pytest.raises(
        PackError, match=r"part 1/2 of .* was started with other decoders .*\. Pack all parts with the same"
    ):
        _pack_parts(images, tmp_path / "out", 2, [2])
    # begun at the same moment, so that neither saw the other
    monkeypatch.setattr(build, "check_siblings", lambda *_: None)
    _pack_parts(images, tmp_path / "out", 2, [2])
    with pytest.raises(PackError, match=r"part 1/2 of .* was packed with other decoders .* in part 2/2"):
        seal_parts(tmp_path / "out")


def test_a_part_of_a_sealed_store_with_other_options_is_not_advised_to_overwrite(images: Path, tmp_path: Path) -> None:
    _pack_parts(images, tmp_path / "out", 2)
    seal_parts(tmp_path / "out")
    with pytest.raises(
        PackError, match=r"is finished, but with other options .*\. Choose another OUT, or remove it\.$"
    ):
        _pack_parts(images, tmp_path / "out", 2, [1], size=16)


def test_a_store_or_a_pack_without_parts_in_the_way_is_named(images: Path, tmp_path: Path) -> None:
    _packed(images, tmp_path / "out")
    with pytest.raises(PackError, match="already holds a store, which parts cannot replace"):
        _pack_parts(images, tmp_path / "out", 2, [1], overwrite=True, size=16)
    (tmp_path / "begun.packing/.packing").mkdir(parents=True)
    log = journals.CommitLog(tmp_path / "begun.packing", lambda: None)
    log.begin(Header())
    log.close()
    with pytest.raises(PackError, match=r"is being packed as a whole, without part\. Resume with"):
        _pack_parts(images, tmp_path / "begun", 2, [1])


def test_overwrite_without_part_takes_parts_away(images: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    _pack_parts(images, tmp_path / "out", 2, [1])
    assert _packed(images, tmp_path / "out", overwrite=True) == reference


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_a_part_that_is_none_is_a_usage_error(images: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionsError, match="expected i/n such as 2/8"):
        pack(images, tmp_path / "out", size=32, part=text)
    with pytest.raises(OptionsError, match="part needs size or fit='none'"):
        pack(images, tmp_path / "out", part="1/2")
    with pytest.raises(OptionsError, match="boxes and masks do not go together with part yet"):
        pack(images, tmp_path / "out", size=32, part="1/2", boxes="some.json")


@pytest.fixture
def held(images: Path, tmp_path: Path) -> Iterator[Path]:
    """OUT with part 1/2 packed, and part 2/2 stopped in the middle by another process that holds it."""
    out = tmp_path / "out"
    _pack_parts(images, out, 2, [1])
    script = (
        "import sys\nfrom packer import pack\n"
        "def hold(progress):\n    if progress.stage == 'pack':\n        print(flush=True)\n        sys.stdin.read()\n"
        "pack(sys.argv[1], sys.argv[2], size=32, fit='pad', workers=1, part='2/2', progress=hold)\n"
    )
    command = [sys.executable, "-c", script, str(images), str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield out
        os.killpg(process.pid, signal.SIGKILL)


def test_a_part_in_progress_is_left_alone(images: Path, held: Path) -> None:
    holder = rf"2-of-2 is being packed by process \d+ on {os.uname().nodename}"
    with pytest.raises(LockedError, match=holder):
        _pack_parts(images, held, 2, [2])
    with pytest.raises(LockedError, match="is being packed by"):
        _packed(images, held, overwrite=True)
    with pytest.raises(PackError, match=holder):
        seal_parts(held)
    # the other part may be packed meanwhile
    _pack_parts(images, held, 2, [1], overwrite=True)


_HALTING = """
import sys
from packer import pack

images, out, part, least = sys.argv[1:]

def halt(progress):
    if progress.stage == "pack" and progress.done >= int(least):
        print(progress.done, flush=True)
        sys.stdin.read()

pack(images, out, size=64, workers=1, part=part, progress=halt)
"""


def _halting(images: Path, out: Path, part: str, least: int) -> subprocess.Popen[str]:
    """Pack a part in another process, which says when at least so many of its images are committed, and halts."""
    command = [sys.executable, "-c", _HALTING, str(images), str(out), part, str(least)]
    return subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="kills by process group")
def test_killed_parts_resume_to_the_same_bytes(tmp_path: Path) -> None:
    """Each part is killed twice when some of its images are committed, and once at any moment, also after its end."""
    images = make_tree(tmp_path / "images", each=60, size=(200, 150))
    pack(images, tmp_path / "reference", size=64, workers=1)
    draw, out = random.Random(0), tmp_path / "out"
    for number in (3, 1, 2):
        # with 60 it would halt only once it is done
        for least in (draw.randrange(1, 25), draw.randrange(25, 50)):
            process = _halting(images, out, f"{number}/3", least)
            assert process.stdout is not None
            assert least <= int(process.stdout.readline()) < 60
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            assert process.returncode == -signal.SIGKILL
        process = _halting(images, out, f"{number}/3", 61)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(0.1, 0.6))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pack(images, out, size=64, workers=1, part=f"{number}/3")
    seal_parts(out)
    assert store_bytes(out) == store_bytes(tmp_path / "reference")


def test_rows_that_are_cut_short_are_named(images: Path, tmp_path: Path) -> None:
    _pack_parts(images, tmp_path / "out", 2)
    os.truncate(tmp_path / "out.packing/.packing/parts/2-of-2" / PIXELS, 5000)
    with pytest.raises(
        JournalError, match=r"has 5000 bytes, its journal says 36864\. Pack that part again, with part and"
    ):
        seal_parts(tmp_path / "out")
    _pack_parts(images, tmp_path / "out", 2, [2], overwrite=True)
    assert seal_parts(tmp_path / "out").rows == 24


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_rows_of_a_part_that_are_gone_are_named(number: int, images: Path, tmp_path: Path) -> None:
    """No rows of zeros stand for them; what is left is joined once they are packed again."""
    _pack_parts(images, tmp_path / "out", 3)
    (tmp_path / f"out.packing/.packing/parts/{number}-of-3" / PIXELS).unlink()
    with pytest.raises(JournalError, match=rf"{number}-of-3.* has 0 bytes, its journal says 24576\. Pack that part"):
        seal_parts(tmp_path / "out")
    _pack_parts(images, tmp_path / "out", 3, [number], overwrite=True)
    assert seal_parts(tmp_path / "out").rows == 24
    pack(images, tmp_path / "whole", size=32, fit="pad")
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "whole")


def test_the_rows_of_a_part_that_are_gone_once_parts_were_joined_are_missed(images: Path, tmp_path: Path) -> None:
    _pack_parts(images, tmp_path / "out", 3)
    stage = tmp_path / "out.packing"
    (stage / PIXELS).parent.mkdir()
    (stage / ".packing/parts/1-of-3" / PIXELS).rename(stage / PIXELS)
    (stage / ".packing/parts/2-of-3" / PIXELS).unlink()
    with pytest.raises(JournalError, match=rf"has 24576 bytes, .*\. Remove {stage}, and pack the parts again\.$"):
        seal_parts(tmp_path / "out")


def test_rows_that_are_lost_once_parts_were_joined_leave_nothing_to_pack_again(images: Path, tmp_path: Path) -> None:
    _pack_parts(images, tmp_path / "out", 2)
    stage = tmp_path / "out.packing"
    (stage / PIXELS).parent.mkdir()
    (stage / ".packing/parts/1-of-2" / PIXELS).rename(stage / PIXELS)
    os.truncate(stage / ".packing/parts/2-of-2" / PIXELS, 5000)
    with pytest.raises(JournalError, match=rf"has 5000 bytes, .*\. Remove {stage}, and pack the parts again\.$"):
        seal_parts(tmp_path / "out")
    shutil.rmtree(stage)
    _pack_parts(images, tmp_path / "out", 2)
    assert seal_parts(tmp_path / "out").rows == 24


def test_the_command_reports_a_part_and_of_sealing(images: Path, tmp_path: Path) -> None:
    (images / "class0/000.jpg").write_bytes(b"no image")
    out = str(tmp_path / "out")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*PACK, *words], capture_output=True, text=True)

    first = run(str(images), out, "--size", "32", "--part", "1/2")
    assert first.returncode == 3
    assert "rejected 1 (see rejected.jsonl of the sealed store)" in first.stdout
    assert "this is part 1/2; when all parts are packed, pack seal makes the store" in first.stdout
    second = run(str(images), out, "--size", "32", "--part", "2/2", "--json")
    assert json.loads(second.stdout)["part"] == "2/2"
    sealed = run("seal", out)
    assert (sealed.returncode, "23 rows of 32 x 32 x 3, 3 classes" in sealed.stdout) == (3, True)
    assert "1 of 24 inputs was rejected, more than --max-rejects 1%" in sealed.stderr
    assert run("seal", str(tmp_path / "nothing")).stderr.startswith(
        f"pack: {tmp_path}/nothing holds no part of a pack."
    )


def test_blocks_are_cut_as_in_one_pack() -> None:
    """Guards the spans: a part that does not begin at a block would cut other blocks than one pack does."""
    step = block_inputs(1000, 3072)
    assert all(Part(n, 7).span(1000, step).start % step == 0 for n in range(1, 8))
