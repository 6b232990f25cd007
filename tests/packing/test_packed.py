"""`packed` opens a store, and makes it first where it is not there: one process packs, others wait, a kill is continued."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from children import Child
from conftest import PACK, make_splits, make_tree, store_bytes

import pixpack
from packer import OptionsError, PackError, Progress, ScanError, pack
from reader import MemmapDataset, ResizeCenterCrop

OPTIONS = {"size": 16, "workers": 1}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "images")


def test_the_first_call_packs_and_the_second_opens(images: Path, tmp_path: Path) -> None:
    stages: list[str] = []

    def progress(progress: Progress) -> None:
        stages.append(progress.stage)

    train = pixpack.packed(images, tmp_path / "out", progress=progress, **OPTIONS)
    assert isinstance(train, MemmapDataset)
    assert len(train) == 24
    assert "pack" in stages
    pack(images, tmp_path / "same", **OPTIONS)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "same")
    stages.clear()
    again = pixpack.packed(images, tmp_path / "out", progress=progress, **OPTIONS)
    assert "pack" not in stages
    assert again.manifest.digest == train.manifest.digest


def test_the_dataset_is_opened_as_asked(images: Path, tmp_path: Path) -> None:
    crop = ResizeCenterCrop(8)
    assert pixpack.packed(images, tmp_path / "out", transform=crop, **OPTIONS)[0][0].shape == (3, 8, 8)
    assert pixpack.packed(images, tmp_path / "out", as_pil=True, **OPTIONS)[0][0].size == (16, 16)
    assert pixpack.packed(images, tmp_path / "out", as_tuple=False, **OPTIONS)[0].pixels.shape == (16, 16, 3)


def test_a_split_is_opened_of_all_that_are_packed(tmp_path: Path) -> None:
    make_splits(tmp_path / "images", ["train", "val"], each=2)
    train = pixpack.packed(tmp_path / "images", tmp_path / "out", split="train", **OPTIONS)
    assert (train.path, len(train)) == (tmp_path / "out" / "train", 6)
    assert len(pixpack.packed(tmp_path / "images", tmp_path / "out", split="val", **OPTIONS)) == 6


def test_a_split_that_the_images_do_not_have_is_refused_before_anything_is_packed(images: Path, tmp_path: Path) -> None:
    make_splits(tmp_path / "both", ["train", "val"], each=2)
    out = tmp_path / "out"
    for folder, split, said in (
        (tmp_path / "both", "test", r"both has no split 'test'\. It has train, val\."),
        (tmp_path / "both", None, r"both has the splits train, val\. Give one of them: split='train'\."),
        (images, "train", r"images has no splits\. Leave split='train' out\."),
    ):
        with pytest.raises(OptionsError, match=said):
            pixpack.packed(folder, out, split=split, **OPTIONS)
        assert not out.exists()
        assert not [*tmp_path.glob("*.packing")]


def test_another_store_is_refused_and_replaced_only_on_request(images: Path, tmp_path: Path) -> None:
    pixpack.packed(images, tmp_path / "out", **OPTIONS)
    before = store_bytes(tmp_path / "out")
    with pytest.raises(
        PackError, match=r"other options \(size=16, now size=24\)\. .* replace it with overwrite=True\."
    ):
        pixpack.packed(images, tmp_path / "out", size=24)
    (images / "class0" / "000.jpg").rename(images / "class0" / "new.jpg")
    with pytest.raises(PackError, match="is finished, but with"):
        pixpack.packed(images, tmp_path / "out", **OPTIONS)
    assert store_bytes(tmp_path / "out") == before
    replaced = pixpack.packed(images, tmp_path / "out", size=24, overwrite=True)
    assert replaced.manifest.height == 24


def test_bad_arguments_are_refused_in_a_sentence(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(OptionsError, match="packed takes no part=: "):
        pixpack.packed(images, out, part="1/2", **OPTIONS)
    with pytest.raises(OptionsError, match=r": fit='none' max_size=512\. Or cut all to one: size=224\."):
        pixpack.packed(images, out)
    with pytest.raises(
        OptionsError, match=r"out is <function .*, expected the folder of the store\. A transform is given by"
    ):
        pixpack.packed(images, lambda image: image, **OPTIONS)
    with pytest.raises(ScanError, match="does not exist"):
        pixpack.packed(tmp_path / "none", out, **OPTIONS)
    for function in (pixpack.packed, pack):
        with pytest.raises(
            ScanError, match="images is an empty list, expected a folder, list, archive or URL of images"
        ):
            function([], out, **OPTIONS)
    (images / "class0" / "broken.jpg").write_text("x")
    with pytest.raises(
        PackError, match=r"1 of 25 images were rejected, more than max_rejects='1%' allows: see rejected\.jsonl"
    ):
        pixpack.packed(images, out, **OPTIONS)
    assert len(pixpack.packed(images, out, max_rejects=1, **OPTIONS)) == 24
    images.rename(tmp_path / "away")
    with pytest.raises(ScanError, match="does not exist"):
        pixpack.packed(images, out, max_rejects=1, **OPTIONS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"transform": "crop"}, "transform is 'crop', expected a function"),
        ({"as_pil": True, "as_tuple": False}, "as_pil and target_transform need as_tuple=True"),
    ],
)
def test_how_the_store_is_opened_is_checked_before_anything_is_packed(
    images: Path, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        pixpack.packed(images, tmp_path / "out", **given, **OPTIONS)
    assert [*tmp_path.iterdir()] == [images]


# -- several processes


def pack_until_killed(pipe: Connection, images: Path, out: Path) -> None:
    """Pack, stop in the middle, and say so."""

    def stop(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done >= 4:
            pipe.send(progress.done)
            time.sleep(3600)

    pixpack.packed(images, out, progress=stop, **OPTIONS)


def pack_and_tell(pipe: Connection, images: Path, out: Path) -> None:
    """Send what is waited for, and what was packed at last."""
    is_waiting = False
    first_packed: list[int] = []

    def tell(progress: Progress) -> None:
        nonlocal is_waiting
        if progress.stage == "wait" and not is_waiting:
            is_waiting = True
            pipe.send(progress.waits_for)
        if progress.stage == "pack":
            first_packed.append(progress.done)

    train = pixpack.packed(images, out, progress=tell, **OPTIONS)
    pipe.send((len(train), first_packed[:1]))


def test_who_waits_names_the_packing_process_and_continues_where_it_was_killed(
    images: Path, tmp_path: Path, small_blocks: None
) -> None:
    out = tmp_path / "out"
    packing = Child(pack_until_killed, images, out)
    done = packing.received()
    waiting = Child(pack_and_tell, images, out)
    assert re.search(rf"is being packed by process {packing.process.pid} on ", waiting.received())
    packing.kill()
    rows, first_packed = waiting.received()
    assert rows == 24
    # of what the killed process had committed nothing was decoded again; its last block may not have been
    assert first_packed[0] >= done - 2
    assert waiting.ended() == 0
    pack(images, tmp_path / "same", **OPTIONS)
    assert store_bytes(out) == store_bytes(tmp_path / "same")


@pytest.mark.parametrize("nodes", [1, 2])
def test_processes_that_begin_together_pack_once_a_node(
    images: Path, tmp_path: Path, small_blocks: None, nodes: int
) -> None:
    # OUT on the disk of each node: what has one name there is a folder for each here
    outs = [tmp_path / f"node-{node}" / "out" for node in range(nodes)]
    for out in outs:
        out.parent.mkdir()
    children = [(out, Child(pack_and_tell, images, out)) for out in outs for _ in range(3)]
    packed: dict[Path, list[int]] = {out: [] for out in outs}
    for out, child in children:
        found = child.received()
        rows, first = found if isinstance(found, tuple) else child.received()
        assert rows == 24
        packed[out] += first
    assert all(firsts in ([0], []) for firsts in packed.values())
    assert all(child.ended() == 0 for _, child in children)
    assert store_bytes(outs[0]) == store_bytes(outs[-1])


ROOT = Path(__file__).resolve().parents[2]
_RANK = """
import os, signal, sys, time
from pathlib import Path
import pixpack
from sizes import set_sizes
from torch import distributed

set_sizes()
images, out, work, is_killed = sys.argv[1:]
if is_killed == "no":
    distributed.init_process_group("gloo")
rank, killed = os.environ["RANK"], Path(work, "killed")
attempt, is_second = os.environ["TORCHELASTIC_RESTART_COUNT"], killed.exists()

def progress(progress):
    # the other rank, which could pack all before the launcher ends it
    if is_killed == "yes" and killed.exists() and not is_second:
        time.sleep(60)
    # the rank that packs kills itself in the middle, once: what is done is committed a little later, and further only as
    # this returns
    if is_killed == "yes" and progress.stage == "pack" and progress.done >= 4 and not killed.exists():
        time.sleep(0.05)
        # the journal has its header and two blocks of two images
        if Path(f"{out}.packing/.packing/journal").read_bytes().count(b"\\n") >= 3:
            killed.write_text(str(progress.done))
            os.kill(os.getpid(), signal.SIGKILL)
    if progress.stage == "pack":
        with open(Path(work, f"packed-{attempt}-{rank}"), "a") as log:
            log.write(f"{progress.done}\\n")
    if progress.stage == "wait":
        Path(work, f"waited-{rank}").touch()

train = pixpack.packed(images, out, size=16, workers=1, progress=progress)
if is_killed == "yes":
    # the gloo of torch 2.13 does not always connect again after a restart
    distributed.init_process_group("gloo")
rows = [row for batch in pixpack.MemmapLoader(train, 4, shuffle=True, as_tuple=False) for row in batch.rows.tolist()]
Path(work, f"rows-{rank}").write_text(repr(rows))
distributed.destroy_process_group()
"""


def torchrun(work: Path, *words: object, restarts: int) -> subprocess.CompletedProcess[str]:
    (work / "rank.py").write_text(_RANK)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "--max-restarts", str(restarts), str(work / "rank.py"), *map(str, words)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=500)


def test_under_torchrun_a_restart_continues_after_the_packing_rank_was_killed(
    images: Path, tmp_path: Path, small_blocks: None
) -> None:
    done = torchrun(tmp_path, images, tmp_path / "out", tmp_path, "yes", restarts=1)
    assert done.returncode == 0, done.stderr
    assert int((tmp_path / "killed").read_text()) >= 4
    check_ranks(images, tmp_path)
    # one rank again; what it continues is seen above
    assert len([*tmp_path.glob("packed-1-*")]) == 1


def test_under_torchrun_one_rank_packs_beside_a_process_group(images: Path, tmp_path: Path) -> None:
    done = torchrun(tmp_path, images, tmp_path / "out", tmp_path, "no", restarts=0)
    assert done.returncode == 0, done.stderr
    check_ranks(images, tmp_path)
    assert len([*tmp_path.glob("packed-*")]) == 1


def check_ranks(images: Path, work: Path) -> None:
    """See that the ranks have read all rows, of the store that an uninterrupted pack makes."""
    rows = [json.loads((work / f"rows-{rank}").read_text()) for rank in (0, 1)]
    assert sorted(rows[0] + rows[1]) == [*range(24)]
    pack(images, work / "same", **OPTIONS)
    assert store_bytes(work / "out") == store_bytes(work / "same")


# -- what is shown


@pytest.mark.parametrize("replaces", [False, True])
def test_too_many_rejects_name_the_command_that_packs_what_was_repaired(
    replaces: bool, images: Path, tmp_path: Path
) -> None:
    good, out = (images / "class0/000.jpg").read_bytes(), tmp_path / "out"
    if replaces:
        pixpack.packed(images, out, size=24)
    (images / "class0/000.jpg").write_text("broken")
    for _ in range(2):
        with pytest.raises(PackError, match=r"1 of 24 images were rejected.*Allow more; or repair them, and") as e:
            pixpack.packed(images, out, overwrite=replaces, **OPTIONS)
    where = re.search(r"rejected\.jsonl in ([^ ]*)\. ", str(e.value))
    assert where is not None
    assert (Path(where[1]) / "rejected.jsonl").stat().st_size
    (images / "class0/000.jpg").write_bytes(good)
    if replaces:
        assert len(MemmapDataset(out)) == 24
        shutil.rmtree(str(e.value).rpartition("and remove ")[2].partition(":")[0])
    else:
        command = str(e.value).rpartition("and run: ")[2]
        assert command == f"pack update {images} {out}"
        subprocess.run([*PACK, *shlex.split(command)[1:]], check=True)
    assert len(pixpack.packed(images, out, overwrite=replaces, **OPTIONS)) == 24
