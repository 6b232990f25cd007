"""Parts of one pack, in any order and on any host, and what `pack seal` makes of them: the bytes of one pack, or one sentence."""

from __future__ import annotations

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

import pytest
from conftest import PACK, Tune, unparted_bytes
from hypothesis import given
from hypothesis import strategies as st
from redecoding import rows_of_other_sources

from packer import LockedError, OptionsError, PackError, pack, seal_parts
from packer.errors import JournalError
from packer.operations.verify import verify
from packer.packing import parts, request
from packer.report import Progress
from packer.store.parts import Part
from packer.store.state import check_finished
from reader import IncompleteStoreError, MemmapDataset
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
    return unparted_bytes(out)


def _pack_parts(images: Path, out: Path, count: int, numbers: Any = None, **options: Any) -> None:
    chosen: dict[str, Any] = {"size": 32, "fit": "pad", "workers": 1, "max_rejects": "50%"} | options
    for number in numbers or range(1, count + 1):
        pack(images, out, part=f"{number}/{count}", **chosen)


@given(st.integers(0, 500), st.integers(1, 40))
def test_parts_hold_every_input_once(inputs: int, count: int) -> None:
    spans = [Part(number, count).span(inputs) for number in range(1, count + 1)]
    assert [index for span in spans for index in span] == list(range(inputs))
    assert max(map(len, spans)) - min(map(len, spans)) <= 1


@pytest.mark.parametrize("count", [1, 3, 40])
def test_sealed_parts_are_the_bytes_of_one_pack(
    images: Path, tmp_path: Path, reference: dict[str, bytes], count: int
) -> None:
    out = tmp_path / "out"
    order = random.Random(count).sample(range(1, count + 1), count)
    _pack_parts(images, out, count, order)
    with pytest.raises(
        IncompleteStoreError,
        match=rf"sealed: {min(count, 25)} of {min(count, 25)} are packed\. Continue with: pack seal ",
    ):
        check_finished(out)
    with pytest.raises(IncompleteStoreError, match="is incomplete"):
        MemmapDataset(out, as_tuple=False)
    report = seal_parts(out, max_rejects="20%")
    assert unparted_bytes(out) == reference
    assert (report.rows, report.inputs, report.rejected, report.too_many_rejects) == (23, 25, 2, False)
    assert verify(out).problems == rows_of_other_sources(out, images) == []
    # done once more, nothing is done
    assert seal_parts(out).rows == 23
    assert unparted_bytes(out) == reference


def test_a_part_whose_inputs_are_all_rejected_is_no_store_and_is_sealed(images: Path, tmp_path: Path) -> None:
    for path in (images / "class1").iterdir():
        path.write_bytes(b"no image")
    how: dict[str, Any] = {"size": 32, "fit": "pad", "max_rejects": "50%"}
    pack(images, tmp_path / "reference", **how)
    for part in ("2/3", "2/3", "1/3", "3/3"):
        report = pack(images, tmp_path / "out", part=part, **how)
        assert (report.rows, report.rejected) == ((0, 8) if part == "2/3" else (8, 0)), part
    assert not seal_parts(tmp_path / "out").too_many_rejects
    assert unparted_bytes(tmp_path / "out") == unparted_bytes(tmp_path / "reference")


@pytest.mark.parametrize(("given", "sealed", "too_many"), [("1%", None, True), ("50%", None, False), ("50%", 1, True)])
def test_sealing_keeps_the_most_rejects_of_its_parts(
    given: str, sealed: int | None, too_many: bool, images: Path, tmp_path: Path
) -> None:
    for name in ("class0/001.jpg", "class2/004.jpg"):
        (images / name).write_bytes(b"no image")
    _pack_parts(images, tmp_path / "out", 2, max_rejects=given)
    assert seal_parts(tmp_path / "out", max_rejects=sealed).too_many_rejects == too_many


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
    with pytest.raises(PackError, match=r"part 2/2 of .* is unfinished\. Give the command .* then: pack seal .*out$"):
        seal_parts(out)
    said = r"sealed: 1 of 2 are packed, not 2/2\. When all are: pack seal .*out\. Continue with: pack .* --part 2/2$"
    with pytest.raises(IncompleteStoreError, match=said):
        check_finished(tmp_path / "out.packing")
    # also where it had not begun: a job that is started again by its scheduler says the same
    _pack_parts(images, out, 2, [1, 2])
    seal_parts(out, max_rejects=5)
    assert unparted_bytes(out) == reference


def test_a_part_may_be_packed_again(images: Path, tmp_path: Path) -> None:
    (images / "class0/000.jpg").rename(tmp_path / "good.jpg")
    (images / "class0/000.jpg").write_bytes(b"no image")
    _pack_parts(images, tmp_path / "out", 3)
    (tmp_path / "good.jpg").replace(images / "class0/000.jpg")
    _pack_parts(images, tmp_path / "out", 3, [1], overwrite=True)
    assert seal_parts(tmp_path / "out").rejected == 0
    assert unparted_bytes(tmp_path / "out") == _packed(images, tmp_path / "reference")


Prepare = Callable[[Path, Path], None]

REFUSALS: list[tuple[Prepare, str]] = [
    (lambda i, o: _pack_parts(i, o, 3, [1, 3]), r"part 2/3 of .* is missing\. Give the command"),
    (lambda i, o: _pack_parts(i, o, 4, [4]), r"part 1/4 of .* and 2 more are missing"),
    (lambda i, o: o.mkdir(), r"holds no part of a pack\. Parts are made by: pack IMAGES"),
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
    folder = tmp_path / "out.packing/.packing/parts/1-of-2"
    folder.rename(tmp_path / "1-of-2")
    for module in (parts, request):
        monkeypatch.setattr(module, "pixel_versions", lambda quality: {"pillow": {"version": "0"}})
    # begun at the same moment, so that neither saw the other
    _pack_parts(images, tmp_path / "out", 2, [2])
    (tmp_path / "1-of-2").rename(folder)
    with pytest.raises(
        PackError, match=r"part 1/2 of .* was started with other decoders .*\. Pack all parts with the same"
    ):
        _pack_parts(images, tmp_path / "out", 2, [2])
    with pytest.raises(PackError, match=r"part 1/2 of .* was packed with other decoders .* in part 2/2"):
        seal_parts(tmp_path / "out")


def test_a_store_in_the_way_is_named(images: Path, tmp_path: Path) -> None:
    _packed(images, tmp_path / "out")
    with pytest.raises(PackError, match="already holds a store, which parts cannot replace"):
        _pack_parts(images, tmp_path / "out", 2, [1], overwrite=True, size=16)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_a_part_that_is_none_is_a_usage_error(images: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionsError, match="expected i/n such as 2/8"):
        pack(images, tmp_path / "out", size=32, part=text)
    with pytest.raises(OptionsError, match="part needs size or fit='none'"):
        pack(images, tmp_path / "out", part="1/2")


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
    with pytest.raises(LockedError, match="out is being packed by another process"):
        seal_parts(held)
    # the other part may be packed meanwhile
    _pack_parts(images, held, 2, [1], overwrite=True)


@pytest.mark.parametrize(("number", "change"), [(1, Path.unlink), (2, lambda path: os.truncate(path, 5000))])
def test_the_rows_of_a_part_that_are_lost_are_named(
    number: int, change: Callable[[Path], None], images: Path, tmp_path: Path
) -> None:
    """No rows of zeros stand for them; what is left is joined once they are packed again."""
    _pack_parts(images, tmp_path / "out", 2)
    change(tmp_path / f"out.packing/.packing/parts/{number}-of-2" / PIXELS)
    with pytest.raises(PackError, match=rf"{number}-of-2.* is (missing|5000 bytes).* Or pack part {number}/2 again"):
        seal_parts(tmp_path / "out")
    _pack_parts(images, tmp_path / "out", 2, [number], overwrite=True)
    assert seal_parts(tmp_path / "out").rows == 24
    pack(images, tmp_path / "whole", size=32, fit="pad")
    assert unparted_bytes(tmp_path / "out") == unparted_bytes(tmp_path / "whole")


@pytest.mark.parametrize("name", ["samples.jsonl", "_tensordict/targets.memmap"])
def test_a_part_that_is_damaged_is_not_sealed(name: str, images: Path, tmp_path: Path) -> None:
    _pack_parts(images, tmp_path / "out", 2)
    path = tmp_path / "out.packing/.packing/parts/2-of-2" / name
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)
    with pytest.raises(PackError, match=rf"{name} is damaged: .* Pack part 2/2 again, with part and overwrite=True"):
        seal_parts(tmp_path / "out")
    _pack_parts(images, tmp_path / "out", 2, [2], overwrite=True)
    assert seal_parts(tmp_path / "out").rows == 24


@pytest.mark.parametrize(("change", "size"), [(Path.unlink, 24576), (lambda path: os.truncate(path, 5000), 5000)])
def test_rows_that_are_lost_once_parts_were_joined_leave_nothing_to_pack_again(
    change: Callable[[Path], None], size: int, images: Path, tmp_path: Path
) -> None:
    _pack_parts(images, tmp_path / "out", 3)
    stage = tmp_path / "out.packing"
    (stage / PIXELS).parent.mkdir()
    (stage / ".packing/parts/1-of-3" / PIXELS).rename(stage / PIXELS)
    change(stage / ".packing/parts/2-of-3" / PIXELS)
    with pytest.raises(JournalError, match=rf"has {size} bytes, .*\. Remove {stage}, and pack the parts again\.$"):
        seal_parts(tmp_path / "out")
    shutil.rmtree(stage)
    _pack_parts(images, tmp_path / "out", 3)
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
    assert "1 of 24 inputs was rejected, more than --max-rejects of the parts" in sealed.stderr
    empty = run(str(images), str(tmp_path / "many"), "--size", "32", "--part", "1/25")
    assert empty.stdout.startswith("part 1/25 has no images, as there are fewer than parts: ")
    assert run("seal", str(tmp_path / "nothing")).stderr.startswith(
        f"pack: {tmp_path}/nothing holds no part of a pack."
    )
