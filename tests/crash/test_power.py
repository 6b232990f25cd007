"""Failing calls, and what tests/laws/test_crashes.py relies on: the check of the order of syncs, and the disk.

The complete enumerations are power_test.py and fault_test.py in tests/crash.
"""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest
from conftest import stress

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="the shim needs LD_PRELOAD and a C compiler"
)


@pytest.mark.nightly
def test_a_call_that_fails_is_reported_and_costs_nothing() -> None:
    words = ("crash.fault_test", "--kinds", "fresh", "--images", "16")
    assert stress(*words, "--every", "6", "--faults", "EIO")["fresh"]["EIO"]["spoiled"] > 10
    result = stress(*words, "--every", "12", "--faults", "ENOSPC", "short", "lost", "unread")["fresh"]
    assert result["ENOSPC"]["spoiled"] > 2
    assert result["short"]["succeeded"] == result["short"]["spoiled"] > 0
    assert result["unread"]["succeeded"] == result["unread"]["spoiled"] > 1


def test_a_sync_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the order can fail: a made-up record, right, and then without each of its syncs."""
    from tests.crash._calls import Call
    from tests.crash._order import SyncOrderError, check_order

    out = "/disk/out"
    calls = [
        Call("mkdir", out),
        Call("mkdir", f"{out}/.packing"),
        Call("fsync", out),
        Call("mkdir", f"{out}/_tensordict"),
        Call("create", f"{out}/_tensordict/pixels.memmap"),
        Call("mkdir", f"{out}/_tensordict/extras"),
        Call("create", f"{out}/_tensordict/extras/masks.memmap"),
        *(Call("fsync", folder) for folder in (f"{out}/_tensordict/extras", f"{out}/_tensordict", out, "/disk")),
        Call("create", f"{out}/.packing/journal"),
        Call("write", f"{out}/.packing/journal", data=b"00000000 {}\n"),
        Call("fsync", f"{out}/.packing/journal"),
        Call("fsync", f"{out}/.packing"),
        Call("pwrite", f"{out}/_tensordict/pixels.memmap", data=b"row"),
        Call("pwrite", f"{out}/_tensordict/extras/masks.memmap", data=b"row"),
        Call("fdatasync", f"{out}/_tensordict/pixels.memmap"),
        Call("fdatasync", f"{out}/_tensordict/extras/masks.memmap"),
        Call("write", f"{out}/.packing/journal", data=b'00000000 {"rows":1,"rows_stop":1}\n'),
        Call("create", f"{out}/meta.json"),
        Call("write", f"{out}/meta.json", data=b"{}"),
        Call("fsync", f"{out}/meta.json"),
        Call("fsync", out),
        Call("create", f"{out}/.manifest.json.tmp"),
        Call("write", f"{out}/.manifest.json.tmp", data=b"{}"),
        Call("fsync", f"{out}/.manifest.json.tmp"),
        Call("rename", f"{out}/.manifest.json.tmp", f"{out}/manifest.json"),
        Call("fsync", out),
        Call("unlink", f"{out}/.packing/journal"),
    ]
    assert check_order(calls, Path("/disk")) == 1
    syncs = [n for n, call in enumerate(calls) if call.name in ("fsync", "fdatasync")]
    assert len(syncs) == 13
    for n in syncs:
        with pytest.raises(SyncOrderError):
            check_order(calls[:n] + calls[n + 1 :], Path("/disk"))
    with pytest.raises(SyncOrderError, match="has its manifest already"):
        check_order([*calls, Call("write", f"{out}/samples.jsonl", data=b"{}")], Path("/disk"))


def test_the_disk_keeps_what_was_synced_and_nothing_for_certain_besides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.crash._calls import Call
    from tests.crash._disk import Disk

    (tmp_path / "old").write_bytes(b"old")
    disk, root = Disk(tmp_path), str(tmp_path.resolve())
    for call in (
        Call("create", f"{root}/a"),
        Call("write", f"{root}/a", data=b"one"),
        Call("fsync", f"{root}/a"),
        Call("write", f"{root}/a", data=b"two", offset=3),
    ):
        disk.apply(call)
    # synced bytes, but no name yet
    assert disk.only_synced() == {"old": b"old"}
    assert disk.all_names() == {"old": b"old", "a": b"one"}
    disk.apply(Call("rename", f"{root}/a", f"{root}/old"))
    assert disk.everything() == {"old": b"onetwo"}
    disk.apply(Call("fsync", root))
    assert disk.only_synced() == {"old": b"one"}
    found = {str(disk.some(random.Random(seed))) for seed in range(40)}
    # a sector is written whole: of "one" and "onetwo" the size tells which, or zeros where it has grown alone
    assert found == {str({"old": content}) for content in (b"one", b"onetwo", b"one\0\0\0")}


def test_the_disk_may_write_one_file_before_or_behind_another(tmp_path: Path) -> None:
    from tests.crash._calls import Call
    from tests.crash._disk import Disk

    (tmp_path / "rows").write_bytes(b"..")
    (tmp_path / "marks").write_bytes(b"0")
    disk, root = Disk(tmp_path), str(tmp_path.resolve())
    disk.apply(Call("mapped", f"{root}/marks", data=b"1"))
    disk.apply(Call("pwrite", f"{root}/rows", data=b"ab"))
    assert {(tree["rows"], tree["marks"]) for tree in disk.apart()} == {(b"..", b"1"), (b"ab", b"0")}
    disk.apply(Call("msync", f"{root}/marks"))
    disk.apply(Call("punch", f"{root}/rows", data=b"\0"))
    assert {(tree["rows"], tree["marks"]) for tree in disk.apart()} == {(rows, b"1") for rows in (b"..", b"ab", b"\0b")}
