"""The command as a user meets it, as far as its transcripts cannot show it: processes, signals, streams, help."""

from __future__ import annotations

import functools
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest
from conftest import PACK, make_splits, store_bytes
from PIL import Image

from packer.cli.app import cli, run
from packer.errors import Terminated


@pytest.mark.parametrize(
    ("split", "out", "options", "loader"),
    [
        (
            "train",
            "out",
            "--size 32",
            "train, batch_size=256, shuffle=True, transform=transforms.RandomHorizontalFlip()",
        ),
        (
            "train",
            "out",
            "--fit none",
            "train, batch_size=256, shuffle=True, transform=transforms.RandomResizedCrop(224)",
        ),
        ("train", "val", "--size 32", "val, batch_size=256"),
        ("test", "out", "--size 32", "val, batch_size=256"),
        ("train", "out-val", "--fit none", "val, batch_size=256, transform=transforms.ResizeCenterCrop(224)"),
    ],
)
def test_the_lines_behind_a_pack_are_a_program_that_reads_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], split: str, out: str, options: str, loader: str
) -> None:
    make_splits(tmp_path / "images", ("test", "train"), each=3)
    assert run([str(tmp_path / "images" / split), str(tmp_path / out), *options.split()]) == 0
    step = capsys.readouterr().out.partition(" it:\n")[2]
    assert f"MemmapLoader({loader})" in step
    assert len(step.splitlines()) == 6
    names: dict[str, Any] = {"model": lambda images: images, "criterion": lambda outputs, targets: len(targets)}
    exec(textwrap.dedent(step), names)
    assert names["loss" if "train" in loader else "outputs"] is not None
    assert names["images"].shape[:2] == (9, 3)


def test_the_lines_behind_a_pack_of_splits_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_splits(tmp_path / "images", ("test", "train"), each=3)
    words = [str(tmp_path / "images"), str(tmp_path / "out"), "--size", "32"]
    assert run(words) == 0
    assert f'train = MemmapDataset("{tmp_path / "out/train"}")' in capsys.readouterr().out
    assert run(words) == 0
    assert "MemmapDataset" not in capsys.readouterr().out


def test_options_may_come_first_and_build_may_be_named(images: Path, tmp_path: Path) -> None:
    assert run(["--size", "32", "--quiet", str(images), str(tmp_path / "a")]) == 0
    assert run(["build", str(images), str(tmp_path / "b"), "--size", "32", "--quiet"]) == 0
    assert store_bytes(tmp_path / "a") == store_bytes(tmp_path / "b")


@pytest.mark.parametrize(("folder", "named"), [(".", "."), ("_tensordict", "..")])
def test_the_sheet_of_the_current_folder_is_beside_it(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: str, named: str
) -> None:
    before = store_bytes(store)
    monkeypatch.chdir(store / folder)
    assert run(["show", named, "--count", "12"]) == 0
    sheet = store.with_name("store-sheet.png")
    assert capsys.readouterr().out == f"{sheet}\n"
    with Image.open(sheet) as image:
        assert image.size == (8 * 134 + 6, 2 * 150 + 6)
    assert store_bytes(store) == before


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("IMAGES TMP/out --fit zoom", 2, "--fit is 'zoom', expected crop, pad, squash, inside or none."),
        ("IMAGES TMP/out --size 0x8", 2, "--size is 0x8, expected 1 to 16384 pixels a side."),
        ("IMAGES TMP/out --crop-fraction nan", 2, "--crop-fraction is nan, expected 0.05 to 1."),
        ("IMAGES TMP/out --shuffle x", 2, "--shuffle is 'x', expected an integer of 0 or more."),
        ("IMAGES TMP/out --size 8 --masks ''", 2, "--masks is '', expected a path."),
        ("IMAGES TMP/file --size 8", 2, "file is a file"),
        ("IMAGES /proc/out --size 8", 1, "/proc/out.packing cannot be made"),
        ("TMP/none IMAGES TMP/out --size 8", 2, "none is no tar. Several IMAGES can be packed"),
        ("build", 2, "See: pack build --help"),
        ("subset", 2, "Missing argument 'STORE'. See: pack subset --help"),
        ("subset -- none/ out/", 2, "nothing says which rows of none/"),
        ("verify --json=x", 2, "See: pack verify --help"),
        ("show out 5", 2, "Got unexpected extra argument (5). See: pack show --help"),
        ("show STORE --rows 90 -o TMP/x.png", 2, "row 90 is out of range"),
        ("show STORE --rows 0-10000 -o TMP/x.png", 2, "--rows names 10,001 rows, expected up to 10,000."),
        ("show STORE -o TMP/no/x.png", 1, "x.png: No such file or directory (ENOENT)."),
        ("show STORE -o /dev/full", 28, "/dev/full: No space left on device"),
        ("seal TMP/pipe", 1, "holds no part of a pack"),
        ("-- none/ out/", 2, "none does not exist"),
    ],
)
def test_bad_input_is_one_sentence_and_the_right_code(
    images: Path,
    shared_store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    code: int,
    text: str,
) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    paths = {"IMAGES": images, "TMP": tmp_path, "STORE": shared_store}
    words = [re.sub("IMAGES|TMP|STORE", lambda match: str(paths[match[0]]), word) for word in shlex.split(arguments)]
    assert run(words) == code
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith("pack: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [None, *sorted(cli.commands)])
def test_help_names_every_option_and_shows_examples_a_line_each(
    command: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*([command] if command else []), "--help"]) == 0
    text = capsys.readouterr().out
    found = cli.commands[command] if command else cli
    options = {param.opts[-1] for param in found.params if isinstance(param, click.Option)}
    assert {option for option in options if not re.search(rf"(?m)^  .*{option}\b", text)} == set()
    examples = re.findall(r"(?m)^ +((?:pack|find|seq|for) .*)$", (found.help or "").partition("Examples:")[2])
    assert examples
    assert {line for line in examples if line not in text} == set()
    assert len(text.splitlines()) <= 50
    if command is None:
        assert re.findall(r"(?m)^  (\w+) ", text.partition("Commands:")[2]) == [*cli.commands]


def test_help_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys\nfrom packer.cli.app import run\nrun(['--help'])\nprint({'torch', 'numpy', 'PIL'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")


def test_shell_completion_knows_the_commands() -> None:
    environment = os.environ | {"_PACK_COMPLETE": "bash_complete", "COMP_WORDS": "pack ver", "COMP_CWORD": "1"}
    done = subprocess.run([*PACK], env=environment, capture_output=True, text=True)
    assert "plain,verify" in done.stdout


def test_a_closed_pipe_is_no_traceback(shared_store: Path) -> None:
    line = f"{shlex.join(PACK)} info {shared_store} --json | head -c 1"
    assert "Traceback" not in subprocess.run(line, shell=True, capture_output=True, text=True).stderr


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (
            "info STORE >/dev/full",
            28,
            "pack: standard output or the current folder: No space left on device (ENOSPC).\n",
        ),
        ("info STORE --json >/dev/full", 28, None),
        ("--version >/dev/full", 28, None),
        ("info --no-such-option 2>/dev/full", 2, ""),
        ("info STORE >/dev/full 2>/dev/full", 28, ""),
        ("info STORE >&-", 0, ""),
        ("info STORE >&- 2>&-", 0, ""),
        ("info --no-such-option 2>&-", 2, ""),
    ],
)
def test_streams_that_are_full_or_closed_change_no_exit_code(
    shared_store: Path, buffered: str, words: str, code: int, error: str | None
) -> None:
    """Without PYTHONUNBUFFERED what could not be written stays in Python's buffer, and is tried again at exit."""
    line = f"{shlex.join(PACK)} {words.replace('STORE', str(shared_store))}"
    environment = os.environ | {"PYTHONUNBUFFERED": buffered}
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=environment)
    assert done.returncode == code
    assert error is None or done.stderr == error


def test_what_is_left_for_the_end_of_the_process_is_done(tmp_path: Path) -> None:
    """The command ends without taking the interpreter apart."""
    program = (
        "import atexit, sys\nfrom packer.cli.app import main\natexit.register(print, 'done')\n"
        "sys.stdout.write('unfinished line ')\nmain(['info', 'nothing'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "unfinished line done\n")
    assert done.stderr.startswith("pack: nothing ")


def test_memory_and_descriptors_that_are_used_up_are_one_sentence(
    shared_store: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("packer.operations.verify.verify", Mock(side_effect=MemoryError()))
    assert run(["verify", str(shared_store)]) == 1
    assert capsys.readouterr().err == (
        "pack: this process gets no more memory. Free some, or raise its limit (ulimit -v, cgroup).\n"
    )
    line = f"ulimit -n 8; exec {sys.executable} -m packer build {images} {tmp_path / 'out'} --size 32 --workers 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=500)
    assert done.returncode == 1
    assert "Too many open files (EMFILE)" in done.stderr
    assert done.stderr.count("\n") == 1


def test_progress_is_drawn_on_a_terminal_and_nowhere_else(images: Path, tmp_path: Path) -> None:
    plain = subprocess.run([*PACK, str(images), str(tmp_path / "a"), "--size", "32"], capture_output=True, timeout=500)
    # where the machine is slow a log has lines
    assert b"\r" not in plain.stderr
    parent, child = pty.openpty()
    command = [*PACK, str(images), str(tmp_path / "b"), "--size", "32"]
    process = subprocess.Popen(command, stderr=child, stdout=subprocess.PIPE)
    os.close(child)
    seen = b""
    try:
        while piece := os.read(parent, 4096):
            seen += piece
    except OSError:
        pass
    os.close(parent)
    process.communicate(timeout=500)
    assert process.returncode == 0
    assert all(word in seen for word in (b"\r", b"images/s", b"rejected"))


# what a module does that takes its time to import; in a callback, whose exceptions Python only reports
_SLOW_MODULE = """
import os, signal, weakref
class Gone: pass
gone = Gone()
callback = weakref.ref(gone, lambda _: os.kill(os.getpid(), {number}))
del gone
while True: pass
"""


@pytest.mark.usefixtures("delivered_signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("module", ["click", "multiprocessing"])
def test_a_signal_while_modules_are_imported_ends_the_command_without_a_traceback(
    tmp_path: Path, module: str, number: int, code: int
) -> None:
    (tmp_path / f"{module}.py").write_text(_SLOW_MODULE.format(number=int(number)))
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [*PACK, "images", "out", "--size", "32"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("delivered_signals")
def test_a_signal_that_its_parent_ignores_does_not_end_the_command(images: Path, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom packer.cli.app import run\nimport packer.packing.build as p\n"
        "p.check_room = lambda *_: os.kill(os.getpid(), signal.SIGINT)\nsys.exit(run(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", script, str(images), "--size", "32", "--quiet"]
    ignore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    ignored = subprocess.run([*command, str(tmp_path / "ignored")], preexec_fn=ignore, timeout=500)
    assert ignored.returncode == 0
    heard = subprocess.run([*command, str(tmp_path / "heard")], stderr=subprocess.PIPE, timeout=500)
    assert heard.returncode == 130


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["my images", "out", "--quiet"], "pack 'my images' out --quiet"),
        (["-", "out", "--size", "8"], "pack - out --size 8 (with the same standard input)"),
        (["push", "out", "s3://key:secret@host/out"], "pack push out s3://***@host/out"),
    ],
)
def test_an_interrupted_command_prints_the_full_line_to_continue(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, said, code in ((KeyboardInterrupt, "interrupted", 130), (Terminated, "terminated", 143)):
        monkeypatch.setattr("packer.cli.app.cli.main", Mock(side_effect=error))
        assert run(words) == code
        assert capsys.readouterr().err == f"pack: {said}. To continue: {line}\n"
