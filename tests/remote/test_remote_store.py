"""A store at a URL: the rows and batches of a local one, each block fetched once, and a cache that many processes may share."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import sizes
import torch
from conftest import Tune, store_bytes
from range_server import RangeServer
from torch.utils.data import DataLoader

from packer import pack, pull, push
from reader import MemmapDataset, MemmapLoader, StoreError
from reader.format.filesystem import size_text
from reader.format.manifest import MANIFEST, PIXELS
from reader.remote.store import RemoteStore, cache_bytes

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")

ROW = 16 * 16 * 3
BLOCK = 8 * ROW
STORE = 400 * ROW


@pytest.fixture(autouse=True)
def _small_blocks(tune: Tune) -> None:
    """Blocks of 8 rows, as the store has them, in windows of 4."""
    tune(shuffle_block_bytes=BLOCK, shuffle_window_blocks=4, batch_group_bytes=4 * BLOCK)


@pytest.fixture
def remote(range_server: RangeServer, tmp_path: Path) -> MemmapDataset:
    return MemmapDataset(range_server.url, cache=tmp_path / "cache")


def fetched(server: RangeServer) -> int:
    """The bytes of pixels that were sent."""
    return sum((stop - start) * count for (name, start, stop), count in server.asked.items() if name == PIXELS)


def blocks_in(dataset: MemmapDataset) -> list[Path]:
    """The files of blocks in the cache."""
    return [*(dataset.path / "blocks").iterdir()]


def used(folder: Path) -> int:
    """The bytes of the blocks in a cache, while others work there."""
    found = 0
    for path in folder.rglob("blocks/*"):
        try:
            found += path.stat().st_size
        except FileNotFoundError:
            continue
    return found


def batches(dataset: MemmapDataset, **options: Any) -> list[Any]:
    """The batches of a pass in blocks."""
    options = {"shuffle": "block", "seed": 3} | options
    return list(MemmapLoader(dataset, 32, as_tuple=False, **options))


def are_same(found: list[Any], expected: list[Any]) -> bool:
    """Whether batches have the same rows, pixels and targets."""
    return len(found) == len(expected) and all(
        torch.equal(a.pixels, b.pixels) and torch.equal(a.targets, b.targets) and torch.equal(a.rows, b.rows)
        for a, b in zip(found, expected, strict=True)
    )


# -- the bytes of a local store


def test_every_way_to_index_gives_the_bytes_of_the_local_store(remote: MemmapDataset, many_blocks: Path) -> None:
    local = MemmapDataset(many_blocks)
    for index in (3, -1, slice(5, 50), slice(None, None, 7), [399, 0, 8], torch.tensor([7, 7])):
        for found, expected in zip(remote[index], local[index], strict=True):
            assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected))
    assert (remote.source(1), remote.classes) == (local.source(1), local.classes)
    with pytest.raises(
        StoreError, match=r"is at a URL, and views are of files here\. Copy it first: pack pull URL OUT"
    ):
        _ = remote.store


def test_it_is_pulled_from_a_web_server_as_it_is(range_server: RangeServer, many_blocks: Path, tmp_path: Path) -> None:
    pull(range_server.url, tmp_path / "out")
    assert store_bytes(tmp_path / "out") == store_bytes(many_blocks)


def test_a_pushed_split_is_read_from_a_folder(many_blocks: Path, tmp_path: Path) -> None:
    push(many_blocks, f"file://{tmp_path}/far/train")
    remote = MemmapDataset(f"file://{tmp_path}/far", split="train", cache=tmp_path / "cache")
    assert torch.equal(remote[5][0], MemmapDataset(many_blocks)[5][0])


# -- what is fetched


def test_opening_fetches_no_pixel_and_a_row_its_block_alone(range_server: RangeServer, remote: MemmapDataset) -> None:
    assert fetched(range_server) == 0
    assert not (remote.path / "samples.jsonl").exists()
    remote[100], remote[101]
    assert fetched(range_server) == BLOCK
    remote.source(5)
    assert (remote.path / "samples.jsonl").exists()


def test_an_epoch_fetches_each_block_once_and_the_next_one_none(
    range_server: RangeServer, remote: MemmapDataset
) -> None:
    for shuffle in ("block", "full", False):
        batches(remote, shuffle=shuffle)
        assert fetched(range_server) == STORE


@pytest.mark.parametrize("seed", range(3))
def test_an_epoch_over_a_cache_of_a_quarter_fetches_little_more_than_the_store(
    range_server: RangeServer, tmp_path: Path, many_blocks: Path, seed: int
) -> None:
    remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=STORE // 4)
    local = MemmapDataset(many_blocks)
    loaders = [MemmapLoader(data, 32, shuffle="block", seed=seed, as_tuple=False) for data in (remote, local)]
    for _ in range(4):
        before = fetched(range_server)
        assert are_same(list(loaders[0]), list(loaders[1]))
        assert fetched(range_server) - before <= 1.15 * STORE
        assert used(tmp_path) <= STORE // 4


def test_the_blocks_of_the_first_batch_are_asked_for_first(range_server: RangeServer, remote: MemmapDataset) -> None:
    first = next(iter(MemmapLoader(remote, 8, shuffle="block", seed=1, as_tuple=False)))
    asked = [start // BLOCK for name, start, _ in range_server.asked if name == PIXELS]
    needed = {int(row) // 8 for row in first.rows}
    assert {*asked[: len(needed) + 16]} >= needed


def test_the_order_of_a_store_at_a_url_is_block(remote: MemmapDataset) -> None:
    assert MemmapLoader(remote, 8, shuffle=True).order == "block"


def test_a_subset_fetches_its_blocks_alone(range_server: RangeServer, remote: MemmapDataset) -> None:
    batches(remote.subset(range(80, 96)))
    assert fetched(range_server) == 2 * BLOCK


# -- many processes


def _same(dataset: MemmapDataset, expected: torch.Tensor) -> None:
    torch.set_num_threads(1)
    os._exit(0 if torch.equal(dataset[[5, 350]][0], expected) else 1)


def test_a_forked_process_reads(remote: MemmapDataset, many_blocks: Path) -> None:
    expected = MemmapDataset(many_blocks)[[5, 350]][0]
    remote[0]
    if not (pid := os.fork()):
        _same(remote, expected)
    assert os.waitpid(pid, 0)[1] == 0
    assert torch.equal(remote[[5, 350]][0], expected)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_dataloader_share_one_cache(
    range_server: RangeServer, remote: MemmapDataset, many_blocks: Path, context: str
) -> None:
    loader = DataLoader(remote, 50, num_workers=2, multiprocessing_context=context)
    found = torch.cat([images for images, _ in loader])
    assert torch.equal(found, MemmapDataset(many_blocks)[:][0])
    assert fetched(range_server) == STORE


def test_it_pickles_to_a_url_and_opens_again_without_a_network(
    range_server: RangeServer, remote: MemmapDataset
) -> None:
    row, requests = remote[3][0], range_server.asked.total()
    again = pickle.loads(pickle.dumps(remote))
    assert torch.equal(again[3][0], row)
    assert range_server.asked.total() == requests


_PROGRAM = """
import sys, torch
sys.path.append(sys.argv.pop())
from sizes import set_sizes
from reader import MemmapDataset, MemmapLoader
torch.set_num_threads(1)
set_sizes()
url, cache, local, seed = sys.argv[1:]
remote, local = MemmapDataset(url, cache=cache, cache_size=90_000), MemmapDataset(local)
while True:
    for a, b in zip(*(MemmapLoader(d, 32, shuffle="block", seed=int(seed), as_tuple=False) for d in (remote, local))):
        assert torch.equal(a.pixels, b.pixels)
    print("epoch", flush=True)
"""


def _program(server: RangeServer, cache: Path, local: Path, seed: int) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        "-c",
        _PROGRAM,
        server.url,
        str(cache),
        str(local),
        str(seed),
        str(Path(sizes.__file__).parent),
    ]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_programs_share_a_small_cache_whichever_of_them_are_killed(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path
) -> None:
    """The bound holds at any moment, and no row is another one's."""
    programs = [_program(range_server, tmp_path, many_blocks, seed) for seed in range(2)]
    ends, most, draw = threading.Event(), [0], random.Random(0)

    def look() -> None:
        while not ends.is_set():
            most[0] = max(most[0], min(used(tmp_path), used(tmp_path)))
            time.sleep(0.005)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for number in range(4):
            assert programs[0].stdout.readline() == "epoch\n"  # type: ignore[union-attr]
            time.sleep(draw.random() / 5)
            os.killpg(programs[0].pid, signal.SIGKILL)
            programs[0].communicate()
            programs = [programs[1], _program(range_server, tmp_path, many_blocks, 2 + number)]
        assert all(program.stdout.readline() == "epoch\n" for program in programs)  # type: ignore[union-attr]
    finally:
        ends.set()
        looking.join()
        for program in programs:
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()
    assert 0 < most[0] <= 90_000


def test_a_fetcher_that_was_killed_is_one_error_and_the_next_read_has_another(
    remote: MemmapDataset, many_blocks: Path
) -> None:
    store: Any = remote._opened.remote
    store._process.kill()
    store._process.wait()
    with pytest.raises(StoreError, match="was killed. Read again: a new one is started"):
        remote[3]
    assert torch.equal(remote[3][0], MemmapDataset(many_blocks)[3][0])


def test_a_fetcher_ends_with_its_process(range_server: RangeServer, tmp_path: Path) -> None:
    program = (
        "import sys, os; from reader import MemmapDataset\n"
        "d = MemmapDataset(sys.argv[1], cache=sys.argv[2]); d[0]; print(d._opened.remote._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    words = [sys.executable, "-c", program, range_server.url, str(tmp_path)]
    pid = int(subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout)
    for _ in range(1000):
        if not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            break
        time.sleep(0.01)
    else:
        pytest.fail("it lives on")


# -- what goes wrong


def test_a_server_that_fails_for_a_while_is_asked_again(
    range_server: RangeServer, remote: MemmapDataset, many_blocks: Path
) -> None:
    troubles = iter([503, "cut", 429])
    range_server.trouble = lambda name, count: next(troubles, None) if name == PIXELS else None
    assert torch.equal(remote[3][0], MemmapDataset(many_blocks)[3][0])


def test_an_error_reaches_the_loop_and_the_epoch_is_resumed(
    range_server: RangeServer, remote: MemmapDataset, many_blocks: Path
) -> None:
    loader = MemmapLoader(remote, 32, shuffle="block", seed=0, as_tuple=False)
    expected = list(MemmapLoader(MemmapDataset(many_blocks), 32, shuffle="block", seed=0, as_tuple=False))
    range_server.trouble = lambda name, count: 403 if name == PIXELS and fetched(range_server) > STORE // 2 else None
    found: list[Any] = []
    with pytest.raises(StoreError, match=r"pixels.memmap cannot be read: .*403 Forbidden\. Look at the URL"):
        found.extend(loader)
    range_server.trouble = lambda name, count: None
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert are_same(found + list(loader), expected)


@pytest.mark.parametrize(("name", "most_bytes"), [(MANIFEST, 256 << 20), ("samples.jsonl", 0), (PIXELS, 0)])
def test_an_answer_without_an_end_is_given_up(
    name: str, most_bytes: int, range_server: RangeServer, tmp_path: Path
) -> None:
    range_server.trouble = lambda asked, count: "endless" if asked == name else None

    def read() -> None:
        data = MemmapDataset(range_server.url, cache=tmp_path)
        data.source(0), data[0]

    with pytest.raises(StoreError):
        read()
    # what is read ahead, and what the system's buffers hold
    assert 0 < range_server.endless_bytes <= most_bytes + (32 << 20)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 1 << 20


@pytest.mark.parametrize("change", ["flipped", "short", "missing"])
def test_a_block_that_is_not_what_the_manifest_says_is_named_and_no_byte_of_it_read(
    many_blocks: Path, tmp_path: Path, change: str
) -> None:
    push(many_blocks, f"file://{tmp_path}/far")
    pixels = tmp_path / "far" / PIXELS
    data = pixels.read_bytes()
    remote = MemmapDataset(f"file://{tmp_path}/far", cache=tmp_path / "cache")
    if change == "missing":
        pixels.unlink()
    else:
        pixels.write_bytes(data[:100] if change == "short" else bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(
        StoreError, match=f"far: (block 0 of its pixels does not match|there is no {PIXELS}|{PIXELS} cannot)"
    ):
        remote[0]
    assert not blocks_in(remote) or all(path.suffix == ".part" for path in blocks_in(remote))
    pixels.write_bytes(data)
    assert torch.equal(remote[0][0], MemmapDataset(many_blocks)[0][0])


def test_a_block_that_was_cut_short_or_left_half_is_fetched_again(remote: MemmapDataset, many_blocks: Path) -> None:
    remote[0]
    (block,) = blocks_in(remote)
    os.truncate(block, 100)
    block.with_name("1.part").write_bytes(b"x" * 2 * BLOCK)
    for row in (0, 8):
        assert torch.equal(remote[row][0], MemmapDataset(many_blocks)[row][0])
    assert block.stat().st_size == block.with_name("1").stat().st_size == BLOCK


def test_a_store_that_was_replaced_is_another_one(images: Path, many_blocks: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/far"
    push(many_blocks, url)
    before = MemmapDataset(url, cache=tmp_path / "cache")
    pack(images, tmp_path / "out", size=16)
    push(tmp_path / "out", url, overwrite=True)
    with pytest.raises(StoreError, match="does not match its manifest|cannot be read"):
        before[399]
    after = MemmapDataset(url, cache=tmp_path / "cache")
    assert torch.equal(after[5][0], MemmapDataset(tmp_path / "out")[5][0])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs cache=FOLDER"),
        ({"cache": "cache", "cache_size": "much"}, "cache_size is 'much', expected bytes or a size such as '200GB'"),
        ({"cache": "cache", "cache_size": 1000}, "cache_size is .*, expected 8 blocks or more"),
        ({"cache": "cache", "split": "val"}, "val: there is no manifest.json. Expected a store that was pushed there"),
        ({"cache": f"/dev/null/{MANIFEST}"}, "Not a directory"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, StoreError), match=says):
        MemmapDataset(range_server.url, **options)


def test_a_cache_without_a_url_is_refused(many_blocks: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="are for a store at a URL"):
        MemmapDataset(many_blocks, cache=tmp_path)


@pytest.mark.parametrize(("blocks", "need"), [(16, 32 * BLOCK), (32, STORE)])
def test_a_cache_below_two_windows_and_the_store_is_refused(
    range_server: RangeServer, tmp_path: Path, tune: Tune, blocks: int, need: int
) -> None:
    tune(shuffle_window_blocks=blocks)
    remote = MemmapDataset(range_server.url, cache=tmp_path, cache_size=20 * BLOCK)
    with pytest.raises(ValueError, match=f"and shuffle='block' needs {size_text(need)}"):
        next(iter(MemmapLoader(remote, 8, shuffle="block")))
    next(iter(MemmapLoader(remote, 8, shuffle="full")))


def test_sizes_are_read() -> None:
    found = [cache_bytes(size) for size in (None, 5, "7B", "1.5 KB", "200GB", "2TB")]
    assert found == [None, 5, 7, 1500, 200 * 10**9, 2 * 10**12]


# -- the room


def test_the_rest_of_the_reader_does_without_the_room(many_blocks: Path) -> None:
    program = (
        "import sys; sys.modules['reader.remote'] = None\n"
        "from reader import MemmapDataset, MemmapLoader\n"
        "d = MemmapDataset(sys.argv[1]); print(sum(len(y) for x, y in MemmapLoader(d, 32, shuffle='block')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(many_blocks)], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == "400\n"


def test_the_files_of_a_cache_hold_no_credentials(
    many_blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-mine")
    remote = RemoteStore(f"file://{many_blocks}", tmp_path)
    remote.file("samples.jsonl")
    assert all(b"a-secret-of-mine" not in content for content in store_bytes(remote.root).values())
