"""Functions that take options as keywords: names, types and defaults are those of a group of `packer.options`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

A = TypeVar("A")
B = TypeVar("B")
Options = TypeVar("Options")
Result = TypeVar("Result")
Keywords = ParamSpec("Keywords")


def takes(
    make: Callable[Keywords, Options],
) -> Callable[[Callable[[A, B, Options], Result]], Callable[Concatenate[A, B, Keywords], Result]]:
    """Make of f(a, b, options) what is called as f(a, b, size=224): the fields of a dataclass are its keywords.

    `help` and `inspect.signature` show them with their defaults, and type checkers check them.
    """

    def decorate(function: Callable[[A, B, Options], Result]) -> Callable[Concatenate[A, B, Keywords], Result]:
        first = [*inspect.signature(function).parameters.values()][:2]
        signature = inspect.Signature([*first, *inspect.signature(make).parameters.values()])

        @functools.wraps(function)
        def called(*arguments: Any, **keywords: Any) -> Result:
            given = signature.bind(*arguments, **keywords).arguments
            a, b = (given.pop(parameter.name) for parameter in first)
            return function(a, b, cast(Any, make)(**given))

        called.__signature__ = signature  # type: ignore[attr-defined]
        return cast(Any, called)

    return decorate
