"""Functions that take options as keywords: names, types and defaults are those of a group of `packer.options`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from packer.progress import listening

Inputs = TypeVar("Inputs", contravariant=True)
Out = TypeVar("Out", contravariant=True)
Options = TypeVar("Options")
Result = TypeVar("Result", covariant=True)
Keywords = ParamSpec("Keywords")


class Packs(Protocol[Inputs, Out, Keywords, Result]):
    """What is called with images and out, by position or by name, and with options by name."""

    def __call__(self, images: Inputs, out: Out, *args: Keywords.args, **keywords: Keywords.kwargs) -> Result: ...


class PacksDataset(Protocol[Inputs, Out, Keywords, Result]):
    """As `Packs`, of a dataset instead of images."""

    def __call__(self, dataset: Inputs, out: Out, *args: Keywords.args, **keywords: Keywords.kwargs) -> Result: ...


def takes(
    make: Callable[Keywords, Options],
) -> Callable[[Callable[[Inputs, Out, Options], Result]], Packs[Inputs, Out, Keywords, Result]]:
    """Turn f(a, b, options) into a function called as f(a, b, size=224): the fields of a dataclass become keywords.

    `help` and `inspect.signature` show them with their defaults, and type checkers check them. In the docstring the line of
    `options` gives way to the help of each field.
    """

    def decorate(function: Callable[[Inputs, Out, Options], Result]) -> Packs[Inputs, Out, Keywords, Result]:
        first = [*inspect.signature(function).parameters.values()][:2]
        parameters = [*first, *inspect.signature(make).parameters.values()]
        signature = inspect.Signature(parameters, return_annotation=inspect.signature(function).return_annotation)

        @functools.wraps(function)
        def called(*arguments: object, **keywords: object) -> Result:
            try:
                given = signature.bind(*arguments, **keywords).arguments
            except TypeError as e:
                raise TypeError(f"{function.__name__}() {_explained(e, signature, arguments, keywords)}") from None
            a, b = (given.pop(parameter.name) for parameter in first)
            options = cast(Any, make)(**given)
            with listening(options.progress):
                return function(a, b, options)

        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__doc__ = _documented(function, make)
        return cast(Any, called)

    return decorate


def _explained(
    error: TypeError, signature: inspect.Signature, arguments: Sequence[object], keywords: Mapping[str, object]
) -> str:
    """Say what of a call does not fit a signature, and what was meant."""
    import difflib

    first, second, *_ = signature.parameters
    if len(arguments) > 2:
        return f"takes {first} and {second} by position, and options by name; {len(arguments)} were given by position."
    unknown = next((name for name in keywords if name not in signature.parameters), "")
    near = difflib.get_close_matches(unknown, signature.parameters, 1) if f"'{unknown}'" in str(error) else []
    return f"{error}. Did you mean {near[0]}?" if near else str(error)


def takes_of_dataset(
    make: Callable[Keywords, Options],
) -> Callable[[Callable[[Inputs, Out, Options], Result]], PacksDataset[Inputs, Out, Keywords, Result]]:
    """As `takes`, for a function whose first argument is called dataset."""
    return cast(Any, takes(make))


def _documented(function: Callable[..., object], make: Callable[..., object]) -> str | None:
    """Return a function's docstring with an entry for each option in place of that of `options`; None under python -OO."""
    if function.__doc__ is None:
        return None
    entries = "".join(f"    {each.name}: {each.metadata['help']}\n" for each in dataclasses.fields(cast(Any, make)))
    return re.sub(r"^    options: .+\n", lambda _: entries, inspect.cleandoc(function.__doc__), count=1, flags=re.M)
