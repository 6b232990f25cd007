"""Functions that take options as keywords: names, types and defaults are those of a group of `packer.options`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from packer.progress import listening

Inputs = TypeVar("Inputs")
Out = TypeVar("Out")
Options = TypeVar("Options")
Result = TypeVar("Result")
Keywords = ParamSpec("Keywords")


def takes(
    make: Callable[Keywords, Options],
) -> Callable[[Callable[[Inputs, Out, Options], Result]], Callable[Concatenate[Inputs, Out, Keywords], Result]]:
    """Turn f(a, b, options) into a function called as f(a, b, size=224): the fields of a dataclass become keywords.

    `help` and `inspect.signature` show them with their defaults, and type checkers check them. In the docstring, the help of
    each field replaces the line of `options`.
    """

    def decorate(
        function: Callable[[Inputs, Out, Options], Result],
    ) -> Callable[Concatenate[Inputs, Out, Keywords], Result]:
        """Set the signature and docstring of a function from its options."""
        first = [*inspect.signature(function).parameters.values()][:2]
        parameters = [*first, *inspect.signature(make).parameters.values()]
        signature = inspect.Signature(parameters, return_annotation=inspect.signature(function).return_annotation)

        @functools.wraps(function)
        def called(*arguments: object, **keywords: object) -> Result:
            """Make the options, and call the function with them."""
            try:
                given = signature.bind(*arguments, **keywords).arguments
            except TypeError as e:
                raise TypeError(f"{function.__name__}() {e}") from None
            a, b = (given.pop(parameter.name) for parameter in first)
            options = cast(Any, make)(**given)
            with listening(options.progress):
                return function(a, b, options)

        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__doc__ = _documented(function, make)
        return cast(Any, called)

    return decorate


def _documented(function: Callable[..., object], make: Callable[..., object]) -> str | None:
    """Return a function's docstring with an entry for each option in place of that of `options`; None under python -OO."""
    if function.__doc__ is None:
        return None
    entries = "".join(f"    {each.name}: {each.metadata['help']}\n" for each in dataclasses.fields(cast(Any, make)))
    return re.sub(r"^    options: .+\n", lambda _: entries, inspect.cleandoc(function.__doc__), count=1, flags=re.M)
