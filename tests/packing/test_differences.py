"""What a refused resume names, and that the command which an unfinished store names resumes it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import interrupt_after, photo, store_bytes

from packer import PackError, pack, pack_dataset, update
from packer.cli.app import run
from packer.option_names import COMMAND, named_for
from packer.options import PackOptions
from packer.store.state import check_finished
from packer.text import names_difference, options_difference
from pixpack import packed
from reader import IncompleteStoreError, MemmapDataset

pytestmark = pytest.mark.usefixtures("small_blocks")


def interrupted(images: Path | str, out: Path, **options: Any) -> Path:
    with pytest.raises(KeyboardInterrupt):
        pack(images, out, **{"size": 32, "workers": 1, "progress": interrupt_after(12)} | options)
    return out


def add(images: Path, *names: str) -> None:
    for name in names:
        (images / name).parent.mkdir(exist_ok=True)
        photo(40, 40, 5).save(images / name)


CHANGES: dict[str, Callable[[Path], Any]] = {
    "a new image": lambda i: add(i, "class0/0001.jpg"),
    "an image is gone": lambda i: (i / "class1/000.jpg").unlink(),
    "another name": lambda i: (i / "class2/007.jpg").rename(i / "class2/008.jpg"),
    "a source shrank": lambda i: os.truncate(i / "class1/000.jpg", 200),
    "a source grew": lambda i: os.truncate(i / "class1/000.jpg", 20_000),
    "a new class": lambda i: add(i, "class1b/a.jpg"),
    "another class": lambda i: (i / "class1").rename(i / "dogs"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_inputs_are_refused(images: Path, tmp_path: Path, name: str) -> None:
    change, is_listed_alike = CHANGES[name], name.startswith("a source")
    out = interrupted(images, tmp_path / "out")
    pack(images, tmp_path / "finished", size=32)
    change(images)
    with pytest.raises(PackError, match="finished is finished, but with other inputs.*pack update"):
        pack(images, tmp_path / "finished", size=32)
    if is_listed_alike:  # what changed, and all behind it, is packed again
        assert pack(images, out, size=32, max_rejects=1).inputs == 24
        return
    with pytest.raises(PackError, match="out was started with other inputs. Continue with the same, or start over"):
        pack(images, out, size=32)


@pytest.mark.parametrize("kind", ["target", "extra", "order"])
def test_a_list_of_other_labels_or_another_order_is_refused(images: Path, tmp_path: Path, kind: str) -> None:
    rows = [(path.relative_to(images), path.parent.name, n) for n, path in enumerate(sorted(images.rglob("*.jpg")))]
    listed = tmp_path / "list.csv"

    def write() -> None:
        listed.write_text("\n".join(["path,target,extra", *(",".join(map(str, row)) for row in rows), ""]))

    write()
    out = interrupted(listed, tmp_path / "out", root=images)
    pack(listed, tmp_path / "finished", size=32, root=images)
    changed = {
        "target": [(rows[0][0], "class2", 0), rows[1]],
        "extra": [(*rows[0][:2], 9), rows[1]],
        "order": rows[1::-1],
    }
    rows[:2] = changed[kind]
    write()
    with pytest.raises(PackError, match="out was started with other inputs"):
        pack(listed, out, size=32, root=images)
    command = rf"pack update {listed} {tmp_path / 'finished'} --root {images}"
    with pytest.raises(PackError, match=f"is finished, but with other inputs.*{command}$"):
        pack(listed, tmp_path / "finished", size=32, root=images)


def _exchange(one: Path, other: Path) -> None:
    aside = one.with_suffix(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _swap(images: Path) -> None:
    _exchange(images / "class0/000.jpg", images / "class1/000.jpg")


def _rewrite(images: Path) -> None:
    path = images / "class0/000.jpg"
    status, data = path.stat(), bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# Times that no clock but a wrong one gives: of 1901, and of 2400, when nanoseconds do not fit 64 bits.
@pytest.mark.parametrize(("change", "seconds"), [(_swap, -(1 << 31)), (_rewrite, 13_569_465_600)])
def test_bytes_that_change_at_the_same_size_and_mtime_are_seen(
    images: Path, tmp_path: Path, change: Callable[[Path], None], seconds: int
) -> None:
    for path in images.rglob("*.jpg"):  # as of files that were unpacked: all of one size and time
        path.write_bytes(path.read_bytes().ljust(4000, b"\0"))
        os.utime(path, (seconds, seconds))
    out = interrupted(images, tmp_path / "out")
    pack(images, tmp_path / "finished", size=32)
    change(images)
    assert pack(images, out, size=32).changed_paths[0] == "class0/000.jpg"
    for repeat in (pack, packed):
        with pytest.raises(PackError, match="is finished, but with other inputs"):
            repeat(images, tmp_path / "finished", size=32)
    pack(images, tmp_path / "reference", size=32)
    assert store_bytes(out) == store_bytes(tmp_path / "reference")
    update(images, tmp_path / "finished")
    assert store_bytes(tmp_path / "finished") == store_bytes(tmp_path / "reference")


def test_names_that_are_the_same_differ_in_nothing() -> None:
    assert names_difference(["a", "b"], ["b", "a"]) == ""


def test_an_option_that_only_one_side_has_is_named() -> None:
    assert options_difference({"fit": "pad"}, {"fit": "pad", "exact": True}) == " (without exact, now with it)"
    assert options_difference({"fit": "pad", "shuffle": 0}, {"fit": "pad"}) == " (with shuffle=0, now without)"
    requantized = PackOptions(requantize=3).shaping()
    assert options_difference(PackOptions().shaping(), requantized) == " (without requantize=3, now with it)"
    with named_for(COMMAND):
        assert options_difference({"shuffle": None}, {"shuffle": 0}) == " (without --shuffle 0, now with it)"
        assert options_difference({"size": [8, 8]}, {"size": [8, 9]}) == " (--size 8, now --size 8x9)"
        assert options_difference({"missing": ["-", "no"]}, {"missing": ["-"]}) == (
            " (--missing - --missing no, now --missing -)"
        )


# -- the command to resume with


def named_command(out: Path) -> list[str]:
    """Return the command that any command on OUT names, without `pack`; a new pack of it names the same."""
    with named_for(COMMAND), pytest.raises(IncompleteStoreError) as caught:
        check_finished(out)
    program, *words = shlex.split(str(caught.value).partition("Continue with: ")[2])
    assert program == "pack"
    return words


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"size": "30x40", "fit": "pad", "channels": "gray", "resample": "bicubic", "exact": True},
        {"crop_fraction": 0.875, "shuffle": 7, "max_rejects": "5%"},
        {"size": None, "fit": "none", "max_size": 40},
        {"classes": "names.txt"},
    ],
    ids=["size", "fit", "shuffle", "own sizes", "classes"],
)
def test_the_command_that_an_unfinished_store_names_resumes_from_any_folder(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("class2\nclass1\nclass0\n")
    Path("my images").symlink_to(images)
    out = interrupted("my images", tmp_path / "out", **options)
    words = named_command(out)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run([*words, "--quiet"]) == 0
    monkeypatch.chdir(tmp_path)
    pack(images, "reference", **{"size": 32} | options)
    assert store_bytes(out) == store_bytes(tmp_path / "reference")


@pytest.mark.usefixtures("small_blocks")
def test_the_command_of_a_list_on_standard_input_wants_the_list_again(images: Path, tmp_path: Path) -> None:
    listed = "".join(f"{path}\n" for path in sorted(images.rglob("*.jpg")))
    script = (
        "import packer\n"
        "def stop(progress):\n    if progress.stage == 'pack' and progress.done >= 12:\n        raise SystemExit\n"
        f"packer.pack('-', {str(tmp_path / 'out')!r}, size=32, workers=1, progress=stop)\n"
    )
    subprocess.run([sys.executable, "-c", script], input=listed, text=True, check=True)
    words = named_command(tmp_path / "out")
    assert words == ["-", str(tmp_path / "out"), "--size", "32"]
    resuming = "import sys; from packer.cli.app import run; sys.exit(run(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", resuming, *words, "--quiet"], input=listed, text=True, check=True)
    assert len(MemmapDataset(tmp_path / "out")) == 24


def test_a_dataset_is_resumed_by_the_same_call(tmp_path: Path) -> None:
    items = [(photo(32, 32, n), n) for n in range(24)]
    with pytest.raises(KeyboardInterrupt):
        pack_dataset(items, tmp_path / "out", workers=1, progress=interrupt_after(12))
    with pytest.raises(IncompleteStoreError, match=f"the same call of pack_dataset, with out='{tmp_path}/out'"):
        check_finished(tmp_path / "out")
    assert pack_dataset(items, tmp_path / "out", workers=1).rows == 24


def test_many_changed_sources_are_counted_and_the_first_few_named(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = interrupted(images, tmp_path / "out")
    for path in images.glob("class0/*.jpg"):
        photo(50, 50, 3).save(path)
    photo(50, 50, 3).save(images / "class2/007.jpg")  # not packed yet: no change
    assert run([str(images), str(out), "--size", "32"]) == 0
    names = "class0/000.jpg, class0/001.jpg, class0/002.jpg, class0/003.jpg, class0/004.jpg and 3 more"
    assert (
        f"{names} changed since the pack was interrupted: all images from the block of the first"
        in capsys.readouterr().out
    )
    pack(images, tmp_path / "reference", size=32)
    assert store_bytes(out) == store_bytes(tmp_path / "reference")
