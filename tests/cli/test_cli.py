"""The command as a user meets it: exit codes, one-line errors, stdout for results, stderr for talk."""

from __future__ import annotations

import functools
import json
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

import pytest
from conftest import PACK, make_splits, make_tree, store_bytes
from PIL import Image

from packer.cli.app import run
from packer.cli.output import EXIT_USAGE


def test_the_main_job(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(images), str(tmp_path / "out"), "--size", "32"]) == 0
    captured = capsys.readouterr()
    assert "24 rows of 32 x 32 x 3, 3 classes" in captured.out
    assert re.search(r"packed 24 of 24 images in \d+\.\d s: [\d,]+ images/s", captured.out)
    assert captured.err == ""
    step = captured.out.partition("to train from it:\n")[2]
    names: dict[str, Any] = {}
    exec(textwrap.dedent(step), names)
    assert names["images"].shape == (24, 3, 32, 32)


def test_the_next_step_names_the_training_set_and_crops_rows_of_their_own_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_splits(tmp_path / "images", ("test", "train"), each=3)
    assert run([str(tmp_path / "images"), str(tmp_path / "out"), "--fit", "none", "--max-size", "48"]) == 0
    step = capsys.readouterr().out.partition("to train from it:\n")[2]
    assert f'MemmapDataset("{tmp_path / "out/train"}")' in step
    assert "MemmapLoader(train, batch_size=256, shuffle=True, transform=transforms.RandomResizedCrop(224))" in step
    names: dict[str, Any] = {}
    exec(textwrap.dedent(step), names)
    assert names["images"].shape == (9, 3, 224, 224)
    assert run([str(tmp_path / "images"), str(tmp_path / "out"), "--fit", "none", "--max-size", "48"]) == 0
    assert run([str(tmp_path / "images"), str(tmp_path / "quiet"), "--fit", "none", "--quiet"]) == 0
    assert capsys.readouterr().out.count("to train from it") == 0


def test_the_next_step_after_a_validation_store_does_not_shuffle(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("out-val", "val"):
        assert run([str(images), str(tmp_path / name), "--fit", "none", "--max-size", "48"]) == 0
        step = capsys.readouterr().out.partition("to validate on it:\n")[2]
        assert "MemmapLoader(val, batch_size=256, transform=transforms.ResizeCenterCrop(224))" in step
        names: dict[str, Any] = {}
        exec(textwrap.dedent(step), names)
        assert names["images"].shape == (24, 3, 224, 224)


def test_options_may_come_first_and_build_may_be_named(images: Path, tmp_path: Path) -> None:
    assert run(["--size", "32", "--quiet", str(images), str(tmp_path / "a")]) == 0
    assert run(["build", str(images), str(tmp_path / "b"), "--size", "32", "--quiet"]) == 0
    assert store_bytes(tmp_path / "a") == store_bytes(tmp_path / "b")


def test_a_folder_named_like_a_command_is_packed_with_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(tmp_path / "info", each=2)
    monkeypatch.chdir(tmp_path)
    assert run(["./info", "out", "--size", "32", "--quiet"]) == 0


def test_json_goes_to_stdout_alone(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (images / "class0/bad.jpg").write_text("x")
    assert run([str(images), str(tmp_path / "out"), "--size", "32", "--json"]) == 3
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert (report["rows"], report["rejected"], report["reasons"]) == (
        24,
        1,
        {"Pillow cannot identify it as an image": 1},
    )
    assert captured.err == (
        f"pack: 1 of 25 inputs was rejected, more than --max-rejects 1%. {tmp_path / 'out'} holds the new store, complete but"
        " for the rejected, and usable.\n"
    )
    assert run(["info", str(tmp_path / "out"), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["rows"], info["classes"]) == (24, ["class0", "class1", "class2"])


def test_rejects_are_summed_up_by_reason(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in range(3):
        (images / f"class0/bad{n}.jpg").write_text("x")
    (images / "class0/empty.jpg").touch()
    assert run([str(images), str(tmp_path / "out"), "--size", "32", "--max-rejects", "20%"]) == 0
    out = capsys.readouterr().out
    assert (
        "rejected 4 (see rejected.jsonl):\n       3 x Pillow cannot identify it as an image\n       1 x the file is empty"
        in out
    )


@pytest.mark.parametrize(("folder", "named"), [(".", "."), (".", "./"), ("_tensordict", "..")])
def test_the_sheet_of_the_current_folder_is_beside_it_with_its_name(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: str, named: str
) -> None:
    before = store_bytes(store)
    monkeypatch.chdir(store / folder)
    assert run(["show", named]) == 0
    sheet = store.with_name("store-sheet.png")
    assert (capsys.readouterr().out, sheet.is_file()) == (f"{sheet}\n", True)
    assert store_bytes(store) == before


def test_info_verify_and_show(shared_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(shared_store)]) == 0
    assert "90 of uint8[32, 32, 3]" in capsys.readouterr().out
    assert run(["verify", str(shared_store)]) == 0
    assert "is intact: 90 rows" in capsys.readouterr().out
    sheet = tmp_path / "sheet.png"
    assert run(["show", str(shared_store), "-o", str(sheet), "--count", "12", "--columns", "4"]) == 0
    assert capsys.readouterr().out == f"{sheet}\n"
    with Image.open(sheet) as image:
        assert image.size == (4 * 134 + 6, 3 * 150 + 6)
    assert run(["show", str(shared_store), "--rows", "7", "--single", "-o", str(tmp_path / "7.png")]) == 0
    pixels = (shared_store / "_tensordict/pixels.memmap").read_bytes()
    with Image.open(tmp_path / "7.png") as image:
        assert image.tobytes() == pixels[7 * 3072 : 8 * 3072]


def test_verify_of_a_damaged_store_names_rows_and_exits_1(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(store / "_tensordict/pixels.memmap", "r+b") as file:
        file.seek(100)
        file.write(b"\0\1\2\3\4\5\6\7")
    before = store_bytes(store)
    assert run(["verify", str(store)]) == 1
    err = capsys.readouterr().err
    assert re.search(r"pixels.memmap, rows 0 to \d+: its pixels are not what was packed", err)
    assert store_bytes(store) == before


def test_the_command_alone_is_answered_by_its_help_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert run(["--help"]) == 0
    assert captured.err == capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["{images}"], 2, "OUT is missing. Expected: pack IMAGES OUT. See: pack build --help"),
        (["{tmp}/none", "{tmp}/out"], 2, "none does not exist. Expected a folder of images"),
        (["{tmp}/empty", "{tmp}/out", "--size", "8"], 2, "empty holds no image"),
        (["{images}", "{tmp}/out", "--size", "0"], 2, "--size is 0, expected 1 to 16384"),
        (["{images}", "{tmp}/out", "--size", "100000"], 2, "--size is 100000"),
        (["{images}", "{tmp}/out", "--size", "x"], 2, "--size is 'x'"),
        (["{images}", "{tmp}/out", "--fit", "zoom"], 2, "'zoom' is not one of"),
        (["{images}", "{tmp}/out", "--nonsense"], 2, "No such option"),
        (["{images}", "{images}/out", "--size", "8"], 2, "is inside IMAGES"),
        (["{images}", "{tmp}/out"], 2, "the images have 8 sizes"),
        (["{images}", "{tmp}/file", "--size", "8"], 2, "file is a file"),
        (["{tmp}/broken", "{tmp}/out", "--size", "8"], 1, "could be packed: its only input was rejected"),
        (["{images}", "{tmp}/full", "--size", "8"], 2, "is not empty"),
        (["{images}", "{tmp}/full", "--size", "8", "--part", "1/2"], 2, "is not empty"),
        (["{images}", "/proc/out", "--size", "8"], 1, "/proc/out.packing cannot be made"),
        (["info", "{tmp}/empty"], 1, "is not a pixpack store"),
        (["verify", "{tmp}/none"], 1, "does not exist"),
        (["show", "{store}", "--rows", "90", "-o", "{tmp}/x.png"], 2, "row 90 is out of range"),
        (["show", "{store}", "--rows", "a", "-o", "{tmp}/x.png"], 2, "--rows is 'a'"),
        (["show", "{store}", "-o", "{tmp}/no/x.png"], 1, "x.png: No such file or directory"),
        (["show", "{store}", "--single", "-o", "{tmp}/x.png"], 2, "--single shows one row"),
        (
            ["{tmp}/none", "{images}", "{tmp}/out", "--size", "8"],
            2,
            "none does not exist. Expected one of several tars",
        ),
        (["show", "{store}", "-o", "/dev/full"], 28, "/dev/full: No space left on device"),
        (
            ["{images}", "{tmp}/out", "--size", "8", "--classes", "{tmp}/none"],
            2,
            "(No such file or directory). Expected a store",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_the_right_code(
    images: Path,
    shared_store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    text: str,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("broken", "full"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jpg").write_text("x")
    filled = [a.format(images=images, tmp=tmp_path, store=shared_store) for a in arguments]
    assert run(filled) == code
    captured = capsys.readouterr()
    assert text in captured.err + captured.out
    assert "Traceback" not in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("pack: ")
    assert not (tmp_path / "out").exists()


def test_help_is_quick_complete_and_has_examples() -> None:
    for command in ([], ["build"], ["info"], ["verify"], ["show"]):
        done = subprocess.run([*PACK, *command, "--help"], capture_output=True, text=True, check=True)
        assert "Examples:" in done.stdout
        assert done.stdout == subprocess.run([*PACK, *command, "-h"], capture_output=True, text=True).stdout
    assert "Exit codes: 0 done" in subprocess.run([*PACK, "-h"], capture_output=True, text=True).stdout


def test_a_closed_pipe_is_no_traceback(shared_store: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m packer info {shared_store} --json | head -c 1", shell=True, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("buffered", ["", "1"])
def test_streams_that_are_full_are_one_sentence_and_the_exit_code(shared_store: Path, buffered: str) -> None:
    """Without PYTHONUNBUFFERED what could not be written stays in Python's buffer, and is tried again at exit."""
    variables = os.environ | {"PYTHONUNBUFFERED": buffered}

    def done(words: str) -> subprocess.CompletedProcess[str]:
        command = f"{shlex.join(PACK)} {words}"
        return subprocess.run(command, shell=True, capture_output=True, text=True, env=variables)

    for words in (f"info {shared_store}", f"info {shared_store} --json", "--version"):
        full = done(f"{words} >/dev/full")
        assert full.returncode == 28
        assert full.stderr == "pack: standard output or the current folder: No space left on device (ENOSPC).\n"
    assert done("info --no-such-option 2>/dev/full").returncode == 2
    assert done(f"info {shared_store} >/dev/full 2>/dev/full").returncode == 28


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_are_closed_change_no_exit_code(shared_store: Path, closed: str) -> None:
    for words, code in ((f"info {shared_store}", 0), ("info --no-such-option", 2)):
        done = subprocess.run(f"{shlex.join(PACK)} {words} {closed}", shell=True, capture_output=True, text=True)
        assert done.returncode == code
        assert "Traceback" not in done.stderr


def test_progress_is_drawn_on_a_terminal_and_nowhere_else(images: Path, tmp_path: Path) -> None:
    words = [*PACK, str(images), str(tmp_path / "a"), "--size", "32"]
    plain = subprocess.run(words, capture_output=True, timeout=300)
    # where the machine is slow a log has lines
    assert b"\r" not in plain.stderr
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*PACK, str(images), str(tmp_path / "b"), "--size", "32"], stderr=child, stdout=subprocess.PIPE
    )
    os.close(child)
    seen = b""
    try:
        while piece := os.read(parent, 4096):
            seen += piece
    except OSError:
        pass
    os.close(parent)
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert b"\r" in seen
    assert b"images/s" in seen
    assert b"rejected" in seen


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
    done = subprocess.run(
        [*PACK, "images", "out", "--size", "32"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("delivered_signals")
def test_a_signal_that_its_parent_ignores_does_not_end_the_command(images: Path, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom packer.cli.app import run\nimport packer.packing.build as p\n"
        "p.check_room = lambda *_: os.kill(os.getpid(), signal.SIGINT)\nsys.exit(run(sys.argv[1:]))\n"
    )
    command = [
        sys.executable,
        "-c",
        script,
        str(images),
        "--size",
        "32",
        "--quiet",
    ]
    ignore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    ignored = subprocess.run([*command, str(tmp_path / "ignored")], preexec_fn=ignore, timeout=300)
    assert ignored.returncode == 0
    heard = subprocess.run([*command, str(tmp_path / "heard")], stderr=subprocess.PIPE, timeout=300)
    assert heard.returncode == 130


def test_shell_completion_knows_the_commands() -> None:
    environment = os.environ | {"_PACK_COMPLETE": "bash_complete", "COMP_WORDS": "pack ver", "COMP_CWORD": "1"}
    done = subprocess.run([*PACK], env=environment, capture_output=True, text=True)
    assert "plain,verify" in done.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["images", "out"], "pack images out"),
        (["my images", "out", "--quiet"], "pack 'my images' out --quiet"),
        (["update", "images", "out"], "pack update images out"),
        (["-", "out", "--size", "8"], "pack - out --size 8 (with the same standard input)"),
        (["verify", "out"], "pack verify out"),
        (["push", "out", "s3://key:secret@host/out"], "pack push out s3://***@host/out"),
    ],
)
def test_an_interrupted_command_prints_the_full_line_to_continue(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("packer.cli.app.cli.main", interrupt)
    assert run(words) == 130
    assert capsys.readouterr().err == f"pack: interrupted. To continue: {line}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["build"], "OUT is missing. Expected: pack IMAGES OUT."),
        (["subset"], "STORE is missing. Expected: pack subset STORE OUT."),
        (["show", "out", "5"], "Got unexpected extra argument (5). Expected: pack show"),
        (["pull"], "URL is missing. Expected: pack pull URL OUT."),
        (["verify", "--json=x"], "See: pack verify --help"),
        (["--", "none/", "out/"], "none does not exist"),
        (["build", "--", "none/", "out/"], "none does not exist"),
        (["subset", "--", "none/", "out/"], "nothing says which rows of none/"),
    ],
)
def test_a_command_without_words_before_the_others_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == EXIT_USAGE
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_what_is_left_for_the_end_of_the_process_is_done(tmp_path: Path) -> None:
    """The command ends without taking the interpreter apart."""
    program = (
        "import atexit, sys\nfrom packer.cli.app import main\natexit.register(print, 'done')\n"
        "sys.stdout.write('unfinished line ')\nmain(['info', 'nothing'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "unfinished line done\n")
    assert done.stderr.startswith("pack: nothing ")
