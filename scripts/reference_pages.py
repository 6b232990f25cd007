"""Writes the parts of docs/reference that the code knows: commands from click, Python from docstrings.

    python -m scripts.reference_pages

What stands between the two marks of a page is written again; the rest of the page is not touched. A test compares them.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from packer.cli.app import cli
from packer.cli.help import Command
from scripts import ROOT

REFERENCE = ROOT / "docs" / "reference"
BEGIN, END = "<!-- written by python -m scripts.reference_pages -->", "<!-- end of what is written -->"
_EXAMPLES = "\b\nExamples:\n"
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Example|Examples):\n", re.M)
_WIDTH = 100

# Methods of public classes that only other modules of reader call.
INTERNAL = {
    "as_sample",
    "at_rows",
    "begin",
    "changes",
    "changes_samples",
    "check_files",
    "chosen",
    "flip",
    "has_all_rows",
    "joined",
}
INTERNAL |= {"of_store", "positions", "store_rows"}

# Page of docs/reference/python -> what it shows of packer and reader.
PYTHON = {
    "packer": "packed pack pack_dataset",
    "operations": "update subset merge seal_parts verify compare plan requantize push pull",
    "reports": "PackReport VerifyReport CompareReport SizePlan RequantizeReport CopyReport Progress PackOptions OptionsError"
    " ScanError PackError DiskFullError LockedError JournalError SourceError",
    "dataset": "MemmapDataset concat",
    "stores": "open_store ImageBatch RaggedBatch Manifest StoreError IncompleteStoreError",
    "loader": "MemmapLoader",
    "samplers": "RASampler ConstantPixels to_device",
    "geometric-transforms": "RandomHorizontalFlip RandomVerticalFlip AlternatingFlip RandomCrop Pad RandomResizedCrop CenterCrop"
    " ResizeCenterCrop Resize RandomAffine RandomRotation RandomErasing"
    " MultiCrop TimmRandAugment torchvision_train torchvision_eval timm_train",
    "detection-transforms": "ToDetection SanitizeBoundingBoxes RandomIoUCrop RandomZoomOut RandomPhotometricDistort"
    " ScaleJitter FixedSizeCrop RandomShortestSize",
    "color-transforms": "ColorJitter Grayscale RandomGrayscale GaussianBlur RandomInvert RandomSolarize RandomPosterize"
    " RandomEqualize RandomAutocontrast RandomAdjustSharpness RandAugment TrivialAugmentWide AutoAugment AugMix MixUp CutMix"
    " Compose RandomApply RandomChoice RandomOrder MultiView from_torchvision PerSample Normalize",
}


def main() -> None:
    """Write every page."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """Return the text that each page must have."""
    made = {REFERENCE / "cli" / f"{name}.md": command_block(name) for name in cli.commands}
    made |= {REFERENCE / "python" / f"{page}.md": python_block(names.split()) for page, names in PYTHON.items()}
    return {path: filled(path.read_text(encoding="utf-8"), block) for path, block in made.items()}


def filled(text: str, block: str) -> str:
    """Return a page's text with a block between its marks."""
    marked = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.S)
    return marked.sub(lambda _: f"{BEGIN}\n\n{block.strip()}\n\n{END}", text)


# -- the command


def command_block(name: str) -> str:
    """Return usage, examples and options of a command."""
    command = cli.commands[name]
    assert isinstance(command, Command)
    context = click.Context(command, info_name=f"pack {name}", **command.context_settings)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"```text\n{usage}\n```"]
    _, _, rest = inspect.cleandoc(command.help or "").partition(_EXAMPLES)
    examples = textwrap.dedent(rest.partition("\n\n")[0])
    if examples:
        parts.append(f"```sh\n{examples}\n```")
    known = {option.opts[-1]: option for option in command.get_params(context) if isinstance(option, click.Option)}
    for heading, names in command.sections(context).items():
        rows = [option_row(known[option], context) for option in names if option != "--help"]
        if rows:
            parts.append("\n".join([f"## {heading}", "", "| option | default | |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def option_row(option: click.Option, context: click.Context) -> str:
    """Return the row of an option: how it is given, its default, what it does."""
    record = option.get_help_record(context)
    assert record
    text = re.sub(r"\s*\[(default: [^]]*|required)\]", "", option.help or "")
    named = re.search(r"\[default: ([^]]*)\]", option.help or "")
    if option.is_flag:
        default = "off"
    elif isinstance(option.default, str | int | float):
        default = f"`{option.default}`"
    else:
        default = "required" if option.required else (named[1] if named else "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{record[0]}`", default, text)) + " |"


# -- Python


def python_block(names: list[str]) -> str:
    """Return signature and documentation of each name."""
    packages = [importlib.import_module(name) for name in ("packer", "reader", "pixpack")]
    found = {name: next(package for package in packages if name in package.__all__) for name in names}
    return "\n\n".join(described(name, getattr(package, name)) for name, package in found.items())


def described(name: str, thing: Any) -> str:
    """Return the section of a public name."""
    parts = [f"## {name}"]
    is_error = isinstance(thing, type) and issubclass(thing, Exception)
    if not is_error:
        parts.append(f"```text\n{call(name, thing)}\n```")
    parts.append(as_markdown(inspect.getdoc(thing) or ""))
    methods = [] if is_error else list(methods_of(thing))
    if methods:
        parts.append("\n".join(["Methods and properties:", "", *methods]))
    return "\n\n".join(parts)


def call(name: str, thing: Any) -> str:
    """Return how a name is called, and what a function returns: `pack(images, out, *, size=None, ...) -> PackReport`."""
    signature = inspect.signature(thing)
    # a class takes names that it does not know only to refuse them
    hidden = inspect.Parameter.VAR_KEYWORD if isinstance(thing, type) else None
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.kind is not hidden]
    text = re.sub(r"<factory>|<function .*? at 0x\w+>", "...", str(inspect.Signature(bare)))
    returned = signature.return_annotation
    if not isinstance(thing, type) and returned not in (inspect.Signature.empty, "None", "Any"):
        text += f" -> {returned}"
    return textwrap.fill(f"{name}{text}", _WIDTH, subsequent_indent="    ", break_long_words=False)


def methods_of(thing: Any) -> Iterator[str]:
    """Yield a line for each method and property that programs use: how it is called, and its docstring."""
    for name, member, function in members_of(thing):
        shown = (
            name
            if isinstance(member, property)
            else call(name, function).replace("(self, ", "(").replace("(self)", "()")
        )
        yield f"- `{' '.join(shown.split())}`: {in_a_line(inspect.getdoc(function) or '')}"


def members_of(thing: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, member and function of each method and property that programs use."""
    if not isinstance(thing, type) or not thing.__module__.startswith(
        ("reader.dataset", "reader.loading", "reader.store")
    ):
        return
    for name, member in sorted(vars(thing).items()):
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or name in INTERNAL or not inspect.isfunction(function):
            continue
        if function.__module__.startswith("reader."):
            yield name, member, function


def in_a_line(doc: str) -> str:
    """Return a docstring in one line: its text, then what it raises; without its example."""
    text, *sections = _SECTION.split(doc)
    parts = [" ".join(text.split())]
    for heading, body in zip(sections[::2], sections[1::2], strict=True):
        if heading == "Raises":
            listed = entries(textwrap.dedent(split_indented(body)[0]).strip())
            parts.append("Raises " + "; ".join(item.removeprefix("- ").rstrip(".") for item in listed) + ".")
    return " ".join(parts)


def as_markdown(doc: str) -> str:
    """Turn a docstring's sections into lists, and its examples into code."""
    text, *sections = _SECTION.split(doc)
    parts = [text.strip()]
    for heading, body in zip(sections[::2], sections[1::2], strict=True):
        body, _, after = split_indented(body)
        if heading.startswith("Example"):
            parts.append(f"```pycon\n{textwrap.dedent(body).strip()}\n```")
        else:
            parts.append("\n".join([f"{heading}:", "", *entries(textwrap.dedent(body).strip())]))
        parts.append(after.strip())
    return "\n\n".join(part for part in parts if part)


def split_indented(body: str) -> tuple[str, str, str]:
    """Return the indented lines at the beginning of a section, and what follows them."""
    match = re.match(r"(?:(?: +.*)?\n?)*?(?=^\S|\Z)", body, re.M)
    end = match.end() if match else len(body)
    return body[:end], "", body[end:]


def entries(body: str) -> Iterator[str]:
    """Yield a list item for each entry: its name as code, its lines joined."""
    for entry in re.split(r"\n(?=\S)", body):
        name, colon, meaning = " ".join(entry.split()).partition(": ")
        names = ", ".join(f"`{part}`" for part in name.split(", "))
        yield f"- {names}: {meaning}" if colon else f"- {name}"


if __name__ == "__main__":
    main()
