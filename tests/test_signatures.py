"""The public signatures are those of tests/golden/signatures.txt, so that a change of one is made on purpose.

It has every name of packer and reader, those of the modules that are public by their path, and the methods and attributes of the
classes: parameters with kinds, annotations and defaults. Who changes one writes the file again, and its diff shows the change:

    PIXPACK_WRITE_GOLDEN=1 python -m pytest tests/test_signatures.py
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from golden_text import check_text

from scripts import reference_pages

GOLDEN = Path(__file__).parent / "golden" / "signatures.txt"
OURS = ("packer", "reader", "pixpack")
# Modules whose path is public -> the names that are.
DOORS = {
    "packer": None,
    "reader": None,
    "pixpack": ["packed"],
    "packer.cli": ["main", "run"],
    "reader.manifest": None,
    "reader.store": ["ImageBatch", "RaggedBatch", "open_store"],
    "reader.bench": ["Way", "measure"],
}
# Longer lines are broken.
WIDTH = 110
NO_TEXT = object()
# Of an object: what makes it, and what a dataclass gives it.
GIVEN = {"__init__", "__new__", "__post_init__", "__eq__", "__hash__", "__repr__", "__setattr__", "__delattr__"}


def test_public_signatures_are_those_of_the_snapshot() -> None:
    check_text(GOLDEN, "\n".join([*lines()]) + "\n")


def test_a_signature_shows_kinds_annotations_and_defaults() -> None:
    # the text of a default may change from run to run
    def example(a: int, /, b: str = "x", *, c: Any = NO_TEXT, **d: object) -> None: ...

    words = ["a: int", "/", "b: str = 'x'", "*", "c: Any = ...", "**d: object"]
    assert signature(example) == (words, " -> None")
    assert [*shown("def example", example)] == [f"def example({', '.join(words)}) -> None"]
    assert [*shown("def " + "e" * WIDTH, example)][1:] == [*(f"    {word}," for word in words), ") -> None"]


def lines() -> Iterator[str]:
    """Yield the lines of the snapshot."""
    shown_at: dict[int, str] = {}
    for door, names in DOORS.items():
        module = importlib.import_module(door)
        for name in sorted(names or public_names(module)):
            thing, path = getattr(module, name), f"{door}.{name}"
            if id(thing) in shown_at:
                yield f"{path} is {shown_at[id(thing)]}"
                continue
            if not isinstance(thing, str | int | float):
                shown_at[id(thing)] = path
            yield from described(path, thing)


def public_names(module: types.ModuleType) -> list[str]:
    """Return the names of `__all__`."""
    names: list[str] = module.__all__
    return names


def described(path: str, thing: Any) -> Iterator[str]:
    """Yield what a public name is: the line of a function or value, or the lines of a class."""
    if not isinstance(thing, type):
        value = "a version" if path.endswith("__version__") else repr(thing)
        yield from shown(f"def {path}", thing) if callable(thing) else [f"{path} = {value}"]
        return
    is_error = issubclass(thing, BaseException)
    params = getattr(thing, "__dataclass_params__", None)
    kind = "frozen class" if params is not None and params.frozen else "class"
    bases = f"({', '.join(public_bases(thing))})" if public_bases(thing) else ""
    yield f"{kind} {path}{bases}"
    if not is_error:
        yield from shown("def __init__", thing, "    ")
    for _, lines in sorted(members(thing).items()):
        yield from lines


def shown(head: str, thing: Any, indent: str = "") -> Iterator[str]:
    """Yield the line of a signature, or, where it is long, a line a parameter: a diff then names the one that changed."""
    words, returned = signature(thing)
    line = f"{indent}{head}({', '.join(words)}){returned}"
    if len(line) <= WIDTH:
        yield line
        return
    yield f"{indent}{head}("
    yield from (f"{indent}    {word}," for word in words)
    yield f"{indent}){returned}"


def public_bases(thing: type) -> list[str]:
    """Return the bases on which a program may rely: of Python, of torch, and public ones of ours."""
    homes = [base.__module__.partition(".")[0] for base in thing.__mro__]
    return [
        base.__name__
        for base, home in zip(thing.__mro__[1:-1], homes[1:-1], strict=True)
        if base not in (Exception, BaseException)
        if home in ("builtins", "torch") or (home in OURS and base.__name__ in importlib.import_module(home).__all__)
    ]


def members(thing: type) -> dict[tuple[str, str], list[str]]:
    """Return the lines of attributes, operators, and what the reference lists of methods and properties, by kind and name."""
    # what a dataclass is made of is in its signature
    seen = {*inspect.signature(thing).parameters} if dataclasses.is_dataclass(thing) else set()
    found: dict[tuple[str, str], list[str]] = {}
    for home in thing.__mro__:
        if home.__module__.partition(".")[0] not in OURS:
            continue
        listed = {name: member for name, member, _ in reference_pages.members_of(home)}
        annotated = {
            name: f": {spelled(text)}" for name, text in inspect.get_annotations(home).items() if name[0] != "_"
        }
        attributes = annotated | {name: "" for name in documented_attributes(home) if name not in listed | annotated}
        operators = {name: member for name, member in vars(home).items() if is_operator(name, member)}
        for name, text in attributes.items():
            if name not in seen:
                found["attribute", name] = [f"    attribute {name}{text}"]
        for name, member in (listed | operators).items():
            if name not in seen:
                found[kind_of(member), name] = [*member_lines(name, member)]
        seen |= {*attributes, *listed, *operators}
    return found


def documented_attributes(home: type) -> list[str]:
    """Return the names in the section Attributes of a docstring."""
    section = re.search(r"^Attributes:\n((?: +.*\n?|\n)+)", inspect.cleandoc(home.__doc__ or ""), re.M)
    named = re.findall(r"(?m)^ {4}(\w+(?:, \w+)*): ", section[1] if section else "")
    return [name for names in named for name in names.split(", ")]


def is_operator(name: str, member: Any) -> bool:
    """Say whether a member is one of ours that Python calls, such as __len__; a dataclass makes others for itself."""
    is_special = name.startswith("__") and name.endswith("__") and name not in GIVEN
    return is_special and inspect.isfunction(member) and member.__module__.partition(".")[0] in OURS


def kind_of(member: Any) -> str:
    """Return "property", "classmethod", "staticmethod" or "def"."""
    return type(member).__name__ if isinstance(member, property | classmethod | staticmethod) else "def"


def member_lines(name: str, member: Any) -> Iterator[str]:
    """Yield the lines of a property, or of a method of one of the three kinds."""
    if isinstance(member, property):
        settable = ", settable" if member.fset else ""
        yield f"    property {name}: {spelled(inspect.signature(member.fget).return_annotation)}{settable}"
        return
    yield from shown(f"{kind_of(member)} {name}", getattr(member, "__func__", member), "    ")


def signature(thing: Any) -> tuple[list[str], str]:
    """Return parameters and result in a form that no version of Python changes: ["a: int", "*", "b: str = 'x'"], " -> None"."""
    found = inspect.signature(thing)
    words, kinds = [], [parameter.kind for parameter in found.parameters.values()]
    for number, parameter in enumerate(found.parameters.values()):
        starred = {parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY} & {*kinds[:number]}
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
        words.append(parameter_text(parameter))
        if parameter.kind is parameter.POSITIONAL_ONLY and kinds[number + 1 : number + 2] != [parameter.kind]:
            words.append("/")
    is_bare = isinstance(thing, type) or found.return_annotation is found.empty
    return words, "" if is_bare else f" -> {spelled(found.return_annotation)}"


def parameter_text(parameter: inspect.Parameter) -> str:
    """Return one parameter with its annotation and default."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotation = "" if parameter.annotation is parameter.empty else f": {spelled(parameter.annotation)}"
    # a function or a value made for each call has no text of its own
    default = "" if parameter.default is parameter.empty else f" = {re.sub(r'<.*>', '...', repr(parameter.default))}"
    return f"{stars}{parameter.name}{annotation}{default}"


def spelled(annotation: Any) -> str:
    """Return an annotation as the source has it."""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
