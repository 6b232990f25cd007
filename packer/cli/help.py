"""How help reads: options and commands under headings, examples cut to the terminal, colors where there is one.

Knows which option belongs under which heading. Only click's own styling: a help library would cost more than the help.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from pathlib import Path

import click

# A command with more options than this has them under headings.
_OPTIONS_IN_ONE_LIST = 12
# Options as `build` and `update` have them, in the order of the help.
_SECTIONS = {
    "Input": "-0 --root --path-column --extension --max-pixels",
    "Size and pixels": "--size --fit --max-size --crop-fraction --resample --exact --channels --bit-depth --requantize"
    " --compress",
    "Labels": "--target-column --text-column --missing --classes --boxes --masks --mask-values",
    "Failures": "--max-rejects",
    "Performance": "--workers",
    "Distributed": "--part --engine",
    "Output": "--overwrite --shuffle --json --quiet --help",
}
_COMMANDS = {
    "Create": ("build", "seal", "subset", "merge"),
    "Inspect": ("plan", "info", "show", "verify", "compare"),
    "Change": ("update", "requantize"),
    "Transfer": ("push", "pull"),
    "Diagnose": ("doctor", "bench"),
}
_EXAMPLES = "\nExamples:\n\n"
# What a shell takes for one word, quotes included.
_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
# Nothing of a terminal narrower than this is enough for two columns of any use.
_NARROW_COLUMNS = 80


class Command(click.Command):
    """A command whose help has headings for many options, and examples that can be copied at any width."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write how the command is called."""
        formatter.write_usage(ctx.command_path, " ".join(self.collect_usage_pieces(ctx)), _heading(ctx, "Usage:") + " ")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command does, then its examples."""
        write_text_and_examples(ctx, formatter, self.help or "")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, many of them under headings."""
        records = option_records(self, ctx)
        sections = self.sections(ctx)
        write_sections(ctx, formatter, {heading: [records[name] for name in sections[heading]] for heading in sections})

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        """Return the names of the options by heading; of few options, all below one."""
        left, sections = [*option_records(self, ctx)], {}
        if len(left) > _OPTIONS_IN_ONE_LIST:
            for heading, names in _SECTIONS.items():
                sections[heading] = [name for name in names.split() if name in left]
                left = [name for name in left if name not in sections[heading]]
        return sections | {"Options": left}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write where the documentation is."""
        write_documentation(formatter)


# Decorates a function as a command with such help.
# of each command: click keeps the help option of the first context, which need not be below that of `pack`
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
command = functools.partial(click.command, cls=Command, context_settings=SETTINGS)


def option_records(of: click.Command, ctx: click.Context) -> dict[str, tuple[str, str]]:
    """Return what help says of each option that is not hidden, by its longest name."""
    options = (param for param in of.get_params(ctx) if isinstance(param, click.Option))
    return {option.opts[-1]: record for option in options if (record := option.get_help_record(ctx))}


def command_records(group: click.Group) -> dict[str, list[tuple[str, str]]]:
    """Return the commands of a group by what they do, each with its line."""
    left = {name: (name, found.get_short_help_str(limit=200)) for name, found in group.commands.items()}
    sections = {heading: [left.pop(name) for name in names if name in left] for heading, names in _COMMANDS.items()}
    return sections | {"Commands": [*left.values()]}


def write_sections(
    ctx: click.Context, formatter: click.HelpFormatter, sections: dict[str, list[tuple[str, str]]]
) -> None:
    """Write terms and their meanings below headings, in the same two columns below all of them."""
    most = formatter.width // 3 if formatter.width < _NARROW_COLUMNS else 30
    width = max((len(term) for rows in sections.values() for term, _ in rows if len(term) <= most), default=0)
    for heading, rows in sections.items():
        if not rows:
            continue
        formatter.write_paragraph()
        formatter.write(f"{_heading(ctx, f'{heading}:')}\n")
        with formatter.indentation():
            terms = [(_styled(ctx, term.ljust(width), fg="cyan"), text) for term, text in rows]
            formatter.write_dl(terms, col_max=width)


def write_text_and_examples(ctx: click.Context, formatter: click.HelpFormatter, text: str) -> None:
    """Write a docstring: its paragraphs wrapped, its examples as lines that a shell takes."""
    before, _, rest = inspect.cleandoc(text).partition(_EXAMPLES)
    examples, _, after = rest.partition("\n\n")
    for paragraphs in (before.strip(), after.strip()):
        if paragraphs:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(paragraphs)
        if examples and paragraphs == before.strip():
            formatter.write_paragraph()
            formatter.write(f"{_heading(ctx, 'Examples:')}\n")
            for line in examples.splitlines():
                formatter.write("".join(f"  {piece}\n" for piece in shell_lines(line, formatter.width - 2)))


def write_documentation(formatter: click.HelpFormatter) -> None:
    """Write where the pages are: in this checkout, else at the address that the installed package names."""
    pages = Path(__file__).resolve().parents[2] / "docs"
    if where := f"{pages}{os.sep}" if pages.is_dir() else _documentation_url():
        formatter.write_paragraph()
        formatter.write(f"Documentation: {where}\n")


def _documentation_url() -> str | None:
    """Return [project.urls] Documentation of the installed package, where it has one."""
    from importlib.metadata import PackageNotFoundError, metadata  # slow to import: only where it is asked for

    try:
        urls = metadata("pixpack").get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    return next((url.partition(", ")[2] for url in urls if url.startswith("Documentation, ")), None)


def shell_lines(line: str, width: int) -> list[str]:
    """Cut a line of shell into lines of a width that a shell joins again: between words, never inside quotes."""
    lines = [""]
    for word in _WORD.findall(line):
        joined = f"{lines[-1]} {word}" if lines[-1].strip() else f"{lines[-1]}{word}"
        # two columns for the backslash that a further line would need
        if len(joined) > width - 2 and lines[-1].strip():
            lines += [f"    {word}"]
        else:
            lines[-1] = joined
    if len(lines) > 1 and len(joined := f"{lines[-2]} {lines[-1].strip()}") <= width:
        lines[-2:] = [joined]  # the last line needs none
    return [f"{piece} \\" for piece in lines[:-1]] + lines[-1:]


def use_color() -> bool | None:
    """Return click's color setting: False where NO_COLOR asks for none (https://no-color.org), else None: as the stream is."""
    return False if os.environ.get("NO_COLOR") else None


def _heading(ctx: click.Context, text: str) -> str:
    return _styled(ctx, text, bold=True)


def _styled(ctx: click.Context, text: str, **style: str | bool) -> str:
    """Style text for a terminal; what is not a terminal, such as a generator of pages, gets it plain."""
    is_colored = ctx.color if ctx.color is not None else sys.stdout is not None and sys.stdout.isatty()
    return click.style(text, **style) if is_colored else text  # type: ignore[arg-type]
