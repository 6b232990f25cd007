"""What a command says of its progress where no terminal is: plain lines, few, on stderr alone; by a clock that a test sets."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Feed, Tune

from packer.cli import app
from packer.cli import progress as module
from packer.cli.app import run
from packer.cli.progress import ProgressBar
from packer.report import Progress


class Log:
    """A log and a clock: each `after` lets seconds pass."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.now, self.text, self._capsys = 1000.0, "", capsys
        self.bar = ProgressBar(hidden=False, clock=lambda: self.now)

    def after(self, seconds: float, *arguments: Any, **options: Any) -> None:
        self.now += seconds
        self.bar.update(Progress(*arguments, **options))

    @property
    def lines(self) -> list[str]:
        out, err = self._capsys.readouterr()
        assert out == ""
        self.text += err
        return self.text.splitlines()


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Log:
    return Log(capsys)


def test_a_line_says_what_is_done_how_fast_and_how_long_it_takes(log: Log) -> None:
    log.after(0, "pack", 0, 128_000)
    log.after(15, "pack", 12_800, 128_000, rejected=3, source_bytes=1_410_000_000)
    assert log.lines == ["pack: 12,800 of 128,000 images, 10%, 853 images/s, 94 MB/s, 3 rejected, 0:02:15 left"]


def test_a_line_comes_with_each_tenth(log: Log) -> None:
    for done in range(0, 1001, 10):
        log.after(0.6, "pack", done, 1000, split="train")
    assert [line.split(", ")[1] for line in log.lines] == [f"{share}%" for share in range(10, 101, 10)]
    assert log.lines[0].startswith("train pack: 100 of 1,000 images, 10%")


def test_where_a_tenth_takes_long_a_line_comes_every_ten_seconds(log: Log) -> None:
    for second in range(301):
        log.after(1, "pack", second, 1_000_000)
    assert len(log.lines) == 30


def test_a_short_command_says_nothing_and_a_fast_one_not_much(log: Log) -> None:
    for done in range(1000):
        log.after(0.0049, "pack", done, 1000)
    assert log.lines == []
    for done in range(100_000):
        log.after(0.0002, "copy", done, 100_000)
    assert len(log.lines) == 4


def test_what_stands_still_says_so(log: Log) -> None:
    log.after(0, "pack", 5, 100)
    for _ in range(130):
        log.after(1, "pack", 5, 100)
    assert log.lines == ["pack: 5 of 100 images, 5%, 0 rejected"] * 13


def test_a_log_says_which_process_packs(log: Log) -> None:
    for _ in range(10):
        log.after(1, "wait", 0, 0, waits_for="/out is being packed by process 3 on node")
    assert log.lines[0] == "wait, /out is being packed by process 3 on node"


class Terminal(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    @property
    def line(self) -> str:
        """What its line shows now."""
        return self.getvalue().split("\r")[-1].rstrip()


def test_a_terminal_shows_who_packs_instead_of_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module.os, "get_terminal_size", lambda _: (80, 24))
    with ProgressBar(hidden=False) as bar:
        bar.update(Progress("pack", 5, 100))
        bar.update(Progress("wait", 0, 0, waits_for=f"/{'photos/' * 40} is being packed by process 3 on node"))
        assert terminal.line.startswith("wait, ...")
        assert terminal.line.endswith("photos/ is being packed by process 3 on node")


def test_what_was_found_comes_before_the_bar_and_before_the_first_line(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Progress("list", 1000, 1000, found="1,000 images, 10 classes")
    log.bar.update(found)
    assert log.lines == []
    for second in range(12):
        log.after(second, "pack", second, 1000)
    assert log.lines[0] == "found 1,000 images, 10 classes"
    assert sum("found" in line for line in log.lines) == 1
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module.os, "get_terminal_size", lambda _: (80, 24))
    with ProgressBar(hidden=False) as bar:
        bar.update(Progress("list", 1000, 0))
        bar.update(found)
        bar.update(Progress("pack", 0, 1000))
        assert "\rfound 1,000 images, 10 classes\n" in terminal.getvalue()
        assert terminal.line.startswith("pack:   0%|")


def test_bytes_shares_and_what_has_no_end_have_their_words(log: Log) -> None:
    log.bar.bytes_done(0, 10_000_000_000)
    log.now += 10
    log.bar.bytes_done(1_000_000_000, 10_000_000_000)
    log.now += 40
    log.bar.share_done("gathering", 0.4)
    log.after(40, "allocate", 1 << 30, 1 << 34)
    log.after(40, "list", 12_345, 0)
    assert log.lines == [
        "verify: 1.0 GB of 10.0 GB, 10%, 100.0 MB/s, 0:01:30 left",
        "gathering: 40%",
        "allocate: 1.1 GB of 17.2 GB, 6%",
        "list: 12,345 images",
    ]


def test_lines_are_complete_and_plain(log: Log) -> None:
    for done in range(0, 101, 10):
        log.after(6, "pack", done, 100)
    assert len(log.lines) == 10
    text = log.text
    assert text.endswith("\n")
    assert text.isascii()
    assert "\r" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize("is_hidden", [True, False])
def test_a_log_that_was_closed_or_silenced_gets_nothing(monkeypatch: pytest.MonkeyPatch, is_hidden: bool) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO() if is_hidden else None)
    bar = ProgressBar(hidden=is_hidden, clock=iter(range(0, 10**6, 100)).__next__)
    for done in range(10):
        bar.update(Progress("pack", done, 10))
    assert not is_hidden or sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "stage"),
    [
        (["IMAGES", "OUT", "--size", "8"], "pack: "),
        (["update", "IMAGES", "STORE"], "pack: "),
        (["subset", "STORE", "OUT", "--fraction", "0.5"], "copy: "),
        (["merge", "STORE", "STORE", "OUT"], "copy: "),
        (["verify", "STORE"], "verify: "),
        (["plan", "IMAGES", "--size", "8"], "sizes: "),
        (["push", "STORE", "file://OUT"], "push: "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
@pytest.mark.parametrize("is_quiet", [False, True])
def test_all_commands_write_lines_and_quiet_ones_none(
    images: Path,
    store: Path,
    tmp_path: Path,
    arguments: list[str],
    stage: str,
    is_quiet: bool,
    tune: Tune,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As if every report came after an hour; what is on stdout is the result and no more."""
    tune(log_line_seconds=0.0, log_line_share=0.0)
    paths = {"IMAGES": images, "STORE": store, "OUT": tmp_path / "out", "file://OUT": f"file://{tmp_path / 'out'}"}
    words = [str(paths.get(word, word)) for word in arguments]
    assert run([*words, *(["--quiet"] if is_quiet else [])]) == 0
    out, err = capfd.readouterr()
    assert any(line.startswith(stage) for line in err.splitlines()) is not is_quiet
    assert stage not in out
    assert (out == "") is (is_quiet and arguments[0] != "plan")


@pytest.mark.parametrize(
    ("arguments", "stages"),
    [
        (["-", "OUT", "--size", "8"], "locate label allocate pack seal"),
        (["plan", "-", "--size", "8"], "locate label sizes"),
        (["IMAGES", "OUT"], "sizes"),
        (["IMAGES", "OUT", "--fit", "none"], "sizes allocate pack seal"),
        (["IMAGES", "STORE", "--size", "16"], "check"),
        (["update", "IMAGES", "STORE"], "digest read allocate pack seal"),
        (["subset", "STORE", "OUT", "--fraction", "0.5"], "digest check allocate read copy"),
        (["merge", "STORE", "STORE", "OUT"], "digest check allocate read copy"),
        (["info", "STORE"], "read"),
        (["verify", "STORE"], "digest check verify"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_each_long_loop_reports_how_far_it_is(
    images: Path,
    tmp_path: Path,
    arguments: list[str],
    stages: str,
    tune: Tune,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    feed: Feed,
) -> None:
    """Where 5 million inputs take longer than ten seconds, a command says what it does: here in the lines of its log."""
    store = tmp_path / "store"
    assert run([str(images), str(store), "--size", "16", "--quiet"]) == 0
    tune(log_line_seconds=0.0, log_line_share=0.0)
    feed("".join(f"{path}\n" for path in sorted(images.rglob("*.jpg"))).encode())
    capfd.readouterr()
    paths = {"IMAGES": images, "STORE": store, "OUT": tmp_path / "out"}
    run([str(paths.get(word, word)) for word in arguments])
    lines = capfd.readouterr().err.splitlines()
    assert [
        *dict.fromkeys(line.partition(":")[0] for line in lines if " of " in line and "%" in line)
    ] == stages.split()


def test_the_time_left_is_right_within_a_third_though_blocks_come_in_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 images at 100 a second, 30,000 are done after 300 seconds; the last ones came at once."""
    terminal, now = Terminal(), [0.0]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module.os, "get_terminal_size", lambda _: (80, 24))
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with ProgressBar(hidden=False) as bar:
        bar.update(Progress("pack", 0, 100_000))
        for done in range(1000, 31_000, 1000):
            # five blocks are behind a slow one: all six come within a second
            now[0] += 59.0 if done % 6000 == 1000 else 0.2
            bar.update(Progress("pack", done, 100_000))
    left = re.findall(r"30%\|[^|]*\| ([0-9:]+) left, ", terminal.getvalue())[-1]
    seconds = sum(int(part) * 60**power for power, part in enumerate(reversed(left.split(":"))))
    assert seconds == pytest.approx(700, rel=1 / 3)


@pytest.mark.parametrize("stage", ["allocate", "sizes", "train allocate", "check"])
def test_each_stage_shows_its_bar_at_80_columns(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module.os, "get_terminal_size", lambda _: (80, 24))
    with ProgressBar(hidden=False) as bar:
        bar.update(Progress(stage, 5_000_000_000, 10_000_000_000))
        assert terminal.line.startswith(f"{stage}:  50%|######")
    with ProgressBar(hidden=False) as bar:
        bar.update(Progress(stage, 10_000_000_000, 10_000_000_000))
        assert re.fullmatch(rf"{stage}: 100%\|#+\|", terminal.line)
        assert len(terminal.line) <= 78


def test_the_command_does_not_import_tqdm_for_a_log(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert app.run([str(images), str(tmp_path / "out"), "--size", "8"]) == 0


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_the_bar_keeps_room_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module.os, "get_terminal_size", lambda _: (columns, 24))
    with ProgressBar(hidden=False) as bar:
        bar.update(Progress("pack", 600_000, 1_281_167, split="train"))
        bar._bar.start_t -= 100
        bar.update(Progress("pack", 680_000, 1_281_167, 12, 8_800_000_000, split="train"))
        bar._bar.refresh()
        line = terminal.line
    # the ^C that a terminal shows fits behind it
    assert len(line) <= columns - 2
    assert len(line.split("|")[1]) >= 6
    # of this run alone: 600,000 images were there when it began; a busy machine adds some milliseconds to the 100 seconds
    rest = " images/s, 12 rejected" if columns < 100 else r"\.\d\d images/s, 8\d MB/s, 12 rejected"
    assert re.search(rf"\b(800|79\d){rest}", line)


_INTERRUPTED_IMPORT = """
import os, signal
from packer.cli.progress import ProgressBar
from packer.cli.signals import signals_raise
from packer.report import Progress

imported = compile("os.kill(os.getpid(), signal.SIGINT)\\nwhile True: pass", "<frozen importlib._bootstrap>", "exec")
with ProgressBar(hidden=False) as bar, signals_raise("pack images out"):
    bar.update(Progress("allocate", 1, 2))
    exec(imported)
"""


@pytest.mark.usefixtures("delivered_signals")
def test_an_interrupt_that_comes_while_a_module_is_imported_clears_the_bar() -> None:
    terminal, line = os.openpty()
    child = subprocess.run([sys.executable, "-c", _INTERRUPTED_IMPORT], stderr=line, timeout=60)
    os.close(line)
    with os.fdopen(terminal, "rb", buffering=0) as file:
        shown = file.read(1 << 16).decode()
    assert child.returncode == 130
    bar, message = shown.rstrip().rsplit("\r", 2)[-2:]
    assert "allocate:  50%" in shown
    assert bar.strip() == ""
    assert message == "pack: interrupted. To continue: pack images out"
