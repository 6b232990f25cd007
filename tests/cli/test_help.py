"""Help and --version as a user meets them."""

from __future__ import annotations

import re

import click
import pytest

from packer.cli import app
from packer.cli.app import run


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", [None, *sorted(app.cli.commands)])
def test_help_names_every_option_and_shows_examples_a_line_each(
    command: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, *([command] if command else []), "--help")
    found = app.cli.commands[command] if command else app.cli
    options = {param.opts[-1] for param in found.params if isinstance(param, click.Option)}
    assert {option for option in options if not re.search(rf"(?m)^  .*{option}\b", text)} == set()
    examples = re.findall(r"(?m)^ +((?:pack|find|seq|for) .*)$", (found.help or "").partition("Examples:")[2])
    assert examples
    assert {line for line in examples if line not in text} == set()


def test_the_help_of_the_command_fits_a_screen_and_names_all_others(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--help")
    assert len(text.splitlines()) <= 50
    assert re.findall(r"(?m)^  (\w+) ", text.partition("Commands:")[2]) == [*app.cli.commands]


def test_the_version_names_the_decoder_and_its_simd(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "--version").splitlines()
    assert re.fullmatch(r"pixpack \d+\.\d+\.\d+", lines[0])
    assert re.fullmatch(
        r"decoder: (libjpeg-turbo .+, through (the compiled part|jpeg4py .+)|Pillow's libjpeg-turbo .+)", lines[1]
    )
    assert re.fullmatch(r"resizing: pillow(-simd)? \S+, SIMD: (avx2|sse4|none)", lines[2])
    assert lines[3].startswith("compiled part: ")
    assert len(lines) == 4
