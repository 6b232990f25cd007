"""Help, completion and --version as a user meets them: grouped, at any width, plain where no terminal is, quick."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from email.message import Message
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from conftest import PACK

from packer.cli import app, help
from packer.cli.app import run

HEADINGS = ["Input", "Size and pixels", "Labels", "Failures", "Performance", "Distributed", "Output"]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*words]) == 0
    return capsys.readouterr().out


def test_commands_are_grouped_by_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--help")
    blocks = [block.split(":\n") for block in text.partition("Exit codes")[2].split("\n\n")[1:]]
    groups = {heading: re.findall(r"(?m)^  (\w+) ", lines) for heading, lines in blocks[:-2]}
    assert list(groups) == ["Create", "Inspect", "Change", "Transfer", "Diagnose"]
    assert sorted(name for names in groups.values() for name in names) == sorted(app.cli.commands)


@pytest.mark.parametrize(("command", "missing"), [("build", set()), ("update", {"Size and pixels", "Distributed"})])
def test_many_options_are_grouped_and_none_is_left_over(
    command: str, missing: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, command, "--help")
    headings = re.findall(r"(?m)^(\S[^\n]*):$", text)
    assert headings == ["Examples", *(heading for heading in HEADINGS if heading not in missing)]
    options = {param.opts[-1] for param in app.cli.commands[command].params if isinstance(param, click.Option)}
    assert {option for option in options if not re.search(rf"(?m)^  (-h, )?{option}\b", text)} == set()


@pytest.mark.parametrize("columns", [60, 100])
@pytest.mark.parametrize("command", [None, *sorted(app.cli.commands)])
def test_help_fits_the_terminal(
    columns: int, command: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = shown(capsys, *([command] if command else []), "--help").partition("\nDocumentation:")[0]
    assert [line for line in text.splitlines() if len(line) > columns] == []
    if command:
        assert "Examples:\n  " in text


@pytest.mark.parametrize("width", [30, 58, 200])
def test_an_example_that_is_cut_is_the_same_line_to_a_shell(width: int) -> None:
    for command in app.cli.commands.values():
        for line in re.findall(r"(?m)^ *((?:pack|find|seq|for) .*)$", command.help.partition("Examples:")[2]):
            assert shlex.split("\n".join(help.shell_lines(line, width)).replace("\\\n", "")) == shlex.split(line)


def test_an_installed_package_without_pages_names_their_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fields = Message()
    for url in ("Homepage, https://forge.example/a/b", "Documentation, https://forge.example/a/b/docs"):
        fields.add_header("Project-URL", url)
    monkeypatch.setattr("importlib.metadata.metadata", {"pixpack": fields}.__getitem__)
    monkeypatch.setattr(help, "__file__", str(tmp_path / "packer" / "cli" / "help.py"))
    formatter = click.HelpFormatter()
    help.write_documentation(formatter)
    assert formatter.getvalue() == "Documentation: https://forge.example/a/b/docs\n"


def test_the_help_of_a_command_is_asked_for_either_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "help") == shown(capsys, "--help")
    assert shown(capsys, "help", "info") == shown(capsys, "info", "--help")
    assert run(["help", "inof"]) == 2
    assert "Did you mean info?" in capsys.readouterr().err
    assert run(["help", "images/"]) == 2
    assert "Expected one of build, " in capsys.readouterr().err


@pytest.mark.parametrize(("word", "meant"), [("inof", "info"), ("verfy", "verify"), ("updtae", "update")])
def test_a_slip_in_a_commands_name_is_no_folder(
    word: str, meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([word, "out/"]) == 2
    assert f"Did you mean {meant}?" in capsys.readouterr().err
    assert run(["images", "out/"]) == 2
    assert "images does not exist" in capsys.readouterr().err
    assert run(["--verison"]) == 2
    assert "No such option '--verison'. Did you mean --version? See: pack --help" in capsys.readouterr().err
    assert run(["frobnicate"]) == 2
    assert "'frobnicate' is not a command, and no such folder exists. See: pack --help" in capsys.readouterr().err
    (tmp_path / word).mkdir()
    assert run([word, "out/"]) == 2
    assert f"{word} holds no image" in capsys.readouterr().err


@pytest.mark.parametrize(("no_color", "is_colored"), [("", True), ("1", False)])
def test_a_terminal_has_colors_unless_it_wants_none(
    no_color: str, is_colored: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b" not in shown(capsys, "--help")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click.utils, "should_strip_ansi", lambda stream, color: color is False)
    assert ("\x1b[1mCreate:\x1b[0m" in shown(capsys, "--help")) is is_colored


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_completion_for_each_shell(shell: str) -> None:
    environment = os.environ | {"_PACK_COMPLETE": f"{shell}_source"}
    script = subprocess.run([*PACK], env=environment, capture_output=True, text=True, timeout=300).stdout
    assert f"_PACK_COMPLETE={shell}_complete" in script


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        ([], "ver", {"verify"}),
        ([], "--si", {"--size"}),
        (["images/", "out/"], "--max-s", {"--max-size"}),
        (["images/", "out/", "--fit"], "p", {"pad"}),
        (["info", "out/"], "--br", {"--brief"}),
    ],
)
def test_completion_knows_commands_options_and_choices(words: list[str], incomplete: str, expected: set[str]) -> None:
    found = ShellComplete(app.cli, {}, "pack", "_PACK_COMPLETE").get_completions(words, incomplete)
    assert {item.value for item in found if item.type == "plain"} == expected


def test_completion_of_the_first_word_takes_paths_too() -> None:
    found = ShellComplete(app.cli, {}, "pack", "_PACK_COMPLETE").get_completions([], "ima")
    assert [(item.value, item.type) for item in found] == [("ima", "file")]


def test_the_version_names_the_decoder_and_its_simd(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "--version").splitlines()
    assert re.fullmatch(r"pixpack \d+\.\d+\.\d+", lines[0])
    assert re.fullmatch(
        r"decoder: (libjpeg-turbo .+, through (the compiled part|jpeg4py .+)|Pillow's libjpeg-turbo .+)", lines[1]
    )
    assert re.fullmatch(r"resizing: pillow(-simd)? \S+, SIMD: (avx2|sse4|none)", lines[2])
    assert lines[3].startswith("compiled part: ")
    assert len(lines) == 4
